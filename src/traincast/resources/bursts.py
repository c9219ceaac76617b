"""Bursts and pauses of one resource: how much a burst draws, how long it lasts, and how long it pauses in between.

The figures are those of Driple (Yang et al., "Prediction of the Resource Consumption of Distributed Deep Learning
Systems", SIGMETRICS 2022): k-means divides the samples into two groups, and the higher group is the bursts. In one
dimension the best division cuts the sorted samples in two, so it is found exactly, without a random start.

A sample between the two means is part of a burst in proportion: with m the mean of the lower group and M that of the
higher one, a sample x is a burst to the share s = min(1, max(0, (x - m) / (M - m))). The time in bursts is the sum of
s, over whole cycles: from one start of a burst to another one. The number of bursts is the sum of all rises there.
The lowest and the highest fifth of s count as 0 and 1 for that, so that ripples are no bursts. If all samples lie at
m or M, these give the mean lengths of the runs of equal samples. Otherwise a period in which a burst ends counts in
part, and so does a dip within a burst: a small change of the samples changes the figures little, whereas a run of
equal labels is cut in two by one sample that falls below the border of the groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

RESOURCES: Final = ("compute", "memory", "receive", "send")
"""Use of the device, use of its memory's bandwidth, network received, network sent."""
Pattern = Literal["idle", "bursts", "busy"]
Samples = npt.NDArray[np.float64]

_UNUSED: Final = 0.01
"""A resource whose highest sample is below this share of its peak is idle."""
_EVEN: Final = 0.75
"""A resource is busy, without bursts, if the lower group draws at least this share of what the higher one draws."""

_RIPPLE: Final = 0.2
"""Rises within this share of the distance between the two means, at its lower and its upper end, are no bursts."""

_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """How one resource is used: amounts as a share of its peak, durations as means over all bursts in seconds.

    An idle resource has no burst: ``burst_s`` is 0, ``idle_s`` the whole time seen. A busy one has no pause:
    ``idle_s`` is 0, ``burst_s`` the whole time seen, ``burst_amount`` the mean over it.
    """

    burst_amount: float
    burst_s: float
    idle_s: float
    pattern: Pattern


def use_of(samples: Samples, *, period_s: float, repeats: bool = False) -> ResourceUse:
    """Returns the bursts of samples taken every ``period_s`` seconds.

    If the samples are one period of something that ``repeats`` (a step), its end continues at its beginning. Otherwise
    the first and the last cycle were cut by the observation, and are left out if others remain.
    """
    whole = len(samples) * period_s
    if not len(samples) or samples.max() < _UNUSED:
        return ResourceUse(
            burst_amount=float(samples.mean()) if len(samples) else 0.0, burst_s=0.0, idle_s=whole, pattern="idle"
        )
    bursting = samples > two_means(samples)
    if bursting.all() or samples[~bursting].mean() >= _EVEN * samples[bursting].mean():
        return ResourceUse(burst_amount=float(samples.mean()), burst_s=whole, idle_s=0.0, pattern="busy")
    low, high = float(samples[~bursting].mean()), float(samples[bursting].mean())
    share = np.clip((samples - low) / (high - low), 0.0, 1.0)
    cycles, count = _cycles(share, bursting, repeats=repeats)
    return ResourceUse(
        burst_amount=float((samples * share).sum() / share.sum()),
        burst_s=float(cycles.sum()) / count * period_s,
        idle_s=float((1.0 - cycles).sum()) / count * period_s,
        pattern="bursts",
    )


def two_means(samples: Samples) -> float:
    """Returns the level that divides samples into the two groups of least variance; higher samples are bursts.

    Equal samples make one group: the level is below all of them.
    """
    ordered = np.sort(samples)
    if ordered[0] == ordered[-1]:
        return float(np.nextafter(ordered[0], -np.inf))
    count = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)
    below, above = sums[:-1], sums[-1] - sums[:-1]
    between = below**2 / count + above**2 / (len(ordered) - count)  # what the variance within the groups lacks
    between[ordered[:-1] == ordered[1:]] = -np.inf  # equal samples stay together
    cut = int(between.argmax())
    return float((ordered[cut] + ordered[cut + 1]) / 2)


def resampled(times_s: Samples, totals: Samples, *, period_s: float) -> Samples:
    """Returns the mean rate of a counter in every period, from readings at uneven times.

    ``totals`` is what the counter showed at ``times_s``: seconds of processor time, or bytes. Between two readings it
    is taken to rise evenly, so a sampler that woke up late makes no peak.
    """
    periods = max(1, int((times_s[-1] - times_s[0]) / period_s + _ROUNDING))
    grid = times_s[0] + period_s * np.arange(periods + 1)
    rates: Samples = np.diff(np.interp(grid, times_s, totals)) / period_s
    return rates


def _cycles(share: Samples, bursting: npt.NDArray[np.bool_], *, repeats: bool) -> tuple[Samples, float]:
    """The shares of whole cycles, and the number of bursts in them.

    A step that repeats is whole. An observation has whole cycles between two starts of bursts or, if it has only one
    start, between two ends; if it has neither, all of it counts as one cycle at least.
    """
    if not repeats:
        edges = np.diff(bursting.astype(np.int64))
        starts, ends = np.flatnonzero(edges > 0) + 1, np.flatnonzero(edges < 0) + 1
        turns = starts if len(starts) >= len(ends) else ends
        if len(turns) < 2:
            return share, max(1.0, float(np.abs(np.diff(_plain(share))).sum()) / 2.0)
        share = share[turns[0] : turns[-1]]
    plain = _plain(share)
    return share, float(np.abs(plain - np.roll(plain, 1)).sum()) / 2.0


def _plain(share: Samples) -> Samples:
    """Shares without ripples: stretched, so that small differences from 0 and 1 vanish."""
    return np.clip((share - _RIPPLE) / (1.0 - 2.0 * _RIPPLE), 0.0, 1.0)
