"""Loading traces: exact times, every spelling, any size, and refusals in one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.traces.made import Made, host_bound
from traincast import FileFormatError, RequestError
from traincast.traces.files.kineto import Kind
from traincast.traces.files.load import load_jobs, load_trace, load_traces


def text_of(made: Made, **changes: str) -> str:
    return json.dumps(made.document())


@pytest.mark.parametrize(
    ("ts", "dur", "start", "duration"),
    [
        ("1700000000000001.234", "2.001", 1_700_000_000_000_001_234, 2001),
        ("1700000000000001", "2", 1_700_000_000_000_001_000, 2000),
        ("4458676522690.655", "0.5", 4_458_676_522_690_655, 500),
        ("1.5e3", "1", 1_500_000, 1000),
    ],
)
def test_times_are_exact_to_the_nanosecond(ts: str, dur: str, start: int, duration: int, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        f'{{"traceEvents": [{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{ts},"dur":{dur}}}]}}'
    )
    trace = load_trace(path)
    assert trace.origin + int(trace.start[0]) == start
    assert int(trace.duration[0]) == duration


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("Operator", "aten::mm", Kind.OPERATOR),
        ("cpu_op", "aten::mm", Kind.OPERATOR),
        ("Operator", "ProfilerStep#3", Kind.ANNOTATION),
        ("Runtime", "cudaLaunchKernel", Kind.CALL),
        ("cuda_driver", "cuLaunchKernel", Kind.CALL),
        ("xpu_runtime", "urEnqueueKernelLaunch", Kind.CALL),
        ("privateuse1_runtime", "aclrtLaunchKernel", Kind.CALL),
        ("Kernel", "gemm", Kind.KERNEL),
        ("kernel", "gemm", Kind.KERNEL),
        ("Memcpy", "Memcpy HtoD", Kind.COPY),
        ("gpu_memset", "Memset", Kind.FILL),
    ],
)
def test_every_spelling_of_a_category_is_known(category: str, name: str, kind: Kind, tmp_path: Path) -> None:
    made = Made()
    made.add(category, name, 0, 1)
    made.op("aten::mm", 2, 3)
    assert made.trace(tmp_path).kind.tolist() == [kind, Kind.OPERATOR]


def test_events_of_no_use_are_counted_and_left_out(tmp_path: Path) -> None:
    made = host_bound(steps=1)
    made.add("python_function", "train.py(3): step", 0, 90)
    trace = made.trace(tmp_path)
    assert dict(trace.skipped) == {"python_function": 1}
    assert len(trace) == 7


def test_a_trace_read_in_small_pieces_is_the_same(tmp_path: Path) -> None:
    path = host_bound(steps=20).write(tmp_path / "t.json")
    whole, pieces = load_trace(path), load_trace(path, piece_bytes=700)
    for column in ("kind", "lane", "start", "duration", "correlation", "stream"):
        assert np.array_equal(getattr(whole, column), getattr(pieces, column))
    assert [whole.name_of(e) for e in range(len(whole))] == [pieces.name_of(e) for e in range(len(pieces))]


def test_objects_within_events_do_not_confuse_the_pieces(tmp_path: Path) -> None:
    made = host_bound(steps=10)
    for event in made.events:
        event["args"]["list"] = [{"ph": 1}, {"ph": 2}, {"name": "},{"}]
    path = made.write(tmp_path / "t.json")
    assert len(load_trace(path, piece_bytes=500)) == len(made.events)


def test_compressed_traces_and_bare_lists_are_read(tmp_path: Path) -> None:
    made = host_bound()
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(text_of(made).encode()))
    bare = tmp_path / "list.json"
    bare.write_text(json.dumps(made.events))
    assert len(load_trace(packed)) == len(load_trace(bare)) == len(made.events)


def test_numbers_written_as_text_are_read(tmp_path: Path) -> None:
    made = Made()
    made.device("kernel", "gemm", 0, 1, stream=7, correlation="12", External__id="0x10")
    made.events[0]["args"]["stream"] = "0x0"
    trace = made.trace(tmp_path)
    assert (trace.stream[0], trace.correlation[0], trace.external[0]) == (0, 12, 16)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("hello", "is not JSON"),
        ("", "is not JSON"),
        ('{"nodes": []}', "is an execution trace"),
        ('{"schema": 1}', "has no traceEvents"),
        ('{"traceEvents": []}', "has no operators, calls or kernels"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "na', "is damaged or cut"),
        ('{"traceEvents": [{"ph": "X"}]', "is damaged or cut"),
        ('{"traceEvents": [{"ph": 3}]}', "has an event that cannot be read"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "soon"}]}', "has an event with a time that is no number"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(FileFormatError, match=words) as refused:
        load_trace(path)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_begin_and_its_end_make_one_event(tmp_path: Path) -> None:
    made = host_bound(steps=1)
    pairs = []
    for event in made.events:
        if event["cat"] == "cpu_op":
            pairs += [{**event, "ph": "B"}, {**event, "ph": "E", "ts": event["ts"] + event["dur"]}]
            del pairs[-2]["dur"]
    document = made.document()
    document["traceEvents"] = [e for e in made.events if e["cat"] != "cpu_op"] + pairs
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(document))
    whole = made.trace(tmp_path)
    assert load_trace(path).duration.tolist() == whole.duration.tolist()


def test_a_byte_order_mark_and_numbers_as_text_in_the_header_are_read(tmp_path: Path) -> None:
    document = host_bound().document()
    document["distributedInfo"] = {"rank": "3", "world_size": "4"}
    document["deviceProperties"][0] |= {"numSms": "132", "totalGlobalMem": 8.5e10}
    path = tmp_path / "marked.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(document).encode())
    trace = load_trace(path)
    assert (trace.rank, trace.world_size, trace.devices[0].memory_bytes) == (3, 4, 8.5e10)


def test_other_files_beside_the_traces_of_a_folder_are_left_out_and_damaged_ones_refused(tmp_path: Path) -> None:
    host_bound().write(tmp_path / "rank0.json")
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    assert [trace.path.name for trace in load_traces([tmp_path])] == ["rank0.json"]
    (tmp_path / "rank1.json").write_text('{"traceEvents": [{"ph": "X"')
    with pytest.raises(FileFormatError, match="damaged or cut"):
        load_traces([tmp_path])


def test_a_trace_of_nothing_but_ranges_is_refused(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 10)
    with pytest.raises(FileFormatError, match="no operators, calls or kernels"):
        made.trace(tmp_path)


def test_files_of_one_rank_are_jobs_of_their_own_and_those_of_several_one_job(tmp_path: Path) -> None:
    one, other = host_bound().write(tmp_path / "a.json"), host_bound().write(tmp_path / "b.json")
    second = host_bound(rank=1, world_size=2).write(tmp_path / "c.json")
    assert [len(job) for job in load_jobs([one, other])] == [1, 1]
    assert [len(job) for job in load_jobs([one, second])] == [2]


def test_a_cut_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text_of(host_bound()).encode())[:-40])
    with pytest.raises(FileFormatError, match="damaged or cut"):
        load_trace(path)


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="does not exist"):
        load_trace(tmp_path / "none.json")
    with pytest.raises(FileFormatError, match="has no traces"):
        load_traces([tmp_path])


def test_a_folder_holds_the_ranks_of_a_job(tmp_path: Path) -> None:
    for rank in (1, 0):
        host_bound(rank=rank, world_size=2).write(tmp_path / f"x{rank}.json")
    assert [trace.rank for trace in load_traces([tmp_path])] == [0, 1]
    host_bound(rank=1, world_size=2).write(tmp_path / "again.json")
    with pytest.raises(RequestError, match="both of rank 1"):
        load_traces([tmp_path])


def test_times_with_few_and_many_decimals_beside_one_another_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    texts = ["1700000000000001", "1700000000000002.5", "1700000000000003.25", "1700000000000004.125"]
    events = ",".join(f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{ts},"dur":-0.5}}' for ts in texts)
    path.write_text(f'{{"traceEvents": [{events}]}}')
    trace = load_trace(path)
    assert trace.start.tolist() == [0, 1500, 2250, 3125]
    assert trace.duration.tolist() == [-500] * 4
