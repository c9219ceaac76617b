"""Estimates under a calibration: every factor changes its own part of the works, and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import request_of
from traincast import AnalyticalCostModel, Calibration, Cluster, Estimates, Operator, TensorSpec, load_cluster
from traincast.cluster import FACTORS, Stall
from traincast.estimate.calibrated import Parts, calibrated
from traincast.graph import DType, OpKind, Phase
from traincast.strategy import lower
from traincast.work import Collective, CollectiveKind, HostCopy, Launch, Transfer, Work

H100 = load_cluster("dgx-h100:4")
HOST = ("kernels", "blocks", "collectives", "handshakes", "waits")


def op(kind: OpKind, *inputs: TensorSpec, name: str = "") -> Operator:
    return Operator(name=name or kind.value, kind=kind, phase=Phase.FORWARD, inputs=inputs, outputs=(inputs[0],))


def gemm(dtype: DType) -> Operator:
    square = TensorSpec((512, 512), dtype)
    return op(OpKind.GEMM, square, square)


def collective(kind: CollectiveKind, *, ranks: int, nodes: int) -> Collective:
    return Collective(kind=kind, nbytes=1e6, num_ranks=ranks, num_nodes=nodes)


ROWS, IMAGE = TensorSpec((512, 512), DType.BF16), TensorSpec((8, 64, 56, 56))
HALF_IMAGE = TensorSpec((8, 64, 56, 56), DType.FP16)
HEADS, SCORES = TensorSpec((2, 16, 1024, 64), DType.BF16), TensorSpec((32, 64, 64), DType.BF16)
WORKS: dict[str, list[Work]] = {
    "gemm": [gemm(DType.BF16), gemm(DType.FP32)],
    "narrow_gemm": [gemm(DType.FP8), gemm(DType.NVFP4)],
    "grouped": [op(OpKind.GROUPED_GEMM, ROWS, TensorSpec((8, 512, 512), DType.BF16))],
    # Scores that are not fused are batched products.
    "attention": [op(OpKind.ATTENTION, HEADS, HEADS, HEADS), op(OpKind.BATCHED_GEMM, SCORES, SCORES)],
    "conv": [
        op(OpKind.CONV, IMAGE, TensorSpec((64, 64, 3, 3))),
        op(OpKind.DEPTHWISE_CONV, IMAGE, TensorSpec((64, 1, 3, 3))),
    ],
    "half_conv": [op(OpKind.CONV, HALF_IMAGE, TensorSpec((64, 64, 3, 3), DType.FP16))],
    "memory": [
        op(OpKind.ELEMENTWISE, ROWS),
        op(OpKind.LAYER_NORM, ROWS),
        op(OpKind.SOFTMAX, ROWS),
    ],
    "intra": [collective("all_reduce", ranks=8, nodes=1), collective("all_to_all", ranks=4, nodes=1)],
    "inter": [collective("all_reduce", ranks=32, nodes=4), collective("all_gather", ranks=2, nodes=2)],
    "send": [Transfer(nbytes=1e6, crosses_nodes=True), Transfer(nbytes=1e6, crosses_nodes=False)],
    "kernels": [Launch(kernels=2.0)],
    "blocks": [Launch(blocks=30.0)],
    "collectives": [Launch(collectives=6.0)],
    "handshakes": [Launch(sends=5.0)],
    "waits": [Launch(waits=7.0, crowded=True)],
    "": [HostCopy(nbytes=1e9)],
}
ALL = [work for works in WORKS.values() for work in works]
PART_OF = [part for part, works in WORKS.items() for _ in works]


def estimated(works: list[Work], calibration: Calibration | None = None, cluster: Cluster = H100) -> Estimates:
    """The works as physics has them, or as ``calibration`` does."""
    found = AnalyticalCostModel().estimate(works, cluster)
    return calibrated(found, works, replace(cluster, calibration=calibration))


def test_the_works_here_are_of_every_part() -> None:
    assert set(WORKS) == {*FACTORS, ""}


@pytest.mark.parametrize("strategy", ["dp=16,zero=3", "dp=2,tp=4,pp=2,num_microbatches=4"])
@pytest.mark.parametrize("runtime", ["megatron", "nanotron"])
def test_a_calibration_of_ones_and_zeros_changes_nothing(strategy: str, runtime: str) -> None:
    request = request_of(strategy, runtime=runtime)
    works = list(lower(request).plan.works)
    before, after = (estimated(works, c, request.cluster) for c in (None, Calibration()))
    for name in ("seconds", "low", "high"):
        assert getattr(after, name).tolist() == pytest.approx(getattr(before, name).tolist(), rel=1e-12, abs=1e-18)
    assert after.stalled is None


@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_doubles_the_works_of_its_part_and_no_other(factor: str) -> None:
    before = estimated(ALL)
    after = estimated(ALL, replace(Calibration(), **{factor: 2.0}))  # type: ignore[arg-type]
    expected = [2.0 if part == factor else 1.0 for part in PART_OF]
    for name in ("seconds", "low", "high"):
        assert getattr(after, name) / getattr(before, name) == pytest.approx(expected, rel=1e-12)
    assert (after.source == before.source).all()


@pytest.mark.parametrize(
    ("work", "intra", "inter"),
    [
        (collective("all_reduce", ranks=8, nodes=1), 2 * math.log2(8), 0.0),
        (collective("broadcast", ranks=4, nodes=1), 2 * math.log2(4), 0.0),
        (collective("all_gather", ranks=8, nodes=1), 7.0, 0.0),
        (collective("reduce_scatter", ranks=32, nodes=4), 0.0, 31.0),
        (collective("all_to_all", ranks=4, nodes=4), 0.0, 3.0),
        (collective("all_reduce", ranks=32, nodes=4), 0.0, 2 * math.log2(32)),
        (collective("all_reduce", ranks=1, nodes=1), 0.0, 0.0),
        (Transfer(nbytes=1e6, crosses_nodes=True), 0.0, 0.0),
        (gemm(DType.BF16), 0.0, 0.0),
    ],
)
def test_latencies_are_added_for_every_hop_of_a_ring_or_twice_up_a_tree(work: Work, intra: float, inter: float) -> None:
    before = estimated([work]).seconds[0]
    after = estimated([work], Calibration(intra_latency_s=1e-3, inter_latency_s=1.0)).seconds[0]
    assert after - before == pytest.approx(intra * 1e-3 + inter, rel=1e-9, abs=1e-12)


def test_a_latency_is_not_multiplied_by_the_factor_of_its_links() -> None:
    work = collective("all_gather", ranks=8, nodes=1)
    before = estimated([work]).seconds[0]
    after = estimated([work], Calibration(intra=3.0, intra_latency_s=0.5)).seconds[0]
    assert after == pytest.approx(3.0 * before + 7 * 0.5, rel=1e-12)


def test_trays_of_one_rack_are_within_and_two_racks_between() -> None:
    racks = load_cluster("dgx-gb200:36")
    within, between = (collective("all_gather", ranks=8, nodes=nodes) for nodes in (18, 36))
    after = estimated([within, between], Calibration(intra=2.0, inter=5.0), racks).seconds
    assert after / estimated([within, between], None, racks).seconds == pytest.approx([2.0, 5.0], rel=1e-12)


def test_a_launch_is_the_sum_of_what_each_kind_of_it_costs() -> None:
    work = Launch(kernels=1.0, blocks=2.0, collectives=4.0, sends=8.0, waits=16.0, crowded=True)
    calibration = Calibration(kernels=1.5, blocks=1.25, collectives=0.5, handshakes=3.0, waits=2.0)
    expected = 1.5 * 1.0 + 1.25 * 2.0 + 0.5 * 4.0 + 3.0 * 8.0 + 2.0 * 16.0
    assert estimated([work], calibration).seconds[0] == pytest.approx(expected * H100.launch_s, rel=1e-12)


@pytest.mark.parametrize("crowded", [False, True])
def test_hosts_wait_where_they_are_crowded_or_stalled(crowded: bool) -> None:
    work = Launch(kernels=3.0, collectives=6.0, waits=80.0, crowded=crowded)
    calibration = Calibration(waits=2.0, stall=Stall(seconds=0.0, base=0.0))
    found = estimated([work], calibration)
    assert found.stalled is not None
    waits = 160.0 * H100.launch_s
    usual = 9.0 * H100.launch_s
    assert found.seconds[0] == pytest.approx(usual + (waits if crowded else 0.0), rel=1e-12)
    assert found.stalled[0] == pytest.approx(usual + waits, rel=1e-12)


def test_only_waits_take_longer_in_a_stall() -> None:
    found = estimated(ALL, Calibration(stall=Stall(seconds=9.0, base=0.0)))
    assert found.stalled is not None
    assert (found.stalled == found.seconds).all()  # the waits among them are those of crowded hosts already


def test_a_calibration_can_be_tried_again_on_the_same_parts() -> None:
    parts, seconds = Parts(ALL, H100), estimated(ALL).seconds
    kept = seconds.copy()
    first = parts.scaled(seconds, Calibration(gemm=2.0, kernels=3.0))
    parts.scaled(seconds, Calibration(memory=9.0, waits=0.1), stalled=True)
    assert (parts.scaled(seconds, Calibration(gemm=2.0, kernels=3.0)) == first).all()
    assert (seconds == kept).all()


def test_seconds_of_all_parts_add_up_to_those_of_all_works() -> None:
    works = [*ALL, Launch(kernels=1.0, blocks=2.0, waits=50.0)]
    seconds = estimated(works).seconds
    counts = np.arange(1, len(works) + 1)
    parts = Parts(works, H100).seconds_by_part(seconds, counts)
    assert set(parts) == {*FACTORS, "other"}
    gemms = [i for i, part in enumerate(PART_OF) if part == "gemm"]
    assert parts["gemm"] == pytest.approx(float((seconds * counts)[gemms].sum()), rel=1e-12)
    assert parts["blocks"] == pytest.approx((30.0 * counts[PART_OF.index("blocks")] + 2.0 * counts[-1]) * H100.launch_s)
    by_host = sum(parts[name] for name in HOST)
    launches = [i for i, work in enumerate(works) if isinstance(work, Launch)]
    assert by_host == pytest.approx(float((seconds * counts)[launches].sum()), rel=1e-12)
    assert sum(parts.values()) == pytest.approx(float(seconds @ counts), rel=1e-12)


def test_no_works_have_no_parts() -> None:
    assert estimated([], Calibration()).seconds.shape == (0,)
