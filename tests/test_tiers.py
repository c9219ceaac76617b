"""The first tier guards every rule: a test that it leaves out keeps some of its cases there, or names its guard."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.tiers import sort_into_tiers

TESTS = Path(__file__).parent


@cache
def named_tests(path: Path) -> dict[str, list[ast.Call]]:
    """The tests of a file by name, with their marks ``long``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name: [mark for mark in map(long_mark, node.decorator_list) if mark]
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def long_mark(node: ast.expr) -> ast.Call | None:
    """The call of a decorator that is the mark ``long``."""
    if ast.unparse(node).split("(")[0] != "pytest.mark.long":
        return None
    assert isinstance(node, ast.Call), "write long(but=…) or long(guard=…)"
    return node


def test_every_long_test_keeps_cases_in_the_first_tier_or_names_a_test_there_that_guards_its_rule() -> None:
    guarded = 0
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, marks in named_tests(path).items():
            for mark in marks:
                (keyword,) = mark.keywords
                assert keyword.arg in ("but", "guard"), f"{path}::{name}"
                if keyword.arg == "guard":
                    file, _, guard = ast.literal_eval(keyword.value).rpartition("::")
                    there = named_tests(TESTS / file if file else path)
                    assert guard in there, f"{path}::{name} is guarded by {guard}, which is not there"
                    assert all(m.keywords[0].arg == "but" for m in there[guard]), f"{guard} is long itself"
                    guarded += 1
    assert guarded


def test_marks_stand_on_tests_alone() -> None:
    """A mark on a whole file, or on one case, would have no guard."""
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name not in ("test_tiers.py", "tiers.py"):
            on_tests = sum(len(marks) for marks in named_tests(path).values())
            assert text.count("pytest.mark.long") == on_tests, path


@pytest.mark.long(but=3)
@pytest.mark.parametrize("number", range(6))
def test_of_six_cases_three_are_in_the_first_tier(number: int, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("long") is None) == (number in (0, 2, 4))


@pytest.mark.long(but=lambda word: word[0] if word != "ray" else None)
@pytest.mark.parametrize("word", ["alder", "ash", "birch", "ray"])
def test_one_of_each_family_is_in_the_first_tier(word: str, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("long") is None) == (word in ("alder", "birch"))


def test_what_is_not_marked_stays(request: pytest.FixtureRequest) -> None:
    sort_into_tiers([request.node])
    assert request.node.get_closest_marker("long") is None
