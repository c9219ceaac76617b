"""Racks whose trays share one domain of links: groups within one are quick, and nodes keep their NICs to themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import GPT, graph_of, tasks_per_work
from traincast import (
    AnalyticalCostModel,
    Cluster,
    CostModel,
    Request,
    Strategy,
    learned_cost_model,
    load_cluster,
    load_runtime,
)
from traincast.estimate.collectives.laws import crosses_nics, islands_of
from traincast.strategy import Mesh, load_precision, lower
from traincast.work import Collective, CollectiveKind, Transfer

TRAYS = load_cluster("dgx-gb200:36")
KINDS: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
MODELS: dict[str, CostModel] = {"analytical": AnalyticalCostModel(), "learned": learned_cost_model()}


def test_a_rack_is_eighteen_trays_of_four_devices_and_four_nics() -> None:
    assert (TRAYS.domain_nodes, TRAYS.devices_per_node, TRAYS.nics_per_node, TRAYS.domain_devices) == (18, 4, 4, 72)


@pytest.mark.parametrize(("nodes", "islands"), [(0, 1), (1, 1), (18, 1), (19, 2), (36, 2), (37, 3)])
def test_nodes_make_up_whole_domains(nodes: int, islands: int) -> None:
    assert islands_of(nodes, TRAYS) == islands
    assert crosses_nics(nodes, TRAYS) == (islands > 1)
    assert islands_of(nodes, load_cluster("dgx-h100:64")) == max(1, nodes)


@pytest.mark.parametrize(("tp", "within"), [(2, True), (8, True), (72, True), (144, False)])
def test_a_group_spans_one_node_or_all_nodes_of_the_domains_that_it_crosses(tp: int, within: bool) -> None:
    mesh = Mesh.of(Strategy(dp=144 // tp, tp=tp), TRAYS)
    assert mesh.span("tp").num_nodes == (1 if within else 36)
    assert crosses_nics(mesh.span("tp").num_nodes, TRAYS) != within
    assert mesh.span("tp", "dp").num_nodes == 36


@pytest.mark.parametrize(
    ("model", "ranks"),
    [("analytical", 2), ("analytical", 8), ("analytical", 36), ("analytical", 72), ("learned", 2), ("learned", 8)],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nbytes", [1e6, 1e9])
def test_a_group_over_two_racks_is_slower_than_one_within(
    ranks: int, kind: CollectiveKind, nbytes: float, model: str
) -> None:
    within = Mesh.of(Strategy(dp=144 // ranks, tp=ranks), TRAYS).span("tp")  # neighbours
    apart = Mesh.of(Strategy(tp=144 // ranks, dp=ranks), TRAYS).span("dp")  # as far from one another as can be
    assert within.num_ranks == apart.num_ranks == ranks
    near, far = MODELS[model].estimate([s.collective(kind, nbytes) for s in (within, apart)], TRAYS).seconds
    assert near < far


@pytest.mark.parametrize("nbytes", [1e7, 1e9])
def test_a_rack_as_one_node_and_as_trays_is_the_same_rack(nbytes: float) -> None:
    whole = load_cluster("gb200-nvl72:2")
    trays = replace(
        TRAYS,
        intra_node=whole.intra_node,
        inter_node=whole.inter_node,
        inter_topology=whole.inter_topology,
        group_nodes=whole.group_nodes,
    )
    assert trays.num_devices == whole.num_devices
    for ranks in (8, 72, 144):
        spans = [Mesh.of(Strategy(dp=144 // ranks, tp=ranks), c).span("tp") for c in (trays, whole)]
        seconds = [
            float(AnalyticalCostModel().estimate([s.collective("all_gather", nbytes)], c).seconds[0])
            for s, c in zip(spans, (trays, whole), strict=True)
        ]
        assert seconds[0] == pytest.approx(seconds[1], rel=0.02), ranks


def sends(strategy: Strategy, cluster: Cluster) -> set[Transfer]:
    request = Request(
        graph=graph_of(GPT),
        cluster=cluster,
        strategy=strategy,
        runtime=load_runtime("megatron"),
        precision=load_precision("bf16"),
        global_batch=144,
    )
    plan = lower(request, grain="operator").plan
    return {
        work for row in range(strategy.pp) for work, _ in tasks_per_work(plan, row=row) if isinstance(work, Transfer)
    }


def test_messages_between_racks_share_the_four_nics_of_a_tray() -> None:
    (send,) = sends(Strategy(dp=72, pp=2, num_microbatches=2), TRAYS)
    assert (send.crosses_nodes, send.sharing) == (True, 4)
    (send,) = sends(Strategy(dp=16, pp=2), load_cluster("dgx-h100:4"))
    assert (send.crosses_nodes, send.sharing) == (True, 8)


def test_messages_within_a_rack_share_nothing() -> None:
    (send,) = sends(Strategy(dp=36, pp=2, num_microbatches=2), load_cluster("dgx-gb200:18"))
    assert (send.crosses_nodes, send.sharing) == (False, 1)


def test_a_tray_has_a_nic_for_each_of_its_devices() -> None:
    alone, shared = (Transfer(nbytes=1e9, crosses_nodes=True, sharing=n) for n in (1, 4))
    seconds = AnalyticalCostModel().estimate([alone, shared], TRAYS).seconds
    assert seconds[0] == seconds[1]


def test_a_collective_of_one_node_does_not_notice_other_racks() -> None:
    work = Collective(kind="all_reduce", nbytes=1e8, num_ranks=4, num_nodes=1)
    one, two = (AnalyticalCostModel().estimate([work], load_cluster(f"dgx-gb200:{n}")).seconds[0] for n in (18, 36))
    assert one == two
