from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traincast import Estimates, Operator, TensorSpec, load_cluster
from traincast.estimate.limits import FEWER_PRODUCTS, above_limits, compute_seconds, least_seconds, link_seconds
from traincast.graph import DType, OpKind, Phase
from traincast.work import Collective, Launch, Transfer, Work

CLUSTER = load_cluster("dgx-h100:2")
H100 = CLUSTER.device


def gemm(size: int, dtype: DType) -> Operator:
    spec = TensorSpec((size, size), dtype)
    return Operator(name="mm", kind=OpKind.GEMM, phase=Phase.FORWARD, inputs=(spec, spec), outputs=(spec,))


@pytest.mark.parametrize("dtype", [DType.FP32, DType.TF32, DType.BF16, DType.FP8])
def test_a_product_takes_its_flops_at_the_peak_of_its_dtype(dtype: DType) -> None:
    (seconds,) = least_seconds([gemm(8192, dtype)], CLUSTER)
    assert seconds == pytest.approx(2 * 8192**3 / H100.peak(dtype.value))


def test_a_copy_takes_its_bytes_beyond_the_cache_at_the_bandwidth() -> None:
    spec = TensorSpec((10**9,), DType.BF16)
    copy = Operator(name="copy", kind=OpKind.COPY, phase=Phase.FORWARD, inputs=(spec,), outputs=(spec,))
    (seconds,) = least_seconds([copy], CLUSTER)
    assert seconds == pytest.approx((4e9 - 2 * H100.l2_bytes) / H100.memory_bandwidth)
    assert compute_seconds([copy], CLUSTER) == [0.0]


def test_a_convolution_may_need_fewer_products() -> None:
    data, weight = TensorSpec((64, 256, 56, 56), DType.FP32), TensorSpec((256, 256, 3, 3), DType.FP32)
    conv = Operator(name="conv", kind=OpKind.CONV, phase=Phase.FORWARD, inputs=(data, weight), outputs=(data,))
    assert least_seconds([conv], CLUSTER)[0] == pytest.approx(conv.flops / H100.peak("fp32") / FEWER_PRODUCTS)
    assert compute_seconds([conv], CLUSTER)[0] == pytest.approx(conv.flops / H100.peak("fp32"))


@pytest.mark.parametrize(
    ("work", "inside", "outside"),
    [
        (Collective(kind="all_reduce", nbytes=1e9, num_ranks=8), 1e9, 0.0),
        (Collective(kind="all_gather", nbytes=1e9, num_ranks=8), 7 / 8 * 1e9, 0.0),
        (Collective(kind="all_reduce", nbytes=1e9, num_ranks=16, num_nodes=2), 0.0, 1e9),
        (Collective(kind="reduce_scatter", nbytes=1e9, num_ranks=2, num_nodes=2, sharing=8), 0.0, 8 * 0.5e9),
        (Collective(kind="all_to_all", nbytes=1e9, num_ranks=16, num_nodes=2), 0.0, 8 * 0.5e9),
        (Transfer(nbytes=1e9), 1e9, 0.0),
        (Transfer(nbytes=1e9, crosses_nodes=True, sharing=4), 0.0, 4e9),
        (Launch(kernels=5), 0.0, 0.0),
    ],
)
def test_messages_leave_no_faster_than_links_allow(work: Collective, inside: float, outside: float) -> None:
    links = inside / CLUSTER.intra_node.bandwidth, outside / (CLUSTER.nics_per_node * CLUSTER.inter_node.bandwidth)
    assert link_seconds([work], CLUSTER)[0] == pytest.approx(links)


def test_intervals_are_cut_and_expected_times_stay() -> None:
    works: list[Work] = [gemm(8192, DType.BF16), Launch(kernels=1)]
    least = least_seconds(works, CLUSTER)
    seconds = np.array([2.0 * least[0], 1e-5])
    wide = Estimates(seconds=seconds, low=0.1 * seconds, high=10 * seconds, source=np.zeros(2, dtype=np.int8))
    cut = above_limits(wide, works, CLUSTER)
    assert cut.low == pytest.approx([least[0], 1e-6])
    assert (cut.seconds == seconds).all() and (cut.high == wide.high).all()
    below = replace(wide, seconds=0.5 * least, low=0.1 * least)
    assert above_limits(below, works, CLUSTER).low[0] == 0.5 * least[0]
