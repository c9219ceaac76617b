"""A torus: closed forms of the links that a group of devices has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traincast import Cluster, load_cluster
from traincast.cluster import effective_intra_bandwidth
from traincast.cluster.topology import part_of_node
from traincast.cluster.torus import box_of, torus_bandwidth, torus_exchange_bandwidth
from traincast.estimate.collectives.laws import LINK_SHARE, TORUS_BEGIN_S, collective_seconds
from traincast.work import Collective

V5E = load_cluster("tpu-v5e-host:64")  # 16 × 16 chips, 4 links of 50 GB/s each
V5P = load_cluster("tpu-v5p-host:128")  # 8 × 8 × 8 chips, 6 links of 100 GB/s each


def gather(cluster: Cluster, kind: str, nbytes: float, ranks: int, nodes: int = 1) -> float:
    work = Collective(kind=kind, nbytes=nbytes, num_ranks=ranks, num_nodes=nodes)  # type: ignore[arg-type]
    return float(collective_seconds([work], cluster)[0])


def test_a_group_fills_axes_one_after_another() -> None:
    assert box_of(V5E, 256) == pytest.approx((2, 1.0, 16.0))
    assert box_of(V5E, 16) == pytest.approx((1, 1.0, 16.0))
    assert box_of(V5E, 64) == pytest.approx((1, 4.0, 16.0))
    assert box_of(V5P, 8) == pytest.approx((1, 1.0, 8.0))


def test_all_links_serve_the_whole_torus_and_two_of_them_one_axis() -> None:
    assert torus_bandwidth(V5E, 256) == pytest.approx(200e9)
    assert torus_bandwidth(V5E, 16) == pytest.approx(100e9)
    assert torus_bandwidth(V5E, 64) == pytest.approx(150e9)
    assert torus_bandwidth(V5E, 2) == pytest.approx(50e9)
    assert [torus_bandwidth(V5P, n) for n in (512, 64, 8)] == pytest.approx([600e9, 400e9, 200e9])


def test_an_axis_that_is_not_closed_gives_half() -> None:
    small = V5E.with_nodes(16)  # 8 × 8: only axes of 16 are closed
    assert torus_bandwidth(small, 64) == pytest.approx(100e9)
    assert torus_bandwidth(replace(small, torus_wrap=8), 64) == pytest.approx(200e9)


def test_more_devices_never_have_fewer_links() -> None:
    for cluster in (V5E, V5P, load_cluster("trn1.32xlarge")):
        rates = [torus_bandwidth(cluster, n) for n in (1 << i for i in range(1, 9)) if n <= cluster.domain_devices]
        assert rates == sorted(rates)


def test_an_exchange_of_all_with_all_is_bound_by_the_bisection() -> None:
    # Each of 256 devices sends half of its bytes through 2 · 16 links of 50 GB/s each way: 256 S / 2 / 2 = 32 · 50e9 t.
    assert torus_exchange_bandwidth(V5E, 256) == pytest.approx(4 * 32 * 50e9 / 256)
    assert torus_exchange_bandwidth(V5E, 256) < torus_bandwidth(V5E, 256)


def test_gathering_and_reducing_follow_the_law_of_the_torus() -> None:
    share, nbytes = LINK_SHARE["torus"], 1e9
    once = 255 / 256 * nbytes / (share * 200e9) + 16 * V5E.intra_node.latency_s
    assert gather(V5E, "all_gather", nbytes, 256) == pytest.approx(TORUS_BEGIN_S + once)
    assert gather(V5E, "reduce_scatter", nbytes, 256) == pytest.approx(TORUS_BEGIN_S + once)
    assert gather(V5E, "all_reduce", nbytes, 256) == pytest.approx(TORUS_BEGIN_S + 2 * once)
    exchange = 255 / 256 * nbytes / (share * 25e9) + 16 * V5E.intra_node.latency_s
    assert gather(V5E, "all_to_all", nbytes, 256) == pytest.approx(TORUS_BEGIN_S + exchange)


def test_slices_exchange_over_the_network_of_the_data_center() -> None:
    two = V5E.with_nodes(128)
    inside = gather(two, "all_reduce", 1e9, 256)
    across = gather(two, "all_reduce", 1e9, 512, nodes=128)
    network = 2 * 1 / 2 * 1e9 / (0.95 * 12.5e9 * 64)
    assert across - inside == pytest.approx(network, rel=0.05)


def test_a_part_of_a_torus_keeps_its_links() -> None:
    node = load_cluster("trn1.32xlarge")
    half = part_of_node(node, node.device, 16)
    assert half.intra_node.bandwidth == node.intra_node.bandwidth
    assert effective_intra_bandwidth(half, 16) == pytest.approx(192e9)
