"""The lower bound on a step: the busiest device computes at its peak rate, or its links are never idle."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.estimate.limits import compute_seconds, link_seconds
from traincast.strategy.plan import NUM_STREAMS, Plan

Floats = npt.NDArray[np.float64]


def floor_of(plan: Plan, cluster: Cluster) -> float:
    """Return a lower bound on the step time of a folded ``plan`` on ``cluster``, in seconds.

    Every rank computes the products of its stage, each at the peak rate of its dtype, and sends its messages over links
    that are never idle. If nodes differ, each rank does so on its own device.
    """
    kinds = cluster.kinds()
    floors = np.stack([_by_stage(plan, kind) for kind in kinds])
    if len(kinds) == 1:
        return float(floors.max(initial=0.0))
    number = np.array(cluster.kind_of_device())
    stage = np.arange(len(number)) // plan.mesh.stride("pp")
    return float(floors[number, stage].max(initial=0.0))


def _by_stage(plan: Plan, cluster: Cluster) -> Floats:
    """Return the floor of a rank of each stage, in seconds."""
    amounts = np.column_stack([compute_seconds(plan.works, cluster), link_seconds(plan.works, cluster)])
    behind = [amounts[o.work] * [0.0, 1.0, 1.0] if o.waited else np.zeros(3) for o in plan.overlaps]
    leaves = np.concatenate([amounts, np.array(behind).reshape(-1, 3)])
    table = np.zeros((plan.num_costs, 3))
    table[: len(leaves)] = leaves
    for number, segment in enumerate(plan.segments):
        table[len(leaves) + 3 * number + 1] = leaves[segment.works].sum(axis=0)
    row = plan.lanes[plan.lane_start[:-1]] // NUM_STREAMS
    spent = [np.bincount(row, weights=column[plan.cost], minlength=len(plan.ranks)) for column in table.T]
    floors: Floats = np.max(spent, axis=0)
    return floors
