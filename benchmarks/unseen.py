"""Forecasts of runs that nothing was fitted to: errors and intervals, source by source, and with groups left out.

    python -m benchmarks.unseen DATA -o today.json [--base before.json] [--most 120]
    python -m benchmarks.unseen DATA --from today.json --fit
    python -m benchmarks.unseen DATA --from today.json --write     # the tables of docs/unseen.md

DATA is a folder with tables of measured runs. Every row is forecast without calibrations. The study prints, as
Markdown, the error, the bias, the share of runs inside the 90 % interval and its width: for each source; for each kind
of run, with all sources counting alike; and for groups that the widths of intervals were not fitted to (a source, a
framework, a device, runs on more than 64 devices). ``--base`` adds the errors of an earlier study. ``--fit`` prints the
factors of :mod:`traincast.report.uncertainty` that the guiding sources suggest.

``benchmarks/data/sources.toml`` divides sources into those that may guide choices and those that only judge;
:func:`guiding` refuses to fit anything to the latter.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from benchmarks import markers
from benchmarks.markdown import table
from traincast.errors import TraincastError
from traincast.forecast import forecast
from traincast.measured import dp_steps, steps
from traincast.measured.calibrations import without_calibration
from traincast.measured.run import Measured
from traincast.measured.table import completed, rows_of
from traincast.measured.tuning import rows as finetune
from traincast.report.uncertainty import FACTORS, StepKind, spread, step_kind
from traincast.simulate import interval
from traincast.tables import Row, RowError, text

Kind: TypeAlias = Literal["steps", "dp-steps", "finetune"]
Role: TypeAlias = Literal["guide", "judge", "new"]

SOURCES: Final = Path(__file__).parent / "data" / "sources.toml"
LOOKS: Final = SOURCES.with_name("first_looks.csv")
PAGE: Final = Path(__file__).parent.parent / "docs" / "unseen.md"
NAMES: Final[dict[Kind, str]] = {
    "steps": "language models",
    "dp-steps": "other models, data-parallel",
    "finetune": "fine-tuning",
}
TABLES: Final[dict[str, Kind]] = {
    "steps": "steps",
    "steps_more": "steps",
    "third/steps": "steps",
    "dp_steps": "dp-steps",
    "dp_steps_more": "dp-steps",
    "third/dp_steps": "dp-steps",
    "finetune": "finetune",
    "third/finetune": "finetune",
}
_UNNAMED: Final = "NVIDIA/DeepLearningExamples"
"""Who published the table that names no source."""
TAIL: Final = 0.05
"""Share of runs to leave out at each end of an interval."""
LARGE: Final = 64
"""Devices above which a run is large."""
SPREAD: Final[dict[StepKind, float]] = {"images": 0.2, "other": 0.2}
"""Standard deviation, as a logarithm, of the median errors of sources at their first look, for data-parallel steps.

Medians of sources that Traincast was developed with differ less. Each end of an interval also covers that of a new one.
"""
_REACH: Final = 1.645
"""Standard deviations within which 90 % of a normal distribution are."""
_WHOLE: Final = 8
"""Runs from which a source has its whole weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One run and its forecast.

    ``error`` is log(measured / forecast); ``below`` and ``above`` are the ends of the interval that the works of the
    step propagate to it, ``low`` and ``high`` those of the interval that the forecast states: logarithms of their
    ratio to the forecast, without sign.
    """

    kind: Kind
    table: str
    index: int
    source: str
    step: StepKind
    framework: str
    device: str
    devices: int
    error: float
    below: float
    above: float
    low: float
    high: float

    @property
    def role(self) -> Role:
        """Whether the run's source may guide choices or only judges; ``new`` if it was not divided yet."""
        return role_of(self.kind, self.source)

    @property
    def inside(self) -> bool:
        """Whether the stated interval holds the run."""
        return -self.low <= self.error <= self.high

    def within(self, factors: tuple[float, float]) -> bool:
        """Whether the interval with these factors holds the run."""
        return -factors[0] * self.unit(upper=False) <= self.error <= factors[1] * self.unit(upper=True)

    def unit(self, *, upper: bool) -> float:
        """The logarithm that a factor of one end multiplies."""
        return spread(self.above if upper else self.below, devices=self.devices)

    def width(self, factors: tuple[float, float]) -> float:
        """The upper end over the lower one, with these factors."""
        return math.exp(factors[0] * self.unit(upper=False) + factors[1] * self.unit(upper=True))


