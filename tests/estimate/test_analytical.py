"""The analytical cost model: every kind of work, published figures, intervals, warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from traincast import (
    AnalyticalCostModel,
    Cluster,
    CostModel,
    Estimates,
    Operator,
    TensorSpec,
    learned_cost_model,
    load_cluster,
)
from traincast.estimate import SOURCES
from traincast.estimate.analytical import (
    GROUPED_SHARE,
    SORTED_ID_BYTES,
    STATIC_SHARE,
    UNALIGNED_SHARE,
    attention_share,
)
from traincast.estimate.learned import _drawn, _thin
from traincast.estimate.operators.efficiency import achievable
from traincast.graph import DType, OpKind, Phase, Scalar
from traincast.work import Collective, Launch, Transfer, Work

H100 = load_cluster("dgx-h100:2")
A100 = load_cluster("dgx-a100:2")
TPU = load_cluster("tpu-v5e-host")


def op(
    kind: OpKind, *inputs: TensorSpec, outputs: tuple[TensorSpec, ...], name: str = "", **attributes: Scalar
) -> Operator:
    backward = name.endswith("backward")
    return Operator(
        name=name or kind.value,
        kind=kind,
        phase=Phase.BACKWARD if backward else Phase.FORWARD,
        inputs=inputs,
        outputs=outputs,
        attributes=attributes,
    )


def gemm(m: int, n: int, k: int, dtype: DType = DType.BF16) -> Operator:
    out = TensorSpec((m, n), DType.FP32 if dtype is DType.FP32 else DType.BF16)
    return op(OpKind.GEMM, TensorSpec((m, k), dtype), TensorSpec((k, n), dtype), outputs=(out,))


def estimate(works: list[Work], cluster: Cluster = H100) -> Estimates:
    return AnalyticalCostModel().estimate(works, cluster)


def seconds(*works: Work, cluster: Cluster = H100) -> list[float]:
    return [float(x) for x in estimate(list(works), cluster).seconds]


def every_kind() -> list[Work]:
    x = TensorSpec((8, 64, 56, 56))
    w = TensorSpec((64, 64, 3, 3))
    q = TensorSpec((2, 16, 1024, 64), DType.BF16)
    rows = TensorSpec((4096, 512), DType.BF16)
    experts = TensorSpec((8, 512, 256), DType.BF16)
    sequence = TensorSpec((50, 16, 256), batch_dim=1)
    gates = TensorSpec((1024, 256))
    works: list[Work] = [
        gemm(512, 512, 512),
        op(OpKind.BATCHED_GEMM, TensorSpec((4, 64, 32)), TensorSpec((4, 32, 64)), outputs=(TensorSpec((4, 64, 64)),)),
        op(OpKind.GROUPED_GEMM, rows, experts, outputs=(TensorSpec((4096, 256), DType.BF16),)),
        op(OpKind.GROUPED_GEMM, rows, TensorSpec((4096, 256), DType.BF16), outputs=(experts,)),
        op(OpKind.ATTENTION, q, q, q, outputs=(q,), causal=True),
        op(OpKind.ATTENTION, q, q, q, q, outputs=(q, q, q), name="attention_backward", causal=True),
        op(OpKind.CONV, x, w, outputs=(x,), stride=1, groups=1),
        op(OpKind.CONV, x, x, w, outputs=(x, w), name="convolution_backward", products=2),
        op(OpKind.DEPTHWISE_CONV, x, TensorSpec((64, 1, 3, 3)), outputs=(x,), groups=64),
        op(OpKind.RNN, sequence, gates, gates, outputs=(sequence,)),
        op(OpKind.RNN, sequence, gates, gates, outputs=(sequence,), name="rnn_backward"),
        op(OpKind.SCAN, q, q, q, outputs=(q,), name="gated_delta_rule", chunk=64),
        Collective(kind="all_reduce", nbytes=1e8, num_ranks=16, num_nodes=2),
        Transfer(nbytes=1e7, crosses_nodes=True),
        Launch(kernels=12.5),
    ]
    done = {work.kind for work in works if isinstance(work, Operator)}
    works.extend(op(kind, x, outputs=(x,)) for kind in OpKind if kind not in done)
    return works


def test_every_kind_of_work_has_a_finite_time_inside_its_interval() -> None:
    found = estimate(every_kind())
    assert np.isfinite(found.seconds).all()
    assert (found.low > 0).all()
    assert (found.low < found.seconds).all()
    assert (found.seconds < found.high).all()
    assert (found.source == SOURCES.index("analytical")).all()
    assert found.warnings == ()


def test_works_are_estimated_alone_as_in_company() -> None:
    works = every_kind()
    together = estimate(works).seconds
    assert together.tolist() == pytest.approx([seconds(work)[0] for work in works], rel=1e-12)


def test_no_works_give_no_estimates() -> None:
    assert estimate([]).seconds.shape == (0,)


def test_a_launch_costs_its_kernels_on_the_host() -> None:
    assert seconds(Launch(kernels=10)) == [pytest.approx(10 * H100.launch_s)]


def test_a_launch_costs_whatever_the_host_does_and_waits_only_where_it_is_crowded() -> None:
    quiet = Launch(kernels=1.0, blocks=2.0, collectives=4.0, sends=8.0, waits=16.0)
    assert seconds(quiet, replace(quiet, crowded=True)) == pytest.approx([15 * H100.launch_s, 31 * H100.launch_s])


@pytest.mark.parametrize(
    ("cluster", "m", "n", "k", "measured_us"),
    # Orders of magnitude that cuBLAS shows on these devices: 4096³ in bf16 at 770 and 250 TFLOP/s.
    [(H100, 4096, 4096, 4096, 178), (A100, 4096, 4096, 4096, 550), (H100, 16, 4096, 16384, 51)],
)
def test_large_gemms_reach_what_cublas_reaches(cluster: Cluster, m: int, n: int, k: int, measured_us: float) -> None:
    assert seconds(gemm(m, n, k), cluster=cluster)[0] == pytest.approx(measured_us * 1e-6, rel=0.15)


def test_a_narrow_dtype_pays_for_its_cast_and_wins_on_large_products_only() -> None:
    small, small_fp8, large, large_fp8 = seconds(
        gemm(128, 512, 512), gemm(128, 512, 512, DType.FP8), gemm(8192, 8192, 8192), gemm(8192, 8192, 8192, DType.FP8)
    )
    assert small_fp8 > small
    assert large_fp8 < 0.75 * large


def test_tensor_cores_in_tf32_beat_plain_fp32() -> None:
    plain, rounded = seconds(gemm(4096, 4096, 4096, DType.FP32), gemm(4096, 4096, 4096, DType.TF32))
    assert rounded < 0.3 * plain


def test_a_backward_convolution_with_both_gradients_costs_more_than_with_one() -> None:
    x, w = TensorSpec((32, 128, 28, 28), DType.BF16), TensorSpec((128, 128, 3, 3), DType.BF16)
    forward = op(OpKind.CONV, x, w, outputs=(x,), stride=1)
    one = op(OpKind.CONV, x, x, w, outputs=(w,), name="convolution_backward", stride=1, products=1)
    both = op(OpKind.CONV, x, x, w, outputs=(x, w), name="convolution_backward", stride=1, products=2)
    ahead, single, double = seconds(forward, one, both)
    assert ahead < double
    assert single < double


def test_a_transposed_convolution_costs_like_the_gradient_it_is() -> None:
    x, y = TensorSpec((8, 64, 28, 28), DType.BF16), TensorSpec((8, 32, 56, 56), DType.BF16)
    w = TensorSpec((64, 32, 2, 2), DType.BF16)
    up = op(OpKind.CONV, x, w, outputs=(y,), stride=2, transposed=True)
    down = op(OpKind.CONV, y, TensorSpec((64, 32, 2, 2), DType.BF16), outputs=(x,), stride=2)
    assert seconds(up)[0] == pytest.approx(seconds(down)[0], rel=0.5)


def test_an_operator_without_bytes_costs_the_shortest_kernel() -> None:
    empty = op(OpKind.ELEMENTWISE, TensorSpec((0,)), outputs=(TensorSpec((0,)),))
    assert seconds(empty) == [pytest.approx(2.5e-6)]


def test_many_small_tensors_of_a_fused_optimizer_share_their_kernels() -> None:
    tiny = TensorSpec((8,))
    update = Operator(
        name="adamw", kind=OpKind.OPTIMIZER, phase=Phase.OPTIMIZER, inputs=(tiny,) * 4, outputs=(tiny,) * 3
    )
    pointwise = op(OpKind.ELEMENTWISE, tiny, outputs=(tiny,))
    assert seconds(update)[0] < 0.5 * seconds(pointwise)[0]


def test_scattered_accesses_cost_more_than_plain_ones() -> None:
    x = TensorSpec((1 << 24,))
    plain, gathered, looked_up = seconds(
        op(OpKind.ELEMENTWISE, x, outputs=(x,)),
        op(OpKind.GATHER, x, outputs=(x,)),
        op(OpKind.EMBEDDING, x, outputs=(x,), name="embedding_dense_backward"),
    )
    assert plain < gathered < looked_up


def test_an_unknown_architecture_warns_and_widens_the_interval() -> None:
    strange = replace(H100, device=replace(H100.device, architecture="rubin"))
    known, unknown = estimate([gemm(4096, 4096, 4096)]), estimate([gemm(4096, 4096, 4096)], strange)
    assert "rubin" in unknown.warnings[0]
    assert unknown.high[0] / unknown.seconds[0] > known.high[0] / known.seconds[0]


def test_a_dtype_that_the_device_lacks_warns_once() -> None:
    found = estimate([gemm(64, 64, 64, DType.FP8), gemm(128, 64, 64, DType.FP8)], A100)
    assert len(found.warnings) == 1
    assert "fp8" in found.warnings[0]


def test_a_device_that_reaches_more_of_its_peak_is_faster() -> None:
    tuned = replace(H100, device=replace(H100.device, achievable={"gemm": 0.95, "attention": 0.9}))
    q = TensorSpec((4, 32, 4096, 128), DType.BF16)
    works: list[Work] = [gemm(8192, 8192, 8192), op(OpKind.ATTENTION, q, q, q, outputs=(q,), causal=True)]
    assert (estimate(works, tuned).seconds < estimate(works).seconds).all()


@pytest.mark.parametrize("model", [AnalyticalCostModel(), learned_cost_model()], ids=["analytical", "learned"])
@pytest.mark.parametrize(("cluster", "ratio"), [(H100, 2.0), (A100, 1.0)], ids=["h100", "a100"])
@pytest.mark.parametrize("name", ["attention", "attention_backward"])
def test_attention_kernels_made_for_ampere_take_twice_as_long_on_hopper(
    model: CostModel, cluster: Cluster, ratio: float, name: str
) -> None:
    q = TensorSpec((8, 32, 8192, 128), DType.BF16)
    backward = name.endswith("backward")
    inputs, outputs = (q,) * (4 if backward else 3), (q,) * (3 if backward else 1)
    latest, older = (
        op(OpKind.ATTENTION, *inputs, outputs=outputs, name=name, causal=True, **kernel)
        for kernel in ({}, {"kernel": "flash-2"})
    )
    found = model.estimate([latest, older], cluster)
    for column in (found.seconds, found.low, found.high):
        assert column[1] / column[0] == pytest.approx(ratio, rel=0.05)  # a little of it is no product


def test_products_of_heads_that_are_not_aligned_run_without_matrix_units() -> None:
    device = load_cluster("dgx-a100").device
    plain = product(DType.FP16)
    marked = replace(plain, attributes={"kernel": "unaligned"})
    found = AnalyticalCostModel().estimate([plain, marked], load_cluster("dgx-a100")).seconds
    rate = UNALIGNED_SHARE * device.peak("fp32")
    assert attention_share(marked, device) == pytest.approx(rate / (0.8 * device.peak("fp16")))
    assert marked.flops / found[1] == pytest.approx(rate, rel=0.05)
    assert attention_share(plain, device) == 1.0


def product(dtype: DType) -> Operator:
    """64 products of 2048 × 2048 × 128."""
    a, b, out = ((64, 2048, 128), (64, 128, 2048), (64, 2048, 2048))
    return op(OpKind.BATCHED_GEMM, *(TensorSpec(s, dtype) for s in (a, b)), outputs=(TensorSpec(out, dtype),))


def test_experts_with_equal_rows_run_faster_where_a_compiler_knows_them() -> None:
    work = of_experts(8192)
    neuron, gpu = load_cluster("trn1.32xlarge"), load_cluster("dgx-a100")
    shares = []
    for cluster in (neuron, gpu):
        best = achievable(cluster.device).gemm_fraction("bf16") * cluster.device.peak("bf16")
        shares.append(work.flops / seconds(work, cluster=cluster)[0] / best)
    assert shares == pytest.approx([STATIC_SHARE, GROUPED_SHARE], rel=0.1)


def of_experts(rows: int) -> Operator:
    """The products of eight experts that have this many rows together."""
    given, weight = TensorSpec((rows, 4096), DType.BF16), TensorSpec((8, 4096, 14336), DType.BF16)
    return op(OpKind.GROUPED_GEMM, given, weight, outputs=(TensorSpec((rows, 14336), DType.BF16),))


def test_each_expert_pays_for_one_tile_more_on_a_tpu() -> None:
    few, twice, many = seconds(of_experts(8 * 512), of_experts(8 * 1024), of_experts(8 * 8192), cluster=TPU)
    assert twice / few == pytest.approx(3 / 2, rel=0.05)
    assert many / few == pytest.approx(17 / 2, rel=0.05)


def test_a_tpu_pads_heads_to_its_lanes() -> None:
    def attention(dims: int) -> Operator:
        heads = TensorSpec((8, 32, 4096, dims), DType.BF16)
        return op(OpKind.ATTENTION, heads, heads, heads, outputs=(heads,))

    narrow, usual, wide, widest = seconds(*(attention(dims) for dims in (64, 128, 192, 256)), cluster=TPU)
    assert narrow == pytest.approx(usual, rel=0.1)
    assert wide == pytest.approx(widest, rel=0.1)
    assert widest > 1.5 * usual


@pytest.mark.parametrize("name", ["tpu-v5e-host", "trn1.32xlarge", "hls-gaudi2"])
def test_times_learned_on_gpus_say_nothing_about_other_architectures(name: str) -> None:
    cluster, works = load_cluster(name), [gemm(4096, 4096, 4096), gemm(128, 128, 65536)]
    learned = learned_cost_model().estimate(works, cluster)
    assert learned.seconds.tolist() == estimate(list(works), cluster).seconds.tolist()
    assert {SOURCES[i] for i in learned.source.tolist()} == {"analytical"}


def test_the_same_call_gives_the_same_estimates() -> None:
    works = every_kind()
    assert (estimate(works).seconds == estimate(works).seconds).all()


def test_something_that_is_no_work_is_refused() -> None:
    with pytest.raises(TypeError, match="a work is a str"):
        AnalyticalCostModel().estimate(["matmul"], H100)  # type: ignore[list-item]


def test_sorting_the_ids_of_a_gradient_takes_time_for_each_id() -> None:
    rows, ids = TensorSpec((1_000_000, 64)), TensorSpec((1_000_000,), DType.INT64)
    table = TensorSpec((100_000, 64))
    made = {"outputs": (table,), "name": "embedding_dense_backward"}
    dense = op(OpKind.EMBEDDING, rows, ids, **made)  # type: ignore[arg-type]
    sorted_ids = op(OpKind.EMBEDDING, rows, ids, ids="sorted", **made)  # type: ignore[arg-type]
    one, other = seconds(dense, sorted_ids, cluster=A100)
    bandwidth = A100.device.memory_bandwidth * achievable(A100.device).memory
    assert other - one == pytest.approx(1_000_000 * SORTED_ID_BYTES / bandwidth, rel=0.05)


def test_the_further_a_thin_product_is_from_those_measured_the_more_physics_counts() -> None:
    apart, one = np.array([2.0]), np.array([1.0])
    found = [float(_drawn(apart, one, np.array([distance]))[0]) for distance in (0.0, 1.0, 3.0)]
    assert found == pytest.approx([1.0, 2.0**0.5, 2.0**0.75])
    assert _thin([gemm(512, 256, 1_048_576), gemm(1024, 1024, 1_048_576)]).tolist() == [True, False]


def test_a_thin_product_outside_the_measurements_is_drawn_towards_physics() -> None:
    v100, thin = load_cluster("dgx-1-v100"), gemm(256, 256, 1_048_576, DType.FP32)
    physics, learned = seconds(thin, cluster=v100)[0], learned_cost_model().estimate([thin], v100)
    alone = learned_cost_model()
    far = replace(alone, otherwise=_Slower()).estimate([thin], v100)
    assert learned.source[0] == SOURCES.index("learned")
    assert physics < learned.seconds[0] < far.seconds[0]


class _Slower:
    """Physics that takes ten times as long."""

    def estimate(self, works: Sequence[Work], cluster: Cluster) -> Estimates:
        found = AnalyticalCostModel().estimate(works, cluster)
        return replace(found, seconds=10.0 * found.seconds)
