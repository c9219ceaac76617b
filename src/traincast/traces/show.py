"""What a trace holds: steps, breakdown, critical path, operators, and what is missing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from traincast.cluster.hardware import PROCESSOR, Device
from traincast.cluster.match import find_device
from traincast.errors import UnknownNameError
from traincast.graph.operator import Operator
from traincast.graph.tensor import DType
from traincast.report.critical_path import PathEntry, critical_tasks, summarize
from traincast.traces.breakdown import TraceBreakdown, breakdown, transfers_of
from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import Ints, ProfilerTrace
from traincast.traces.operators.known import known_operator, tensors_of
from traincast.traces.operators.launches import OperatorTime, launchers, operator_times
from traincast.traces.recording.calls import GRAPH_LAUNCH, NARROW, STREAM_WAIT, matching
from traincast.traces.recording.couple import couple
from traincast.traces.recording.device import DeviceWork, device_work
from traincast.traces.recording.pace import launched_in, windows_of
from traincast.traces.recording.processor import on_processor, processor_breakdown, processor_times
from traincast.traces.recording.record import record
from traincast.traces.recording.recording import Recording
from traincast.traces.recording.steps import TraceStep
from traincast.traces.replay import opaque_share, run, unexplained

_EXPANDS: Final = re.compile(r"(Mean|Sum|Expand)Backward\d")
"""Nodes of autograd that make a large gradient from a small one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePosition:
    """How near an operator comes to the device's peaks: FLOP/s and bytes/s as shares, and the larger bound's name."""

    name: str
    seconds: float
    flops: float
    nbytes: float
    compute_share: float
    memory_share: float

    @property
    def bound(self) -> str:
        """What limits it by the roofline: compute or memory."""
        return "compute" if self.compute_share >= self.memory_share else "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """What the trace of one rank holds.

    ``steps_s`` has the name, the begin and the length of each step on the host. ``step_s`` is the time of a step, which
    the breakdown adds up to; ``paced_by`` says which side took so long: the ``host`` or the ``device``.
    """

    path: str
    rank: int
    world_size: int
    device: str
    events: dict[str, int]
    steps_s: tuple[tuple[str, float, float], ...]
    step_s: float
    paced_by: str
    breakdown: TraceBreakdown


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """What the traces of a job hold; ``step_s`` is the time of a step as :mod:`traincast.traces.recording.pace` defines
    it.

    Operators and rates are of the first rank, per step. The critical path is that of the whole trace, ``total_s``;
    ``opaque_share`` of it is delays that nothing recorded explains.
    """

    ranks: tuple[RankSummary, ...] = field(repr=False)
    step_s: float
    total_s: float
    breakdown: TraceBreakdown
    critical_path: tuple[PathEntry, ...] = field(repr=False)
    opaque_share: float
    operators: tuple[OperatorTime, ...] = field(repr=False)
    rates: tuple[RooflinePosition, ...] = field(repr=False)
    missing: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def processor(self) -> bool:
        """Whether a processor ran the operators itself: then these are timed, not kernels."""
        return self.ranks[0].device == PROCESSOR

    def to_dict(self) -> dict[str, Any]:
        """Everything, as ``trace show --json`` prints it; ``steps`` are those of the first rank."""
        data = asdict(self)
        for rank in data["ranks"]:
            rank["steps"] = [{"name": n, "start_s": start, "seconds": s} for n, start, s in rank.pop("steps_s")]
        data["steps"] = data["ranks"][0]["steps"]
        return data


def summarize_traces(traces: Sequence[ProfilerTrace], *, named: str | None = None) -> TraceSummary:
    """Return what the traces of one job hold; ``named``: the range that is a step, if it is not the profiler's own."""
    recording = couple([record(trace, named=named) for trace in traces])
    works = [device_work(trace) for trace in recording.traces]
    ranks = [_rank(recording, number, work) for number, work in enumerate(works)]
    first, work, steps = recording.traces[0], works[0], recording.steps[0]
    replayed = run(recording)
    path = summarize(replayed.timeline, critical_tasks(replayed.timeline), replayed.planned.seconds)
    parts = [rank.breakdown for rank in ranks]
    fields = ("compute_s", "exposed_communication_s", "bubble_s", "copies_s", "host_s", "idle_s")
    mean = TraceBreakdown(**{name: float(np.mean([getattr(p, name) for p in parts])) for name in fields})
    device, opaque = device_of(first), opaque_share(replayed)
    return TraceSummary(
        ranks=tuple(ranks),
        step_s=float(np.mean([rank.step_s for rank in ranks])),
        total_s=float(recording.end.max()) / 1e9,
        breakdown=mean,
        critical_path=tuple(path),
        opaque_share=opaque,
        operators=tuple(processor_times(first, steps) if on_processor(first) else operator_times(first, work, steps)),
        rates=tuple(rates(first, work, steps, device)) if device else (),
        missing=(*_missing(traces, works, recording, device), *unexplained(opaque)),
        notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
    )


def device_of(trace: ProfilerTrace) -> Device | None:
    """Return the device of the catalog that a trace was recorded on, or ``None``."""
    used = trace.device[trace.on_device()]
    index = int(used[0]) if len(used) else 0
    described = [d for d in trace.devices if d.index == index] or list(trace.devices)
    if not described:
        return None
    try:
        return find_device(described[0].name, memory_gb=described[0].memory_bytes / 1e9 or None)
    except UnknownNameError:
        return None


