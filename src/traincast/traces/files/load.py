"""Loads traces: one file, several, or a folder with one per rank."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from traincast.collector import without_collector
from traincast.errors import FileFormatError, RequestError
from traincast.traces.files.chunks import PIECE_BYTES, EventReader, NotATraceError
from traincast.traces.files.kineto import ABSENT, Args, Event, Header, Kind, Number, kind_of_event
from traincast.traces.files.trace import NONE, Ints, ProfilerTrace, RecordedMessage, RecordedShape, SyncFacts

_TENS: Final = np.array([1000, 100, 10, 1])
_RANK_IN_NAME: Final = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
_PAIR: Final = ("B", "E")
SUFFIXES: Final = (".json", ".json.gz")
_COLUMNS: Final = (
    "kind", "name", "lane", "start", "duration", "correlation", "external", "stream", "device", "nbytes", "sequence",
    "record", "shape",
)  # fmt: skip


def load_traces(paths: Sequence[Path], *, piece_bytes: int = PIECE_BYTES) -> list[ProfilerTrace]:
    """Load the traces of one job, sorted by rank; a folder stands for all traces in it.

    Refuses two traces of the same rank.
    """
    traces = []
    for path in paths:
        traces += _folder(path, piece_bytes) if path.is_dir() else [load_trace(path, piece_bytes=piece_bytes)]
    if not traces:
        raise RequestError("no trace was given: name a file or a folder")
    traces.sort(key=lambda trace: trace.rank)
    for one, other in pairwise(traces):
        if one.rank == other.rank:
            raise RequestError(
                f"{one.path} and {other.path} are both of rank {one.rank}: give one trace of each rank of one job"
            )
    return traces


def load_jobs(paths: Sequence[Path]) -> list[list[ProfilerTrace]]:
    """Load traces of one or several jobs: a folder is a job; files are one job if each is of another rank.

    Otherwise every file is a job of its own, such as a repeat or another batch size.
    """
    jobs = [load_traces([path]) for path in paths if path.is_dir()]
    files = [load_trace(path) for path in paths if not path.is_dir()]
    if len({trace.rank for trace in files}) == len(files) > 0:
        jobs.append(sorted(files, key=lambda trace: trace.rank))
    else:
        jobs += [[trace] for trace in files]
    return jobs


def load_trace(path: Path, *, piece_bytes: int = PIECE_BYTES) -> ProfilerTrace:
    """Load one file of PyTorch's profiler, plain or compressed by gzip."""
    reader = EventReader(path, piece_bytes=piece_bytes)
    columns = _Columns()
    with without_collector():
        try:
            for events in reader:
                columns.add(events)
        except UnicodeDecodeError as error:
            raise FileFormatError(f"trace {path} is not UTF-8 text: {error.reason}; record it again") from error
        except (ValueError, OverflowError, InvalidOperation) as error:
            raise FileFormatError(f"trace {path} has an event with a time that is no number: {error}") from error
    return columns.trace(path, reader.header)


def rank_in_name(path: Path) -> int:
    """Return the rank that a file's name states, or −1."""
    found = _RANK_IN_NAME.search(path.name)
    return int(found[1]) if found else NONE


def _folder(path: Path, piece_bytes: int) -> list[ProfilerTrace]:
    """Load all traces of a folder; other JSON files beside them are left out."""
    inside = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES) and p.is_file())
    if not inside:
        raise FileFormatError(f"folder {path} has no traces: none of its files ends in .json or .json.gz")
    found: list[ProfilerTrace] = []
    other: NotATraceError | None = None
    for file in inside:
        try:
            found.append(load_trace(file, piece_bytes=piece_bytes))
        except NotATraceError as error:
            other = error
    if not found and other is not None:
        raise other
    return found


