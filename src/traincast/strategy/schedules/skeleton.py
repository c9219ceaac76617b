"""A schedule's slots as columns: who runs what after whom. Made once, shared by all strategies that use it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from traincast.errors import SimulationError, StrategyError
from traincast.strategy.schedules import SCHEDULES, Order, Pass, Route, check, load_schedule, merge

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """All slots in one program order.

    ``piece`` is the part of the model that a slot runs, ``way`` the route of its microbatch. ``source`` is the slot
    whose result it waits for (−1: none), ``link`` the piece after which its own result crosses to another stage (−1: it
    stays, or goes nowhere). ``first`` marks the first microbatch of each route, ``makes`` slots that make gradients of
    weights, ``last`` the last of these on each chunk. ``codes`` are the slots of each stage in order, as
    ``chunk · len(Pass) + what``.
    """

    order: Order
    codes: tuple[Ints, ...]
    routes: list[Route]
    stage: Ints
    microbatch: Ints
    what: Ints
    piece: Ints
    way: Ints
    source: Ints
    link: Ints
    first: Flags
    makes: Flags
    last: Flags


@lru_cache(maxsize=256)
def skeleton(name: str, stages: int, microbatches: int, chunks: int) -> Skeleton:
    """The slots of the schedule ``name``; refused if they do not make up a step, or can never run."""
    schedule = load_schedule(name)
    routes = schedule.routes(stages, chunks)
    order = schedule.order(stages, microbatches, chunks)
    try:
        check(order, routes, microbatches)
        slots = merge(order, routes)
    except SimulationError as error:
        if name in SCHEDULES:
            raise
        raise StrategyError(f"schedule {name}: {error}") from error
    place = [{at: piece for piece, at in enumerate(route)} for route in routes]
    ways = np.array([slot.microbatch % len(routes) for _, slot in slots], dtype=np.int64)
    pieces = [place[way][stage, slot.chunk] for way, (stage, slot) in zip(ways.tolist(), slots, strict=True)]
    done: dict[tuple[bool, int, int], int] = {}
    final: dict[tuple[int, int], int] = {}
    source, link = np.full(len(slots), -1, dtype=np.int64), np.full(len(slots), -1, dtype=np.int64)
    for n, ((stage, slot), piece, way) in enumerate(zip(slots, pieces, ways.tolist(), strict=True)):
        if slot.what in (Pass.BACKWARD, Pass.WEIGHT):
            final[stage, slot.chunk] = n
        if slot.what is Pass.WEIGHT:
            continue
        backward = slot.what is not Pass.FORWARD
        done[backward, slot.microbatch, piece] = n
        before, after = (piece + 1, piece - 1) if backward else (piece - 1, piece + 1)
        source[n] = done.get((backward, slot.microbatch, before), -1)
        if 0 <= after < len(routes[way]) and routes[way][after][0] != stage:
            link[n] = min(piece, after)
    last = np.zeros(len(slots), dtype=bool)
    last[list(final.values())] = True
    what = np.array([slot.what for _, slot in slots], dtype=np.int64)
    return Skeleton(
        order=order,
        codes=tuple(np.array([s.chunk * len(Pass) + s.what for s in slots], dtype=np.int64) for slots in order),
        routes=routes,
        stage=np.array([stage for stage, _ in slots], dtype=np.int64),
        microbatch=np.array([slot.microbatch for _, slot in slots], dtype=np.int64),
        what=what,
        piece=np.array(pieces, dtype=np.int64),
        way=ways,
        source=source,
        link=link,
        first=np.array([slot.microbatch < len(routes) for _, slot in slots], dtype=bool),
        makes=(what == Pass.BACKWARD) | (what == Pass.WEIGHT),
        last=last,
    )
