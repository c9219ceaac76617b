"""A steady step with parameter servers, drawn: rows of workers and servers, lanes, waits, launches, critical path."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from tests.conftest import graph_of
from traincast import AnalyticalCostModel, Conditions, Forecast, Timeline, predict
from traincast.report.critical_path import critical_tasks
from traincast.strategy import NUM_STREAMS, Category, Stream
from traincast.work import HostUpdate, Transfer

GPT = "gpt:layers=3,hidden=256,heads=4,vocab=1000,seq=128"
MIXED = "dgx-a100:1x2+dgx-h100:1x2"
STRATEGIES = pytest.mark.parametrize(
    "strategy",
    ["dp=4,servers=2", "dp=4,servers=3,async", "dp=4,servers=1,micro_batch=1", "dp=2,servers=2,server_nodes=1"],
)


@cache
def made(strategy: str, *, slow: float = 1.0) -> Forecast:
    conditions = Conditions(slow=((1, slow),)) if slow > 1.0 else None
    return predict(
        graph_of(GPT), cluster=MIXED, global_batch=16, strategy=strategy, runtime="pytorch", conditions=conditions,
        cost_model=AnalyticalCostModel(),
    )  # fmt: skip


def spans_on(timeline: Timeline, row: int, stream: Stream) -> list[tuple[float, float]]:
    spans = timeline.spans().on(row, stream)
    return list(zip(spans.start.tolist(), spans.end.tolist(), strict=True))


def covered(timeline: Timeline, row: int, stream: Stream) -> float:
    return sum(end - start for start, end in spans_on(timeline, row, stream))


@pytest.mark.long(but=2)
@STRATEGIES
def test_workers_and_then_servers_have_rows_with_lanes_of_their_own(strategy: str) -> None:
    forecast = made(strategy)
    plan = forecast.detailed().plan
    workers, servers = forecast.request.strategy.dp, forecast.request.strategy.servers
    assert plan.ranks.tolist() == list(range(workers + servers))
    assert [plan.name_of(rank) for rank in (0, workers)] == ["rank 0 (stage 0)", "server 0"]
    used = {(int(lane) // NUM_STREAMS, Stream(int(lane) % NUM_STREAMS)) for lane in plan.lanes}
    for row in range(workers):
        assert {s for r, s in used if r == row} >= {Stream.HOST, Stream.COMPUTE, Stream.PUSH, Stream.PULL, Stream.WAIT}
    for row in range(workers, workers + servers):
        assert {s for r, s in used if r == row} == {Stream.PUSH, Stream.PULL, Stream.UPDATE}


def test_a_synchronous_step_is_drawn_from_forward_to_forward() -> None:
    forecast = made("dp=4,servers=2")
    timeline = forecast.detailed()
    assert timeline.step_s == pytest.approx(forecast.report.step_s, rel=1e-6)
    assert forecast.timeline.step_s == timeline.step_s
    names = [timeline.plan.labels[n] for n in timeline.plan.label]
    for what in ("push", "update", "pull"):
        assert {f"{what} layers.{n}" for n in range(3)} <= set(names)


@STRATEGIES
def test_a_worker_computes_launches_or_waits_at_every_instant(strategy: str) -> None:
    """Compute, waits and what the host makes the device wait for fill the window, and do not overlap."""
    forecast = made(strategy)
    timeline = forecast.timeline
    for row in range(forecast.request.strategy.dp):
        both = sorted(spans_on(timeline, row, Stream.COMPUTE) + spans_on(timeline, row, Stream.WAIT))
        assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(both))
    for rank in forecast.report.ranks:
        if not forecast.request.strategy.asynchronous:
            parts = rank.breakdown
            assert covered(timeline, rank.rank, Stream.COMPUTE) == pytest.approx(parts.compute_s, rel=1e-6)
            assert covered(timeline, rank.rank, Stream.WAIT) == pytest.approx(
                parts.exposed_communication_s + parts.bubble_s, rel=1e-6
            )


@STRATEGIES
def test_single_operators_take_as_long_as_whole_passes(strategy: str) -> None:
    forecast = made(strategy)
    fine, coarse = forecast.detailed(), forecast.timeline
    assert fine.plan.num_tasks > 2 * coarse.plan.num_tasks
    for row in range(forecast.request.strategy.dp):
        whole = covered(coarse, row, Stream.COMPUTE)
        # What the edges of the window cut of a pass may be computing or a gap in it.
        assert covered(fine, row, Stream.COMPUTE) == pytest.approx(whole, rel=0.05)


@STRATEGIES
def test_every_work_is_launched_before_it_starts_and_hosts_do_one_thing_at_a_time(strategy: str) -> None:
    timeline = made(strategy).detailed()
    plan = timeline.plan
    waiter = np.repeat(np.arange(plan.num_tasks), np.diff(plan.predecessor_start))
    launches = plan.category[plan.predecessors] == Category.HOST
    computes = (plan.category == Category.FORWARD) | (plan.category == Category.BACKWARD)
    assert sorted(waiter[launches].tolist()) == np.flatnonzero(computes).tolist()
    assert (timeline.end[plan.predecessors] <= timeline.start[waiter] + 1e-12).all()
    for row in range(len(plan.ranks)):
        host = spans_on(timeline, row, Stream.HOST)
        assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(host))


def test_messages_and_updates_say_their_bytes() -> None:
    forecast = made("dp=4,servers=2")
    plan = forecast.detailed().plan
    pushes = [t for t in range(plan.num_tasks) if plan.labels[plan.label[t]].startswith("push layers.0")]
    works = {plan.work_of(int(plan.cost[task])) for task in pushes}
    assert {type(work) for work in works} == {Transfer}
    assert {work.crosses_nodes for work in works if isinstance(work, Transfer)} == {False, True}
    updates = [plan.work_of(int(plan.cost[t])) for t in np.flatnonzero(plan.category == Category.OPTIMIZER)]
    assert all(isinstance(work, HostUpdate) for work in updates)
    assert {len(plan.lanes[plan.lane_start[t] : plan.lane_start[t + 1]]) for t in pushes} == {2}


def test_waits_name_whom_they_are_for() -> None:
    timeline = made("dp=4,servers=2", slow=3.0).detailed()
    plan = timeline.plan
    waits = {plan.labels[plan.label[task]] for task in np.flatnonzero(plan.category == Category.WAIT)}
    assert any(text.startswith("waits for rank 1 to compute") for text in waits)
    assert any(text.startswith("waits for its pull of") for text in waits)
    assert any(text.startswith("waits for server") for text in waits)
    assert not any("rank 0" in text or "rank 2" in text for text in waits)


@STRATEGIES
@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_the_critical_path_goes_through_the_whole_step_and_never_along_a_wait(strategy: str, slow: float) -> None:
    timeline = made(strategy, slow=slow).timeline
    path = critical_tasks(timeline)
    start, end = timeline.start[path], timeline.end[path]
    assert (end[:-1] <= start[1:] + 1e-12).all()
    assert end[-1] == timeline.step_s
    assert start[0] < 0.05 * timeline.step_s
    assert Category.WAIT not in set(timeline.plan.category[path].tolist())
    assert (end - start).sum() > 0.95 * timeline.step_s


def test_a_timeline_of_few_workers_has_the_slowest_and_all_servers() -> None:
    job = made("dp=4,servers=2", slow=3.0).servers
    assert job is not None
    assert job.slowest == 1
    assert job.timeline(most=1).plan.ranks.tolist() == [0, 1, 4, 5]
    assert job.timeline(most=1).step_s == job.timeline().step_s
