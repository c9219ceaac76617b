"""The lower bound on a step: the busiest device computes at its peak rate, or its links are never idle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.estimate.limits import compute_seconds, link_seconds
from traincast.strategy.plan import NUM_STREAMS, Plan
from traincast.strategy.variants import Variants, variants_of
from traincast.work import Work

Floats = npt.NDArray[np.float64]


def floor_of(plan: Plan, cluster: Cluster, variants: Variants | None = None) -> float:
    """Return a lower bound on the step time of a folded ``plan`` on ``cluster``, in seconds.

    Every rank computes the products of its stage, each at the peak rate of its dtype, and sends its messages over links
    that are never idle. If ranks differ (``variants``), each does so on its own device and over its own links.
    """
    if variants is None and cluster.parts:
        variants = variants_of([plan.works], plan.mesh, cluster)
    if variants is None:
        return float(_by_stage(plan, _amounts(plan.works, cluster)).max(initial=0.0))
    entries = [_amounts(works, each) for works, each in zip(variants.works, variants.clusters, strict=True)]
    floors = np.stack([_by_stage(plan, amounts) for amounts in np.concatenate(entries)[variants.entry]])
    stage = np.arange(len(variants.of_rank)) // plan.mesh.stride("pp")
    return float(floors[variants.of_rank, stage].max(initial=0.0))


def _amounts(works: Sequence[Work], cluster: Cluster) -> Floats:
    """Return the least seconds of works on a device, on its links and on the NICs of its node: one column each."""
    return np.column_stack([compute_seconds(works, cluster), link_seconds(works, cluster)])


def _by_stage(plan: Plan, amounts: Floats) -> Floats:
    """Return the floor of a rank of each stage, in seconds; ``amounts`` are those of the works of the plan."""
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
