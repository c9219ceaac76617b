"""Replays a recording with unchanged durations, and says how far it can be trusted.

A recording becomes a plan for the same simulator that runs forecasts, with the same tasks, lanes and waits. Each thread
and each stream becomes a row of the plan, which stands for the rank it belongs to. A task's work is
:class:`traincast.work.Recorded`, which states its own time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.report.critical_path import critical_tasks
from traincast.simulate import Timeline, simulate
from traincast.strategy.costs import starts_of
from traincast.strategy.mesh import Group, Mesh
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Stream
from traincast.traces.files.trace import Ints
from traincast.traces.recording.labels import labels_of, phases_of
from traincast.traces.recording.pace import StepWindow, stretches, window
from traincast.traces.recording.recording import NOWHERE, Recording, TaskRole
from traincast.work import Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """A plan, the seconds of its works, and the place of each task of the recording in it."""

    plan: Plan
    seconds: npt.NDArray[np.float64]
    place: Ints

    def run(self) -> Timeline:
        """Simulate the plan."""
        return simulate(self.plan, self.seconds)


def to_plan(recording: Recording) -> RecordedPlan:
    """Return the plan of a recording."""
    order = _in_order(recording)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    names, label = labels_of(recording)
    works: dict[tuple[int, int], int] = {}
    duration = np.maximum(recording.duration, 0)
    pairs = zip(label[order].tolist(), duration[order].tolist(), strict=True)
    cost = np.array([works.setdefault(pair, len(works)) for pair in pairs], dtype=np.int32)
    lane_start, lanes = _lanes(recording, order)
    target, source = place[recording.edges[:, 0]], place[recording.edges[:, 1]]
    target, source = target[source < target], source[source < target]
    by_target = np.argsort(target, kind="stable")
    ranks = sorted({lane.rank for lane in recording.lanes})
    world = max([len(ranks), *(trace.world_size for trace in recording.traces), *(rank + 1 for rank in ranks)])
    plan = Plan(
        mesh=Mesh(dp=world, tp=1, pp=1, cp=1, devices_per_node=world),
        works=tuple(Recorded(name=names[number], nanoseconds=took) for number, took in works),
        overlaps=(),
        segments=(),
        ranks=np.array([lane.rank for lane in recording.lanes], dtype=np.int64),
        cost=cost,
        lane_start=lane_start,
        lanes=lanes,
        predecessor_start=starts_of(np.bincount(target, minlength=len(order))),
        predecessors=source[by_target],
        category=_categories(recording)[order],
        group=np.full(len(order), int(Group.RANK), dtype=np.int8),
        label=label[order].astype(np.int32),
        microbatch=np.zeros(len(order), dtype=np.int32),
        labels=names,
    )
    seconds = np.array([took for _, took in works], dtype=np.float64) / 1e9
    return RecordedPlan(plan=plan, seconds=seconds, place=place)


def _categories(recording: Recording) -> npt.NDArray[np.int8]:
    category = np.full(len(recording), int(Category.WAIT), dtype=np.int8)
    category[np.isin(recording.role, (TaskRole.HOST, TaskRole.CALL))] = Category.HOST
    device = recording.role == TaskRole.DEVICE
    category[device] = phases_of(recording)[device]
    category[device & recording.communicates] = Category.COMMUNICATION
    return category


def _lanes(recording: Recording, order: Ints) -> tuple[Ints, Ints]:
    on_device = np.array([lane.on_device for lane in recording.lanes], dtype=bool)
    number = np.arange(len(on_device)) * NUM_STREAMS + np.where(on_device, int(Stream.COMPUTE), int(Stream.HOST))
    held: list[Any] = []
    count = np.zeros(len(order), dtype=np.int64)
    for at, task in enumerate(order.tolist()):
        own = [int(recording.lane[task])] if recording.lane[task] != NOWHERE else []
        own += recording.others.get(task, ())
        count[at] = len(own)
        held += own
    return starts_of(count), number[np.array(held, dtype=np.int64)] if held else np.zeros(0, dtype=np.int64)


def _in_order(recording: Recording) -> Ints:
    """Return the tasks in an order in which each comes after all that it waits for, by recorded time as far as
    possible.

    Tasks of one lane stay in the order in which they were recorded. Where clocks disagree, waits may form a loop: then
    the earliest task of it does not wait.
    """
    start, end = recording.start, recording.end
    edges = [recording.edges]
    lane, task = recording.lane.astype(np.int64), np.arange(len(recording))
    if recording.others:
        more = [(k, other) for k, others in recording.others.items() for other in others]
        task = np.concatenate([task, [k for k, _ in more]])
        lane = np.concatenate([lane, [other for _, other in more]])
    along = np.lexsort((task, end[task], start[task], lane))
    along = along[lane[along] != NOWHERE]
    same = lane[along][1:] == lane[along][:-1]
    edges.append(np.stack([task[along[1:]][same], task[along[:-1]][same]], axis=1))
    every = np.concatenate(edges)
    by_source = every[np.argsort(every[:, 1], kind="stable")]
    first = np.searchsorted(by_source[:, 1], np.arange(len(recording) + 1)).tolist()
    targets = by_source[:, 0].tolist()
    missing = np.bincount(every[:, 0], minlength=len(recording)).tolist()
    starts, ends = start.tolist(), end.tolist()
    heap = [(starts[k], ends[k], k) for k in range(len(recording)) if not missing[k]]
    heapq.heapify(heap)
    order: list[int] = []
    placed = [False] * len(recording)
    by_time = iter(np.lexsort((end, start)).tolist())
    while len(order) < len(recording):
        # If no task is ready, times contradict one another: the earliest one no longer waits.
        k = heapq.heappop(heap)[2] if heap else next(task for task in by_time if not placed[task])
        if placed[k]:
            continue
        placed[k] = True
        order.append(k)
        for target in targets[first[k] : first[k + 1]]:
            missing[target] -= 1
            if not missing[target]:
                heapq.heappush(heap, (starts[target], ends[target], target))
    return np.array(order, dtype=np.int64)


Floats: TypeAlias = npt.NDArray[np.float64]

MOST_OPAQUE: Final = 0.1
"""Share of unexplained delays in the critical path from which nothing is said about changes.

