"""What a testbed run drew from its machines, beside the forecast of the same run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from traincast.ask import verb
from traincast.cli.resources.ask import ResourceCompareAsk
from traincast.cluster import load_cluster
from traincast.errors import FileFormatError, RequestError
from traincast.estimate.resource_use import RESOURCES, ResourceUse
from traincast.resolve import stated_strategy
from traincast.resources.comparing import ResourceComparison, compared, compared_figures
from traincast.resources.curves import Curves
from traincast.resources.forecasting import forecast_curves
from traincast.resources.sampled import Counters, RankPeaks, mean_step, observed, read_counters
from traincast.schema import convert
from traincast.testbed.compare import ask_of_run, cost_model_of, forecast_of
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
        read = self.record.monitor_hz
        assert read is not None
        if hz is not None and hz > read:
            raise RequestError(f"--hz {hz:g}: the run was sampled {read:g} times a second; give that or less")
        return observed(
            self.counters,
            hz=hz or read,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """What a run drew beside its forecast; ``events`` is the folder of measured times, if the forecast used one."""

    comparison: ResourceComparison
    record: RunFolder
    events: Path | None

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain values, as the JSON of ``traincast resources compare`` has it."""
        return {
            **self.comparison.to_dict(),
            "model": self.record.model,
            "strategy": self.record.strategy,
            "events": None if self.events is None else str(self.events),
            "warnings": list(self.record.warnings),
        }


@verb(ResourceCompareAsk)
def compare_resources(ask: ResourceCompareAsk) -> ComparedRun:
    """Lay what the testbed run in the folder ``run`` drew over its forecast, and tell the error of each figure.

    ``run`` was made with a sampler (``testbed run --monitor``). Its forecast is made from its recorded request, with
    the times in the folder ``events`` or, without it, in the run's own folder of events, if it has one. ``forecast`` is
    a file that ``predict --resources --json`` wrote instead: it has figures, and no curves. Both sides have ``hz``
    samples per second: as many as the sampler read, unless stated, and never more.
    """
    folder, sampled = Path(ask.run), sampled_run(Path(ask.run))
    events, hz = ask.events, ask.hz
    if ask.forecast is not None:
        if events is not None:
            raise RequestError("FORECAST.json has figures alone, without times: leave --events out")
        found = _with_figures(Path(ask.forecast), sampled, hz or None)
        return ComparedRun(comparison=found, record=sampled.record, events=None)
    if events is not None and not Path(events).is_dir():
        raise RequestError(f"--events {events}: there is no such folder; `traincast profile events -o` writes one")
    chosen, cost_model = cost_model_of(folder, sampled.record, events=None if events is None else Path(events))
    made = forecast_of(folder, sampled.record, cost_model=cost_model)
    return ComparedRun(comparison=compare_run(sampled, made, hz=hz or None), record=sampled.record, events=chosen)


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


def _with_figures(forecast: Path, sampled: SampledRun, hz: float | None) -> ResourceComparison:
    """Compare with the figures in the JSON of ``predict --resources``."""
    remedy = "write it with `traincast predict … --resources --json`"
    try:
        content = json.loads(forecast.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(f"cannot read {forecast}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{forecast} is not valid JSON: {remedy}") from error
    if not isinstance(content, dict) or not {"resources", "step_s"} <= content.keys():
        raise FileFormatError(f"{forecast} has no figures of resources: {remedy}")
    predicted = convert(content["resources"], dict[str, ResourceUse], f"{forecast}, resources", remedy=remedy)
    step_s = convert(content["step_s"], float, f"{forecast}, step_s", remedy=remedy)
    if set(predicted) != set(RESOURCES):
        raise FileFormatError(f"{forecast} has figures of {', '.join(predicted) or 'no resource'}: {remedy}")
    return compared_figures(
        sampled.curves(hz), predicted, known=sampled.counters[0].totals.keys(), predicted_step_s=step_s
    )


def _peaks(run: Path, record: RunFolder) -> list[RankPeaks]:
    """The peaks of all ranks; those of parameter servers follow, whose links have the rate of the network."""
    cluster = load_cluster(str(run / record.cluster), hosts=True)
    memory = None if record.compute == REAL else cluster.device.memory_bandwidth
    rate = rate_of(record.network)
    links = [place.rate for place in record.ranks]
    servers = stated_strategy(ask_of_run(run, record)).servers
    links += [rate if np.isfinite(rate) else None] * servers
    return [RankPeaks(memory=memory, link=link) for link in links]
