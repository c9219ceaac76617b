"""A recording as a plan: the same tasks, lanes and waits, for the same simulator that runs forecasts.

Each thread and each stream becomes a row of the plan, which stands for the rank it belongs to. A task's work is
:class:`traincast.work.Recorded`, which states its own time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.simulate import Timeline, simulate
from traincast.strategy.costs import starts_of
from traincast.strategy.mesh import Group, Mesh
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Stream
from traincast.traces.files.trace import Ints
from traincast.traces.recording.labels import labels_of, phases_of
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
