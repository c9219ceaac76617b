"""The host's part of a recording: each thread as a chain of calls and of the time between them.

A thread that calls ``backward`` sleeps until the thread of the engine is done, and that thread sleeps until it is
called. Neither wait is recorded. Both show as gaps: one thread pauses, another works within the pause, and when that
one pauses the first goes on. Threads that only ask (``cudaEventQuery`` in a watchdog) take no part.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import Ints, ProfilerTrace
from traincast.traces.recording.calls import COPIES, HOLDING_COPY, matching, may_block
from traincast.traces.recording.device import DeviceWork
from traincast.traces.recording.recording import TaskRole, TaskTable
from traincast.traces.recording.waits import Waits

_TOGETHER: Final = 0.1
"""Share of a thread's work beside another's from which the two are independent."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """A thread that slept from ``asleep`` on went on because another, ``waker``, paused at ``woken``."""

    lane: int
    asleep: int
    woken: int
    waker: int


@dataclass(frozen=True, slots=True)
class Activity:
    """When a thread works: begin and end of each stretch without a pause."""

    lane: int
    start: Ints
    end: Ints


def activities(trace: ProfilerTrace, launching: Ints) -> list[Activity]:
    """Return the activity of each thread that runs operators, or makes one of the calls ``launching``."""
    events = trace.of_kind(Kind.OPERATOR, Kind.CALL)
    lanes = set(np.unique(trace.lane[trace.of_kind(Kind.OPERATOR)]).tolist()) | set(
        np.unique(trace.lane[launching]).tolist()
    )
    found = []
    for lane in sorted(lanes):
        own = events[trace.lane[events] == lane]
        start, end = trace.start[own], np.maximum.accumulate(trace.end[own])
        opens = np.append(True, start[1:] > end[:-1])
        last = np.append(np.flatnonzero(opens)[1:] - 1, len(own) - 1)
        found.append(Activity(int(lane), start[opens], end[last]))
    return found


def handoffs(threads: list[Activity]) -> list[Handoff]:
    """Return what every thread waited for in its pauses, where that was another thread.

    In a pause, the last stretch of work of another thread that ended there is what the thread waited for, if that one
    pauses itself when the first goes on. Two threads that often work at the same time do not wait for one another.
    """
    found: list[Handoff] = []
    for thread in threads:
        others = [other for other in threads if other.lane != thread.lane and not _independent(thread, other)]
        pauses = zip(
            np.append(-1, thread.end[:-1]).tolist(), thread.start.tolist(), strict=True
        )  # before its first work, a thread sleeps
        for asleep, awake in pauses:
            best: Handoff | None = None
            for other in others:
                at = int(np.searchsorted(other.end, awake, side="right")) - 1
                if at < 0 or other.end[at] <= asleep:
                    continue
                busy = at + 1 < len(other.start) and other.start[at + 1] < awake
                if not busy and (best is None or other.end[at] > best.woken):
                    best = Handoff(thread.lane, asleep, int(other.end[at]), other.lane)
            if best is not None:
                found.append(best)
    return found


def _independent(one: Activity, other: Activity) -> bool:
    """Whether two threads work at the same time for more than a small share of the shorter one's work."""
    times = np.unique(np.concatenate([one.start, one.end, other.start, other.end]))
    if len(times) < 2:
        return False
    middle = (times[1:] + times[:-1]) / 2
    both = _covers(one, middle) & _covers(other, middle)
    together = float(np.diff(times)[both].sum())
    least = min(float((t.end - t.start).sum()) for t in (one, other))
    return together > _TOGETHER * max(least, 1.0)


def _covers(thread: Activity, times: np.ndarray) -> np.ndarray:
    at = np.searchsorted(thread.start, times, side="right") - 1
    covered: np.ndarray = (at >= 0) & (times < thread.end[np.maximum(at, 0)])
    return covered


_SLACK_NS: Final = 2_000


@dataclass(slots=True, kw_only=True)
class HostTasks:
    """What others need of the host's tasks.

    ``launch`` is the task after which each operation may start, −1 where none was recorded. ``awaits`` are pairs
    (task, operation that it waits for). ``lanes`` maps lanes of the trace to lanes of the table. ``bounds`` maps a
    time on a lane at which a chain was cut to the task that ends there.
    """

    launch: Ints
    awaits: list[tuple[int, int]] = field(default_factory=list)
    lanes: dict[int, int] = field(default_factory=dict)
    bounds: dict[tuple[int, int], int] = field(default_factory=dict)


