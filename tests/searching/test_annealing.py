"""The stochastic search against the exhaustive one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.searching.problems import CNN, DEEP, MOE, TINY, exhausted, problem_for, strategies_of
from traincast.searching.annealing import anneal
from traincast.searching.doubts import Doubts
from traincast.searching.explore import bulk_of

PROBLEMS: list[tuple[Any, ...]] = [
    (DEEP, 8, 16, "offload=none|optimizer,cut=even,micro_batch<=4,vp<=2"),
    (TINY, 8, 32, "offload=none"),
    (MOE, 8, 16, "offload=none,recompute=none|full,zero=0|1|3"),
    (CNN, 4, 16, "recompute=none|full"),
]


WALKS = [
    pytest.param(PROBLEMS[3], range(2), id="cnn"),
    pytest.param(PROBLEMS[2], range(4), id="moe"),
    pytest.param(PROBLEMS[0], range(2), id="gpt"),
    pytest.param(PROBLEMS[1], range(6), id="tiny"),
]


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("key", "seeds"), WALKS)
def test_it_comes_close_to_the_best_and_never_below(key: tuple[Any, ...], seeds: range) -> None:
    problem, columns = exhausted(key)
    doubts = Doubts(problem.request)
    best = doubts.shortest(columns).expected_s
    members = set(strategies_of(problem, columns))
    bulk = bulk_of(problem)
    for seed in seeds:
        found, counts = anneal(bulk, problem, seed=seed)
        assert best * (1 - 1e-9) <= doubts.shortest(found).expected_s <= best * 1.05
        assert counts.evaluated == len(found)
        assert set(strategies_of(problem, found)) <= members


def test_the_same_seed_finds_the_same() -> None:
    problem = problem_for(TINY, 8, 32, constraint="offload=none")
    first, second = (anneal(bulk_of(problem), problem, steps=80, seed=5)[0] for _ in range(2))
    assert strategies_of(problem, first) == strategies_of(problem, second)
    other = anneal(bulk_of(problem), problem, steps=80, seed=6)[0]
    assert strategies_of(problem, other) != strategies_of(problem, first)


@pytest.mark.long(guard="test_it_comes_close_to_the_best_and_never_below")
def test_a_walk_looks_at_less_than_all_there_is() -> None:
    problem, columns = exhausted(PROBLEMS[0])
    found, _ = anneal(bulk_of(problem), problem, steps=60)
    assert len(found) < len(columns)
