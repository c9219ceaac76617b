"""Bounds that nothing beats, branch and bound against the whole space, and the same answer from every engine."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.searching.problems import (
    CNN,
    DEEP,
    MOE,
    TINY,
    all_families,
    evaluated,
    exhausted,
    finite,
    problem_for,
    solved,
    strategies_of,
)
from traincast import Engine, Strategy
from traincast.engines import local_engine
from traincast.searching.bulk import columns
from traincast.searching.bulk.columns import COLUMNS, StrategyColumns, joined
from traincast.searching.explore import bulk_of, explore
from traincast.searching.problem import Best, Problem, SpaceCounts, Task
from traincast.strategy import SCHEDULES

BOUNDED = [
    (DEEP, 16, 32, "megatron"),
    (DEEP, 16, 32, "nanotron"),
    (TINY, 8, 64, "pytorch"),
    (TINY, 16, 32, "deepspeed"),
    (MOE, 16, 32, "megatron"),
    (CNN, 8, 16, "pytorch"),
    (TINY, "h100-sxm5-80gb-nanotron-ultrascale:4", 64, "nanotron"),
]


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("model", "cluster", "batch", "runtime"), BOUNDED)
def test_no_member_is_faster_than_the_bounds_of_its_family_and_its_way(
    model: str, cluster: str | int, batch: int, runtime: str
) -> None:
    problem = problem_for(model, cluster, batch, runtime=runtime)
    bulk = bulk_of(problem)
    every = all_families(problem)
    bounds = bulk.bounds(every)
    chosen = random.Random(0).sample(range(len(every)), min(24, len(every)))
    met = 0
    for number in chosen:
        entry = evaluated(bulk, every[number])
        for batch_of in entry.batches if entry else ():
            assert entry is not None
            least = bulk._least(entry, entry.cuts[batch_of.cut].pieces, [batch_of.way])[0]
            fastest = float(batch_of.seconds.min())
            told = str(entry.strategy(batch_of, entry.sharings[0]))
            assert bounds[number] <= fastest * (1 + 1e-9), told
            assert least <= fastest * (1 + 1e-9), told
            assert bounds[number] <= least * (1 + 1e-9) or least > 0, told
            met += 1
    assert met > 10


@pytest.mark.long(but=3)
@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_the_bound_of_a_way_holds_for_every_schedule(name: str) -> None:
    problem = problem_for(DEEP, 8, 24, constraint=f"schedule={name},pp>1,pp<8,recompute=none|full/2|full")
    bulk = bulk_of(problem)
    closest = 0.0
    for family in all_families(problem)[::14]:
        entry = evaluated(bulk, family)
        for batch in entry.batches if entry else ():
            assert entry is not None
            least = bulk._least(entry, entry.cuts[batch.cut].pieces, [batch.way])[0]
            assert least <= batch.seconds.min() * (1 + 1e-9)
            closest = max(closest, least / float(batch.seconds.min()))
    assert closest > 0.2


WITHIN = [
    (DEEP, 8, 16, "offload=none|optimizer,cut=even,micro_batch<=4,vp<=2"),
    (TINY, 8, 32, "offload=none"),
    (MOE, 8, 16, "offload=none,recompute=none|full,zero=0|1|3"),
]


def within(problem: Problem, columns: StrategyColumns, limit: float) -> dict[Strategy, float]:
    """Strategies that take at most so long, and what they take."""
    some = columns.take(np.flatnonzero(columns.seconds <= limit))
    return dict(zip(strategies_of(problem, some), some.seconds.tolist(), strict=True))


def plainer(strategy: Strategy) -> Strategy:
    """The strategy without what is recomputed, offloaded and cut by seconds."""
    return replace(strategy, recompute="none", recompute_every=1, offload=(), layers=())


@pytest.mark.long(but=2)
@pytest.mark.parametrize("key", WITHIN, ids=["gpt", "tiny", "moe"])
@pytest.mark.parametrize("reach", [1.0, 1.5])
def test_branch_and_bound_finds_the_best_and_all_within_reach_that_no_plainer_one_beats(
    key: tuple[Any, ...], reach: float
) -> None:
    problem, columns = exhausted(key)
    best = float(columns.seconds.min())
    found = solved(replace(problem, reach=reach * (1 + 1e-9)))
    assert found.seconds.min() == pytest.approx(best, rel=1e-12)
    assert len(found) < len(columns)
    there = within(problem, found, best * reach)
    whole = within(problem, columns, best * reach)
    assert there.items() <= {s: pytest.approx(t, rel=1e-12) for s, t in whole.items()}.items()
    plain: dict[Strategy, float] = {}
    for strategy, seconds in there.items():
        if strategy.recompute == "none" and "activations" not in strategy.offload:
            plain[plainer(strategy)] = min(seconds, plain.get(plainer(strategy), np.inf))
    for strategy in whole.keys() - there.keys():
        assert strategy.recompute != "none" or "activations" in strategy.offload, str(strategy)
        assert plain[plainer(strategy)] <= whole[strategy] * (1 + 1e-9), str(strategy)


@pytest.mark.long(guard="test_branch_and_bound_finds_the_best_and_all_within_reach_that_no_plainer_one_beats")
def test_where_memory_is_short_branch_and_bound_finds_the_best_that_recomputes() -> None:
    problem, columns = exhausted((DEEP, 4, 32, "cut=even,micro_batch<=8,zero=0|1,vp<=2"))
    for most in np.quantile(columns.memory, [0.05, 0.5]):
        fits = columns.memory <= most
        found = solved(replace(problem, reach=1.1, most_memory=float(most)))
        assert found.seconds.min() == pytest.approx(columns.seconds[fits].min(), rel=1e-9)
        assert np.isfinite(found.seconds).any()
        assert (found.memory[np.isfinite(found.seconds)] <= most).all()


def test_a_time_that_is_known_cuts_more_and_loses_nothing() -> None:
    problem, columns = exhausted(WITHIN[0])
    best = float(columns.seconds.min())
    counts, known = SpaceCounts(), SpaceCounts()
    bulk = bulk_of(problem)
    reaching = replace(problem, reach=1.05)
    for task in reaching.tasks():
        counts += explore(bulk, reaching, task)[1]
    parts = []
    for task in reaching.tasks(Best(*[best * (1 + 1e-9)] * 3)):
        part, more = explore(bulk, reaching, task)
        parts.append(part)
        known += more
    assert known.evaluated <= counts.evaluated
    assert known.behind >= counts.behind
    assert joined(parts).seconds.min() == pytest.approx(best, rel=1e-12)


@pytest.mark.long(
    guard="searching/test_search.py::test_the_fastest_of_all_that_fit_is_named_and_the_rest_is_in_the_order_of_expected_times"
)
def test_counts_add_up() -> None:
    problem, columns = exhausted(WITHIN[1])
    bulk, counts = bulk_of(problem), SpaceCounts()
    for task in problem.tasks():
        counts += explore(bulk, problem, task)[1]
    assert counts.evaluated == len(columns)
    assert counts.feasible == len(finite(columns))
    assert counts.behind == 0
    assert counts.families <= len(all_families(problem))


def test_larger_micro_batches_of_what_does_not_fit_are_not_looked_at() -> None:
    problem = problem_for(DEEP, 4, 32, constraint="offload=none,recompute=none", most_memory=1.1e9)
    bulk, counts, parts = bulk_of(problem), SpaceCounts(), []
    for task in problem.tasks():
        part, more = explore(bulk, problem, task)
        parts.append(part)
        counts += more
    assert counts.beyond > 0
    whole = finite(solved(replace(problem, most_memory=1e15)))
    fits = whole.take(np.flatnonzero(whole.memory <= problem.most_memory))
    assert set(strategies_of(problem, fits)) == set(strategies_of(problem, finite(joined(parts))))


def same(one: StrategyColumns, other: StrategyColumns) -> None:
    """Two tables have the same rows in the same order, seconds to what company changes in the last digits."""
    assert len(one) == len(other)
    for name in COLUMNS:
        if name not in ("seconds", "cut"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    assert [one.cuts[c] for c in one.cut] == [other.cuts[c] for c in other.cut]
    assert one.seconds == pytest.approx(other.seconds, rel=1e-9)


def by_engine(engine: Engine, problem: Problem, tasks: list[Task]) -> StrategyColumns:
    found: dict[int, StrategyColumns] = {}
    engine.run(
        "traincast.searching.explore:worker",
        problem,
        tasks,
        done=lambda index, result: found.__setitem__(index, result[0]),
    )
    return joined([found[n] for n in range(len(tasks))])


PARTED = (TINY, 8, 32, "offload=none")


@pytest.mark.long(but=lambda workers: "processes" if workers > 1 else None)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_does_not_change_the_answer(workers: int) -> None:
    problem, columns = exhausted(PARTED)
    same(by_engine(local_engine(workers), problem, problem.tasks()), columns)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_tasks_does_not_change_the_answer(seed: int) -> None:
    problem, columns = exhausted(PARTED)
    tasks = problem.tasks()
    places = list(range(len(tasks)))
    random.Random(seed).shuffle(places)
    bulk = bulk_of(problem)
    found = {place: explore(bulk, problem, tasks[place])[0] for place in places}
    same(joined([found[n] for n in range(len(tasks))]), columns)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("most_keys", [2**62, 40])
def test_strategies_that_two_parts_found_are_listed_once(most_keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_MOST_KEYS", most_keys)
    found = solved(problem_for(constraint="cp=1,offload=none,schedule=1f1b|gpipe"))
    some = found.take(np.arange(3, len(found), 2))
    again = joined([found, some]).distinct()
    assert len(found) > 50 and len(found.distinct()) == len(found)
    assert all(np.array_equal(getattr(again, name), getattr(found, name)) for name in COLUMNS)


def test_without_a_bound_each_mesh_is_a_part_and_the_deepest_comes_first() -> None:
    apart = [task.degrees for task in problem_for().tasks()]
    together = [task.degrees for task in problem_for(reach=1.1).tasks()]
    assert all(len(degrees) == 1 for degrees in apart)
    assert apart[0][0].pp == max(degrees[0].pp for degrees in apart)
    assert sorted(sum(together, ())) == sorted(sum(apart, ()))
    assert len(together) < len(apart)
