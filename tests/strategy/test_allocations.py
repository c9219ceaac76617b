"""The allocations of a step agree with its memory, and reserve more if batches differ in length."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.measured.test_finetune import read
from traincast import Request
from traincast.strategy.memory.allocations import StepAllocations, allocations_of, simulate
from traincast.strategy.prepare import memory_by_stage, prepare

LONG: dict[str, Any] = {"seq": 2048, "micro_batch": 4, "global_batch": 4}
FULL: dict[str, Any] = {"method": "full", "lora_rank": None, "lora_targets": None}


def request_of(**changes: Any) -> Request:
    found: Request = read(**{**LONG, **changes}).longest
    return found


def step_of(request: Request) -> StepAllocations:
    return allocations_of(request, prepare(request))


@pytest.mark.parametrize("recompute", ["yes", "no"])
@pytest.mark.parametrize("method", [{}, FULL, {"method": "qlora4", "quant_bits": 4}])
def test_a_step_frees_what_it_allocates(recompute: str, method: dict[str, Any]) -> None:
    found: Counter[int] = Counter()
    step = step_of(request_of(recompute=recompute, **method))
    for number, how in step.changes:
        found[number] += how
        assert found[number] in (0, 1)
    assert set(found.values()) == {0}


@pytest.mark.parametrize("recompute", ["yes", "no"])
@pytest.mark.parametrize("method", [{}, FULL])
def test_the_peak_of_the_sequence_is_that_of_the_memory_model(recompute: str, method: dict[str, Any]) -> None:
    request = request_of(recompute=recompute, **method)
    memory = memory_by_stage(request, prepare(request))[0]
    expected = memory.activations + memory.gradients - memory.parts["workspace"]
    assert simulate(step_of(request), (1.0,)).allocated == pytest.approx(expected, rel=0.1)


def test_batches_of_one_length_reserve_the_same_in_every_step() -> None:
    step = step_of(request_of(recompute="yes"))
    few, many = simulate(step, (1.0,) * 2), simulate(step, (1.0,) * 6)
    assert few == many
    assert 1.0 <= few.ratio < 1.5


def test_batches_that_grow_reserve_more_than_the_longest_alone() -> None:
    step = step_of(request_of(recompute="yes"))
    alone, growing = simulate(step, (1.0,)), simulate(step, (0.7, 0.8, 0.9, 1.0))
    assert growing.allocated == pytest.approx(alone.allocated, rel=0.02)
    assert growing.reserved > 2.0 * alone.reserved
    shrinking = simulate(step, (1.0, 0.9, 0.8, 0.7))
    assert shrinking.reserved < 1.3 * alone.reserved


def test_expandable_segments_hardly_grow() -> None:
    step = step_of(request_of(recompute="yes"))
    lengths = (0.7, 0.8, 0.9, 1.0)
    assert simulate(step, lengths, expandable=True).reserved < 0.6 * simulate(step, lengths).reserved


def test_gradients_stay_until_the_update_and_are_made_once() -> None:
    step = step_of(request_of(recompute="yes", **FULL))
    gradients = sum(step.sizes[n] for n, how in step.changes if how == 0)
    request = request_of(recompute="yes", **FULL)
    assert gradients == pytest.approx(memory_by_stage(request, prepare(request))[0].gradients, rel=1e-6)
    one, four = simulate(step, (1.0,) * 4), simulate(step, (1.0,) * 4, accumulated=4)
    assert four.allocated >= one.allocated
