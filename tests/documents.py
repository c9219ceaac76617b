"""The documents as tests read them: names, texts and fenced parts."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
PAGE_NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
ANY_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def text_of(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def prose_of(name: str) -> str:
    """Return the text of a page without its fenced parts."""
    return ANY_FENCE.sub("", text_of(name))


def fences(name: str, *kinds: str) -> list[str]:
    """Return the fenced parts of a page that are of one of ``kinds``."""
    return [body for kind, body in ANY_FENCE.findall(text_of(name)) if kind in kinds]
