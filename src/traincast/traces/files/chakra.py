"""Chakra execution traces: a file per rank with a node for each task, which ASTRA-sim and others read.

The format is that of MLCommons' ``et_def.proto``: protocol buffers, each after its length; the first is the metadata,
the others are nodes. A collective is a node on every rank. Times are in whole microseconds there; the attribute
``duration_nanos`` keeps the exact ones.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from traincast.errors import FileFormatError
from traincast.files import write_bytes
from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import ProfilerTrace
from traincast.traces.recording.labels import labels_of
from traincast.traces.recording.recording import Lane, Recording, TaskRole
from traincast.traces.recording.steps import TraceStep
from traincast.traces.replay import Replayed

VARINT: Final = 0
LENGTH: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_MOST_BITS: Final = 70


def varint(value: int) -> bytes:
    """Return a number below 2⁶⁴; negative ones as their two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(field: int, value: int) -> bytes:
    """Return a field with a number."""
    return varint(field << 3 | VARINT) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    """Return a field with a text or a message."""
    return varint(field << 3 | LENGTH) + varint(len(value)) + value


def packed_field(field: int, values: Iterable[int]) -> bytes:
    """Return a field with several numbers; nothing if there are none."""
    packed = b"".join(map(varint, values))
    return bytes_field(field, packed) if packed else b""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it; raise ``ValueError`` if it does not end."""
    value = shift = 0
    while at < len(data) and shift < _MOST_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number does not end")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield field and value of a message; raise ``ValueError`` if it is cut or of another format."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == VARINT:
            value, at = read_varint(data, at)
            yield key >> 3, value
            continue
        if key & 7 == LENGTH:
            size, at = read_varint(data, at)
        elif key & 7 in _FIXED:
            size = _FIXED[key & 7]
        else:
            raise ValueError(f"a field has the unknown type {key & 7}")
        if at + size > len(data):
            raise ValueError("a message is cut")
        yield key >> 3, data[at : at + size]
        at += size


def numbers(value: int | bytes) -> list[int]:
    """Return the numbers of a repeated field, packed or single."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        one, at = read_varint(value, at)
        found.append(one)
    return found


def delimited(data: bytes) -> Iterator[bytes]:
    """Yield messages that follow one another, each after its length."""
    at = 0
    while at < len(data):
        size, at = read_varint(data, at)
        if at + size > len(data):
            raise ValueError("a message is cut")
        yield data[at : at + size]
        at += size


SUFFIX: Final = ".et"
_VERSION: Final = "0.0.4"
_METADATA: Final = 1
_COMPUTE: Final = 4
_COLLECTIVE: Final = 7
_COMMUNICATION: Final = (5, 6, 7)
_KINDS: Final = {"allreduce": 0, "allgather": 2, "broadcast": 5, "alltoall": 6, "reducescatter": 7}
_BYTES: Final = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Int": 4, "Long": 8, "Byte": 1}


def write_chakra(replayed: Replayed, path: Path) -> list[Path]:
    """Write one file per rank, ``NAME.RANK.et`` for a path ``NAME.et``, and return their paths."""
    recording = replayed.recording
    names, label = labels_of(recording)
    place = replayed.planned.place
    start = np.rint(replayed.timeline.start[place] * 1e9).astype(np.int64)
    end = np.rint(replayed.timeline.end[place] * 1e9).astype(np.int64)
    before = defaultdict[int, list[int]](list)
    for task, source in recording.edges.tolist():
        before[task].append(source)
    written = chakra_files(recording, path)
    for trace, target in zip(recording.traces, written, strict=True):
        rows = {i for i, lane in enumerate(recording.lanes) if lane.rank == trace.rank}
        mine = [task for task in np.argsort(place).tolist() if _belongs(recording, task, trace, rows)]
        own = set(mine)
        last: dict[int, int] = {}
        out = [_framed(bytes_field(1, _VERSION.encode()))]
        for task in mine:
            held = [lane for lane in (int(recording.lane[task]), *recording.others.get(task, ())) if lane in rows]
            order = [last[lane] for lane in held if lane in last]
            waits = sorted({source for source in (*before[task], *order) if source in own})
            last |= dict.fromkeys(held, task)
            out.append(
                _framed(_node(recording, task, names[int(label[task])], waits, (int(start[task]), int(end[task]))))
            )
        write_bytes(target, b"".join(out))
    return written


