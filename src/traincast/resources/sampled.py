"""Curves of resource use, and the twelve figures, from what a sampler read of a monitored command or of a testbed run.

A counter is taken to rise evenly between two readings, so it is known at every moment, and its mean rate in every
period too. A sampler that woke up late makes no peak that way.

A run of the testbed has pauses between its steps, in which nothing trains and all ranks agree on the next start. They
are no part of training and are cut out: a reading within such a pause tells exactly what the counter showed at the end
of the step before it and at the start of the step after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.errors import FileFormatError, RequestError
from traincast.estimate.resource_use import RESOURCES, ResourceUse
from traincast.resources.bursts import resampled
from traincast.resources.curves import Curves, uses_of
from traincast.resources.draws import WatchedLinks
from traincast.tables import read_arrow
from traincast.units import format_bytes

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


_COLUMNS: Final = {
    "compute": "busy_s",
    "memory": "memory_bytes",
    "receive": "received_bytes",
    "send": "sent_bytes",
}
_PROCESSOR: Final = "processor_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeaks:
    """The peaks of a rank: bytes per second of its device's memory and of its node's link.

    ``memory`` is ``None`` for a processor that really computes, whose memory traffic nobody counts: it has ``cores``
    instead. ``link`` is ``None`` on loopback; the highest rate seen stands for it.
    """

    memory: float | None
    link: float | None
    cores: int = 1


def read_counters(path: Path, peaks: Sequence[RankPeaks]) -> list[Counters]:
    """Return the counters of every rank in the table ``path``, which has one row for each reading of a rank."""
    table = read_arrow(path, needs=("rank", "time_s", _PROCESSOR, *_COLUMNS.values()))
    columns = {name: np.asarray(table.column(name).to_numpy(), dtype=np.float64) for name in table.column_names}
    found = []
    for rank, peak in enumerate(peaks):
        own = np.flatnonzero(columns["rank"] == rank)
        if len(own) < 2:
            raise FileFormatError(f"{path} has {len(own)} readings of rank {rank}: expected two or more")
        own = own[np.argsort(columns["time_s"][own], kind="stable")]
        found.append(_counters({name: column[own] for name, column in columns.items()}, peak))
    return found


def _counters(columns: dict[str, Floats], peak: RankPeaks) -> Counters:
    times = columns["time_s"]
    names = [name for name in RESOURCES if name != "memory" or peak.memory is not None]
    totals = {name: columns[_COLUMNS[name]] for name in names}
    if peak.memory is None:
        totals["compute"] = columns[_PROCESSOR]
    peaks = {"compute": 1.0 if peak.memory is not None else float(peak.cores), "memory": peak.memory or 1.0}
    for name in ("receive", "send"):
        peaks[name] = peak.link or max(1.0, float(np.max(np.diff(totals[name]) / np.maximum(np.diff(times), 1e-9))))
    if peak.memory is not None:
        totals |= {name: in_time(times, totals[name], peaks[name]) for name in ("compute", "memory")}
    return Counters(times_s=times, totals=totals, peaks={name: peaks[name] for name in totals})


def in_time(times: Floats, total: Floats, peak: float) -> Floats:
    """A counter without delay: one that seems to rise by more than ``peak`` per second was late in the readings before.

    The host of an emulated device counts an operator when it comes to it, which may be late on a busy machine. What is
    read at a moment t' was used by then, at most at the peak, so at t the counter stood at its value at t' minus
    peak · (t' - t) or higher.
    """
    above = total - peak * times
    return np.maximum.accumulate(above[::-1])[::-1] + peak * times


_QUIET: Final = 0.01
"""If interfaces move less than this share of what loopback moves, the command talks over loopback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredUse:
    """The use of each resource that could be read, as shares of ``peaks``: devices or cores, and bytes per second.

    ``counted`` says for every resource what was counted, and against what. ``memory`` is missing if no device tells
    its memory traffic.
    """

    uses: dict[str, ResourceUse] = field(hash=False)
    curves: Curves
    peaks: dict[str, float] = field(hash=False)
    counted: dict[str, str] = field(hash=False)
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, for JSON; ``None`` for a resource that could not be read."""
        return {name: asdict(self.uses[name]) if name in self.uses else None for name in RESOURCES}


def use_of_command(
    columns: Mapping[str, npt.ArrayLike], *, hz: float, cores: int, link_rate: float | None = None
) -> MonitoredUse:
    """Return the use of a command from the readings of its sampler.

    Compute is the use of devices or, if the command has none, processor time on its ``cores``. Network amounts are
    shares of ``link_rate`` in bytes per second for each of its networks; without it, of the highest rate seen.
    """
    values = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    times = values["time_s"]
    if len(times) < 2 or times[-1] - times[0] < 1.0 / hz:
        raise RequestError(
            f"the command ended within one period of {1.0 / hz:g} s: there is nothing to sample; monitor a longer run, "
            "or give a higher --hz"
        )
    totals, peaks, counted, warnings = _devices(values, cores)
    for name, total, what in _networks(values, warnings):
        totals[name] = total
        networks = max(1.0, float(values["namespaces"].max()))
        if link_rate is not None:
            peaks[name] = link_rate * networks
            counted[name] = f"{what}, of {format_bytes(link_rate)}/s for each of {networks:.0f} networks"
        else:
            peaks[name] = max(1.0, float(resampled(times, total, period_s=1.0 / hz).max()))
            counted[name] = f"{what}, of the highest rate seen, {format_bytes(peaks[name])}/s"
    if link_rate is None:
        warnings.append("the rate of the link is not known: network amounts are shares of the highest rate seen")
    curves = observed([Counters(times_s=times, totals=totals, peaks=peaks)], hz=hz, step_s=float(times[-1] - times[0]))
    uses = uses_of(curves)
    return MonitoredUse(
        uses={name: uses[name] for name in RESOURCES if name in totals},
        curves=curves,
        peaks=peaks,
        counted=counted,
        warnings=tuple(warnings),
    )


def _devices(
    values: Mapping[str, Floats], cores: int
) -> tuple[dict[str, Floats], dict[str, float], dict[str, str], list[str]]:
    """Totals, peaks and names of compute and memory, and warnings."""
    devices = float(values["devices"].max())
    if devices:
        return (
            {"compute": values["device_s"], "memory": values["device_memory_s"]},
            {"compute": devices, "memory": devices},
            {
                "compute": f"time in which devices are busy, of {devices:.0f} devices",
                "memory": f"memory traffic, of the peak of {devices:.0f} devices",
            },
            [],
        )
    return (
        {"compute": values["processor_s"]},
        {"compute": float(cores)},
        {"compute": f"processor time, of {cores} cores"},
        ["memory traffic was not read: the command uses no GPU, and processors do not tell theirs"],
    )


def _networks(values: Mapping[str, Floats], warnings: list[str]) -> list[tuple[str, Floats, str]]:
    """The counters of both directions, and what they count."""
    moved = sum(float(values[name][-1] - values[name][0]) for name in ("received_bytes", "sent_bytes"))
    local = values["loopback_bytes"]
    if local[-1] > local[0] and moved < _QUIET * float(local[-1] - local[0]):
        warnings.append("the command talks over the loopback interface: received and sent bytes are the same")
        return [(name, local, "bytes on loopback") for name in ("receive", "send")]
    return [
        ("receive", values["received_bytes"], "bytes received"),
        ("send", values["sent_bytes"], "bytes sent"),
    ]
