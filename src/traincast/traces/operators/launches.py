"""Which operator launched what, and the time of each operator on the device."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import NONE, Ints, ProfilerTrace
from traincast.traces.recording.device import DeviceWork
from traincast.traces.recording.pace import launched_in
from traincast.traces.recording.steps import TraceStep

_WRAPPER: Final = re.compile(r"^autograd::engine::evaluate_function: |^torch::autograd::")
_UNKNOWN: Final = "launched outside of operators"


def is_wrapper(name: str) -> bool:
    """Whether a range is autograd's own, around the operators that it runs."""
    return _WRAPPER.match(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launchers:
    """For each operation of the device, the events of the innermost and of the outermost operator around its launch.

    Both are −1 where none is known. The engine's own wrappers (``autograd::engine::evaluate_function``) do not count.
    ``parent`` has for every event of the trace the operator around it, or −1.
    """

    inner: Ints
    outer: Ints
    parent: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """The time per step of operators of one name on the device: seconds, kernels, and the share of all such time.

    On a processor: the time of the operators themselves without those within them, and how often they ran.
    """

    name: str
    seconds: float
    kernels: float
    share: float


def launchers(trace: ProfilerTrace, work: DeviceWork) -> Launchers:
    """Find the operators around the launch of every operation, on the same thread."""
    inner = np.full(len(work), NONE, dtype=np.int64)
    outer = np.full(len(work), NONE, dtype=np.int64)
    known = np.flatnonzero(work.call >= 0)
    by_call: dict[int, list[int]] = defaultdict(list)
    for op in known.tolist():
        by_call[int(work.call[op])].append(op)
    events = trace.of_kind(Kind.OPERATOR, Kind.CALL)
    wraps = trace.named(np.array([is_wrapper(name) for name in trace.names], dtype=bool))
    kind, lane = trace.kind, trace.lane
    starts, ends = trace.start.tolist(), trace.end.tolist()
    stacks: dict[int, list[int]] = defaultdict(list)
    parent = np.full(len(trace), NONE, dtype=np.int64)
    for event in events.tolist():
        stack = stacks[int(lane[event])]
        while stack and ends[stack[-1]] <= starts[event]:
            stack.pop()
        if kind[event] == Kind.OPERATOR:
            if not wraps[event]:
                parent[event] = stack[-1] if stack else NONE
                stack.append(event)
        elif event in by_call and stack:
            inner[by_call[event]] = stack[-1]
            outer[by_call[event]] = stack[0]
    return Launchers(inner=inner, outer=outer, parent=parent)


def operator_times(
    trace: ProfilerTrace, work: DeviceWork, steps: Sequence[TraceStep], *, whole: bool = False
) -> list[OperatorTime]:
    """Return the device time per step by innermost operator, or by outermost if ``whole``, the largest first."""
    found = launchers(trace, work)
    which = found.outer if whole else found.inner
    seconds: dict[str, float] = defaultdict(float)
    kernels: dict[str, int] = defaultdict(int)
    for op in np.flatnonzero(launched_in(work, steps)).tolist():
        event = int(which[op])
        name = trace.name_of(event) if event >= 0 else _name_alone(trace, work, op)
        seconds[name] += float(work.end[op] - work.start[op]) / 1e9
        kernels[name] += 1
    return ranked(seconds, kernels, len(steps))


def ranked(seconds: Mapping[str, float], kernels: Mapping[str, int], num_steps: int) -> list[OperatorTime]:
    """Return times per step by name, the largest first, from those of all steps."""
    total = sum(seconds.values()) or 1.0
    return [
        OperatorTime(name=name, seconds=took / num_steps, kernels=kernels[name] / num_steps, share=took / total)
        for name, took in sorted(seconds.items(), key=lambda item: -item[1])
    ]


def _name_alone(trace: ProfilerTrace, work: DeviceWork, op: int) -> str:
    kind = Kind(int(trace.kind[work.event[op]]))
    return _UNKNOWN if kind is Kind.KERNEL else trace.name_of(int(work.event[op]))
