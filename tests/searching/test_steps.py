"""Fewer microbatches that stand for many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import AnalyticalCostModel, ChosenSeconds, CostModel
from tests.searching.problems import DEEP, all_families, evaluated, problem_for, single, with_strategy
from traincast.searching.bulk.steps import shortened
from traincast.searching.explore import bulk_of
from traincast.strategy import SCHEDULES
from traincast.work import Launch, Work

HOSTLESS = ChosenSeconds(lambda work: 0.0 if isinstance(work, Launch) else 1e-3 + hash_of(work))


def hash_of(work: Work) -> float:
    """Some seconds below one, which tell works apart."""
    return (len(str(work)) % 89) * 1e-2


@settings(deadline=None, derandomize=True, max_examples=300)
@given(stages=st.integers(1, 16), microbatches=st.integers(1, 2000))
def test_microbatches_are_left_out_in_whole_rounds(stages: int, microbatches: int) -> None:
    first, second = shortened(stages, microbatches)
    assert first <= second <= microbatches
    if first == second:
        assert first == microbatches
    else:
        assert second == first + stages
        assert (microbatches - first) % stages == 0
        assert first >= 3 * stages


def worst(name: str, runtime: str, cost_model: CostModel, batches: tuple[int, ...]) -> tuple[float, int]:
    """The largest error of a member whose microbatches are extrapolated, and how many members there were."""
    errors = []
    for batch in batches:
        constraint = f"schedule={name},pp>1,pp<8,micro_batch<3,cp=1,zero=0|2|3,recompute=none|full,vp<=2"
        problem = problem_for(DEEP, 8, batch, runtime=runtime, constraint=constraint, cost_model=cost_model)
        bulk = bulk_of(problem)
        some = [f for f in all_families(problem) if len(set(shortened(f.degrees.pp, f.num_microbatches))) > 1]
        for family in some[:: max(1, len(some) // 3)]:
            entry = evaluated(bulk, family)
            for member in entry.batches[:2] if entry else ():
                at = int(np.argmin(member.seconds))
                if entry and np.isfinite(member.seconds[at]):
                    request = with_strategy(problem, entry.strategy(member, entry.sharings[at]))
                    seconds, _ = single(request, problem.cost_model)
                    errors.append(abs(member.seconds[at] / seconds - 1.0))
    return max(errors), len(errors)


@pytest.mark.long(but=3)
@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_what_devices_and_links_take_grows_evenly_from_round_to_round(name: str) -> None:
    error, count = worst(name, "megatron", HOSTLESS, (72, 120))
    assert count >= 4
    assert error < 1e-6


@pytest.mark.long(guard="searching/test_bulk.py::test_memory_is_exact_where_microbatches_are_left_out")
def test_steps_of_many_microbatches_are_those_of_single_forecasts() -> None:
    """Where two lanes hold a pipeline up in turn, one of many stages may not have settled: a small error is left."""
    runtimes = ("megatron", "nanotron", "pytorch", "deepspeed")
    errors = [worst(name, r, AnalyticalCostModel(), (120,))[0] for r in runtimes for name in sorted(SCHEDULES)]
    assert max(errors) < 0.05
    assert np.mean([error < 1e-6 for error in errors]) > 0.85
