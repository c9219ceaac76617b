"""Pipeline schedules as pure functions: the order of slots on each stage.

A slot is one pass of one microbatch through one chunk of layers. A schedule gets the number of stages,
microbatches and virtual stages, and returns for every stage its slots in order; it knows no times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from traincast.errors import SimulationError, StrategyError, UnknownNameError


class Slot(NamedTuple):
    """One pass of a microbatch through one chunk; ``chunk`` counts a stage's virtual stages."""

    backward: bool
    microbatch: int
    chunk: int = 0


Schedule: TypeAlias = Callable[[int, int, int], list[list[Slot]]]


def gpipe(stages: int, microbatches: int, virtual: int = 1) -> list[list[Slot]]:
    """All forwards, then all backwards (Huang et al. 2019). Bubble fraction (p−1)/(m+p−1)."""
    if virtual != 1:
        raise StrategyError(f"gpipe with virtual_stages={virtual}: it has none; use schedule=interleaved")
    forward = [Slot(False, m) for m in range(microbatches)]
    backward = [Slot(True, m) for m in range(microbatches)]
    return [forward + backward for _ in range(stages)]


def one_forward_one_backward(stages: int, microbatches: int, virtual: int = 1) -> list[list[Slot]]:
    """Warm up, then alternate (Narayanan et al. 2019, PipeDream-Flush). GPipe's bubble, p microbatches in flight."""
    if virtual != 1:
        return interleaved(stages, microbatches, virtual)
    order = []
    for stage in range(stages):
        warm = min(stages - stage - 1, microbatches)
        slots = [Slot(False, m) for m in range(warm)]
        for m in range(microbatches - warm):
            slots += [Slot(False, warm + m), Slot(True, m)]
        slots += [Slot(True, m) for m in range(microbatches - warm, microbatches)]
        order.append(slots)
    return order


def interleaved(stages: int, microbatches: int, virtual: int) -> list[list[Slot]]:
    """1F1B over ``virtual`` chunks per stage (Narayanan et al. 2021): the bubble shrinks by that factor."""
    if virtual == 1:
        return one_forward_one_backward(stages, microbatches)
    if microbatches % stages:
        raise StrategyError(
            f"interleaved schedule: num_microbatches={microbatches} is not a multiple of pp={stages}; "
            f"use {-(-microbatches // stages) * stages} microbatches or virtual_stages=1"
        )
    total = microbatches * virtual

    def slot(index: int, backward: bool) -> Slot:
        group, within = divmod(index, stages * virtual)
        chunk = within // stages
        return Slot(backward, group * stages + within % stages, virtual - 1 - chunk if backward else chunk)

    order = []
    for stage in range(stages):
        warm = min(total, (stages - stage - 1) * 2 + (virtual - 1) * stages)
        slots = [slot(i, False) for i in range(warm)]
        for i in range(total - warm):
            slots += [slot(warm + i, False), slot(i, True)]
        slots += [slot(i, True) for i in range(total - warm, total)]
        order.append(slots)
    return order


def merge(order: Sequence[Sequence[Slot]], virtual: int) -> list[tuple[int, Slot]]:
    """All slots of all stages in one program order: each after what it depends on.

    A forward needs the same microbatch on the chunk before; a backward needs its own forward and the
    backward on the chunk after. Raises if a stage's order can never run: a deadlock.
    """
    stages = len(order)
    last = stages * virtual - 1
    done: set[tuple[bool, int, int]] = set()  # backward, microbatch, global chunk
    position = [0] * stages
    merged: list[tuple[int, Slot]] = []
    total = sum(len(slots) for slots in order)
    while len(merged) < total:
        before = len(merged)
        for stage in range(stages):
            slots = order[stage]
            while position[stage] < len(slots):
                slot = slots[position[stage]]
                chunk = slot.chunk * stages + stage
                if slot.backward:
                    ready = (False, slot.microbatch, chunk) in done and (
                        chunk == last or (True, slot.microbatch, chunk + 1) in done
                    )
                else:
                    ready = chunk == 0 or (False, slot.microbatch, chunk - 1) in done
                if not ready:
                    break
                done.add((slot.backward, slot.microbatch, chunk))
                merged.append((stage, slot))
                position[stage] += 1
        if len(merged) == before:
            waiting = {s: order[s][position[s]] for s in range(stages) if position[s] < len(order[s])}
            raise SimulationError(f"the pipeline schedule deadlocks: no stage can go on; waiting are {waiting}")
    return merged


SCHEDULES: Final[dict[str, Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
}


def load_schedule(name: str) -> Schedule:
    """The schedule of that name."""
    if name not in SCHEDULES:
        raise UnknownNameError("schedule", name, SCHEDULES)
    return SCHEDULES[name]
