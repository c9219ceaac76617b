"""Writes a recording that has run as a trace of PyTorch's profiler, which viewers and HolisticTraceAnalysis read.

Every event of the source that has a meaning here is written with its new time. An event of a thread moves with the
tasks of that thread: the time within a task stretches evenly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
import numpy.typing as npt

from traincast.files import make_folder
from traincast.report.trace import replacing
from traincast.traces.files.kineto import DEVICE_KINDS, Kind
from traincast.traces.files.trace import NONE, Ints, ProfilerTrace
from traincast.traces.recording.recording import Recording, TaskRole
from traincast.traces.replay import Replayed

_CATEGORIES: Final[dict[Kind, str]] = {
    Kind.OPERATOR: "cpu_op",
    Kind.ANNOTATION: "user_annotation",
    Kind.CALL: "cuda_runtime",
    Kind.KERNEL: "kernel",
    Kind.COPY: "gpu_memcpy",
    Kind.FILL: "gpu_memset",
}


def write_timeline(replayed: Replayed, path: Path) -> None:
    """Write the trace of one rank to a file, or those of several ranks to a folder with one file each."""
    recording = replayed.recording
    if len(recording.traces) == 1:
        with replacing(path) as out:
            _write(replayed, 0, out)
        return
    make_folder(path)
    for number, trace in enumerate(recording.traces):
        with replacing(path / f"rank{trace.rank}.json.gz") as out:
            _write(replayed, number, out)


def _write(replayed: Replayed, number: int, out: TextIO) -> None:
    trace = replayed.recording.traces[number]
    start, end = new_times(replayed, number)
    devices = [
        {"id": d.index, "name": d.name, "numSms": d.compute_units, "totalGlobalMem": d.memory_bytes}
        for d in trace.devices
    ]
    out.write('{"schemaVersion": 1,\n')
    out.write(
        f'"distributedInfo": {json.dumps({"backend": "nccl", "rank": trace.rank, "world_size": trace.world_size})},\n'
    )
    out.write(f'"deviceProperties": {json.dumps(devices)},\n"traceEvents": [')
    first = True
    for event in np.flatnonzero(start >= 0).tolist():
        kind = Kind(int(trace.kind[event]))
        if kind not in _CATEGORIES:
            continue
        out.write("\n" if first else ",\n")
        first = False
        out.write(json.dumps(_event(trace, event, kind, int(start[event]), int(end[event]))))
    out.write("\n]}\n")


def _event(trace: ProfilerTrace, event: int, kind: Kind, start: int, end: int) -> dict[str, Any]:
    process, thread = trace.lanes[int(trace.lane[event])]
    args: dict[str, Any] = {}
    for name, column in (
        ("External id", trace.external),
        ("correlation", trace.correlation),
        ("device", trace.device),
        ("stream", trace.stream),
        ("bytes", trace.nbytes),
        ("Sequence number", trace.sequence),
    ):
        if column[event] != NONE:
            args[name] = int(column[event])
    shape = trace.shape_of(event)
    for name, text in (
        ("Input Dims", shape.dims),
        ("Input type", shape.types),
        ("Input Strides", shape.strides),
        ("grid", shape.grid),
        ("block", shape.block),
    ):
        if text:
            args[name] = json.loads(text)
    message = trace.messages.get(event)
    if message is not None:
        args |= {
            "Collective name": message.name,
            "In msg nelems": message.in_elements,
            "Group size": message.group_size,
        }
        args |= {"Out msg nelems": message.out_elements, "dtype": message.dtype, "Process Group Name": message.group}
    return {
        "ph": "X",
        "cat": _CATEGORIES[kind],
        "name": trace.name_of(event),
        "pid": _number(process),
        "tid": _number(thread),
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": args,
    }


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def new_times(replayed: Replayed, number: int) -> tuple[Ints, Ints]:
    """Return the new start and end of every event of one trace in nanoseconds; −1 where an event has no place."""
    recording = replayed.recording
    trace = recording.traces[number]
    place = replayed.planned.place
    new_start, new_end = (
        np.rint(column[place] * 1e9).astype(np.int64) for column in (replayed.timeline.start, replayed.timeline.end)
    )
    start, end = (np.full(len(trace), -1, dtype=np.int64) for _ in range(2))
    mine = np.flatnonzero((recording.trace == number) & (recording.role == TaskRole.DEVICE) & (recording.event >= 0))
    order = mine[np.argsort(recording.start[mine], kind="stable")]
    start[recording.event[order[::-1]]] = new_start[order[::-1]]  # a kernel in pieces begins with its first
    end[recording.event[order]] = new_end[order]
    _collective_times(recording, number, new=(new_start, new_end), start=start, end=end)
    shift = recording.clocks[number]
    for lane, (_, thread) in enumerate(trace.lanes):
        name = f"thread {thread}"
        rows = [i for i, one in enumerate(recording.lanes) if one.name == name and one.rank == trace.rank]
        tasks = np.flatnonzero(np.isin(recording.lane, rows) & (recording.trace == number))
        on_device = [int(kind) for kind in DEVICE_KINDS]
        events = np.flatnonzero((trace.lane == lane) & ~np.isin(trace.kind, on_device))
        if len(tasks) and len(events):
            tasks = tasks[np.lexsort((tasks, recording.start[tasks]))]
            old = np.stack([recording.start[tasks], recording.end[tasks]], axis=1).reshape(-1) - shift
            new = np.stack([new_start[tasks], new_end[tasks]], axis=1).reshape(-1)
            start[events] = _moved(trace.start[events], old, new)
            end[events] = np.maximum(start[events], _moved(trace.end[events], old, new))
    return start, end


def _collective_times(recording: Recording, number: int, *, new: tuple[Ints, Ints], start: Ints, end: Ints) -> None:
    """Give each rank's kernel of a joined collective the time of the transfer; the wait before it is not drawn."""
    if not recording.others:
        return
    tails = recording.edges[np.isin(recording.edges[:, 1], list(recording.others))]
    for tail, joined in tails.tolist():
        if recording.trace[tail] == number and recording.role[tail] == TaskRole.LATENCY and recording.event[tail] >= 0:
            event = int(recording.event[tail])
            if start[event] < 0:
                start[event], end[event] = int(new[0][joined]), int(new[1][tail])


def _moved(times: Ints, old: Ints, new: Ints) -> Ints:
    """Return times on the new clock, from pairs of old and new times in order."""
    keep = np.append(True, np.diff(np.maximum.accumulate(old)) > 0)
    moved: npt.NDArray[np.float64] = np.interp(
        times, np.maximum.accumulate(old)[keep], np.maximum.accumulate(new)[keep]
    )
    return np.rint(moved).astype(np.int64)
