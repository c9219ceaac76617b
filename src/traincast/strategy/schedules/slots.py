"""The vocabulary of pipeline schedules: passes, slots, routes, and one program order of all slots.

A slot is one pass of one microbatch through one chunk of layers. A schedule is a function of the numbers of stages,
microbatches and virtual stages that returns every stage's slots in order; it knows no times. A route lists the
stage and chunk of every piece of the model.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled
from traincast.errors import SimulationError

Ints = npt.NDArray[np.int64]


class Pass(enum.IntEnum):
    """The pass that a slot runs. A backward is whole, or split in two halves, of which one can fill bubbles."""

    FORWARD = 0
    BACKWARD = 1
    INPUT = 2  # the gradients of the inputs, which the stage before waits for
    WEIGHT = 3  # the gradients of the weights, which nobody waits for until the step ends


class Slot(NamedTuple):
    """One pass of a microbatch through one chunk; ``chunk`` is the number of the chunk within its stage."""

    what: Pass
    microbatch: int
    chunk: int = 0


Route: TypeAlias = list[tuple[int, int]]
"""(stage, chunk) of every piece of the model, from the first to the last."""
Order: TypeAlias = list[list[Slot]]
"""The slots of every stage."""


def loop(stages: int, virtual: int) -> list[Route]:
    """One route that visits all stages in turn, once for each virtual stage, as in interleaved schedules."""
    return [[(stage, chunk) for chunk in range(virtual) for stage in range(stages)]]


def vee(stages: int, virtual: int) -> list[Route]:
    """One route from the first stage to the last and back: the first stage holds both ends of the model."""
    there = [(stage, 0) for stage in range(stages)]
    return [there + [(stage, 1) for stage in reversed(range(stages))]]


def both_ways(stages: int, virtual: int) -> list[Route]:
    """Two routes, for two copies of the model, from opposite ends; microbatches use them in turn."""
    return [[(stage, 0) for stage in range(stages)], [(stage, 1) for stage in reversed(range(stages))]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """A pipeline schedule, and what it can do.

    ``order`` returns the slots of every stage, given the numbers of stages, microbatches and virtual stages.
    ``routes`` returns the ways through the model; microbatch m takes route m modulo their number.
    ``chunks`` is the number of chunks of layers of a stage; 0: the strategy's virtual stages.
    ``interleaves``: the schedule is meant for several virtual stages; a search gives it two or more, and others one.
    ``splits_backward``: backward passes come in two halves, :attr:`Pass.INPUT` and :attr:`Pass.WEIGHT`.
    ``pairs`` returns the share of forwards, given stages and microbatches, that run as one with the backward of another
    microbatch. Traffic of experts in such a pair overlaps with the pair's compute, and so do messages between stages:
    this is what such a schedule is made for, whatever the runtime does with others.
    ``differs_from`` is the number of microbatches from which it differs from a simpler schedule; a search does not try
    it with fewer.
    """

    order: Callable[[int, int, int], Order]
    routes: Callable[[int, int], list[Route]] = loop
    chunks: int = 0
    interleaves: bool = False
    splits_backward: bool = False
    pairs: Callable[[int, int], float] | None = None
    differs_from: int = 1

    def __call__(self, stages: int, microbatches: int, virtual: int = 1) -> Order:
        """The order for these numbers; raises :class:`StrategyError` for numbers that the schedule cannot serve."""
        return self.order(stages, microbatches, virtual)


def merge(order: Sequence[Sequence[Slot]], routes: Sequence[Route]) -> list[tuple[int, Slot]]:
    """All slots of all stages in one program order, each after the slots that it depends on.

    A forward needs the forward of the same microbatch on the previous piece. A backward, whole or of inputs, needs its
    own forward and the backward on the next piece. A gradient of weights needs that of inputs. Raises
    :class:`SimulationError` for a deadlock: an order that can never run.
    """
    stages, places = merged(order, routes, columns_of(order))
    return [(stage, order[stage][place]) for stage, place in zip(stages.tolist(), places.tolist(), strict=True)]


def columns_of(order: Sequence[Sequence[Slot]]) -> Ints:
    """Pass, microbatch and chunk of all slots, stage by stage."""
    count = sum(len(slots) for slots in order)
    flat = chain.from_iterable(chain.from_iterable(order))
    return np.fromiter(flat, dtype=np.int64, count=3 * count).reshape(-1, 3)


def merged(order: Sequence[Sequence[Slot]], routes: Sequence[Route], columns: Ints) -> tuple[Ints, Ints]:
    """The program order of :func:`merge` as columns: the stage of every slot, and its place in the stage's order."""
    sizes = np.array([len(slots) for slots in order], dtype=np.int64)
    start = np.concatenate([[0], np.cumsum(sizes)])
    needs = _needs(order, routes, columns, np.repeat(np.arange(len(order)), sizes))
    stage, place = np.empty(len(columns), dtype=np.int64), np.empty(len(columns), dtype=np.int64)
    reached = np.zeros(1 + int(columns[:, 1].max(initial=0)), dtype=np.int64)
    position = np.zeros(len(order), dtype=np.int64)
    if merge_compiled.pays(len(columns)):
        count = merge_compiled(start, columns[:, 1].copy(), *needs, reached, position, stage, place)
    else:
        lists = [x.tolist() for x in (start, columns[:, 1], *needs, reached, position, stage, place)]
        count = _merge(*lists)
        position, stage, place = (np.array(x, dtype=np.int64) for x in lists[-3:])
    if count < len(columns):
        stuck = [
            (s, slots[at])
            for s, (slots, at) in enumerate(zip(order, position.tolist(), strict=True))
            if at < len(slots)
        ]
        waiting = "; ".join(f"stage {s} for {_told(slot)}" for s, slot in stuck[:4])
        raise SimulationError(
            f"the pipeline schedule deadlocks: {len(stuck)} of {len(order)} stages wait for slots that can never "
            f"run: {waiting}; order every slot after those it needs"
        )
    return stage, place


