"""Measured operators carried to other sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.estimate.test_events import card, cluster, measured
from traincast import AnalyticalCostModel, Operator, TensorSpec, load_cluster
from traincast.estimate.events.file import Row
from traincast.estimate.events.model import CARRIED, MEASURED, EventsCostModel, events_of
from traincast.graph import DType, OpKind, Phase


def fp32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.FP32)


def linear(rows: int, width: int = 256) -> Operator:
    """A linear layer of ``rows`` rows."""
    return Operator(
        name="mm", kind=OpKind.GEMM, phase=Phase.FORWARD, inputs=(fp32(rows, 1024), fp32(1024, width)),
        outputs=(fp32(rows, width),),
    )  # fmt: skip


def relu(rows: int, *, name: str = "relu") -> Operator:
    return Operator(
        name=name, kind=OpKind.ACTIVATION, phase=Phase.FORWARD, inputs=(fp32(rows, 64),), outputs=(fp32(rows, 64),)
    )


def model(path: Path, rows: Sequence[Row]) -> EventsCostModel:
    return EventsCostModel(events_of(path, card(), rows), AnalyticalCostModel())


def amount(op: Operator) -> float:
    device = cluster().device
    return op.flops / device.peak("fp32") + op.nbytes / device.memory_bandwidth


def test_an_operator_of_another_batch_grows_with_its_work(tmp_path: Path) -> None:
    found = model(tmp_path, [measured(linear(64), 1e-3)]).estimate([linear(256)], cluster())
    assert found.seconds[0] == pytest.approx(1e-3 * amount(linear(256)) / amount(linear(64)))
    assert found.source.tolist() == [CARRIED]


def test_the_part_that_does_not_grow_stays(tmp_path: Path) -> None:
    row = {**measured(relu(64), 1e-3), "fixed_s": 0.4e-3}
    found = model(tmp_path, [row]).estimate([relu(256)], cluster())
    assert found.seconds[0] == pytest.approx(0.4e-3 + 0.6e-3 * 4)


def test_two_measured_sizes_give_both_ends(tmp_path: Path) -> None:
    rows = [measured(relu(64), 1e-3), measured(relu(1024), 32e-3)]
    found = model(tmp_path, rows).estimate([relu(256)], cluster())
    assert found.seconds[0] == pytest.approx(math.sqrt(4e-3 * 8e-3))


def test_the_interval_widens_with_the_distance(tmp_path: Path) -> None:
    found = model(tmp_path, [measured(relu(64), 1e-3)]).estimate([relu(64), relu(128), relu(1024)], cluster())
    width = found.high / found.low
    assert width[0] == pytest.approx(1.1 / 0.9)
    assert width[0] < width[1] < width[2]


def test_another_spelling_of_the_same_operator_counts_as_measured(tmp_path: Path) -> None:
    found = model(tmp_path, [measured(relu(64, name="clamp_min_"), 1e-3)]).estimate([relu(64)], cluster())
    assert (found.seconds.tolist(), found.source.tolist()) == ([1e-3], [MEASURED])


def test_layers_of_other_widths_are_not_taken_for_other_batches(tmp_path: Path) -> None:
    narrow, wide = linear(64, 256), linear(256, 512)
    found = model(tmp_path, [measured(narrow, 1e-3)]).estimate([wide], cluster())
    told = AnalyticalCostModel().estimate([wide], cluster())
    assert found.seconds.tolist() == told.seconds.tolist()


def test_a_batch_that_equals_a_width_leaves_the_weights_alone(tmp_path: Path) -> None:
    def conv(batch: int) -> Operator:
        return Operator(
            name="convolution", kind=OpKind.CONV, phase=Phase.FORWARD, outputs=(fp32(batch, 32, 16, 16),),
            inputs=(fp32(batch, 32, 16, 16), fp32(32, 32, 3, 3)),
            attributes={"stride": 1, "kernel": 3, "groups": 1, "transposed": False},
        )  # fmt: skip

    found = model(tmp_path, [measured(conv(8), 1e-3)]).estimate([conv(32)], cluster())
    assert found.seconds[0] == pytest.approx(1e-3 * amount(conv(32)) / amount(conv(8)))


def test_operators_unlike_any_measured_take_the_ratio_of_their_class(tmp_path: Path) -> None:
    rows = [measured(relu(2**n), 3.0 * amount(relu(2**n))) for n in range(4, 14)]
    other = Operator(
        name="gelu", kind=OpKind.ACTIVATION, phase=Phase.FORWARD, inputs=(fp32(512, 64),), outputs=(fp32(512, 64),)
    )
    found = model(tmp_path, rows).estimate([other], cluster())
    assert found.seconds[0] == pytest.approx(3.0 * amount(other))
    assert found.high[0] > 1.5 * found.seconds[0]


def test_kernels_of_a_gpu_grow_as_the_cost_model_behind_them_says(tmp_path: Path) -> None:
    where = load_cluster("dgx-h100:1x1")
    events = events_of(tmp_path, card(device=where.device.name, backend="nccl"), [measured(linear(4096), 1e-3)])
    behind = AnalyticalCostModel()
    found = EventsCostModel(events, behind).estimate([linear(8192)], where)
    told = behind.estimate([linear(4096), linear(8192)], where).seconds
    assert found.seconds[0] == pytest.approx(1e-3 * told[1] / told[0])
