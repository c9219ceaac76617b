"""Estimates for ranks that differ: each rank has the times of its own device, its own links and its own batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.estimate import Estimates
from traincast.graph import Operator
from traincast.report.assemble import bundle_uses
from traincast.report.report import BundleUse
from traincast.simulate.conditions import crossing_nodes
from traincast.strategy import Lowered, Plan
from traincast.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatesByRank:
    """Seconds of works, [variants of ranks, works]; whether each leaves its node; and the variant of each rank.

    ``bundles`` is the mean use of each bundle that the user named, over all ranks.
    """

    seconds: npt.NDArray[np.float64]
    crossing: npt.NDArray[np.bool_]
    of_rank: npt.NDArray[np.int64]
    bundles: tuple[BundleUse, ...]

    def computing_s(self, plan: Plan) -> npt.NDArray[np.float64]:
        """Return the seconds of all operators of ``plan`` on each rank, for a comparison of ranks."""
        computes = np.array([isinstance(work, Operator) for work in plan.works], dtype=bool)
        seconds = self.seconds[:, computes] @ plan.work_counts()[computes]
        return np.asarray(seconds[self.of_rank])


def estimates_by_rank(
    lowered: Lowered, estimates: Estimates, estimate: Callable[[Sequence[Work], Cluster], Estimates]
) -> EstimatesByRank:
    """Return the estimates of every variant of ranks; ``estimates`` are those of all ranks if they do not differ."""
    plan, variants = lowered.plan, lowered.variants
    if variants is None:
        return EstimatesByRank(
            seconds=estimates.seconds[None],
            crossing=crossing_nodes(plan.works)[None],
            of_rank=np.zeros(plan.mesh.num_ranks, dtype=np.int64),
            bundles=bundle_uses(plan, estimates),
        )
    found = [estimate(works, cluster) for works, cluster in zip(variants.works, variants.clusters, strict=True)]
    seconds = np.concatenate([each.seconds for each in found])[variants.entry]
    crossing = crossing_nodes([work for works in variants.works for work in works])
    numbers = [each.bundle for each in found if each.bundle is not None]
    bundle = np.concatenate(numbers)[variants.entry] if numbers else [None] * len(seconds)
    uses = [
        bundle_uses(plan, replace(estimates, seconds=own, bundle=of)) for own, of in zip(seconds, bundle, strict=True)
    ]
    return EstimatesByRank(
        seconds=seconds,
        crossing=crossing[variants.entry],
        of_rank=variants.of_rank,
        bundles=_mean_uses(uses, variants.of_rank.tolist()),
    )


def _mean_uses(uses: Sequence[Sequence[BundleUse]], variant_of: Sequence[int]) -> tuple[BundleUse, ...]:
    """Return the mean use of each bundle over ranks, given its use by each variant and the variant of each rank."""
    weights = [variant_of.count(number) / len(variant_of) for number in range(len(uses))]

    def mean(of: Sequence[BundleUse], name: str) -> float:
        return sum(weight * float(getattr(use, name)) for weight, use in zip(weights, of, strict=True))

    return tuple(
        replace(of[0], **{name: mean(of, name) for name in ("covered", "operators", "collectives")})
        for of in zip(*uses, strict=True)
    )
