"""The law of grouped products: rows per expert, kernels, sums of gradients and devices, learned and analytical."""

from __future__ import annotations

import numpy as np
import pytest

from traincast import (
    AnalyticalCostModel,
    CostModel,
    LearnedCostModel,
    Operator,
    TensorSpec,
    learned_cost_model,
    load_cluster,
)
from traincast.estimate import SOURCES
from traincast.estimate.analytical import GROUPED_SHARE
from traincast.estimate.operators import grouped
from traincast.graph import DType, OpKind, Phase

N, K = 4096, 7168
LEARNED = SOURCES.index("learned")


def _grouped(
    kernel: str, *, experts: int, rows: int, of_weights: bool = False, adds_to: str = "", dtype: DType = DType.BF16
) -> Operator:
    """A product of ``experts`` experts with ``rows`` rows each: forward, or the gradient of their weights."""
    x, weights = TensorSpec((experts * rows, K), dtype, 0), TensorSpec((experts, K, N), dtype)
    y, ends = TensorSpec((experts * rows, N), dtype, 0), TensorSpec((experts,), DType.INT64)
    marks = {"kernel": kernel, "adds_to": adds_to}
    return Operator(
        name="grouped_mm_backward" if of_weights else "grouped_mm",
        kind=OpKind.GROUPED_GEMM,
        phase=Phase.BACKWARD if of_weights else Phase.FORWARD,
        inputs=(x, y, ends) if of_weights else (x, weights, ends),
        outputs=(weights,) if of_weights else (y,),
        attributes={name: value for name, value in marks.items() if value},
    )


def _product(m: int, n: int = N, k: int = K) -> Operator:
    return Operator(
        name="mm",
        kind=OpKind.GEMM,
        phase=Phase.FORWARD,
        inputs=(TensorSpec((m, k), DType.BF16, 0), TensorSpec((k, n), DType.BF16)),
        outputs=(TensorSpec((m, n), DType.BF16, 0),),
    )


@pytest.fixture(scope="module")
def learned() -> LearnedCostModel:
    return learned_cost_model()


def _seconds(model: CostModel, *works: Operator, cluster: str = "dgx-b200:1") -> list[float]:
    return [float(s) for s in model.estimate(works, load_cluster(cluster)).seconds]


@pytest.mark.parametrize("of_weights", [False, True])
def test_a_grouped_product_is_one_product_of_all_rows(of_weights: bool) -> None:
    op = _grouped("looped", experts=8, rows=512, of_weights=of_weights)
    product = grouped.as_product(op)
    shapes = [tensor.shape for tensor in (*product.inputs, *product.outputs)]
    m, n, k = (K, N, 8 * 512) if of_weights else (8 * 512, N, K)
    assert shapes == [(m, k), (k, n), (m, n)]
    assert product.flops == op.flops


@pytest.mark.parametrize("kernel", ["looped", "fused"])
def test_the_formula_by_hand(kernel: str) -> None:
    device = load_cluster("dgx-b200:1").device
    bandwidth = device.memory_bandwidth * 0.88
    for op, weights in (
        (_grouped(kernel, experts=8, rows=256), 2.0),
        (_grouped(kernel, experts=8, rows=256, of_weights=True), 2.0),
        (_grouped(kernel, experts=8, rows=256, of_weights=True, adds_to="fp32"), 8.0),
    ):
        traffic = 8 * N * K * weights / bandwidth
        by_hand = np.hypot(grouped.SLOWDOWN[kernel] * 1e-3, traffic) + 8 * grouped.START_S[kernel]
        assert grouped.grouped_seconds(op, device, product_s=1e-3) == pytest.approx(by_hand)


def test_products_of_training_are_learned_on_every_measured_device(learned: LearnedCostModel) -> None:
    for cluster in ("dgx-a100:1", "dgx-h100:1", "dgx-b200:1", "dgx-gb300:1"):
        for dtype in (DType.BF16, DType.FP8):
            works = [_grouped("looped", experts=8, rows=2048, dtype=dtype), _grouped("", experts=8, rows=2048)]
            found = learned.estimate(works, load_cluster(cluster))
            assert found.source[0] == LEARNED
            assert found.source[1] != LEARNED  # nobody says which kernels run it
            assert found.low[0] < found.seconds[0] < found.high[0]


