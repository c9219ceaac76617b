"""Traces of measured spans: Chrome events, for Perfetto and for HolisticTraceAnalysis (HTA).

The events have the form of :mod:`traincast.report.trace`: a kernel per span, tied to a launch on a host thread, and
one annotation per step. Steps follow one another. HTA reads one file per rank, and whole microseconds only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from traincast.files import make_folder
from traincast.report.trace import STREAM_NAMES, check_name, replacing
from traincast.strategy.plan import NUM_STREAMS, Stream
from traincast.testbed.activity import class_of, stream_of

if TYPE_CHECKING:
    import pyarrow as pa

_KERNELS: Final = {
    "all_reduce": "AllReduce",
    "gradients": "AllReduce",
    "all_gather": "AllGather",
    "parameters": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AllToAll",
    "broadcast": "Broadcast",
}
_HIDDEN: Final = ("nccl", "dma", "Sync", "Memcpy", "Memset")
"""Words that keep HTA from counting a kernel as compute."""
_BETWEEN_S: Final = 1e-3
"""The gap that is drawn between two steps."""


def write_measured_trace(
    spans: pa.Table, path: Path, *, steps_s: Sequence[float] = (), about: Mapping[str, Any] | None = None
) -> int:
    """Write one trace with a process for each rank, and return the number of spans.

    ``spans`` is the table of a run. Step n lasts ``steps_s[n]`` seconds, or until its last span ends if that is later.
    ``about`` describes the run; it becomes the file's ``otherData``.
    """
    events = _Events(spans, steps_s)
    return events.write(path, events.ranks, about=about, unit_ns=1)


def write_measured_traces(
    spans: pa.Table, folder: Path, *, steps_s: Sequence[float] = (), about: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write one trace per rank into ``folder``, as HTA reads them; times are whole microseconds."""
    events = _Events(spans, steps_s)
    make_folder(folder, parents=False)
    paths = [folder / f"rank{rank}.json.gz" for rank in events.ranks]
    for path, rank in zip(paths, events.ranks, strict=True):
        events.write(path, [rank], about=about, unit_ns=1000)
    return paths


