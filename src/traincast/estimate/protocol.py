"""How long one work takes: the protocol that every cost model follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.work import Work

SOURCES: Final = ("measured", "learned", "analytical", "carried")
"""Where a time comes from; ``carried``: from a measured operator of another size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Seconds of works, in their order: the expected time, a 90 % interval, and where each comes from.

    ``source`` indexes :data:`SOURCES`. ``warnings`` are sentences for the user, without repeats. On a
    calibrated cluster, ``uncalibrated`` are the seconds before calibration, ``stalled`` those in its slow mode.
    ``bundles`` are those that a user named, and ``bundle`` the number of the one that each time is from, or −1.
    ``unmeasured`` marks operators that were never measured on this device or its architecture: their estimates
    are likely to err together. ``slowed`` says how many times as long each work takes because of the power limit of its
    device; times include it.
    """

    seconds: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    source: npt.NDArray[np.int8]
    warnings: tuple[str, ...] = ()
    uncalibrated: npt.NDArray[np.float64] | None = None
    stalled: npt.NDArray[np.float64] | None = None
    bundle: npt.NDArray[np.int16] | None = None
    bundles: tuple[str, ...] = ()
    unmeasured: npt.NDArray[np.bool_] | None = None
    slowed: npt.NDArray[np.float64] | None = None


@runtime_checkable
class CostModel(Protocol):
    """Estimates the time of works on a cluster, all of a plan in one call.

    Called by the simulation with the *distinct* works of a plan. A cost model has no state that a
    call changes: the same works on the same cluster give the same estimates. Times of products are those at full clock,
    unless their source is ``measured`` or ``carried``: :mod:`traincast.estimate.power` applies the power limit.
    """

    def estimate(self, works: Sequence[Work], cluster: Cluster) -> Estimates:
        """Seconds, interval and source of every work, in order; never NaN, never negative."""
        ...


@runtime_checkable
class MeasuredCostModel(CostModel, Protocol):
    """A cost model of works that were measured on the cluster itself; another one estimates what was not measured."""

    def on(self, cluster: Cluster) -> Cluster:
        """Return ``cluster`` as the measurements describe it; refuse one that they are not of."""
        ...

    def with_fallback(self, change: Callable[[CostModel], CostModel]) -> CostModel:
        """Return the same measurements over ``change`` of what estimates the rest."""
        ...