@cache
def _divided() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(SOURCES.read_text(encoding="utf-8"))


def role_of(kind: str, source: str) -> Role:
    """Return whether a source may guide choices or only judges; ``new`` if ``sources.toml`` does not have it."""
    for role in ("guide", "judge"):
        if source in _divided()[kind][role]:
            return role
    return "new"


def guiding(rows: Iterable[Judged]) -> list[Judged]:
    """Return ``rows`` as they may be fitted to; refuses those of sources that only judge, and of new ones."""
    found = list(rows)
    for row in found:
        if row.role != "guide":
            raise ValueError(f"{row.source} is a {row.role} source of {row.kind}: nothing may be fitted to its runs")
    return found


@dataclass(frozen=True, slots=True)
class _Reader:
    """The columns that a table needs, and how a row of it is read."""

    needs: Sequence[str]
    read: Callable[[int, Row], Measured]


_READERS: Final[dict[Kind, _Reader]] = {
    "steps": _Reader(steps.NEEDS, steps.read_run),
    "dp-steps": _Reader(dp_steps.NEEDS, dp_steps.read_run),
    "finetune": _Reader(finetune.NEEDS, lambda index, row: finetune.read_tuning(index, row).run),
}


def judged(run: Measured, *, kind: Kind, name: str, index: int, source: str) -> Judged | None:
    """Forecast a run without calibrations; ``None`` if it has no time, or its time is that of loading its samples."""
    made = forecast(without_calibration(run.request))
    if not run.seconds or made.report.step_s < run.loading_s:
        return None
    report, request = made.report, made.request
    low, high = interval(made.lowered.plan, made.estimates)
    idle = (report.exposed_communication_s + report.overhead_s) / report.step_s
    return Judged(
        kind=kind,
        table=name,
        index=index,
        source=source,
        step=step_kind(request.graph, idle_share=idle),
        framework=request.runtime.name,
        device=request.cluster.device.name,
        devices=report.num_devices,
        error=math.log(run.seconds / report.step_s),
        below=math.log(made.timeline.step_s / low),
        above=math.log(high / made.timeline.step_s),
        low=math.log(report.step_s / report.low_s),
        high=math.log(report.high_s / report.step_s),
    )


def _rows(path: Path, kind: Kind) -> Iterator[tuple[int, Row, str]]:
    """Yield the rows of a table that have run: number, row and source."""
    rows = rows_of(path, needs=_READERS[kind].needs)
    for index, row in enumerate(completed(rows) if kind == "steps" else rows):
        if kind != "steps" or steps.has_run(row):
            yield index, row, text(row, "source") or text(row, "where").partition(":")[0] or _UNNAMED


def forecasts(data: Path, *, most: int) -> list[Judged]:
    """Forecast up to ``most`` rows of each source of all tables in a folder."""
    found = []
    for name, kind in TABLES.items():
        path = data / f"{name}.parquet"
        of_source = defaultdict(list)
        for each in _rows(path, kind) if path.is_file() else ():
            of_source[each[2]].append(each)
        for source, those in sorted(of_source.items()):
            for index, row, _ in random.Random(1).sample(those, min(most, len(those))):
                try:
                    one = judged(_READERS[kind].read(index, row), kind=kind, name=name, index=index, source=source)
                except (RowError, TraincastError):
                    continue
                found += [one] if one else []
    return found


