"""What the tasks of a recording are called, and which phase of training they belong to."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.strategy.plan import Category
from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import Flags, Ints, ProfilerTrace
from traincast.traces.recording.recording import Recording, TaskRole

BACKWARD: Final = re.compile(r"autograd::engine::|Backward\d*$|## backward|backward_")
OPTIMIZER: Final = re.compile(r"^Optimizer\.step|^Optimizer\.zero_grad|## optimizer|^aten::_?fused_(adam|sgd|adagrad)")
_OWN: Final = {TaskRole.HOST: "host", TaskRole.LATENCY: "latency", TaskRole.OPAQUE: "unexplained delay"}
_GIVEN: Final = "begin of a rank's record, or of work launched before it"


def labels_of(recording: Recording) -> tuple[tuple[str, ...], Ints]:
    """Return the distinct labels, and the number of each task's label: the event's name, or what the task is."""
    names: dict[str, int] = {text: number for number, text in enumerate((*_OWN.values(), _GIVEN))}
    label = np.zeros(len(recording), dtype=np.int64)
    for role, text in _OWN.items():
        label[recording.role == role] = names[text]
    label[(recording.role == TaskRole.OPAQUE) & (recording.event < 0)] = names[_GIVEN]
    named = (recording.role == TaskRole.DEVICE) | (recording.role == TaskRole.CALL)
    for number, trace in enumerate(recording.traces):
        mine = np.flatnonzero(named & (recording.trace == number) & (recording.event >= 0))
        distinct, which = np.unique(trace.name[recording.event[mine]], return_inverse=True)
        numbers = np.array([names.setdefault(trace.names[i], len(names)) for i in distinct.tolist()], dtype=np.int64)
        if len(mine):
            label[mine] = numbers[which.reshape(-1)]
    return tuple(names), label


def phases_of(recording: Recording) -> npt.NDArray[np.int8]:
    """Return the phase of each task of the device: forward, backward or optimizer, by where it was launched."""
    phase = np.full(len(recording), int(Category.FORWARD), dtype=np.int8)
    for number, trace in enumerate(recording.traces):
        mine = np.flatnonzero((recording.role == TaskRole.DEVICE) & (recording.trace == number))
        if not len(mine):
            continue
        for pattern, kind in ((BACKWARD, Category.BACKWARD), (OPTIMIZER, Category.OPTIMIZER)):
            inside = launched_within(trace, recording.event[mine], pattern)
            phase[mine[inside]] = int(kind)
    return phase


def launched_within(trace: ProfilerTrace, events: Ints, pattern: re.Pattern[str]) -> Flags:
    """Return whether each event of the device was launched within an operator or range whose name matches.

    The launching call and the range must be on the same thread.
    """
    matches = trace.named(np.array([pattern.search(name) is not None for name in trace.names], dtype=bool))
    ranges = trace.of_kind(Kind.OPERATOR, Kind.ANNOTATION)
    ranges = ranges[matches[ranges]]
    calls = trace.of_kind(Kind.CALL)
    call_of = dict(zip(trace.correlation[calls].tolist(), calls.tolist(), strict=True))
    call = np.array([call_of.get(c, -1) for c in trace.correlation[events].tolist()], dtype=np.int64)
    found = np.zeros(len(events), dtype=bool)
    for lane in np.unique(trace.lane[ranges]).tolist():
        own = ranges[trace.lane[ranges] == lane]
        start, end = trace.start[own], np.maximum.accumulate(trace.end[own])
        here = (call >= 0) & (trace.lane[call] == lane)
        at = np.searchsorted(start, trace.start[call], side="right") - 1
        found |= here & (at >= 0) & (trace.start[call] < end[np.maximum(at, 0)])
    return found
