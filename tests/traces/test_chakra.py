"""Chakra execution traces: written, read, and decoded by the format's own schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.made import device_bound, pair_of_ranks
from traincast import FileFormatError
from traincast.traces.changes.hosts import FasterHost
from traincast.traces.files.chakra import (
    bytes_field,
    delimited,
    number_field,
    read_chakra,
    read_varint,
    varint,
    write_chakra,
)
from traincast.traces.recording.couple import couple
from traincast.traces.recording.record import record
from traincast.traces.replay import run


def schema() -> tuple[Any, Any]:
    """The messages ``GlobalMetadata`` and ``Node`` of et_def.proto, with the fields that are written here."""
    protobuf = pytest.importorskip("google.protobuf")
    del protobuf
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *columns: tuple[int, str, int, bool, str]) -> None:
        made = file.message_type.add(name=name)
        for number, text, kind, several, of in columns:
            label = kinds.LABEL_REPEATED if several else kinds.LABEL_OPTIONAL
            made.field.add(name=text, number=number, type=kind, label=label, type_name=of or None)

    attribute = ".ChakraProtoMsg.AttributeProto"
    message(
        "AttributeProto",
        (1, "name", kinds.TYPE_STRING, False, ""),
        (9, "int64_val", kinds.TYPE_INT64, False, ""),
        (13, "uint64_val", kinds.TYPE_UINT64, False, ""),
        (27, "bool_val", kinds.TYPE_BOOL, False, ""),
        (29, "string_val", kinds.TYPE_STRING, False, ""),
    )
    message(
        "GlobalMetadata",
        (1, "version", kinds.TYPE_STRING, False, ""),
        (2, "attr", kinds.TYPE_MESSAGE, True, attribute),
    )
    message(
        "Node",
        (1, "id", kinds.TYPE_UINT64, False, ""),
        (2, "name", kinds.TYPE_STRING, False, ""),
        (3, "type", kinds.TYPE_INT32, False, ""),
        (4, "ctrl_deps", kinds.TYPE_UINT64, True, ""),
        (5, "data_deps", kinds.TYPE_UINT64, True, ""),
        (6, "start_time_micros", kinds.TYPE_UINT64, False, ""),
        (7, "duration_micros", kinds.TYPE_UINT64, False, ""),
        (10, "attr", kinds.TYPE_MESSAGE, True, attribute),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}") for name in ("GlobalMetadata", "Node")]
    return message_factory.GetMessageClass(found[0]), message_factory.GetMessageClass(found[1])


def test_the_schema_of_the_format_decodes_what_was_written(tmp_path: Path) -> None:
    metadata, node = schema()
    from google.protobuf.unknown_fields import UnknownFieldSet

    recording = record(device_bound().trace(tmp_path))
    (path,) = write_chakra(run(recording), tmp_path / "out.et")
    assert path.name == "out.0.et"
    first, *rest = delimited(path.read_bytes())
    assert metadata.FromString(first).version
    nodes = [node.FromString(message) for message in rest]
    assert len(nodes) == len(recording)
    assert all(not len(UnknownFieldSet(n)) for n in nodes)
    gemm = next(n for n in nodes if n.name == "gemm")
    assert (gemm.type, gemm.duration_micros) == (4, 45)
    assert {a.name for a in gemm.attr} >= {"is_cpu_op", "duration_nanos", "lane"}
    known = {n.id for n in nodes}
    assert all(set(n.data_deps) <= known for n in nodes)


def test_a_written_trace_is_read_and_replayed_alike(tmp_path: Path) -> None:
    done = run(record(device_bound().trace(tmp_path)))
    (path,) = write_chakra(done, tmp_path / "out.et")
    again = read_chakra(path)
    assert run(again).total_s == pytest.approx(done.total_s, rel=1e-6)
    assert len(again) == len(done.recording)


def test_a_collective_is_a_node_on_every_rank(tmp_path: Path) -> None:
    _, node = schema()
    recording = couple([record(made.trace(tmp_path)) for made in pair_of_ranks()])
    paths = write_chakra(run(recording), tmp_path / "job.et")
    assert [path.name for path in paths] == ["job.0.et", "job.1.et"]
    for path in paths:
        nodes = [node.FromString(message) for message in list(delimited(path.read_bytes()))[1:]]
        assert [n.duration_micros for n in nodes if n.type == 7] == [20]
    again = couple([read_chakra(path) for path in paths])
    assert np.flatnonzero(again.communicates).size == 1
    assert run(again).total_s == pytest.approx(run(recording).total_s, rel=1e-6)


@pytest.mark.parametrize("content", [b"", b"\x05ab", b"{}", b"\x02\x08\x01\x03\xff\xff\xff"])
def test_what_is_no_execution_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.et"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="Chakra"):
        read_chakra(path)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**63, 2**64 - 1])
def test_numbers_survive_the_wire(value: int) -> None:
    assert read_varint(varint(value), 0) == (value, len(varint(value)))


def test_nodes_of_other_programs_without_start_times_start_when_they_can(tmp_path: Path) -> None:
    def attribute(name: str, value: int) -> bytes:
        return bytes_field(10, bytes_field(1, name.encode()) + number_field(27, value))

    messages = [bytes_field(1, b"0.0.4")]
    for number, (took, host, waits) in enumerate([(10, 1, ()), (20, 0, (1,)), (5, 0, (1,)), (1, 1, (2, 3))], 1):
        node = number_field(1, number) + bytes_field(2, b"op") + number_field(3, 4) + number_field(7, took)
        node += b"".join(number_field(4, wait) for wait in waits)
        messages.append(node + attribute("is_cpu_op", host))
    path = tmp_path / "other.3.et"
    path.write_bytes(b"".join(varint(len(message)) + message for message in messages))
    recording = read_chakra(path)
    assert recording.lanes == () and recording.traces[0].rank == 3
    assert sorted(recording.start.tolist()) == [0, 10_000, 10_000, 30_000]
    assert run(recording).total_s == pytest.approx(31e-6)
    assert run(FasterHost(2.0).apply(recording)).total_s == pytest.approx(25.5e-6)
    assert "no start times" in recording.notes[0]
