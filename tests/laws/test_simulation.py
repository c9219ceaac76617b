"""Laws of every simulation: it is a max-plus system, and its parts add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import OnlyCompute, check_timeline, devices, request_of, run, seconds_of
from traincast.forecast import forecast
from traincast.report.critical_path import critical_tasks
from traincast.simulate import expand, simulate
from traincast.strategy import lower

STRATEGIES = [
    "dp=1",
    "dp=4,zero=1,num_microbatches=2",
    "dp=4,zero=3",
    "tp=4,sp",
    "dp=2,cp=2",
    "pp=4,num_microbatches=8",
    "pp=2,vp=2,num_microbatches=4",
    "dp=2,tp=2,pp=2,num_microbatches=4,zero=1,recompute=full",
]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    strategy=st.sampled_from(STRATEGIES),
    runtime=st.sampled_from(["pytorch", "megatron"]),
    grain=st.sampled_from(["segment", "operator"]),
    seed=st.integers(0, 2**32 - 1),
    share=st.floats(0.0, 1.0),
)
def test_longer_works_never_shorten_a_step(strategy: str, runtime: str, grain: str, seed: int, share: float) -> None:
    request = request_of(strategy, runtime=runtime)
    _, before = run(request, grain=grain)
    seconds = seconds_of(before.plan, request)
    random = np.random.default_rng(seed)
    grown = seconds * np.where(random.random(len(seconds)) < share, 1 + random.exponential(2.0, len(seconds)), 1.0)
    after = simulate(before.plan, grown)
    # At the grain of segments a lead may move, so a host may start earlier; the step's end may not.
    assert after.step_s >= before.step_s * (1 - 1e-12)
    if grain == "operator":
        assert (after.end >= before.end).all()


@settings(deadline=None, derandomize=True, max_examples=30)
@given(strategy=st.sampled_from(STRATEGIES), seed=st.integers(0, 2**32 - 1))
def test_nothing_overlaps_on_a_lane_whatever_the_times(strategy: str, seed: int) -> None:
    request = request_of(strategy)
    lowered, _ = run(request, grain="operator")
    random = np.random.default_rng(seed)
    seconds = random.exponential(1.0, len(lowered.plan.works)) * (random.random(len(lowered.plan.works)) < 0.7)
    check_timeline(simulate(lowered.plan, seconds))
    check_timeline(simulate(expand(lowered.plan), seconds))


@settings(deadline=None, derandomize=True, max_examples=20)
@given(strategy=st.sampled_from(STRATEGIES), factor=st.floats(1e-6, 1e6))
def test_time_has_no_unit(strategy: str, factor: float) -> None:
    request = request_of(strategy)
    lowered, timeline = run(request)
    scaled = simulate(lowered.plan, seconds_of(lowered.plan, request) * factor)
    assert scaled.step_s == pytest.approx(timeline.step_s * factor, rel=1e-9)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(strategy=st.sampled_from(STRATEGIES), seed=st.integers(0, 2**32 - 1))
def test_grains_agree_whatever_the_times(strategy: str, seed: int) -> None:
    """Also where launches rule, where works take nothing, and where neither order is the usual one."""
    request = request_of(strategy)
    fine, coarse = (lower(request, grain=g).plan for g in ("operator", "segment"))
    chosen = np.random.default_rng(seed).exponential(1.0, len(fine.works)) ** 3
    by_work = dict(zip(fine.works, chosen, strict=True))
    slow = simulate(fine, chosen).step_s
    quick = simulate(coarse, np.array([by_work[w] for w in coarse.works])).step_s
    assert quick == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("grain", ["segment", "operator"])
def test_the_critical_path_is_contiguous_and_as_long_as_the_step(strategy: str, grain: str) -> None:
    _, timeline = run(request_of(strategy), grain=grain)
    path = critical_tasks(timeline)
    start, end = timeline.start[path], timeline.end[path]
    assert start[0] == 0.0
    assert end[-1] == timeline.step_s
    assert (start[1:] == end[:-1]).all()
    assert (end - start).sum() == pytest.approx(timeline.step_s, rel=1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("runtime", ["pytorch", "megatron"])
def test_the_parts_of_every_rank_are_not_negative_and_add_up_to_the_step(strategy: str, runtime: str) -> None:
    report = forecast(request_of(strategy, runtime=runtime)).report
    assert len(report.ranks) == request_of(strategy).strategy.pp
    for rank in report.ranks:
        parts = rank.breakdown
        values = (parts.compute_s, parts.exposed_communication_s, parts.bubble_s, parts.optimizer_s, parts.overhead_s)
        assert min(values) >= 0.0
        assert sum(values) == pytest.approx(report.step_s, rel=1e-9)
        assert 0.0 < rank.utilization <= 1.0
    mean = report.compute_s + report.exposed_communication_s + report.bubble_s + report.optimizer_s + report.overhead_s
    assert mean == pytest.approx(report.step_s, rel=1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_both_grains_break_a_step_down_alike(strategy: str) -> None:
    request = request_of(strategy, runtime="megatron")
    coarse, fine = (forecast(request, grain=g).report for g in ("segment", "operator"))
    # Launches and works are interleaved in a segment, so waiting for the host moves; compute does not.
    assert coarse.compute_s == pytest.approx(fine.compute_s, rel=1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_is_no_shorter_than_what_any_lane_does(strategy: str) -> None:
    _, timeline = run(request_of(strategy), grain="operator")
    spans = timeline.spans()
    for row in range(len(timeline.plan.ranks)):
        for stream in np.unique(spans.stream):
            lane = (spans.row == row) & (spans.stream == stream)
            assert (spans.end[lane] - spans.start[lane]).sum() <= timeline.step_s * (1 + 1e-12)


@pytest.mark.parametrize("replicas", [2, 8, 32])
@pytest.mark.parametrize("runtime", ["pytorch", "megatron", "nanotron"])
def test_with_free_communication_data_parallelism_costs_what_one_device_does(replicas: int, runtime: str) -> None:
    one = run(request_of("dp=1,num_microbatches=2", global_batch=4, runtime=runtime), model=OnlyCompute())[1]
    many = request_of(f"dp={replicas},num_microbatches=2", global_batch=4 * replicas, runtime=runtime)
    assert run(many, model=OnlyCompute())[1].step_s == pytest.approx(one.step_s, rel=1e-12)


def test_the_interval_encloses_the_step() -> None:
    for strategy in STRATEGIES:
        report = forecast(request_of(strategy)).report
        assert 0 < report.low_s <= report.step_s <= report.high_s


def test_a_faster_network_never_slows_a_step() -> None:
    from dataclasses import replace

    request = request_of("dp=16,tp=2", global_batch=32)
    assert request.cluster == devices(32)
    fast = replace(request.cluster.inter_node, bandwidth=10 * request.cluster.inter_node.bandwidth)
    faster = replace(request, cluster=replace(request.cluster, inter_node=fast))
    assert run(faster)[1].step_s < run(request)[1].step_s
