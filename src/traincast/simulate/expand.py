"""Expansion: turns a folded plan, with one row per pipeline stage, into a plan with one row per rank.

A forecast simulates ranks that do the same thing once; a trace, or ranks that differ, need all of them. A task of one
rank is copied to every replica. A collective of a folded plan becomes one task per group, which holds the lanes of all
its members and waits for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from traincast.strategy.mesh import Axis, Group, Mesh
from traincast.strategy.plan import NUM_STREAMS, Plan

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Groups:
    """The groups along some axes among the replicas of a stage: members of each group, group of each replica."""

    members: Ints  # [groups, members of a group]
    number: Ints  # [replicas]


def expand(plan: Plan) -> Plan:
    """``plan`` with one row per rank of its mesh; its step time is the same to the last digit."""
    mesh = plan.mesh
    replicas = mesh.num_ranks // mesh.pp
    if replicas == 1:
        return plan
    groups = [_groups(mesh, group.axes) for group in Group]
    copies = np.array([len(g.members) for g in groups])[plan.group]
    base = np.concatenate([[0], np.cumsum(copies)])
    origin = np.repeat(np.arange(plan.num_tasks), copies)

    lane_start, entry, replica = _write_out(plan, groups, base, copies, np.diff(plan.lane_start))
    folded = plan.lanes[entry]
    lanes = (folded // NUM_STREAMS * replicas + replica) * NUM_STREAMS + folded % NUM_STREAMS

    predecessor_start, entry, replica = _write_out(plan, groups, base, copies, np.diff(plan.predecessor_start))
    source = plan.predecessors[entry]
    copy = np.stack([g.number for g in groups])[plan.group[source], replica]
    return replace(
        plan,
        ranks=np.arange(mesh.num_ranks, dtype=np.int64),
        cost=plan.cost[origin],
        lane_start=lane_start,
        lanes=lanes,
        predecessor_start=predecessor_start,
        predecessors=base[source] + copy,
        category=plan.category[origin],
        group=plan.group[origin],
        label=plan.label[origin],
        microbatch=plan.microbatch[origin],
    )


def _groups(mesh: Mesh, axes: tuple[Axis, ...]) -> _Groups:
    replica = np.arange(mesh.num_ranks // mesh.pp)
    first = replica.copy()  # the group's member with coordinate 0 along every axis
    for axis in axes:
        first -= replica // mesh.stride(axis) % mesh.degree(axis) * mesh.stride(axis)
    leaders, number = np.unique(first, return_inverse=True)
    order = np.argsort(number, kind="stable")
    return _Groups(members=order.reshape(len(leaders), -1), number=number.astype(np.int64))


def _write_out(plan: Plan, groups: list[_Groups], base: Ints, copies: Ints, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Expands a ragged column that has ``counts`` entries per folded task.

    Every member of a group adds its own entries to the group's task. Returns the starts of the new column and, for
    each of its entries, the folded entry and the replica that it comes from.
    """
    sizes = np.array([g.members.shape[1] for g in groups])[plan.group]
    start = np.zeros(int(base[-1]) + 1, dtype=np.int64)
    np.cumsum(np.repeat(counts * sizes, copies), out=start[1:])
    entry = np.empty(int(start[-1]), dtype=np.int64)
    replica = np.empty(int(start[-1]), dtype=np.int64)
    task = np.repeat(np.arange(plan.num_tasks), counts)
    within = np.arange(len(task)) - np.repeat(np.cumsum(counts) - counts, counts)
    owner = plan.group[task]
    for number, group in enumerate(groups):
        chosen = np.flatnonzero(owner == number)
        if not len(chosen):
            continue
        many, size = group.members.shape
        # [entries, copies, members]: the position of this entry in each copy
        place = start[base[task[chosen]][:, None] + np.arange(many)] + (within[chosen] * size)[:, None]
        where = (place[:, :, None] + np.arange(size)).ravel()
        entry[where] = np.repeat(chosen, many * size)
        replica[where] = np.tile(group.members.ravel(), len(chosen))
    return start, entry, replica
