"""A schedule's slots as columns, with order and dependencies. Cached, and shared by all strategies that use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.errors import SimulationError, StrategyError, TraincastError
from traincast.imports import definition_of, described, place_of
from traincast.strategy.schedules import SCHEDULES, Order, Pass, Route, check, load_schedule
from traincast.strategy.schedules.slots import columns_of, merged

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """All slots in one program order.

    ``piece`` is the part of the model that a slot runs, ``way`` the route of its microbatch. ``source`` is the slot
    whose result it waits for (−1: none). ``link`` is the piece after which its own result is sent to another stage
    (−1: it is not sent). ``first`` marks the first microbatch of each route, ``makes`` the slots that make gradients of
    weights, ``last`` the last of these on each chunk. ``codes`` has the slots of each stage in order, encoded as
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


def _told(name: str, stages: int, microbatches: int, chunks: int) -> tuple[list[Route], Order]:
    """Routes and order of the schedule ``name``; a user's schedule is checked, since it may fail or return anything."""
    schedule = load_schedule(name)
    if name in SCHEDULES:
        return schedule.routes(stages, chunks), schedule.order(stages, microbatches, chunks)
    try:
        routes, order = schedule.routes(stages, chunks), schedule.order(stages, microbatches, chunks)
    except TraincastError:
        raise
    except (Exception, SystemExit) as error:
        raise StrategyError(
            f"schedule {name!r} failed{place_of(error)} with pp={stages}, num_microbatches={microbatches}, "
            f"virtual_stages={chunks}: {described(error)}"
        ) from error
    places = _wrong(routes, (stages, chunks), "routes: a list of lists of (stage, chunk)")
    slots = _wrong(order, (len(Pass), microbatches, chunks), "for each stage a list of Slot(pass, microbatch, chunk)")
    for wrong, function in ((places, schedule.routes), (slots, schedule.order)):
        if wrong:
            raise StrategyError(f"schedule {_defined(name, function)} returned {wrong}")
    return routes, order


def _wrong(found: object, below: tuple[int, ...], expected: str) -> str:
    """What is wrong with ``found``, which should be lists of tuples of whole numbers below ``below``; else empty."""
    if not isinstance(found, list | tuple) or not found:
        return f"{_shown(found)}; expected {expected}"
    for number, inner in enumerate(found):
        if not isinstance(inner, list | tuple):
            return f"{_shown(inner)} as entry {number}; expected {expected}"
        for entry in inner:
            right = isinstance(entry, tuple) and len(entry) == len(below)
            if not right or not all(isinstance(n, int | np.integer) for n in entry):
                return f"{_shown(entry)} in entry {number}; expected {expected}"
            if not all(0 <= n < limit for n, limit in zip(entry, below, strict=True)):
                return f"{_shown(entry)} in entry {number}; expected numbers from 0 on and below {below}"
    return ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST: Final = 60


def _defined(name: str, function: Callable[..., object]) -> str:
    """The name of a user's schedule, with the file and line of ``function``."""
    place = definition_of(function)
    return f"{name!r} ({place})" if place else repr(name)


@lru_cache(maxsize=256)
def skeleton(name: str, stages: int, microbatches: int, chunks: int) -> Skeleton:
    """The slots of the schedule ``name``; raises :class:`StrategyError` if they are not a whole step or deadlock."""
    routes, order = _told(name, stages, microbatches, chunks)
    try:
        check(order, routes, microbatches)
        columns = columns_of(order)
        stage, place = merged(order, routes, columns)
    except SimulationError as error:
        if name in SCHEDULES:
            raise
        raise StrategyError(f"schedule {_defined(name, load_schedule(name).order)}: {error}") from error
    starts = np.concatenate([[0], np.cumsum([len(slots) for slots in order])])
    what, microbatch, chunk = columns[starts[stage] + place].T
    way = microbatch % len(routes)
    length = len(routes[0])
    pieces = np.full((len(routes), stages, 1 + int(chunk.max(initial=0))), -1, dtype=np.int64)
    there = np.full((len(routes), length + 2), -1, dtype=np.int64)  # the stage of each piece, none at both ends
    for number, route in enumerate(routes):
        for n, (at, of) in enumerate(route):
            pieces[number, at, of], there[number, 1 + n] = n, at
    piece = pieces[way, stage, chunk]
    makes = (what == Pass.BACKWARD) | (what == Pass.WEIGHT)
    passes, back = what != Pass.WEIGHT, what != Pass.FORWARD
    done = np.full((2, microbatches, length + 2), -1, dtype=np.int64)
    waited = np.flatnonzero(passes)
    done[back[waited].astype(np.int64), microbatch[waited], 1 + piece[waited]] = waited
    step = np.where(back, -1, 1)
    source = np.where(passes, done[back.astype(np.int64), microbatch, 1 + piece - step], -1)
    after = there[way, 1 + piece + step]
    crosses = passes & (after >= 0) & (after != stage)
    last = np.zeros(len(columns), dtype=bool)
    made = np.flatnonzero(makes)[::-1]
    last[made[np.unique(stage[made] * pieces.shape[2] + chunk[made], return_index=True)[1]]] = True
    return Skeleton(
        order=order,
        codes=tuple(np.split(columns[:, 2] * len(Pass) + columns[:, 0], starts[1:-1])),
        routes=routes,
        stage=stage,
        microbatch=microbatch,
        what=what,
        piece=piece,
        way=way,
        source=source,
        link=np.where(crosses, np.minimum(piece, piece + step), -1),
        first=microbatch < len(routes),
        makes=makes,
        last=last,
    )
