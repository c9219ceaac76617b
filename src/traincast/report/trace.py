"""Traces: a timeline as Chrome events, for Perfetto and for HolisticTraceAnalysis (HTA).

The events are those of PyTorch's profiler: a host thread with an operator and a ``cudaLaunchKernel`` per launch, and
one lane per device stream with the kernels, linked to their launches by ``correlation``. HTA recognizes communication
by names that match ``^nccl.*Kernel``, a step by ``ProfilerStep#0``, and the rank of a file by the first line with
``"rank": ``.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
import numpy.typing as npt

from traincast.errors import FileFormatError, RequestError
from traincast.files import make_folder, writing
from traincast.graph import Operator
from traincast.simulate import Timeline
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Stream
from traincast.work import Collective, Launch, Transfer, Work

_KERNELS: Final[dict[str, str]] = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AllToAll",
    "broadcast": "Broadcast",
}
_RESERVED: Final = re.compile(r"^nccl|^dma|Sync|Memcpy|Memset")
"""Words in a kernel's name that keep HTA from counting it as compute; HTA is case-sensitive."""


@dataclass(frozen=True, slots=True)
class EventKind:
    """Name, label and arguments of an event, as JSON; tasks with the same cost, label and category share them."""

    name: str
    label: str
    args: str


def event_kind(plan: Plan, task: int) -> EventKind:
    """Return the kind of event that shows ``task``."""
    cost, category = int(plan.cost[task]), Category(int(plan.category[task]))
    work = plan.work_of(cost)
    text = plan.labels[plan.label[task]]
    args = {"label": text, "category": category.name.lower(), **_amounts(work)}
    return EventKind(name=json.dumps(_name(work, text, category)), label=json.dumps(text), args=json.dumps(args)[1:-1])


def _name(work: Work | None, label: str, category: Category) -> str:
    """Return a kernel name that HTA counts as communication or computation, as this report does."""
    if category is not Category.COMMUNICATION:
        return _RESERVED.sub(lambda match: match[0].upper(), label)
    kernel = "SendRecv" if isinstance(work, Transfer) else _KERNELS[work.kind] if isinstance(work, Collective) else ""
    return f"ncclDevKernel_{kernel}({label})"


def _amounts(work: Work | None) -> dict[str, float | str]:
    """Return the event arguments that describe the work, such as its bytes and FLOPs."""
    match work:
        case Operator():
            return {"kind": work.kind.value, "flops": work.flops, "bytes": work.nbytes}
        case Collective():
            return {
                "Collective name": work.kind.replace("_", ""),
                "Group size": work.num_ranks,
                "bytes": work.nbytes,
            }
        case Transfer():
            return {"bytes": work.nbytes}
        case Launch():
            return {"kernels": work.kernels + work.prepared}
        case _:
            return {}


Ints = npt.NDArray[np.int64]

STREAM_NAMES: Final[dict[Stream, str]] = {
    Stream.HOST: "host",
    Stream.COMPUTE: "compute",
    Stream.COMMUNICATION: "communication",
    Stream.DATA: "data",
    Stream.SEND_FORWARD: "send forward",
    Stream.SEND_BACKWARD: "send backward",
    Stream.PUSH: "push",
    Stream.PULL: "pull",
    Stream.UPDATE: "update",
    Stream.WAIT: "waiting",
}

_COMPRESSION: Final = 3
_CHUNK: Final = 20_000
_MOST_BESIDE: Final = 1000
"""Greatest number of parallel lanes of one stream that a viewer sorts correctly."""


def write_trace(
    timeline: Timeline,
    path: Path,
    *,
    backend: str = "nccl",
    ranks: Sequence[int] | None = None,
    about: Mapping[str, Any] | None = None,
) -> int:
    """Write one trace with a process for each of ``ranks``, and return the number of events.

    By default these are the ranks that the plan has rows for: all ranks of an expanded plan, one per stage of a folded
    one. A folded plan accepts any rank, and shows the row of its stage. Parameter servers have the ranks after those of
    the workers. ``about`` describes the forecast; it becomes the file's ``otherData``.
    """
    source = _Source(timeline, about)
    chosen = source.check(ranks)
    return source.write(path, chosen, backend=backend, unit_ns=1)


