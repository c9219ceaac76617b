"""Curves of resource use from what a sampler read: counters at uneven times.

A counter is taken to rise evenly between two readings, so it is known at every moment, and its mean rate in every
period too. A sampler that woke up late makes no peak that way.

A run of the testbed has pauses between its steps, in which nothing trains and all ranks agree on the next start. They
are no part of training and are cut out: a reading within such a pause tells exactly what the counter showed at the end
of the step before it and at the start of the step after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.resources.bursts import RESOURCES, resampled
from traincast.resources.curves import Curves
from traincast.resources.draws import WatchedLinks

Floats = npt.NDArray[np.float64]
Window = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What the counters of a device and its network showed at ``times_s``, which increase.

    ``totals`` has seconds of a device for ``compute``, bytes for ``memory``, ``receive`` and ``send``. ``peaks`` is
    what each can rise in a second at most: devices, and bytes per second. A resource that was not read is in neither.
    """

    times_s: Floats
    totals: Mapping[str, Floats] = field(hash=False)
    peaks: Mapping[str, float] = field(hash=False)

    def within(self, windows: Sequence[Window]) -> Counters:
        """The counters in the time of ``windows`` alone, one after the other from time 0; they must not overlap."""
        knots, inside = _knots(self.times_s, windows)
        return Counters(
            times_s=knots,
            totals={name: _joined(self.times_s, total, windows, inside) for name, total in self.totals.items()},
            peaks=self.peaks,
        )

    def shares(self, *, period_s: float) -> dict[str, Floats]:
        """The use of each resource in every period, as a share of its peak; of those that were not read, zeros."""
        found = {
            name: resampled(self.times_s, total, period_s=period_s) / self.peaks[name]
            for name, total in self.totals.items()
        }
        length = len(next(iter(found.values())))
        return {name: found.get(name, np.zeros(length)) for name in RESOURCES}


def observed(
    ranks: Sequence[Counters],
    *,
    hz: float,
    step_s: float,
    num_ranks: int | None = None,
    windows: Sequence[Window] = (),
) -> Curves:
    """Return the curves of ``ranks`` with ``hz`` samples per second, in the time of ``windows`` or in all of it.

    Counters of a network are those of the rank's node. Ranks from ``num_ranks`` on are parameter servers.
    """
    if any(len(rank.times_s) < 2 for rank in ranks):
        raise RequestError("fewer than two readings of a rank: sample more often, or longer")
    cut = [rank.within(windows) if windows else rank for rank in ranks]
    shares = [rank.shares(period_s=1.0 / hz) for rank in cut]
    length = min(len(next(iter(share.values()))) for share in shares)
    return Curves(
        period_s=1.0 / hz,
        values={name: np.stack([share[name][:length] for share in shares]) for name in RESOURCES},
        ranks=np.arange(len(ranks)),
        num_ranks=num_ranks or len(ranks),
        on_node=np.eye(len(ranks)),
        step_s=step_s,
        network=WatchedLinks(leaves_node=True),
    )


def mean_step(counters: Counters, *, starts_s: Sequence[float], step_s: float, hz: float) -> dict[str, Floats]:
    """The mean use over the steps that start at ``starts_s``, in every period since the start of a step.

    The last period ends with the step, and is shorter.
    """
    edges = np.append(np.arange(0.0, step_s, 1.0 / hz), step_s)
    found = {}
    for name, total in counters.totals.items():
        drawn = np.mean([np.interp(start + edges, counters.times_s, total) for start in starts_s], axis=0)
        found[name] = np.diff(drawn) / np.diff(edges) / counters.peaks[name]
    return found


def _knots(times: Floats, windows: Sequence[Window]) -> tuple[Floats, list[npt.NDArray[np.bool_]]]:
    """The moments at which the cut counters are known, and for each window the readings within it."""
    inside = [(times > start) & (times < end) for start, end in windows]
    offset, knots = 0.0, [np.zeros(1)]
    for (start, end), chosen in zip(windows, inside, strict=True):
        knots.append(times[chosen] - start + offset)
        offset += end - start
        knots.append(np.array([offset]))
    return np.concatenate(knots), inside


def _joined(times: Floats, total: Floats, windows: Sequence[Window], inside: Sequence[npt.NDArray[np.bool_]]) -> Floats:
    """A counter without what it rose between windows; before the first and after the last there is a pause as well."""
    pause_s = min((after - end for (_, end), (after, _) in pairwise(windows)), default=0.0)
    base, parts = 0.0, [np.zeros(1)]
    for number, (start, end) in enumerate(windows):
        at_start = _at(times, total, start, (start - pause_s, start), last=True)
        at_end = _at(times, total, end, (end, end + pause_s), last=False)
        parts += [base + total[inside[number]] - at_start, np.array([base + at_end - at_start])]
        base += at_end - at_start
    return np.maximum.accumulate(np.concatenate(parts))


def _at(times: Floats, total: Floats, moment: float, pause: Window, *, last: bool) -> float:
    """The counter at one end of a pause: its last or first reading within it or, without any, between readings."""
    found = np.flatnonzero((times >= pause[0]) & (times <= pause[1]))
    return float(total[found[-1 if last else 0]] if len(found) else np.interp(moment, times, total))
