"""The compiled loops of a search: seconds of a step from its slots, and the peak of activations of each stage.

A step is run slot by slot with one time per lane and stage, exactly as :mod:`traincast.simulate.executor` would run the
tasks of :class:`traincast.strategy.plan_builder.PlanBuilder`. No plan is laid out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled
from traincast.searching.bulk.blocks import PASSES
from traincast.searching.bulk.outline import ARRIVAL, ISSUED, NUM_LANES, RESULT, Outline
from traincast.simulate.executor import execute_tasks
from traincast.strategy.memory.peak import kept_in_slots
from traincast.strategy.schedules.skeleton import Skeleton, skeleton

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_WARM: Final = 3
"""Rounds after which a pipeline is taken to be full; see :func:`shortened`."""


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
        """The columns of ``slots``.

        ``syncing`` has the codes of templates if every microbatch exchanges gradients, ``ending`` those if only the
        last one does.
        """
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
    """Whether a step grows from one round to the next by at least the work of its busiest lane in a round.

    A step that grows by less still has slack and will grow faster later, so it cannot be extrapolated yet.
    """
    return bool(growth.min() >= busy.max() * (1.0 - 1e-9))


def shortened(stages: int, microbatches: int) -> tuple[int, int]:
    """Two smaller numbers of microbatches, one round apart, from which the step of all ``microbatches`` follows.

    A round is as many microbatches as there are stages. Once a pipeline is full, every further round adds the same
    time (Heidergott et al. 2006, "Max Plus at Work", on the periodic regime of max-plus systems). So two short steps
    are simulated, and their difference is added once for each round that was left out. If there are too few
    microbatches to save any, both numbers are ``microbatches``.
    """
    first = microbatches - (microbatches // stages - _WARM) * stages
    return (first, first + stages) if first + stages < microbatches else (microbatches, microbatches)


class Timed(NamedTuple):
    """Templates of an outline with durations.

    ``moves[n]`` is the max-plus matrix of template n: if lane a of a stage is free from ``t[a]`` before the template
    runs, lane b is free from max over a of (``t[a]`` + ``moves[n, a, b]``) after it. ``busy[n]`` are the seconds in
    which the template keeps host, device and data stream busy. The rows after those of the templates are filled later:
    one for each template that is followed by a message.
    """

    moves: Floats
    busy: Floats


def timed(outline: Outline, durations: Floats) -> Timed:
    """The templates of ``outline`` with the durations of their tasks.

    Lanes are first in, first out, so tasks are a max-plus system, and a template is a matrix of it. The executor runs
    each template once for every lane; slots of that template need no more than the matrix.
    """
    count = len(outline.last)
    moves = np.empty((count * (1 + len(outline.message)), NUM_LANES, NUM_LANES))
    _moves_compiled(
        outline.task_start,
        outline.last,
        durations,
        outline.lane_start,
        outline.lanes,
        outline.wait_start,
        outline.waits,
        moves,
    )
    return Timed(moves=moves, busy=outline.busy(durations))


def step_seconds(slots: Slots, outline: Outline, templates: Timed) -> tuple[Floats, Floats]:
    """Seconds of a step for each way to end it, and those in which each stage's host, device and stream are busy."""
    totals, counts = np.zeros(len(outline.finishing)), np.zeros((slots.stages, len(outline.last)))
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
        templates.moves,
        totals,
        counts,
    )
    return totals, counts @ templates.busy


def activations(slots: Slots, passes: Floats) -> Floats:
    """Bytes of activations in each stage's fullest slot.

    ``passes`` has the axes [stage, chunk and pass, 3]: bytes kept for backward at the fullest moment of the pass,
    working memory at that moment, and bytes that the pass adds to those kept (negative if it frees more).
    """
    peaks = np.zeros(slots.stages)
    _walk_compiled(slots.code_start, slots.codes, np.ascontiguousarray(np.moveaxis(passes, -1, 0)), peaks)
    return peaks