def test_a_learned_grouped_product_follows_the_learned_product(learned: LearnedCostModel) -> None:
    op = _grouped("looped", experts=8, rows=4096)
    device = load_cluster("dgx-h100:1").device
    product, found = _seconds(learned, _product(8 * 4096), op, cluster="dgx-h100:1")
    assert found == pytest.approx(grouped.grouped_seconds(op, device, product_s=product))


def test_learned_and_analytical_estimates_agree_for_large_products(learned: LearnedCostModel) -> None:
    works = [_grouped(kernel, experts=8, rows=4096) for kernel in ("looped", "fused")]
    for cluster in ("dgx-a100:1", "dgx-b200:1"):
        found = _seconds(learned, *works, cluster=cluster)
        assert found == pytest.approx(_seconds(AnalyticalCostModel(), *works, cluster=cluster), rel=0.15)


@pytest.mark.parametrize("model", [AnalyticalCostModel(), learned_cost_model()], ids=["analytical", "learned"])
def test_with_few_rows_per_expert_a_loop_is_slow(model: CostModel) -> None:
    rates = []
    for rows in (128, 512, 2048, 8192):
        (seconds,) = _seconds(model, _grouped("looped", experts=32, rows=rows))
        assert seconds > 32 * grouped.START_S["looped"]
        rates.append(2.0 * 32 * rows * N * K / seconds)
    assert rates == sorted(rates)
    assert rates[0] < 0.6 * rates[-1]


def test_with_many_rows_a_grouped_product_takes_its_share_of_a_plain_one() -> None:
    works = [_grouped(kernel, experts=8, rows=16384) for kernel in ("looped", "fused", "")]
    plain, looped, fused, inference = _seconds(AnalyticalCostModel(), _product(8 * 16384), *works)
    assert looped / plain == pytest.approx(grouped.SLOWDOWN["looped"], rel=0.02)
    assert fused / plain == pytest.approx(grouped.SLOWDOWN["fused"], rel=0.02)
    assert plain / inference == pytest.approx(GROUPED_SHARE, rel=0.02)


@pytest.mark.parametrize("model", [AnalyticalCostModel(), learned_cost_model()], ids=["analytical", "learned"])
def test_adding_to_sums_in_fp32_costs_most_where_experts_have_few_rows(model: CostModel) -> None:
    def cost(rows: int) -> float:
        ways = [_grouped("looped", experts=32, rows=rows, of_weights=True, adds_to=to) for to in ("", "bf16", "fp32")]
        plain, narrow, wide = _seconds(model, *ways)
        assert plain < narrow < wide
        return wide / plain

    assert cost(128) > 1.5
    assert cost(8192) < 1.05


def test_the_slowdown_depends_on_kernels_and_architecture() -> None:
    a100, b200 = (load_cluster(name).device for name in ("dgx-a100:1", "dgx-b200:1"))
    for kernel in ("looped", "fused"):
        op = _grouped(kernel, experts=2, rows=8)
        assert grouped.slowdown(op, b200) == grouped.SLOWDOWN[kernel]
        assert grouped.slowdown(op, a100) == grouped.OLDER_SLOWDOWN[kernel] < grouped.SLOWDOWN[kernel]
    assert not grouped.of_training(_grouped("", experts=2, rows=8))


@pytest.mark.parametrize(
    ("dtype", "each"), [(DType.FP8, 4.0), (DType.NVFP4, 4.0 + 2 * DType.NVFP4.nbytes), (DType.BF16, 0.0)]
)
def test_rows_of_narrow_products_are_cast_in_a_loop_over_experts_only(dtype: DType, each: float) -> None:
    looped, fused = (_grouped(kernel, experts=8, rows=512, dtype=dtype) for kernel in ("looped", "fused"))
    assert grouped.casts_bytes(looped) == pytest.approx(8 * 512 * K * each)
    assert grouped.casts_bytes(fused) == 0.0
    assert grouped.casts_bytes(_grouped("looped", experts=8, rows=512, of_weights=True, dtype=dtype)) == 0.0
