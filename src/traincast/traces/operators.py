"""Which operator launched what, and the time of each operator on the device."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np

from traincast.traces.device import DeviceWork
from traincast.traces.kineto import Kind
from traincast.traces.trace import NONE, Ints, ProfilerTrace

_WRAPPER: Final = re.compile(r"^autograd::engine::evaluate_function: |^torch::autograd::")
_UNKNOWN: Final = "launched outside of operators"


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
    """The device time of operators of one name: seconds, launches and share of all time on the device."""

    name: str
    seconds: float
    kernels: int
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
    wraps = trace.named(np.array([_WRAPPER.match(name) is not None for name in trace.names], dtype=bool))
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


def operator_times(trace: ProfilerTrace, work: DeviceWork, *, whole: bool = False) -> list[OperatorTime]:
    """Return the device time by innermost operator, or by outermost if ``whole``, the largest first."""
    found = launchers(trace, work)
    which = found.outer if whole else found.inner
    seconds: dict[str, float] = defaultdict(float)
    kernels: dict[str, int] = defaultdict(int)
    for op, event in enumerate(which.tolist()):
        name = trace.name_of(event) if event >= 0 else _name_alone(trace, work, op)
        seconds[name] += float(work.end[op] - work.start[op]) / 1e9
        kernels[name] += 1
    total = sum(seconds.values()) or 1.0
    return [
        OperatorTime(name=name, seconds=took, kernels=kernels[name], share=took / total)
        for name, took in sorted(seconds.items(), key=lambda item: -item[1])
    ]


def _name_alone(trace: ProfilerTrace, work: DeviceWork, op: int) -> str:
    kind = Kind(int(trace.kind[work.event[op]]))
    return _UNKNOWN if kind is Kind.KERNEL else trace.name_of(int(work.event[op]))
