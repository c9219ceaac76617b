"""The compiled loops of a search: seconds of a step from its slots, and what each stage holds at its fullest.

A step is run slot by slot with one time per lane and stage, exactly as the tasks of
:class:`traincast.strategy.template.PlanBuilder` would run in :mod:`traincast.simulate.executor`: no plan is laid out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled
from traincast.searching.blocks import PASSES
from traincast.searching.outline import ARRIVAL, ISSUED, NUM_LANES, TURN, Outline
from traincast.simulate.executor import execute_tasks
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
    backward: Ints
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
            backward=(slots.what != 0).astype(np.int64),
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


def step_seconds(slots: Slots, outline: Outline, durations: Floats) -> tuple[Floats, Floats]:
    """Seconds of a step for each way to end it, and those in which each stage's host, device and stream are busy.

    ``durations`` are those of the outline's tasks.
    """
    totals, busy = np.zeros(len(outline.finishing)), np.zeros((slots.stages, 3))
    templates = _Templates(
        task_start=outline.task_start,
        last=outline.last,
        duration=durations,
        lane_start=outline.lane_start,
        lanes=outline.lanes,
        wait_start=outline.wait_start,
        waits=outline.waits,
    )
    _step_compiled(
        slots.stage,
        slots.source,
        slots.syncing if outline.always else slots.ending,
        slots.link,
        slots.backward,
        outline.template,
        outline.link,
        outline.message,
        outline.finishing,
        templates,
        outline.busy(durations),
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


class _Templates(NamedTuple):
    """Columns of an outline's templates, and the durations of their tasks."""

    task_start: Any
    last: Any
    duration: Any
    lane_start: Any
    lanes: Any
    wait_start: Any
    waits: Any


def _place(templates: Any, number: Any, arrival: Any, free: Any, times: Any) -> Any:
    """Run template ``number`` on a stage whose lanes are ``free``, once its input arrives; returns when it is done."""
    first, last = templates.task_start[number], templates.task_start[number + 1]
    free[ARRIVAL] = arrival
    execute_tasks(
        templates.duration[first:last],
        templates.lane_start[first : last + 1],
        templates.lanes,
        templates.wait_start[first : last + 1],
        templates.waits,
        free,
        times[0],
        times[1],
    )
    done = times[1, templates.last[number]]
    free[TURN] = done
    return done


def _step(  # noqa: PLR0917  (Numba takes positional arguments)
    stage_of: Any,
    source: Any,
    codes: Any,
    link_of: Any,
    backward: Any,
    template: Any,
    links: Any,
    message: Any,
    finishing: Any,
    templates: Any,
    template_busy: Any,
    totals: Any,
    busy: Any,
) -> None:
    """Run all slots in order, each followed by its message; then, for each way to end the step, every stage's end."""
    stages = len(busy)
    free = np.zeros((stages, NUM_LANES))
    times = np.empty((2, len(templates.duration)))
    done = np.zeros(len(stage_of))
    for slot in range(len(stage_of)):
        stage = stage_of[slot]
        number = template[codes[slot]]
        result = _place(templates, number, done[source[slot]] if source[slot] >= 0 else 0.0, free[stage], times)
        for lane in range(3):
            busy[stage, lane] += template_busy[number, lane]
        if link_of[slot] >= 0:
            number = message[2 * links[link_of[slot]] + backward[slot]]
            result = _place(templates, number, result, free[stage], times)
            for lane in range(3):
                busy[stage, lane] += template_busy[number, lane]
        done[slot] = result
    for ending in range(len(totals)):
        for stage in range(stages):
            number, end = finishing[ending, stage], free[stage].copy()
            if number >= 0:
                _place(templates, number, end[ISSUED], end, times)
            totals[ending] = max(totals[ending], end.max())


_step_compiled = Compiled(_step)
_walk_compiled = Compiled(_walk)