def _merge(  # noqa: PLR0917  (Numba takes positional arguments)
    start: Any, microbatch: Any, need: Any, after: Any, reached: Any, position: Any, stage_of: Any, place_of: Any
) -> int:
    """Runs every stage as far as its microbatches allow, until nothing more can run; returns the slots that ran."""
    count = 0
    while count < len(microbatch):
        before = count
        for stage in range(len(position)):
            at = start[stage] + position[stage]
            while at < start[stage + 1] and reached[microbatch[at]] >= need[at]:
                reached[microbatch[at]] = max(reached[microbatch[at]], after[at])
                stage_of[count], place_of[count] = stage, at - start[stage]
                count += 1
                at += 1
            position[stage] = at - start[stage]
        if count == before:
            return count
    return count


merge_compiled: Final = Compiled(_merge, pays_from=400_000)
"""The loop in machine code, used from this number of slots on."""


def _needs(order: Sequence[Sequence[Slot]], routes: Sequence[Route], columns: Ints, stage: Ints) -> tuple[Ints, Ints]:
    """For each slot, the progress that its microbatch must have made before it, and the progress after it.

    A microbatch passes its pieces forward, then the same pieces backward, so progress is one count of passed pieces.
    """
    what, microbatch, chunk = columns.T
    far = np.full((len(routes), len(order), 1 + int(chunk.max(initial=0)), len(Pass), 2), -1, dtype=np.int64)
    for way, route in enumerate(routes):
        for piece, (at, of) in enumerate(route):
            if at < far.shape[1] and of < far.shape[2]:
                back = 2 * len(route) - piece
                far[way, at, of, Pass.FORWARD] = piece, piece + 1
                far[way, at, of, Pass.BACKWARD] = far[way, at, of, Pass.INPUT] = back - 1, back
                far[way, at, of, Pass.WEIGHT] = back, back
    need, after = far[microbatch % len(routes), stage, chunk, what].T
    lost = np.flatnonzero(need < 0)
    if len(lost):
        slot = Slot(Pass(what[lost[0]]), int(microbatch[lost[0]]), int(chunk[lost[0]]))
        raise SimulationError(
            f"the pipeline schedule runs {_told(slot)} on stage {stage[lost[0]]}, which its route does not pass"
        )
    return need.copy(), after.copy()


def _told(slot: Slot) -> str:
    return f"the {slot.what.name.lower()} pass of microbatch {slot.microbatch} through chunk {slot.chunk}"


def check(order: Sequence[Sequence[Slot]], routes: Sequence[Route], microbatches: int) -> None:
    """Refuses an order unless every microbatch passes every piece exactly once forward and once backward."""
    stages = 1 + max(stage for route in routes for stage, _ in route)
    if len(order) != stages:
        raise SimulationError(f"the pipeline schedule orders {len(order)} stages; expected pp={stages}")
    columns = columns_of(order)
    sizes = np.array([len(slots) for slots in order], dtype=np.int64)
    most = 1 + columns.max(axis=0, initial=0)
    shape = (
        stages,
        len(Pass),
        max(microbatches, int(most[1])),
        max(1 + max(c for r in routes for _, c in r), int(most[2])),
    )
    due = np.zeros((stages, *shape[2:]), dtype=bool)
    for way, route in enumerate(routes):
        for at, of in route:
            due[at, way : microbatches : len(routes), of] = True
    if columns.min(initial=0) < 0:
        lost = next(slot for slots in order for slot in slots if min(slot) < 0)
        raise SimulationError(f"the pipeline schedule runs {_told(lost)}; expected numbers from 0 on")
    where = np.ravel_multi_index((np.repeat(np.arange(stages), sizes), *columns.T), shape)
    run = np.bincount(where, minlength=int(np.prod(shape))).reshape(shape)
    forward, backward, inputs, weights = (run[:, what] for what in Pass)
    right = (forward == due) & (backward + inputs == due) & (inputs == weights)
    if not right.all():
        stage = int(np.flatnonzero(~right.all(axis=(1, 2)))[0])
        _refuse(stage, order[stage], {(int(m), int(c)) for m, c in zip(*np.nonzero(due[stage]), strict=True)})


def _refuse(stage: int, slots: Sequence[Slot], due: set[tuple[int, int]]) -> NoReturn:
    """Raises an error that names the first microbatch and chunk with missing or surplus passes."""
    passes: dict[tuple[int, int], list[Pass]] = {key: [] for key in sorted(due)}
    for what, microbatch, chunk in slots:
        passes.setdefault((microbatch, chunk), []).append(what)
    whole = [Pass.FORWARD, Pass.BACKWARD], [Pass.FORWARD, Pass.INPUT, Pass.WEIGHT]
    microbatch, chunk = next(key for key, run in passes.items() if key not in due or sorted(run) not in whole)
    run = ", ".join(what.name.lower() for what in passes[microbatch, chunk])
    wanted = "a forward and a backward pass, or a forward, an input and a weight pass"
    raise SimulationError(
        f"the pipeline schedule runs {run or 'nothing'} of microbatch {microbatch} through chunk {chunk} on stage "
        f"{stage}; expected {wanted if (microbatch, chunk) in due else 'nothing, as its route does not pass there'}"
    )
