"""The compiled loops of a search: seconds of a step from its slots, and what each stage holds at its fullest.

A step is run slot by slot with one time per lane and stage, exactly as the tasks of
:class:`traincast.strategy.template.PlanBuilder` would run in :mod:`traincast.simulate.executor`: no plan is laid out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled
from traincast.searching.blocks import PASSES
from traincast.searching.outline import Outline
from traincast.strategy.runtime import Runtime
from traincast.strategy.schedules.skeleton import Skeleton, skeleton

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_WARM: Final = 3
"""Microbatches per stage after which a pipeline goes on as before; see :func:`shortened`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """A skeleton's columns as the loops read them; ``syncing`` and ``ending`` are codes of templates."""

    stages: int
    stage: Ints
    source: Ints
    syncing: Ints
    ending: Ints
    link: Ints
    backward: npt.NDArray[np.bool_]
    code_start: Ints
    codes: Ints

    @classmethod
    def of(cls, slots: Skeleton) -> Slots:
        """Those of ``slots``; codes with every microbatch's gradients exchanged, or the last one's alone."""
        base = slots.piece * PASSES + slots.what
        return cls(
            stages=len(slots.order),
            stage=slots.stage,
            source=slots.source,
            syncing=(base * 2 + slots.makes) * 2 + slots.first,
            ending=(base * 2 + slots.last) * 2 + slots.first,
            link=np.where(slots.link >= 0, slots.way * len(slots.routes[0]) + slots.link, -1),
            backward=slots.what != 0,
            code_start=np.cumsum([0, *map(len, slots.codes)]),
            codes=np.concatenate(slots.codes),
        )


@lru_cache(maxsize=4096)
def slots_of(name: str, stages: int, microbatches: int, chunks: int) -> tuple[Skeleton, Slots]:
    """A schedule's slots, and their columns."""
    made = skeleton(name, stages, microbatches, chunks)
    return made, Slots.of(made)


def repeats(growth: Floats, busy: Floats) -> bool:
    """Whether a step grows from one round to the next by what its busiest lane does in it, at least.

    One that grows by less has slack left, and will grow by more once that is used up: it does not repeat itself yet.
    """
    return bool(growth.min() >= busy.max() * (1.0 - 1e-9))


