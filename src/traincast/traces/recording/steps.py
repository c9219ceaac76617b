"""The steps of a trace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from traincast.errors import RequestError
from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import ProfilerTrace

_STEP: Final = re.compile(r"^ProfilerStep#(\d+)$")
_LOADER: Final = re.compile(r"^enumerate\(DataLoader\)#.*__next__")


@dataclass(frozen=True, slots=True)
class TraceStep:
    """A step on the host: its name, and when it begins and ends, in nanoseconds from the start of the trace.

    ``whole``: it is the whole trace, which shows no steps.
    """

    name: str
    start: int
    end: int
    lane: int
    whole: bool = False

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end - self.start) / 1e9


def steps_of(trace: ProfilerTrace, *, named: str | None = None) -> list[TraceStep]:
    """Return the steps of a trace, in order of time.

    These are the ranges ``named``, if given; else the profiler's own steps; else the time from one batch of the data
    loader to the next; else the whole trace as one step. A step of no work (the profiler's last, when it stops) is left
    out.
    """
    events = trace.of_kind(Kind.ANNOTATION)
    if named is not None:
        found = [_step(trace, e) for e in events.tolist() if trace.name_of(e) == named]
        if not found:
            known = sorted({trace.name_of(e) for e in events.tolist()})[:8]
            raise RequestError(
                f"trace {trace.path} has no range named {named!r}; known are {', '.join(known) or 'none'}"
            )
        return found
    steps = [_step(trace, e) for e in events.tolist() if _STEP.match(trace.name_of(e))]
    device_start = trace.start[trace.of_kind(Kind.CALL, Kind.OPERATOR)]
    steps = [s for s in steps if ((device_start >= s.start) & (device_start < s.end)).any()]
    if steps:
        longest = max(s.end - s.start for s in steps)
        return [s for s in steps if s.end - s.start > 0.02 * longest]
    batches = [e for e in events.tolist() if _LOADER.match(trace.name_of(e))]
    if len(batches) > 2:
        starts = [int(trace.start[e]) for e in batches]
        lane = int(trace.lane[batches[0]])
        return [TraceStep(f"batch {i}", a, b, lane) for i, (a, b) in enumerate(pairwise(starts))]
    host = trace.of_kind(Kind.OPERATOR, Kind.CALL, Kind.ANNOTATION)
    lane = int(np.bincount(trace.lane[host]).argmax()) if len(host) else int(trace.lane[0])
    return [TraceStep("whole trace", 0, int(trace.end.max()), lane, whole=True)]


def _step(trace: ProfilerTrace, event: int) -> TraceStep:
    start = int(trace.start[event])
    return TraceStep(trace.name_of(event), start, start + int(trace.duration[event]), int(trace.lane[event]))
