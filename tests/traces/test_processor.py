"""Operators that ran on a processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.traces.made import Made
from traincast import AnalyticalCostModel, Operator, RequestError, TensorSpec, load_cluster, load_device
from traincast.estimate.events.model import CARRIED, MEASURED, EventsCostModel, events_of
from traincast.graph import DType, OpKind, Phase
from traincast.traces.learn import learn
from traincast.traces.recording.processor import host_runs, on_processor, own_times
from traincast.traces.recording.steps import steps_of
from traincast.traces.show import summarize_traces


def shapes(*dims: list[int]) -> dict[str, Any]:
    return {"Input__Dims": list(dims), "Input__type": ["float"] * len(dims)}


def step_on_processor(*, batch: int = 8) -> Made:
    """A step of 1 ms: a linear layer of 400 µs and 100 µs until the next, its backward, a gradient and an update."""
    made = Made()
    made.range("ProfilerStep#0", 0, 1000)
    made.op("aten::linear", 0, 400, **shapes([batch, 32], [16, 32]))
    made.op("aten::t", 2, 4, **shapes([16, 32]))
    made.op("aten::mm", 5, 400, **shapes([batch, 32], [32, 16]))
    made.op("autograd::engine::evaluate_function: MmBackward0", 500, 800)
    made.op("MmBackward0", 505, 795)
    made.op("aten::mm", 510, 790, **shapes([32, batch], [batch, 16]))
    made.op("torch::autograd::AccumulateGrad", 800, 820, **shapes([32, 16]))
    made.range("Optimizer.step#AdamW.step", 900, 1000)
    return made


def document_without_device(made: Made) -> Made:
    made.document = lambda: {"traceEvents": made.events}  # type: ignore[method-assign]
    return made


def test_an_operator_takes_the_time_until_the_next_less_what_recording_took(tmp_path: Path) -> None:
    trace = document_without_device(step_on_processor()).trace(tmp_path)
    runs = host_runs(trace, steps_of(trace))
    assert on_processor(trace)
    assert [(r.operator.name, r.operator.phase) for r in runs.operators] == [
        ("mm", Phase.FORWARD),
        ("mm", Phase.BACKWARD),
    ]
    assert [r.seconds for r in runs.operators] == pytest.approx([505e-6 - 3 * 2e-6, 390e-6 - 2 * 2e-6])
    assert [r.after for r in runs.operators] == pytest.approx([110e-6 - 2 * 2e-6, 110e-6 - 2e-6])
    assert [(u.name, u.nbytes) for u in runs.updates] == [("adamw", 2048.0)]
    assert runs.updates[0].seconds == pytest.approx(100e-6)


def test_events_of_a_processor_serve_other_batches(tmp_path: Path) -> None:
    learned = learn([[document_without_device(step_on_processor()).trace(tmp_path)]])
    assert (learned.card.device, learned.card.backend) == ("cpu", "gloo")
    model = EventsCostModel(events_of(tmp_path, learned.card, learned.rows), AnalyticalCostModel())

    def forward(batch: int) -> Operator:
        tensors = [TensorSpec(shape, DType.FP32) for shape in ((batch, 32), (32, 16), (batch, 16))]
        return Operator(
            name="mm", kind=OpKind.GEMM, phase=Phase.FORWARD, inputs=tuple(tensors[:2]), outputs=(tensors[2],)
        )

    found = model.estimate([forward(8), forward(16)], load_cluster("cpu-server:1x1"))
    assert found.source.tolist() == [MEASURED, CARRIED]
    assert found.seconds[0] == pytest.approx(499e-6)
    assert found.seconds[0] < found.seconds[1] < 2 * found.seconds[0]


def test_a_copy_that_autograd_makes_before_an_operator_in_place_is_told_apart(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 100)
    made.op("aten::hardtanh_", 0, 90, **shapes([8, 32]))
    made.op("aten::clone", 1, 40, **shapes([8, 32]))
    trace = document_without_device(made).trace(tmp_path)
    runs = host_runs(trace, steps_of(trace)).operators
    assert [r.operator.name for r in runs] == ["clone", "hardtanh_"]
    assert [r.seconds for r in runs] == pytest.approx([36e-6, 60e-6])


def test_a_trace_without_kernels_was_not_recorded_on_a_gpu(tmp_path: Path) -> None:
    trace = document_without_device(step_on_processor()).trace(tmp_path)
    with pytest.raises(RequestError, match="ran on a processor, not on h100-sxm5-80gb"):
        learn([[trace]], device=load_device("h100-sxm5-80gb"))


def test_a_processor_has_operators_by_their_own_time_and_a_breakdown(tmp_path: Path) -> None:
    made = step_on_processor()
    made.op("c10d::allreduce_", 850, 880)
    made.range("gloo:all_reduce", 860, 890, tid=99)
    summary = summarize_traces([document_without_device(made).trace(tmp_path)])
    # the linear layer lasts 400 µs, 397 of them are those of what it consists of; backward is one product of 280 µs
    found = {o.name: (o.seconds, o.kernels) for o in summary.operators}
    assert found["aten::mm"] == pytest.approx((675e-6, 2.0))
    assert found["aten::linear"] == pytest.approx((3e-6, 1.0))
    assert "MmBackward0" not in found
    parts = summary.breakdown
    assert parts.compute_s == pytest.approx(680e-6)
    assert parts.exposed_communication_s == pytest.approx(40e-6)
    assert parts.host_s == pytest.approx(280e-6)
    assert parts.total_s == pytest.approx(summary.step_s)
    assert summary.ranks[0].device == "cpu"
    assert not any("recorded the host only" in text for text in summary.missing)


def test_calls_that_launch_say_that_operators_ran_elsewhere(tmp_path: Path) -> None:
    made = step_on_processor()
    made.call("cudaLaunchKernel", 10, 12)
    trace = made.trace(tmp_path)
    assert not on_processor(trace)
    with pytest.raises(RequestError, match="has no kernels"):
        learn([[trace]])


def test_phases_of_a_processor_are_told_by_what_its_operators_run_in(tmp_path: Path) -> None:
    made = step_on_processor()
    made.op("aten::_fused_adamw_", 910, 990)
    trace = document_without_device(made).trace(tmp_path)
    took = dict.fromkeys(Phase, 0)
    for one in own_times(trace, steps_of(trace)):
        assert one.phase is not None
        took[one.phase] += one.ns
    assert took == {Phase.FORWARD: 400_000, Phase.BACKWARD: 280_000, Phase.OPTIMIZER: 80_000}
