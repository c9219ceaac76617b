"""Evaluation in bulk says what a single forecast of each strategy says.

Schedules and runtimes are taken from their tables, so that a new one is covered by itself.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import CostModel
from tests.searching.problems import (
    CNN,
    DEEP,
    MOE,
    TINY,
    all_families,
    evaluated,
    problem_for,
    single,
    with_strategy,
)
from tests.strategy.test_holdings import graph as adapted_graph
from tests.strategy.test_holdings import head_alone
from traincast import Strategy, StrategyError, learned_cost_model, load_cluster
from traincast.searching.bulk.family import Batch, EvaluatedFamily
from traincast.searching.bulk.steps import shortened
from traincast.searching.explore import bulk_of
from traincast.searching.problem import Problem
from traincast.searching.space import usual_axes
from traincast.strategy import SCHEDULES, lower, runtime_names
from traincast.strategy.prepare import need_only

CALIBRATED = "h100-sxm5-80gb-nanotron-ultrascale:4"


def members(
    problem: Problem, count: int, *, each: int = 6, seed: int = 0
) -> Iterator[tuple[EvaluatedFamily, Batch, int]]:
    """Some members of some families that fit, the same in every run."""
    chosen = random.Random(seed)
    bulk = bulk_of(problem)
    every = all_families(problem)
    chosen.shuffle(every)
    for family in every:
        entry = evaluated(bulk, family)
        for batch in chosen.sample(entry.batches, min(each, len(entry.batches))) if entry else ():
            at = chosen.randrange(len(batch.seconds))
            if np.isfinite(batch.seconds[at]):
                yield entry, batch, at  # type: ignore[misc]
                count -= 1
        if count <= 0:
            return


def extrapolated(entry: EvaluatedFamily) -> bool:
    return len(set(shortened(entry.family.degrees.pp, entry.family.num_microbatches))) > 1


def compare(problem: Problem, count: int, *, rel: float = 1e-9, seed: int = 0) -> Counter[str]:
    """Compare some members with forecasts of them alone; says how many had which value of some axes."""
    seen: Counter[str] = Counter()
    for entry, batch, at in members(problem, count, seed=seed):
        if extrapolated(entry):
            continue
        strategy = entry.strategy(batch, entry.sharings[at])
        request = with_strategy(problem, strategy)
        seconds, memory = single(request, problem.cost_model)
        assert batch.seconds[at] == pytest.approx(seconds, rel=rel), str(strategy)
        assert batch.memory[at] == pytest.approx(memory, rel=1e-9), str(strategy)
        assert need_only(request).forecast == pytest.approx(memory, rel=1e-12), str(strategy)
        load = max(need_only(request).load, memory / problem.most_memory)
        assert batch.load[at] == pytest.approx(load, rel=1e-9), str(strategy)
        seen.update(_values(strategy))
    return seen


def _values(strategy: Strategy) -> Iterator[str]:
    yield "any"
    yield strategy.schedule
    yield f"zero={strategy.zero}"
    yield from strategy.offload
    yield f"recompute={strategy.recompute}"
    for name in ("tp", "pp", "cp", "ep", "recompute_every"):
        if getattr(strategy, name) > 1:
            yield name
    if strategy.layers:
        yield "layers"
    if strategy.sequence_parallel:
        yield "sequence_parallel"


@pytest.mark.long(but=4)
@pytest.mark.parametrize("runtime", runtime_names())
def test_members_of_every_runtime_are_forecast_as_they_would_be_alone(runtime: str) -> None:
    seen = compare(problem_for(TINY, 8, 12, runtime=runtime, constraint="vp<=2"), 20)
    assert seen["any"] >= 5


@pytest.mark.long(but=lambda name, runtime: name)
@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("runtime", ["megatron", "nanotron", "deepspeed"])
def test_members_of_every_schedule_are_forecast_as_they_would_be_alone(name: str, runtime: str) -> None:
    problem = problem_for(DEEP, 8, 24, runtime=runtime, constraint=f"schedule={name},pp>1,pp<8")
    assert compare(problem, 8)[name] > 3


@pytest.mark.long(but=2)
@pytest.mark.parametrize(
    ("model", "cluster", "batch", "runtime"),
    [
        (DEEP, 16, 32, "megatron"),
        (MOE, 16, 32, "megatron"),
        (MOE, 8, 16, "torchtitan"),
        (CNN, 8, 16, "pytorch"),
        (CNN, 8, 16, "ddp"),
        (TINY, CALIBRATED, 64, "nanotron"),
        (DEEP, "gb200-nvl72:1x8", 16, "megatron"),
    ],
)
def test_other_models_and_clusters_are_forecast_as_they_would_be_alone(
    model: str, cluster: str | int, batch: int, runtime: str
) -> None:
    seen = compare(problem_for(model, cluster, batch, runtime=runtime), 24)
    assert {"any", "optimizer", "recompute=full", "pp"} <= set(seen)
    assert ("ep" in seen) == (model == MOE)
    if cluster == CALIBRATED:
        assert load_cluster(cluster).calibration is not None


@pytest.mark.long(but=1)
@pytest.mark.parametrize("trained", ["adapters", "head"])
def test_models_with_frozen_weights_are_forecast_as_they_would_be_alone(trained: str) -> None:
    problem = problem_for(TINY, 4, 8, runtime="pytorch", constraint="pp<=2,vp<=1")
    graph = adapted_graph() if trained == "adapters" else head_alone()
    frozen = replace(problem, request=replace(problem.request, graph=graph))
    assert compare(frozen, 12)["any"] >= 5


@pytest.mark.long(guard="test_members_of_every_schedule_are_forecast_as_they_would_be_alone")
def test_a_sample_of_the_space_has_a_bit_of_everything() -> None:
    seen = compare(problem_for(DEEP, 16, 32), 90, seed=2)
    zeros = {f"zero={stage}" for stage in range(4)}
    recomputes = {f"recompute={what}" for what in ("none", "selective", "full")}
    wanted = {*SCHEDULES, *zeros, *recomputes, "layers", "sequence_parallel", "optimizer", "activations", "tp", "pp"}
    assert wanted <= set(seen)


def test_learned_estimates_differ_in_the_last_digits_only() -> None:
    problem = problem_for(TINY, 8, 16)
    learned: CostModel = learned_cost_model()
    assert compare(problem_for(TINY, 8, 16, cost_model=learned), 20, rel=1e-6)["any"] >= 15
    assert problem.cost_model != learned


@pytest.mark.long(but=1)
@pytest.mark.parametrize("runtime", ["megatron", "nanotron", "pytorch", "deepspeed"])
def test_memory_is_exact_where_microbatches_are_left_out(runtime: str) -> None:
    problem = problem_for(DEEP, 8, 96, runtime=runtime, constraint="pp>1,pp<8,micro_batch=1|2")
    count = 0
    for entry, batch, at in members(problem, 40):
        if extrapolated(entry):
            request = with_strategy(problem, entry.strategy(batch, entry.sharings[at]))
            assert batch.memory[at] == pytest.approx(need_only(request).forecast, rel=1e-9), str(request.strategy)
            count += 1
    assert count >= 20


@pytest.mark.long(guard="searching/test_explore.py::test_larger_micro_batches_of_what_does_not_fit_are_not_looked_at")
def test_what_does_not_fit_is_not_simulated() -> None:
    problem = problem_for(DEEP, 8, 16)
    least = problem_for(DEEP, 8, 16, most_memory=1.2e9)
    bulk, tight = bulk_of(problem), bulk_of(least)
    fitting = 0
    for family in all_families(problem)[::9]:
        entry, same = evaluated(bulk, family), evaluated(tight, family)
        assert (entry is None) == (same is None)
        if entry is None or same is None:
            continue
        assert len(entry.batches) == len(same.batches)
        for batch, other in zip(entry.batches, same.batches, strict=True):
            assert batch.memory == pytest.approx(other.memory)
            fits = other.memory <= least.most_memory
            assert np.isfinite(other.seconds).tolist() == fits.tolist()
            assert other.seconds[fits] == pytest.approx(batch.seconds[fits], rel=1e-12)
            fitting += int(fits.sum())
    assert fitting > 0


@pytest.mark.long(guard="test_members_of_one_family_are_run_together_as_they_are_alone")
def test_the_order_in_which_families_are_evaluated_does_not_matter() -> None:
    """What is kept from one family for the next (works, outlines, arrangements) changes nothing."""
    problem = problem_for(DEEP, 8, 16, constraint="cp=1,recompute=none|full|full/2")
    every = all_families(problem)
    random.Random(3).shuffle(every)
    every = every[:40]
    shared = bulk_of(problem)
    for family in every:
        evaluated(shared, family)
    for family in every[:8]:
        again, fresh = evaluated(shared, family), evaluated(bulk_of(problem), family)
        assert (again is None) == (fresh is None)
        for batch, other in zip(again.batches if again else (), fresh.batches if fresh else (), strict=True):
            assert (batch.way, batch.memory.tolist()) == (other.way, other.memory.tolist())
            assert batch.seconds == pytest.approx(other.seconds, rel=1e-12)


def test_members_of_one_family_are_run_together_as_they_are_alone() -> None:
    problem = problem_for(DEEP, 8, 16, constraint="pp=2|4")
    every = all_families(problem)[::25]
    together, apart = bulk_of(problem), bulk_of(problem)
    entries = [entry for family in every if (entry := together.prepare(family))]
    together.estimate(entries)
    for entry in entries:
        together.enter(entry)
    together.run(entries)
    for entry in entries:
        alone = evaluated(apart, entry.family)
        assert alone is not None
        for batch, other in zip(entry.batches, alone.batches, strict=True):
            assert batch.seconds == pytest.approx(other.seconds, rel=1e-12)


def test_an_illegal_family_is_left_out() -> None:
    problem = problem_for(TINY, 8, 16)
    refused = 0
    bulk = bulk_of(problem)
    for family in all_families(problem):
        if bulk.prepare(family) is None:
            with pytest.raises(StrategyError):
                lower(with_strategy(problem, family.strategy(problem.request.strategy)))
            refused += 1
    assert refused
    assert usual_axes(problem.request).tp[-1] == 8  # four heads are not shared out over eight


def test_members_that_hosts_are_too_small_for_are_not_run() -> None:
    roomy = problem_for(DEEP, 8, 16, constraint="tp=1,pp=1,cp=1,zero=0|1,recompute=none,schedule=1f1b")
    need = need_only(with_strategy(roomy, Strategy(dp=8, zero=0, offload=("optimizer",))))
    assert need.host > 0.0
    small = replace(roomy.request.cluster, host_memory_bytes=0.5 * need.host)
    tight = replace(roomy, request=replace(roomy.request, cluster=small))
    ran: dict[bool, set[tuple[int, bool]]] = {False: set(), True: set()}
    for problem in (roomy, tight):
        bulk = bulk_of(problem)
        for family in all_families(problem):
            entry = evaluated(bulk, family)
            for batch in entry.batches if entry else ():
                for sharing, seconds in zip(entry.sharings, batch.seconds.tolist(), strict=True):  # type: ignore[union-attr]
                    if np.isfinite(seconds):
                        ran[problem is tight].add((sharing.zero, "optimizer" in sharing.offload))
    assert ran[False] == {(0, False), (0, True), (1, False), (1, True)}
    assert ran[True] == {(0, False), (1, False), (1, True)}  # replicas' own states are too many, shared ones are not
