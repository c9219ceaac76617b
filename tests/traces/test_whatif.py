"""What-if questions: answers, intervals, and refusals with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces.made import Made, device_bound, host_bound, pair_of_ranks
from traincast import AnalyticalCostModel, WhatIfAnswer, load_device
from traincast.traces.changes.change import TraceChange
from traincast.traces.changes.device import Buckets, HalfPrecision, OtherDevice
from traincast.traces.changes.hosts import (
    FasterHost,
    FasterNetwork,
    FusedOptimizer,
    GraphLaunch,
    LoaderWorkers,
    NoCommunication,
    Overlapped,
)
from traincast.traces.recording.couple import couple
from traincast.traces.recording.record import record
from traincast.traces.recording.recording import Recording
from traincast.traces.whatif import ask


def asked(made: Made, change: TraceChange, folder: Path) -> WhatIfAnswer:
    return ask(record(made.trace(folder)), [change])


def ranks(folder: Path) -> Recording:
    return couple([record(made.trace(folder)) for made in pair_of_ranks()])


def test_an_answer_lies_within_its_interval_and_states_its_assumption(tmp_path: Path) -> None:
    answer = asked(host_bound(), FasterHost(2), tmp_path)
    assert answer.low_s is not None
    assert answer.step_s is not None
    assert answer.high_s is not None
    assert answer.low_s <= answer.step_s <= answer.high_s
    assert answer.step_s == pytest.approx(answer.base_s / 2, rel=0.02)
    assert answer.assumptions
    assert answer.speedup == pytest.approx(2, rel=0.02)


def test_one_rank_alone_does_not_tell_transfer_from_waiting(tmp_path: Path) -> None:
    made = pair_of_ranks()[0]
    for change in (FasterNetwork(2), Buckets(1e8)):
        answer = asked(made, change, tmp_path)
        assert answer.step_s is None
        assert "one rank alone cannot tell transfer from waiting" in str(answer.refused)


def test_a_faster_network_shortens_the_transfer_and_not_the_wait(tmp_path: Path) -> None:
    answer = ask(ranks(tmp_path), [FasterNetwork(2)])
    assert answer.step_s == pytest.approx(answer.base_s - 10e-6)


def test_no_communication_ends_waiting_as_well(tmp_path: Path) -> None:
    answer = asked(pair_of_ranks()[0], NoCommunication(), tmp_path)
    assert answer.step_s is not None
    assert answer.step_s == pytest.approx(181e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (FasterNetwork(2), "has no communication"),
        (NoCommunication(), "has no communication"),
        (Overlapped(), "has no communication"),
        (LoaderWorkers(4), "shows no data loader"),
        (FusedOptimizer(), "shows no update"),
    ],
)
def test_what_a_trace_does_not_show_is_refused(change: TraceChange, reason: str, tmp_path: Path) -> None:
    assert reason in str(asked(host_bound(), change, tmp_path).refused)


def test_a_graph_whose_kernels_are_missing_is_refused(tmp_path: Path) -> None:
    made = host_bound()
    made.call("cudaGraphLaunch", 10, 12)
    assert "no kernels in the trace" in str(asked(made, GraphLaunch(), tmp_path).refused)


def test_a_graph_cannot_contain_a_wait_of_the_host(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 1000)
    for k in range(40):
        made.kernel("k", (20.0 * k, 20.0 * k + 4), (20.0 * k + 5, 20.0 * k + 15))
    assert asked(made, GraphLaunch(), tmp_path).refused is None
    made.call("cudaStreamSynchronize", 416, 418)
    assert "a graph cannot contain that" in str(asked(made, GraphLaunch(), tmp_path).refused)


def test_a_step_launched_as_a_graph_takes_the_time_of_its_kernels(tmp_path: Path) -> None:
    answer = asked(host_bound(), GraphLaunch(), tmp_path)
    assert answer.step_s is not None
    assert 10e-6 < answer.step_s < 30e-6


def loading(*, workers: str = "_SingleProcessDataLoaderIter") -> Made:
    made = Made()
    for step in range(4):
        at = 200.0 * step
        made.range(f"ProfilerStep#{step}", at, at + 200)
        made.range(f"enumerate(DataLoader)#{workers}.__next__", at, at + 100)
        made.op("aten::stack", at + 1, at + 99)
        made.kernel("gemm", (at + 110, at + 115), (at + 120, at + 190))
        made.call("cudaDeviceSynchronize", at + 130, at + 195)
    return made


def test_workers_of_the_loader_hide_the_time_of_a_batch(tmp_path: Path) -> None:
    recording = record(loading().trace(tmp_path))
    one, four = (LoaderWorkers(n).apply(recording, -1) for n in (1, 4))
    from traincast.traces.replay import run

    assert run(four).pace_s == pytest.approx(100e-6, abs=3e-6)
    assert run(one).pace_s >= run(four).pace_s


def test_a_loader_with_workers_is_refused(tmp_path: Path) -> None:
    made = loading(workers="_MultiProcessingDataLoaderIter")
    assert "has workers already" in str(asked(made, LoaderWorkers(4), tmp_path).refused)


def updating(*, kernels: int) -> Made:
    made = Made()
    made.range("ProfilerStep#0", 0, 1000)
    made.range("Optimizer.step#Adam.step", 100, 900)
    for k in range(kernels):
        at = 100 + 20.0 * k
        made.op("aten::mul_", at, at + 15)
        made.kernel("elementwise", (at + 5, at + 10), (at + 12, at + 18))
    return made


def test_a_fused_optimizer_saves_launches(tmp_path: Path) -> None:
    answer = asked(updating(kernels=40), FusedOptimizer(), tmp_path)
    assert answer.step_s is not None
    assert answer.step_s < 0.4 * answer.base_s
    assert "fused already" in str(asked(updating(kernels=4), FusedOptimizer(), tmp_path).refused)


def on_processor(operator: str) -> Made:
    """A step of 100 µs without kernels, whose last 54 µs are an update by AdamW."""
    made = Made()
    made.range("ProfilerStep#0", 0, 100)
    made.op("aten::mm", 1, 45)
    made.range("Optimizer.step#AdamW.step", 46, 100)
    made.op(operator, 47, 99)
    return made


def test_a_fused_update_of_a_processor_takes_the_time_of_its_traffic(tmp_path: Path) -> None:
    answer = asked(on_processor("aten::mul_"), FusedOptimizer(), tmp_path)
    assert answer.step_s == pytest.approx((46 + 54 * 7 / 27) * 1e-6, rel=1e-3)
    assert "fused already" in str(asked(on_processor("aten::_fused_adamw_"), FusedOptimizer(), tmp_path).refused)


@pytest.mark.parametrize("change", [GraphLaunch(), HalfPrecision()])
def test_what_only_a_device_does_is_refused_for_a_processor(change: TraceChange, tmp_path: Path) -> None:
    assert "the trace has no kernels" in str(asked(on_processor("aten::mul_"), change, tmp_path).refused)


def test_mixed_precision_shortens_products_most(tmp_path: Path) -> None:
    answer = asked(device_bound(), HalfPrecision(), tmp_path)
    assert answer.step_s is not None
    assert answer.step_s == pytest.approx(100e-6 - 30e-6 - 22.5e-6, rel=0.05)


def test_kernels_in_half_precision_are_not_made_faster_again(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 100)
    made.kernel("sm90_gemm_bf16", (1, 5), (6, 90))
    assert "half precision already" in str(asked(made, HalfPrecision(), tmp_path).refused)


def test_another_device_changes_kernels_and_not_the_host(tmp_path: Path) -> None:
    slow = OtherDevice(load_device("v100-sxm2-32gb"), AnalyticalCostModel())
    assert asked(host_bound(), slow, tmp_path).step_s == pytest.approx(100e-6, rel=0.3)
    answer = asked(device_bound(), slow, tmp_path)
    assert answer.step_s is not None
    assert answer.step_s > 2 * answer.base_s


def test_an_unknown_device_is_refused(tmp_path: Path) -> None:
    made = host_bound()
    trace = made.document()
    trace["deviceProperties"] = [{"id": 0, "name": "Strange Graphics"}]
    path = tmp_path / "t.json"
    import json

    from traincast.traces.files.load import load_trace

    path.write_text(json.dumps(trace))
    change = OtherDevice(load_device("a100-sxm4-80gb"), AnalyticalCostModel())
    answer = ask(record(load_trace(path)), [change])
    assert "not in the catalog (the trace says 'Strange Graphics')" in str(answer.refused)


def bucketed() -> list[Made]:
    """Two ranks; the backward pass of 100 µs fills a bucket of 4 MB (50 µs) and one of 1 MB (20 µs)."""
    found = []
    for rank in range(2):
        made = Made(rank=rank, world_size=2)
        made.range("ProfilerStep#0", 0, 220)
        made.op("autograd::engine::evaluate_function: MmBackward0", 1, 110)
        for piece in range(10):
            made.kernel("gemm", (2.0 + piece, 3.0 + piece), (10.0 + 10 * piece, 20.0 + 10 * piece))
        for elements, launch, begin, end in ((1_000_000, 14.0, 90.0, 140.0), (250_000, 16.0, 140.0, 160.0)):
            said = {"Collective name": "allreduce", "In msg nelems": elements, "dtype": "Float", "Group size": 2}
            made.kernel("ncclDevKernel_AllReduce", (launch, launch + 1), (begin, end), stream=20)
            made.events[-1]["args"] |= said
        made.call("cudaDeviceSynchronize", 112, 165)
        found.append(made)
    return found


def test_smaller_buckets_are_sent_while_later_gradients_are_computed(tmp_path: Path) -> None:
    recording = couple([record(made.trace(tmp_path)) for made in bucketed()])
    answer = ask(recording, [Buckets(2e6)])
    assert answer.refused is None
    assert answer.step_s is not None and answer.low_s is not None and answer.high_s is not None
    # 10 µs and 10 µs per MB: half of the 4 MB is sent before the bucket is full; the rest ends at 120 and not 140 µs
    assert answer.base_s - answer.step_s == pytest.approx(20e-6, abs=2e-6)
    assert answer.low_s <= answer.step_s <= answer.high_s
    assert answer.high_s >= answer.base_s


def test_buckets_are_not_cut_into_dust(tmp_path: Path) -> None:
    recording = couple([record(made.trace(tmp_path)) for made in bucketed()])
    assert "more than 64 parts" in str(ask(recording, [Buckets(1e4)]).refused)
