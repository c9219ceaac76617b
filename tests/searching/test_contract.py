"""The contract between a search and a forecast: both mean the same step.

A forecast lays out a plan of every task and walks the memory of every slot (`lower`, the executor, `memory_of`). A
search evaluates families of strategies in bulk: templates as max-plus matrices, blocks as three numbers each, memory as
arrays over stages and sharings. These are the two forms of a step that exist side by side for speed. For random
strategies of every technique they must agree: seconds to 1e-9, memory to the last digit.

What a search does not vary (ring attention, compression, precision and so on) is drawn at random as the strategy that
the request begins with.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from tests.conftest import AnalyticalCostModel
from tests.searching.problems import CNN, DEEP, MOE, TINY, all_families, evaluated, request_for, with_strategy
from traincast import Strategy, StrategyError
from traincast.forecast import estimates_of
from traincast.searching.bulk.evaluate import needs_whole_plans
from traincast.searching.bulk.steps import shortened
from traincast.searching.constraints import apply_constraints
from traincast.searching.explore import bulk_of
from traincast.searching.problem import Problem
from traincast.searching.space import usual_axes
from traincast.simulate import simulate
from traincast.strategy import PRECISIONS, SCHEDULES, lower, runtime_names

BASES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"context": "ring"},
    {"sync_each": True},
    {"prefetch": 0},
    {"prefetch": 2},
    {"compression": 0.25},
    {"imbalance": 1.5, "capacity": 1.25},
)
"""Settings that a search leaves as they are."""
LONG: Final = TINY.replace("seq=256", "seq=1024")
MODELS: Final = (LONG, DEEP, MOE, CNN)
CLUSTERS: Final = (8, "dgx-a100:2", "h100-sxm5-80gb-nanotron-ultrascale:2", "gb200-nvl72:1x8", "dgx-a100:1+dgx-h100:1")
SEEDS: Final = 30
EACH: Final = 8
"""Random problems, and strategies compared of each."""


def random_problem(chosen: random.Random, runtime: str = "") -> Problem:
    """A small problem: model, cluster, runtime (unless given), precision and the rest of the strategy at random."""
    model = chosen.choice(MODELS)
    request = request_for(
        model,
        chosen.choice(CLUSTERS),
        chosen.choice((16, 24, 32)),
        runtime=runtime or chosen.choice(runtime_names()),
        precision=chosen.choice(sorted(PRECISIONS)),
    )
    base = Strategy(**chosen.choice(BASES))
    request = replace(request, strategy=base, optimizer=chosen.random() < 0.9)
    schedules = "|".join(chosen.sample(sorted(SCHEDULES), 3))
    constraint = "" if model == CNN else f"schedule={schedules}|1f1b,vp<=3"
    axes, most = apply_constraints(constraint, usual_axes(request), 1e15)
    roomy = replace(request.cluster, device=replace(request.cluster.device, memory_bytes=1e15))
    return Problem(
        request=replace(request, cluster=roomy), axes=axes, most_memory=most, cost_model=AnalyticalCostModel()
    )


def members(problem: Problem, chosen: random.Random) -> Iterator[tuple[Strategy, float, float]]:
    """Strategies with their seconds and bytes in bulk, none of which leaves microbatches out."""
    bulk, count = bulk_of(problem), 0
    families = all_families(problem)
    chosen.shuffle(families)
    for family in families[:60]:
        if len(set(shortened(family.degrees.pp, family.num_microbatches))) > 1 or count >= EACH:
            continue
        found = evaluated(bulk, family)
        for batch in chosen.sample(found.batches, min(2, len(found.batches))) if found else ():
            at = chosen.randrange(len(batch.seconds))
            assert found is not None
            if np.isfinite(batch.seconds[at]):
                count += 1
                yield found.strategy(batch, found.sharings[at]), float(batch.seconds[at]), float(batch.memory[at])


def techniques(strategy: Strategy) -> Iterator[str]:
    """What a strategy uses."""
    yield f"schedule={strategy.schedule}"
    yield f"zero={strategy.zero}"
    yield f"recompute={strategy.recompute}"
    yield from (f"offload={what}" for what in strategy.offload)
    yield from (name for name in ("tp", "pp", "cp", "ep", "dp", "recompute_every") if getattr(strategy, name) > 1)
    yield from (name for name in ("sequence_parallel", "sync_each", "layers") if getattr(strategy, name))
    if strategy.virtual_stages > 1:
        yield "virtual_stages"
    if strategy.compression < 1.0:
        yield "compression"
    if strategy.cp > 1:
        yield f"context={strategy.context}"


SEEN: Counter[str] = Counter()


@pytest.mark.long(but=4)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_search_and_a_forecast_mean_the_same_step(seed: int) -> None:
    chosen = random.Random(seed)
    compare(random_problem(chosen), chosen)
    SEEN["problems"] += 1


@pytest.mark.long(but=1)
@pytest.mark.parametrize("seed", range(4))
def test_a_search_that_lays_out_whole_plans_means_the_same_step(seed: int) -> None:
    chosen = random.Random(seed)
    problem = random_problem(chosen, "gloo")
    assert needs_whole_plans(problem.request.runtime)
    assert compare(problem, chosen)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("runtime", ["megatron", "megatron-bridge", "pytorch"])
def test_they_agree_about_expert_traffic_that_schedules_and_runtimes_hide(runtime: str) -> None:
    """Blocks of a family depend on the schedule: DualPipe hides their traffic, others do as the runtime does."""
    request = request_for(MOE, "dgx-a100:2", 32, runtime=runtime)
    overlap = request.runtime.patched(experts={"overlap_batches_near": runtime != "megatron"})
    constraint = "schedule=dualpipe|interleaved|1f1b,vp<=2,pp=2,ep>1,tp=1,cp=1,cut=even,recompute=none,micro_batch=1"
    axes, _ = apply_constraints(constraint, usual_axes(request), 1e15)
    problem = Problem(
        request=replace(request, runtime=overlap), axes=axes, most_memory=1e15, cost_model=AnalyticalCostModel()
    )
    found = [*all_members(problem)]
    assert {strategy.schedule for strategy, _, _ in found} == {"dualpipe", "interleaved", "1f1b"}
    for strategy, seconds, _ in found:
        chosen = with_strategy(problem, strategy)
        works = estimates_of(chosen, (plan := lower(chosen).plan).works, cost_model=problem.cost_model).seconds
        assert seconds == pytest.approx(simulate(plan, works).step_s, rel=1e-9), str(strategy)


def all_members(problem: Problem) -> Iterator[tuple[Strategy, float, float]]:
    """All strategies of a problem, with their seconds and bytes in bulk."""
    bulk = bulk_of(problem)
    for family in all_families(problem):
        found = evaluated(bulk, family)
        if found is None:
            continue
        for batch in found.batches:
            for sharing, seconds, memory in zip(found.sharings, batch.seconds, batch.memory, strict=True):
                if np.isfinite(seconds):
                    yield found.strategy(batch, sharing), float(seconds), float(memory)


def compare(problem: Problem, chosen: random.Random) -> int:
    """Asserts that members of a problem have the seconds and the memory of single forecasts; returns their number."""
    try:
        some = list(members(problem, chosen))
    except StrategyError:
        some = []
    for strategy, seconds, memory in some:
        request = with_strategy(problem, strategy)
        lowered = lower(request)
        works = estimates_of(request, lowered.plan.works, cost_model=problem.cost_model).seconds
        assert seconds == pytest.approx(simulate(lowered.plan, works).step_s, rel=1e-9), str(request)
        assert memory == max(each.total for each in lowered.memory), str(request)
        SEEN.update(techniques(strategy))
        SEEN.update([f"runtime={request.runtime.name}", f"precision={request.precision.name}"])
    SEEN["compared"] += len(some)
    return len(some)


def test_the_random_strategies_cover_every_technique() -> None:
    if SEEN["problems"] < SEEDS:
        pytest.skip("needs the whole file")
    missing = {
        *(f"schedule={name}" for name in SCHEDULES),
        *(f"zero={stage}" for stage in range(4)),
        *(f"recompute={what}" for what in ("none", "selective", "full")),
        "offload=optimizer", "offload=activations", "tp", "pp", "cp", "ep", "dp", "recompute_every",
        "sequence_parallel", "sync_each", "layers", "virtual_stages", "compression",
        "context=ring", "context=all_gather",
    } - set(SEEN)  # fmt: skip
    assert not missing
    assert SEEN["compared"] >= 150