class _Events:
    """The spans of a run by rank, on one axis of time."""

    def __init__(self, spans: pa.Table, steps_s: Sequence[float]) -> None:
        rows = spans.to_pylist()
        self.steps = sorted({int(row["step"]) for row in rows})
        self.ranks = sorted({int(row["rank"]) for row in rows}) or [0]
        self.begins, self.ends = _axis(rows, self.steps, steps_s)
        self._rows: dict[int, list[dict[str, Any]]] = {rank: [] for rank in self.ranks}
        for row in sorted(rows, key=lambda row: (row["step"], row["start_s"])):
            self._rows[int(row["rank"])].append(row)

    def write(self, path: Path, ranks: Sequence[int], *, about: Mapping[str, Any] | None, unit_ns: int) -> int:
        """Write the spans of ``ranks``, in multiples of ``unit_ns``; return their number."""
        check_name(path)
        header = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": rank, "name": "measured by Traincast"} for rank in ranks],
            "distributedInfo": {"backend": "gloo", "rank": ranks[0], "world_size": len(self.ranks)},
            "displayTimeUnit": "ms",
            "traceName": path.name,
            "baseTimeNanoseconds": 0,
            **({"otherData": dict(about)} if about else {}),
        }
        count, number = 0, 1
        with replacing(path) as file:
            file.write("{\n" + "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in header.items()))
            file.write('"traceEvents": [\n')
            between = ""
            for rank in ranks:
                for event in self._events(rank, number, unit_ns):
                    file.write(between + json.dumps(event))
                    between = ",\n"
                number += len(self._rows[rank])
                count += len(self._rows[rank])
            file.write("\n]\n}\n")
        return count

    def _events(self, rank: int, first: int, unit_ns: int) -> Iterator[dict[str, Any]]:
        rows = self._rows[rank]
        lanes = _apart([(*self._times(row), _stream(row)) for row in rows])
        named = [("process_name", 0, f"rank {rank}"), ("thread_name", int(Stream.HOST), "host")]
        for lane in sorted(set(lanes)):
            beside, stream = divmod(lane, NUM_STREAMS)
            named.append(("thread_name", lane, STREAM_NAMES[Stream(stream)] + (f" {beside + 1}" if beside else "")))
        yield from ({"ph": "M", "name": n, "pid": rank, "tid": t, "args": {"name": text}} for n, t, text in named)
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
        for step in self.steps:
            ts, dur = _span(self.begins[step], self.ends[step], unit_ns)
            yield {
                "ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": rank, "tid": 0, "ts": ts,
                "dur": dur,
            }  # fmt: skip
        for number, (row, lane) in enumerate(zip(rows, lanes, strict=True), first):
            yield from self._of_span(row, lane, number, unit_ns)

    def _of_span(self, row: Mapping[str, Any], lane: int, number: int, unit_ns: int) -> Iterator[dict[str, Any]]:
        """Yield the launch and the kernel of a span; a wait is an annotation of its lane."""
        rank, category = int(row["rank"]), str(row["category"])
        ts, dur = _span(*self._times(row), unit_ns)
        place = {"pid": rank, "tid": lane, "ts": ts, "dur": dur}
        if category == "wait":
            yield {"ph": "X", "cat": "user_annotation", "name": str(row["name"]), **place}
            return
        args = {
            "External id": number, "correlation": number, "device": rank, "stream": lane,
            "microbatch": int(row["microbatch"]), "label": str(row["label"]), "category": category,
            "bytes": float(row["nbytes"] or 0.0),
        }  # fmt: skip
        launch = {"pid": rank, "tid": 0, "ts": ts, "dur": 0}
        yield {
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **launch,
            "args": {"External id": number, "correlation": number},
        }  # fmt: skip
        yield {"ph": "X", "cat": "kernel", "name": _name(row), **place, "args": args}

    def _times(self, row: Mapping[str, Any]) -> tuple[float, float]:
        begin = self.begins[int(row["step"])]
        return begin + float(row["start_s"]), begin + float(row["end_s"])


def _axis(
    rows: Sequence[Mapping[str, Any]], steps: Sequence[int], steps_s: Sequence[float]
) -> tuple[dict[int, float], dict[int, float]]:
    """Return when each step begins and ends if steps follow one another."""
    last = dict.fromkeys(steps, 0.0)
    for row in rows:
        last[int(row["step"])] = max(last[int(row["step"])], float(row["end_s"]))
    early = -min([0.0, *(float(row["start_s"]) for row in rows)])
    begins, ends, now = {}, {}, 0.0
    for number, step in enumerate(steps):
        stated = steps_s[number] if len(steps_s) == len(steps) else 0.0
        begins[step] = now + early
        ends[step] = begins[step] + max(last[step], stated)
        now = ends[step] + _BETWEEN_S
    return begins, ends


def _stream(row: Mapping[str, Any]) -> int:
    category = str(row["category"])
    if category == "wait":
        return int(Stream.WAIT)
    return int(stream_of(class_of(str(row["label"])) if category == "communication" else category))


def _apart(spans: Sequence[tuple[float, float, int]]) -> list[int]:
    """Return a lane for each (start, end, stream): the stream, or a further lane of it if spans overlap.

    Spans must be in order of their start.
    """
    free: dict[int, list[float]] = {}
    lanes = []
    for start, end, stream in spans:
        ends = free.setdefault(stream, [])
        beside = next((n for n, when in enumerate(ends) if when <= start), len(ends))
        ends[beside : beside + 1] = [end]
        lanes.append(stream + beside * NUM_STREAMS)
    return lanes


def _span(start: float, end: float, unit_ns: int) -> tuple[float, float]:
    """Return start and duration in microseconds, rounded so that adjacent spans stay adjacent."""
    left, right = (int(np.rint(value * (1e9 / unit_ns))) for value in (start, end))
    return (left, right - left) if unit_ns == 1000 else (left / 1000, (right - left) / 1000)


def _name(row: Mapping[str, Any]) -> str:
    """Return a kernel name that HTA counts as communication or computation."""
    name, label = str(row["name"]), str(row["label"])
    if row["category"] == "communication":
        kernel = _KERNELS.get(class_of(label).rpartition(" ")[2], "SendRecv")
        return f"ncclDevKernel_{'SendRecv' if label.startswith('pp ') else kernel}({label})"
    for word in _HIDDEN:
        name = name.replace(word, word.upper())
    return name
