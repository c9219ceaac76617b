"""Forecasts where ranks are not alike: unlike nodes, slow ranks, a busy network; parameter servers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.conftest import graph_of
from traincast import AnalyticalCostModel, Cluster, Conditions, Forecast, RequestError, load_cluster, predict

GPT = "gpt:layers=4,hidden=512,heads=8,vocab=1000,seq=256"


def forecast(
    cluster: str | Cluster, strategy: str = "dp=16", conditions: Conditions | None = None, *, batch: int = 64
) -> Forecast:
    return predict(
        graph_of(GPT), cluster=cluster, global_batch=batch, strategy=strategy, runtime="pytorch", conditions=conditions,
        cost_model=AnalyticalCostModel(),
    )  # fmt: skip


def test_nodes_of_two_kinds_are_as_fast_as_the_slower_on_the_slower_network() -> None:
    mixed = forecast("dgx-a100:1+dgx-h100:1").report
    slow = forecast("dgx-a100:2").report
    assert mixed.step_s == pytest.approx(slow.step_s, rel=0.02)
    assert mixed.num_devices == 16


def test_the_faster_nodes_wait_for_the_slower() -> None:
    waits = {w.rank: w for w in forecast("dgx-a100:1+dgx-h100:1").report.waits}
    assert sorted(waits) == list(range(16))
    assert min(waits[r].waiting_s for r in range(8, 16)) > max(waits[r].waiting_s for r in range(8))
    assert all(0 <= waits[r].for_rank < 8 for r in range(8, 16))


def test_a_joined_cluster_has_what_every_part_has() -> None:
    both = load_cluster("dgx-h100:3+dgx-a100:1")
    a100, h100 = load_cluster("dgx-a100"), load_cluster("dgx-h100")
    assert both.num_devices == 32
    assert both.device.name == a100.device.name
    assert both.inter_node == min(a100.inter_node, h100.inter_node, key=lambda link: link.bandwidth)
    assert [kind.device.name for kind in both.kinds()] == [h100.device.name, a100.device.name]
    assert both.kind_of_device() == [0] * 24 + [1] * 8
    assert h100.kind_of_device() == [0] * 8
    uneven = load_cluster("dgx-h100:1+dgx-h100:2x4")
    assert (uneven.num_nodes, uneven.num_devices, uneven.size_text) == (3, 16, "1 × 8 + 2 × 4")
    assert (uneven.devices_per_node, uneven.most_devices_per_node) == (4, 8)
    with pytest.raises(RequestError, match="lists its 3 nodes one by one"):
        uneven.with_nodes(4)


@pytest.mark.parametrize("strategy", ["dp=16", "dp=4,tp=4", "dp=2,tp=4,pp=2", "dp=16,zero=3", "dp=4,pp=4"])
def test_groups_may_span_nodes_of_unequal_size(strategy: str) -> None:
    """A node of eight and two of four are never faster than two of eight, and never slower than four of four."""
    uneven = forecast("dgx-a100:1+dgx-a100:2x4", strategy).report
    assert uneven.num_devices == 16
    slower = forecast("dgx-a100:4x4", strategy).report.step_s
    assert forecast("dgx-a100:2", strategy).report.step_s <= uneven.step_s * (1 + 1e-9) <= slower * (1 + 2e-9)


def test_the_report_proposes_shares_that_shorten_the_step() -> None:
    report = forecast("dgx-a100:1x1+dgx-1-v100:1x1", "dp=2,num_microbatches=4", batch=512).report
    (line,) = [warning for warning in report.warnings if "shares=" in warning]
    found = re.fullmatch(r"replicas differ in speed: with shares=(\S+), a step would take .+ instead of .+", line)
    assert found
    again = forecast("dgx-a100:1x1+dgx-1-v100:1x1", f"dp=2,num_microbatches=4,shares={found[1]}", batch=512).report
    assert again.step_s < 0.9 * report.step_s
    assert not any("shares=" in warning for warning in (*again.warnings, *forecast("dgx-a100:2").report.warnings))


def test_nothing_but_conditions_that_change_nothing_changes_nothing() -> None:
    plain = forecast("dgx-a100:2").report
    same = forecast("dgx-a100:2", conditions=Conditions()).report
    assert same.step_s == pytest.approx(plain.step_s, rel=1e-9)
    assert same.compute_s == pytest.approx(plain.compute_s, rel=1e-9)
    assert same.demand == plain.demand
    assert (same.low_s, same.high_s) == pytest.approx((plain.low_s, plain.high_s), rel=1e-9)


def test_a_slow_rank_slows_the_step_and_everyone_waits_for_it() -> None:
    plain = forecast("dgx-a100:2").report
    slowed = forecast("dgx-a100:2", conditions=Conditions(slow=((5, 2.0),))).report
    assert plain.step_s < slowed.step_s < 2.0 * plain.step_s
    assert slowed.waits[0].rank == 5
    assert {w.for_rank for w in slowed.waits[1:]} == {5}


def test_a_busy_network_slows_what_crosses_it_and_nothing_else() -> None:
    busy = Conditions(busy_network=0.9)
    assert forecast("dgx-a100:2", conditions=busy).report.step_s > 1.05 * forecast("dgx-a100:2").report.step_s
    inside = [
        predict(
            GPT, cluster="dgx-a100:1", global_batch=64, strategy="dp=8", runtime="pytorch", conditions=conditions,
            cost_model=AnalyticalCostModel(),
        ).report.step_s
        for conditions in (None, busy)
    ]  # fmt: skip
    assert inside[1] == pytest.approx(inside[0], rel=1e-9)


def test_servers_over_an_endless_network_cost_nothing() -> None:
    cluster = load_cluster("dgx-a100:2")
    endless = replace(
        cluster,
        inter_node=replace(cluster.inter_node, bandwidth=1e30, latency_s=0.0),
        host_bandwidth=1e30,
        host_memory_bandwidth=1e30,
        intra_node=replace(cluster.intra_node, latency_s=0.0),
    )
    for strategy in ("dp=16,servers=2", "dp=16,servers=2,async"):
        report = forecast(endless, strategy).report
        assert report.exposed_communication_s == pytest.approx(0.0, abs=0.01 * report.step_s)
        assert report.compute_s + report.overhead_s == pytest.approx(report.step_s, rel=0.05)


def test_servers_report_how_stale_weights_are_and_how_full_their_network_is() -> None:
    cluster = replace(load_cluster("dgx-a100:2"), host_memory_bandwidth=1e30)  # every push is an update of its own
    waits = forecast(cluster, "dp=16,servers=2").report
    free = forecast(cluster, "dp=16,servers=2,async").report
    assert waits.servers is not None
    assert free.servers is not None
    assert waits.servers.mean_staleness == 0.0
    assert free.servers.mean_staleness == pytest.approx(15.0, rel=0.2)
    assert free.step_s <= waits.step_s
    assert len(free.servers.nic_utilization) == 2
    more = forecast(cluster, "dp=16,servers=8").report
    assert more.step_s <= waits.step_s
    assert waits.to_dict()["servers"]["mean_staleness"] == 0.0


def test_model_flops_of_a_mixed_cluster_are_told_from_the_peak_of_all_its_devices() -> None:
    mixed, slow = (forecast(c).report for c in ("dgx-a100:1+dgx-h100:1", "dgx-a100:2"))
    a100, h100 = (load_cluster(f"dgx-{name}").device.peak("bf16") for name in ("a100", "h100"))
    assert mixed.mfu * mixed.step_s == pytest.approx(slow.mfu * slow.step_s * 2 * a100 / (a100 + h100))
