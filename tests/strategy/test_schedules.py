"""Schedules slot by slot: the orders that the papers draw."""

from __future__ import annotations

import pytest

from traincast.errors import SimulationError, StrategyError
from traincast.strategy import Slot
from traincast.strategy.schedules import gpipe, interleaved, load_schedule, merge, one_forward_one_backward


def written(slots: list[Slot]) -> str:
    return " ".join(f"{'B' if s.backward else 'F'}{s.microbatch}" for s in slots)


def test_gpipe_runs_all_forwards_then_all_backwards() -> None:
    assert [written(s) for s in gpipe(2, 3)] == ["F0 F1 F2 B0 B1 B2"] * 2


def test_1f1b_warms_up_alternates_and_drains() -> None:
    """Narayanan et al. 2021, figure 4 (top), for four stages and five microbatches."""
    assert [written(s) for s in one_forward_one_backward(4, 5)] == [
        "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",
        "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
    ]


def test_interleaving_takes_chunks_in_turn_for_groups_of_p_microbatches() -> None:
    """Narayanan et al. 2021, figure 4 (bottom)."""
    last = interleaved(2, 2, 2)[1]
    assert last == [
        Slot(False, 0, 0),
        Slot(False, 1, 0),
        Slot(False, 0, 1),
        Slot(True, 0, 1),
        Slot(False, 1, 1),
        Slot(True, 1, 1),
        Slot(True, 0, 0),
        Slot(True, 1, 0),
    ]


def test_1f1b_with_virtual_stages_is_the_interleaved_schedule() -> None:
    assert one_forward_one_backward(2, 4, 2) == interleaved(2, 4, 2)
    assert interleaved(2, 4, 1) == one_forward_one_backward(2, 4)


def test_interleaving_needs_whole_groups_of_microbatches() -> None:
    with pytest.raises(StrategyError, match=r"num_microbatches=6 is not a multiple of pp=4; use 8 microbatches"):
        interleaved(4, 6, 2)


def test_gpipe_has_no_virtual_stages() -> None:
    with pytest.raises(StrategyError, match="gpipe with virtual_stages=2"):
        gpipe(2, 2, 2)


def test_merging_puts_every_slot_after_what_it_needs() -> None:
    merged = merge(one_forward_one_backward(2, 2), 1)
    assert [(stage, written([slot])) for stage, slot in merged] == [
        (0, "F0"),
        (0, "F1"),
        (1, "F0"),
        (1, "B0"),
        (1, "F1"),
        (1, "B1"),
        (0, "B0"),
        (0, "B1"),
    ]


def test_an_order_that_can_never_run_is_a_deadlock() -> None:
    backward_first = [[Slot(True, 0), Slot(False, 0)]]
    with pytest.raises(SimulationError, match="deadlocks"):
        merge(backward_first, 1)


def test_schedules_are_found_by_name() -> None:
    assert load_schedule("gpipe") is gpipe
