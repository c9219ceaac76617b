"""Which links a collective crosses, and which algorithm is the fastest on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traincast import Cluster, load_cluster
from traincast.estimate.collectives.features import link_floor_seconds
from traincast.estimate.collectives.laws import (
    CHOICES,
    NIC_SHARE,
    PROTOCOLS,
    collective_seconds,
    crosses_nics,
    nic_bandwidth,
    paths,
    transfer_seconds,
)
from traincast.work import Collective, CollectiveKind, Transfer

H100 = load_cluster("dgx-h100:16")
A100 = load_cluster("dgx-a100:16")


def all_reduce(nbytes: float, ranks: int, nodes: int = 1, sharing: int = 1) -> Collective:
    return Collective(kind="all_reduce", nbytes=nbytes, num_ranks=ranks, num_nodes=nodes, sharing=sharing)


def bus_bandwidth(work: Collective, cluster: Cluster) -> float:
    n = work.num_ranks
    return 2 * (n - 1) / n * work.nbytes / float(collective_seconds([work], cluster)[0])


@pytest.mark.parametrize(
    ("cluster", "ranks", "nodes", "measured"),
    # Bus bandwidths at 512 MiB and more that NCCL shows: one DGX A100, one DGX H100, GH200 over Slingshot-11.
    [
        (A100, 8, 1, 219e9),
        (H100, 8, 1, 399e9),
        (load_cluster("alps:16"), 64, 16, 91e9),
        (load_cluster("alps:2"), 8, 2, 158e9),
        (load_cluster("vista:8"), 8, 8, 48e9),
    ],
)
def test_large_all_reduces_reach_the_bandwidth_that_nccl_reaches(
    cluster: Cluster, ranks: int, nodes: int, measured: float
) -> None:
    assert bus_bandwidth(all_reduce(2.0**31, ranks, nodes), cluster) == pytest.approx(measured, rel=0.15)


def test_small_all_reduces_cost_tens_of_microseconds() -> None:
    inside, outside = collective_seconds([all_reduce(1024, 8), all_reduce(1024, 64, 8)], H100)
    assert 10e-6 < inside < 25e-6
    assert inside < outside < 150e-6


def test_a_switch_that_reduces_beats_a_ring_on_large_buffers() -> None:
    without = replace(H100, device=replace(H100.device, architecture="ampere"))
    large = [all_reduce(2.0**30, 8)]
    assert collective_seconds(large, H100)[0] < collective_seconds(large, without)[0]


def test_an_nvlink_domain_of_several_nodes_needs_no_network_card() -> None:
    rack = load_cluster("dgx-gb200:18")
    assert not crosses_nics(18, rack)
    assert crosses_nics(19, load_cluster("dgx-gb200:36"))
    assert bus_bandwidth(all_reduce(2.0**31, 16, 4), rack) > rack.inter_node.bandwidth * rack.nics_per_node


def test_a_part_of_a_mesh_has_a_part_of_its_links() -> None:
    perlmutter = load_cluster("perlmutter:2")
    pair, all_four = bus_bandwidth(all_reduce(1e9, 2), perlmutter), bus_bandwidth(all_reduce(1e9, 4), perlmutter)
    assert all_four > 2 * pair


def test_ranks_drive_the_cards_next_to_them_and_groups_share_them() -> None:
    one = nic_bandwidth(H100, 2, ranks_per_node=1, sharing=1)
    assert one == H100.inter_node.bandwidth
    assert nic_bandwidth(H100, 2, ranks_per_node=8, sharing=1) == 8 * one
    assert nic_bandwidth(H100, 2, ranks_per_node=1, sharing=8) == one
    assert nic_bandwidth(H100, 2, ranks_per_node=8, sharing=16) == 0.5 * one


def test_paths_have_one_column_per_fact() -> None:
    p = paths([all_reduce(1e6, 8), all_reduce(2e6, 64, 8)], H100)
    assert p.nbytes.tolist() == [1e6, 2e6]
    assert p.islands.tolist() == [1, 8]
    assert p.per_island.tolist() == [8, 8]
    assert p.inter[1] == pytest.approx(NIC_SHARE * 8 * H100.inter_node.bandwidth)


def test_measured_shares_of_the_links_win() -> None:
    slow = replace(H100, device=replace(H100.device, achievable={"intra_link": 0.1, "inter_link": 0.1}))
    works = [all_reduce(1e9, 8), all_reduce(1e9, 64, 8)]
    assert (collective_seconds(works, slow) > 2 * collective_seconds(works, H100)).all()


def test_protocols_trade_latency_for_bandwidth() -> None:
    shares = [p.share for p in PROTOCOLS.values()]
    starts = [p.base_s for p in PROTOCOLS.values()]
    assert shares == sorted(shares)
    assert starts == sorted(starts)


@pytest.mark.parametrize("kind", CHOICES)
def test_more_nodes_than_ranks_count_as_one_rank_each(kind: CollectiveKind) -> None:
    odd = Collective(kind=kind, nbytes=1e6, num_ranks=4, num_nodes=9)
    even = Collective(kind=kind, nbytes=1e6, num_ranks=4, num_nodes=4)
    assert collective_seconds([odd], H100) == collective_seconds([even], H100)


def test_a_cluster_inside_one_domain_sends_messages_over_its_links() -> None:
    rack = load_cluster("dgx-gb200:4")
    inside, across = transfer_seconds([Transfer(nbytes=1e9), Transfer(nbytes=1e9, crosses_nodes=True)], rack)
    assert inside == across


def test_negative_bytes_cost_nothing() -> None:
    assert not collective_seconds([all_reduce(-1.0, 8)], H100).any()
    assert not transfer_seconds([Transfer(nbytes=-1.0)], H100).any()
    assert np.isfinite(collective_seconds([all_reduce(1e30, 8)], H100)).all()


@pytest.mark.parametrize(("name", "nodes", "islands"), [("dgx-h100", 4, 4), ("dgx-gb200", 36, 2)])
def test_the_floor_of_a_collective_counts_all_nics_of_an_island(name: str, nodes: int, islands: int) -> None:
    cluster = load_cluster(f"{name}:{nodes}")
    ranks = nodes * cluster.devices_per_node
    work = Collective(kind="all_reduce", nbytes=1e9, num_ranks=ranks, num_nodes=nodes)
    cards = cluster.nics_per_node * cluster.inter_node.bandwidth * nodes / islands
    assert link_floor_seconds(work, cluster) == pytest.approx((1 - 1 / islands) * 1e9 / cards)
