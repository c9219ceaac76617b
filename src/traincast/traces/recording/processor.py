"""Operators that a processor ran itself: the trace has no kernels, and an operator's event is its work.

The host and the device are one core. What autograd, Python and the allocator take between two operators belongs to the
step, so an operator takes the time until the next one starts, as in ``traincast profile events``; what lies after its
own event does not grow with the batch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from traincast.graph.operator import Operator
from traincast.graph.optimizers import optimizer_of_class
from traincast.graph.vocabulary import FREE, Phase, kind_of
from traincast.traces.breakdown import TraceBreakdown, covered
from traincast.traces.files.kineto import DEVICE_KINDS, Kind
from traincast.traces.files.trace import Flags, Ints, ProfilerTrace
from traincast.traces.operators.known import host_operator, numel_of
from traincast.traces.operators.launches import OperatorTime, is_wrapper, ranked
from traincast.traces.recording.calls import is_communication
from traincast.traces.recording.labels import BACKWARD, OPTIMIZER
from traincast.traces.recording.pace import StepWindow
from traincast.traces.recording.steps import TraceStep

_COMPOSED: Final = frozenset(
    """
    linear matmul contiguous max_pool2d cross_entropy_loss one_hot einsum relu6 silu_ stack argsort softmax log_softmax
    norm square repeat_interleave
    """.split()
)
"""Operators that consist of others, which a captured model has instead."""
_UPDATE: Final = re.compile(r"^Optimizer\.step#(\w+)\.step")
PASSED_ON: Final = "torch::autograd::AccumulateGrad"
_RECORDING_NS: Final = 2_000
"""What the profiler takes for one event with shapes: 1.3 to 4.3 µs on one core of a server, PyTorch 2.13."""
_SAVED: Final = "aten::clone"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRun:
    """One run of an operator: its seconds until the next operator, and those of them after its own event.

    What the profiler took to record events is left out.
    """

    operator: Operator
    seconds: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRun:
    """One update of all parameters: the optimizer, its seconds, and the bytes of the parameters (0: not known)."""

    name: str
    seconds: float
    nbytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRuns:
    """What a processor ran in the steps of a trace; ``total`` are the seconds of the steps."""

    operators: list[HostRun]
    updates: list[UpdateRun]
    total: float


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where an operator (or an update, or the end of a step: ``None``) begins; its own event's end."""

    start: int
    end: int
    operator: Operator | None
    update: str = ""


def on_processor(trace: ProfilerTrace) -> bool:
    """Whether a trace has operators, but neither work of a device nor calls that launch any."""
    return not len(trace.of_kind(*DEVICE_KINDS, Kind.CALL)) and bool(len(trace.of_kind(Kind.OPERATOR)))


@dataclass(frozen=True, slots=True)
class OwnTime:
    """One run of an operator on a processor: its event, the outermost operator around it, and its own nanoseconds.

    Time of operators within it is theirs. ``phase`` is ``None`` if it communicates.
    """

    event: int
    outer: int
    ns: int
    phase: Phase | None


def own_times(trace: ProfilerTrace, steps: Sequence[TraceStep]) -> list[OwnTime]:
    """Return all runs of operators that begin in the steps; autograd's and the engine's own ranges are none."""
    counts = trace.named(np.array([_is_operator(name) for name in trace.names], dtype=bool))
    talks = trace.named(np.array([is_communication(name) for name in trace.names], dtype=bool))
    found: list[OwnTime] = []
    for lane in _lanes(trace):
        events = np.flatnonzero((trace.lane == lane) & np.isin(trace.kind, (Kind.OPERATOR, Kind.ANNOTATION)))
        backward, update = (_inside(trace, events, pattern) for pattern in (BACKWARD, OPTIMIZER))
        stack: list[tuple[int, int]] = []  # its place in ``own``, and its end
        own: list[list[int]] = []
        for event, behind, updates in zip(events.tolist(), backward.tolist(), update.tolist(), strict=True):
            if trace.kind[event] != Kind.OPERATOR or not counts[event]:
                continue
            start, took = int(trace.start[event]), int(trace.duration[event])
            while stack and stack[-1][1] <= start:
                stack.pop()
            if stack:
                own[stack[-1][0]][2] -= took
            outer = own[stack[0][0]][0] if stack else event
            stack.append((len(own), start + took))
            own.append([event, outer, took, updates * 2 or behind])
        phases = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
        found += [
            OwnTime(event, outer, max(0, ns), None if talks[event] else phases[which])
            for event, outer, ns, which in own
            if any(step.start <= trace.start[event] < step.end for step in steps)
        ]
    return found


def processor_times(trace: ProfilerTrace, steps: Sequence[TraceStep], *, whole: bool = False) -> list[OperatorTime]:
    """Return the time per step of each operator of a processor, or of each outermost one if ``whole``."""
    seconds: dict[str, float] = defaultdict(float)
    runs: dict[str, int] = defaultdict(int)
    for one in own_times(trace, steps):
        name = trace.name_of(one.outer if whole else one.event)
        seconds[name] += one.ns / 1e9
        runs[name] += not whole or one.event == one.outer
    return ranked(seconds, runs, len(steps))


