"""Laws of mixed clusters: nodes of other sizes, links of other rates, shares of other sizes."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import graph_of
from traincast import AnalyticalCostModel, Cluster, Conditions, Device, Forecast, load_cluster, load_device, predict
from traincast.cluster.hardware import joined
from traincast.estimate.collectives.laws import collective_seconds, transfer_seconds
from traincast.strategy import NUM_STREAMS
from traincast.work import Collective, Transfer

GPT = "gpt:layers=4,hidden=256,heads=8,vocab=1000,seq=128"
V100, H100 = load_device("v100-sxm2-32gb"), load_device("h100-sxm5-80gb")
GIGABIT = 125e6
STRATEGIES = [
    "dp=4",
    "dp=2,pp=2,layers=2/2",
    "pp=4,layers=1/1/1/1,micro_batch=2",
    "dp=4,zero=3",
    "dp=2,tp=2,sp,zero=1",
    "tp=4",
    "dp=2,cp=2",
]


def forecast(
    cluster: Cluster | str, strategy: str, *, batch: int = 48, conditions: Conditions | None = None
) -> Forecast:
    return predict(
        graph_of(GPT), cluster=cluster, global_batch=batch, strategy=strategy, runtime="pytorch", precision="fp32",
        cost_model=AnalyticalCostModel(), conditions=conditions,
    )  # fmt: skip


def step(cluster: Cluster | str, strategy: str, *, batch: int = 48) -> float:
    return forecast(cluster, strategy, batch=batch).report.step_s


def node(rate: float = GIGABIT, device: Device = V100) -> Cluster:
    """One node with one device and one link."""
    base = load_cluster("dgx-1-v100:1x1")
    link = replace(base.inter_node, name="Ethernet", bandwidth=rate, latency_s=3e-5)
    return replace(base, device=device, inter_node=link, nics_per_node=1, inter_topology="none")


def nodes(*rates: float, device: Device = V100) -> Cluster:
    return joined([node(rate, device) for rate in rates])


def spans(result: Forecast, label: str) -> dict[tuple[int, ...], float]:
    """Seconds of the longest task with ``label``, by the ranks that take part in it."""
    timeline, plan = result.timeline, result.timeline.plan
    found: dict[tuple[int, ...], float] = {}
    for task in np.flatnonzero(plan.label == plan.labels.index(label)).tolist():
        ranks = plan.lanes[plan.lane_start[task] : plan.lane_start[task + 1]] // NUM_STREAMS
        key = tuple(sorted(set(ranks.tolist())))
        found[key] = max(found.get(key, 0.0), float(timeline.end[task] - timeline.start[task]))
    return found


@pytest.mark.long(but=5)
@pytest.mark.parametrize("strategy", [*STRATEGIES, "dp=2,pp=2,schedule=interleaved,virtual_stages=2,micro_batch=3"])
@pytest.mark.parametrize("spec", ["dgx-a100:2x2", "dgx-1-v100:4x1"])
def test_equal_parts_are_one_cluster_to_the_last_digit(spec: str, strategy: str) -> None:
    whole = load_cluster(spec)
    one = whole.with_nodes(1)
    assert joined([one] * whole.num_nodes) == whole
    apart = replace(whole, parts=(one,) * whole.num_nodes)  # joining them would find that they are equal
    assert step(apart, strategy) == pytest.approx(step(whole, strategy), rel=1e-12)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=6, deadline=None)
@given(
    rates=st.lists(st.floats(2e7, 2e9), min_size=4, max_size=4), which=st.integers(0, 3), faster=st.floats(1.0, 50.0)
)
def test_a_faster_link_of_one_node_never_lengthens_a_step(
    strategy: str, rates: list[float], which: int, faster: float
) -> None:
    better = [rate * faster if n == which else rate for n, rate in enumerate(rates)]
    assert step(nodes(*better), strategy) <= step(nodes(*rates), strategy) * (1 + 1e-12)


@pytest.mark.parametrize("strategy", ["dp=4", "dp=4,zero=3", "dp=4,servers=2", "dp=4,servers=2,async"])
def test_the_order_of_nodes_changes_nothing_if_all_do_the_same(strategy: str) -> None:
    kinds = [node(GIGABIT, V100), node(GIGABIT, V100), node(4 * GIGABIT, H100), node(GIGABIT / 4, H100)]
    orders = sorted(set(permutations(range(4))))[::5]
    if "servers" in strategy:  # servers stand on the first two nodes, which are the same in every order
        orders = [(0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2)]
    steps = [step(joined([kinds[n] for n in order]), strategy) for order in orders]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-9 if "async" not in strategy else 0.02)


def test_a_ring_is_as_fast_as_its_slowest_link_and_other_groups_are_not_slowed() -> None:
    """With dp=2,pp=2 the replicas of stage 0 are on nodes 0 and 1, those of stage 1 on nodes 2 and 3."""

    def exchanges(*rates: float) -> dict[tuple[int, ...], float]:
        return spans(forecast(nodes(*rates), "dp=2,pp=2,layers=2/2", batch=8), "dp gradients")

    mixed = exchanges(GIGABIT, GIGABIT, GIGABIT, GIGABIT / 5)
    equal, slow = (
        [seconds for _, seconds in sorted(exchanges(*[rate] * 4).items())] for rate in (GIGABIT, GIGABIT / 5)
    )
    assert set(mixed) == {(0, 1), (2, 3)}
    assert [mixed[0, 1], mixed[2, 3]] == pytest.approx([equal[0], slow[1]], rel=1e-12)
    assert slow[1] > 4 * equal[1]


def test_a_message_has_the_rate_of_the_slower_of_its_two_nodes() -> None:
    cluster = nodes(GIGABIT, GIGABIT / 2, GIGABIT, 8 * GIGABIT)
    sent = spans(forecast(cluster, "pp=4,micro_batch=12"), "pp send activations")
    assert sorted(sent) == [(0,), (1,), (2,)]
    works = [w for w in forecast(cluster, "pp=4,micro_batch=12").lowered.plan.works if isinstance(w, Transfer)]
    alone = [transfer_seconds([replace(works[0], to_stage=-1)], node(rate).with_nodes(2))[0] for rate in
             (GIGABIT / 2, GIGABIT / 2, GIGABIT)]  # fmt: skip
    assert [sent[n,] for n in range(3)] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("nics", [4, 2, 1])
def test_an_all_reduce_over_unequal_nodes_is_bound_by_the_node_with_the_lowest_rate(nics: int) -> None:
    """Eight members behind eight NICs and four behind four, two or one: the smaller node bounds the ring."""
    big, small = load_cluster("dgx-a100:1"), replace(load_cluster("dgx-a100:1x4"), nics_per_node=nics)
    result = forecast(joined([big, small]), "dp=12")
    nbytes = max(work.nbytes for work in result.lowered.plan.works if isinstance(work, Collective))
    work = Collective(kind="all_reduce", nbytes=nbytes, num_ranks=12, num_nodes=2)
    taken = spans(result, "dp gradients")
    assert set(taken) == {tuple(range(12))}
    assert max(taken.values()) == pytest.approx(collective_seconds([work], small.with_nodes(2))[0], rel=1e-12)
    assert step(joined([small, big]), "dp=12") == pytest.approx(result.report.step_s, rel=1e-9)


def test_a_group_inside_a_node_uses_no_network_where_another_crosses_it() -> None:
    """With tp=6 on nodes of eight and four devices, the first group is inside a node and the second is not."""
    result = predict(
        graph_of("gpt:layers=2,hidden=768,heads=12,vocab=1200,seq=128"), cluster="dgx-a100:1+dgx-a100:1x4",
        global_batch=16, strategy="dp=2,tp=6", runtime="pytorch", cost_model=AnalyticalCostModel(),
    )  # fmt: skip
    label = next(text for text in result.timeline.plan.labels if text.startswith("tp "))
    taken = spans(result, label)
    assert set(taken) == {tuple(range(6)), tuple(range(6, 12))}
    assert taken[tuple(range(6, 12))] > 1.5 * taken[tuple(range(6))]


def test_equal_shares_are_no_shares() -> None:
    for strategy in ("dp=4", "dp=2,pp=2", "dp=4,zero=3"):
        replicas = int(strategy[3])
        same = step("dgx-a100:2x2", f"{strategy},shares={':'.join(['1'] * replicas)}")
        assert same == pytest.approx(step("dgx-a100:2x2", strategy), rel=1e-12)


def test_a_replica_computes_its_own_share() -> None:
    """Replica r computes as long as every replica of an even step with its number of samples."""
    shared = forecast("dgx-a100:2x2", "dp=4,shares=5:1:1:1", batch=64)
    busy = {rank.rank: rank.breakdown.compute_s for rank in shared.report.ranks}
    many, few = (forecast("dgx-a100:2x2", "dp=4", batch=4 * n).report.compute_s for n in (40, 8))
    assert busy[0] == pytest.approx(many, rel=0.02)
    assert [busy[r] for r in (1, 2, 3)] == pytest.approx([few] * 3, rel=0.02)
    assert shared.report.micro_batch * shared.request.strategy.num_microbatches == 40
    assert shared.report.samples_per_s == pytest.approx(64 / shared.report.step_s)


def test_memory_is_that_of_the_largest_share() -> None:
    shared = forecast("dgx-a100:2x2", "dp=4,shares=5:1:1:1", batch=64).report
    assert shared.peak_memory_bytes == forecast("dgx-a100:2x2", "dp=4", batch=160).report.peak_memory_bytes


def test_shares_in_the_ratio_of_speeds_shorten_a_step_of_unequal_devices() -> None:
    """With speeds of 1 and 3 and even shares, the slow device computes half of the batch; with 1:3, a quarter."""
    slow = Conditions(slow=((0, 3.0),))
    even = forecast("dgx-a100:1x2", "dp=2,num_microbatches=2", batch=2048, conditions=slow).report.step_s
    fair = forecast("dgx-a100:1x2", "dp=2,shares=1:3,num_microbatches=2", batch=2048, conditions=slow).report.step_s
    assert fair == pytest.approx(even / 2, rel=0.1)
