"""What a testbed run drew from its machines, beside the forecast of the same run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from traincast.cluster import load_cluster
from traincast.errors import FileFormatError
from traincast.resources.comparing import ResourceComparison, compared
from traincast.resources.curves import Curves
from traincast.resources.forecasting import forecast_curves
from traincast.resources.readings import RankPeaks, read_counters
from traincast.resources.sampled import Counters, mean_step, observed
from traincast.testbed.folder import RunFolder, read_run_folder
from traincast.testbed.request import REAL, rate_of
from traincast.testbed.sampling import RESOURCES as READINGS

if TYPE_CHECKING:
    from traincast.forecast import Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRun:
    """A run and the counters of its ranks, then of its parameter servers, in the time in which it trained."""

    record: RunFolder
    counters: tuple[Counters, ...]

    def curves(self, hz: float | None = None) -> Curves:
        """The sampled curves, by default as often as the sampler read."""
        assert self.record.monitor_hz is not None
        return observed(
            self.counters,
            hz=hz or self.record.monitor_hz,
            step_s=self.record.step_s,
            num_ranks=self.record.num_ranks,
        )

    def starts_s(self) -> list[float]:
        """When each step starts, in the time in which the run trained."""
        lengths = [end - start for start, end in self.record.windows_s]
        if len(lengths) > 1:
            return [0.0, *np.cumsum(lengths)[:-1].tolist()]
        count = max(1, int(lengths[0] / self.record.step_s + 1e-6))
        return [number * self.record.step_s for number in range(count)]


def sampled_run(run: Path) -> SampledRun:
    """Read the run in the folder ``run``; refuse one that no sampler watched."""
    record = read_run_folder(run)
    if record.monitor_hz is None or not record.windows_s or not (run / READINGS).is_file():
        raise FileFormatError(
            f"{run} has no readings of a sampler: run `traincast testbed run` with --monitor to take them"
        )
    counters = read_counters(run / READINGS, _peaks(run, record))
    return SampledRun(record=record, counters=tuple(each.within(record.windows_s) for each in counters))


def compare_run(sampled: SampledRun, forecast: Forecast, *, hz: float | None = None) -> ResourceComparison:
    """Compare a run with its forecast, both with ``hz`` samples per second, as seen on the node of rank 0."""
    measured = sampled.curves(hz)
    rate, step_s = 1.0 / measured.period_s, sampled.record.step_s
    step = mean_step(sampled.counters[0], starts_s=sampled.starts_s(), step_s=step_s, hz=rate)
    return compared(
        measured,
        forecast_curves(forecast, hz=rate),
        exact=forecast_curves(forecast, hz=None),
        step=step,
        edges_s=np.append(np.arange(0.0, step_s, measured.period_s), step_s),
    )


def _peaks(run: Path, record: RunFolder) -> list[RankPeaks]:
    """The peaks of all ranks; those of parameter servers follow, whose links have the rate of the network."""
    from traincast.strategy import parse_strategy

    cluster = load_cluster(str(run / record.cluster), hosts=True)
    memory = None if record.compute == REAL else cluster.device.memory_bandwidth
    rate = rate_of(record.network)
    links = [place.rate for place in record.ranks]
    servers = parse_strategy(record.strategy, global_batch=record.global_batch).servers
    links += [rate if np.isfinite(rate) else None] * servers
    return [RankPeaks(memory=memory, link=link) for link in links]
