"""Figures of all microbatches of a family, extrapolated from fewer once the pipeline repeats itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.errors import StrategyError
from traincast.searching.bulk.steps import Slots, repeats, shortened, slots_of
from traincast.searching.space import Family, Way
from traincast.strategy.schedules import load_schedule
from traincast.strategy.schedules.skeleton import Skeleton

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_PIECES: Final = 50_000
"""A step that does not repeat itself is simulated in full up to this many pieces over all microbatches."""


@lru_cache(maxsize=4096)
def stages_of(way: Way, pp: int) -> list[Ints]:
    """Return, for each route, the stage of every piece."""
    routes = load_schedule(way.schedule).routes(pp, way.chunks)
    return [np.array([stage for stage, _ in route]) for route in routes]


@lru_cache(maxsize=65536)
def slots_of_way(way: Way, pp: int, microbatches: int) -> tuple[tuple[Skeleton, Slots], ...]:
    """Return the slots of one or two numbers of microbatches that stand for all; empty if the schedule refuses."""
    try:
        counts = dict.fromkeys(shortened(pp, microbatches))
        return tuple(slots_of(way.schedule, pp, count, way.chunks) for count in counts)
    except StrategyError:
        return ()


def extrapolated(of: Callable[[Slots], Any], way: Way, family: Family) -> Any:
    """Return the value of ``of`` for a family's microbatches, extrapolated from fewer if there are many."""
    pp, microbatches = family.degrees.pp, family.num_microbatches
    (_, few), *more = slots_of_way(way, pp, microbatches)
    found = of(few)
    if more:
        first, second = shortened(pp, microbatches)
        found = found + (microbatches - first) / (second - first) * (of(more[0][1]) - found)
    return found


def step_of(simulate: Callable[[Slots], tuple[Floats, Floats]], way: Way, family: Family) -> Floats:
    """Return the step times of a family in seconds, extrapolated from fewer microbatches once rounds repeat."""
    pp, microbatches = family.degrees.pp, family.num_microbatches
    (_, few), *more = slots_of_way(way, pp, microbatches)
    found, busy = simulate(few)
    if not more:
        return found
    longer, busier = simulate(more[0][1])
    if not repeats(longer - found, busier - busy) and microbatches * way.pieces <= _MOST_PIECES:
        return simulate(slots_of(way.schedule, pp, microbatches, way.chunks)[1])[0]
    first, second = shortened(pp, microbatches)
    grown: Floats = found + (microbatches - first) / (second - first) * (longer - found)
    return grown