class _Numbered(dict[Any, int]):
    """Numbers distinct values in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class _Columns:
    """Collects events into columns; texts that repeat are kept once."""

    def __init__(self) -> None:
        self._names, self._lanes, self._shapes = _Numbered(), _Numbered(), _Numbered()
        self._kinds: dict[str, int] = {}
        self._ranges: list[bool] = []
        self._parts: list[list[Ints]] = []
        self._messages: dict[int, RecordedMessage] = {}
        self._syncs: dict[int, SyncFacts] = {}
        self._skipped: Counter[str] = Counter()
        self._open: dict[tuple[Any, Any], list[Event]] = {}
        self._count = 0

    def add(self, events: Sequence[Event]) -> None:
        """Add the complete events of a piece that have a meaning here."""
        chosen, kinds = self._chosen(self._complete(events))
        if not chosen:
            return
        name = np.array(list(map(self._names.__getitem__, [event.name for event in chosen])), dtype=np.int64)
        lanes = zip([event.pid for event in chosen], [event.tid for event in chosen], strict=True)
        given = [event.args for event in chosen]
        args = [_NO_ARGS if one is None else one for one in given]
        external: list[Number] = [arg.external for arg in args]
        older = [arg.external_old for arg in args]
        if older.count(None) != len(older):
            external = [new if old is None else old for new, old in zip(external, older, strict=True)]
        self._parts.append(
            [
                self._kinds_by_name(np.array(kinds, dtype=np.int64), name),
                name,
                np.array(list(map(self._lanes.__getitem__, lanes)), dtype=np.int64),
                _nanoseconds([event.ts for event in chosen]),
                _nanoseconds([event.dur for event in chosen]),
                _numbers([arg.correlation for arg in args]),
                _numbers(external),
                _numbers([arg.stream for arg in args]),
                _numbers([arg.device for arg in args]),
                _numbers([arg.nbytes for arg in args]),
                _numbers([arg.sequence for arg in args]),
                _numbers([arg.record for arg in args]),
                np.array(self._shape_numbers(args), dtype=np.int64),
            ]
        )
        self._facts(args)
        self._count += len(chosen)

    def _complete(self, events: Sequence[Event]) -> list[Event]:
        """Return the events with a duration; a begin and the end that belongs to it make one."""
        complete = [event for event in events if event.ph == "X"]
        pairs = [event for event in events if event.ph in _PAIR]
        for event in pairs:
            if event.ph == "B":
                self._open.setdefault((event.pid, event.tid), []).append(event)
            elif self._open.get((event.pid, event.tid)):
                begun = self._open[event.pid, event.tid].pop()
                took = _nanoseconds([event.ts])[0] - _nanoseconds([begun.ts])[0]
                begun.dur = msgspec.Raw(f"{took / 1000:.3f}".encode())
                complete.append(begun)
        return complete

    def _chosen(self, events: list[Event]) -> tuple[list[Event], list[int]]:
        """Return the events whose category has a meaning here, and its kind; count the others."""
        categories = [event.cat for event in events]
        for category in set(categories) - self._kinds.keys():
            kind = kind_of_event(category, "")
            self._kinds[category] = NONE if kind is None else int(kind)
        kinds = list(map(self._kinds.__getitem__, categories))
        if NONE not in kinds:
            return events, kinds
        self._skipped.update(one for one, kind in zip(categories, kinds, strict=True) if kind == NONE)
        chosen = [event for event, kind in zip(events, kinds, strict=True) if kind != NONE]
        return chosen, [kind for kind in kinds if kind != NONE]

    def _kinds_by_name(self, kinds: Ints, name: Ints) -> Ints:
        """Return the kinds of events, where ranges that early releases filed under operators are ranges."""
        new = list(self._names)[len(self._ranges) :]
        self._ranges += [kind_of_event(_OPERATOR, text) is Kind.ANNOTATION for text in new]
        ranges = np.array(self._ranges, dtype=bool)[name]
        return np.where(ranges & (kinds == Kind.OPERATOR), int(Kind.ANNOTATION), kinds)

    def _facts(self, args: list[Args]) -> None:
        """Note what the arguments of the next events say of collectives and of waits."""
        for number, arg in enumerate(args, self._count):
            if arg.collective is not None:
                self._messages[number] = _message(arg)
            if arg.sync_kind is not None:
                self._syncs[number] = SyncFacts(
                    arg.sync_kind, _number(arg.waits_for_stream), _number(arg.waits_for_record)
                )

    def _shape_numbers(self, args: list[Args]) -> list[int]:
        """Return the number of each event's shapes; texts are joined, because one text is found faster than five."""
        shapes = self._shapes
        return [
            NONE if texts[0] is ABSENT and texts[1] is ABSENT else shapes[b"\0".join(texts)]
            for texts in map(_SHAPE, args)
        ]

    def trace(self, path: Path, header: Header) -> ProfilerTrace:
        """Return the trace with its events sorted."""
        if not self._count or all((part[0] == Kind.ANNOTATION).all() for part in self._parts):
            raise FileFormatError(
                f"trace {path} has no operators, calls or kernels: record it with PyTorch's profiler, with activities "
                "of the processor and of the device"
            )
        columns = dict(zip(_COLUMNS, (np.concatenate(part) for part in zip(*self._parts, strict=True)), strict=True))
        self._parts = []
        order = np.lexsort((-columns["duration"], columns["start"]))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        sorted_columns: dict[str, Any] = {name: column[order] for name, column in columns.items()}
        origin = int(sorted_columns["start"][0])
        sorted_columns["start"] -= origin
        for name, dtype in (("kind", np.int8), ("name", np.int32), ("lane", np.int32), ("shape", np.int32)):
            sorted_columns[name] = sorted_columns[name].astype(dtype)
        info = header.distributed
        said = _number(info.rank) if info else NONE
        rank = said if said >= 0 else max(rank_in_name(path), 0)
        return ProfilerTrace(
            path=path,
            rank=rank,
            world_size=max(_number(info.world_size), 1) if info else 1,
            devices=tuple(header.devices or ()),
            origin=origin,
            names=tuple(self._names),
            lanes=tuple((str(process), str(thread)) for process, thread in self._lanes),
            shapes=tuple(_shape(key) for key in self._shapes),
            messages={int(place[k]): v for k, v in self._messages.items()},
            syncs={int(place[k]): v for k, v in self._syncs.items()},
            skipped=dict(self._skipped),
            **sorted_columns,
        )


