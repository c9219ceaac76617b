"""The law of grouped products: rows per expert, kernels and devices."""

from __future__ import annotations

import pytest

from traincast.cluster import load_cluster
from traincast.estimate.analytical import EXPERT_S, GROUPED_SHARE, LOOPED_SHARE, AnalyticalCostModel, grouped_share
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec

N, K = 4096, 7168


def _grouped(kernel: str, *, experts: int, rows: int) -> Operator:
    """A forward product of ``experts`` experts with ``rows`` rows each."""
    tensors = (TensorSpec((experts * rows, K), DType.BF16, 0), TensorSpec((experts, K, N), DType.BF16))
    return Operator(
        name="grouped_mm",
        kind=OpKind.GROUPED_GEMM,
        phase=Phase.FORWARD,
        inputs=(*tensors, TensorSpec((experts,), DType.INT64)),
        outputs=(TensorSpec((experts * rows, N), DType.BF16, 0),),
        attributes={"kernel": kernel} if kernel else {},
    )


def _product(rows: int) -> Operator:
    return Operator(
        name="mm",
        kind=OpKind.GEMM,
        phase=Phase.FORWARD,
        inputs=(TensorSpec((rows, K), DType.BF16, 0), TensorSpec((K, N), DType.BF16)),
        outputs=(TensorSpec((rows, N), DType.BF16, 0),),
    )


def _seconds(*works: Operator, cluster: str = "dgx-b200:1") -> list[float]:
    return [float(s) for s in AnalyticalCostModel().estimate(works, load_cluster(cluster)).seconds]


def test_with_many_rows_a_grouped_product_takes_its_share_of_a_dense_one() -> None:
    dense, looped, fused = _seconds(
        _product(8 * 16384), *(_grouped(kernel, experts=8, rows=16384) for kernel in ("looped", "fused"))
    )
    assert dense / looped == pytest.approx(GROUPED_SHARE["looped"], rel=0.02)
    assert dense / fused == pytest.approx(GROUPED_SHARE["fused"], rel=0.02)


def test_with_few_rows_every_expert_of_a_loop_costs_its_own_start() -> None:
    rates = []
    for rows in (128, 512, 2048, 8192):
        (seconds,) = _seconds(_grouped("looped", experts=32, rows=rows))
        assert seconds > 32 * EXPERT_S
        rates.append(2.0 * 32 * rows * N * K / seconds)
    assert rates == sorted(rates)
    assert rates[0] < 0.55 * rates[-1]


def test_the_share_depends_on_kernels_and_on_measured_architectures() -> None:
    a100, b200 = (load_cluster(name).device for name in ("dgx-a100:1", "dgx-b200:1"))
    shares = {kernel: grouped_share(_grouped(kernel, experts=2, rows=8), b200) for kernel in ("", "looped", "fused")}
    assert shares == GROUPED_SHARE
    assert shares[""] < shares["looped"] < shares["fused"] < 1.0
    assert grouped_share(_grouped("looped", experts=2, rows=8), a100) == LOOPED_SHARE["ampere"]
    assert grouped_share(_grouped("", experts=2, rows=8), a100) == GROUPED_SHARE[""]