class _Chain:
    """One thread, cut into tasks that follow one another."""

    def __init__(self, table: TaskTable, lane: int, lane_of_trace: int, out: HostTasks) -> None:
        self._table, self.lane, self._source, self._out = table, lane, lane_of_trace, out
        self.cursor = 0
        self._cuts: list[int] = []
        self._sleeps: list[Handoff] = []
        self.wakes: list[tuple[int, Handoff]] = []
        self.last = -1

    def prepare(self, start: int, cuts: list[int], sleeps: list[Handoff]) -> None:
        """Begin the chain at ``start``; it must be cut at ``cuts``, and pauses in ``sleeps``."""
        self.cursor = start
        self._cuts = sorted({c for c in cuts if c > start}, reverse=True)
        self._sleeps = sorted(sleeps, key=lambda h: h.woken, reverse=True)

    def piece(self, role: TaskRole, end: int, event: int) -> int:
        """Add the time from the cursor to ``end``; cut it where asked, and leave out pauses."""
        while self.cursor < end or (self._sleeps and self._sleeps[-1].woken <= end):
            stop, sleep = end, None
            if self._sleeps and self._sleeps[-1].woken <= end:
                sleep = self._sleeps[-1]
                stop = min(max(sleep.asleep, self.cursor), end)
            while self._cuts and self._cuts[-1] <= self.cursor:
                self._bound(self._cuts.pop())
            if self._cuts and self._cuts[-1] < stop:
                stop, sleep = self._cuts[-1], None
            if stop > self.cursor:
                self.last = self._table.add(role, event=event, lane=self.lane, start=self.cursor, end=stop)
                self.cursor = stop
                self._bound(stop)
            if sleep is not None:
                self._sleeps.pop()
                self.cursor = max(self.cursor, sleep.woken)
                self.wakes.append((self.next_task, sleep))  # the next task of this chain is the one woken
                if self.cursor >= end:
                    break
        return self.last

    @property
    def next_task(self) -> int:
        """The number of the task that is added next."""
        return len(self._table)

    def empty(self, role: TaskRole, event: int) -> int:
        """Add a task of no duration: others wait for it, or it waits for others."""
        self.last = self._table.add(role, event=event, lane=self.lane, start=self.cursor, end=self.cursor)
        return self.last

    def jump(self, time: int) -> None:
        """Go on at a later time: what lies between is a wait."""
        self.cursor = max(self.cursor, time)

    def _bound(self, time: int) -> None:
        self._out.bounds[self._source, time] = self.last


def host_tasks(
    trace: ProfilerTrace, work: DeviceWork, waits: Waits, room: Ints, table: TaskTable, *, marks: dict[int, list[int]]
) -> HostTasks:
    """Add the tasks of all threads to ``table``; ``marks`` are times at which a lane must be cut.

    ``room`` is the operation that must have started before each operation can be launched, or −1.
    """
    out = HostTasks(launch=np.full(len(work), -1, dtype=np.int64))
    threads = activities(trace, work.call[work.call >= 0])
    given = handoffs(threads)
    reader = _Calls(trace, work, waits, room, out)
    chains = []
    for thread in threads:
        lane = out.lanes[thread.lane] = len(out.lanes)
        chain = _Chain(table, lane, thread.lane, out)
        sleeps = [h for h in given if h.lane == thread.lane]
        begins = int(thread.start[0]) if sleeps and sleeps[0].asleep < 0 else 0
        marked = marks.get(thread.lane, [])
        cuts = [h.woken for h in given if h.waker == thread.lane] + marked
        chain.prepare(0 if not begins else sleeps[0].woken, cuts, [h for h in sleeps if h.asleep >= 0])
        if begins:
            chain.wakes.append((len(table), sleeps[0]))
        for call in reader.anchors[trace.lane[reader.anchors] == thread.lane].tolist():
            reader.read(chain, call)
        chain.piece(TaskRole.HOST, max([int(thread.end[-1]), *marked]), -1)
        chains.append(chain)
    for chain in chains:
        for task, handoff in chain.wakes:
            source = out.bounds.get((handoff.waker, handoff.woken), -1)
            if source >= 0 and task < len(table) and table.lane[task] == chain.lane:
                table.edges.append((task, source))
    return out