_NO_ARGS: Final = Args()
_SHAPE: Final = attrgetter("dims", "grid", "types", "concrete", "block", "strides")
_OPERATOR: Final = "cpu_op"


def _shape(key: bytes) -> RecordedShape:
    dims, grid, types, concrete, block, strides = key.decode().split("\0")
    return RecordedShape(dims, types, concrete, grid, block, strides)


def _nanoseconds(texts: Sequence[msgspec.Raw]) -> Ints:
    """Return decimal numbers of microseconds as exact integers of nanoseconds.

    A number of 1.7e15 µs with three decimals does not fit a float: its last digits would be lost.
    """
    joined = b",".join(texts)
    dots = joined.count(b".")
    if not dots and not re.search(rb"[^\d,-]", joined):
        return np.fromstring(joined, dtype=np.int64, sep=",") * 1000
    if not re.search(rb"[^\d,.-]", joined):
        digits = np.fromstring(joined.replace(b".", b""), dtype=np.int64, sep=",")
        letters = np.frombuffer(joined, dtype=np.uint8)
        ends = np.append(np.flatnonzero(letters == ord(",")), len(joined))
        points = np.flatnonzero(letters == ord("."))
        decimals = np.zeros(len(texts), dtype=np.int64)
        which = np.searchsorted(ends, points)
        decimals[which] = ends[which] - points - 1
        if len(digits) == len(texts) and decimals.max() < len(_TENS):
            exactly: Ints = digits * _TENS[decimals]
            return exactly
    exact = [Decimal(part.decode().strip('"')) * 1000 for part in joined.split(b",")]
    return np.array([int(value.to_integral_value()) for value in exact], dtype=np.int64)


def _numbers(values: Sequence[Number]) -> Ints:
    if values.count(NONE) == len(values):
        return np.full(len(values), NONE, dtype=np.int64)
    try:
        return np.array(values, dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        return np.array([_number(value) for value in values], dtype=np.int64)


def _number(value: Number) -> int:
    """Return a number as traces write it; text that is none counts as absent."""
    if value is None:
        return NONE
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, OverflowError):
        return NONE
    return number if -(1 << 63) <= number < 1 << 63 else NONE


def _message(args: Args) -> RecordedMessage:
    return RecordedMessage(
        args.collective or "",
        _number(args.in_elements),
        _number(args.out_elements),
        _number(args.group_size),
        str(args.dtype or ""),
        args.group_name or "",
    )
