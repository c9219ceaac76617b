"""Measured times in traces as events, which forecasts of other strategies and numbers of nodes use.

An operator whose shapes the trace states becomes the same operator that a captured model has, with the seconds that
its kernels took. Launches of kernels become the host's time per launch. Collectives become points of a curve where the
traces of several ranks tell the transfer from waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from traincast.cluster.catalog import load_device
from traincast.cluster.hardware import PROCESSOR, Device
from traincast.errors import RequestError
from traincast.estimate import learned_cost_model
from traincast.estimate.events.file import CARD, REAL, EventsCard, Row, contents_of, read_card, row_of
from traincast.estimate.events.keys import collective_key, operator_key, text_of, update_key
from traincast.estimate.events.model import PURPOSES, EventsCostModel, events_of
from traincast.files import write_folder
from traincast.graph.operator import Operator
from traincast.graph.tensor import DType
from traincast.graph.vocabulary import PRODUCTS, Phase, kind_of
from traincast.traces.changes.scaling import operators_of
from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import ProfilerTrace
from traincast.traces.operators.known import host_operator
from traincast.traces.operators.launches import Launchers, launchers
from traincast.traces.operators.precision import precision_of
from traincast.traces.recording.calls import NARROW
from traincast.traces.recording.couple import couple
from traincast.traces.recording.device import DeviceWork, device_work
from traincast.traces.recording.labels import BACKWARD, launched_within
from traincast.traces.recording.processor import host_runs, on_processor
from traincast.traces.recording.record import record
from traincast.traces.recording.recording import Recording, TaskRole
from traincast.traces.recording.steps import steps_of
from traincast.traces.show import device_of

_KINDS: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
}
_BYTES: Final = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Int": 4, "Long": 8, "Byte": 1}
_STATISTIC: Final = (
    "mean over the runs in a profiler's trace (a processor: of the middle 90 %); 5th and 95th percentile"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedEvents:
    """Rows and card of a folder of events; ``covered`` is the share of the device's compute time that became events."""

    card: EventsCard
    rows: tuple[Row, ...] = field(repr=False)
    covered: float
    notes: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The number of events of each kind."""
        return {kind: sum(row["kind"] == kind for row in self.rows) for kind in ("operator", "launch", "collective")}

    def cost_model(self) -> EventsCostModel:
        """The cost model of these events, for ``predict`` and ``search``; the default one estimates all other works."""
        events = events_of(Path("learned from traces"), self.card, self.rows)
        return EventsCostModel(events, learned_cost_model())

    def to_dict(self) -> dict[str, Any]:
        """Device, precision, number of events by kind, ``covered`` and notes, as ``trace learn --json`` prints them."""
        card = self.card
        return {
            "device": card.device, "precision": card.precision, "events": self.counts, "covered": self.covered,
            "notes": self.notes,
        }  # fmt: skip


def learn(
    jobs: Sequence[Sequence[ProfilerTrace]], *, named: str | None = None, device: Device | None = None
) -> LearnedEvents:
    """Return the events of jobs, each with the traces of its ranks; refuse an unknown device, or traces without shapes.

    Several jobs may be repeats, or runs of other batch sizes. ``device`` says where they ran if the traces do not.
    """
    traces = [trace for job in jobs for trace in job]
    if all(on_processor(trace) for trace in traces):
        return _learn_processor(jobs, named=named, device=device or load_device("cpu"))
    device = _device_of_all(traces, device)
    recordings = [couple([record(trace, named=named) for trace in job]) for job in jobs]
    times: dict[Operator, list[float]] = defaultdict(list)
    took = total = 0.0
    for trace in traces:
        work = device_work(trace)
        for operator, seconds in _runs(trace, work):
            times[operator].append(seconds)
            took += seconds
        total += float((work.end - work.start)[~work.communicates].sum()) / 1e9
    if not times:
        raise _without_shapes(traces[0])
    rows = [_row(operator, seconds) for operator, seconds in times.items()]
    rows.append(_launches(recordings))
    rows += _collectives(recordings)
    dtypes = Counter(operator.dtype.value for operator in times)
    card = EventsCard(
        device=device.name, machine=device.name, backend="nccl", threads=1, compute=REAL, network="as traced",
        precision=precision_of(traces[0]) or dtypes.most_common(1)[0][0], torch="", host="", statistic=_STATISTIC,
        cost={},
    )  # fmt: skip
    return LearnedEvents(card=card, rows=tuple(rows), covered=took / max(total, 1e-30), notes=_notes(recordings))


def _device_of_all(traces: Sequence[ProfilerTrace], device: Device | None) -> Device:
    """Return the device that all traces were recorded on, ``device`` if they do not say; refuse different ones."""
    for trace in traces:
        if on_processor(trace) or not len(trace.on_device()):
            raise RequestError(f"trace {trace.path} has no kernels: give it without traces that have some")
        found = device_of(trace)
        if found is None and device is None:
            said = trace.devices[0].name if trace.devices else "no device"
            raise RequestError(f"trace {trace.path} was recorded on {said!r}, which is not in the catalog of devices")
        if found is not None and device is not None and device.name != found.name:
            remedy = "" if len(traces) == 1 else ": learn from the traces of each device apart"
            raise RequestError(f"trace {trace.path} was recorded on {found.name}, not on {device.name}{remedy}")
        device = device or found
    assert device is not None, "there is at least one trace"
    return device


def check_events_folder(path: Path, card: EventsCard | None = None) -> None:
    """Refuse to replace a folder of other files, and events that are not of a trace like that of ``card``."""
    if not path.exists() or not any(path.iterdir()):
        return
    if not (path / CARD).exists():
        raise RequestError(f"cannot write {path}: it is a folder of other files; choose another name")
    there = read_card(path)
    if there.statistic != _STATISTIC:
        raise RequestError(f"cannot write {path}: its events are not from `trace learn`; choose another folder")
    for name in ("device", "backend", "precision") if card is not None else ():
        have, want = getattr(there, name), getattr(card, name)
        if have != want:
            raise RequestError(
                f"cannot write {path}: it has events with {name} {have!r}, not {want!r}; choose another folder"
            )


def write_events(learned: LearnedEvents, path: Path) -> None:
    """Write a folder of events; one that was learned from traces of the same device and precision is replaced."""
    check_events_folder(path, learned.card)
    write_folder(path, contents_of(learned.card, learned.rows))


def _notes(recordings: Sequence[Recording]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for recording in recordings for note in recording.notes))


def _learn_processor(jobs: Sequence[Sequence[ProfilerTrace]], *, named: str | None, device: Device) -> LearnedEvents:
    """Return the events of traces without kernels: the operators themselves ran on the host."""
    if device.architecture != PROCESSOR:
        raise RequestError(
            f"trace {jobs[0][0].path} has no kernels: its operators ran on a processor, not on {device.name}"
        )
    times: dict[Operator, list[tuple[float, float]]] = defaultdict(list)
    updates: dict[str, list[tuple[float, float]]] = defaultdict(list)
    took = total = 0.0
    for job in jobs:
        for trace in job:
            runs = host_runs(trace, steps_of(trace, named=named))
            total += runs.total
            for run in runs.operators:
                times[run.operator].append((run.seconds, run.after))
                took += run.seconds
            for update in runs.updates:
                took += update.seconds
                if update.nbytes:
                    updates[update.name].append((update.seconds, update.nbytes))
    if not times:
        raise _without_shapes(jobs[0][0])
    ranks = max(len(job) for job in jobs)
    rows = [_host_row(operator, runs, ranks) for operator, runs in times.items()]
    for name, seen in updates.items():
        seconds = [s for s, _ in seen]
        low, high = np.quantile(seconds, (0.05, 0.95))
        rows.append(
            row_of(
                "operator", update_key(name), mean_s=_typical(seconds), low_s=float(low), high_s=float(high),
                repeats=len(seconds), nbytes=float(np.mean([n for _, n in seen])), num_ranks=ranks, dtype="fp32",
            )
        )  # fmt: skip
    rows += [
        row_of("launch", text_of(["launch", name]), mean_s=0.0, low_s=0.0, high_s=0.0, repeats=0, collective=name)
        for name in PURPOSES
    ]
    dtypes = Counter(operator.dtype.value for operator in times if operator.dtype.is_floating)
    card = EventsCard(
        device=device.name, machine=device.name, backend="gloo", threads=1, compute=REAL, network="not traced",
        precision=precision_of(jobs[0][0]) or (dtypes.most_common(1)[0][0] if dtypes else "fp32"), torch="", host="",
        statistic=_STATISTIC, cost={},
    )  # fmt: skip
    said = [note for job in jobs for trace in job for note in trace.notes]
    notes = (*dict.fromkeys(said), "operators ran on a processor: each takes the time until the next one starts")
    return LearnedEvents(card=card, rows=tuple(rows), covered=took / max(total, 1e-30), notes=notes)


def _host_row(operator: Operator, runs: list[tuple[float, float]], ranks: int) -> Row:
    seconds = [s for s, _ in runs]
    low, high = np.quantile(seconds, (0.05, 0.95))
    return row_of(
        "operator", operator_key(operator), mean_s=_typical(seconds), low_s=float(low), high_s=float(high),
        repeats=len(seconds), nbytes=float(operator.nbytes), num_ranks=ranks, dtype=operator.dtype.value,
        fixed_s=_typical([after for _, after in runs]),
    )  # fmt: skip


def _typical(seconds: Sequence[float]) -> float:
    """Return the mean of the middle 90 %: single runs that something else held up do not count."""
    ordered = np.sort(np.array(seconds))
    spare = int(0.05 * len(ordered))
    return float(ordered[spare : len(ordered) - spare].mean())


def _without_shapes(trace: ProfilerTrace) -> RequestError:
    return RequestError(
        f"trace {trace.path} states no shapes of operators: record it with record_shapes=True to learn from it"
    )


def _runs(trace: ProfilerTrace, work: DeviceWork) -> list[tuple[Operator, float]]:
    """Return every run of an operator whose shapes are known, as a captured model names it, and its seconds."""
    around = launchers(trace, work)
    backward = launched_within(trace, work.event, BACKWARD)
    seconds: dict[tuple[int, Operator], float] = defaultdict(float)
    known = operators_of(trace, work, around)
    narrow = {event for op, (event, _) in known.items() if NARROW.search(trace.name_of(int(work.event[op])))}
    for op in range(len(work)):
        phase = Phase.BACKWARD if backward[op] else Phase.FORWARD
        if op in known:
            event, operator = known[op]
            same = replace(operator, name=operator.name.removeprefix("aten::"), phase=phase)
            same = _as_tf32(same) if event in narrow else same
        elif (found := _described(trace, around, work, op, phase)) is not None:
            event, same = found
        else:
            continue
        seconds[event, same] += float(work.end[op] - work.start[op]) / 1e9
    return [(operator, took) for (_, operator), took in seconds.items()]


def _as_tf32(operator: Operator) -> Operator:
    """Return a product as a forecast in tf32 has it: it reads fp32 numbers on tensor cores, and writes fp32."""
    if operator.kind not in PRODUCTS or operator.dtype is not DType.FP32:
        return operator
    return replace(operator, inputs=tuple(replace(t, dtype=DType.TF32) for t in operator.inputs))


def _described(
    trace: ProfilerTrace, around: Launchers, work: DeviceWork, op: int, phase: Phase
) -> tuple[int, Operator] | None:
    """Return the innermost operator around a launch that a captured model has, as its shapes describe it."""
    event = int(around.inner[op])
    if work.communicates[op] or trace.kind[work.event[op]] == Kind.COPY:
        return None
    while event >= 0:
        name = trace.name_of(event).removeprefix("aten::")
        operator = host_operator(name, trace.shape_of(event), phase) if kind_of(name) else None
        if operator is not None:
            return event, operator
        event = int(around.parent[event])
    return None


def _row(operator: Operator, seconds: list[float]) -> Row:
    low, high = np.quantile(seconds, (0.05, 0.95))
    return row_of(
        "operator", operator_key(operator), mean_s=float(np.mean(seconds)), low_s=float(low), high_s=float(high),
        repeats=len(seconds), nbytes=float(operator.nbytes), dtype=operator.dtype.value,
    )  # fmt: skip


def _launches(recordings: Sequence[Recording]) -> Row:
    """Return the host's seconds per launch of a kernel: all its own time in the steps, over the launches in them."""
    each = []
    for recording in recordings:
        host = np.isin(recording.role, (TaskRole.HOST, TaskRole.CALL)) & (recording.trace == 0)
        launched = recording.launched[(recording.role == TaskRole.DEVICE) & (recording.trace == 0)]
        for start, end in recording.step_bounds(0).tolist():
            inside = host & (recording.start >= start) & (recording.end <= end)
            count = int(((launched >= start) & (launched < end)).sum())
            if count:
                each.append(float(recording.duration[inside].sum()) / 1e9 / count)
    mean = float(np.mean(each)) if each else 0.0
    low, high = (min(each), max(each)) if each else (0.0, 0.0)
    return row_of(
        "launch", text_of(["launch", "kernels"]), mean_s=mean, low_s=low, high_s=high, repeats=len(each),
        collective="kernels",
    )  # fmt: skip


