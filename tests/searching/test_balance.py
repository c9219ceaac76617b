"""Cut points by seconds: as good as trying all of them, and never worse than an even cut."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import graph_of
from tests.searching.problems import CNN, DEEP, TINY
from traincast.searching.bulk.balance import balanced_layers
from traincast.strategy.stages import cut_stages


def loads(pieces: list[tuple[int, ...]], seconds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    return [float(sum(seconds[b] for b in blocks)) for blocks in pieces]


@settings(deadline=None, derandomize=True, max_examples=120)
@given(
    model=st.sampled_from([TINY, DEEP]),
    count=st.integers(2, 4),
    layer=st.integers(1, 20),
    ends=st.tuples(st.integers(0, 100), st.integers(0, 100)),
)
def test_the_balance_is_the_best_of_all_cuts(model: str, count: int, layer: int, ends: tuple[int, int]) -> None:
    graph = graph_of(model)
    repeated = [number for number, block in enumerate(graph.blocks) if block.count > 1]
    assert len(repeated) == 1
    seconds = np.full(len(graph.blocks), 0.0)
    seconds[0], seconds[-1], seconds[repeated[0]] = ends[0], ends[1], layer
    even = [s.blocks for s in cut_stages(graph, count, costs=[float(i in repeated) for i in range(len(graph.blocks))],
                                         sends=[0.0] * len(graph.blocks))]  # fmt: skip
    layers = graph.blocks[repeated[0]].count
    found = balanced_layers(graph, even, seconds)
    every = [np.diff([0, *cut, layers]) for cut in combinations(range(1, layers), count - 1)]
    least = min(
        max(layer * n + (ends[0] if s == 0 else 0) + (ends[1] if s == count - 1 else 0) for s, n in enumerate(sizes))
        for sizes in every
    )
    now = max(loads(even, seconds))
    assert least <= now
    if not found:
        assert now == pytest.approx(least, rel=1e-5)
        return
    assert sum(found) == layers
    assert min(found) >= 1
    pieces = cut_stages(graph, count, costs=[1.0] * len(seconds), sends=[0.0] * len(seconds), layers=found)
    made = max(loads([s.blocks for s in pieces], seconds))
    assert made < now
    assert made == pytest.approx(least, rel=1e-9)


def test_one_piece_and_fewer_layers_than_pieces_are_left_alone() -> None:
    graph = graph_of(TINY)
    units = tuple(i for i, block in enumerate(graph.blocks) for _ in range(block.count))
    seconds = np.ones(len(graph.blocks))
    assert balanced_layers(graph, [units], seconds) == ()
    assert balanced_layers(graph, [(unit,) for unit in units], seconds) == ()


def test_a_model_whose_layers_stand_between_others_is_left_alone() -> None:
    graph = graph_of(CNN)
    costs = [1.0] * len(graph.blocks)
    pieces = [s.blocks for s in cut_stages(graph, 2, costs=costs, sends=costs)]
    assert balanced_layers(graph, pieces, np.arange(len(graph.blocks), dtype=np.float64)) == ()