def shortened(stages: int, microbatches: int) -> tuple[int, int]:
    """Two numbers of microbatches that stand for many: a step grows by the same from each round of stages to the next.

    Once a pipeline is full, its times repeat themselves (Heidergott et al. 2006, "Max Plus at Work", on the periodic
    regime of such systems). So a step of m microbatches, of which as many as stages make a round, is that of fewer
    rounds and what another round adds, as often as rounds are left out. Both are m where that is few.
    """
    first = microbatches - (microbatches // stages - _WARM) * stages
    return (first, first + stages) if first + stages < microbatches else (microbatches, microbatches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What the loops know of a runtime: seconds of a message on the host, and who waits for whom."""

    send_host_s: float
    handshake: bool
    overlap_sends: bool
    sync_passes: bool

    @classmethod
    def of(cls, runtime: Runtime, send_host_s: float) -> Habits:
        """Those of ``runtime``."""
        return cls(
            send_host_s=send_host_s,
            handshake=bool(runtime.send_launches),
            overlap_sends=runtime.overlap_sends,
            sync_passes=runtime.sync_passes,
        )


def step_seconds(slots: Slots, outline: Outline, costs: Floats, links: Floats, habits: Habits) -> tuple[Floats, Floats]:
    """Seconds of a step for each way to end it, and those in which each stage's host, device and stream are busy.

    ``costs`` are those of the outline's operations, ``links`` those of messages by way and piece.
    """
    totals, busy = np.empty(len(outline.finishing)), np.zeros((slots.stages, 3))
    _step_compiled(
        slots.stages,
        slots.stage,
        slots.source,
        slots.syncing if outline.always else slots.ending,
        slots.link,
        slots.backward,
        outline.template,
        outline.finishing,
        outline.template_start,
        outline.kind,
        outline.wait,
        outline.data,
        costs,
        links,
        habits.send_host_s,
        habits.handshake,
        habits.overlap_sends,
        habits.sync_passes,
        totals,
        busy,
    )
    return totals, busy


def activations(slots: Slots, passes: Floats) -> Floats:
    """Bytes of activations in each stage's fullest slot.

    ``passes`` has, by stage, chunk and pass, what is kept when the pass holds most, needed on top, and left behind.
    """
    peaks = np.zeros(slots.stages)
    _walk_compiled(slots.code_start, slots.codes, passes, peaks)
    return peaks


def _walk(code_start: Any, codes: Any, passes: Any, peaks: Any) -> None:
    for stage in range(len(peaks)):
        alive, peak = 0.0, 0.0
        for i in range(code_start[stage], code_start[stage + 1]):
            row = passes[stage, codes[i]]
            peak = max(peak, alive + row[0] + row[1])
            alive += row[2]
        peaks[stage] = peak


def _step(  # noqa: PLR0917  (Numba takes positional arguments)
    stages: int,
    stage_of: Any,
    source: Any,
    codes: Any,
    link_of: Any,
    backward: Any,
    template: Any,
    finishing: Any,
    template_start: Any,
    kind: Any,
    wait: Any,
    data: Any,
    costs: Any,
    links: Any,
    send_host: float,
    handshake: bool,
    overlap_sends: bool,
    sync_passes: bool,
    totals: Any,
    busy: Any,
) -> None:
    """Run all slots in order, then each stage's end; lanes are free from the time in their entry on."""
    host = np.zeros(stages)
    compute = np.zeros(stages)
    stream = np.zeros(stages)  # of replicas
    sending = np.zeros((stages, 2))
    issued = np.zeros(stages)
    before = np.zeros(stages)  # the end of what was placed last
    done = np.zeros(len(stage_of))
    gathered = np.zeros(len(kind) + 1)
    count = len(stage_of)
    for slot in range(count + len(totals) * stages):
        ending = (slot - count) // stages if slot >= count else -1
        stage = (slot - count) % stages if ending >= 0 else stage_of[slot]
        number = finishing[ending, stage] if ending >= 0 else template[codes[slot]]
        arrival = 0.0
        if ending >= 0:
            arrival = issued[stage]
        elif source[slot] >= 0:
            arrival = done[source[slot]]
        launched, computed, moved = host[stage], compute[stage], stream[stage]
        if sync_passes:
            launched = max(launched, before[stage])
        last, gathers = -1.0, 0
        begin = template_start[number] if number >= 0 else 0
        end = template_start[number + 1] if number >= 0 else 0
        for i in range(begin, end):
            launched += costs[i, 0]
            busy[stage, 0] += costs[i, 0]
            if kind[i] == 0:
                busy[stage, 0] += costs[i, 2]
                busy[stage, 1] += costs[i, 1]
                start = max(launched, computed)
                if last < 0.0:
                    start = max(start, arrival)
                if wait[i] >= 0:
                    start = max(start, gathered[wait[i]])
                if data[i]:
                    start = max(start, moved)
                computed = start + costs[i, 1]
                if data[i]:
                    moved = computed
                last = computed
                launched += costs[i, 2]
            else:
                start = max(launched, moved, last)
                moved = start + costs[i, 1]
                busy[stage, 2] += costs[i, 1]
                if kind[i] == 2:
                    gathered[gathers] = moved
                    gathers += 1
                else:
                    issued[stage] = moved
        if ending >= 0:  # nothing of it is kept: another way to end the step may follow
            total = max(launched, computed, moved, sending[stage, 0], sending[stage, 1])
            totals[ending] = total if stage == 0 else max(totals[ending], total)
            continue
        result = last
        link = link_of[slot]
        if link >= 0:
            side = 1 if backward[slot] else 0
            if sync_passes or handshake:
                launched = max(launched, last)
            launched += send_host
            busy[stage, 0] += send_host
            start = max(launched, last, sending[stage, side])
            if not overlap_sends:
                start = max(start, computed)
            result = start + links[link]
            sending[stage, side] = result
            if not overlap_sends:
                computed = result
        done[slot] = result
        before[stage] = result
        host[stage], compute[stage], stream[stage] = launched, computed, moved


_step_compiled = Compiled(_step)
_walk_compiled = Compiled(_walk)