def write_traces(
    timeline: Timeline,
    directory: Path,
    *,
    backend: str = "nccl",
    ranks: Sequence[int] | None = None,
    about: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write one trace per rank into ``directory``, as HTA reads them; create the folder, but not its parent.

    Times are whole microseconds, because HTA rounds fractional starts up and ends down, which would shorten every
    kernel by a microsecond.
    """
    source = _Source(timeline, about)
    chosen = source.check(ranks)
    make_folder(directory, parents=False)
    digits = len(str(max(source.plan.mesh.num_ranks - 1, *chosen)))
    paths = [directory / f"rank{rank:0{digits}d}.json.gz" for rank in chosen]
    for path, rank in zip(paths, chosen, strict=True):
        source.write(path, [rank], backend=backend, unit_ns=1000)
    return paths


def check_name(path: Path) -> None:
    """Raise :class:`FileFormatError` unless the name ends in ``.json`` or ``.json.gz``."""
    if not path.name.endswith((".json", ".json.gz")):
        raise FileFormatError(f"trace {str(path)!r}: expected a name that ends in .json or .json.gz")


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Open a text file that replaces ``path`` when the block ends; compress it if the name ends in ``.gz``."""
    with writing(path) as raw:
        if path.suffix == ".gz":
            with (
                gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) as packed,
                io.TextIOWrapper(packed, encoding="utf-8") as text,
            ):
                yield text
        else:
            plain = io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
            try:
                yield plain
            finally:
                plain.detach()


