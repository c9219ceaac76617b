"""Pipeline stages: where the model is cut.

Models of equal layers are cut as frameworks do it: the layers shared out evenly, what comes before
them on the first stage and what comes after on the last. Any other graph is cut so that the most
loaded stage, counted with what it must send, is as light as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traincast.errors import StrategyError
from traincast.graph import OperatorGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The blocks of one chunk of layers: indices into the graph's blocks, repeats written out."""

    blocks: tuple[int, ...]


def cut_stages(graph: OperatorGraph, num_chunks: int, *, costs: Sequence[float], sends: Sequence[float]) -> list[Stage]:
    """Cut ``graph`` into ``num_chunks`` stages.

    ``costs`` and ``sends`` are, per block, the relative time of its compute and of sending what
    crosses to the next block.
    """
    units = [i for i, block in enumerate(graph.blocks) for _ in range(block.count)]
    if num_chunks == 1:
        return [Stage(blocks=tuple(units))]
    repeated = [i for i, block in enumerate(graph.blocks) if block.count > 1]
    layers = sum(graph.blocks[i].count for i in repeated)
    if repeated and layers >= num_chunks and _dominates(graph, repeated, costs):
        return _even(units, set(repeated), layers, num_chunks)
    if repeated and num_chunks == layers + 2 and _dominates(graph, repeated, costs):
        return _with_ends_apart(units, set(repeated))
    if len(units) < num_chunks or (repeated and layers < num_chunks and _dominates(graph, repeated, costs)):
        available = layers if repeated else len(units)
        raise StrategyError(
            f"pp·virtual_stages = {num_chunks} stages, but {graph.name} has only {available} blocks to share out; "
            f"use at most {available} stages"
        )
    return _balanced(units, num_chunks, costs, sends)


def _dominates(graph: OperatorGraph, repeated: list[int], costs: Sequence[float]) -> bool:
    """Whether the repeated blocks carry most of the work."""
    total = sum(cost * block.count for cost, block in zip(costs, graph.blocks, strict=True))
    return sum(costs[i] * graph.blocks[i].count for i in repeated) > 0.5 * total


def _even(units: list[int], repeated: set[int], layers: int, num_chunks: int) -> list[Stage]:
    base, extra = divmod(layers, num_chunks)
    # Where the layers do not divide, the middle stages take one more: the ends have embedding and head.
    sizes = [base] * num_chunks
    for n in range(extra):
        sizes[(1 + n) % num_chunks] += 1
    chunks: list[list[int]] = [[] for _ in range(num_chunks)]
    chunk = taken = 0
    for unit in units:
        if unit in repeated:
            if taken == sizes[chunk]:
                chunk, taken = chunk + 1, 0
            taken += 1
        chunks[chunk].append(unit)
    return [Stage(blocks=tuple(c)) for c in chunks]


def _with_ends_apart(units: list[int], repeated: set[int]) -> list[Stage]:
    """One layer per stage, what comes before the layers and what comes after on stages of their own."""
    first = next(i for i, unit in enumerate(units) if unit in repeated)
    last = next(i for i, unit in reversed(list(enumerate(units))) if unit in repeated)
    layers = [Stage(blocks=(unit,)) for unit in units[first : last + 1]]
    return [Stage(blocks=tuple(units[:first])), *layers, Stage(blocks=tuple(units[last + 1 :]))]


def _balanced(units: list[int], num_chunks: int, costs: Sequence[float], sends: Sequence[float]) -> list[Stage]:
    """Dynamic programme over cut points: minimise the largest stage, ties by the total sent."""
    n = len(units)
    prefix = np.concatenate([[0.0], np.cumsum([costs[u] for u in units])])
    send = np.array([sends[u] for u in units])
    best = np.full((num_chunks + 1, n + 1), np.inf)
    best[0, 0] = 0.0
    choice = np.zeros((num_chunks + 1, n + 1), dtype=np.int64)
    for k in range(1, num_chunks + 1):
        for end in range(k, n - (num_chunks - k) + 1):
            starts = np.arange(k - 1, end)
            load = prefix[end] - prefix[starts] + (send[end - 1] if end < n else 0.0)
            value = np.maximum(best[k - 1, starts], load)
            at = int(np.argmin(value))
            best[k, end], choice[k, end] = value[at], starts[at]
    cuts = [n]
    for k in range(num_chunks, 0, -1):
        cuts.append(int(choice[k, cuts[-1]]))
    cuts.reverse()
    return [Stage(blocks=tuple(units[a:b])) for a, b in pairwise(cuts)]
