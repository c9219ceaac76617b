"""Every link of the documents leads somewhere."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.documents import PAGE_NAMES, ROOT, prose_of, text_of

LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCE = re.compile(r"`((?:src|tests|docs|benchmarks|examples)/[\w./-]+)`")


def anchors(markdown: str) -> set[str]:
    """Return the anchors of all headings, as code hosts make them: the second of two equal ones ends in ``-1``."""
    found = [
        re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", markdown, re.M)
    ]
    seen: Counter[str] = Counter()
    names = set()
    for name in found:
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def broken(name: str) -> list[str]:
    """Return the relative links of a page that lead to no file, or to no heading of it."""
    found = []
    for target in LINK.findall(prose_of(name)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, heading = target.partition("#")
        page = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        if not page.exists() or (heading and heading not in anchors(prose_of(page.relative_to(ROOT).as_posix()))):
            found.append(target)
    return found


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_every_relative_link_leads_to_a_file_and_a_heading(name: str) -> None:
    assert broken(name) == []


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_every_path_of_a_source_file_exists(name: str) -> None:
    assert [
        path for path in SOURCE.findall(prose_of(name)) if path.lower() == path and not (ROOT / path).exists()
    ] == []


def test_every_document_is_listed_in_the_index_and_in_the_readme() -> None:
    documents = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert documents <= set(LINK.findall(text_of("docs/index.md")))
    assert {f"docs/{name}" for name in documents} <= set(LINK.findall(text_of("README.md")))


def test_anchors_are_those_of_code_hosts() -> None:
    assert anchors("# One, two\n## A `b` c?\n## One, two\n") == {"one-two", "a-b-c", "one-two-1"}