class _Source:
    """A timeline laid out by rank, ready to be written."""

    def __init__(self, timeline: Timeline, about: Mapping[str, Any] | None) -> None:
        plan = timeline.plan
        self.plan = plan
        self._about = dict(about or {})
        self._timeline = timeline
        self._task, stream, self._row_start = lanes_by_row(plan)
        self._lane = _apart(timeline, self._task, stream, self._row_start)
        self._launched = _launched(plan)
        key = (plan.cost.astype(np.int64) * len(plan.labels) + plan.label) * len(Category) + plan.category
        _, example, self._kind_of = np.unique(key, return_index=True, return_inverse=True)
        self._kinds = [event_kind(plan, task) for task in example.tolist()]

    def check(self, ranks: Sequence[int] | None) -> list[int]:
        """Return the ranks in order, each once; refuse ranks that the plan does not have."""
        world, rows = self.plan.mesh.num_ranks, set(self.plan.ranks.tolist())
        chosen = sorted(rows if ranks is None else set(ranks))
        folded = max(rows) < world  # a plan with servers has a row for every rank
        wrong = [r for r in chosen if r not in rows and not (folded and 0 <= r < world)]
        if wrong or not chosen:
            asked = f"rank {wrong[0]}" if wrong else "no rank"
            has = (
                f"ranks 0 to {world - 1}" if folded else f"rows for {len(rows)} workers and servers, up to {max(rows)}"
            )
            raise RequestError(f"trace of {asked}: the plan has {has}")
        return chosen

    def write(self, path: Path, ranks: list[int], *, backend: str, unit_ns: int) -> int:
        """Write the events of ``ranks`` to ``path``, in multiples of ``unit_ns``; return their number."""
        check_name(path)
        count = 0
        with replacing(path) as file:
            file.write(self._header(path.name, ranks, backend))
            first = 1
            for number, rank in enumerate(ranks):
                lines = self._metadata(rank)
                kernels, events = self._events(rank, first, unit_ns)
                first += kernels
                file.write(",\n" if number else "")
                file.write(",\n".join(lines))
                for chunk in _chunks(events):
                    file.write(",\n")
                    file.write(",\n".join(chunk))
                    count += len(chunk)
            file.write("\n]\n}\n")
        return count

    def _header(self, name: str, ranks: list[int], backend: str) -> str:
        mesh = self.plan.mesh
        devices = sorted({mesh.device_of(rank) for rank in ranks})
        values = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": device, "name": "predicted by Traincast"} for device in devices],
            "distributedInfo": {
                "backend": backend,
                "rank": ranks[0],
                "world_size": max(mesh.num_ranks, int(self.plan.ranks.max()) + 1),
            },
            "displayTimeUnit": "ms",
            "traceName": name,
            "baseTimeNanoseconds": 0,
            **({"otherData": self._about} if self._about else {}),
        }
        lines = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in values.items())
        return "{\n" + lines + '"traceEvents": [\n'

    def _row(self, rank: int) -> int:
        """Return the row that shows ``rank``."""
        plan = self.plan
        rows = np.flatnonzero(plan.ranks == rank)
        return int(rows[0]) if len(rows) else plan.mesh.coordinate(rank, "pp")

    def _metadata(self, rank: int) -> list[str]:
        row = self._row(rank)
        used = np.unique(self._lane[self._row_start[row] : self._row_start[row + 1]]).tolist()
        values: list[tuple[str, int, dict[str, Any]]] = [
            ("process_name", 0, {"name": self.plan.name_of(rank)}),
            ("process_sort_index", 0, {"sort_index": rank}),
        ]
        for lane in sorted({int(Stream.HOST), *used}, key=lambda lane: (lane % NUM_STREAMS, lane)):
            beside, stream = divmod(lane, NUM_STREAMS)
            name = STREAM_NAMES[Stream(stream)] + (f" {beside + 1}" if beside else "")
            values.append(("thread_name", lane, {"name": name}))
            values.append(("thread_sort_index", lane, {"sort_index": stream * _MOST_BESIDE + beside}))
        return [
            json.dumps({"ph": "M", "name": name, "pid": rank, "tid": tid, "ts": 0, "args": args})
            for name, tid, args in values
        ]

    def _events(self, rank: int, first: int, unit_ns: int) -> tuple[int, Iterator[str]]:
        """Return the number of kernels of ``rank`` and its events; kernels are numbered from ``first``."""
        plan, row = self.plan, self._row(rank)
        part = slice(self._row_start[row], self._row_start[row + 1])
        task, lane = self._task[part], self._lane[part]
        host, waits = plan.category[task] == Category.HOST, plan.category[task] == Category.WAIT
        runs = ~host & ~waits
        kernel, launch = task[runs], task[host]
        place = np.searchsorted(kernel, self._launched[launch])
        number = np.where(place < len(kernel), first + place, -1).tolist()  # a task that launches nothing gets -1
        step = _times(np.array([0.0]), np.array([self._timeline.step_s]), unit_ns)[1][0]

        def events() -> Iterator[str]:
            yield (
                f'{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#0","pid":{rank},"tid":0,"ts":0,"dur":{step}}}'
            )
            yield from self._host_events(rank, launch, number, unit_ns)
            yield from self._kernel_events(rank, kernel, lane[runs].tolist(), first, unit_ns)
            yield from self._wait_events(rank, task[waits], lane[waits].tolist(), unit_ns)

        return len(kernel), events()

    def _host_events(self, rank: int, task: Ints, launched: list[int], unit_ns: int) -> Iterator[str]:
        kinds = self._kinds
        own = self._kind_of[task].tolist()
        target = self._kind_of[np.minimum(self._launched[task], self.plan.num_tasks - 1)].tolist()
        starts, durations = self._spans(task, unit_ns)
        for mine, other, number, ts, dur in zip(own, target, launched, starts, durations, strict=True):
            at = f'"pid":{rank},"tid":0,"ts":{ts},"dur":{dur}'
            if number < 0:
                if dur > 0:
                    yield f'{{"ph":"X","cat":"cpu_op","name":{kinds[mine].label},{at},"args":{{{kinds[mine].args}}}}}'
                continue
            yield (
                f'{{"ph":"X","cat":"cpu_op","name":{kinds[other].label},{at},'
                f'"args":{{"External id":{number},{kinds[mine].args}}}}}'
            )
            yield (
                f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel",{at},'
                f'"args":{{"External id":{number},"correlation":{number}}}}}'
            )

    def _kernel_events(self, rank: int, task: Ints, stream: list[int], first: int, unit_ns: int) -> Iterator[str]:
        kinds = self._kinds
        device = self.plan.mesh.device_of(rank)
        starts, durations = self._spans(task, unit_ns)
        columns = zip(
            range(first, first + len(task)),
            self._kind_of[task].tolist(),
            stream,
            self.plan.microbatch[task].tolist(),
            starts,
            durations,
            strict=True,
        )
        for number, kind, lane, microbatch, ts, dur in columns:
            yield (
                f'{{"ph":"X","cat":"kernel","name":{kinds[kind].name},"pid":{rank},"tid":{lane},"ts":{ts},"dur":{dur},'
                f'"args":{{"External id":{number},"correlation":{number},"device":{device},"stream":{lane},'
                f'"microbatch":{microbatch},{kinds[kind].args}}}}}'
            )

    def _wait_events(self, rank: int, task: Ints, lane: list[int], unit_ns: int) -> Iterator[str]:
        """Yield annotations that name what a device waits for."""
        starts, durations = self._spans(task, unit_ns)
        for kind, tid, ts, dur in zip(self._kind_of[task].tolist(), lane, starts, durations, strict=True):
            name = self._kinds[kind].label
            yield f'{{"ph":"X","cat":"user_annotation","name":{name},"pid":{rank},"tid":{tid},"ts":{ts},"dur":{dur}}}'

    def _spans(self, task: Ints, unit_ns: int) -> tuple[list[float], list[float]]:
        return _times(self._timeline.start[task], self._timeline.end[task], unit_ns)


