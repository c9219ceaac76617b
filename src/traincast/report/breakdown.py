"""Breaks the time of a step down into parts, per rank and on average.

Every instant of a rank belongs to exactly one part, so the parts add up to the step: compute (forward and backward
works), optimizer, exposed communication (compute waits for bytes in transit), overhead (compute waits for its own
host), and bubble (compute waits for another rank).

A gap is assigned by what the work after it waits for, whatever else the rank's host and links do meanwhile. Once
everything else that it needs is ready, a work waits for its launch. Before that it waits for the last message,
collective or work that it needs, which in turn waited for its own cause. The time along this chain, from the end back,
is assigned to each message and launch of the rank; from the first work of another rank on, it is bubble.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.simulate import Spans, Timeline
from traincast.strategy.plan import NUM_STREAMS, Category, Stream

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_ROUNDING: Final = 1e-12
"""A remainder below this share of the step is rounding, not a wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of a step by part; they add up to the step."""

    compute_s: float
    exposed_communication_s: float
    bubble_s: float
    optimizer_s: float
    overhead_s: float

    @property
    def total_s(self) -> float:
        """The sum of all parts."""
        return self.compute_s + self.exposed_communication_s + self.bubble_s + self.optimizer_s + self.overhead_s


def breakdowns(timeline: Timeline, rows: Iterable[int], communication: Floats) -> list[Breakdown]:
    """Return the breakdown of each of ``rows``; ``communication`` has the seconds of communication in each cost."""
    plan, spans, waits = timeline.plan, timeline.spans(), _Waits(timeline)
    found = []
    for row in rows:
        lane = spans.on(row, Stream.COMPUTE)
        duration = lane.end - lane.start
        category = plan.category[lane.task]
        optimizing = category == Category.OPTIMIZER
        inside = np.minimum(communication[plan.cost[lane.task]], duration)
        inside = np.where(category == Category.COMMUNICATION, duration, inside)
        own = duration - inside
        for_bytes, for_host = waits.of_lane(row, lane)
        waiting = float((np.append(lane.start, timeline.step_s) - np.append(0.0, lane.end)).sum())
        bubble = waiting - for_bytes - for_host
        found.append(
            Breakdown(
                compute_s=float(own[~optimizing].sum()),
                optimizer_s=float(own[optimizing].sum()),
                exposed_communication_s=float(inside.sum()) + for_bytes,
                overhead_s=for_host,
                bubble_s=bubble if bubble > _ROUNDING * timeline.step_s else 0.0,
            )
        )
    return found


def mean_breakdown(parts: list[Breakdown]) -> Breakdown:
    """Return the mean over ranks."""
    count = len(parts)
    return Breakdown(
        compute_s=sum(p.compute_s for p in parts) / count,
        exposed_communication_s=sum(p.exposed_communication_s for p in parts) / count,
        bubble_s=sum(p.bubble_s for p in parts) / count,
        optimizer_s=sum(p.optimizer_s for p in parts) / count,
        overhead_s=sum(p.overhead_s for p in parts) / count,
    )


class _Waits:
    """Finds what the tasks of a timeline wait for."""

    def __init__(self, timeline: Timeline) -> None:
        plan = self._plan = timeline.plan
        self._start, self._end, self._step_s = timeline.start, timeline.end, timeline.step_s
        holder = np.repeat(np.arange(plan.num_tasks), np.diff(plan.lane_start))
        order = np.argsort(plan.lanes, kind="stable")
        same = plan.lanes[order][1:] == plan.lanes[order][:-1]
        self._before = np.full(len(holder), -1, dtype=np.int64)
        """For each entry of the lanes column, the previous task on the lane, or -1."""
        self._before[order[1:][same]] = holder[order[:-1][same]]
        launches = plan.category == Category.HOST
        self._host = np.where(launches, plan.lanes[plan.lane_start[:-1]] // NUM_STREAMS, -1)
        """For each task, the row whose host runs it, or -1."""
        # Collectives in line are part of a rank's pass, alone or within a segment; sends in line are not.
        stream = plan.lanes % NUM_STREAMS
        sends = np.isin(stream, (Stream.SEND_FORWARD, Stream.SEND_BACKWARD))
        in_line = _any_of_each(stream == Stream.COMPUTE, plan.lane_start) & ~_any_of_each(sends, plan.lane_start)
        self._message = (plan.category == Category.COMMUNICATION) & ~in_line

    def of_lane(self, row: int, lane: Spans) -> tuple[float, float]:
        """Return the seconds that the compute lane of ``row``, with these spans, waits for bytes and for its host."""
        free = np.append(0.0, lane.end[:-1])
        gaps = np.flatnonzero(lane.start > free)
        task, since, until = lane.task[gaps], free[gaps], lane.start[gaps]
        which, source = self._needs(task)
        launch = self._host[source] == row
        other = self._host[source] < 0
        at, last = self._last_of_each(row, which[other], source[other])
        ready = since.copy()
        ready[at] = np.maximum(since[at], self._end[last])
        bytes_s, host_s = self._back(row, last, since=since[at], until=ready[at])
        at, last = self._last_of_each(row, which[launch], source[launch])
        launched = np.minimum(self._end[last], until[at])
        more_bytes_s, more_host_s = self._back(row, last, since=ready[at], until=launched)
        # The end of a step waits for all lanes of a row: their last task, and then for other ranks.
        mine = np.flatnonzero(self._plan.lanes // NUM_STREAMS == row)
        holder = np.searchsorted(self._plan.lane_start, mine, side="right") - 1
        last = holder[[np.argmax(self._end[holder])]] if len(mine) else holder
        ended = lane.end[-1:] if len(lane.end) else np.zeros(len(last))
        end_bytes_s, end_host_s = self._back(row, last, since=ended, until=self._end[last])
        return bytes_s + more_bytes_s + end_bytes_s, host_s + more_host_s + end_host_s

    def _back(self, row: int, task: Ints, *, since: Floats, until: Floats) -> tuple[float, float]:
        """Return the seconds from ``since`` to ``until`` that belong to messages and to the host of ``row``.

        Follows the causes of each ``task``, which ended at ``until``, back to the first work of a rank.
        """
        bytes_s = host_s = 0.0
        while len(task):
            start = np.clip(self._start[task], since, np.maximum(since, until))
            spent = np.maximum(0.0, until - start)
            message, launch = self._message[task], self._host[task] == row
            bytes_s += float(spent[message].sum())
            host_s += float(spent[launch].sum())
            on = np.flatnonzero((message | launch) & (start > since))
            at, source = self._last_of_each(row, *self._needs(task[on]))
            task, since, until = source, since[on][at], np.minimum(start[on][at], self._end[source])
        return bytes_s, host_s

    def _needs(self, tasks: Ints) -> tuple[Ints, Ints]:
        """Return pairs of a position in ``tasks`` and a task that the task there waits for."""
        plan = self._plan
        first, before = _entries(plan.predecessor_start, tasks), _entries(plan.lane_start, tasks)
        position = np.concatenate([first[0], before[0]])
        source = np.concatenate([plan.predecessors[first[1]], self._before[before[1]]])
        return position[source >= 0], source[source >= 0]

    def _last_of_each(self, row: int, position: Ints, source: Ints) -> tuple[Ints, Ints]:
        """Return the distinct positions, and for each the source that ends last; of equals, one on ``row``'s host."""
        order = np.lexsort((self._host[source] == row, self._end[source], position))
        position, source = position[order], source[order]
        last = np.append(position[1:] != position[:-1], True)[: len(position)]
        return position[last], source[last]


def _entries(start: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the position in ``rows`` and the index of each entry in these rows of a ragged column."""
    count = np.diff(start)[rows]
    position = np.repeat(np.arange(len(rows)), count)
    within = np.arange(len(position)) - np.repeat(np.cumsum(count) - count, count)
    return position, start[rows][position] + within


def _any_of_each(values: npt.NDArray[np.bool_], start: Ints) -> npt.NDArray[np.bool_]:
    """Return, for each row of a ragged column, whether any value is true; no row may be empty."""
    return np.logical_or.reduceat(values, start[:-1]) if len(start) > 1 else np.zeros(0, dtype=bool)
