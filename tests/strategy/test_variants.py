"""The works of ranks that differ: which links bound each group and each pair, and plans joined task by task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import graph_of
from traincast import Cluster, load_cluster
from traincast.ask import Training
from traincast.cluster.hardware import joined
from traincast.estimate.collectives.laws import nic_bandwidth
from traincast.resolve import resolve
from traincast.strategy import Lowered, Mesh, lower, parse_strategy
from traincast.strategy.uneven import balanced_shares, joined_plans, with_variants
from traincast.strategy.variants import Variants, unmarked, variants_of
from traincast.work import Collective, CollectiveKind, Transfer

GPT = "gpt:layers=4,hidden=256,heads=8,vocab=1000,seq=128"
BIG, SMALL = load_cluster("dgx-a100:1"), load_cluster("dgx-a100:1x4")
NIC = BIG.inter_node.bandwidth


def mesh_of(cluster: Cluster, text: str) -> Mesh:
    return Mesh.of(parse_strategy(text, global_batch=96), cluster)


def collective(cluster: Cluster, text: str, *axes: str, kind: CollectiveKind = "all_reduce") -> Variants:
    mesh = mesh_of(cluster, text)
    return variants_of([[mesh.span(*axes).collective(kind, 1e9)]], mesh, cluster)  # type: ignore[arg-type]


def of_rank(found: Variants, rank: int) -> tuple[Cluster, Collective | Transfer]:
    """The cluster on which the only work of ``rank`` is estimated, and that work."""
    places = [(cluster, work) for cluster, works in zip(found.clusters, found.works, strict=True) for work in works]
    cluster, work = places[int(found.entry[found.of_rank[rank], 0])]
    assert isinstance(work, Collective | Transfer)
    return cluster, work


def rate(found: Variants, rank: int) -> float:
    """Bytes/s of the NICs that bound the work of ``rank``."""
    cluster, _ = of_rank(found, rank)
    return cluster.inter_node.bandwidth * cluster.nics_per_node


def test_the_node_with_the_lowest_rate_bounds_a_ring() -> None:
    found = collective(joined([BIG, SMALL, replace(SMALL, nics_per_node=2)]), "dp=16", "dp", "cp")
    for rank in (0, 8, 15):
        _, work = of_rank(found, rank)
        assert work == Collective(kind="all_reduce", nbytes=1e9, num_ranks=16, num_nodes=3)
        assert rate(found, rank) == pytest.approx(2 * NIC)


def test_groups_that_share_nics_have_a_part_of_each_node() -> None:
    """With tp=4 the dp groups of twelve ranks have two members on the big node and one on the small one."""
    found = collective(joined([BIG, SMALL]), "dp=3,tp=4", "dp", "cp")
    _, work = of_rank(found, 0)
    assert work == Collective(kind="all_reduce", nbytes=1e9, num_ranks=3, num_nodes=2, sharing=4)
    # One of four groups has one of four NICs on the small node, and two of eight on the big one.
    assert rate(found, 0) / 4 == pytest.approx(NIC)


def test_members_drive_the_nics_next_to_them_and_no_more() -> None:
    """Of the second group of tp=6, two members are on the big node and four on the small one; the first is inside."""
    found = collective(joined([BIG, SMALL]), "dp=2,tp=6", "tp")
    assert of_rank(found, 0)[1] == Collective(kind="all_reduce", nbytes=1e9, num_ranks=6)
    where, work = of_rank(found, 6)
    assert work == Collective(kind="all_reduce", nbytes=1e9, num_ranks=6, num_nodes=2)
    assert nic_bandwidth(where, 2, ranks_per_node=3, sharing=1) == pytest.approx(2 * NIC)


@pytest.mark.parametrize(("members", "factor"), [((8, 8), 1.0), ((8, 4), (6 * 6) / (4 * 8))])
def test_an_all_to_all_is_bound_by_the_node_that_needs_longest(members: tuple[int, int], factor: float) -> None:
    """A node with c of n members sends c·(n − c) parts through its NICs; the law of even nodes counts (n/2)²."""
    other = replace(BIG.device, name="other")
    cluster = joined([replace(BIG, devices_per_node=n, nics_per_node=4, device=d) for n, d in
                      zip(members, (BIG.device, other), strict=True)])  # fmt: skip
    found = collective(cluster, f"dp={sum(members)}", "dp", "cp", kind="all_to_all")
    assert rate(found, 0) == pytest.approx(4 * NIC * factor)


def test_messages_know_their_two_nodes() -> None:
    slow = replace(SMALL, inter_node=replace(SMALL.inter_node, bandwidth=NIC / 10))
    cluster = joined([SMALL, slow, SMALL])
    mesh = mesh_of(cluster, "dp=4,pp=3")
    for to_stage, sender, expected in ((1, 0, NIC / 10), (2, 4, NIC / 10), (0, 8, NIC)):
        found = variants_of([[Transfer(nbytes=1e6, to_stage=to_stage)]], mesh, cluster)
        where, work = of_rank(found, sender)
        assert work == Transfer(nbytes=1e6, crosses_nodes=True, sharing=4)
        assert where.inter_node.bandwidth == expected
    inside = variants_of([[Transfer(nbytes=1e6, to_stage=0)]], mesh, cluster)
    assert of_rank(inside, 0)[1] == Transfer(nbytes=1e6)


def test_nodes_with_equal_devices_are_estimated_once_whatever_their_links() -> None:
    rates = [1.0, 0.5, 0.25, 0.1]
    cluster = joined([replace(SMALL, inter_node=replace(SMALL.inter_node, bandwidth=NIC * r)) for r in rates])
    lowered = lowered_on(cluster, "dp=16")
    assert lowered.variants is not None
    assert len(lowered.variants.clusters) == 1  # it has the link that bounds the ring
    assert lowered.variants.clusters[0].inter_node.bandwidth == NIC / 10
    assert lowered.variants.of_rank.tolist() == [0] * 16
    every = [work for works in lowered.variants.works for work in works]
    assert [every[number] for number in lowered.variants.entry[0]] == plain_on(lowered, 4)


def plain_on(lowered: Lowered, nodes: int) -> list[object]:
    return [
        replace(work, num_nodes=nodes, sharing=1) if isinstance(work, Collective) else work
        for work in unmarked(lowered.plan.works)
    ]


def lowered_on(cluster: Cluster | str, text: str, batch: int = 96) -> Lowered:
    request = resolve(Training(graph_of(GPT), cluster=cluster, global_batch=batch, runtime="pytorch")).request
    strategy = parse_strategy(text, global_batch=batch)
    return with_variants(lower(replace(request, strategy=strategy), grain="operator"))


def test_plans_of_different_batches_are_joined_task_by_task() -> None:
    one, two = (lowered_on("dgx-a100:1x2", "dp=2", batch).plan for batch in (16, 64))
    plan, works = joined_plans([one, two])
    assert plan.num_tasks == one.num_tasks
    assert [len(own) for own in works] == [len(plan.works)] * 2
    rng = np.random.default_rng(0)
    for own, whole in zip(works, (one, two), strict=True):
        times = dict(zip(whole.works, rng.random(len(whole.works)), strict=True))
        joint = plan.costs(np.array([times[work] for work in own]))[plan.cost]
        assert joint == pytest.approx(whole.costs(np.array(list(times.values())))[whole.cost], rel=1e-12)


def test_works_equal_in_one_plan_and_different_in_another_stay_apart() -> None:
    one = lowered_on("dgx-a100:1x2", "dp=2", 16).plan
    first = replace(one, cost=np.where(one.cost == 1, 0, one.cost).astype(np.int32))
    plan, works = joined_plans([first, one])
    assert len({(a, b) for a, b in zip(*works, strict=True)}) == len(plan.works)
    assert {b for a, b in zip(*works, strict=True) if a == one.works[0]} == {one.works[0], one.works[1]}


@pytest.mark.parametrize(
    ("seconds", "batch", "microbatches", "shares"),
    [
        ([1.0, 1.0], 64, 1, ()),
        ([1.0, 3.0], 64, 1, (3, 1)),
        ([1.0, 3.0], 64, 4, (3, 1)),
        ([1.0, 2.0], 64, 1, (43, 21)),
        ([1.0, 1000.0], 4, 1, (3, 1)),
        ([1.0, 1.1], 4, 1, ()),
        ([1.0, 2.0], 2, 2, ()),
    ],
)
def test_shares_are_in_the_ratio_of_speeds(
    seconds: list[float], batch: int, microbatches: int, shares: tuple[int, ...]
) -> None:
    strategy = parse_strategy(f"dp=2,num_microbatches={microbatches}", global_batch=batch)
    mesh = Mesh.of(strategy, load_cluster("dgx-a100:1x2"))
    assert balanced_shares(strategy, mesh, batch, np.array(seconds)) == shares
    if shares:
        samples = replace(strategy, shares=shares).samples(batch)
        assert sum(samples) == batch
        assert all(n % microbatches == 0 for n in samples)
