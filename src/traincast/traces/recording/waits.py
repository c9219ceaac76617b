"""Waits for the device: recorded where the profiler did so, else inferred.

A call of ``cudaStreamWaitEvent`` makes a stream wait for an operation of another, but a trace seldom says which. It
must be launched before the call, and in every step it must have ended when the waiting one starts. The latest
operation for which this is never violated is taken. So more steps make the answer surer; :func:`infer` can use some
of the steps only, so that the others can judge it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import NONE, Ints, ProfilerTrace
from traincast.traces.recording.calls import COPIES, DEVICE_SYNC, EVENT_SYNC, STREAM_SYNC, STREAM_WAIT, matching
from traincast.traces.recording.device import DeviceWork
from traincast.traces.recording.steps import TraceStep

_NOTICEABLE_NS: Final = 20_000
_SLACK_NS: Final = 2_000
"""Clocks of host and device agree to about this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Who waits for what: pairs of operations on the device, and for each call the operations that it waits for."""

    between: tuple[tuple[int, int], ...]
    calls: dict[int, tuple[int, ...]]
    recorded: bool


def find_waits(
    trace: ProfilerTrace, work: DeviceWork, steps: list[TraceStep], *, fit: Collection[int] | None = None
) -> Waits:
    """Return the waits of a trace; ``fit`` are the steps from which those between streams are inferred (all)."""
    facts = _recorded(trace)
    recorded = any(trace.syncs[e].record > NONE for e in facts.values())
    between = _stated(trace, work, facts) if recorded else infer(trace, work, steps, fit=fit)
    return Waits(between=tuple(between), calls=_call_waits(trace, work, facts), recorded=recorded)


def _recorded(trace: ProfilerTrace) -> dict[int, int]:
    """Return the recorded wait of each correlation."""
    return {int(trace.correlation[e]): e for e in trace.syncs}


def _stated(trace: ProfilerTrace, work: DeviceWork, facts: dict[int, int]) -> list[tuple[int, int]]:
    """Return the waits between streams that the profiler recorded."""
    calls = trace.of_kind(Kind.CALL)
    began = dict(zip(trace.correlation[calls].tolist(), trace.start[calls].tolist(), strict=True))
    found = []
    for correlation, event in facts.items():
        fact = trace.syncs[event]
        if fact.record == NONE or correlation not in began or fact.record not in began:
            continue
        for target, (device, stream) in enumerate(work.streams):
            if stream != int(trace.stream[event]):
                continue
            source = next((i for i, key in enumerate(work.streams) if key == (device, fact.stream)), None)
            if source is None:
                continue
            first = work.launched_before(target, began[correlation])
            last = work.launched_before(source, began[fact.record]) - 1
            if last >= 0 and first < len(work.on_stream[target]):
                found.append((int(work.on_stream[target][first]), int(work.on_stream[source][last])))
    return found


def infer(
    trace: ProfilerTrace, work: DeviceWork, steps: list[TraceStep], *, fit: Collection[int] | None = None
) -> list[tuple[int, int]]:
    """Return pairs (waiting operation, awaited operation) on different streams; see the module's text."""
    waiting = _candidates(trace, work)
    starts = np.array([step.start for step in steps], dtype=np.int64)
    begun = work.launched[waiting]
    of_step = np.searchsorted(starts, begun, side="right") - 1
    keys, counts = [], defaultdict[tuple[int, int, int], int](int)
    for op, step in zip(waiting.tolist(), of_step.tolist(), strict=True):
        name = int(trace.name[work.event[op]])
        counts[step, int(work.stream[op]), name] += 1
        keys.append((int(work.stream[op]), name, counts[step, int(work.stream[op]), name]))
    lags: dict[tuple[tuple[int, int, int], int], int] = {}
    for op, step, key in zip(waiting.tolist(), of_step.tolist(), keys, strict=True):
        if fit is not None and step not in fit:
            continue
        for other in range(len(work.streams)):
            lag = work.launched_before(other, int(work.launched[op])) - work.ended_by(other, int(work.start[op]))
            lags[key, other] = max(lags.get((key, other), 0), lag)
    found = []
    for op, key in zip(waiting.tolist(), keys, strict=True):
        for other in range(len(work.streams)):
            if other == work.stream[op] or (key, other) not in lags:
                continue
            last = work.launched_before(other, int(work.launched[op])) - 1 - lags[key, other]
            if last >= 0:
                found.append((op, int(work.on_stream[other][last])))
    return found


def _candidates(trace: ProfilerTrace, work: DeviceWork) -> Ints:
    """Return the operations that may wait: a wait was asked for since the launch before theirs on their stream."""
    asks = trace.of_kind(Kind.CALL)
    asks = asks[matching(trace, STREAM_WAIT)[asks]]
    found = []
    for own in work.on_stream:
        launched = work.launched[own]
        since = np.append(np.iinfo(np.int64).min, launched[:-1])
        for op, first, last in zip(own.tolist(), since.tolist(), launched.tolist(), strict=True):
            if work.call[op] < 0:
                continue
            lane = trace.lane[work.call[op]]
            between = slice(*np.searchsorted(trace.start[asks], (first, last)))
            if (trace.lane[asks[between]] == lane).any():
                found.append(op)
    found.sort()
    return np.array(found, dtype=np.int64)


def _call_waits(trace: ProfilerTrace, work: DeviceWork, facts: dict[int, int]) -> dict[int, tuple[int, ...]]:
    """Return the operations that each synchronizing call waits for."""
    calls = trace.of_kind(Kind.CALL)
    whole = matching(trace, DEVICE_SYNC)
    stream = matching(trace, STREAM_SYNC)
    event = matching(trace, EVENT_SYNC)
    copies = matching(trace, COPIES)
    ops_of = dict(zip(work.call.tolist(), range(len(work)), strict=True))
    last_copy: dict[int, int] = {}
    found: dict[int, tuple[int, ...]] = {}
    for call in calls.tolist():
        lane = int(trace.lane[call])
        if copies[call] and call in ops_of:
            last_copy[lane] = int(work.stream[ops_of[call]])
            continue
        if whole[call]:
            found[call] = _last(trace, work, call, range(len(work.streams)))
        elif stream[call]:
            fact = facts.get(int(trace.correlation[call]))
            if fact is not None:
                chosen = [i for i, key in enumerate(work.streams) if key[1] == int(trace.stream[fact])]
                found[call] = _last(trace, work, call, chosen)
            elif lane in last_copy:
                found[call] = _last(trace, work, call, [last_copy[lane]])
            else:
                found[call] = _latest(work, _last(trace, work, call, range(len(work.streams))))
        elif event[call] and trace.duration[call] > _NOTICEABLE_NS:
            ends = _latest(work, _last(trace, work, call, range(len(work.streams))))
            found[call] = tuple(op for op in ends if work.end[op] > trace.start[call])
        if not copies[call] and stream[call]:
            last_copy.pop(lane, None)
    return found


def _last(trace: ProfilerTrace, work: DeviceWork, call: int, streams: Collection[int]) -> tuple[int, ...]:
    """Return the last operation of each stream that was launched before a call, and had ended when it returned."""
    begun, done = int(trace.start[call]), int(trace.start[call] + trace.duration[call]) + _SLACK_NS
    counts = ((s, min(work.launched_before(s, begun), work.ended_by(s, done))) for s in streams)
    return tuple(int(work.on_stream[s][n - 1]) for s, n in counts if n)


def _latest(work: DeviceWork, ops: tuple[int, ...]) -> tuple[int, ...]:
    return (max(ops, key=lambda op: int(work.end[op])),) if ops else ()