def _collectives(recordings: Sequence[Recording]) -> list[Row]:
    """Return the transfers of collectives whose size and ranks are stated; of a rank alone, none."""
    found: dict[tuple[str, float, int], list[float]] = defaultdict(list)
    for recording in recordings:
        if recording.others:
            _transfers(recording, found)
    return [
        row_of(
            "collective", collective_key(kind, nbytes, members, 1), mean_s=float(np.mean(seconds)),
            low_s=min(seconds), high_s=max(seconds), repeats=len(seconds), nbytes=nbytes, num_ranks=members,
            collective=kind,
        )
        for (kind, nbytes, members), seconds in found.items()
    ]  # fmt: skip


def _transfers(recording: Recording, found: dict[tuple[str, float, int], list[float]]) -> None:
    """Add the transfers of one job to ``found``, by kind, bytes and ranks."""
    for task in np.flatnonzero(recording.communicates & (recording.role == TaskRole.DEVICE)).tolist():
        message = recording.traces[int(recording.trace[task])].messages.get(int(recording.event[task]))
        members = 1 + len(recording.others.get(task, ()))
        if message is None or members < max(message.group_size, 2):
            continue
        kind = _KINDS.get(message.name.replace("_", "").lower())
        elements = max(message.in_elements, message.out_elements)
        if kind is not None and elements > 0 and recording.duration[task] > 0:
            nbytes = float(elements * _BYTES.get(message.dtype, 4))
            found[kind, nbytes, members].append(float(recording.duration[task]) / 1e9)
