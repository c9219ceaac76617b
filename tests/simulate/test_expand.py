"""Plans written out for every rank: as many tasks as there are ranks or groups, on the right lanes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import check_timeline, request_of, run, seconds_of
from traincast.simulate import expand, simulate
from traincast.strategy import NUM_STREAMS, Group, lower


@pytest.mark.parametrize(
    "strategy", ["dp=4", "tp=4,sp", "dp=2,tp=2,pp=2,num_microbatches=2", "dp=2,cp=2,tp=2", "dp=2,cp=2,zero=3"]
)
def test_each_task_is_copied_once_per_rank_or_group(strategy: str) -> None:
    request = request_of(strategy)
    s = request.strategy
    folded = lower(request, grain="operator").plan
    expanded = expand(folded)
    copies = {
        Group.RANK: s.dp * s.cp * s.tp,
        Group.TENSOR: s.dp * s.cp,
        Group.CONTEXT: s.dp * s.tp,
        Group.DATA: s.tp,
    }
    assert expanded.num_tasks == sum(copies[Group(int(g))] for g in folded.group)
    assert expanded.num_lanes == s.num_ranks * NUM_STREAMS
    assert expanded.works == folded.works


def test_a_groups_task_holds_the_lanes_of_its_members_and_of_no_one_else() -> None:
    request = request_of("dp=2,tp=4")
    expanded = expand(lower(request, grain="operator").plan)
    mesh = expanded.mesh
    for task in np.flatnonzero(expanded.group == Group.TENSOR):
        lanes = expanded.lanes[expanded.lane_start[task] : expanded.lane_start[task + 1]]
        ranks = np.unique(lanes // NUM_STREAMS)
        assert ranks.tolist() == mesh.group(int(ranks[0]), "tp").tolist()
    for task in np.flatnonzero(expanded.group == Group.DATA):
        lanes = expanded.lanes[expanded.lane_start[task] : expanded.lane_start[task + 1]]
        ranks = np.unique(lanes // NUM_STREAMS)
        assert ranks.tolist() == mesh.group(int(ranks[0]), "dp", "cp").tolist()


def test_what_a_rank_does_is_what_its_stage_does() -> None:
    request = request_of("dp=2,tp=2,pp=2,num_microbatches=2")
    _, folded = run(request, grain="operator")
    _, expanded = run(request, grain="operator", all_ranks=True)
    mesh, one, all_ = folded.plan.mesh, folded.spans(), expanded.spans()
    for rank in range(mesh.num_ranks):
        row = mesh.coordinate(rank, "pp")
        for stream in range(NUM_STREAMS):
            wanted = one.end[(one.row == row) & (one.stream == stream)]
            found = all_.end[(all_.row == rank) & (all_.stream == stream)]
            assert found.tolist() == wanted.tolist()


def test_a_plan_without_replicas_is_itself() -> None:
    plan = lower(request_of("pp=4,num_microbatches=4")).plan
    assert expand(plan) is plan


def test_predecessors_stay_before_their_tasks() -> None:
    expanded = expand(lower(request_of("dp=2,cp=2,tp=2,zero=1"), grain="operator").plan)
    waiting = np.repeat(np.arange(expanded.num_tasks), np.diff(expanded.predecessor_start))
    assert (expanded.predecessors < waiting).all()


def test_one_slow_rank_holds_up_its_replicas() -> None:
    """What folding cannot say: with one task of one rank longer, all wait at the next collective."""
    request = request_of("dp=4", runtime="nanotron")
    plan = expand(lower(request, grain="operator").plan)
    seconds = seconds_of(plan, request)
    usual = simulate(plan, seconds)
    rank_of = plan.lanes[plan.lane_start[:-1]] // NUM_STREAMS
    slowed = int(np.flatnonzero((plan.group == Group.RANK) & (rank_of == 2))[5])
    # One more work, like the slowed task's but longer: only that task has it.
    cost = plan.cost.copy()
    cost[slowed] = len(plan.works)
    changed = replace(plan, works=(*plan.works, plan.works[plan.cost[slowed]]), cost=cost)
    after = simulate(changed, np.append(seconds, seconds[plan.cost[slowed]] + 1.0))
    check_timeline(after)
    assert usual.step_s < 0.1
    for rank in range(4):
        mine = (plan.group == Group.RANK) & (rank_of == rank)
        assert after.end[mine].max() > 1.0
