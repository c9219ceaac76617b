"""Unfolding: a plan of one row per pipeline stage, written out for every rank.

Ranks that do the same thing are simulated once; a trace, or ranks that differ, need all of them. A task
of one rank is copied to every replica; a collective of a folded plan becomes one task per group, which
holds the lanes of all its members and waits for all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.strategy.mesh import Axis, Mesh
from traincast.strategy.plan import NUM_STREAMS, Group, Plan

Ints = npt.NDArray[np.int64]

_AXES: Final[dict[Group, tuple[Axis, ...]]] = {
    Group.RANK: (),
    Group.TENSOR: ("tp",),
    Group.CONTEXT: ("cp",),
    Group.DATA: ("dp", "cp"),
    Group.ALL: ("tp", "cp", "dp"),
}


def expand(plan: Plan) -> Plan:
    """``plan`` with one row per rank of its mesh; its step time is the same to the last digit."""
    mesh = plan.mesh
    replicas = mesh.num_ranks // mesh.pp
    if replicas == 1:
        return plan
    group_of = {int(g): _groups(mesh, axes) for g, axes in _AXES.items()}  # replica -> group number
    copies = np.array([int(group_of[int(g)].max()) + 1 if g in group_of else 1 for g in range(len(Group))])
    count = copies[plan.group]  # copies of each folded task
    base = np.concatenate([[0], np.cumsum(count)])
    total = int(base[-1])
    origin = np.repeat(np.arange(plan.num_tasks), count)

    lane_owner, lane_value = _pairs(
        plan, group_of, base, np.repeat(np.arange(plan.num_tasks), np.diff(plan.lane_start)), replicas
    )
    rows = plan.lanes // NUM_STREAMS
    lanes = (rows[lane_value[0]] * replicas + lane_value[1]) * NUM_STREAMS + plan.lanes[lane_value[0]] % NUM_STREAMS
    lane_order = np.argsort(lane_owner, kind="stable")

    target = np.repeat(np.arange(plan.num_tasks), np.diff(plan.predecessor_start))
    owner, (edge, replica) = _pairs(plan, group_of, base, target, replicas)
    source = plan.predecessors[edge]
    source_copy = np.zeros(len(source), dtype=np.int64)
    for g, numbers in group_of.items():
        chosen = plan.group[source] == g
        source_copy[chosen] = numbers[replica[chosen]]
    predecessor = base[source] + source_copy
    order = np.argsort(owner, kind="stable")
    return replace(
        plan,
        ranks=np.arange(mesh.num_ranks, dtype=np.int64),
        cost=plan.cost[origin],
        lane_start=_starts(lane_owner, total),
        lanes=lanes[lane_order],
        predecessor_start=_starts(owner, total),
        predecessors=predecessor[order],
        category=plan.category[origin],
        group=plan.group[origin],
        label=plan.label[origin],
        microbatch=plan.microbatch[origin],
    )


def _groups(mesh: Mesh, axes: tuple[Axis, ...]) -> Ints:
    """For every replica of a stage, the number of the group along ``axes`` that it belongs to."""
    replica = np.arange(mesh.num_ranks // mesh.pp)
    fixed = replica.copy()
    for axis in axes:
        fixed -= replica // mesh.stride(axis) % mesh.degree(axis) * mesh.stride(axis)
    numbers: Ints = np.unique(fixed, return_inverse=True)[1].astype(np.int64)
    return numbers


def _pairs(
    plan: Plan, group_of: dict[int, Ints], base: Ints, task: Ints, replicas: int
) -> tuple[Ints, tuple[Ints, Ints]]:
    """Every (entry, replica) pair of a ragged column, with the expanded task that owns it.

    ``task`` is the folded task of each entry. Each replica contributes its own entry to the task of
    its group, so a group's task has the lanes and predecessors of all its members.
    """
    entry = np.repeat(np.arange(len(task)), replicas)
    replica = np.tile(np.arange(replicas), len(task))
    owner_task = task[entry]
    groups = plan.group[owner_task]
    owner = np.empty(len(entry), dtype=np.int64)
    for g, numbers in group_of.items():
        chosen = groups == g
        owner[chosen] = base[owner_task[chosen]] + numbers[replica[chosen]]
    return owner, (entry, replica)


def _starts(owner: Ints, total: int) -> Ints:
    starts = np.zeros(total + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=total), out=starts[1:])
    return starts
