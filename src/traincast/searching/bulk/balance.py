"""Cut points by seconds: distributes layers so that the slowest piece is as fast as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled
from traincast.graph import OperatorGraph


def balanced_layers(
    graph: OperatorGraph, pieces: Sequence[tuple[int, ...]], seconds: npt.NDArray[np.float64]
) -> tuple[int, ...]:
    """Return the layers of each piece in the best balance; an empty tuple if that is no better than ``pieces``.

    What stands before the first layer stays with the first piece, what stands after the last with the last one.
    ``seconds`` are those of the blocks.
    """
    count = len(pieces)
    now = max(sum(seconds[b] for b in blocks) for blocks in pieces)
    repeated = {number for number, block in enumerate(graph.blocks) if block.repeated}
    fresh = len(graph.blocks)  # programs beyond the blocks are repeated ones that keep their activations
    units = [b for blocks in pieces for b in blocks]
    layers = [b for b in units if b in repeated or b >= fresh]
    if count < 2 or len(layers) < count:
        return ()
    at = {"first": units.index(layers[0]), "last": len(units) - 1 - units[::-1].index(layers[-1])}
    ends = sum(seconds[b] for b in units[: at["first"]]), sum(seconds[b] for b in units[at["last"] + 1 :])
    between = [b for b in units[at["first"] : at["last"] + 1] if b not in repeated and b < fresh]
    if between:
        return ()
    costs = np.array([seconds[b] for b in layers])
    sizes = np.zeros(count, dtype=np.int64)
    most = _spread_compiled(costs, ends[0], ends[1], now, sizes)
    return tuple(sizes.tolist()) if most < now * (1.0 - 1e-6) else ()


def _spread(costs: Any, first: float, last: float, now: float, sizes: Any) -> float:
    """Fill ``sizes`` with layers per piece so that the largest load is least; returns that load.

    Each piece takes as many layers as fit within a limit; the limit is found by bisection.
    """
    count = len(sizes)
    low, high, best = 0.0, now, now
    trial = np.zeros(count, dtype=np.int64)
    for _ in range(50):
        limit = 0.5 * (low + high)
        at, largest = 0, 0.0
        for piece in range(count):
            load = 0.0
            if piece == 0:
                load = first
            elif piece == count - 1:
                load = last
            begin = at
            while at < len(costs) - (count - 1 - piece) and load + costs[at] <= limit:
                load += costs[at]
                at += 1
            trial[piece] = at - begin
            largest = max(largest, load)
            if at == begin:
                break
        if at == len(costs) and trial.min() > 0:
            high = limit
            if largest < best:
                best = largest
                sizes[:] = trial
        else:
            low = limit
            trial[:] = 0
    return best


_spread_compiled = Compiled(_spread)
