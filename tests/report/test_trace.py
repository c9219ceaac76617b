"""Traces open in other tools, say each thing once, and agree with the timeline they come from."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ChosenSeconds, graph_of, request_of, run
from traincast import Conditions, FileFormatError, Forecast, Operator, RequestError, Timeline, load_runtime, predict
from traincast.report import write_trace, write_traces
from traincast.report.trace import replacing
from traincast.strategy import NUM_STREAMS, Category, Stream
from traincast.work import Collective, Launch, Transfer, Work

Event = dict[str, Any]
Intervals = list[tuple[float, float]]
TINY = "gpt:layers=2,hidden=256,heads=4,vocab=1000,seq=128"


def rule(work: Work) -> float:
    """Odd lengths, so that nothing falls on a whole microsecond by itself."""
    match work:
        case Launch():
            return 4.3e-6 * work.launches
        case Collective():
            return 137.77e-6 + work.nbytes * 3.1e-10
        case Transfer():
            return 91.13e-6
        case Operator():
            return 50.31e-6 + (work.flops + work.nbytes) % 997 * 1e-6
        case _:
            return 77.7e-6


@cache
def timeline_of(strategy: str, *, grain: str = "operator", all_ranks: bool = False) -> Timeline:
    runtime = load_runtime("megatron").patched(
        exchange={"bucket_bytes": 1.0}
    )  # a bucket per block, to have something that overlaps
    request = request_of(strategy, model=TINY, global_batch=8, runtime=runtime)
    return run(request, model=ChosenSeconds(rule), grain=grain, all_ranks=all_ranks)[1]


@cache
def with_servers(strategy: str) -> Forecast:
    return predict(
        graph_of(TINY), cluster="dgx-a100:2x2", global_batch=8, strategy=strategy, runtime="pytorch",
        cost_model=ChosenSeconds(rule), conditions=Conditions(slow=((3, 2.0),)),
    )  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    content: dict[str, Any] = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return content


def complete(content: dict[str, Any], cat: str) -> list[Event]:
    return [e for e in content["traceEvents"] if e["ph"] == "X" and e["cat"] == cat]


def length(intervals: Intervals) -> float:
    """Length of the union."""
    total, reached = 0.0, -1.0
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def intervals_of(timeline: Timeline, row: int) -> tuple[Intervals, Intervals]:
    """When a row computes, and when it communicates."""
    plan = timeline.plan
    compute: Intervals = []
    communication: Intervals = []
    for task in range(plan.num_tasks):
        lanes = plan.lanes[plan.lane_start[task] : plan.lane_start[task + 1]]
        if row in lanes // NUM_STREAMS and plan.category[task] != Category.HOST:
            into = communication if plan.category[task] == Category.COMMUNICATION else compute
            into.append((float(timeline.start[task]), float(timeline.end[task])))
    return compute, communication


def test_the_header_names_the_job_as_pytorch_does(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    write_trace(timeline_of("dp=2,tp=2,pp=2"), path, backend="gloo")
    content = read(path)
    assert content["distributedInfo"] == {"backend": "gloo", "rank": 0, "world_size": 8}
    assert content["schemaVersion"] == 1
    assert content["displayTimeUnit"] == "ms"
    assert content["traceName"] == "step.json"
    assert content["deviceProperties"][0]["id"] == 0


def test_every_rank_is_a_process_and_every_stream_a_lane(tmp_path: Path) -> None:
    timeline = timeline_of("dp=2,tp=2,pp=2", all_ranks=True)
    path = tmp_path / "step.json.gz"
    count = write_trace(timeline, path)
    content = read(path)
    named = {(e["name"], e["pid"], e["tid"]): e["args"] for e in content["traceEvents"] if e["ph"] == "M"}
    assert named["process_name", 3, 0] == {"name": "rank 3 (stage 0)"}
    assert named["process_name", 6, 0] == {"name": "rank 6 (stage 1)"}
    assert named["process_sort_index", 6, 0] == {"sort_index": 6}
    assert named["thread_name", 5, int(Stream.HOST)] == {"name": "host"}
    assert named["thread_name", 5, int(Stream.SEND_BACKWARD)] == {"name": "send backward"}
    spans = [e for e in content["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == count
    assert {e["pid"] for e in spans} == set(range(8))


@pytest.mark.parametrize("all_ranks", [False, True])
def test_a_task_that_holds_several_lanes_stands_once_per_rank(tmp_path: Path, all_ranks: bool) -> None:
    timeline = timeline_of("dp=2,tp=2,pp=2", all_ranks=all_ranks)
    path = tmp_path / "step.json"
    write_trace(timeline, path)
    kernels = Counter(e["pid"] for e in complete(read(path), "kernel"))
    for row, rank in enumerate(timeline.plan.ranks.tolist()):
        compute, communication = intervals_of(timeline, row)
        assert kernels[rank] == len(compute) + len(communication)


def test_blocking_collectives_stand_on_the_communication_side(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    write_trace(timeline_of("dp=2,tp=2,pp=2"), path)
    streams = defaultdict(set)
    for event in complete(read(path), "kernel"):
        assert event["tid"] == event["args"]["stream"]
        streams[event["args"]["category"], event["args"]["label"].split()[0]].add(Stream(event["tid"]))
    assert streams["communication", "tp"] == {Stream.COMMUNICATION}
    assert streams["communication", "dp"] == {Stream.DATA}
    # Messages between stages, and the gradients of the tied table that both ends add up.
    assert streams["communication", "pp"] == {Stream.SEND_FORWARD, Stream.SEND_BACKWARD, Stream.COMMUNICATION}
    assert all(found == {Stream.COMPUTE} for (category, _), found in streams.items() if category != "communication")


def test_times_are_those_of_the_timeline_to_the_nanosecond(tmp_path: Path) -> None:
    timeline = timeline_of("dp=2,tp=2,pp=2")
    path = tmp_path / "step.json"
    write_trace(timeline, path)
    spans = [e for e in read(path)["traceEvents"] if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(timeline.step_s * 1e6, abs=1e-3)
    plan = timeline.plan
    mine = plan.category != Category.HOST
    rows = plan.lanes[plan.lane_start[:-1]] // NUM_STREAMS
    expected = sorted(zip(plan.ranks[rows[mine]].tolist(), np.rint(timeline.start[mine] * 1e9).tolist(), strict=True))
    assert sorted((e["pid"], round(e["ts"] * 1e3)) for e in spans if e["cat"] == "kernel") == expected


def test_spans_of_a_lane_do_not_overlap(tmp_path: Path) -> None:
    for path in write_traces(timeline_of("dp=2,tp=2,pp=2"), tmp_path / "traces"):
        ends: dict[int, float] = {}
        for event in complete(read(path), "kernel"):
            assert event["ts"] >= ends.get(event["tid"], 0)
            ends[event["tid"]] = event["ts"] + event["dur"]


def test_every_kernel_has_one_launch_that_ends_before_it_starts(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    write_trace(timeline_of("dp=2,tp=2,pp=2", all_ranks=True), path)
    content = read(path)
    launches = {e["args"]["correlation"]: e for e in complete(content, "cuda_runtime")}
    kernels = complete(content, "kernel")
    assert len(launches) == len(kernels) == len({e["args"]["correlation"] for e in kernels})
    operators = {e["args"]["External id"]: e for e in complete(content, "cpu_op")}
    for kernel in kernels:
        number = kernel["args"]["correlation"]
        launch = launches[number]
        assert launch["name"] == "cudaLaunchKernel"
        assert launch["pid"] == kernel["pid"]
        assert launch["ts"] + launch["dur"] <= kernel["ts"] + 1e-6
        assert operators[number]["name"] == kernel["args"]["label"]


def test_events_say_what_there_was_to_do(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    write_trace(timeline_of("dp=2,tp=2,pp=2"), path)
    by_category = {e["args"]["category"]: e for e in complete(read(path), "kernel")}
    assert by_category["forward"]["args"]["flops"] > 0
    assert by_category["forward"]["args"]["bytes"] > 0
    assert by_category["forward"]["args"]["microbatch"] >= 0
    assert by_category["communication"]["args"]["bytes"] > 0
    assert by_category["optimizer"]["args"]["kind"] == "optimizer"


def test_a_plan_of_segments_can_be_written_too(tmp_path: Path) -> None:
    timeline = timeline_of("dp=2,tp=2,pp=2", grain="segment")
    path = tmp_path / "step.json"
    write_trace(timeline, path)
    kernels = complete(read(path), "kernel")
    assert {"forward", "backward", "optimizer"} <= {e["name"] for e in kernels}
    assert all(e["args"]["correlation"] > 0 for e in kernels)


@pytest.mark.parametrize("strategy", ["dp=4,servers=2", "dp=4,servers=2,async"])
def test_servers_have_processes_with_lanes_of_pushes_pulls_and_updates(tmp_path: Path, strategy: str) -> None:
    path = tmp_path / "step.json"
    forecast = with_servers(strategy)
    write_trace(forecast.detailed(), path, about=forecast.report.summary())
    content = read(path)
    named = {
        (e["name"], e["pid"], e["tid"]): e["args"]["name"]
        for e in content["traceEvents"]
        if e["ph"] == "M"
        if "name" in e["args"]
    }
    assert [named["process_name", rank, 0] for rank in (3, 4, 5)] == ["rank 3 (stage 0)", "server 0", "server 1"]
    lanes = {
        pid: {name for (what, p, _), name in named.items() if what == "thread_name" and p == pid} for pid in (0, 4)
    }
    assert {"host", "compute", "push", "pull", "waiting"} <= lanes[0]
    assert {"push", "pull", "update"} <= lanes[4]
    kernels = complete(content, "kernel")
    for pid, words in ((0, ("push layers.1", "pull layers.1")), (4, ("push", "pull", "update"))):
        labels = {e["args"]["label"] for e in kernels if e["pid"] == pid}
        assert all(any(label.startswith(word) for label in labels) for word in words)
    waits = [e for e in complete(content, "user_annotation") if e["name"].startswith("waits for")]
    assert {e["pid"] for e in waits} == {0, 1, 2, 3}
    assert content["otherData"]["conditions"]["slow"] == [{"rank": 3, "factor": 2.0}]
    assert content["otherData"]["strategy"].startswith("dp=4,servers=2")


def test_messages_that_run_at_once_stand_on_lanes_beside_one_another(tmp_path: Path) -> None:
    timeline = with_servers("dp=4,servers=2").detailed()
    for path in write_traces(timeline, tmp_path / "traces"):
        ends: dict[int, float] = {}
        content = read(path)
        for event in sorted(complete(content, "kernel"), key=lambda e: (e["tid"], e["ts"])):
            assert event["ts"] >= ends.get(event["tid"], 0)
            assert event["tid"] == event["args"]["stream"]
            ends[event["tid"]] = event["ts"] + event["dur"]
        if content["distributedInfo"]["rank"] == 4:  # the first server: several workers push at once
            assert {tid % NUM_STREAMS for tid in ends} == {Stream.PUSH, Stream.PULL, Stream.UPDATE}
            assert max(ends) >= NUM_STREAMS


def test_a_trace_with_servers_refuses_ranks_that_have_no_row(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="rank 6: the plan has rows for 6 workers and servers, up to 5"):
        write_trace(with_servers("dp=4,servers=2").detailed(), tmp_path / "step.json", ranks=[0, 6])


@pytest.mark.long(guard="test_holistic_trace_analysis_finds_the_times_of_the_timeline")
@pytest.mark.filterwarnings("ignore")
def test_holistic_trace_analysis_reads_workers_and_servers(tmp_path: Path) -> None:
    from hta.trace_analysis import TraceAnalysis

    timeline = with_servers("dp=4,servers=2").detailed()
    write_traces(timeline, tmp_path / "traces", ranks=[0, 3, 4])
    analysis = TraceAnalysis(trace_dir=str(tmp_path / "traces"))
    times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    assert sorted(times.index) == [0, 3, 4]
    plan = timeline.plan
    waits = plan.category == Category.WAIT
    for rank in (0, 3, 4):
        compute: Intervals = []
        communication: Intervals = []
        for task in np.flatnonzero(~waits & (plan.category != Category.HOST)):
            if rank in plan.lanes[plan.lane_start[task] : plan.lane_start[task + 1]] // NUM_STREAMS:
                into = communication if plan.category[task] == Category.COMMUNICATION else compute
                into.append((float(timeline.start[task]), float(timeline.end[task])))
        assert times.loc[rank, "compute_time(us)"] == pytest.approx(length(compute) * 1e6, rel=0.02)
        busy = length(compute + communication)
        assert times.loc[rank, "non_compute_time(us)"] == pytest.approx((busy - length(compute)) * 1e6, rel=0.02)
    assert list(analysis.get_profiler_steps()) == [0]


def test_a_folded_plan_shows_any_rank_and_refuses_others(tmp_path: Path) -> None:
    timeline = timeline_of("dp=2,tp=2,pp=2")
    path = tmp_path / "step.json"
    write_trace(timeline, path, ranks=[7, 0, 7])
    kernels = complete(read(path), "kernel")
    assert {e["pid"] for e in kernels} == {0, 7}
    write_trace(timeline_of("dp=2,tp=2,pp=2", all_ranks=True), path, ranks=[0, 7])
    assert [(e["ts"], e["pid"], e["name"]) for e in complete(read(path), "kernel")] == [
        (e["ts"], e["pid"], e["name"]) for e in kernels
    ]
    with pytest.raises(RequestError, match="rank 8: the plan has ranks 0 to 7"):
        write_trace(timeline, path, ranks=[8])
    with pytest.raises(RequestError, match="no rank"):
        write_trace(timeline, path, ranks=[])


def test_labels_cannot_break_the_file_or_mislead_its_reader(tmp_path: Path) -> None:
    timeline = timeline_of("tp=2")
    plan = replace(timeline.plan, labels=tuple(f'SyncNet "x"\\ \n{label}' for label in timeline.plan.labels))
    path = tmp_path / "step.json"
    write_trace(replace(timeline, plan=plan), path)
    names = {e["name"] for e in complete(read(path), "kernel") if e["args"]["category"] == "forward"}
    assert names
    assert all(name.startswith('SYNCNet "x"\\ \n') for name in names)  # HTA takes "Sync" for something else


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    timeline = timeline_of("tp=2")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileFormatError, match=r"cannot write .*/none/step\.json: the folder .*/none does not exist"):
        write_trace(timeline, tmp_path / "none" / "step.json")
    with pytest.raises(FileFormatError, match=r"/file is not a folder"):
        write_trace(timeline, tmp_path / "file" / "step.json")
    with pytest.raises(FileFormatError, match=r"expected a name that ends in \.json or \.json\.gz"):
        write_trace(timeline, tmp_path / "step.txt")
    with pytest.raises(FileFormatError, match=r"the folder .*/none does not exist"):
        write_traces(timeline, tmp_path / "none" / "traces")
    with pytest.raises(FileFormatError, match=r"cannot write .*/file: file exists"):
        write_traces(timeline, tmp_path / "file")


def test_equal_timelines_give_equal_files(tmp_path: Path) -> None:
    first = write_traces(timeline_of("tp=2"), tmp_path / "a")
    second = write_traces(timeline_of("tp=2"), tmp_path / "b")
    assert [p.name for p in first] == ["rank0.json.gz"]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strategy", ["dp=2,tp=2", "dp=2,tp=2,pp=2"])
def test_holistic_trace_analysis_finds_the_times_of_the_timeline(tmp_path: Path, strategy: str) -> None:
    from hta.trace_analysis import TraceAnalysis

    timeline = timeline_of(strategy, all_ranks=True)
    ranks = [0, len(timeline.plan.ranks) - 1]
    write_traces(timeline, tmp_path / "traces", ranks=ranks)
    analysis = TraceAnalysis(trace_dir=str(tmp_path / "traces"))
    times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    kinds = analysis.get_gpu_kernel_breakdown(visualize=False)[0].set_index("kernel_type")["sum"]
    assert sorted(times.index) == ranks
    computing = communicating = both = 0.0
    for rank in ranks:
        compute, communication = intervals_of(timeline, rank)
        busy, hidden = length(compute + communication), length(compute) + length(communication)
        hidden -= busy
        assert hidden > 0
        assert times.loc[rank, "compute_time(us)"] == pytest.approx(length(compute) * 1e6, rel=0.01)
        assert times.loc[rank, "non_compute_time(us)"] == pytest.approx((busy - length(compute)) * 1e6, rel=0.01)
        assert overlap.loc[rank, "comp_comm_overlap_pctg"] == pytest.approx(
            100 * hidden / length(communication), rel=0.01, abs=0.01
        )
        computing += length(compute)
        communicating += length(communication)
        both += hidden
    found_both = kinds["COMPUTATION overlapping COMMUNICATION"]
    assert kinds["COMPUTATION"] + found_both == pytest.approx(computing * 1e6, rel=0.01)
    assert kinds["COMMUNICATION"] + found_both == pytest.approx(communicating * 1e6, rel=0.01)
    assert found_both == pytest.approx(both * 1e6, rel=0.01)


@pytest.mark.filterwarnings("ignore")
def test_holistic_trace_analysis_ties_kernels_to_launches_and_the_step(tmp_path: Path) -> None:
    from hta.trace_analysis import TraceAnalysis

    timeline = timeline_of("dp=2,tp=2")
    write_traces(timeline, tmp_path / "traces")
    analysis = TraceAnalysis(trace_dir=str(tmp_path / "traces"))
    assert list(analysis.get_profiler_steps()) == [0]
    trace = analysis.t.get_trace(0)
    kernels = trace[trace["stream"] > 0]
    assert len(kernels) == sum(len(part) for part in intervals_of(timeline, 0))
    assert (kernels["iteration"] == 0).all()
    assert (kernels["index_correlation"] > 0).all()
    stats = analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    assert len(stats) == len(kernels)
