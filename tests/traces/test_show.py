"""Summaries, comparisons and written traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.traces.made import Made, device_bound, host_bound, pair_of_ranks
from traincast import RequestError, load_device
from traincast.traces.changes.edit import scale, select
from traincast.traces.diff import compare_traces, plain_name
from traincast.traces.files.load import load_trace, load_traces
from traincast.traces.files.trace import RecordedShape
from traincast.traces.files.write import write_timeline
from traincast.traces.operators.known import known_operator
from traincast.traces.recording.device import device_work
from traincast.traces.recording.record import record
from traincast.traces.recording.recording import TaskRole
from traincast.traces.recording.steps import steps_of
from traincast.traces.replay import replay, run
from traincast.traces.show import rates, summarize_traces


def test_the_parts_of_a_step_add_up_to_it(tmp_path: Path) -> None:
    for made in (host_bound(), device_bound(), pair_of_ranks()[0]):
        summary = summarize_traces([made.trace(tmp_path)])
        assert summary.breakdown.total_s == pytest.approx(summary.step_s)


def test_gaps_before_a_launch_are_the_hosts(tmp_path: Path) -> None:
    found = summarize_traces([host_bound().trace(tmp_path)]).breakdown
    assert found.compute_s == pytest.approx(10e-6)
    assert found.host_s == pytest.approx(86e-6, abs=1e-6)
    assert found.idle_s == pytest.approx(4e-6, abs=1e-6)


def test_waiting_for_a_peer_is_a_bubble_where_the_peer_is_known(tmp_path: Path) -> None:
    for made in pair_of_ranks():
        made.write(tmp_path / f"r{made.document()['distributedInfo']['rank']}.json")
    alone = summarize_traces([load_trace(tmp_path / "r0.json")])
    both = summarize_traces(load_traces([tmp_path]))
    assert alone.breakdown.bubble_s == 0
    assert alone.breakdown.exposed_communication_s == pytest.approx(60e-6)
    first = both.ranks[0].breakdown
    assert (first.exposed_communication_s, first.bubble_s) == pytest.approx((20e-6, 40e-6))
    assert any("1 of 2 ranks" in text for text in alone.missing)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    made = host_bound()
    made.call("cudaStreamWaitEvent", 60, 61)
    made.call("cudaGraphLaunch", 62, 63)
    missing = " ".join(summarize_traces([made.trace(tmp_path)]).missing)
    assert "no shapes" in missing
    assert "no record of what streams wait for" in missing
    assert "1 launches of graphs" in missing


def test_operators_are_ranked_and_placed_on_the_roofline(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 200)
    shape: dict[str, Any] = {
        "Input__Dims": [[4096, 4096], [4096, 4096]],
        "Input__type": ["c10::BFloat16", "c10::BFloat16"],
    }
    made.op("aten::mm", 0, 10, **shape)
    made.kernel("gemm", (2, 6), (8, 188))
    summary = summarize_traces([made.trace(tmp_path)])
    assert summary.operators[0].name == "aten::mm"
    assert summary.rates[0].bound == "compute"
    assert summary.rates[0].compute_share == pytest.approx(2 * 4096**3 / 989.4e12 / 180e-6, rel=0.01)


def test_steps_are_the_profilers_or_batches_or_named_ranges_or_everything(tmp_path: Path) -> None:
    made = Made()
    made.op("aten::add", 0, 400)
    trace = made.trace(tmp_path)
    assert [step.name for step in steps_of(trace)] == ["whole trace"]
    for k in range(4):
        made.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100.0 * k, 100.0 * k + 5)
        made.range("mine", 100.0 * k + 10, 100.0 * k + 60)
    trace = made.trace(tmp_path)
    assert [step.seconds for step in steps_of(trace)] == pytest.approx([1e-4] * 3)
    assert [step.seconds for step in steps_of(trace, named="mine")] == pytest.approx([5e-5] * 4)
    with pytest.raises(RequestError, match="no range named 'yours'"):
        steps_of(trace, named="yours")
    made.range("ProfilerStep#1", 0, 300)
    assert [step.name for step in steps_of(made.trace(tmp_path))] == ["ProfilerStep#1"]


def test_a_written_trace_replays_as_what_was_written(tmp_path: Path) -> None:
    recording = record(host_bound().trace(tmp_path))
    faster = run(scale(recording, select(recording, roles=(TaskRole.HOST, TaskRole.CALL)), 0.5))
    path = tmp_path / "faster.json.gz"
    write_timeline(faster, path)
    again = load_trace(path)
    assert [s.seconds for s in steps_of(again)] == pytest.approx(list(faster.step_s[0]), abs=2e-9)
    assert replay(record(again)).error == pytest.approx(0, abs=1e-6)
    assert len(again.on_device()) == len(recording.traces[0].on_device())


def test_the_ranks_of_a_job_are_written_to_a_folder(tmp_path: Path) -> None:
    from traincast.traces.recording.couple import couple

    recording = couple([record(made.trace(tmp_path)) for made in pair_of_ranks()])
    write_timeline(run(recording), tmp_path / "out")
    again = load_traces([tmp_path / "out"])
    assert [trace.rank for trace in again] == [0, 1]
    assert all(len(trace.on_device()) == 2 for trace in again)


def test_two_traces_are_compared_operator_by_operator(tmp_path: Path) -> None:
    before = host_bound().trace(tmp_path)
    other = host_bound()
    for event in other.events:
        if event["name"] == "gemm":
            event["dur"] += 3.0
    found = compare_traces([before], [other.trace(tmp_path)])
    assert found.operators[0].name == "aten::mm"
    assert found.operators[0].change_s == pytest.approx(3e-6)
    assert sum(part.change_s for part in found.parts) == pytest.approx(found.step.change_s)


def test_back_ends_spell_one_operator_alike() -> None:
    names = ("aten::cudnn_convolution", "aten::miopen_convolution")
    assert {plain_name(name) for name in names} == {"aten::convolution"}
    assert plain_name("aten::relu_") == "aten::relu"


def test_shapes_give_the_amount_of_work() -> None:
    linear = known_operator("aten::linear", RecordedShape("[[8,128,64],[32,64],[32]]", '["float","float","float"]'))
    assert linear is not None
    assert linear.flops == 2 * 8 * 128 * 64 * 32
    conv = known_operator(
        "aten::cudnn_convolution",
        RecordedShape("[[2,3,8,8],[4,3,3,3]]", '["float","float"]', '["","","[1, 1]","[2, 2]","[1, 1]","1"]'),
    )
    assert conv is not None
    assert conv.outputs[0].shape == (2, 4, 4, 4)
    assert known_operator("aten::strange", RecordedShape("[[2]]", '["float"]')) is None
    assert known_operator("aten::mm", RecordedShape()) is None


@pytest.mark.parametrize(
    ("name", "dims", "types", "strides", "nbytes"),
    [
        ("aten::clamp_min", "[[8,4],[]]", '["float","Scalar"]', "", 8 * 32),
        ("aten::clamp_min", "[[8,4],[],[8,4]]", '["float","Int","float"]', "", 8 * 32),  # the last is its out=
        ("aten::clamp_min_", "[[8,4],[]]", '["float","Scalar"]', "", 8 * 32),
        ("aten::mul", "[[32],[],[32]]", '["float","double","float"]', "", 8 * 32),
        ("aten::mul", "[[8,4],[8,4],[8,4]]", '["float","float","float"]', "", 12 * 32),
        ("aten::add", "[[8,4],[4],[]]", '["float","float","Scalar"]', "", 4 * (32 + 4 + 32)),
        ("aten::add", "[[8,1],[1,4],[]]", '["c10::Half","float","Scalar"]', "", 2 * 8 + 4 * 4 + 4 * 32),
        ("aten::add_", "[[8,4],[8,4],[]]", '["float","float","Scalar"]', "", 12 * 32),
        ("aten::div", "[[8,4],[]]", '["float","Scalar"]', "[[1,0],[]]", 4 * (8 + 32)),  # expanded: read once
        ("aten::addcmul_", "[[32],[32],[32],[]]", '["float","float","float","Scalar"]', "", 16 * 32),
        ("aten::native_dropout", "[[32],[],[]]", '["float","Scalar","Scalar"]', "", 9 * 32),  # and its mask
        ("aten::copy_", "[[8,4],[8,4],[]]", '["float","c10::Half","Scalar"]', "", 6 * 32),
        ("aten::sum", "[[32],[],[],[]]", '["float","","Scalar",""]', "", 4 * (32 + 1)),
    ],
)
def test_an_operator_moves_what_it_reads_and_writes(
    name: str, dims: str, types: str, strides: str, nbytes: float
) -> None:
    operator = known_operator(name, RecordedShape(dims, types, strides=strides))
    assert operator is not None
    assert operator.nbytes == nbytes


def test_the_gradient_of_a_mean_is_read_once(tmp_path: Path) -> None:
    made = Made()
    made.op("MeanBackward1", 0, 20, Input__Dims=[[32, 16, 1, 1]], Input__type=["float"])
    made.op("aten::div", 2, 12, Input__Dims=[[32, 16, 7, 7], []], Input__type=["float", "Scalar"])
    made.kernel("divide", (4, 6), (8, 11))
    trace = made.trace(tmp_path)
    (found,) = rates(trace, device_work(trace), steps_of(trace), load_device("v100-sxm2-16gb"))
    assert found.nbytes == 4 * 32 * 16 * (1 + 49)
