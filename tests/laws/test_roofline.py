"""What holds for every kernel time: rooflines are lower bounds, and more work is never cheaper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast import AnalyticalCostModel, Cluster, Operator, TensorSpec, load_cluster
from traincast.estimate.operators.roofline import Machine, gemm_compute_seconds, join, memory_seconds
from traincast.graph import DType, OpKind, Phase

MACHINE = Machine(num_sms=108, bandwidth=1.6e12, l2_bytes=40e6, floor_s=3e-6)
CLUSTERS = {name: load_cluster(name) for name in ("dgx-h100", "dgx-a100", "dgx-b200", "pcie-t4", "pcie-mi210")}

clusters = st.sampled_from(sorted(CLUSTERS)).map(CLUSTERS.__getitem__)
dims = st.integers(min_value=1, max_value=1 << 17)
small = st.integers(min_value=1, max_value=256)
dtypes = st.sampled_from([DType.BF16, DType.FP16, DType.FP32, DType.TF32, DType.FP8])
seconds_column = st.floats(min_value=0.0, max_value=1e6)


def gemm(b: int, m: int, n: int, k: int, *, dtype: DType = DType.BF16) -> Operator:
    lead = (b,) if b > 1 else ()
    return Operator(
        name="mm",
        kind=OpKind.BATCHED_GEMM if b > 1 else OpKind.GEMM,
        phase=Phase.FORWARD,
        inputs=(TensorSpec((*lead, m, k), dtype), TensorSpec((*lead, k, n), dtype)),
        outputs=(TensorSpec((*lead, m, n), DType.BF16),),
    )


def attention(batch: int, heads: int, seq: int, dim: int, *, causal: bool, backward: bool = False) -> Operator:
    q = TensorSpec((batch, heads, seq, dim), DType.BF16)
    return Operator(
        name="attention_backward" if backward else "attention",
        kind=OpKind.ATTENTION,
        phase=Phase.BACKWARD if backward else Phase.FORWARD,
        inputs=(q, q, q, q) if backward else (q, q, q),
        outputs=(q, q, q) if backward else (q,),
        attributes={"causal": causal},
    )


def conv(batch: int, c_in: int, c_out: int, size: int) -> Operator:
    return Operator(
        name="convolution",
        kind=OpKind.CONV,
        phase=Phase.FORWARD,
        inputs=(TensorSpec((batch, c_in, size, size)), TensorSpec((c_out, c_in, 3, 3))),
        outputs=(TensorSpec((batch, c_out, size, size)),),
        attributes={"stride": 1, "groups": 1},
    )


def seconds(cluster: Cluster, *operators: Operator) -> list[float]:
    return [float(x) for x in AnalyticalCostModel().estimate(operators, cluster).seconds]


@given(cluster=clusters, b=small, m=dims, n=dims, k=dims, which=st.integers(0, 3), dtype=dtypes)
def test_doubling_a_dim_of_a_gemm_never_lowers_its_time(
    *, cluster: Cluster, b: int, m: int, n: int, k: int, which: int, dtype: DType
) -> None:
    b2, m2, n2, k2 = (size * (2 if i == which else 1) for i, size in enumerate((b, m, n, k)))
    before, after = seconds(cluster, gemm(b, m, n, k, dtype=dtype), gemm(b2, m2, n2, k2, dtype=dtype))
    assert after >= before * (1 - 1e-12)


@given(cluster=clusters, m=dims, n=dims, k=dims, dtype=dtypes)
def test_no_gemm_is_faster_than_the_roofline_of_the_datasheet(
    cluster: Cluster, m: int, n: int, k: int, dtype: DType
) -> None:
    op = gemm(1, m, n, k, dtype=dtype)
    compute = op.flops / cluster.device.peak(dtype.value)
    (taken,) = seconds(cluster, op)
    assert taken >= compute
    # What fits the cache need not come from memory.
    if op.nbytes > cluster.device.l2_bytes:
        assert taken >= op.nbytes / cluster.device.memory_bandwidth


@given(cluster=clusters, m=st.integers(16, 64), extra=st.integers(1, 4096))
def test_a_gemm_and_its_transpose_take_the_same_time(cluster: Cluster, m: int, extra: int) -> None:
    one, other = seconds(cluster, gemm(1, m, m + extra, 1024), gemm(1, m + extra, m, 1024))
    assert one == pytest.approx(other)


@given(
    cluster=clusters,
    batch=small,
    heads=small,
    seq=st.integers(1, 65536),
    causal=st.booleans(),
    backward=st.booleans(),
    which=st.integers(0, 2),
)
def test_doubling_a_dim_of_an_attention_never_lowers_its_time(
    *, cluster: Cluster, batch: int, heads: int, seq: int, causal: bool, backward: bool, which: int
) -> None:
    batch2, heads2, seq2 = (size * (2 if i == which else 1) for i, size in enumerate((batch, heads, seq)))
    before = attention(batch, heads, seq, 128, causal=causal, backward=backward)
    after = attention(batch2, heads2, seq2, 128, causal=causal, backward=backward)
    shorter, longer = seconds(cluster, before, after)
    assert longer >= shorter * (1 - 1e-12)


@given(cluster=clusters, seq=st.integers(128, 65536))
def test_a_causal_mask_saves_time_and_a_backward_costs_more(cluster: Cluster, seq: int) -> None:
    masked, full, back = seconds(
        cluster,
        attention(4, 16, seq, 128, causal=True),
        attention(4, 16, seq, 128, causal=False),
        attention(4, 16, seq, 128, causal=False, backward=True),
    )
    assert masked <= full < back


@given(
    cluster=clusters,
    batch=small,
    c_in=st.integers(1, 512),
    c_out=st.integers(1, 512),
    size=st.integers(1, 128),
    which=st.integers(0, 3),
)
def test_doubling_a_dim_of_a_convolution_never_lowers_its_time(
    *, cluster: Cluster, batch: int, c_in: int, c_out: int, size: int, which: int
) -> None:
    doubled = [x * (2 if i == which else 1) for i, x in enumerate((batch, c_in, c_out, size))]
    before, after = seconds(cluster, conv(batch, c_in, c_out, size), conv(*doubled))
    assert after >= before * (1 - 1e-12)


@given(nbytes=st.floats(0.0, 1e15), more=st.floats(0.0, 1e15))
def test_more_bytes_never_move_faster(nbytes: float, more: float) -> None:
    few, many = memory_seconds(np.array([nbytes, nbytes + more]), MACHINE)
    assert many >= few * (1 - 1e-12)


@given(compute=seconds_column, memory=seconds_column, sharpness=st.floats(1.0, 50.0))
def test_joined_time_lies_between_the_larger_part_and_the_sum(compute: float, memory: float, sharpness: float) -> None:
    (joined,) = join(np.array([compute]), np.array([memory]), sharpness)
    assert max(compute, memory) * (1 - 1e-9) <= joined <= (compute + memory) * (1 + 1e-9)


def test_one_more_tile_than_processors_costs_more_than_one_less() -> None:
    one = np.ones(3)
    rows = 128.0 * np.array([107.0, 108.0, 109.0])
    under, full, over = gemm_compute_seconds(
        one, rows, 128 * one, 8192 * one, rate=250e12 * one, out_bytes=2 * one, machine=MACHINE
    )
    assert over - full > full - under


@given(cluster=clusters)
def test_huge_work_takes_finite_time(cluster: Cluster) -> None:
    huge = gemm(1, 1 << 40, 1 << 40, 1 << 40)
    estimates = AnalyticalCostModel().estimate([huge, replace(huge, kind=OpKind.ELEMENTWISE)], cluster)
    assert np.isfinite(estimates.high).all()
    assert (estimates.low > 0).all()