def _rank(recording: Recording, number: int, work: DeviceWork) -> RankSummary:
    trace, steps = recording.traces[number], recording.steps[number]
    device = device_of(trace)
    alone = on_processor(trace)
    unknown = PROCESSOR if alone else trace.devices[0].name if trace.devices else "unknown"
    windows = windows_of(work, steps)
    parts = (
        processor_breakdown(trace, windows, num_steps=len(steps))
        if alone
        else breakdown(trace, work, windows, num_steps=len(steps), transfers=transfers_of(recording, number))
    )
    kinds, counts = np.unique(trace.kind, return_counts=True)
    return RankSummary(
        path=str(trace.path),
        rank=trace.rank,
        world_size=trace.world_size,
        device=device.name if device and not alone else unknown,
        events={Kind(int(k)).name.lower(): int(n) for k, n in zip(kinds, counts, strict=True)},
        steps_s=tuple((step.name, step.start / 1e9, step.seconds) for step in steps),
        step_s=sum(one.length for one in windows) / 1e9 / len(steps),
        paced_by="device" if any(one.on_device for one in windows) else "host",
        breakdown=parts,
    )


def rates(trace: ProfilerTrace, work: DeviceWork, steps: Sequence[TraceStep], device: Device) -> list[RooflinePosition]:
    """Return the rates per step of operators whose shapes are known, by name, the longest first."""
    found = launchers(trace, work)
    took: dict[int, float] = defaultdict(float)
    narrow: set[int] = set()
    for op in np.flatnonzero(launched_in(work, steps)).tolist():
        event = int(found.inner[op])
        if event >= 0:
            took[event] += float(work.end[op] - work.start[op]) / 1e9
            if NARROW.search(trace.name_of(int(work.event[op]))):
                narrow.add(event)
    total: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for event, seconds in took.items():
        operator = known_operator(trace.name_of(event), trace.shape_of(event))
        if operator is None:
            continue
        operator = _of_expanded(operator, trace, found.parent, event)
        dtype = DType.TF32 if event in narrow else operator.dtype
        entry = total[operator.name]
        entry[0] += seconds
        entry[1] += operator.flops
        entry[2] += operator.nbytes
        entry[3] += operator.flops / device.peak(dtype.value)
    return sorted(
        (
            RooflinePosition(
                name=name,
                seconds=seconds / len(steps),
                flops=flops / len(steps),
                nbytes=nbytes / len(steps),
                compute_share=least / seconds,
                memory_share=nbytes / device.memory_bandwidth / seconds,
            )
            for name, (seconds, flops, nbytes, least) in total.items()
            if seconds > 0
        ),
        key=lambda r: -r.seconds,
    )


def _of_expanded(operator: Operator, trace: ProfilerTrace, parent: Ints, event: int) -> Operator:
    """Return ``operator`` with the gradient that it reads in the size that memory holds.

    The gradient of a mean or a sum is one value for many elements. Autograd expands it without a copy, and traces
    without strides show only the expanded size: the gradient that the node was given is smaller.
    """
    around = int(parent[event])
    while around >= 0 and not _EXPANDS.match(trace.name_of(around)):
        around = int(parent[around])
    given = tensors_of(trace.shape_of(around)) if around >= 0 else ()
    if len(given) != 1 or len(operator.inputs) != 1 or given[0].numel >= operator.inputs[0].numel:
        return operator
    return replace(operator, inputs=given)


def _missing(
    traces: Sequence[ProfilerTrace], works: Sequence[DeviceWork], recording: Recording, device: Device | None
) -> list[str]:
    """Return what the traces do not say, and what that means."""
    noted = {note for trace in traces for note in trace.notes}
    found = [note for note in recording.notes if note not in noted]
    trace = traces[0]
    operators = trace.of_kind(Kind.OPERATOR)
    if not (trace.shape[operators] >= 0).any():
        found.append("no shapes of operators: record_shapes=True gives the roofline and times on another device")
    processor = on_processor(trace)
    if not processor and not len(trace.on_device()):
        found.append("no work of a device: the profiler recorded the host only")
    waits = trace.of_kind(Kind.CALL)
    if matching(trace, STREAM_WAIT)[waits].any() and not any(s.record > -1 for s in trace.syncs.values()):
        found.append("no record of what streams wait for")
    if bare := bare_graphs(trace, works[0]):
        found.append(f"{bare} launches of graphs without the kernels that they ran")
    talks = any(work.communicates.any() for work in works)
    peers = max(t.world_size for t in traces)
    if talks and len(traces) < peers:
        found.append(
            f"the traces of {peers - len(traces)} of {peers} ranks: the time of collectives includes waiting for them"
        )
    if processor:
        found.append("which processor it was: no roofline")
    elif device is None:
        found.append("a device that the catalog knows: no roofline")
    return found


def bare_graphs(trace: ProfilerTrace, work: DeviceWork) -> int:
    """Return how many launches of graphs have no kernels in the trace."""
    calls = trace.of_kind(Kind.CALL)
    graphs = calls[matching(trace, GRAPH_LAUNCH)[calls]]
    return int((~np.isin(graphs, work.call)).sum())
