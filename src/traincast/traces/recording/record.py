"""Makes the recording of one trace."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import Ints, ProfilerTrace
from traincast.traces.recording.device import DeviceWork, device_work, queue_limits
from traincast.traces.recording.host import HostTasks, host_tasks
from traincast.traces.recording.recording import NOWHERE, Lane, Recording, TaskRole, TaskTable
from traincast.traces.recording.steps import steps_of
from traincast.traces.recording.waits import Waits, find_waits

_HELD_NS: Final = 10_000
_NEAR_NS: Final = 5_000
_UNJUDGED: Final = (
    "the trace has too few steps: waits between streams are inferred from all, and no other step judges them"
)
_LAST_WAVE: Final = 0.1
"""Share of a kernel's time within which its last wave leaves room for others."""


def record(trace: ProfilerTrace, *, named: str | None = None, fit: Collection[int] | None = None) -> Recording:
    """Return the tasks of a trace; ``named`` and ``fit`` as in :func:`steps_of` and :func:`find_waits`.

    If no step is in ``fit``, or none is left to judge, waits are inferred from all steps, and a note says so.
    """
    steps = steps_of(trace, named=named)
    alone = fit is not None and len({number in fit for number in range(len(steps))}) < 2
    fit = None if alone else fit
    work = device_work(trace)
    waits = find_waits(trace, work, steps, fit=fit)
    room, _ = queue_limits(trace, work)
    table = TaskTable()
    marks: dict[int, list[int]] = {}
    for step in steps:
        marks.setdefault(step.lane, []).extend((step.start, step.end))
    for event in trace.of_kind(Kind.ANNOTATION).tolist():  # so that the time within a range can be changed
        marks.setdefault(int(trace.lane[event]), []).extend((int(trace.start[event]), int(trace.end[event])))
    host = host_tasks(trace, work, waits, room, table, marks=marks)
    _device_tasks(trace, work, waits, host, table)
    bounds = tuple((host.bounds.get((s.lane, s.start), -1), host.bounds.get((s.lane, s.end), -1)) for s in steps)
    lanes = [Lane(trace.rank, f"thread {trace.lanes[lane][1]}", False) for lane in host.lanes]
    lanes += [Lane(trace.rank, f"stream {stream}", True) for _, stream in work.streams]
    event = np.array(table.event, dtype=np.int64)
    role = np.array(table.role, dtype=np.int8)
    talks = np.zeros(len(trace), dtype=bool)
    talks[work.event[work.communicates]] = True
    start = np.array(table.start, dtype=np.int64)
    launched = np.full(len(trace), -1, dtype=np.int64)
    launched[work.event] = np.maximum(work.launched, -1)
    return Recording(
        traces=(trace,),
        steps=(tuple(steps),),
        lanes=tuple(lanes),
        role=role,
        trace=np.zeros(len(table), dtype=np.int32),
        event=event,
        lane=np.array(table.lane, dtype=np.int32),
        start=start,
        duration=np.array(table.end, dtype=np.int64) - start,
        launched=np.where(role == TaskRole.DEVICE, launched[event], -1),
        edges=np.array(table.edges, dtype=np.int64).reshape(-1, 2),
        communicates=(role == TaskRole.DEVICE) & talks[event],
        marks=(bounds,),
        clocks=(0,),
        notes=(*trace.notes, *_notes(work, waits), *([_UNJUDGED] if alone else [])),
    )


def _notes(work: DeviceWork, waits: Waits) -> list[str]:
    notes = []
    orphans = int((work.call < 0).sum())
    if orphans:
        notes.append(f"{orphans} operations of the device were launched before the trace began")
    if waits.between and not waits.recorded:
        notes.append(f"{len(waits.between)} waits between streams are inferred: the profiler did not record them")
    return notes


@dataclass(frozen=True, slots=True)
class _Latencies:
    """The typical time from a launch to its operation, and from an operation to the next on its stream."""

    launch: int
    gap: int


