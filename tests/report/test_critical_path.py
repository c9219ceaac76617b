"""The critical path: which tasks decide, and how they are summed up."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import ChosenSeconds, request_of, run, seconds_of
from traincast import Operator, Timeline
from traincast.graph import OpKind
from traincast.report.critical_path import critical_tasks, summarize
from traincast.simulate import simulate
from traincast.work import Collective, Launch

GRAINS = ["segment", "operator"]


@pytest.mark.parametrize("grain", GRAINS)
def test_what_takes_all_the_time_leads_the_summary(grain: str) -> None:
    slow = ChosenSeconds(lambda w: 1.0 if isinstance(w, Collective) else 1e-6)
    request = request_of("tp=2")
    _, timeline = run(request, model=slow, grain=grain)
    entries = summarize(timeline, critical_tasks(timeline), seconds_of(timeline.plan, request, slow))
    assert entries[0].label.startswith("tp all_reduce")
    assert sum(e.share for e in entries if e.label.startswith("tp ")) > 0.99
    assert [e.seconds for e in entries] == sorted((e.seconds for e in entries), reverse=True)


def test_a_host_that_rules_is_named() -> None:
    slow = ChosenSeconds(lambda w: 1.0 if isinstance(w, Launch) else 1e-9)
    request = request_of("dp=1", between_steps=False)
    _, timeline = run(request, model=slow, grain="operator")
    entries = summarize(timeline, critical_tasks(timeline), seconds_of(timeline.plan, request, slow))
    assert entries[0].label == "host launches"
    assert entries[0].share == pytest.approx(1.0, abs=1e-3)


def test_the_summary_of_a_path_of_operators_adds_up_to_the_step() -> None:
    request = request_of("dp=2,tp=2,pp=2,num_microbatches=4")
    _, timeline = run(request, grain="operator")
    entries = summarize(timeline, critical_tasks(timeline), seconds_of(timeline.plan, request))
    assert sum(e.seconds for e in entries) == pytest.approx(timeline.step_s, rel=1e-9)
    assert sum(e.share for e in entries) == pytest.approx(1.0, rel=1e-9)


def test_a_pipelines_path_crosses_all_stages() -> None:
    only = ChosenSeconds(lambda w: 1.0 if isinstance(w, Operator) and w.kind is OpKind.ACTIVATION else 0.0)
    _, timeline = run(request_of("pp=4,num_microbatches=2"), model=only)
    plan, path = timeline.plan, critical_tasks(timeline)
    rows = plan.lanes[plan.lane_start[path]] // (plan.num_lanes // len(plan.ranks))
    assert set(rows[(timeline.end - timeline.start)[path] > 0].tolist()) == {0, 1, 2, 3}


def test_a_path_may_be_a_single_task() -> None:
    _, timeline = run(request_of("dp=1"), grain="operator")
    instant = simulate(timeline.plan, np.zeros(len(timeline.plan.works)))
    assert len(critical_tasks(instant)) == 1


def test_an_empty_plan_has_no_path() -> None:
    _, timeline = run(request_of("dp=1"))
    from dataclasses import replace

    none = np.zeros(0)
    plan = replace(
        timeline.plan,
        cost=np.zeros(0, np.int32),
        lanes=np.zeros(0, np.int64),
        lane_start=np.zeros(1, np.int64),
        predecessors=np.zeros(0, np.int64),
        predecessor_start=np.zeros(1, np.int64),
    )
    empty = Timeline(plan=plan, start=none, end=none)
    assert empty.step_s == 0.0
    assert critical_tasks(empty).tolist() == []
