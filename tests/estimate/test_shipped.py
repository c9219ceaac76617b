"""The bundles that come with Traincast: small, whole, and asked by default."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from traincast import (
    AnalyticalCostModel,
    CostModel,
    Operator,
    TensorSpec,
    learned_cost_model,
    load_cluster,
    load_device,
    load_runtime,
    predict,
)
from traincast.estimate import SOURCES
from traincast.estimate.bundle import SHIPPED, load_bundle
from traincast.estimate.learned import BARE
from traincast.estimate.operators.cells import ANY
from traincast.estimate.operators.families import Rates
from traincast.estimate.operators.features import shapes_of
from traincast.graph import DType, OpKind, Phase
from traincast.strategy import lower
from traincast.validating.operators import one_device

MEASURED = (
    "a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300", "l40s", "rtx-pro-6000",
    "arc-pro-b60", "gh200-120gb", "p4", "p100-pcie-16gb", "v100-pcie-32gb", "v100-sxm2-16gb", "t4", "a100-pcie-40gb",
    "a100-pcie-80gb", "l4", "mi100", "mi210", "gtx-1080-ti", "k40", "k80", "m60",
)  # fmt: skip


def test_they_are_small() -> None:
    size = sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file())
    assert size < 25 * 2**20


def test_every_measured_device_has_a_cell_and_every_cell_a_score() -> None:
    card = load_bundle(SHIPPED / "operators").card
    cells = card["cells"]
    assert {entry["device"] for entry in cells.values()} >= {*MEASURED, ANY}
    assert {entry["family"] for entry in cells.values() if entry["setting"] == ANY} == {
        "product", "grouped", "attention", "conv", "traffic",
    }  # fmt: skip
    assert {entry["family"] for entry in cells.values() if entry["setting"] == BARE} == {"conv", "recurrent"}
    for entry in cells.values():
        if entry["device"] != ANY:
            load_device(entry["device"])
        for score in entry["scores"].values():
            assert all(math.isfinite(value) for value in score.values())
        for low, high in entry["interval"].values():
            assert low <= 0 <= high


def test_every_cell_can_be_loaded() -> None:
    bundle = load_bundle(SHIPPED / "operators")
    for name in bundle.card["cells"]:
        cell = bundle.cell(name)
        assert cell.id == name
        assert cell.trees is not None or cell.network is not None or cell.points is not None


def test_no_path_of_the_machine_they_were_fitted_on_is_in_them() -> None:
    for card in SHIPPED.rglob("card.json"):
        text = card.read_text()
        assert "/" + "work" not in text
        assert "/" + "tmp" not in text


@pytest.mark.long(but=3)
@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100", "dgx-b200", "dgx-gb200:2", "pcie-l40s"])
def test_a_forecast_is_mostly_learned_where_the_device_was_measured(cluster: str) -> None:
    report = predict("llama3-8b", cluster=cluster, strategy=None, global_batch=64, use_cache=True).report
    assert report.estimated_by["learned"] > 0.3


@pytest.mark.long(but=4)
@pytest.mark.parametrize("model", ["resnet50", "vgg16", "inception-v3"])
@pytest.mark.parametrize("cluster", ["dgx-1-v100:1x1", "dgx-1-p100:1x1"])
@pytest.mark.parametrize("runtime", ["pytorch", "tensorflow"])
def test_convolutional_networks_in_full_precision_are_learned(model: str, cluster: str, runtime: str) -> None:
    found = predict(
        model, cluster=cluster, strategy="dp=1", global_batch=64, precision="fp32", runtime=runtime, use_cache=True
    ).report.estimated_by
    assert found["learned"] > 0.8


def convolution(window: int = 3, *, stride: int = 1) -> Operator:
    x, w, y = (16, 64, 56, 56), (64, 64, window, window), (16, 64, 56 // stride, 56 // stride)
    tensors = [TensorSpec(shape, DType.FP32) for shape in (x, w, y)]
    return Operator(
        name="convolution", kind=OpKind.CONV, phase=Phase.FORWARD, inputs=tuple(tensors[:2]), outputs=(tensors[2],),
        attributes={"stride": stride},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("framework", "device", "cell"),
    [
        ("TensorFlow 1.13", "v100-sxm2-16gb", "conv/tensorflow/fp32/v100-sxm2-16gb"),
        ("PyTorch", "v100-pcie-32gb", "conv/pytorch/fp32/v100-pcie-32gb"),
        ("", "v100-pcie-32gb", "conv/bare/any/any"),
        ("bare", "v100-pcie-32gb", "conv/bare/any/any"),
        ("Megatron/TE", "v100-pcie-32gb", "conv/bare/any/any"),
        ("cuDNN/MIOpen/MKL", "v100-sxm2-16gb", "conv/bare/any/any"),
    ],
)
def test_convolutions_come_from_the_wanted_setting_and_else_from_bare_kernels(
    framework: str, device: str, cell: str
) -> None:
    """Layers of TensorFlow take three times as long as their kernels: one must not stand for the other."""
    model, place = replace(learned_cost_model(), framework=framework), load_device(device)
    shapes, rates = shapes_of("conv", [convolution()]), Rates.of(place, "fp32")
    chosen = model.bundles[0].cell(cell)
    expected = chosen.estimate(shapes, rates, framework=framework, dtype="fp32", device=place)
    np.testing.assert_allclose(model.estimate([convolution()], one_device(place)).seconds, expected.seconds)


def test_windows_that_a_layer_was_not_measured_with_are_left_to_physics() -> None:
    """All measured convolutions of PyTorch have windows of 3 × 3 and stride 1, which run faster than products do."""
    operators = [convolution(3), convolution(1), convolution(7), convolution(3, stride=2)]
    found = learned_cost_model().estimate(operators, one_device(load_device("a100-pcie-80gb")))
    assert [SOURCES[i] for i in found.source] == ["learned", "analytical", "analytical", "analytical"]


def test_a_runtime_whose_convolutions_nobody_measured_does_not_take_those_of_tensorflow() -> None:
    model, place = learned_cost_model(), one_device(load_device("h100-sxm5-80gb"))
    found = replace(model, framework="Megatron/TE").estimate([convolution()], place)
    np.testing.assert_array_equal(found.seconds, AnalyticalCostModel().estimate([convolution()], place).seconds)
    layers = replace(model, framework="TensorFlow 1.13").estimate([convolution()], place)
    assert SOURCES[layers.source[0]] == "learned"


@pytest.mark.parametrize("model", [AnalyticalCostModel(), learned_cost_model()], ids=["physics", "learned"])
@pytest.mark.parametrize(
    ("device", "stated", "used"),
    [
        ("v100-pcie-32gb", "bf16", "fp32"),  # with cells of its own in fp32
        ("v100-sxm2-16gb", "bf16", "fp32"),  # estimated from other devices
        ("t4", "bf16", "fp32"),
        ("p100-pcie-16gb", "fp8", "fp32"),
        ("rtx-2080-ti", "bf16", "fp32"),
        ("gtx-1080-ti", "fp16", "fp32"),
        ("a100-sxm4-80gb", "fp8", "bf16"),
        ("h100-sxm5-80gb", "nvfp4", "fp8"),
        ("mi100", "tf32", "fp32"),
    ],
)
def test_products_in_a_format_that_the_device_lacks_take_the_time_of_the_wider_one(
    model: CostModel, device: str, stated: str, used: str
) -> None:
    def product(dtype: DType) -> Operator:
        a, b, out = (TensorSpec(shape, dtype) for shape in ((4096, 2048), (2048, 1536), (4096, 1536)))
        return Operator(name="mm", kind=OpKind.GEMM, phase=Phase.FORWARD, inputs=(a, b), outputs=(out,))

    place = one_device(load_device(device))
    found = model.estimate([product(DType(name)) for name in (stated, used)], place)
    assert 0.9 * found.seconds[1] <= found.seconds[0] <= found.seconds[1]  # fewer bytes are read


@pytest.mark.long(but=1)
@pytest.mark.parametrize("cluster", ["dgx-1-v100:1x1", "pcie-t4:1x1"])
def test_bf16_on_a_device_without_it_is_as_slow_as_fp32_and_takes_the_memory_of_bf16(cluster: str) -> None:
    narrow, wide, half, elsewhere = (
        predict(
            "bert:layers=2,hidden=256,heads=4,vocab=1000,seq=128", cluster=place, global_batch=64, strategy="dp=1",
            runtime="pytorch", precision=precision,
        ).report
        for place, precision in ((cluster, "bf16"), (cluster, "fp32"), (cluster, "fp16"), ("dgx-a100:1x1", "bf16"))
    )  # fmt: skip
    assert 0.75 * wide.step_s < narrow.step_s <= wide.step_s
    assert half.step_s < 0.75 * narrow.step_s
    assert narrow.memory == pytest.approx(elsewhere.memory)
    name = load_cluster(cluster).device.name
    assert f"{name} has no bf16: its products run at the rate of fp32; fp16 has a rate of its own" in narrow.warnings


def test_a_device_that_was_not_measured_is_learned_from_others_and_says_so() -> None:
    report = predict("llama3-8b", cluster="pcie-a40-nvlink:4", strategy=None, global_batch=64, use_cache=True).report
    assert report.estimated_by["learned"] > 0.3
    assert any("was not measured" in warning for warning in report.warnings)


def test_forecasting_from_them_does_not_load_pytorch() -> None:
    code = (
        "import sys\n"
        "from traincast.cluster import load_cluster\n"
        "from traincast.estimate import learned_cost_model\n"
        "from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec\n"
        "t = TensorSpec((512, 512), DType.BF16)\n"
        "op = Operator(name='mm', kind=OpKind.GEMM, phase=Phase.FORWARD, inputs=(t, t), outputs=(t,))\n"
        "found = learned_cost_model().estimate([op], load_cluster('dgx-h100'))\n"
        "print(found.source.tolist(), sorted({'torch', 'lightgbm', 'sklearn', 'numba'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1] []"


def test_the_default_is_what_is_shipped() -> None:
    model = learned_cost_model()
    assert [bundle.path.name for bundle in model.bundles] == ["operators"]
    assert len(model.collectives) == 1


def test_what_was_learned_elsewhere_stays_near_physics_on_a_device_nobody_measured() -> None:
    """A network that never saw a Volta once took an attention for two hundred times what it can take."""
    request = predict(
        "bert-base", cluster="dgx-1-v100:1", global_batch=64, precision="fp16", strategy="dp=8,micro_batch=8"
    ).request  # fmt: skip
    works = [w for w in lower(request).plan.works if isinstance(w, Operator) and w.kind is OpKind.ATTENTION]
    ratio = learned_cost_model().estimate(works, request.cluster).seconds
    ratio /= AnalyticalCostModel().estimate(works, request.cluster).seconds
    assert len(works) == 2
    assert ratio.max() <= 8.0 * (1 + 1e-9)
    assert ratio.min() >= 0.125


@pytest.mark.parametrize(("runtime", "low", "high"), [("megatron", 150e12, 200e12), ("flash-1", 80e12, 112e12)])
def test_long_causal_attention_on_an_a100_runs_as_published(runtime: str, low: float, high: float) -> None:
    """FlashAttention 2: 189 TFLOP/s forward and backward at 16k tokens (Dao 2023); its predecessors about half."""
    older = load_runtime("fsdp").patched(kernels={"attention": "flash-1"})
    made = predict(
        "llama:layers=1,hidden=2048,heads=16,vocab=1000,seq=16384", cluster="dgx-a100:1x1", global_batch=1,
        runtime=older if runtime == "flash-1" else runtime, strategy="dp=1",
    )  # fmt: skip
    seconds = dict(zip(made.lowered.plan.works, made.estimates.seconds.tolist(), strict=True))
    attention = [w for w in seconds if isinstance(w, Operator) and w.kind is OpKind.ATTENTION]
    assert len(attention) == 2
    assert low < sum(op.flops for op in attention) / sum(seconds[op] for op in attention) < high
