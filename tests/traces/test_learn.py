"""Events learned from traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.traces.made import Made, host_bound, pair_of_ranks
from traincast import AnalyticalCostModel, Operator, RequestError, TensorSpec, files, load_device, trace
from traincast.cluster import find_node
from traincast.estimate.events.file import contents_of
from traincast.estimate.events.model import EventsCostModel, events_of
from traincast.graph import DType, OpKind, Phase
from traincast.traces.learn import learn, write_events

SHAPE: dict[str, Any] = {"Input__Dims": [[64, 32], [32, 16]], "Input__type": ["float", "float"]}


def shaped() -> Made:
    made = Made()
    for step in range(2):
        at = 100.0 * step
        made.range(f"ProfilerStep#{step}", at, at + 100)
        made.op("aten::mm", at, at + 10, **SHAPE)
        made.kernel("gemm", (at + 2, at + 6), (at + 8, at + 18 + 2 * step))
    return made


def test_a_learned_operator_is_the_one_that_a_captured_model_has(tmp_path: Path) -> None:
    learned = learn([[shaped().trace(tmp_path)]])
    events = events_of(tmp_path, learned.card, learned.rows)
    product = Operator(
        name="mm",
        kind=OpKind.GEMM,
        phase=Phase.FORWARD,
        inputs=(TensorSpec((64, 32), DType.FP32), TensorSpec((32, 16), DType.FP32)),
        outputs=(TensorSpec((64, 16), DType.FP32),),
    )
    model = EventsCostModel(events, AnalyticalCostModel())
    found = model.estimate([product], find_node(load_device("h100-sxm5-80gb"), 1))
    assert found.seconds.tolist() == pytest.approx([11e-6])
    assert learned.covered == pytest.approx(1.0)


def test_launches_become_the_hosts_time_per_kernel(tmp_path: Path) -> None:
    rows = learn([[shaped().trace(tmp_path)]]).rows
    launch = next(row for row in rows if row["kind"] == "launch")
    assert launch["mean_s"] == pytest.approx(100e-6, rel=0.2)


def test_collectives_are_learned_from_all_ranks_and_from_no_rank_alone(tmp_path: Path) -> None:
    ranks = pair_of_ranks()
    for made in ranks:
        made.op("aten::mm", 2, 4, **SHAPE)
        for event in made.events:
            if event["name"].startswith("nccl"):
                event["args"] |= {
                    "Collective name": "allreduce",
                    "In msg nelems": 1000,
                    "dtype": "Float",
                    "Group size": 2,
                }
            if event["name"] == "aten::mm":
                event["dur"] = 150.0
    traces = [made.trace(tmp_path) for made in ranks]
    together = [row for row in learn([traces]).rows if row["kind"] == "collective"]
    assert [(row["nbytes"], row["num_ranks"], row["mean_s"]) for row in together] == [(4000.0, 2, pytest.approx(20e-6))]
    assert not [row for row in learn([traces[:1]]).rows if row["kind"] == "collective"]


def test_a_trace_without_shapes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="record_shapes=True"):
        learn([[host_bound().trace(tmp_path)]])


def test_operators_of_any_known_kind_are_learned_with_their_phase(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 100)
    made.op("ReluBackward0", 0, 30)
    made.op(
        "aten::threshold_backward", 1, 29, Input__Dims=[[8, 4], [8, 4], []], Input__type=["float", "float", "Scalar"]
    )
    made.kernel("elementwise", (5, 8), (10, 17))
    learned = learn([[made.trace(tmp_path)]])
    rows = [row for row in learned.rows if row["kind"] == "operator"]
    assert [json.loads(row["key"])[:3] for row in rows] == [["activation", "threshold_backward", "bwd"]]
    assert rows[0]["mean_s"] == pytest.approx(7e-6)
    assert learned.covered == pytest.approx(1.0)


def test_products_on_tensor_cores_are_events_of_tf32(tmp_path: Path) -> None:
    made = shaped()
    for event in made.events:
        event["name"] = "ampere_s1688gemm" if event["name"] == "gemm" else event["name"]
    learned = learn([[made.trace(tmp_path)]])
    key = json.loads(next(row["key"] for row in learned.rows if row["kind"] == "operator"))
    assert [tensor[1] for tensor in (*key[3], *key[4])] == ["tf32", "tf32", "fp32"]
    assert learned.card.precision == "tf32"
    product = Operator(
        name="mm",
        kind=OpKind.GEMM,
        phase=Phase.FORWARD,
        inputs=(TensorSpec((64, 32), DType.FP32), TensorSpec((32, 16), DType.FP32)),
        outputs=(TensorSpec((64, 16), DType.FP32),),
    )
    with pytest.raises(RequestError, match="measured in tf32, but the step computes in fp32: use --precision tf32"):
        learned.cost_model().estimate([product], find_node(load_device("h100-sxm5-80gb"), 1))


def of_another_device(made: Made) -> Made:
    document = made.document()
    document["deviceProperties"] = [{"id": 0, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 34_000_000_000}]
    made.document = lambda: document  # type: ignore[method-assign]
    return made


def test_a_folder_of_other_events_or_of_other_files_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "events"
    learned = learn([[shaped().trace(tmp_path)]])
    write_events(learned, path)
    write_events(learned, path)  # the same device and precision
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    other = learn([[of_another_device(shaped()).trace(tmp_path)]])
    with pytest.raises(RequestError, match="has events with device 'h100-sxm5-80gb', not 'v100-sxm2-32gb'"):
        write_events(other, path)
    half = replace(learned, card=replace(learned.card, precision="amp"))
    with pytest.raises(RequestError, match="has events with precision 'fp32', not 'amp'"):
        write_events(half, path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("all of it")
    with pytest.raises(RequestError, match="it is a folder of other files"):
        trace.learn(shaped().write(tmp_path / "t.json"), output=mine)
    profiled = replace(learned, card=replace(learned.card, statistic="mean of steps"))
    files.write_folder(tmp_path / "profiled", contents_of(profiled.card, profiled.rows))
    with pytest.raises(RequestError, match="its events are not from `trace learn`"):
        trace.learn(shaped().write(tmp_path / "t.json"), output=tmp_path / "profiled")


def test_traces_of_several_devices_are_not_learned_together(tmp_path: Path) -> None:
    one, other = shaped().trace(tmp_path), of_another_device(shaped()).trace(tmp_path)
    with pytest.raises(RequestError, match="on v100-sxm2-32gb, not on h100-sxm5-80gb: learn from the traces of each"):
        learn([[one], [other]])