class _Calls:
    """Turns calls into tasks of a chain."""

    def __init__(self, trace: ProfilerTrace, work: DeviceWork, waits: Waits, room: Ints, out: HostTasks) -> None:
        self._trace, self._work, self._waits, self._room, self._out = trace, work, waits, room, out
        self._ops_of: dict[int, list[int]] = defaultdict(list)
        for op, call in enumerate(work.call.tolist()):
            if call >= 0:
                self._ops_of[call].append(op)
        self.anchors = np.array(sorted(set(self._ops_of) | set(waits.calls)), dtype=np.int64)
        self._copies = matching(trace, COPIES)
        self._holding = matching(trace, HOLDING_COPY)
        self._lead = self._typical_lead()

    def _typical_lead(self) -> int:
        """The median time from the begin of a launch to its kernel, on streams that were idle."""
        work, trace = self._work, self._trace
        known = np.flatnonzero(work.call >= 0)
        before = np.where(work.before[known] >= 0, work.end[work.before[known]], 0)
        idle = known[before < trace.start[work.call[known]]]
        return int(np.median(work.start[idle] - trace.start[work.call[idle]])) if len(idle) else 10_000

    def read(self, chain: _Chain, call: int) -> None:
        """Add the time before a call and the call itself."""
        begin = int(self._trace.start[call])
        end = begin + int(self._trace.duration[call])
        ops = self._ops_of.get(call, [])
        if begin < chain.cursor:  # a call within a call
            self._out.launch[ops] = chain.last
            return
        chain.piece(TaskRole.HOST, begin, -1)
        if ops:
            self._launch(chain, call, ops, end)
        else:
            self._after(chain, call, self._waits.calls[call], end)

    def _after(self, chain: _Chain, call: int, awaited: tuple[int, ...], end: int) -> None:
        """Add the part of a call that comes after its wait: it begins when all awaited operations have ended."""
        done = max((int(self._work.end[op]) for op in awaited), default=chain.cursor)
        chain.jump(min(done, end))
        first = chain.next_task
        if chain.cursor >= end:
            chain.empty(TaskRole.CALL, call)
        else:
            chain.piece(TaskRole.CALL, end, call)
        self._out.awaits += [(first, op) for op in awaited]

    def _launch(self, chain: _Chain, call: int, ops: list[int], end: int) -> None:
        """Add a call that launches: the operation may start while the call still runs, and a copy may hold the call."""
        work = self._work
        self._queue(chain, call, ops[0], end)
        begin = chain.cursor
        started = min(int(work.start[op]) for op in ops)
        before = max((int(work.end[work.before[op]]) for op in ops if work.before[op] >= 0), default=-1)
        lead = max(0, started - begin)
        if before > begin:  # it started when the stream was free, not when the call had launched it
            lead = min(lead, self._lead)
        launched = min(begin + lead, end)
        self._out.launch[ops] = chain.piece(TaskRole.CALL, launched, call) if lead else chain.empty(TaskRole.CALL, call)
        done = max(int(work.end[op]) for op in ops)
        copied = self._trace.name_of(int(work.event[ops[-1]]))
        holds = self._holding[call] or (self._copies[call] and may_block(copied))
        if holds and done <= end + _SLACK_NS:
            self._after(chain, call, (ops[-1],), end)
        else:
            chain.piece(TaskRole.CALL, end, call)

    def _queue(self, chain: _Chain, call: int, op: int, end: int) -> None:
        """Let a launch wait for room in the device's queue: for the operation before the one whose start makes room."""
        room = int(self._room[op])
        awaited = int(self._work.before[room]) if room >= 0 else -1
        if awaited < 0 or self._work.end[awaited] > end:
            return
        self._out.awaits.append((chain.next_task, awaited))
        if self._work.end[awaited] > chain.cursor:
            chain.jump(int(self._work.end[awaited]))
        chain.empty(TaskRole.CALL, call)
