"""The program still says what the ledger of exact values says."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.ledger.__main__ import PARTS
from benchmarks.ledger.entries import Entry, Part, Scope, differences


@pytest.mark.parametrize("name", PARTS)
def test_the_small_half_is_what_the_ledger_says(name: str) -> None:
    count, found = differences(PARTS[name], Scope(small=True))
    assert count > 0
    assert not found, "\n".join(line for each in found[:20] for line in each.lines())


def part_of(path: Path, entries: list[Entry]) -> Part:
    class _Elsewhere(Part):
        @property
        def path(self) -> Path:
            return path

    return _Elsewhere(name="toy", columns=("digest", "seconds"), entries=lambda scope: entries)


def test_a_changed_a_missing_and_a_new_value_are_noticed(tmp_path: Path) -> None:
    entries: list[Entry] = [("one", ("ab", (1.0).hex())), ("two", ("cd", (2.0).hex())), ("three", ("refused: no",))]
    part = part_of(tmp_path / "toy.tsv", entries)
    part.store(part.computed(Scope()))
    assert differences(part, Scope()) == (3, [])
    entries[1] = ("two", ("cd", (2.0 + 2**-51).hex()))
    entries[2] = ("three", ("refused: never",))
    entries[0] = ("four", ("ab", (1.0).hex()))
    found = {each.key: each for each in differences(part, Scope())[1]}
    assert {key: each.kind() for key, each in found.items()} == {
        "one": "in the ledger alone",
        "two": "seconds",
        "three": "text",
        "four": "not in the ledger",
    }
    assert "0x1.0000000000000p+1 → 0x1.0000000000001p+1" in "\n".join(found["two"].lines())
