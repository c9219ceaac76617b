"""Threads of the host: when each works, and which hands over to which.

A thread that calls ``backward`` sleeps until the thread of the engine is done, and that thread sleeps until it is
called. Neither wait is recorded. Both show as gaps: one thread pauses, another works within the pause, and when that
one pauses the first goes on. Threads that only ask (``cudaEventQuery`` in a watchdog) take no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import Ints, ProfilerTrace

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
