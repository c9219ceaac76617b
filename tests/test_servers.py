"""Forecasts with parameter servers: unlike nodes, nodes of their own, slow ranks, a busy network, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import graph_of
from traincast import AnalyticalCostModel, Cluster, Conditions, Forecast, Report, StrategyError, load_cluster, predict
from traincast.cluster.hardware import joined

GPT = "gpt:layers=4,hidden=512,heads=8,vocab=1000,seq=256"


def forecast(
    cluster: str | Cluster,
    strategy: str,
    conditions: Conditions | None = None,
    steps: int | None = None,
    batch: int = 16,
) -> Forecast:
    return predict(
        graph_of(GPT), cluster=cluster, global_batch=batch, strategy=strategy, runtime="pytorch",
        conditions=conditions, cost_model=AnalyticalCostModel(), steps=steps,
    )  # fmt: skip


def endless(spec: str) -> Cluster:
    """A cluster on which moving and applying bytes takes no time."""

    def free(cluster: Cluster) -> Cluster:
        return replace(
            cluster,
            inter_node=replace(cluster.inter_node, bandwidth=1e30, latency_s=0.0),
            intra_node=replace(cluster.intra_node, latency_s=0.0),
            host_bandwidth=1e30,
            host_memory_bandwidth=1e30,
            parts=tuple(free(part) for part in cluster.parts),
        )

    return free(load_cluster(spec))


def parts_of(report: Report) -> float:
    parts = (report.compute_s, report.exposed_communication_s, report.bubble_s, report.optimizer_s, report.overhead_s)
    return sum(parts) + report.calibrated_s


def test_servers_on_unlike_nodes_give_each_worker_its_own_speed() -> None:
    """On a free network synchronous workers wait for the slowest, and the rates of asynchronous ones add up."""
    slow, fast = (forecast(endless(f"dgx-{name}:2x2"), "dp=4,servers=2").report.step_s for name in ("a100", "h100"))
    assert fast < 0.8 * slow
    mixed = endless("dgx-a100:1x2+dgx-h100:1x2")
    waits = forecast(mixed, "dp=4,servers=2").report
    assert waits.step_s == pytest.approx(slow, rel=1e-6)
    free = forecast(mixed, "dp=4,servers=2,async").report
    assert free.servers is not None
    assert free.servers.steps_per_s_by_worker == pytest.approx([1 / slow] * 2 + [1 / fast] * 2, rel=1e-6)
    assert free.samples_per_s == pytest.approx(16 / 4 * (2 / slow + 2 / fast), rel=1e-6)
    assert waits.waits[0].rank < 2
    assert {w.for_rank < 2 for w in waits.waits if w.rank >= 2} == {True}


def test_servers_on_equal_nodes_joined_are_those_of_one_cluster_to_the_last_digit() -> None:
    for strategy in ("dp=4,servers=3", "dp=4,servers=3,async"):
        plain, joined = (forecast(spec, strategy).report for spec in ("dgx-a100:2x2", "dgx-a100:1x2+dgx-a100:1x2"))
        assert joined.step_s == plain.step_s
        assert joined.servers == plain.servers
        assert joined.compute_s == plain.compute_s


@pytest.mark.parametrize("strategy", ["dp=4,servers=2", "dp=4,servers=5,async", "dp=2,servers=2,server_nodes=1"])
@pytest.mark.parametrize("cluster", ["dgx-a100:2x2", "dgx-a100:1x2+dgx-h100:1x2"])
@pytest.mark.parametrize("conditions", [None, Conditions(slow=((1, 2.0),), jitter=0.1, busy_network=0.5)])
def test_the_parts_of_a_step_with_servers_add_up(cluster: str, strategy: str, conditions: Conditions | None) -> None:
    report = forecast(cluster, strategy, conditions).report
    assert parts_of(report) == pytest.approx(report.step_s, rel=1e-9)
    for rank in report.ranks:
        assert rank.breakdown.total_s == pytest.approx(report.step_s, rel=1e-9)
    assert sum(entry.share for entry in report.critical_path) <= 1.0 + 1e-9


def test_a_slow_rank_holds_up_synchronous_workers_and_only_itself_among_others() -> None:
    slow = Conditions(slow=((3, 2.0),))
    cluster = endless("dgx-a100:2x2")
    plain, slowed = (forecast(cluster, "dp=4,servers=2", c).report for c in (None, slow))
    assert slowed.step_s > 1.5 * plain.step_s
    assert slowed.waits[0].rank == 3
    assert {w.for_rank for w in slowed.waits[1:]} == {3}
    free, apart = (forecast(cluster, "dp=4,servers=2,async", c).report for c in (None, slow))
    assert free.servers is not None
    assert apart.servers is not None
    before, after = free.servers.steps_per_s_by_worker, apart.servers.steps_per_s_by_worker
    assert [a == pytest.approx(b, rel=1e-6) for a, b in zip(after, before, strict=True)] == [n != 3 for n in range(4)]
    assert 0.5 * before[3] <= after[3] < 0.7 * before[3]


def test_jitter_and_a_busy_network_slow_a_step_with_servers() -> None:
    plain = forecast("dgx-a100:2x2", "dp=4,servers=1").report.step_s
    busy = forecast("dgx-a100:2x2", "dp=4,servers=1", Conditions(busy_network=0.9)).report
    assert busy.step_s > 1.2 * plain
    assert busy.conditions == Conditions(busy_network=0.9)
    jitter = forecast(endless("dgx-a100:2x2"), "dp=4,servers=1", Conditions(jitter=0.2, seed=1)).report
    assert jitter.step_s > 1.1 * forecast(endless("dgx-a100:2x2"), "dp=4,servers=1").report.step_s
    # Within one node no byte crosses the network.
    inside = [forecast("dgx-a100:1x4", "dp=4,servers=2", c).report.step_s for c in (None, Conditions(busy_network=0.9))]
    assert inside[0] == inside[1]


def test_servers_stand_beside_workers_or_on_nodes_of_their_own() -> None:
    beside = forecast("dgx-a100:2x2", "dp=4,servers=4").report
    apart = forecast("dgx-a100:4x2", "dp=4,servers=4,server_nodes=2").report
    assert beside.servers is not None
    assert apart.servers is not None
    assert (beside.servers.nodes, beside.servers.own_nodes) == ((0, 0, 1, 1), False)
    assert (apart.servers.nodes, apart.servers.own_nodes) == ((2, 2, 3, 3), True)
    assert apart.strategy == "dp=4,servers=4,server_nodes=2"
    assert apart.compute_s == pytest.approx(beside.compute_s, rel=0.03)
    assert (beside.num_devices, apart.num_devices) == (4, 8)
    assert apart.mfu == pytest.approx(beside.mfu * beside.step_s / apart.step_s / 2)


def test_a_job_pays_for_the_nodes_of_its_servers() -> None:
    node = load_cluster("dgx-a100:1x2")
    apart = forecast("dgx-a100:3x2", "dp=4,servers=2,server_nodes=1", steps=1000).report.job
    assert apart is not None
    assert apart.cost == pytest.approx(3 * node.price_per_node_hour * apart.job_s / 3600)
    cheap = forecast("dgx-a100:2x2+cpu-server:2", "dp=4,servers=2,server_nodes=2", steps=1000).report
    assert cheap.job is not None
    host = load_cluster("cpu-server").device.price_per_hour
    assert cheap.job.cost == pytest.approx(2 * (node.price_per_node_hour + host) * cheap.job.job_s / 3600)
    assert cheap.num_devices == 4
    assert "2 cpu-server" in cheap.cluster


def test_workers_of_a_mixed_cluster_whose_last_nodes_hold_servers_are_all_alike() -> None:
    apart = forecast("dgx-h100:2x2+dgx-a100:1x2", "dp=4,servers=2,server_nodes=1").report
    plain = forecast("dgx-h100:2x2", "dp=4,servers=2").report
    assert apart.compute_s == pytest.approx(plain.compute_s, rel=0.03)
    assert apart.waits == ()


def test_servers_stand_on_the_nodes_that_are_listed() -> None:
    usual = forecast("dgx-a100:3x2", "dp=6,servers=3", batch=24).report
    listed = forecast("dgx-a100:3x2", "dp=6,servers=3,placement=0/1/2", batch=24).report
    assert listed.servers == usual.servers
    assert listed.step_s == usual.step_s
    divided = forecast("dgx-a100:3x2", "dp=6,servers=4,placement=2/0", batch=24).report.servers
    assert divided is not None
    assert (divided.nodes, divided.own_nodes) == ((2, 2, 0, 0), False)
    both = forecast("dgx-a100:3x2", "dp=4,servers=2,server_nodes=1,placement=0/2").report.servers
    apart = forecast("dgx-a100:3x2", "dp=4,servers=2,server_nodes=1,placement=2").report
    assert both is not None
    assert (both.nodes, both.own_nodes) == ((0, 2), False)
    assert apart.servers == forecast("dgx-a100:3x2", "dp=4,servers=2,server_nodes=1").report.servers


def test_servers_behind_the_slow_link_of_a_node_slow_everyone_and_behind_a_fast_one_only_its_workers() -> None:
    fast, slow = (replace(load_cluster("dgx-a100:1x1"), nics_per_node=1) for _ in range(2))
    slow = replace(slow, inter_node=replace(slow.inter_node, bandwidth=fast.inter_node.bandwidth / 50))
    cluster = joined([fast, fast, slow])
    on_slow = forecast(cluster, "dp=3,servers=1,placement=2,async", batch=24).report.servers
    on_fast = forecast(cluster, "dp=3,servers=1,placement=0,async", batch=24).report.servers
    assert on_slow is not None
    assert on_fast is not None
    assert on_fast.steps_per_s_by_worker[1] > 5 * on_fast.steps_per_s_by_worker[2]
    assert on_fast.steps_per_s_by_worker[1] > 5 * on_slow.steps_per_s_by_worker[1]
    waits = forecast(cluster, "dp=3,servers=1,placement=0", batch=24).report
    assert waits.step_s == pytest.approx(1 / on_fast.steps_per_s_by_worker[2], rel=0.1)


def test_workers_with_uneven_shares_compute_their_own_batch() -> None:
    """On a free network a synchronous step is that of the largest share; asynchronous rates are those of each share."""
    cluster = endless("dgx-a100:2x2")
    large, small = (forecast(cluster, "dp=4,servers=2", batch=4 * n).report.step_s for n in (24, 8))
    waits = forecast(cluster, "dp=4,servers=2,shares=3:1:1:1", batch=48).report
    assert waits.step_s == pytest.approx(large, rel=1e-6)
    assert waits.samples_per_s == pytest.approx(48 / large, rel=1e-6)
    free = forecast(cluster, "dp=4,servers=2,shares=3:1:1:1,async", batch=48)
    assert free.report.servers is not None
    assert free.report.servers.steps_per_s_by_worker == pytest.approx([1 / large] + [1 / small] * 3, rel=1e-6)
    assert free.report.samples_per_s == pytest.approx(24 / large + 3 * 8 / small, rel=1e-6)
    assert free.report.floor_s <= waits.step_s
    assert free.detailed(all_ranks=True).step_s == pytest.approx(large, rel=1e-6)
    even = forecast(cluster, "dp=4,servers=2,shares=1:1:1:1", batch=48).report
    assert even.servers == forecast(cluster, "dp=4,servers=2", batch=48).report.servers


def test_workers_on_nodes_of_unequal_size_share_their_own_nic() -> None:
    cluster = joined([load_cluster("dgx-a100:1x4"), load_cluster("dgx-a100:2x2")])
    result = forecast(cluster, "dp=8,servers=2", batch=32)
    assert result.servers is not None
    assert [result.servers.setup.node_of_worker(worker) for worker in range(8)] == [0, 0, 0, 0, 1, 1, 2, 2]
    assert sum(result.report.servers.steps_per_s_by_worker) * result.report.step_s == pytest.approx(8)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("cluster", "strategy", "line"),
    [
        ("dgx-a100:2x2", "dp=4,servers=1,placement=2", "has nodes 0 to 1; list some of these"),
        ("dgx-a100:2x2", "dp=2,servers=1,server_nodes=1,placement=0", "node 1 has neither workers nor servers"),
        ("dgx-a100:2x2", "dp=4,servers=2,server_nodes=1", r"1 × 2 = 2 devices beside server_nodes=1; set dp=2"),
        ("dgx-a100:2x2", "dp=4,servers=2,server_nodes=2", "has 2 nodes in all and workers need at least one"),
        ("dgx-a100:2x2", "dp=4,servers=1,server_nodes=2", "each of these nodes needs a server"),
        ("dgx-a100:2x2", "dp=4,server_nodes=1", "server_nodes=1 with servers=0"),
        ("dgx-a100:2x2+cpu-server:2", "dp=4,servers=2", "set servers and server_nodes=2"),
        ("dgx-a100:2x2+cpu-server:2", "dp=4", "only parameter servers can run on nodes without accelerators"),
    ],
)
def test_servers_that_cannot_stand_where_they_are_put_are_refused(cluster: str, strategy: str, line: str) -> None:
    with pytest.raises(StrategyError, match=line):
        forecast(cluster, strategy)
