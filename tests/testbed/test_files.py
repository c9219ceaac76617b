"""Files of a run that other tools read: a trace for Perfetto and HTA, and a row of a table of measured steps."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.testbed.runs import Span, write_run
from traincast import FileFormatError
from traincast.measured.steps import NEEDS, read_run
from traincast.tables import read_rows
from traincast.testbed.folder import read_run_folder, read_spans, row_of_run, write_row
from traincast.testbed.trace import write_measured_trace, write_measured_traces


def read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def span(rank: int, category: str, start: float, end: float, *, label: str = "", step: int = 0) -> Span:
    return {
        "rank": rank, "step": step, "microbatch": -1, "stream": "compute", "category": category,
        "label": label or category, "name": label or "ncclSync op", "start_s": start, "end_s": end, "nbytes": 8.0,
    }  # fmt: skip


def test_every_span_is_an_event_of_its_rank(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([
        span(0, "forward", 0.0, 0.25), span(1, "forward", 0.0, 0.5), span(0, "wait", 0.25, 0.5),
        span(0, "communication", 0.5, 0.75, label="dp gradients"), span(0, "forward", 0.0, 0.25, step=1),
    ])  # fmt: skip
    path = tmp_path / "trace.json.gz"
    assert write_measured_trace(table, path, steps_s=[0.8, 0.3], about={"model": "tiny"}) == 5
    content = read(path)
    assert content["otherData"] == {"model": "tiny"}
    assert content["distributedInfo"] == {"backend": "gloo", "rank": 0, "world_size": 2}
    kernels = [e for e in content["traceEvents"] if e.get("cat") == "kernel"]
    assert [(e["pid"], e["ts"], e["dur"]) for e in kernels] == [
        (0, 0.0, 250_000.0), (0, 500_000.0, 250_000.0), (0, 801_000.0, 250_000.0), (1, 0.0, 500_000.0),
    ]  # fmt: skip
    assert [e["name"] for e in kernels][:2] == ["NCCLSYNC op", "ncclDevKernel_AllReduce(dp gradients)"]
    steps = {(e["pid"], e["name"], e["ts"], e["dur"]) for e in content["traceEvents"] if "Profiler" in e["name"]}
    assert (0, "ProfilerStep#1", 801_000.0, 300_000.0) in steps and len(steps) == 4


def test_spans_at_once_have_lanes_of_their_own(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([
        span(0, "communication", start, end, label="dp gradients") for start, end in ((0, 0.5), (0.1, 0.2), (0.5, 0.6))
    ])  # fmt: skip
    write_measured_trace(table, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    first, second, third = (e["tid"] for e in events if e.get("cat") == "kernel")
    assert first == third != second
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert (names[first], names[second]) == ("data", "data 2")


def test_a_trace_has_the_name_of_one(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"ends in \.json or \.json\.gz"):
        write_measured_trace(pa.Table.from_pylist([span(0, "forward", 0.0, 1.0)]), tmp_path / "trace.txt")


@pytest.mark.long(guard="report/test_trace.py::test_holistic_trace_analysis_finds_the_times_of_the_timeline")
@pytest.mark.filterwarnings("ignore")
def test_holistic_trace_analysis_finds_the_measured_times(tmp_path: Path) -> None:
    from hta.trace_analysis import TraceAnalysis

    run = tmp_path / "run"
    made = write_run(run, "dp=2", 2, runtime="ddp", steps=2)
    write_measured_traces(read_spans(run), run / "traces", steps_s=read_run_folder(run).steps_s)
    analysis = TraceAnalysis(trace_dir=str(run / "traces"))
    times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    assert sorted(times.index) == [0, 1]
    spans = [s for s in read_spans(run).to_pylist() if s["rank"] == 1 and s["step"] == 0]
    compute = sum(s["end_s"] - s["start_s"] for s in spans if s["category"] != "communication")
    counted = len(analysis.get_profiler_steps())
    assert times.loc[1, "compute_time(us)"] == pytest.approx(counted * compute * 1e6, rel=0.02)
    assert made.report.step_s > compute


@pytest.mark.filterwarnings("ignore")
def test_holistic_trace_analysis_reads_the_trace_of_all_ranks(tmp_path: Path) -> None:
    from hta.trace_analysis import TraceAnalysis

    run = tmp_path / "run"
    write_run(run, "dp=2", 2, steps=2)
    write_measured_trace(read_spans(run), run / "trace.json.gz")
    analysis = TraceAnalysis(trace_files={0: str(run / "trace.json.gz")}, trace_dir=str(run))
    assert list(analysis.get_temporal_breakdown(visualize=False)["rank"]) == [0]


def test_a_run_is_a_row_that_validate_reads(tmp_path: Path) -> None:
    run = tmp_path / "run"
    made = write_run(run, "dp=2,pp=2,num_microbatches=4", 4, runtime="pytorch", steps_s=[0.02, 0.04])
    write_row(read_run_folder(run), run / "row.csv")
    (row,) = read_rows(run / "row.csv", needs=NEEDS)
    found = read_run(0, row)
    assert found.seconds == pytest.approx(0.03)
    assert found.request.strategy == made.request.strategy
    assert found.request.cluster.device.name == "cpu"
    assert found.request.cluster.num_nodes == 4
    assert found.request.global_batch == 8
    assert found.request.graph.name == made.request.graph.name


def test_an_emulated_run_has_the_device_and_the_slowest_link(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, "dp=2", 2)
    record = read_run_folder(run)
    places = tuple(replace(p, device="h100-sxm5-80gb", rate=25e6 * (p.rank + 1)) for p in record.ranks)
    record = replace(record, compute="h100-sxm5-80gb", network="400Mbit", ranks=places)
    row = row_of_run(record)
    assert (row["gpu"], row["interconnect"]) == ("h100-sxm5-80gb", "0.2 Gbit/s Ethernet")
    write_row(record, run / "row.csv")
    cluster = read_run(0, read_rows(run / "row.csv", needs=NEEDS)[0]).request.cluster
    assert cluster.device.name == "h100-sxm5-80gb"
    assert (cluster.num_nodes, cluster.devices_per_node) == (2, 1)
    assert cluster.inter_node.bandwidth == pytest.approx(25e6)
