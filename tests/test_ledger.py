"""The program still says what the ledger of exact values says."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.ledger.__main__ import PARTS
from benchmarks.ledger.entries import Entry, Part, Scope, differences

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def compared() -> str:
    """What the comparison of the small half prints, in a process of its own.

    Values that other tests left in memory were computed in larger or smaller batches, and differ in their last digit.
    """
    command = [sys.executable, "-m", "benchmarks.ledger", "compare", "--small"]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout


@pytest.mark.parametrize("name", PARTS)
def test_the_small_half_is_what_the_ledger_says(name: str, compared: str) -> None:
    said = re.search(rf"^{name}: ([0-9,]+) entries, ([0-9]+) differ", compared, re.MULTILINE)
    assert said and said[1] != "0" and said[2] == "0", compared


def part_of(path: Path, entries: list[Entry]) -> Part:
    class _Elsewhere(Part):
        @property
        def path(self) -> Path:
            return path

    return _Elsewhere(
        name="toy", columns=("request", "digest", "seconds"), firm=("request",), entries=lambda scope: entries
    )


def test_a_changed_a_missing_and_a_new_value_are_noticed(tmp_path: Path) -> None:
    same = ("one", ("f", "ab", (1.0).hex()))
    entries: list[Entry] = [same, ("two", ("f", "cd", (2.0).hex())), ("three", ("refused: no",))]
    part = part_of(tmp_path / "toy.tsv", entries)
    part.store(part.computed(Scope()))
    assert differences(part, Scope()) == (3, [])
    entries[:] = [("two", ("f", "cd", (2.0 + 2**-51).hex())), ("three", ("refused: never",)), ("four", same[1])]
    found = {each.key: each for each in differences(part, Scope())[1]}
    assert {key: each.kind() for key, each in found.items()} == {
        "one": "in the ledger alone",
        "two": "seconds",
        "three": "text",
        "four": "not in the ledger",
    }
    assert "0x1.0000000000000p+1 → 0x1.0000000000001p+1" in "\n".join(found["two"].lines())


def test_a_machine_that_rounds_otherwise_may_differ_in_the_last_digits_only(tmp_path: Path) -> None:
    entries: list[Entry] = [("one", ("f", "ab", (1.0).hex()))]
    part = part_of(tmp_path / "toy.tsv", entries)
    part.store(part.computed(Scope()))
    for values, agrees in (
        (("f", "ef", (1.0 + 1e-7).hex()), True),
        (("f", "ab", (1.0 + 1e-5).hex()), False),
        (("g", "ab", (1.0).hex()), False),
    ):
        entries[0] = ("one", values)
        assert len(differences(part, Scope())[1]) == 1
        assert (differences(part, Scope(exact=False))[1] == []) is agrees


def test_an_entry_that_was_skipped_is_not_missed(tmp_path: Path) -> None:
    part = part_of(tmp_path / "toy.tsv", [("steps 1", ("f", "ab", "-"))])
    part.store(part.computed(Scope()))
    scope = Scope()
    scope.skip("steps ", "the table is not at hand")
    assert differences(replace(part, entries=lambda _: []), scope) == (0, [])
