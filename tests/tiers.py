"""The two tiers of tests: ``make test`` leaves out what is marked ``long``, ``make test-all`` runs everything.

- ``@pytest.mark.long(but=3)``: of the cases of a parametrised test, three spread evenly run in both tiers, the others
  in the second alone.
- ``@pytest.mark.long(but=function)``: the function gets the parameters of a case by name and returns its family; the
  first case of each family runs in both tiers. ``None`` is no family: such cases are all long.
- ``@pytest.mark.long(guard="test_name")``: the whole test runs in the second tier alone; what it checks at length, the
  named test of the same file (or ``path.py::test_name``) checks in both.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pytest


def sort_into_tiers(items: Sequence[pytest.Item]) -> None:
    """Take the mark ``long`` from the cases that stay in the first tier."""
    cases: dict[tuple[pytest.Item | object, str], list[pytest.Function]] = {}
    for item in items:
        empty = item.get_closest_marker("skip") is not None  # as pytest marks a test with no cases
        if isinstance(item, pytest.Function) and not empty and _stay(item) is not None:
            cases.setdefault((item.parent, item.originalname), []).append(item)
    for of_one_test in cases.values():
        for item in _first_tier(of_one_test):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "long"]


def _stay(item: pytest.Item) -> Any:
    """What a test says of its cases in the first tier; ``None`` if it is long as a whole or not at all."""
    marks = [mark for mark in item.own_markers if mark.name == "long"]
    return marks[0].kwargs.get("but") if marks else None


def _first_tier(cases: Sequence[pytest.Function]) -> list[pytest.Function]:
    """The cases that run in both tiers."""
    but = _stay(cases[0])
    if isinstance(but, int):
        count = min(but, len(cases))
        return [cases[place * len(cases) // count] for place in range(count)]
    families: dict[Hashable, pytest.Function] = {}
    for case in cases:
        families.setdefault(but(**case.callspec.params), case)
    families.pop(None, None)
    return list(families.values())
