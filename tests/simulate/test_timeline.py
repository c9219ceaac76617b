"""Timelines: segments worked out by hand, spans, and intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import AnalyticalCostModel, request_of, run, seconds_of
from traincast.simulate import busiest_s, interval, simulate
from traincast.strategy import Segment, Stream


def by_hand(launches: list[float], works: list[float]) -> tuple[float, float]:
    """When the host and the device end if each work needs its launch and the work before it."""
    host = device = 0.0
    for launch, work in zip(launches, works, strict=True):
        host += launch
        device = max(host, device) + work
    return host, device


@settings(deadline=None, derandomize=True, max_examples=100)
@given(pairs=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=20))
def test_a_segment_ends_when_its_works_would(pairs: list[tuple[float, float]]) -> None:
    launches, works = [p[0] for p in pairs], [p[1] for p in pairs]
    count = len(pairs)
    segment = Segment(launches=np.arange(count), works=np.arange(count, 2 * count), labels=np.zeros(count, np.int64))
    lead, device, tail = segment.costs(np.array(launches + works))
    host_end, device_end = by_hand(launches, works)
    assert lead + device == pytest.approx(device_end, rel=1e-9, abs=1e-9)
    assert lead + tail == pytest.approx(max(host_end, lead), rel=1e-9, abs=1e-9)
    assert device == pytest.approx(sum(works), rel=1e-9, abs=1e-12)
    assert min(lead, device, tail) >= 0.0


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    pairs=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=10),
    host=st.floats(0, 50),
    device=st.floats(0, 50),
)
def test_a_segment_that_starts_late_on_either_side_still_ends_when_its_works_would(
    pairs: list[tuple[float, float]], host: float, device: float
) -> None:
    count = len(pairs)
    launches, works = [p[0] for p in pairs], [p[1] for p in pairs]
    segment = Segment(launches=np.arange(count), works=np.arange(count, 2 * count), labels=np.zeros(count, np.int64))
    lead, total, _ = segment.costs(np.array(launches + works))
    at_host, at_device = host, device
    for launch, work in pairs:
        at_host += launch
        at_device = max(at_host, at_device) + work
    assert max(host + lead, device) + total == pytest.approx(at_device, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("strategy", ["dp=4,num_microbatches=2", "pp=4,num_microbatches=8", "dp=2,tp=2,pp=2,zero=3"])
def test_no_step_is_shorter_than_its_busiest_lane(strategy: str) -> None:
    request = request_of(strategy, global_batch=16)
    lowered, timeline = run(request)
    spans = timeline.spans()
    lanes = [
        (spans.end - spans.start)[(spans.row == row) & (spans.stream == stream)].sum()
        for row in set(spans.row.tolist())
        for stream in Stream
    ]
    found = busiest_s(lowered.plan, seconds_of(lowered.plan, request))
    assert found == pytest.approx(max(lanes), rel=1e-12)
    assert 0.0 < found <= timeline.step_s * (1.0 + 1e-12)


def test_spans_have_one_row_per_task_and_lane() -> None:
    _, timeline = run(request_of("tp=2"), grain="operator")
    spans = timeline.spans()
    assert len(spans.task) == len(timeline.plan.lanes)
    counts = np.bincount(spans.task, minlength=timeline.plan.num_tasks)
    assert (counts == np.diff(timeline.plan.lane_start)).all()
    # A tensor-parallel collective holds compute and the communication stream.
    assert set(counts.tolist()) == {1, 2}


def test_the_spans_of_a_lane_come_in_order_of_time() -> None:
    _, timeline = run(request_of("pp=2,num_microbatches=4"))
    for row in range(2):
        for stream in Stream:
            lane = timeline.spans().on(row, stream)
            assert (lane.row == row).all()
            assert (lane.stream == stream).all()
            assert (np.diff(lane.start) >= 0).all()


def test_an_interval_is_the_step_at_both_ends_of_all_works() -> None:
    request = request_of("dp=4,zero=1")
    lowered, timeline = run(request)
    estimates = AnalyticalCostModel().estimate(lowered.plan.works, request.cluster)
    sure = replace(estimates, low=estimates.seconds, high=estimates.seconds)
    assert interval(lowered.plan, sure) == (timeline.step_s, timeline.step_s)
    wide = replace(estimates, low=estimates.seconds / 2, high=estimates.seconds * 3)
    assert interval(lowered.plan, wide) == pytest.approx((timeline.step_s / 2, timeline.step_s * 3), rel=1e-9)


def test_a_simulation_does_not_change_its_plan() -> None:
    request = request_of("dp=2,pp=2,num_microbatches=2")
    lowered, first = run(request)
    again = simulate(lowered.plan, seconds_of(lowered.plan, request))
    assert (first.start == again.start).all()
    assert (first.end == again.end).all()
