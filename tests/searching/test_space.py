"""The space: all that is legal, each strategy once, nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.searching.problems import CNN, DEEP, MOE, TINY, problem_for, solved, strategies_of, with_strategy
from traincast import Strategy, StrategyError
from traincast.searching.problem import Problem
from traincast.searching.space import AXES, OFFLOADS, Axes, divisors_of, meshes, usual_axes, ways
from traincast.strategy import SCHEDULES
from traincast.strategy.prepare import layers_of, prepare
from traincast.strategy.schedules.skeleton import skeleton

LONG = "gpt:layers=4,hidden=256,heads=4,vocab=1000,seq=1024"
SMALL = "zero=0|3,offload=none|both,recompute=none|full/2|full,cut=even"

PROBLEMS: dict[str, dict[str, Any]] = {
    "gpt": {"model": TINY, "cluster": 8, "batch": 8, "constraint": "zero=0|2,offload=none|both"},
    "deep": {"model": DEEP, "cluster": 4, "batch": 12, "constraint": "zero=0|1,offload=none"},
    "moe": {"model": MOE, "cluster": 4, "batch": 8, "constraint": "zero=0|3,offload=none|activations,cut=even"},
    "cnn": {"model": CNN, "cluster": 4, "batch": 8, "constraint": "zero=0|1,recompute=none|full", "runtime": "pytorch"},
}


@cache
def problem_of(name: str) -> Problem:
    return problem_for(**PROBLEMS[name])


def legal(problem: Problem, strategy: Strategy) -> bool:
    try:
        prepare(with_strategy(problem, strategy))
    except StrategyError:
        return False
    return True


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_every_member_is_legal_and_there_once(name: str) -> None:
    problem = problem_of(name)
    found = strategies_of(problem, solved(problem))
    assert len(found) > 100
    assert [s for s, times in Counter(found).items() if times > 1] == []
    for strategy in found[:: max(1, len(found) // 400)]:
        assert legal(problem, strategy), str(strategy)
        assert strategy.num_ranks == problem.request.cluster.num_devices
        assert strategy.micro_batch(problem.request.global_batch) >= 1


def products(problem: Problem) -> Iterator[Strategy]:
    """All products of the values of all axes that make a strategy at all."""
    devices, batch, axes = problem.request.cluster.num_devices, problem.request.global_batch, problem.axes
    for tp, cp, pp in product(divisors_of(devices), repeat=3):
        if devices % (tp * cp * pp):
            continue
        dp = devices // (tp * cp * pp)
        for size, name, chunks, zero, shares, recompute, offload in product(
            divisors_of(batch), SCHEDULES, (1, 2, 3, 4), axes.zero, (False, True), axes.recompute, axes.offload
        ):
            what, _, every = recompute.partition("/")
            if batch % (dp * size):
                continue
            try:
                yield Strategy(
                    dp=dp, tp=tp, cp=cp, pp=pp,
                    num_microbatches=batch // (dp * size),
                    schedule=name,
                    virtual_stages=chunks,
                    zero=zero,  # type: ignore[arg-type]
                    sequence_parallel=shares,
                    recompute=what,
                    recompute_every=int(every or 1),
                    offload=OFFLOADS[offload],
                )  # fmt: skip
            except StrategyError:
                continue


def left_out(problem: Problem, strategy: Strategy) -> str:
    """Why the space has not got a legal strategy; nothing if it should have it."""
    layers, tokens = layers_of(problem.request.graph), problem.request.graph.tokens_per_sample
    several = strategy.schedule in ("interleaved", "breadth-first")
    schedule = SCHEDULES[strategy.schedule]
    reasons = {
        "without a pipeline, a schedule changes nothing": strategy.pp == 1 and strategy.schedule != "1f1b",
        "without replicas, nothing is sharded": strategy.dp * strategy.cp == 1 and strategy.zero > 0,
        "one microbatch makes GPipe 1F1B": strategy.schedule == "gpipe" and strategy.num_microbatches == 1,
        "two microbatches make ZB-H2 ZB-H1": strategy.schedule == "zb-h2" and strategy.num_microbatches < 3,
        "one chunk makes interleaving 1F1B or GPipe": several and strategy.virtual_stages == 1,
        "1F1B of several chunks is interleaving": strategy.schedule == "1f1b" and strategy.virtual_stages > 1,
        "chunks that a schedule has anyway": bool(schedule.chunks) and strategy.virtual_stages > 1,
        "chunks of unequal layers": several and layers % (strategy.pp * strategy.virtual_stages) != 0,
        "stages without a layer": strategy.pp > layers,
        "context ranks of few tokens": strategy.cp > 1 and tokens // strategy.cp < 256,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("model", "devices", "batch"), [(LONG, 4, 4), (TINY, 2, 6)])
def test_the_space_lacks_no_legal_strategy(model: str, devices: int, batch: int) -> None:
    """All products of the axes are tried one by one; what is legal is in the space, or is another one's double.

    Not tried here, since the space does not vary them: cuts of the layers other than the even and the balanced one,
    recomputation of every n-th layer but 1, 2 and 4, states sharded over some of the replicas, parameters that stay
    gathered, rings of context, tensor groups of experts, compression and parameter servers.
    """
    problem = problem_for(model, devices, batch, constraint=SMALL)
    found = set(strategies_of(problem, solved(problem)))
    tried = 0
    reasons: Counter[str] = Counter()
    for strategy in products(problem):
        tried += 1
        reason = left_out(problem, strategy)
        reasons[reason] += 1
        if strategy in found:
            assert not reason, (reason, str(strategy))
            found.remove(strategy)
        elif not reason:
            assert not legal(problem, strategy), str(strategy)
    assert found == set()
    assert tried > 500
    assert reasons[""] > 100


def test_constraints_leave_what_they_allow_of_the_space_and_nothing_else() -> None:
    whole = problem_for(TINY, 8, 8, constraint="offload=none")
    some = problem_for(TINY, 8, 8, constraint="offload=none,tp<=2,zero=1|3,schedule!=gpipe|zb-h2,recompute=full,mbs>1")
    allowed = {
        s
        for s in strategies_of(whole, solved(whole))
        if s.tp <= 2 and s.recompute == "full" and s.recompute_every == 1 and s.micro_batch(8) > 1
        if s.zero in (1, 3) or s.dp == 1  # what there is nothing to choose of is not constrained
        if s.pp == 1 or s.schedule not in ("gpipe", "zb-h2")
    }
    assert set(strategies_of(some, solved(some))) == allowed
    assert allowed


def test_a_schedule_that_was_not_asked_for_is_not_there_for_want_of_a_pipeline() -> None:
    problem = problem_for(TINY, 8, 8, constraint="schedule=zb-v,zero=0,offload=none,recompute=none")
    found = strategies_of(problem, solved(problem))
    assert {s.schedule for s in found if s.pp > 1} == {"zb-v"}
    assert {s.schedule for s in found if s.pp == 1} == {"1f1b"}


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 6, 8, 12])
def test_no_two_ways_run_a_pipeline_alike(pp: int, microbatches: int) -> None:
    model = "gpt:layers=12,hidden=256,heads=4,vocab=1000,seq=256"
    axes = problem_for(model, 8, 16).axes
    orders: list[object] = []
    for way in ways(axes, pp, microbatches, 12):
        try:
            slots = skeleton(way.schedule, pp, microbatches, way.chunks)
        except StrategyError:
            continue
        orders.append((slots.order, slots.routes))
    assert len(orders) > 1
    assert all(order not in orders[:n] for n, order in enumerate(orders))


def test_no_two_members_recompute_alike() -> None:
    problem = problem_for(CNN, 4, 8, runtime="pytorch", constraint="zero=0,offload=none,pp=1")
    columns = solved(problem)
    rows = np.stack([columns.micro_batch, columns.tp, columns.memory, columns.seconds], axis=1)
    assert len(np.unique(rows, axis=0)) == len(columns)


def test_a_model_of_few_repeated_blocks_is_cut_into_as_many_stages_as_are_legal() -> None:
    problem = problem_for("mobilenet-v2", 4, 8, runtime="pytorch")
    assert legal(problem, Strategy(pp=4, num_microbatches=8))
    assert 4 in problem.axes.pp


def test_every_mesh_is_there_once_and_uses_all_devices() -> None:
    problem = problem_for(MOE, 16, 48)
    found = meshes(problem.axes, 16, 48)
    assert len(found) == len(set(found))
    for at in found:
        assert 16 % (at.tp * at.cp * at.pp) == 0
        assert (16 // at.pp) % at.ep == 0
        assert 48 % (16 // (at.tp * at.cp * at.pp)) == 0
    assert {at.ep for at in found} == {1, 2, 4, 8}
    assert {at.ep for at in meshes(problem_for(TINY, 16, 48).axes, 16, 48)} == {1}


def test_axes_are_as_the_model_allows() -> None:
    gpt, cnn = usual_axes(problem_of("gpt").request), usual_axes(problem_of("cnn").request)
    assert set(AXES) == {field.name for field in fields(Axes)}
    assert (cnn.cp, cnn.ep, cnn.sequence_parallel) == ((1,), (1,), (False,))
    assert "selective" in gpt.recompute
    assert "selective" not in cnn.recompute
    assert gpt.schedule == tuple(SCHEDULES)
    assert usual_axes(problem_for(LONG, 8, 8).request).cp == (1, 2, 4)


def test_divisors_are_all_there_in_order() -> None:
    for number in (1, 2, 12, 36, 97, 1536):
        assert divisors_of(number) == tuple(d for d in range(1, number + 1) if number % d == 0)