def _times(
    start: npt.NDArray[np.float64], end: npt.NDArray[np.float64], unit_ns: int
) -> tuple[list[float], list[float]]:
    """Return starts and durations in microseconds, rounded so that adjacent spans stay adjacent."""
    left = np.rint(start * (1e9 / unit_ns)).astype(np.int64)
    right = np.rint(end * (1e9 / unit_ns)).astype(np.int64)
    if unit_ns == 1000:
        return left.tolist(), (right - left).tolist()
    scale = 1000 / unit_ns
    return (left / scale).tolist(), ((right - left) / scale).tolist()


def _chunks(lines: Iterator[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def lanes_by_row(plan: Plan) -> tuple[Ints, Ints, Ints]:
    """Return the task and stream of every (task, row) pair, sorted by row, and the index at which each row starts.

    A task that holds several lanes of a row appears on one: communication on its lane other than compute, any other
    task on compute.
    """
    task = np.repeat(np.arange(plan.num_tasks), np.diff(plan.lane_start))
    row, stream = np.divmod(plan.lanes, NUM_STREAMS)
    order = np.argsort((row * plan.num_tasks + task) * NUM_STREAMS + stream)
    task, row, stream = task[order], row[order], stream[order]
    opens = np.ones(len(task), dtype=bool)
    opens[1:] = (task[1:] != task[:-1]) | (row[1:] != row[:-1])
    closes = np.append(opens[1:], True)[: len(task)]
    keep = np.where(plan.category[task] == Category.COMMUNICATION, closes, opens)
    starts = np.zeros(len(plan.ranks) + 1, dtype=np.int64)
    np.cumsum(np.bincount(row[keep], minlength=len(plan.ranks)), out=starts[1:])
    return task[keep], stream[keep], starts


def _apart(timeline: Timeline, task: Ints, stream: Ints, row_start: Ints) -> Ints:
    """Return a lane for every (task, row) pair, so that the spans of a lane do not overlap.

    The lane is the stream, except for messages that share a link: the second message at a time gets the lane
    stream + NUM_STREAMS, and so on.
    """
    start, end = timeline.start[task], timeline.end[task]
    row = np.repeat(np.arange(len(row_start) - 1), np.diff(row_start))
    order = np.lexsort((end, start, stream, row))
    same = (row[order][1:] == row[order][:-1]) & (stream[order][1:] == stream[order][:-1])
    if not (same & (start[order][1:] < end[order][:-1])).any():
        return stream
    lane = stream.copy()
    free: list[float] = []  # when each lane of the stream at hand is free again
    for number, at in enumerate(order.tolist()):
        if not number or not same[number - 1]:
            free = []
        beside = next((n for n, when in enumerate(free) if when <= start[at]), len(free))
        free[beside : beside + 1] = [float(end[at])]
        lane[at] += beside * NUM_STREAMS
    return lane


def _launched(plan: Plan) -> Ints:
    """Return, for each task, the device task that it launches, or ``num_tasks`` if it launches none."""
    target = np.repeat(np.arange(plan.num_tasks), np.diff(plan.predecessor_start))
    host = plan.category == Category.HOST
    edge = host[plan.predecessors] & ~host[target]
    launched = np.full(plan.num_tasks, plan.num_tasks, dtype=np.int64)
    launched[plan.predecessors[edge]] = target[edge]
    return launched
