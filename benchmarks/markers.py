"""Parts of a page between markers, ``<!-- name:begin -->`` and ``<!-- name:end -->``, that a command writes."""

from __future__ import annotations

from pathlib import Path


def write(page: Path, name: str, content: str) -> None:
    """Put ``content`` between the markers called ``name``."""
    page.write_text(rewrite(page.read_text(encoding="utf-8"), name, content), encoding="utf-8")


def rewrite(text: str, name: str, content: str) -> str:
    """``text`` with ``content`` between the markers called ``name``; there must be one pair of them."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"expected {begin} and {end} once each, in this order")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{content.strip()}\n{end}{rest.partition(end)[2]}"