No change shortens these delays, so an answer may be wrong by about their share. Of 33 published traces, 32 have at most
1.7 %, and one has 59 %: any limit between would decide them alike, and this one was chosen after looking at them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A recording that has run in the simulator: the plan, its timeline, and the steps of each host in seconds.

    ``pace_s`` is the time of a step as :mod:`traincast.traces.recording.pace` defines it. A single step of a host may
    be shorter, while the queue of the device fills.
    """

    recording: Recording
    planned: RecordedPlan
    timeline: Timeline
    step_s: tuple[tuple[float, ...], ...]
    pace_s: float

    @property
    def total_s(self) -> float:
        """The time until the last task ends."""
        return self.timeline.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """How well a replay with unchanged durations agrees with what was recorded.

    ``measured_s`` and ``replayed_s`` are the whole trace, ``measured_step_s`` and ``replayed_step_s`` a step of it (see
    :mod:`traincast.traces.recording.pace`), and ``measured_steps_s`` and ``replayed_steps_s`` the steps on the hosts.
    Errors are relative. ``strict_error`` is that of a replay without the delays that nothing explains; ``opaque_share``
    the share of these delays in the time that decides the end.
    """

    measured_step_s: float
    replayed_step_s: float
    measured_s: float
    replayed_s: float
    error: float
    worst_step_error: float
    strict_s: float
    strict_error: float
    strict_worst_step_error: float
    opaque_share: float
    measured_steps_s: tuple[float, ...] = field(repr=False)
    replayed_steps_s: tuple[float, ...] = field(repr=False)
    notes: tuple[str, ...]

    @property
    def step_error(self) -> float:
        """The relative error of a step."""
        return self.replayed_step_s / self.measured_step_s - 1

    def to_dict(self) -> dict[str, Any]:
        """Everything, as ``trace replay --json`` prints it."""
        return asdict(self)


def run(recording: Recording) -> Replayed:
    """Run a recording in the simulator."""
    planned = to_plan(recording)
    timeline = planned.run()
    end = timeline.end[planned.place]
    bounds = [_bounds(recording, number, end) for number in range(len(recording.traces))]
    return Replayed(
        recording=recording,
        planned=planned,
        timeline=timeline,
        step_s=tuple(tuple((pairs[:, 1] - pairs[:, 0]).tolist()) for pairs in bounds),
        pace_s=_pace(recording, end, bounds),
    )


def measured_pace_s(recording: Recording) -> float:
    """The recorded time of a step, counted as :attr:`Replayed.pace_s` counts it."""
    bounds = [recording.step_bounds(number) / 1e9 for number in range(len(recording.traces))]
    return _pace(recording, recording.end / 1e9, bounds)


def measured_steps_s(recording: Recording, number: int) -> list[float]:
    """The recorded time of each step of one rank, on its host or its device, as if it were the only one."""
    end, bounds = recording.end / 1e9, recording.step_bounds(number) / 1e9
    single = [(step, step) for step in range(len(bounds))]
    return [one.length for one in _windows(recording, number, end, bounds, single)]


def _bounds(recording: Recording, number: int, end: Floats) -> Floats:
    """Return when the steps of a rank begin and end on its host; ``end`` is the end of every task."""
    last = float(end[recording.trace == number].max(initial=0.0))  # a trace without threads: no task ends its step
    marks = recording.marks[number]
    return np.array([(end[a] if a >= 0 else 0.0, end[b] if b >= 0 else last) for a, b in marks], dtype=np.float64)


def _pace(recording: Recording, end: Floats, bounds: list[Floats]) -> float:
    """Return the seconds of a step, from the end of every task and the steps on the hosts: the mean over ranks."""
    each = []
    for number, (steps, pairs) in enumerate(zip(recording.steps, bounds, strict=True)):
        found = _windows(recording, number, end, pairs, stretches(steps))
        each.append(sum(one.length for one in found) / len(steps))
    return float(np.mean(each))


def _windows(
    recording: Recording, number: int, end: Floats, bounds: Floats, runs: Sequence[tuple[int, int]]
) -> list[StepWindow]:
    """Return the windows of runs of steps of one rank: first and last step of each."""
    own = recording.trace == number
    last, launched = end[own], recording.launched[own]
    on_device = (recording.role[own] == TaskRole.DEVICE) | (launched >= 0)
    recorded = recording.step_bounds(number)
    found = []
    for first, final in runs:
        begin, stop = float(bounds[first, 0]), float(bounds[final, 1])
        if recording.steps[number][first].whole:
            found.append(StepWindow(begin, max(stop, float(last.max(initial=0.0))), on_device=False))
            continue
        before = on_device & (launched < recorded[first, 0])
        within = (launched >= recorded[first, 0]) & (launched < recorded[final, 1])
        free, done = (float(last[which].max(initial=0.0)) for which in (before, within))
        found.append(window(begin, stop, free=free, done=done))
    return found


def measured_total_s(recording: Recording) -> float:
    """The recorded time from the start of the first trace to the end of the last task."""
    return float(recording.end.max()) / 1e9


def replay(recording: Recording) -> ReplayReport:
    """Replay a recording as it is and without unexplained delays, and compare both with what was recorded."""
    kept, strict = run(recording), run(recording.strict())
    measured, share = measured_total_s(recording), opaque_share(kept)
    steps = tuple(step.seconds for steps in recording.steps for step in steps)
    return ReplayReport(
        measured_step_s=measured_pace_s(recording),
        replayed_step_s=kept.pace_s,
        measured_s=measured,
        replayed_s=kept.total_s,
        error=kept.total_s / measured - 1,
        worst_step_error=_worst(kept, steps),
        strict_s=strict.total_s,
        strict_error=strict.total_s / measured - 1,
        strict_worst_step_error=_worst(strict, steps),
        opaque_share=share,
        measured_steps_s=steps,
        replayed_steps_s=tuple(s for steps in kept.step_s for s in steps),
        notes=(*recording.notes, *unexplained(share)),
    )


def _worst(replayed: Replayed, measured: tuple[float, ...]) -> float:
    """Return the relative error of the step that is furthest off."""
    errors = [
        r / m - 1 for r, m in zip((s for steps in replayed.step_s for s in steps), measured, strict=True) if m > 0
    ]
    return max(errors, key=abs, default=0.0)


def unexplained(share: float) -> list[str]:
    """Return the sentence that says that too much of a trace is unexplained for what-if questions, or nothing."""
    if share <= MOST_OPAQUE:
        return []
    return [
        f"nothing that was recorded explains {100 * share:.0f} % of the critical path (at most {100 * MOST_OPAQUE:.0f} "
        "% may be): how it would change is not known, and what-if questions are refused"
    ]


def opaque_share(replayed: Replayed) -> float:
    """Return the share of unexplained delays on the critical path.

    The time at which each rank began to record, and work launched before that, are given, not delays.
    """
    place, timeline = replayed.planned.place, replayed.timeline
    opaque = np.zeros(len(place), dtype=bool)
    recording = replayed.recording
    opaque[place[np.flatnonzero((recording.role == TaskRole.OPAQUE) & (recording.event >= 0))]] = True
    path = critical_tasks(timeline)
    took = timeline.end[path] - timeline.start[path]
    return float(took[opaque[path]].sum()) / max(timeline.step_s, 1e-30)