class _Device:
    """Adds the operations of the device, in order of their start."""

    def __init__(self, work: DeviceWork, host: HostTasks, table: TaskTable, waits: Waits) -> None:
        self.work, self.host, self.table = work, host, table
        self.first_lane = len(host.lanes)
        self.sources: dict[int, list[int]] = {}
        for waiting, awaited in waits.between:
            self.sources.setdefault(waiting, []).append(awaited)
        self.done = np.full(len(work), -1, dtype=np.int64)
        self.launched = self._launch_ends()
        self.latency = self._typical()
        self.cuts: dict[int, list[int]] = {}
        self.held: dict[int, int] = {}

    def _launch_ends(self) -> Ints:
        end = np.array([*self.table.end, 0], dtype=np.int64)
        return np.where(self.host.launch >= 0, end[self.host.launch], 0)

    def _typical(self) -> _Latencies:
        work = self.work
        before = np.where(work.before >= 0, work.end[work.before], 0)
        known = self.host.launch >= 0
        from_launch = (work.start - self.launched)[known & (before < self.launched)]
        gaps = (work.start - before)[known & (work.before >= 0) & (before > self.launched)]
        return _Latencies(
            launch=max(0, int(np.median(from_launch))) if len(from_launch) else 0,
            gap=max(0, int(np.median(gaps))) if len(gaps) else 0,
        )

    def ready(self, op: int) -> int:
        """When everything known that an operation waits for had ended."""
        work = self.work
        times = [int(self.launched[op]) + self.latency.launch]
        if work.before[op] >= 0:
            times.append(int(work.end[work.before[op]]) + self.latency.gap)
        times += [int(work.end[source]) for source in self.sources.get(op, ())]
        return max(times)

    def find_held(self) -> None:
        """Find operations that were held until the last wave of a kernel on another stream.

        A kernel that fills the device lets no other start until its last blocks run. So an operation that is ready, and
        starts only when a kernel of another stream ends or is about to, was held by that.
        """
        work = self.work
        if len(work.streams) < 2:
            return
        for op in range(len(work)):
            start = int(work.start[op])
            ready = self.ready(op)
            if start - ready < _HELD_NS:
                continue
            best, distance = -1, 0
            for other in range(len(work.streams)):
                if other == work.stream[op]:
                    continue
                own = work.on_stream[other]
                at = int(np.searchsorted(work.start[own], start, side="left"))
                for candidate in own[max(0, at - 2) : at].tolist():
                    if work.communicates[candidate] or work.end[candidate] <= ready:
                        continue
                    off = abs(int(work.end[candidate]) - start)
                    took = int(work.end[candidate] - work.start[candidate])
                    near = off <= max(_NEAR_NS, _LAST_WAVE * took if work.end[candidate] > start else 0)
                    if near and (best < 0 or off < distance):
                        best, distance = candidate, off
            if best >= 0:
                self.held[op] = best
                if start < work.end[best]:
                    self.cuts.setdefault(best, []).append(start)

    def add(self, op: int, pieces: dict[tuple[int, int], int]) -> None:
        """Add one operation with its delays and edges."""
        work, table = self.work, self.table
        lane = self.first_lane + int(work.stream[op])
        event, start, end = int(work.event[op]), int(work.start[op]), int(work.end[op])
        sources: list[int] = []
        ready = 0
        launch = int(self.host.launch[op])
        if launch >= 0:
            sources.append(self._delay(event, launch, int(self.launched[op]), self.latency.launch, start))
            ready = max(ready, table.end[sources[-1]])
        if (before := int(work.before[op])) >= 0:
            sources.append(self._delay(event, int(self.done[before]), int(work.end[before]), self.latency.gap, start))
            ready = max(ready, table.end[sources[-1]])
        for source in self.sources.get(op, ()):
            if self.done[source] >= 0:
                sources.append(int(self.done[source]))
                ready = max(ready, int(work.end[source]))
        if op in self.held:
            holder = self.held[op]
            sources.append(pieces.get((holder, start), int(self.done[holder])))
            ready = max(ready, min(start, int(work.end[holder])))
        if start > ready:
            known = event if launch >= 0 else -1
            late = table.add(TaskRole.OPAQUE, event=known, lane=NOWHERE, start=ready, end=start)
            table.edges += [(late, source) for source in sources]
            sources = [late]
        begin = start
        first = True
        for cut in [*sorted(set(self.cuts.get(op, ()))), end]:
            if not first and cut <= begin:
                continue
            task = table.add(TaskRole.DEVICE, event=event, lane=lane, start=begin, end=cut)
            pieces[op, cut] = task
            if first:
                table.edges += [(task, source) for source in sources]
                first = False
            begin = cut
            self.done[op] = task

    def _delay(self, event: int, source: int, begin: int, typical: int, start: int) -> int:
        took = min(typical, start - begin)
        if took <= 0:
            return source
        task = self.table.add(TaskRole.LATENCY, event=event, lane=NOWHERE, start=begin, end=begin + took)
        self.table.edges.append((task, source))
        return task


def _device_tasks(trace: ProfilerTrace, work: DeviceWork, waits: Waits, host: HostTasks, table: TaskTable) -> None:
    device = _Device(work, host, table, waits)
    device.find_held()
    pieces: dict[tuple[int, int], int] = {}
    for op in range(len(work)):
        device.add(op, pieces)
    for task, op in host.awaits:
        if device.done[op] >= 0:
            table.edges.append((task, int(device.done[op])))