def chakra_files(recording: Recording, path: Path) -> list[Path]:
    """Return the files that :func:`write_chakra` writes, one for each rank."""
    stem = path.name.removesuffix(SUFFIX)
    return [path.with_name(f"{stem}.{trace.rank}{SUFFIX}") for trace in recording.traces]


def _belongs(recording: Recording, task: int, trace: ProfilerTrace, rows: set[int]) -> bool:
    if rows & {int(recording.lane[task]), *recording.others.get(task, ())}:
        return True
    return recording.lane[task] < 0 and recording.traces[int(recording.trace[task])].rank == trace.rank


def _framed(message: bytes) -> bytes:
    return varint(len(message)) + message


def _node(recording: Recording, task: int, name: str, waits: list[int], times: tuple[int, int]) -> bytes:
    took = times[1] - times[0]
    talks = bool(recording.communicates[task])
    lane = recording.lanes[int(recording.lane[task])] if recording.lane[task] >= 0 else None
    on_host = lane is not None and not lane.on_device
    parts = [
        number_field(1, task),
        bytes_field(2, name.encode()),
        number_field(3, _COLLECTIVE if talks else _COMPUTE),
        packed_field(5, waits),
        number_field(6, times[0] // 1000),
        number_field(7, -(-took // 1000)),
        _attribute("is_cpu_op", 27, int(on_host)),
        _attribute("duration_nanos", 13, took),
    ]
    if lane is not None:
        parts.append(_text("lane", lane.name))
    if talks:
        message = recording.traces[int(recording.trace[task])].messages.get(int(recording.event[task]))
        elements = max(message.in_elements, message.out_elements, 0) if message else 0
        kind = _KINDS.get(message.name.replace("_", "").lower(), 0) if message else 0
        parts.append(_attribute("comm_type", 9, kind))
        parts.append(_attribute("comm_size", 9, elements * _BYTES.get(message.dtype, 4) if message else 0))
    return b"".join(parts)


def _attribute(name: str, number: int, value: int) -> bytes:
    return bytes_field(10, bytes_field(1, name.encode()) + number_field(number, value))


def _text(name: str, value: str) -> bytes:
    return bytes_field(10, bytes_field(1, name.encode()) + bytes_field(29, value.encode()))


@dataclass(slots=True)
class _Node:
    number: int = 0
    name: str = ""
    kind: int = 0
    waits: list[int] = field(default_factory=list)
    start: int = 0
    duration: int = 0
    on_host: bool = False
    lane: str = ""
    ours: bool = False


def read_chakra(path: Path) -> Recording:
    """Return the recording of one rank's file; its rank is the number before the suffix, or 0."""
    try:
        raw = path.read_bytes()
        messages = delimited(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        next(messages)
        nodes = [_read(message) for message in messages]
    except (ValueError, StopIteration, UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise FileFormatError(f"{path} is no Chakra execution trace, or it is cut: {error or 'it is empty'}") from error
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    if not nodes:
        raise FileFormatError(f"{path} is a Chakra execution trace without nodes")
    stem = path.name.removesuffix(SUFFIX).rpartition(".")[2]
    return _recording(path, nodes, int(stem) if stem.isdigit() else 0)


def _read(message: bytes) -> _Node:
    node = _Node()
    for number, value in fields(message):
        if number == 2 and isinstance(value, bytes):
            node.name = value.decode()
        elif number in (4, 5):
            node.waits += numbers(value)
        elif number == 10 and isinstance(value, bytes):
            _read_attribute(node, dict(fields(value)))
        elif isinstance(value, int):
            match number:
                case 1:
                    node.number = value
                case 3:
                    node.kind = value
                case 6:
                    node.start = value * 1000
                case 7:
                    node.duration = node.duration or value * 1000
    return node


def _read_attribute(node: _Node, attribute: dict[int, int | bytes]) -> None:
    name = attribute.get(1, b"")
    value = next((v for k, v in attribute.items() if k > 2), 0)
    if name == b"is_cpu_op":
        node.on_host = bool(value)
    elif name == b"duration_nanos" and isinstance(value, int):
        node.duration, node.ours = value, True
    elif name in (b"lane", b"stream", b"tid"):
        node.lane = value.decode() if isinstance(value, bytes) else f"{name.decode()} {value}"


def _recording(path: Path, nodes: list[_Node], rank: int) -> Recording:
    """Return the nodes as tasks; a node without a lane of its own only lets time pass."""
    timed = len({node.start for node in nodes}) > 1
    if not timed:
        _schedule(nodes)
    nodes.sort(key=lambda node: (node.start, node.number))
    place = {node.number: at for at, node in enumerate(nodes)}
    edges = [(place[n.number], place[w]) for n in nodes for w in n.waits if w in place and w != n.number]
    names = {name: at for at, name in enumerate(dict.fromkeys(node.name for node in nodes))}
    lanes = {key: at for at, key in enumerate(dict.fromkeys((n.lane, n.on_host) for n in nodes if n.lane))}
    count = len(nodes)
    start = np.array([node.start for node in nodes], dtype=np.int64)
    duration = np.array([node.duration for node in nodes], dtype=np.int64)
    lane = np.array([lanes[n.lane, n.on_host] if n.lane else -1 for n in nodes], dtype=np.int32)
    on_host = np.array([node.on_host for node in nodes], dtype=bool)
    none = np.full(count, -1, dtype=np.int64)
    trace = ProfilerTrace(
        path=path, rank=rank, world_size=1, devices=(), origin=0,
        kind=np.where(on_host, int(Kind.OPERATOR), int(Kind.KERNEL)).astype(np.int8),
        name=np.array([names[node.name] for node in nodes], dtype=np.int32),
        lane=np.maximum(lane, 0), start=start, duration=duration, correlation=none, external=none, stream=none,
        device=none, nbytes=none, sequence=none, record=none, shape=none.astype(np.int32), names=tuple(names),
        lanes=tuple(("chakra", name) for name, _ in lanes) or (("chakra", ""),), shapes=(),
    )  # fmt: skip
    role = np.where(on_host, int(TaskRole.CALL), int(TaskRole.DEVICE))
    silent = np.array([node.kind <= _METADATA or (node.ours and not node.lane) for node in nodes], dtype=bool)
    role[silent] = int(TaskRole.LATENCY)
    return Recording(
        traces=(trace,),
        steps=((TraceStep("whole trace", 0, int((start + duration).max()), 0, whole=True),),),
        lanes=tuple(Lane(rank, name, not host) for name, host in lanes),
        role=role.astype(np.int8),
        trace=np.zeros(count, dtype=np.int32),
        event=np.arange(count),
        lane=lane,
        start=start,
        duration=duration,
        launched=none,
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        communicates=np.array([node.kind in _COMMUNICATION for node in nodes], dtype=bool),
        marks=(((-1, -1),),),
        clocks=(0,),
        notes=() if timed else ("the file states no start times: they follow from what each node waits for",),
    )


def _schedule(nodes: list[_Node]) -> None:
    """Let every node start when all that it waits for has ended; in a loop, one of them does not wait."""
    known = {node.number: node for node in nodes}
    waiting = {node.number: sum(w in known and w != node.number for w in node.waits) for node in nodes}
    after = defaultdict[int, list[int]](list)
    for node in nodes:
        for wait in node.waits:
            if wait in known and wait != node.number:
                after[wait].append(node.number)
    ready = [number for number, count in waiting.items() if not count]
    done: set[int] = set()
    left = iter(list(known))
    while len(done) < len(known):
        number = ready.pop() if ready else next(n for n in left if n not in done)
        if number in done:
            continue
        done.add(number)
        end = known[number].start + known[number].duration
        for later in after[number]:
            if later not in done:
                known[later].start = max(known[later].start, end)
                waiting[later] -= 1
                if not waiting[later]:
                    ready.append(later)
