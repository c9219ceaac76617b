"""The vocabulary of pipeline schedules: passes, slots, routes, and one order of them all.

A slot is one pass of one microbatch through one chunk of layers. A schedule is a function of the number of stages,
microbatches and virtual stages that returns every stage's slots in order; it knows no times. Where the chunks of a
stage stand in the model is its route.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeAlias

from traincast.errors import SimulationError


class Pass(enum.IntEnum):
    """What a slot runs of a chunk; a backward is whole, or split in two where one half fills bubbles."""

    FORWARD = 0
    BACKWARD = 1
    INPUT = 2  # the gradients of the inputs, which the stage before waits for
    WEIGHT = 3  # the gradients of the weights, which nobody waits for until the step ends


class Slot(NamedTuple):
    """One pass of a microbatch through one chunk; ``chunk`` counts the chunks of a stage."""

    what: Pass
    microbatch: int
    chunk: int = 0


Route: TypeAlias = list[tuple[int, int]]
"""(stage, chunk) of every piece of the model, from the first to the last."""
Order: TypeAlias = list[list[Slot]]
"""The slots of every stage."""


def loop(stages: int, virtual: int) -> list[Route]:
    """Round after round over the stages, as interleaved schedules have it; without virtual stages, one round."""
    return [[(stage, chunk) for chunk in range(virtual) for stage in range(stages)]]


def vee(stages: int, virtual: int) -> list[Route]:
    """Down the stages and up again: the first stage holds both ends of the model."""
    there = [(stage, 0) for stage in range(stages)]
    return [there + [(stage, 1) for stage in reversed(range(stages))]]


def both_ways(stages: int, virtual: int) -> list[Route]:
    """Two copies of the model, run from opposite ends; microbatches take them in turn."""
    return [[(stage, 0) for stage in range(stages)], [(stage, 1) for stage in reversed(range(stages))]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule: the order of slots, the routes of microbatches (microbatch m takes route m modulo their number).

    ``chunks`` is how many chunks a stage holds; 0 leaves it to the strategy's virtual stages.
    """

    order: Callable[[int, int, int], Order]
    routes: Callable[[int, int], list[Route]] = loop
    chunks: int = 0

    def __call__(self, stages: int, microbatches: int, virtual: int = 1) -> Order:
        """The order for these numbers; refuses those it cannot serve."""
        return self.order(stages, microbatches, virtual)


def merge(order: Sequence[Sequence[Slot]], routes: Sequence[Route]) -> list[tuple[int, Slot]]:
    """All slots of all stages in one program order: each after what it depends on.

    A forward needs the same microbatch on the piece before; a backward, whole or of inputs, needs its own forward and
    the backward on the piece after; a gradient of weights needs that of inputs. Raises if a stage's order can never
    run: a deadlock.
    """
    reached = [0] * (1 + max((slot.microbatch for slots in order for slot in slots), default=0))
    needs = [_needs(stage, slots, routes) for stage, slots in enumerate(order)]
    position = [0] * len(order)
    merged: list[tuple[int, Slot]] = []
    total = sum(len(slots) for slots in order)
    while len(merged) < total:
        before = len(merged)
        for stage, slots in enumerate(order):
            for at in range(position[stage], len(slots)):
                slot = slots[at]
                so_far, (need, after) = reached[slot.microbatch], needs[stage][at]
                if so_far < need:
                    break
                if after > so_far:
                    reached[slot.microbatch] = after
                merged.append((stage, slot))
                position[stage] = at + 1
        if len(merged) == before:
            stuck = [(s, slots[position[s]]) for s, slots in enumerate(order) if position[s] < len(slots)]
            waiting = "; ".join(f"stage {s} for {_told(slot)}" for s, slot in stuck[:4])
            raise SimulationError(
                f"the pipeline schedule deadlocks: {len(stuck)} of {len(order)} stages wait for slots that can never "
                f"run: {waiting}; order every slot after those it needs"
            )
    return merged


def _needs(stage: int, slots: Sequence[Slot], routes: Sequence[Route]) -> list[tuple[int, int]]:
    """How far a microbatch must have come for each slot of a stage, and how far it has come after.

    A microbatch passes its pieces forward, then the same pieces backward, so one count tells how far it has come.
    """
    far: list[dict[tuple[Pass, int], tuple[int, int]]] = [{} for _ in routes]
    for way, route in enumerate(routes):
        for piece, (there, chunk) in enumerate(route):
            if there == stage:
                back = 2 * len(route) - piece
                far[way][Pass.FORWARD, chunk] = (piece, piece + 1)
                far[way][Pass.BACKWARD, chunk] = far[way][Pass.INPUT, chunk] = (back - 1, back)
                far[way][Pass.WEIGHT, chunk] = (back, back)
    ways = len(routes)
    try:
        return [far[m % ways][what, chunk] for what, m, chunk in slots]
    except KeyError:
        lost = next(slot for slot in slots if (slot.what, slot.chunk) not in far[slot.microbatch % ways])
        raise SimulationError(
            f"the pipeline schedule runs {_told(lost)} on stage {stage}, which its route does not pass"
        ) from None


def _told(slot: Slot) -> str:
    return f"the {slot.what.name.lower()} pass of microbatch {slot.microbatch} through chunk {slot.chunk}"


def check(order: Sequence[Sequence[Slot]], routes: Sequence[Route], microbatches: int) -> None:
    """Refuse an order that leaves out a pass or runs one twice: every piece of every microbatch once each way."""
    stages = 1 + max(stage for route in routes for stage, _ in route)
    if len(order) != stages:
        raise SimulationError(f"the pipeline schedule orders {len(order)} stages; expected pp={stages}")
    due: list[set[tuple[int, int]]] = [set() for _ in order]
    for microbatch in range(microbatches):
        for stage, chunk in routes[microbatch % len(routes)]:
            due[stage].add((microbatch, chunk))
    for stage, slots in enumerate(order):
        forward, backward, inputs, weights = ({(m, c) for w, m, c in slots if w is what} for what in Pass)
        once = len(slots) == len(forward) + len(backward) + len(inputs) + len(weights)
        if not (once and forward == due[stage] == backward | inputs and inputs == weights and not backward & inputs):
            _refuse(stage, slots, due[stage])


def _refuse(stage: int, slots: Sequence[Slot], due: set[tuple[int, int]]) -> NoReturn:
    """Say of the first microbatch and chunk that is not run as due what is run of it."""
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
