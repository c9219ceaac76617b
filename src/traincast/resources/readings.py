"""Reads the counters that the sampler of a testbed run has written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.errors import FileFormatError
from traincast.resources.bursts import RESOURCES
from traincast.resources.sampled import Counters
from traincast.tables import read_arrow

Floats = npt.NDArray[np.float64]

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