def weights(rows: Sequence[Judged]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the weight of each run: all sources count alike, those with few runs less."""
    counts = Counter(row.source for row in rows)
    return np.array([min(1.0, counts[row.source] / _WHOLE) / counts[row.source] for row in rows])


def _quantile(values: Sequence[float], weight: np.ndarray[tuple[int], np.dtype[np.float64]], share: float) -> float:
    order = np.argsort(values)
    at = np.searchsorted(np.cumsum(weight[order]) / weight.sum(), share)
    return float(np.asarray(values)[order][min(int(at), len(values) - 1)])


def fitted(rows: Sequence[Judged]) -> dict[StepKind, tuple[float, float]]:
    """Return the factors of each kind of step that leave :data:`TAIL` of the guiding runs out at each end."""
    known = guiding(rows)
    made: dict[StepKind, tuple[float, float]] = {}
    for kind in get_args(StepKind):
        own = [row for row in known if row.step == kind]
        if own:
            weight = weights(own)
            low = _quantile([row.error / row.unit(upper=False) for row in own], weight, TAIL)
            high = _quantile([row.error / row.unit(upper=True) for row in own], weight, 1.0 - TAIL)
            made[kind] = _covering(own, max(0.1, -low), upper=False), _covering(own, max(0.1, high), upper=True)
    return made


def _covering(rows: Sequence[Judged], factor: float, *, upper: bool) -> float:
    """Return ``factor`` made large enough for the median of a new source: the root of the sum of squares of both."""
    unit = float(np.median([row.unit(upper=upper) for row in rows]))
    return math.hypot(factor, _REACH * SPREAD.get(rows[0].step, 0.0) / unit)


GROUPS: Final[dict[str, Callable[[Judged], str]]] = {
    "source": lambda row: row.source,
    "framework": lambda row: row.framework,
    "device": lambda row: row.device,
    "scale": lambda row: f"more than {LARGE} devices" if row.devices > LARGE else "",
}
"""What a study leaves out: the runs of each group are judged by factors of all guiding runs outside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Errors of some runs in per cent, the share of them inside their intervals, and the median width of these."""

    runs: int
    median: float
    mean: float
    bias: float
    inside: float
    width: float

    def cells(self) -> list[str]:
        """The figures as cells of a table."""
        errors = (f"{value:.1f}" for value in (self.median, self.mean, self.bias))
        return [str(self.runs), *errors, f"{self.inside:.2f}", f"{self.width:.2f}"]


COLUMNS: Final = ("runs", "median error %", "mean %", "bias %", "inside", "width")


def figures(rows: Sequence[Judged], factors: dict[StepKind, tuple[float, float]] | None = None) -> Figures:
    """Return the figures of runs; with ``factors``, those of the intervals that they make."""
    errors = np.array([row.error for row in rows])
    off = 100.0 * np.abs(np.expm1(-errors))
    if factors is None:
        inside, widths = [row.inside for row in rows], [math.exp(row.low + row.high) for row in rows]
    else:
        inside = [row.within(factors[row.step]) for row in rows]
        widths = [row.width(factors[row.step]) for row in rows]
    return Figures(
        runs=len(rows),
        median=float(np.median(off)),
        mean=float(off.mean()),
        bias=float(100.0 * np.expm1(-np.median(errors))),
        inside=float(np.mean(inside)),
        width=float(np.median(widths)),
    )


def by_source(rows: Iterable[Judged]) -> dict[tuple[Kind, str], list[Judged]]:
    """Return the runs of each source of each kind."""
    found: dict[tuple[Kind, str], list[Judged]] = defaultdict(list)
    for row in rows:
        found[row.kind, row.source].append(row)
    return dict(sorted(found.items()))


def left_out(rows: Sequence[Judged], what: str) -> dict[str, Figures]:
    """Return the figures of each group of :data:`GROUPS`, judged by the factors of guiding runs outside it."""
    key, found = GROUPS[what], {}
    for group in sorted({key(row) for row in rows} - {""}):
        others = fitted([row for row in rows if row.role == "guide" and key(row) != group])
        own = [row for row in rows if key(row) == group and row.step in others]
        if own:
            found[group] = figures(own, others)
    return found


def alike(found: Iterable[Figures]) -> list[str]:
    """Return cells with the figures of sources that count alike, and the least inside of a source with enough runs.

    Sources with few runs count less, as in :func:`weights`.
    """
    ones = list(found)
    weight = [min(1.0, one.runs / _WHOLE) for one in ones]
    least = [one.inside for one in ones if one.runs >= _WHOLE]
    values = (np.average([getattr(one, name) for one in ones], weights=weight) for name in ("median", "mean", "inside"))
    median, mean, inside = map(float, values)
    width = float(np.median([one.width for one in ones]))
    return [
        str(len(ones)), f"{median:.1f}", f"{mean:.1f}", f"{inside:.2f}", f"{min(least):.2f}" if least else "–",
        f"{width:.2f}",
    ]  # fmt: skip


def pages(rows: Sequence[Judged], base: Sequence[Judged]) -> Iterator[str]:
    """Yield the tables of a study."""
    sources, before = by_source(rows), by_source(base)
    lines = []
    for kind in get_args(Kind):
        for role in get_args(Role):
            own = [figures(those) for (k, name), those in sources.items() if k == kind and role_of(k, name) == role]
            if own:
                pooled = figures([row for row in rows if row.kind == kind and row.role == role])
                lines.append([kind, role, *alike(own), f"{pooled.median:.1f} / {pooled.mean:.1f}"])
    columns = ["kind", "role", "sources", "median %", "mean %", "inside", "least inside", "width", "all runs %"]
    yield table(columns, lines)
    lines = []
    for (kind, name), those in sources.items():
        earlier = before.get((kind, name))
        was = [f"{figures(earlier).median:.1f} / {figures(earlier).inside:.2f}"] if earlier else ["–"] if base else []
        lines.append([kind, name, role_of(kind, name), *figures(those).cells(), *was])
    yield table(["kind", "source", "role", *COLUMNS, *(["before"] if base else [])], lines)
    for what in GROUPS:
        lines = [[group, *found.cells()] for group, found in left_out(rows, what).items()]
        yield table([f"{what} left out", *COLUMNS], lines)


def written(rows: Sequence[Judged], looks: Mapping[tuple[str, str], Mapping[str, str]]) -> dict[str, str]:
    """Return the tables of the page about unseen sources, by the names of their places."""
    lines = []
    for kind in get_args(Kind):
        for role, word in (("guide", "guide"), ("judge", "**judge**")):
            own = [
                figures(those) for (k, name), those in by_source(rows).items() if (k, role_of(k, name)) == (kind, role)
            ]
            if own:
                lines.append([NAMES[kind], word, *alike(own)])
    columns = ["runs of", "role", "sources", "median error %", "mean %", "inside", "least inside", "width"]
    shares = table(columns, lines)
    lines, apart = [], left_out(rows, "source")
    for (kind, name), those in by_source(rows).items():
        look, today, out = looks.get((kind, name)), figures(those), apart.get(name)
        first = f"{float(look['median_ape']):.1f} / {look['coverage_90']}" if look and look["median_ape"] else "–"
        lines.append([
            name, NAMES[kind], role_of(kind, name), str(today.runs), first,
            f"{today.median:.1f} / {today.mean:.1f} / {today.bias:+.1f}", f"{today.inside:.2f}", f"{today.width:.2f}",
            f"{out.inside:.2f}, {out.width:.2f}" if out else "–",
        ])  # fmt: skip
    columns = [
        "source", "runs of", "role", "runs", "first look: median % / inside", "today: median / mean / bias %", "inside",
        "width", "left out: inside, width",
    ]  # fmt: skip
    groups = []
    for what in ("framework", "device", "scale"):
        found = left_out(rows, what)
        groups += [[f"{what}: {group}", *one.cells()] for group, one in found.items() if one.runs >= _WHOLE]
    return {
        "roles": shares, "sources": table(columns, lines), "left-out": table(["left out", *COLUMNS], groups),
    }  # fmt: skip


def first_looks() -> dict[tuple[str, str], Mapping[str, str]]:
    """Return the figures of first looks by kind and source."""
    with LOOKS.open(encoding="utf-8", newline="") as file:
        return {(look["kind"], look["source"]): look for look in csv.DictReader(file)}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="keep the forecasts in this file")
    parser.add_argument("--from", type=Path, dest="kept", help="take the forecasts of this file instead of making them")
    parser.add_argument("--base", type=Path, help="a file of an earlier study, to compare with")
    parser.add_argument("--most", type=int, default=120, help="runs of a source at most")
    parser.add_argument("--fit", action="store_true", help="print the factors that guiding sources suggest")
    parser.add_argument("--write", action="store_true", help="write the tables of docs/unseen.md")
    given = parser.parse_args()
    rows = _kept(given.kept) if given.kept else forecasts(given.data, most=given.most)
    if given.output:
        given.output.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    for page in pages(rows, _kept(given.base) if given.base else []):
        print(page)
    if given.write:
        for name, content in written(rows, first_looks()).items():
            markers.write(PAGE, name, content)
    if given.fit:
        lines = [
            [kind, *(f"{value:.2f}" for value in (*found, *FACTORS[kind]))]
            for kind, found in fitted([row for row in rows if row.role == "guide"]).items()
        ]
        print(table(["kind of step", "below", "above", "shipped below", "above"], lines))


def _kept(path: Path) -> list[Judged]:
    return [Judged(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    main()
