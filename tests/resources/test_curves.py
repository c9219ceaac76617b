"""Curves of use: a work draws what it demands, sampling loses nothing, and all forms of a plan agree."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import CNN, GPT, AnalyticalCostModel, ChosenSeconds, graph_of, request_of, run
from tests.resources.told import told
from traincast import Operator, RequestError, Timeline, load_cluster, predict, resources_of
from traincast.estimate.resource_use import FIGURES, RESOURCES
from traincast.resources.curves import CURVES, Curves, curves_of, uses_of
from traincast.resources.draws import sent_bytes
from traincast.simulate import simulate
from traincast.strategy import lower
from traincast.work import Collective, HostCopy, Transfer

STRATEGIES = [
    "dp=1",
    "dp=16",
    "dp=16,zero=3",
    "dp=2,tp=8",
    "dp=4,pp=4,num_microbatches=4",
    "tp=4,pp=4,num_microbatches=8",
    "dp=8,tp=2,zero=1,sp",
    "dp=4,pp=4,num_microbatches=4,schedule=gpipe,offload=activations",
]
NICS = 8 * 25e9  # of a dgx-a100


def total(curves: Curves, name: str) -> float:
    """Seconds of the peak drawn in one step, over all rows."""
    return float(curves.values[name].sum()) * curves.period_s


@cache
def exact(strategy: str, *, all_ranks: bool = False, grain: str = "operator") -> tuple[Timeline, Curves]:
    request = request_of(strategy, global_batch=32)
    _, timeline = run(request, grain=grain, all_ranks=all_ranks)
    return timeline, curves_of(timeline, request.cluster, hz=None)


def test_one_operator_draws_its_flops_and_bytes_while_it_runs() -> None:
    """Every operator takes 1 ms, everything else nothing: the curve of each is its demand in that millisecond."""
    request = request_of("dp=1", global_batch=1, optimizer=False)
    device = request.cluster.device
    model = ChosenSeconds(lambda work: 1e-3 if isinstance(work, Operator) else 0.0)
    lowered, timeline = run(request, model=model, grain="operator")
    plan = lowered.plan
    operators = [work for cost in plan.cost.tolist() if isinstance(work := plan.work_of(cost), Operator)]
    assert timeline.step_s == pytest.approx(1e-3 * len(operators))
    curves = curves_of(timeline, request.cluster, hz=1000.0)
    first = [curves.values[name][0, : len(operators)] for name in ("compute", "flops", "memory")]
    assert first[0] == pytest.approx(1.0)
    assert first[1] == pytest.approx([op.flops / device.peak(op.dtype.value) / 1e-3 for op in operators], abs=1e-9)
    assert first[2] == pytest.approx([min(1.0, op.nbytes / device.memory_bandwidth / 1e-3) for op in operators])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_sent_and_received_is_what_the_messages_hold(strategy: str) -> None:
    request = request_of(strategy, global_batch=32)
    timeline, curves = exact(strategy)
    plan = timeline.plan
    counts = plan.work_counts()
    outside = sum(
        sent_bytes(work, request.cluster)[0] * count
        for work, count in zip(plan.works, counts.tolist(), strict=True)
        if isinstance(work, Collective | Transfer)
    )
    assert curves.network.leaves_node == (outside > 0.0)
    if outside:
        assert total(curves, "send") * NICS == pytest.approx(outside, rel=1e-6)
        assert total(curves, "receive") == pytest.approx(total(curves, "send"), rel=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_ranks_have_the_curves_of_the_rank_that_stands_for_them(strategy: str) -> None:
    _, folded = exact(strategy)
    timeline, expanded = exact(strategy, all_ranks=True)
    for rank in range(timeline.plan.mesh.num_ranks):
        for name in CURVES:
            np.testing.assert_allclose(expanded.values[name][rank], folded.values[name][folded.row_of(rank)], atol=1e-9)
    one, other = folded.of_nodes(), expanded.of_nodes()
    for name in CURVES:
        np.testing.assert_allclose(one[name], other[name], atol=1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES[:-1])
def test_segments_draw_as_much_as_their_operators(strategy: str) -> None:
    _, fine = exact(strategy)
    _, coarse = exact(strategy, grain="segment")
    assert total(coarse, "flops") == pytest.approx(total(fine, "flops"), rel=1e-6)
    assert total(coarse, "send") == pytest.approx(total(fine, "send"), rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 400), st.sampled_from(["dp=16", "dp=4,pp=4,num_microbatches=4"]))
def test_sampling_keeps_the_mean(samples_per_step: int, strategy: str) -> None:
    timeline, fine = exact(strategy)
    request = request_of(strategy, global_batch=32)
    sampled = curves_of(timeline, request.cluster, hz=samples_per_step / timeline.step_s)
    whole = sampled.values["memory"].shape[1] // samples_per_step * samples_per_step
    for name in (*RESOURCES, "flops", "host"):
        mean = sampled.values[name][:, :whole].mean(axis=1)
        np.testing.assert_allclose(mean, fine.values[name].mean(axis=1), rtol=1e-6, atol=1e-9)


def test_a_step_that_is_stretched_moves_the_same_bytes_at_a_lower_rate() -> None:
    timeline, plain = exact("dp=16")
    request = request_of("dp=16", global_batch=32)
    longer = curves_of(timeline, request.cluster, hz=None, step_s=2.0 * timeline.step_s)
    assert longer.values["send"] == pytest.approx(plain.values["send"] / 2.0)
    assert longer.values["compute"] == pytest.approx(plain.values["compute"])
    assert longer.period_s == pytest.approx(2.0 * plain.period_s)


def test_hosts_that_move_messages_leave_the_device_idle_meanwhile() -> None:
    request = request_of("dp=2,tp=8", global_batch=32)
    _, timeline = run(request, grain="operator")
    by_kernels = curves_of(timeline, request.cluster, hz=None)
    by_hosts = curves_of(timeline, request.cluster, hz=None, on_device=False)
    assert by_hosts.values["compute"].mean() < by_kernels.values["compute"].mean()
    assert by_hosts.values["send"] == pytest.approx(by_kernels.values["send"])


def test_messages_inside_one_node_count_on_the_links_of_the_device() -> None:
    request = request_of("dp=8", global_batch=32)
    _, timeline = run(request, grain="operator")
    curves = curves_of(timeline, request.cluster, hz=None)
    assert not curves.network.leaves_node
    inside = sum(
        2.0 * work.nbytes * 7 / 8 * count
        for work, count in zip(timeline.plan.works, timeline.plan.work_counts().tolist(), strict=True)
        if isinstance(work, Collective)
    )
    assert total(curves, "send") * request.cluster.intra_node.bandwidth == pytest.approx(inside, rel=1e-6)


@pytest.mark.parametrize("strategy", ["dp=16,servers=2,server_nodes=1", "dp=16,servers=4", "dp=16,servers=1,async"])
def test_workers_push_their_gradients_and_pull_their_weights(strategy: str) -> None:
    nodes = 3 if "server_nodes" in strategy else 2
    made = predict(graph_of(CNN), cluster=f"dgx-a100:{nodes}", strategy=strategy, global_batch=64)
    job = made.servers
    assert job is not None
    timeline = job.timeline(grain="operator")
    curves = curves_of(timeline, made.request.cluster, hz=None, servers=job.setup)
    pieces = sum(piece.nbytes for piece in job.pieces)
    if "server_nodes" in strategy:  # elsewhere, links to the host are full for a while, in both directions at once
        worker = job.setup.workers - 1
        held = curves.values["host"][worker].sum() * curves.period_s
        assert held * made.request.cluster.host_bandwidth == pytest.approx(2.0 * pieces, rel=0.02)
    sent = curves.values["send"].sum() * curves.period_s
    assert sent == pytest.approx(curves.values["receive"].sum() * curves.period_s, rel=0.02)
    assert curves.values["compute"][job.setup.workers :].max() == 0.0  # servers have no device
    assert {scope for scope, _ in map(curves.scope_of, curves.rows)} == {"rank", "server"}


@pytest.mark.parametrize("strategy", [*STRATEGIES, "dp=8,tp=2,num_microbatches=2,zero=3"])
def test_the_twelve_figures_of_every_strategy_are_shares_and_times(strategy: str) -> None:
    made = predict(
        graph_of(GPT), cluster=request_of(strategy).cluster, strategy=strategy, global_batch=32,
        cost_model=AnalyticalCostModel(),
    )  # fmt: skip
    drawn = resources_of(made, hz=2000.0)
    assert list(drawn.uses) == list(RESOURCES)
    for name, use in drawn.uses.items():
        for figure in FIGURES:
            ends = [side[name].figure(figure) for side in (drawn.low, drawn.uses, drawn.high)]
            if figure in use.refused:
                assert ends == [None] * 3
            else:
                assert 0.0 <= told(ends[0]) <= told(ends[1]) <= told(ends[2])
        assert use.burst_amount is None or use.burst_amount <= 1.0 + 1e-9
    for name, value in drawn.curves.values.items():
        assert np.isfinite(value).all()
        assert (value >= 0.0).all()
        assert name == "memory_held" or (value <= 1.0 + 1e-9).all()
    held = drawn.curves.values["memory_held"]
    capacity = made.request.cluster.device.memory_bytes
    assert held.max() == pytest.approx(made.report.peak_memory_bytes / capacity, rel=1e-2)


def test_a_pipeline_pauses_in_its_bubble() -> None:
    made = predict(
        graph_of(GPT), cluster=request_of("pp=4").cluster, strategy="pp=4,num_microbatches=4,schedule=gpipe",
        global_batch=16, cost_model=ChosenSeconds(lambda work: 1e-3 if isinstance(work, Operator) else 0.0),
    )  # fmt: skip
    drawn = resources_of(made, hz=None)
    use = uses_of(drawn.curves, rank=3)["compute"]
    assert use.pattern == "bursts"
    assert use.burst_amount == pytest.approx(1.0, rel=1e-3)
    busy = drawn.curves.values["compute"][3].mean()
    assert busy == pytest.approx(made.report.ranks[3].utilization, rel=0.01)


def test_nodes_of_two_kinds_have_their_own_peaks() -> None:
    made = predict(
        graph_of(GPT), cluster=load_cluster("dgx-a100:1x2+dgx-h100:1x2"), strategy="dp=4", global_batch=32,
        cost_model=AnalyticalCostModel(),
    )  # fmt: skip
    values = resources_of(made).curves.values["flops"].mean(axis=1)
    assert values[0] == values[1] > values[2] == values[3]  # the faster devices wait for the slower


@pytest.mark.parametrize("hz", [0.0, -1.0, 1e9, float("nan")])
def test_impossible_rates_are_refused(hz: float) -> None:
    timeline, _ = exact("dp=1")
    with pytest.raises(RequestError, match="samples per second"):
        curves_of(timeline, request_of("dp=1").cluster, hz=hz)


def test_a_hidden_copy_is_drawn_behind_the_works_that_hide_it() -> None:
    """Copies of activations take less time than the works beside them, so their own tasks take none."""
    request = request_of("dp=8,offload=activations", global_batch=16)
    plan = lower(request, grain="operator").plan
    assert plan.overlaps
    model = ChosenSeconds(lambda work: 1e-3 if isinstance(work, Operator) else 1e-6)
    timeline = simulate(plan, model.estimate(plan.works, request.cluster).seconds)
    curves = curves_of(timeline, request.cluster, hz=None)
    copied = sum(
        work.nbytes * count
        for work, count in zip(plan.works, plan.work_counts().tolist(), strict=True)
        if isinstance(work, HostCopy)
    )
    assert total(curves, "host") * request.cluster.host_bandwidth == pytest.approx(copied, rel=1e-6)
    assert curves.values["host"].max() < 1.0
