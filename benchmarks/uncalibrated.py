"""Intervals on uncalibrated clusters: fits the factors of :mod:`traincast.report.uncertainty` to published errors.

    python -m benchmarks.uncalibrated --steps FILE [FILE] --dp-steps FILE [FILE] [--most 120]

Forecasts up to ``--most`` rows of each source without calibrations and prints, as Markdown, the factors of each kind of
step, and how often the interval holds the runs of each kind and of each source if the source's own runs took no part in
the fit. Every mixture of experts counts as a source of its own: most of their runs come from one publisher.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

import numpy as np

from benchmarks.markdown import table
from traincast.errors import TraincastError
from traincast.forecast import forecast
from traincast.measured import dp_steps, source_of, steps
from traincast.measured.calibrations import without_calibration
from traincast.measured.run import Measured
from traincast.measured.table import completed
from traincast.report.uncertainty import LEAST, StepKind, step_kind
from traincast.simulate import interval
from traincast.strategy.releases import has_experts
from traincast.tables import RowError, read_rows

TAILS: Final[dict[StepKind, tuple[float, float]]] = {
    "language": (0.02, 0.07),
    "strained": (0.02, 0.05),
    "experts": (0.02, 0.02),
    "images": (0.03, 0.05),
    "other": (0.03, 0.05),
}
"""Shares of runs below and above the interval of each kind; sources have equal weights."""
_WHOLE: Final = 8
"""Runs from which a source has its whole weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One forecast run: its source and kind, log(measured / forecast), and the ends of its propagated interval."""

    source: str
    kind: StepKind
    error: float
    below: float
    above: float

    def scaled(self, *, upper: bool) -> float:
        """The error in units of one end of the propagated interval."""
        return self.error / math.hypot(self.above if upper else self.below, LEAST)

    def inside(self, factors: tuple[float, float]) -> bool:
        """Whether the interval with these factors holds the run."""
        return self.scaled(upper=False) >= -factors[0] and self.scaled(upper=True) <= factors[1]

    def width(self, factors: tuple[float, float]) -> float:
        """The upper end over the lower one."""
        return math.exp(factors[0] * math.hypot(self.below, LEAST) + factors[1] * math.hypot(self.above, LEAST))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenRun:
    """A run of a source that took no part in the fit: its kind, whether the interval holds it, upper over lower end."""

    kind: StepKind
    inside: bool
    width: float


def judged(run: Measured, source: str) -> Judged | None:
    """Forecast a run without calibrations; ``None`` if it has no time."""
    made = forecast(without_calibration(run.request))
    if not run.seconds or made.report.step_s < run.loading_s:
        return None
    report, graph = made.report, made.request.graph
    low, high = interval(made.lowered.plan, made.estimates)
    step = made.timeline.step_s
    idle = (report.exposed_communication_s + report.overhead_s) / report.step_s
    return Judged(
        source=f"{source}: {graph.name}" if has_experts(graph) else source,
        kind=step_kind(graph, idle_share=idle),
        error=math.log(run.seconds / report.step_s),
        below=math.log(step / low),
        above=math.log(high / step),
    )


def read(paths: Iterable[Path], *, dp: bool, most: int) -> list[Judged]:
    """Forecast up to ``most`` rows of each source of some tables."""
    found = []
    for path in paths:
        rows = read_rows(path, needs=dp_steps.NEEDS) if dp else completed(read_rows(path, needs=steps.NEEDS))
        of_source = defaultdict(list)
        for index, row in enumerate(rows):
            if dp or steps.has_run(row):
                of_source[dp_steps.group_of(row) if dp else source_of(row)].append(index)
        for source, indices in sorted(of_source.items()):
            for index in random.Random(1).sample(indices, min(most, len(indices))):
                try:
                    one = judged((dp_steps if dp else steps).read_run(index, rows[index]), source)
                except (RowError, TraincastError):
                    continue
                found += [one] if one else []
    return found


def quantile(rows: Sequence[Judged], share: float, *, upper: bool) -> float:
    """The quantile of scaled errors; sources have equal weights, those with few runs less."""
    counts = Counter(row.source for row in rows)
    weights = np.array([min(1.0, counts[row.source] / _WHOLE) / counts[row.source] for row in rows])
    values = np.array([row.scaled(upper=upper) for row in rows])
    order = np.argsort(values)
    at = np.searchsorted(np.cumsum(weights[order]) / weights.sum(), share)
    return float(values[order][min(int(at), len(rows) - 1)])


def factors(rows: Sequence[Judged]) -> dict[StepKind, tuple[float, float]]:
    """The factors of each kind; calm and strained language models share the lower one."""
    made: dict[StepKind, tuple[float, float]] = {}
    for kind in get_args(StepKind):
        own = [row for row in rows if row.kind == kind]
        if own:
            alike = [row for row in rows if {row.kind, kind} <= {"language", "strained"} or row.kind == kind]
            low = quantile(alike, TAILS[kind][0], upper=False)
            made[kind] = max(0.0, -low), max(0.0, quantile(own, 1.0 - TAILS[kind][1], upper=True))
    return made


def left_out(rows: Sequence[Judged], source: str) -> list[UnseenRun]:
    """Judges the runs of a source by factors of all others; runs of a kind that no other source has are left out."""
    others = factors([row for row in rows if row.source != source])
    own = [row for row in rows if row.source == source and row.kind in others]
    return [
        UnseenRun(kind=row.kind, inside=row.inside(others[row.kind]), width=row.width(others[row.kind])) for row in own
    ]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", nargs="+", type=Path, default=[])
    parser.add_argument("--dp-steps", nargs="+", type=Path, default=[])
    parser.add_argument("--most", type=int, default=120)
    given = parser.parse_args()
    rows = read(given.steps, dp=False, most=given.most) + read(given.dp_steps, dp=True, most=given.most)
    fitted = factors(rows)
    lines = [[kind, f"{low:.2f}", f"{high:.2f}"] for kind, (low, high) in fitted.items()]
    print(table(["kind", "below", "above"], lines))
    by_source = {source: left_out(rows, source) for source in sorted({row.source for row in rows})}
    lines = []
    for kind in get_args(StepKind):
        own = [part for ones in by_source.values() if (part := [one for one in ones if one.kind == kind])]
        if own:
            mean = np.mean([np.mean([one.inside for one in part]) for part in own])
            lines.append([kind, str(len(own)), f"{mean:.2f}", *_figures([one for part in own for one in part])])
    print(table(["kind, sources left out", "sources", "inside, mean of sources", "runs", "inside", "width"], lines))
    lines = [[source[:60], *_figures(ones)] for source, ones in by_source.items() if ones]
    print(table(["source left out", "runs", "inside", "width"], lines))


def _figures(ones: Sequence[UnseenRun]) -> list[str]:
    """How many runs, the share of them inside, and the median width, as shown."""
    inside, width = np.mean([one.inside for one in ones]), np.median([one.width for one in ones])
    return [str(len(ones)), f"{inside:.2f}", f"{width:.2f}"]


if __name__ == "__main__":
    main()
