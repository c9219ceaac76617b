"""The shape of a network: closed forms at the points where they are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traincast import load_cluster
from traincast.cluster import effective_inter_bandwidth, effective_intra_bandwidth, hops


def test_a_full_fat_tree_loses_nothing() -> None:
    cluster = load_cluster("dgx-h100")
    assert all(effective_inter_bandwidth(cluster, n) == 50e9 for n in (1, 2, 32, 1000))


def test_oversubscription_costs_nothing_within_a_group_and_its_factor_far_beyond() -> None:
    cluster = replace(load_cluster("dgx-h100"), oversubscription=4.0, group_nodes=16)
    assert effective_inter_bandwidth(cluster, 16) == 50e9
    assert effective_inter_bandwidth(cluster, 100_000) == pytest.approx(50e9 / 4, rel=1e-3)
    spans = [effective_inter_bandwidth(cluster, n) for n in range(1, 500)]
    assert spans == sorted(spans, reverse=True)


def test_a_torus_loses_with_the_cube_root_of_its_nodes() -> None:
    torus = replace(load_cluster("dgx-h100"), inter_topology="torus")
    assert effective_inter_bandwidth(torus, 8**3) == pytest.approx(50e9 / 6)
    assert hops(torus, 8**3) == pytest.approx(1.5)


def test_latency_grows_with_the_tiers() -> None:
    tree = replace(load_cluster("dgx-h100"), group_nodes=32)
    assert [hops(tree, n) for n in (1, 32, 33, 1024, 1025)] == pytest.approx([1.0, 1.0, 1.2, 1.2, 1.4])
    assert hops(load_cluster("alps"), 65) == pytest.approx(1.2)
    assert hops(replace(tree, inter_topology="none"), 100) == 1.0


def test_a_mesh_gives_few_devices_less_and_a_bridge_gives_a_pair_more() -> None:
    assert [effective_intra_bandwidth(load_cluster("dgx-1-v100"), n) for n in (2, 4, 8)] == [25e9, 100e9, 150e9]
    assert [effective_intra_bandwidth(load_cluster("pcie-a100-nvlink"), n) for n in (2, 4)] == [300e9, 31.5e9]
    assert effective_intra_bandwidth(load_cluster("dgx-h100"), 2) == 450e9