def processor_breakdown(trace: ProfilerTrace, windows: Sequence[StepWindow], *, num_steps: int) -> TraceBreakdown:
    """Return where the time of a processor's steps went: operators, communication while no operator runs, and the rest.

    The rest is time of the host: Python, the data loader, and the engine of autograd between operators.
    """
    counts = trace.named(np.array([_is_operator(name) for name in trace.names], dtype=bool))
    talks = trace.named(np.array([is_communication(name) for name in trace.names], dtype=bool))
    ranges = np.isin(trace.kind, (Kind.OPERATOR, Kind.ANNOTATION))
    computes = np.flatnonzero((trace.kind == Kind.OPERATOR) & counts & ~talks)
    sends = np.flatnonzero(ranges & talks)
    bounds = np.array([(w.begin, w.end) for w in windows], dtype=np.int64)
    used = np.concatenate([computes, sends])
    edge = np.unique(np.concatenate([trace.start[used], trace.end[used], bounds.reshape(-1)]))
    width = np.where(covered(edge, bounds[:, 0], bounds[:, 1]), np.diff(edge), 0) / 1e9 / num_steps
    computing = covered(edge, trace.start[computes], trace.end[computes])
    sending = covered(edge, trace.start[sends], trace.end[sends]) & ~computing
    return TraceBreakdown(
        compute_s=float(width[computing].sum()),
        exposed_communication_s=float(width[sending].sum()),
        bubble_s=0.0,
        copies_s=0.0,
        host_s=float(width[~computing & ~sending].sum()),
        idle_s=0.0,
    )


def _is_operator(name: str) -> bool:
    """Whether an event of this name is an operator: not the engine of autograd, nor one of its functions."""
    return "::" in name and not is_wrapper(name)


def _inside(trace: ProfilerTrace, events: Ints, pattern: re.Pattern[str]) -> Flags:
    """Return which of the events of one thread begin within one whose name matches."""
    matches = np.array([pattern.search(name) is not None for name in trace.names], dtype=bool)[trace.name[events]]
    until = np.maximum.accumulate(np.where(matches, trace.end[events], -1))
    inside: Flags = trace.start[events] < until
    return inside


def host_runs(trace: ProfilerTrace, steps: list[TraceStep]) -> HostRuns:
    """Return the operators of all steps, in order."""
    marks = sorted((mark for lane in _lanes(trace) for mark in _marks(trace, lane)), key=lambda m: m.start)
    gradients, events = _gradients(trace), trace.start[trace.of_kind(Kind.OPERATOR)]
    runs, updates, total = [], [], 0.0
    for step in steps:
        inside = [m for m in marks if step.start <= m.start < step.end]
        total += step.seconds
        for mark, following in pairwise([*inside, _Mark(step.end, step.end, None)]):
            own = _net(events, mark.start, min(mark.end, following.start))
            after = _net(events, min(mark.end, following.start), following.start)
            if mark.update:
                nbytes = float(sum(n for at, n in gradients if step.start <= at < step.end))
                updates.append(UpdateRun(name=mark.update, seconds=own + after, nbytes=nbytes))
            elif mark.operator is not None:
                runs.append(HostRun(operator=mark.operator, seconds=own + after, after=after))
    return HostRuns(operators=runs, updates=updates, total=total)


def _net(events: Ints, start: int, end: int) -> float:
    """Return the seconds from ``start`` to ``end`` without what the profiler took for the events that begin there."""
    recorded = int(np.searchsorted(events, end) - np.searchsorted(events, start))
    return max(end - start - recorded * _RECORDING_NS, (end - start) // 2, 0) / 1e9


def _lanes(trace: ProfilerTrace) -> list[int]:
    return [int(lane) for lane in np.unique(trace.lane[trace.of_kind(Kind.OPERATOR)])]


def _gradients(trace: ProfilerTrace) -> list[tuple[int, int]]:
    """Return when each gradient was passed on, and its bytes."""
    events = trace.of_kind(Kind.OPERATOR)
    return [
        (int(trace.start[event]), numel_of(trace.shape_of(event)) * 4)
        for event in events.tolist()
        if trace.name_of(event) == PASSED_ON
    ]


def _marks(trace: ProfilerTrace, lane: int) -> list[_Mark]:
    """Return the operators of a thread that a captured model has: the outermost that do not consist of others."""
    events = trace.of_kind(Kind.OPERATOR, Kind.ANNOTATION)
    events = events[trace.lane[events] == lane]
    marks: list[_Mark] = []
    covered, backward = -1, -1
    for event in events.tolist():
        start, end, name = int(trace.start[event]), int(trace.end[event]), trace.name_of(event)
        phase = Phase.BACKWARD if start < backward else Phase.FORWARD
        if start < covered:
            if name == _SAVED and marks:
                _split(marks, trace, event, phase)
            continue
        if (update := _UPDATE.match(name)) is not None:
            covered = end
            marks.append(_Mark(start, end, None, optimizer_of_class(update[1])))
            continue
        if trace.kind[event] == Kind.ANNOTATION:
            continue
        bare = name.removeprefix("aten::")
        if bare == name:  # of the engine
            backward = max(backward, end) if BACKWARD.search(name) else backward
            covered = end if name == PASSED_ON else covered
        elif bare in FREE:
            covered = end if bare != "reshape" else covered
        elif kind_of(bare) and bare not in _COMPOSED:
            operator = host_operator(bare, trace.shape_of(event), phase)
            if operator is not None:
                covered = end
                marks.append(_Mark(start, end, operator))
    return marks


def _split(marks: list[_Mark], trace: ProfilerTrace, event: int, phase: Phase) -> None:
    """Split the last mark, an operator in place, in two: autograd's copy of its input, and the operator."""
    last = marks[-1]
    copy = host_operator("clone", trace.shape_of(event), phase)
    if copy is None or last.operator is None or not last.operator.name.endswith("_"):
        return
    end = int(trace.end[event])
    marks[-1:] = [_Mark(last.start, end, copy), _Mark(end, last.end, last.operator)]
