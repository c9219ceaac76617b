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

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled
from traincast.simulate import Timeline
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
    plan, waits = timeline.plan, _Waits(timeline)
    step_s = timeline.step_s
    found = []
    for row in rows:
        task = waits.computing(row)
        start, end = timeline.start[task], timeline.end[task]
        duration = end - start
        category = plan.category[task]
        optimizing = category == Category.OPTIMIZER
        inside = np.minimum(communication[plan.cost[task]], duration)
        inside = np.where(category == Category.COMMUNICATION, duration, inside)
        own = duration - inside
        for_bytes, for_host = waits.of_lane(row, task)
        waiting = float((np.append(start, step_s) - np.append(0.0, end)).sum())
        bubble = waiting - for_bytes - for_host
        found.append(
            Breakdown(
                compute_s=float(own[~optimizing].sum()),
                optimizer_s=float(own[optimizing].sum()),
                exposed_communication_s=float(inside.sum()) + for_bytes,
                overhead_s=for_host,
                bubble_s=bubble if bubble > _ROUNDING * step_s else 0.0,
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
    """Finds what the compute lanes of a timeline wait for."""

    def __init__(self, timeline: Timeline) -> None:
        plan = timeline.plan
        self._start, self._end = timeline.start, timeline.end
        self._holder = np.repeat(np.arange(plan.num_tasks), np.diff(plan.lane_start))
        self._by_lane = np.argsort(plan.lanes, kind="stable")
        """The entries of the lanes column, lane by lane; those of lane i begin at ``_first[i]``."""
        lanes, holder = plan.lanes[self._by_lane], self._holder[self._by_lane]
        self._first = np.searchsorted(lanes, np.arange(plan.num_lanes + 1))
        before = np.full(len(lanes), -1, dtype=np.int64)
        before[self._by_lane[1:]] = np.where(lanes[1:] == lanes[:-1], holder[:-1], -1)
        launches = plan.category == Category.HOST
        host = np.where(launches, plan.lanes[plan.lane_start[:-1]] // NUM_STREAMS, -1)
        # Collectives in line are part of a rank's pass, alone or within a segment; sends in line are not.
        stream = plan.lanes % NUM_STREAMS
        sends = np.isin(stream, (Stream.SEND_FORWARD, Stream.SEND_BACKWARD))
        in_line = _any_of_each(stream == Stream.COMPUTE, plan.lane_start) & ~_any_of_each(sends, plan.lane_start)
        message = (plan.category == Category.COMMUNICATION) & ~in_line
        needs = plan.predecessor_start, plan.predecessors, plan.lane_start, before
        self._columns: tuple[Any, ...] = (self._start, self._end, host, message, *needs)
        self._walk: Callable[..., tuple[float, float]] = _waited_compiled
        if not _waited_compiled.pays(plan.num_tasks):
            self._columns, self._walk = tuple(column.tolist() for column in self._columns), _waited

    def computing(self, row: int) -> Ints:
        """Return the tasks on the compute lane of ``row``, in order of time."""
        lane = row * NUM_STREAMS + Stream.COMPUTE
        task = self._holder[self._by_lane[self._first[lane] : self._first[lane + 1]]]
        return task[np.argsort(self._start[task], kind="stable")]

    def of_lane(self, row: int, computing: Ints) -> tuple[float, float]:
        """Return the seconds that the compute lane of ``row``, which runs these tasks, waits for bytes and its host."""
        free = np.append(0.0, self._end[computing])
        gaps = np.flatnonzero(self._start[computing] > free[:-1])
        mine = np.sort(self._by_lane[self._first[row * NUM_STREAMS] : self._first[(row + 1) * NUM_STREAMS]])
        holder = self._holder[mine]
        last = int(holder[np.argmax(self._end[holder])]) if len(mine) else -1
        task, since = computing[gaps], free[gaps]
        if self._walk is _waited:
            return self._walk(row, task.tolist(), since.tolist(), last, float(free[-1]), self._columns)
        return self._walk(row, task, since, last, float(free[-1]), self._columns)


def _waited(  # noqa: PLR0917  (Numba takes positional arguments)
    row: Any, tasks: Any, free: Any, last: Any, ended: Any, columns: Any
) -> Any:
    """Return the seconds that a row's compute lane waits for bytes and for its host.

    It waits for each of ``tasks`` from the time in ``free`` on. From ``ended`` to the end of the step it waits for all
    lanes of the row: for their ``last`` task (−1: none), and then for other ranks. ``columns`` are those of all tasks:
    start, end, the row whose host runs it (−1: none), whether it is a message, and its needs: the ragged columns of
    predecessors, and of the task before it on each of its lanes (−1: none).
    """
    start, end, host, _, predecessor_start, predecessors, lane_start, before = columns
    bytes_s = host_s = 0.0
    for n in range(len(tasks)):
        task, since = tasks[n], free[n]
        launch = other = -1
        for at in range(predecessor_start[task], predecessor_start[task + 1]):
            source = predecessors[at]
            if host[source] == row:
                launch = _later(row, launch, source, end, host)
            elif host[source] < 0:
                other = _later(row, other, source, end, host)
        for at in range(lane_start[task], lane_start[task + 1]):
            source = before[at]
            if source >= 0 and host[source] == row:
                launch = _later(row, launch, source, end, host)
            elif source >= 0 and host[source] < 0:
                other = _later(row, other, source, end, host)
        ready = since if other < 0 else max(since, end[other])
        for_bytes, for_host = _back(row, other, since, ready, columns)
        bytes_s, host_s = bytes_s + for_bytes, host_s + for_host
        if launch >= 0:
            for_bytes, for_host = _back(row, launch, ready, min(end[launch], start[task]), columns)
            bytes_s, host_s = bytes_s + for_bytes, host_s + for_host
    if last >= 0:
        for_bytes, for_host = _back(row, last, ended, end[last], columns)
        bytes_s, host_s = bytes_s + for_bytes, host_s + for_host
    return bytes_s, host_s


def _back(row: Any, task: Any, since: Any, until: Any, columns: Any) -> Any:
    """Return the seconds from ``since`` to ``until`` that belong to messages and to the host of ``row``.

    Follows the causes of ``task`` (−1: none), which ended at ``until``, back to the first work of a rank.
    """
    start, end, host, message, predecessor_start, predecessors, lane_start, before = columns
    bytes_s = host_s = 0.0
    while task >= 0 and (message[task] or host[task] == row):
        begin = min(max(start[task], since), max(since, until))
        spent = max(0.0, until - begin)
        if message[task]:
            bytes_s += spent
        else:
            host_s += spent
        if begin <= since:
            break
        cause = -1
        for at in range(predecessor_start[task], predecessor_start[task + 1]):
            cause = _later(row, cause, predecessors[at], end, host)
        for at in range(lane_start[task], lane_start[task + 1]):
            cause = _later(row, cause, before[at], end, host)
        if cause >= 0:
            until = min(begin, end[cause])
        task = cause
    return bytes_s, host_s


def _later(row: Any, one: Any, other: Any, end: Any, host: Any) -> Any:
    """Return which of two tasks ends later; of equals one on the host of ``row``, else ``other``. −1 is no task."""
    if other < 0:
        return one
    if one < 0 or end[other] > end[one]:
        return other
    return other if end[other] == end[one] and (host[other] == row or host[one] != row) else one


_waited_compiled: Final = Compiled(_waited, pays_from=60_000)
"""The walk in machine code, and the number of tasks from which it pays."""


def _any_of_each(values: npt.NDArray[np.bool_], start: Ints) -> npt.NDArray[np.bool_]:
    """Return, for each row of a ragged column, whether any value is true; no row may be empty."""
    return np.logical_or.reduceat(values, start[:-1]) if len(start) > 1 else np.zeros(0, dtype=bool)
