"""Driple's questions asked of measured runs: how far forecast changes of the figures are from measured changes.

    python -m benchmarks.resource_changes [benchmarks/data/resource_runs.parquet]

Takes all pairs of measured runs that differ in one thing only (the batch, the device, the numbers of workers and
servers, or the rate of the links), and forecasts both runs of a pair by the simulated timeline. Prints the mean error
of each figure's ratio, where measured and forecast runs all show bursts, and how often the measured change lies in the
forecast range; then how often the figures of all runs lie in their intervals.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.inspector_measured import measured_runs
from traincast.estimate.resource_use import FIGURES, RESOURCES
from traincast.fitting.inspector.runs import ObservedRun
from traincast.forecast import forecast
from traincast.resources.forecasting import ResourceForecast, resources_of
from traincast.resources.whatif import change_of, change_ranges

TABLE: Final = Path(__file__).parent / "data" / "resource_runs.parquet"
_ROUNDING: Final = 1e-3
"""How far outside a range a change may lie by rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs as measured and as forecast."""

    runs: tuple[ObservedRun, ObservedRun]
    steps: tuple[float, float]
    drawn: tuple[ResourceForecast, ResourceForecast]

    def step_error(self) -> float:
        """The error of the ratio of the steps."""
        return abs(self.steps[1] / self.steps[0] / (self.runs[1].step_s / self.runs[0].step_s) - 1.0)

    def errors(self) -> Iterator[tuple[str, str, float, bool | None]]:
        """Each resource and figure with a change on both sides: the error of its ratio, and if the range has it."""
        ranges = change_ranges(*self.drawn)
        for name in RESOURCES:
            for figure in FIGURES:
                real = change_of(self.runs[0].uses[name], self.runs[1].uses[name], figure)
                said = change_of(self.drawn[0].uses[name], self.drawn[1].uses[name], figure)
                if real is None or said is None or (real == said == 0.0 and figure != "burst_amount"):
                    continue
                ends = ranges[name][figure]
                inside = None if ends is None else ends[0] - _ROUNDING <= real <= ends[1] + _ROUNDING
                yield name, figure, abs((1.0 + said) / (1.0 + real) - 1.0), inside


def described(run: ObservedRun) -> dict[str, object]:
    """What runs of a pair may differ in."""
    request = run.request
    strategy, cluster = request.strategy, request.cluster
    return {
        "model": run.model,
        "batch": request.global_batch / strategy.dp,
        "device": cluster.device.name,
        "workers and servers": (strategy.dp, strategy.servers, strategy.server_nodes),
        "links": cluster.inter_node.bandwidth,
    }


def pairs(runs: Sequence[ObservedRun]) -> dict[str, list[tuple[int, int]]]:
    """Return the numbers of the runs of each pair, by what they differ in."""
    known = [described(run) for run in runs]
    found: dict[str, list[tuple[int, int]]] = {}
    for free in ("device", "workers and servers", "batch", "links"):
        alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, one in enumerate(known):
            alike[tuple(value for name, value in one.items() if name != free)].append(number)
        every = (pair for group in alike.values() for pair in combinations(group, 2))
        found[free] = [(a, b) for a, b in every if known[a][free] != known[b][free]]
    return found


def shown(found: Sequence[Pair]) -> tuple[str, ...]:
    """The cells of a line: pairs, error of the step, mean error of each resource's figures, share inside the range."""
    judged = [each for pair in found for each in pair.errors()]

    def error(name: str, figure: str) -> str:
        return f"{np.mean([error for *which, error, _ in judged if which == [name, figure]]):.0%}"

    return (
        str(len(found)),
        f"{np.mean([pair.step_error() for pair in found]):.1%}",
        *(" / ".join(error(name, figure) for figure in FIGURES) for name in RESOURCES),
        f"{np.mean([inside for *_, inside in judged if inside is not None]):.2f}",
    )


def covered(runs: Sequence[ObservedRun], drawn: Sequence[ResourceForecast], name: str, figure: str) -> float:
    """The share of the runs whose figure lies in its interval, of those that have it and show bursts as forecast."""
    inside = []
    for run, said in zip(runs, drawn, strict=True):
        alike = run.uses[name].pattern == said.uses[name].pattern
        if figure == "burst_amount" or (alike and run.uses[name].pattern == "bursts"):
            real, low, high = (uses[name].figure(figure) for uses in (run.uses, said.low, said.high))
            if real is not None and low is not None and high is not None:
                inside.append(low * (1.0 - _ROUNDING) <= real <= high * (1.0 + _ROUNDING))
    return float(np.mean(inside))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, nargs="?", default=TABLE)
    runs = measured_runs(parser.parse_args(arguments).table)
    wanted = pairs(runs)
    made = [(result.report.step_s, resources_of(result)) for result in (forecast(run.request) for run in runs)]
    print(f"| other | pairs | step | {' | '.join(RESOURCES)} | in the range |\n|{'---|' * (len(RESOURCES) + 4)}")
    for free, numbers in wanted.items():
        found = [
            Pair(
                runs=(runs[a], runs[b]),
                steps=(made[a][0], made[b][0]),
                drawn=(made[a][1], made[b][1]),
            )
            for a, b in numbers
        ]
        print(f"| {free} | {' | '.join(shown(found))} |")
    for name in RESOURCES:
        shares = (f"{covered(runs, [drawn for _, drawn in made], name, figure):.2f}" for figure in FIGURES)
        print(f"{name}: in the interval {' / '.join(shares)}")


if __name__ == "__main__":
    main()
