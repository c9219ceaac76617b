"""Simulated against sampled use of resources: the runs of ``benchmarks.resource_runs``, and their forecasts.

    python -m benchmarks.resource_accuracy DIR [--hz 50]

Prints a table for each setting: the correlation of the curves of one step, and the mean error of each figure where the
run and its forecast both show bursts, and how many of these have the figure: the samples of a run or of its forecast
may not carry it, and it is refused. Beside it stands the noise of the measurement: how far the figures of the first
half of each run are from those of its second half. Forecasts know nothing but the request: no events of the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.resource_runs import SETTINGS, ResourceRun
from benchmarks.resource_table import MOST_BEHIND, behind, runs_in
from traincast.cli.resources.real_runs import SampledRun, compare_run, sampled_run
from traincast.estimate.resource_use import FIGURES, RESOURCES
from traincast.journal import Journal, key_of
from traincast.resources.ask import HZ
from traincast.resources.curves import uses_of
from traincast.testbed.compare import forecast_of

Errors = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One run: its setting, the error of its step, and by resource correlations, errors and noise."""

    setting: str
    model: str
    step_error: float
    correlation: Mapping[str, float | None]
    errors: Errors
    noise: Errors
    patterns: Mapping[str, Sequence[str]]


def judged(run: ResourceRun, folder: Path, *, hz: float) -> dict[str, Any] | None:
    """The comparison of a run with its forecast as plain values, or ``None`` if its hosts lagged."""
    sampled = sampled_run(folder / run.name)
    if behind(sampled.record.warnings) > MOST_BEHIND:
        return None
    found = compare_run(sampled, forecast_of(folder / run.name, sampled.record), hz=hz)
    return {
        "setting": run.setting,
        "model": run.model,
        "step_error": found.predicted_step_s / found.measured_step_s - 1.0,
        "correlation": found.correlations(),
        "errors": found.errors(),
        "noise": _noise(sampled, hz),
        "patterns": {name: [found.measured[name].pattern, found.predicted[name].pattern] for name in RESOURCES},
    }


def _noise(sampled: SampledRun, hz: float) -> Errors:
    """The relative difference of the figures of the two halves of a run, where both show bursts."""
    curves = sampled.curves(hz)
    half = curves.values["compute"].shape[1] // 2
    one, other = (
        uses_of(replace(curves, values={name: value[:, part] for name, value in curves.values.items()}))
        for part in (slice(0, half), slice(half, 2 * half))
    )
    return {
        name: {
            figure: first / second - 1.0
            if (first := one[name].figure(figure)) is not None
            and (second := other[name].figure(figure))
            and one[name].pattern == other[name].pattern == "bursts"
            else None
            for figure in FIGURES
        }
        for name in RESOURCES
    }


def shown(runs: Sequence[Judged]) -> list[str]:
    """The lines of a table: one for each resource."""
    lines = []
    for name in RESOURCES:
        same = [value for run in runs if (value := run.correlation[name]) is not None]
        bursts = [run for run in runs if list(run.patterns[name]) == ["bursts", "bursts"]]
        alike = sum(run.patterns[name][0] == run.patterns[name][1] for run in runs)
        sides = ([run.errors for run in bursts], [run.noise for run in bursts])
        cells = [
            "{} ({}) of {}".format(*(_mean(side, name, figure) for side in sides), _told(bursts, name, figure))
            for figure in FIGURES
        ]
        correlation = f"{np.mean(same):.3f} | {np.mean(np.array(same) >= 0.9):.0%}" if same else "– | –"
        lines.append(f"| {name} | {correlation} | {alike} of {len(runs)} | {' | '.join(cells)} |")
    return lines


def _mean(errors: Sequence[Errors], name: str, figure: str) -> str:
    known = [abs(value) for each in errors if (value := each[name][figure]) is not None]
    return f"{np.mean(known):.1%}, {np.median(known):.1%}" if known else "–"


def _told(runs: Sequence[Judged], name: str, figure: str) -> str:
    """In how many of the runs neither side refuses the figure."""
    return f"{sum(run.errors[name][figure] is not None for run in runs)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare all runs and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hz", type=float, default=HZ)
    given = parser.parse_args(arguments)
    found: list[Judged] = []
    with Journal(
        given.folder / f"accuracy-{given.hz:g}.journal", kind="an accuracy study", key=key_of(given.hz), restart=True
    ) as journal:
        for run in runs_in(given.folder):
            row = journal.part(run.name, partial(judged, run, given.folder, hz=given.hz))
            if row is not None:
                found.append(Judged(**row))
    header = "| resource | correlation | ≥ 0.9 | same pattern | amount: mean, median (noise) | burst | pause |"
    for setting in (None, *SETTINGS):
        runs = [run for run in found if setting in (None, run.setting)]
        error = np.mean([abs(run.step_error) for run in runs])
        print(f"\n{setting or 'all'}: {len(runs)} runs, step {error:.1%}\n\n{header}\n|{'---|' * 7}")
        print("\n".join(shown(runs)))


if __name__ == "__main__":
    main()
