"""What ran on a device: operations in order, who launched them, and how deep the queue between was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import NONE, Flags, Ints, ProfilerTrace
from traincast.traces.recording.calls import is_communication

QUEUE: Final = 1024
"""Launches that a device queues before the next one waits, where the trace does not show it."""
_DEEP: Final = 512
_LONG_NS: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """The kernels, copies and fills of a trace, as columns in order of start.

    ``call`` is the event of the launching call, or −1; ``launched`` the time it began (for an operation launched before
    the trace, a time before all others). ``stream`` numbers the streams of all devices from 0. ``before`` is the
    operation before it on its stream, or −1.
    """

    event: Ints
    start: Ints
    end: Ints
    call: Ints
    launched: Ints
    stream: Ints
    before: Ints
    communicates: Flags
    streams: tuple[tuple[int, int], ...]
    on_stream: tuple[Ints, ...]

    def __len__(self) -> int:
        return len(self.event)

    def launched_before(self, stream: int, time: int) -> int:
        """How many operations of a stream were launched before a time."""
        return int(np.searchsorted(self.launched[self.on_stream[stream]], time, side="left"))

    def ended_by(self, stream: int, time: int) -> int:
        """How many operations of a stream had ended by a time."""
        return int(np.searchsorted(self.end[self.on_stream[stream]], time, side="right"))


def device_work(trace: ProfilerTrace) -> DeviceWork:
    """Return the device's operations with their launches, found by correlation."""
    event = trace.on_device()
    calls = trace.of_kind(Kind.CALL)
    calls = calls[trace.correlation[calls] > NONE]
    order = np.argsort(trace.correlation[calls], kind="stable")
    numbers = trace.correlation[calls][order]
    at = np.searchsorted(numbers, trace.correlation[event])
    found = np.minimum(at, max(len(numbers) - 1, 0))
    known = np.zeros(len(event), dtype=bool)
    if len(numbers):
        known = (numbers[found] == trace.correlation[event]) & (trace.correlation[event] > 0)
    call = np.where(known, calls[order][found] if len(calls) else NONE, NONE)
    launched = np.where(known, trace.start[call], np.iinfo(np.int64).min)
    keys = list(zip(trace.device[event].tolist(), _streams(trace, event).tolist(), strict=True))
    streams = tuple(dict.fromkeys(keys))
    number = {key: i for i, key in enumerate(streams)}
    stream = np.array([number[key] for key in keys], dtype=np.int64)
    on_stream = tuple(np.flatnonzero(stream == i) for i in range(len(streams)))
    before = np.full(len(event), NONE, dtype=np.int64)
    launch_order = launched.copy()
    for own in on_stream:
        before[own[1:]] = own[:-1]
        launch_order[own] = np.maximum.accumulate(launched[own])
    talks = np.array([is_communication(name) for name in trace.names], dtype=bool)
    return DeviceWork(
        event=event,
        start=trace.start[event],
        end=trace.end[event],
        call=call,
        launched=launch_order,
        stream=stream,
        before=before,
        communicates=trace.named(talks)[event] & (trace.kind[event] == Kind.KERNEL),
        streams=streams,
        on_stream=on_stream,
    )


def _streams(trace: ProfilerTrace, event: Ints) -> Ints:
    """Return the stream of each operation; where it is not stated, that is the lane it was drawn on."""
    return np.where(trace.stream[event] > NONE, trace.stream[event], -2 - trace.lane[event].astype(np.int64))


def queue_limits(trace: ProfilerTrace, work: DeviceWork) -> tuple[Ints, int]:
    """Return, for each operation, the operation whose start makes room for its launch (or −1), and the queue's depth.

    A launch waits while the device's queue is full. Where launches take long while hundreds are outstanding, the number
    outstanding when they return is the depth.
    """
    known = np.flatnonzero(work.call >= 0)
    order = known[np.argsort(work.launched[known], kind="stable")]
    begun = np.sort(work.start[known])
    took = trace.duration[work.call[order]]
    long = took > max(_LONG_NS, 5 * float(np.median(took)) if len(took) else 0)
    outstanding = np.arange(len(order)) - np.searchsorted(begun, trace.end[work.call[order]])
    full = long & (outstanding >= _DEEP)
    depth = int(np.median(outstanding[full])) if full.sum() >= 3 else QUEUE
    room = np.full(len(work), NONE, dtype=np.int64)
    room[order[depth + 1 :]] = order[: max(len(order) - depth - 1, 0)]
    return room, depth
