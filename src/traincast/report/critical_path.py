"""The critical path: the chain of tasks that decides when the step ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.simulate import Timeline
from traincast.strategy.plan import Category

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_ROUNDING: Final = 1e-9
"""Share of a step by which rounding may put the end of a task after the start of one that it released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEntry:
    """Time on the critical path of all tasks with one label: seconds, share of the step, number of tasks."""

    label: str
    seconds: float
    share: float
    count: int


def critical_tasks(timeline: Timeline) -> Ints:
    """Return the tasks of one longest chain, first to last: each starts when the one before it ends.

    A task starts when its lanes are free and its predecessors have ended, so one of these ended exactly then. Following
    these from the last task back gives the chain. A task that still runs on a shared lane is not part of it.
    """
    plan, start, end = timeline.plan, timeline.start, timeline.end
    if not plan.num_tasks:
        return np.zeros(0, dtype=np.int64)
    before = _previous_on_lane(plan.lanes, np.repeat(np.arange(plan.num_tasks), np.diff(plan.lane_start)))
    path, within = [], _ROUNDING * timeline.step_s
    task = int(np.argmax(end))
    while True:
        path.append(task)
        lanes = before[plan.lane_start[task] : plan.lane_start[task + 1]]
        others = plan.predecessors[plan.predecessor_start[task] : plan.predecessor_start[task + 1]]
        candidates = np.concatenate([others, lanes[lanes >= 0]])
        candidates = candidates[end[candidates] <= start[task] + within]
        if not len(candidates) or start[task] <= 0.0:
            break
        task = int(candidates[np.argmax(end[candidates])])
    return np.array(path[::-1], dtype=np.int64)


def summarize(timeline: Timeline, tasks: Ints, seconds: Floats) -> list[PathEntry]:
    """Return the time on the path by label, the largest first; all launches are one entry.

    The time of a segment is divided among its works in proportion to their ``seconds``.
    """
    plan = timeline.plan
    duration = timeline.end[tasks] - timeline.start[tasks]
    launches = plan.category[tasks] == Category.HOST
    inside = plan.cost[tasks] >= plan.num_leaves
    time = np.zeros(len(plan.labels) + 1)
    count = np.zeros(len(plan.labels) + 1, dtype=np.int64)
    time[-1], count[-1] = duration[launches].sum(), launches.sum()
    plain = ~launches & ~inside
    np.add.at(time, plan.label[tasks[plain]], duration[plain])
    np.add.at(count, plan.label[tasks[plain]], 1)
    within = inside & ~launches
    numbers, which, times = np.unique(
        (plan.cost[tasks[within]] - plan.num_leaves) // 3, return_inverse=True, return_counts=True
    )
    spent = np.bincount(which.reshape(-1), weights=duration[within], minlength=len(numbers))
    leaves = plan.leaves(seconds)
    for number, repeats, took in zip(numbers, times, spent, strict=True):
        segment = plan.segments[number]
        parts = leaves[segment.works]
        np.add.at(time, segment.labels, took * parts / max(float(parts.sum()), 1e-300))
        np.add.at(count, segment.labels, repeats)
    total = max(timeline.step_s, 1e-30)
    names = (*plan.labels, "host launches")
    return [
        PathEntry(label=names[i], seconds=float(time[i]), share=float(time[i]) / total, count=int(count[i]))
        for i in np.argsort(-time, kind="stable")
        if count[i]
    ]


def _previous_on_lane(lanes: Ints, task: Ints) -> Ints:
    """Return, for each entry of the lanes column, the previous task on that lane, or -1."""
    order = np.argsort(lanes, kind="stable")
    before = np.full(len(lanes), -1, dtype=np.int64)
    same = lanes[order][1:] == lanes[order][:-1]
    before[order[1:][same]] = task[order[:-1][same]]
    return before
