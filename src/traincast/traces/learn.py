"""Measured times in traces as events, which forecasts of other strategies and numbers of nodes use.

An operator whose shapes the trace states becomes the same operator that a captured model has, with the seconds that
its kernels took. Launches of kernels become the host's time per launch. Collectives become points of a curve where the
traces of several ranks tell the transfer from waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traincast.errors import RequestError
from traincast.estimate.events_file import REAL, EventsCard, Row, row_of
from traincast.estimate.events_keys import collective_key, operator_key, text_of
from traincast.graph.operator import Operator, Phase
from traincast.traces.couple import couple
from traincast.traces.device import DeviceWork, device_work
from traincast.traces.labels import BACKWARD, launched_within
from traincast.traces.operators import launchers
from traincast.traces.record import record
from traincast.traces.recording import Recording, TaskRole
from traincast.traces.scaling import operators_of
from traincast.traces.show import device_of
from traincast.traces.trace import ProfilerTrace

_KINDS: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
}
_BYTES: Final = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Int": 4, "Long": 8, "Byte": 1}
_STATISTIC: Final = "mean over the runs in a profiler's trace; 5th and 95th percentile"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedEvents:
    """Rows and card of a folder of events; ``covered`` is the share of the device's compute time that became events."""

    card: EventsCard
    rows: tuple[Row, ...]
    covered: float
    notes: tuple[str, ...]


def learn(traces: Sequence[ProfilerTrace], *, named: str | None = None) -> LearnedEvents:
    """Return the events of traces of one job; refuse traces of an unknown device, or without shapes."""
    device = device_of(traces[0])
    if device is None:
        said = traces[0].devices[0].name if traces[0].devices else "no device"
        raise RequestError(f"trace {traces[0].path} was recorded on {said!r}, which is not in the catalog of devices")
    recording = couple([record(trace, named=named) for trace in traces])
    times: dict[Operator, list[float]] = defaultdict(list)
    took = total = 0.0
    for trace in traces:
        work = device_work(trace)
        for operator, seconds in _runs(trace, work):
            times[operator].append(seconds)
            took += seconds
        total += float((work.end - work.start)[~work.communicates].sum()) / 1e9
    if not times:
        raise RequestError(
            f"trace {traces[0].path} states no shapes of operators: record it with record_shapes=True to learn from it"
        )
    rows = [_row(operator, seconds) for operator, seconds in times.items()]
    rows.append(_launches(recording))
    rows += _collectives(recording)
    dtypes = Counter(operator.dtype.value for operator in times)
    card = EventsCard(
        device=device.name, machine=device.name, backend="nccl", threads=1, compute=REAL, network="as traced",
        precision=dtypes.most_common(1)[0][0], torch="", host="", statistic=_STATISTIC, cost={},
    )  # fmt: skip
    return LearnedEvents(card=card, rows=tuple(rows), covered=took / max(total, 1e-30), notes=recording.notes)


def _runs(trace: ProfilerTrace, work: DeviceWork) -> list[tuple[Operator, float]]:
    """Return every run of an operator whose shapes are known, as a captured model names it, and its seconds."""
    around = launchers(trace, work)
    backward = launched_within(trace, work.event, BACKWARD)
    seconds: dict[tuple[int, Operator], float] = defaultdict(float)
    for op, (event, operator) in operators_of(trace, work, around).items():
        name = operator.name.removeprefix("aten::")
        phase = Phase.BACKWARD if backward[op] else Phase.FORWARD
        same = replace(operator, name=name, phase=phase)
        seconds[event, same] += float(work.end[op] - work.start[op]) / 1e9
    return [(operator, took) for (_, operator), took in seconds.items()]


def _row(operator: Operator, seconds: list[float]) -> Row:
    low, high = np.quantile(seconds, (0.05, 0.95))
    return row_of(
        "operator", operator_key(operator), mean_s=float(np.mean(seconds)), low_s=float(low), high_s=float(high),
        repeats=len(seconds), nbytes=float(operator.nbytes), dtype=operator.dtype.value,
    )  # fmt: skip


def _launches(recording: Recording) -> Row:
    """Return the host's seconds per launch of a kernel: all its own time in the steps, over the launches in them."""
    host = np.isin(recording.role, (TaskRole.HOST, TaskRole.CALL)) & (recording.trace == 0)
    each = []
    for step in recording.steps[0]:
        inside = host & (recording.start >= step.start) & (recording.end <= step.end)
        launched = recording.launched[(recording.role == TaskRole.DEVICE) & (recording.trace == 0)]
        count = int(((launched >= step.start) & (launched < step.end)).sum())
        if count:
            each.append(float(recording.duration[inside].sum()) / 1e9 / count)
    mean = float(np.mean(each)) if each else 0.0
    low, high = (min(each), max(each)) if each else (0.0, 0.0)
    return row_of(
        "launch", text_of(["launch", "kernels"]), mean_s=mean, low_s=low, high_s=high, repeats=len(each),
        collective="kernels",
    )  # fmt: skip


def _collectives(recording: Recording) -> list[Row]:
    """Return the transfers of collectives whose size and ranks are stated; of a rank alone, none."""
    if not recording.others:
        return []
    found: dict[tuple[str, float, int], list[float]] = defaultdict(list)
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
    return [
        row_of(
            "collective", collective_key(kind, nbytes, members, 1), mean_s=float(np.mean(seconds)),
            low_s=min(seconds), high_s=max(seconds), repeats=len(seconds), nbytes=nbytes, num_ranks=members,
            collective=kind,
        )
        for (kind, nbytes, members), seconds in found.items()
    ]  # fmt: skip
