"""Bursts and pauses of one resource: how much a burst draws, how long it lasts, and how long it pauses in between.

The figures are those of Driple (Yang et al., "Prediction of the Resource Consumption of Distributed Deep Learning
Systems", SIGMETRICS 2022): k-means divides the samples into two groups, and the higher group is the bursts. In one
dimension the best division cuts the sorted samples in two, so it is found exactly, without a random start.

With m the mean of the lower group and M that of the higher one, a sample x is part of a burst to the share
s = min(1, max(0, (x - m) / (M - m))). From there:

* **A least pause.** A dip of one sample is no pause: its share is raised to the lower one of its two neighbours, so
  that a pause counts in part from one sample on, and in full from two. If pauses then take less than a twentieth of
  the time, the resource is *busy*.
* **Number of bursts**: the sum of all rises of s over whole cycles, from one start of a burst to another. The lowest
  and the highest fifth of s count as 0 and 1, so that ripples are no bursts. A small change of the samples changes
  this number little, whereas a run of equal labels is cut in two by one sample that falls below a border.
* **Amounts by area.** A sample at the edge of a burst is only partly burst. The amount A is therefore the mean of
  samples whose neighbours are burst as well (each weighted with the least share of the three), and the level B of
  pauses is found likewise. The share of the time that bursts take is (mean - B) / (A - B): it keeps the area under
  the samples, which sampling keeps too, wherever samples fall.
* **What the samples cannot carry is refused.** Bursts of fewer than 2.5 samples need not have one sample that is
  burst alone: their amount and length are not known, and neither is the length of such short pauses. If more than a
  third of all bursts end in pauses of about two samples, their number depends on where the samples fall, and so do
  both durations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.estimate.resource_use import ResourceUse
from traincast.units import format_seconds

Samples = npt.NDArray[np.float64]

_UNUSED: Final = 0.01
"""A resource whose highest sample is below this share of its peak is idle."""
_EVEN: Final = 0.75
"""A resource is busy, without bursts, if the lower group draws at least this share of what the higher one draws."""
_BUSY: Final = 0.95
"""A resource is busy if bursts take at least this share of the time."""
_DIP: Final = 1
"""Samples of a dip that is no pause."""
_RIPPLE: Final = 0.2
"""Rises within this share of the distance between the two means, at its lower and its upper end, are no bursts."""
_CARRIED: Final = 2.5
"""If bursts, or pauses, last fewer samples than this on average, their length is not known."""
_DISTINCT: Final = 2.0 / 3.0
"""Share of the bursts that must remain if dips were one sample longer; otherwise their number is not known."""
_INSIDE: Final = 0.25
"""Samples inside each burst, or pause, from which its level is known; with fewer, the mean of its group stands in."""

_ROUNDING: Final = 1e-6


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
    busy = ResourceUse(burst_amount=float(samples.mean()), burst_s=whole, idle_s=0.0, pattern="busy")
    bursting = samples > two_means(samples)
    if bursting.all() or samples[~bursting].mean() >= _EVEN * samples[bursting].mean():
        return busy
    low, high = float(samples[~bursting].mean()), float(samples[bursting].mean())
    raw = np.clip((samples - low) / (high - low), 0.0, 1.0)
    share = _filled(raw, _DIP, repeats=repeats)
    if _without_ripples(share).mean() >= _BUSY:
        return busy
    cycles = _Cycles.of(share, repeats=repeats)
    amount = _level(samples, share, cycles, high, repeats=repeats)
    base = _level(samples, 1.0 - share, cycles, low, repeats=repeats)
    if amount <= base:
        amount, base = high, low
    seen, count = samples[cycles.part], cycles.count(share)
    bursts = float(np.clip((seen.mean() - base) / (amount - base), 0.0, 1.0))
    cycle_s = len(seen) * period_s / count
    found = {"burst_amount": amount, "burst_s": bursts * cycle_s, "idle_s": (1.0 - bursts) * cycle_s}
    distinct = cycles.count(_filled(raw, _DIP + 1, repeats=repeats)) >= _DISTINCT * count
    refused = _refused(found["burst_s"], found["idle_s"], period_s, distinct=distinct)
    told = {name: None if name in refused else value for name, value in found.items()}
    return ResourceUse(**told, pattern="bursts", refused=refused)


def _refused(burst_s: float, idle_s: float, period_s: float, *, distinct: bool) -> dict[str, str]:
    """The figures that samples taken every ``period_s`` seconds cannot carry, each with the reason."""
    needed = _CARRIED * period_s
    refused: dict[str, str] = {}
    if not distinct:
        reason = (
            f"many pauses last about two samples of {format_seconds(period_s)}: how many bursts there are depends on "
            "where samples fall; sample more often"
        )
        refused |= {"burst_s": reason, "idle_s": reason}
    for length_s, what, names in ((idle_s, "pauses", ("idle_s",)), (burst_s, "bursts", ("burst_amount", "burst_s"))):
        if length_s < needed:
            more = f": take {math.ceil(_CARRIED / length_s)} samples per second or more" if length_s > 0.0 else ""
            reason = f"{what} last less than {_CARRIED:g} samples of {format_seconds(period_s)}{more}"
            refused |= dict.fromkeys(names, reason)
    return refused


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
    between = below**2 / count + above**2 / (len(ordered) - count)  # largest where groups vary least
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cycles:
    """The ``part`` of the samples that consists of whole cycles; ``turn`` is false if there is no whole cycle.

    A step that repeats is whole. An observation has whole cycles between two starts of bursts or, if it has only one
    start, between two ends. If it has neither, all of it counts as at least one cycle.
    """

    part: slice
    turn: bool

    @classmethod
    def of(cls, share: Samples, *, repeats: bool) -> _Cycles:
        if repeats:
            return cls(part=slice(None), turn=True)
        edges = np.diff((share > 0.5).astype(np.int64))
        starts, ends = np.flatnonzero(edges > 0) + 1, np.flatnonzero(edges < 0) + 1
        turns = starts if len(starts) >= len(ends) else ends
        if len(turns) < 2:
            return cls(part=slice(None), turn=False)
        return cls(part=slice(int(turns[0]), int(turns[-1])), turn=True)

    def count(self, share: Samples) -> float:
        """The number of bursts in them."""
        even = _without_ripples(share[self.part])
        if self.turn:
            return float(np.abs(even - np.roll(even, 1)).sum()) / 2.0
        return max(1.0, float(np.abs(np.diff(even)).sum()) / 2.0)


def _without_ripples(share: Samples) -> Samples:
    """Shares without ripples: stretched, so that small differences from 0 and 1 vanish."""
    return np.clip((share - _RIPPLE) / (1.0 - 2.0 * _RIPPLE), 0.0, 1.0)


def _filled(share: Samples, dip: int, *, repeats: bool) -> Samples:
    """Shares without dips of at most ``dip`` samples: each is raised to the lower one of its two sides."""
    highest = np.max([_moved(share, by, repeats=repeats) for by in range(dip + 1)], axis=0)
    filled: Samples = np.min([_moved(highest, -by, repeats=repeats) for by in range(dip + 1)], axis=0)
    return filled


def _level(samples: Samples, share: Samples, cycles: _Cycles, otherwise: float, *, repeats: bool) -> float:
    """The mean of the samples that have the ``share`` together with both their neighbours."""
    inside = np.min([_moved(share, by, repeats=repeats) for by in (-1, 0, 1)], axis=0)[cycles.part]
    if inside.sum() <= _INSIDE * cycles.count(share):
        return otherwise
    return float((samples[cycles.part] * inside).sum() / inside.sum())


def _moved(share: Samples, by: int, *, repeats: bool) -> Samples:
    """Shares moved ``by`` samples later; if they do not repeat, the first or the last share fills the gap."""
    if repeats:
        return np.roll(share, by)
    return share[np.clip(np.arange(len(share)) - by, 0, len(share) - 1)]
