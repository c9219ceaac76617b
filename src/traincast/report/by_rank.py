"""Ranks that differ: the times of each on its own device, links and batch, and shares of the batch that suit them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.estimate import Estimates
from traincast.graph import Operator
from traincast.report.assemble import bundle_uses
from traincast.report.report import BundleUse, Report
from traincast.simulate.conditions import crossing_nodes
from traincast.strategy import Lowered, Plan, Request
from traincast.strategy.mesh import Mesh
from traincast.strategy.uneven import balanced_shares
from traincast.units import format_seconds
from traincast.work import Work

_WORTH: Final = 0.99
"""Uneven shares are proposed if they shorten the step at least to this share."""


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


def advice_of(
    request: Request,
    mesh: Mesh,
    step_s: float,
    computing_s: npt.NDArray[np.float64],
    forecast: Callable[[Request], Report],
) -> tuple[str, ...]:
    """Return a line with shares of the batch that shorten the step, if replicas differ in speed.

    A step takes ``step_s``. ``computing_s`` has the seconds that each rank computes. ``forecast``
    returns the report of a request with other shares.
    """
    strategy = request.strategy
    if not request.cluster.parts:
        return ()
    if strategy.dp == 1 or strategy.ep > 1 or strategy.shares:
        return ()
    shares = balanced_shares(strategy, mesh, request.global_batch, computing_s)
    if not shares:
        return ()
    balanced = forecast(replace(request, strategy=replace(strategy, shares=shares)))
    if not balanced.fits or balanced.step_s > _WORTH * step_s:
        return ()
    text, now, would = ":".join(map(str, shares)), *map(format_seconds, (step_s, balanced.step_s))
    return (f"replicas differ in speed: with shares={text}, a step would take {would} instead of {now}",)