def _walk(code_start: Any, codes: Any, passes: Any, peaks: Any) -> None:
    for stage in range(len(peaks)):
        slots = codes[code_start[stage] : code_start[stage + 1]]
        if len(slots):
            kept = kept_in_slots(passes[0, stage][slots], passes[2, stage][slots])
            peaks[stage] = max(0.0, (kept + passes[1, stage][slots]).max())


def _moves(  # noqa: PLR0917  (Numba takes positional arguments)
    task_start: Any,
    last: Any,
    duration: Any,
    lane_start: Any,
    lanes: Any,
    wait_start: Any,
    waits: Any,
    moves: Any,
) -> None:
    """Fill the matrices of all templates: run each with one lane free at 0 and all others long before.

    A lane that no task holds moves nothing but itself.
    """
    start, end = np.empty(len(duration)), np.empty(len(duration))
    held = np.empty(NUM_LANES, dtype=np.bool_)
    for number in range(len(last)):
        first, until = task_start[number], task_start[number + 1]
        held[:] = False
        for at in range(lane_start[first], lane_start[until]):
            held[lanes[at]] = True
        for lane in range(NUM_LANES):
            free = moves[number, lane]
            free[:] = -np.inf
            free[lane] = 0.0
            if held[lane]:
                execute_tasks(
                    first, until, -np.inf, duration, lane_start, lanes, wait_start, waits, free, start, end
                )  # fmt: skip
            free[RESULT] = end[last[number]] if held[lane] else -np.inf


def _place(moves: Any, number: Any, arrival: Any, free: Any, stage: Any, after: Any) -> Any:  # noqa: PLR0917
    """Run template ``number`` on a stage whose lanes are ``free``, once its input arrives; returns when it is done.

    ``after`` is scratch, one entry per lane.
    """
    free[stage, ARRIVAL] = arrival
    for lane in range(NUM_LANES):
        after[lane] = moves[number, 0, lane] + free[stage, 0]
    for before in range(1, NUM_LANES):
        since = free[stage, before]
        for lane in range(NUM_LANES):
            after[lane] = max(after[lane], moves[number, before, lane] + since)
    for lane in range(NUM_LANES):
        free[stage, lane] = after[lane]
    return after[RESULT]


def _in_turn(moves: Any, first: Any, second: Any, both: Any) -> None:
    """Fill matrix ``both`` with template ``first`` and then ``second``, which waits for the result of the first."""
    for before in range(NUM_LANES):
        for lane in range(NUM_LANES):
            moves[both, before, lane] = -np.inf
        for between in range(NUM_LANES):
            here = moves[first, before, RESULT if between == ARRIVAL else between]
            for lane in range(NUM_LANES):
                moves[both, before, lane] = max(moves[both, before, lane], here + moves[second, between, lane])


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
    moves: Any,
    totals: Any,
    counts: Any,
) -> None:
    """Run all slots in order, each with its message; then, for each way to end the step, every stage's end.

    ``totals`` are the seconds of the step, ``counts`` says how often each stage runs each template.
    ``moves`` has room behind the templates for each of them with each message, which is filled when it is needed.
    """
    free = np.zeros((len(counts), NUM_LANES))
    done = np.zeros(len(stage_of))
    scratch = np.empty(NUM_LANES)
    known = np.zeros(len(moves), dtype=np.bool_)
    for slot in range(len(stage_of)):
        stage = stage_of[slot]
        number = run = template[codes[slot]]
        counts[stage, number] += 1
        if link_of[slot] >= 0:
            kind = 2 * links[link_of[slot]] + backward[slot]
            run = counts.shape[1] + number * len(message) + kind
            if not known[run]:
                _in_turn(moves, number, message[kind], run)
                known[run] = True
            counts[stage, message[kind]] += 1
        done[slot] = _place(moves, run, done[source[slot]] if source[slot] >= 0 else 0.0, free, stage, scratch)
    for ending in range(len(totals)):
        after = free.copy()
        for stage in range(len(free)):
            if finishing[ending, stage] >= 0:
                _place(moves, finishing[ending, stage], after[stage, ISSUED], after, stage, scratch)
        totals[ending] = after.max()


_moves_compiled = Compiled(_moves)
_step_compiled = Compiled(_step)
_walk_compiled = Compiled(_walk)
