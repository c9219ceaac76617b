"""The pictures in the documents show what the program says today."""

from __future__ import annotations

from difflib import unified_diff
from typing import Any

import pytest
from benchmarks.pictures import FOLDER, PICTURES, shown, text_of


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_the_page_of_today(browser: Any, name: str) -> None:
    page = shown(browser, name)
    today = text_of(page)
    page.context.close()
    then = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    changed = "\n".join(unified_diff(then.splitlines(), today.splitlines(), "picture", "today", n=0, lineterm=""))
    assert today == then, f"docs/images/{name}.png is stale: run `python -m benchmarks.pictures {name}`\n{changed}"


def test_every_picture_of_the_documents_has_a_command() -> None:
    assert {path.stem for path in FOLDER.glob("*.png")} == set(PICTURES)
