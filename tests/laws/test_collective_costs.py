"""Closed forms and orderings that every collective algorithm obeys."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast import AnalyticalCostModel, Cluster, load_cluster
from traincast.estimate.collectives.laws import (
    ALGORITHMS,
    halving_doubling_all_reduce,
    multicast_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
)
from traincast.work import Collective, CollectiveKind, Transfer

BANDWIDTH, LATENCY = 100e9, 2e-6
KINDS: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
CLUSTERS = {
    name: load_cluster(name)
    for name in ("dgx-h100:64", "dgx-a100:64", "pcie-l40s:64", "alps:64", "dgx-gb200:64", "vista:64")
}

sizes = st.floats(min_value=1.0, max_value=1e13)
counts = st.integers(min_value=1, max_value=4096)
clusters = st.sampled_from(sorted(CLUSTERS)).map(CLUSTERS.__getitem__)
algorithms = st.sampled_from(sorted(ALGORITHMS)).map(ALGORITHMS.__getitem__)
kinds = st.sampled_from(KINDS)


def seconds(
    kind: CollectiveKind, nbytes: float, ranks: int, nodes: int, cluster: Cluster, *, sharing: int = 1
) -> float:
    work = Collective(kind=kind, nbytes=nbytes, num_ranks=ranks, num_nodes=nodes, sharing=sharing)
    return float(AnalyticalCostModel().estimate([work], cluster).seconds[0])


@given(nbytes=sizes, ranks=counts)
def test_a_ring_all_reduce_sends_all_bytes_twice_but_one_share(nbytes: float, ranks: int) -> None:
    expected = 2 * (ranks - 1) / ranks * nbytes / BANDWIDTH + 2 * (ranks - 1) * LATENCY
    assert ring_all_reduce(nbytes, ranks, BANDWIDTH, LATENCY) == pytest.approx(expected)


@given(nbytes=sizes, ranks=counts)
def test_reduce_scatter_and_all_gather_make_an_all_reduce(nbytes: float, ranks: int) -> None:
    halves = ring_reduce_scatter(nbytes, ranks, BANDWIDTH, LATENCY) + ring_all_gather(nbytes, ranks, BANDWIDTH, LATENCY)
    assert halves == pytest.approx(ring_all_reduce(nbytes, ranks, BANDWIDTH, LATENCY))


@given(algorithm=algorithms, nbytes=sizes)
def test_a_group_of_one_costs_nothing(algorithm: Callable[..., float], nbytes: float) -> None:
    assert algorithm(nbytes, 1, BANDWIDTH, LATENCY) == 0


@given(algorithm=algorithms, nbytes=sizes, more=sizes, ranks=counts, others=counts)
def test_no_algorithm_gets_cheaper_with_more_bytes_or_ranks(
    algorithm: Callable[..., float], nbytes: float, more: float, ranks: int, others: int
) -> None:
    here = algorithm(nbytes, ranks, BANDWIDTH, LATENCY)
    assert algorithm(nbytes + more, ranks, BANDWIDTH, LATENCY) >= here
    assert algorithm(nbytes, ranks + others, BANDWIDTH, LATENCY) >= here * (1 - 1e-12)


@given(nbytes=sizes, ranks=st.integers(min_value=2, max_value=4096))
def test_logarithmic_algorithms_beat_a_ring_in_latency_only(nbytes: float, ranks: int) -> None:
    ring = ring_all_reduce(nbytes, ranks, BANDWIDTH, LATENCY)
    assert halving_doubling_all_reduce(nbytes, ranks, BANDWIDTH, LATENCY) <= ring * (1 + 1e-12)
    assert tree_all_reduce(nbytes, ranks, BANDWIDTH, 0.0) >= ring_all_reduce(nbytes, ranks, BANDWIDTH, 0.0) * (
        1 - 1e-12
    )
    assert multicast_all_reduce(nbytes, ranks, BANDWIDTH, LATENCY) <= ring * (1 + 1e-12)


def test_algorithms_take_columns() -> None:
    nbytes, ranks = np.array([1e6, 1e9]), np.array([2.0, 64.0])
    for algorithm in ALGORITHMS.values():
        column = algorithm(nbytes, ranks, BANDWIDTH, LATENCY)
        singles = [float(algorithm(b, n, BANDWIDTH, LATENCY)) for b, n in zip(nbytes, ranks, strict=True)]
        assert np.allclose(column, singles)


@given(kind=kinds, cluster=clusters, nbytes=sizes, factor=st.floats(1.0, 1e3))
def test_a_collective_never_gets_cheaper_with_more_bytes(
    kind: CollectiveKind, cluster: Cluster, nbytes: float, factor: float
) -> None:
    ranks = 4 * cluster.devices_per_node
    small = seconds(kind, nbytes, ranks, 4, cluster)
    assert seconds(kind, nbytes * factor, ranks, 4, cluster) >= small * (1 - 1e-12)


@given(kind=kinds, cluster=clusters, nbytes=sizes, nodes=st.integers(1, 5))
def test_a_collective_never_gets_cheaper_over_more_nodes(
    kind: CollectiveKind, cluster: Cluster, nbytes: float, nodes: int
) -> None:
    few, many = 2**nodes, 2 ** (nodes + 1)
    each = cluster.devices_per_node
    here = seconds(kind, nbytes, few * each, few, cluster)
    assert seconds(kind, nbytes, many * each, many, cluster) >= here * (1 - 1e-12)


@given(kind=kinds, cluster=clusters, nbytes=sizes, nodes=st.sampled_from([128, 256, 512, 1024, 2048]))
def test_thousands_of_ranks_never_get_cheaper(
    kind: CollectiveKind, cluster: Cluster, nbytes: float, nodes: int
) -> None:
    each, many = cluster.devices_per_node, cluster.with_nodes(2 * nodes)
    here = seconds(kind, nbytes, nodes * each, nodes, many)
    assert seconds(kind, nbytes, 2 * nodes * each, 2 * nodes, many) >= here * (1 - 1e-12)
    assert seconds(kind, 2 * nbytes, nodes * each, nodes, many) >= here * (1 - 1e-12)


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100", "alps"])
def test_small_all_reduces_climb_a_tree_and_small_gathers_go_around_a_ring(name: str) -> None:
    # NCCL chooses trees for small all-reduces (2 log2 n latencies); its gathers and scatters are rings (n - 1).
    cluster = load_cluster(f"{name}:2048")
    each = cluster.devices_per_node
    reduced = [seconds("all_reduce", 8.0, n * each, n, cluster) for n in (128, 256, 512, 1024, 2048)]
    steps = np.diff(reduced)
    latency = cluster.inter_node.latency_s
    assert (steps < 2 * 6 * latency).all()
    assert reduced[-1] < 2 * reduced[0]
    for kind in ("all_gather", "reduce_scatter"):
        few, many = (seconds(kind, 8.0, n * each, n, cluster) for n in (128, 2048))
        assert many / few == pytest.approx(16, rel=0.15)


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100"])
def test_at_sixteen_thousand_ranks_large_all_reduces_still_run_at_the_bandwidth_of_the_cards(name: str) -> None:
    cluster = load_cluster(f"{name}:2048")
    nbytes, ranks = 16e9, 2048 * cluster.devices_per_node
    bus = 2 * nbytes / seconds("all_reduce", nbytes, ranks, 2048, cluster)
    cards = cluster.nics_per_node * cluster.inter_node.bandwidth
    assert 0.8 * cards < bus < cards


def test_a_series_of_broadcasts_hides_most_latencies_of_its_chain() -> None:
    cluster = CLUSTERS["dgx-a100:64"]
    broadcast, gathered = (seconds(kind, 8.0, 512, 64, cluster) for kind in ("broadcast", "all_gather"))
    assert broadcast < 30e-6 < gathered / 10


@given(cluster=clusters, nbytes=sizes, ranks=st.integers(2, 7))
def test_an_all_reduce_never_gets_cheaper_over_more_ranks_of_a_switch(
    cluster: Cluster, nbytes: float, ranks: int
) -> None:
    if cluster.intra_topology != "nvswitch" or ranks >= cluster.devices_per_node:
        return
    here = seconds("all_reduce", nbytes, ranks, 1, cluster)
    assert seconds("all_reduce", nbytes, ranks + 1, 1, cluster) >= here * (1 - 1e-12)


@given(kind=kinds, cluster=clusters, nbytes=sizes, sharing=st.integers(1, 16))
def test_sharing_the_network_cards_never_helps(
    kind: CollectiveKind, cluster: Cluster, nbytes: float, sharing: int
) -> None:
    alone = seconds(kind, nbytes, 32, 32, cluster)
    assert seconds(kind, nbytes, 32, 32, cluster, sharing=sharing) >= alone * (1 - 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(CLUSTERS))
def test_one_rank_or_no_bytes_cost_nothing(kind: CollectiveKind, name: str) -> None:
    assert seconds(kind, 1e9, 1, 1, CLUSTERS[name]) == 0
    assert seconds(kind, 0.0, 8, 1, CLUSTERS[name]) == 0


def test_large_rings_approach_the_bandwidth_of_the_narrowest_link() -> None:
    cluster = CLUSTERS["dgx-a100:64"]
    nbytes, ranks, nodes = 1e12, 512, 64
    bus = 2 * (ranks - 1) / ranks * nbytes / seconds("all_reduce", nbytes, ranks, nodes, cluster)
    cards = cluster.nics_per_node * cluster.inter_node.bandwidth
    assert 0.8 * cards < bus < cards


def test_messages_between_nodes_take_longer_and_share_the_cards() -> None:
    cluster = CLUSTERS["dgx-h100:64"]
    works = [
        Transfer(nbytes=1e8),
        Transfer(nbytes=1e8, crosses_nodes=True),
        Transfer(nbytes=1e8, crosses_nodes=True, sharing=8),
        Transfer(nbytes=1e8, crosses_nodes=True, sharing=16),
        Transfer(nbytes=0.0),
    ]
    inside, outside, own_card, half_card, empty = AnalyticalCostModel().estimate(works, cluster).seconds
    assert 0 == empty < inside < outside == own_card < half_card
    assert math.isclose(half_card, 2 * own_card, rel_tol=0.02)
