"""The index of measured runs behind every forecast: read from tables of runs, forecast, and written to the package.

    python -m benchmarks.evidence DATA              # reads the tables of runs below DATA and forecasts a choice
    python -m benchmarks.evidence DATA --refresh    # only forecasts the runs of the index anew
    python -m benchmarks.evidence DATA --distance   # how well distances tell that errors are alike, on guide sources

A source with many runs is thinned to at most ``--most`` of them, spread over its settings. Forecasts use no
calibration. Only figures are kept: no words of the tables but the names of sources, models and devices.
"""

from __future__ import annotations

import argparse
import itertools
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from benchmarks.markdown import table
from traincast.errors import TraincastError
from traincast.evidence.distance import distances
from traincast.evidence.runs import INDEX, PublishedRun, Runs, index_bytes, measured_runs
from traincast.evidence.traits import Traits, traits_of
from traincast.files import write_bytes
from traincast.forecast import forecast
from traincast.measured import Measured, dp_steps, steps
from traincast.measured.calibrations import without_calibration
from traincast.measured.table import completed, rows_of
from traincast.measured.tuning import rows as finetune
from traincast.tables import Row, RowError, text

Floats = npt.NDArray[np.float64]
Kind: TypeAlias = Literal["steps", "dp_steps", "finetune"]

KINDS: Final[tuple[Kind, ...]] = ("dp_steps", "steps", "finetune")
"""How names of tables begin; the first that matches counts."""
_NEEDS: Final = {"steps": steps.NEEDS, "dp_steps": dp_steps.NEEDS, "finetune": finetune.NEEDS}
_UNNAMED: Final = "NVIDIA/DeepLearningExamples"
"""Who published the rows that state neither a source nor where they stand."""
_SETTINGS: Final = (
    *("framework", "model", "gpu", "gpu_model", "n_gpus", "zero", "tp", "pp", "cp", "ep", "recompute", "precision"),
    *("method", "offload", "seq", "micro_batch", "batch_per_gpu"),
)
"""Columns by which the rows of a source are spread."""
MOST: Final = 60
"""Most runs of one source in a table."""
_SOURCES: Final = Path(__file__).parent / "data" / "sources.toml"
_EDGES: Final = (0.0, 0.5, 1.0, 1.5, 2.5, np.inf)
_PAIRS: Final = 200_000
"""Pairs of runs that are drawn for a rank correlation."""
_LONGEST: Final = 48
"""Characters of the longest name of a model."""


def kind_of(path: Path) -> Kind | None:
    """Return what a table of runs holds, by its name."""
    return next((kind for kind in KINDS if path.stem.startswith(kind)), None)


def source_of(row: Row) -> str:
    """Return who published a row: its ``source``, or the repository in ``where``."""
    return text(row, "source") or text(row, "where").partition(":")[0].partition(" ")[0] or _UNNAMED


def chosen(rows: Sequence[Row], most: int) -> list[int]:
    """Return the numbers of at most ``most`` rows of each source, evenly spaced in the order of their settings."""
    of_source: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        of_source[source_of(row)].append(number)
    found: list[int] = []
    for numbers in of_source.values():
        ordered = sorted(numbers, key=lambda n: ([text(rows[n], name) for name in _SETTINGS], n))
        count = min(most, len(ordered))
        found += [ordered[i * len(ordered) // count] for i in range(count)]
    return sorted(found)


def tables_below(data: Path) -> Iterator[tuple[str, Kind, list[Row]]]:
    """Yield the name, the kind and the rows of each table of runs below ``data``."""
    for path in sorted(data.rglob("*.parquet")):
        if kind := kind_of(path):
            rows = rows_of(path, needs=_NEEDS[kind])
            name = path.relative_to(data).with_suffix("").as_posix()
            yield name, kind, list(completed(rows)) if kind == "steps" else list(rows)


def read_run(kind: Kind, number: int, row: Row) -> tuple[Measured, float]:
    """Return a run, and the seconds of its start-up in the time of a step."""
    if kind == "finetune":
        return finetune.read_tuning(number, row).run, finetune.start_up(row)
    return (steps if kind == "steps" else dp_steps).read_run(number, row), 0.0


def indexed(source: str, name: str, number: int, kind: Kind, row: Row) -> PublishedRun | None:
    """Forecast one row; ``None`` if it cannot be read or states no time."""
    try:
        run, extra = read_run(kind, number, row)
        if not run.seconds or not run.ran:
            return None
        report = forecast(without_calibration(run.request)).report
    except (RowError, TraincastError):
        return None
    return PublishedRun(
        source=source,
        traits=_named(traits_of(run.request), row),
        measured_s=float(f"{run.seconds:.6g}"),
        predicted_s=float(f"{max(report.step_s, run.loading_s) + extra:.6g}"),
        table=name,
        row=number,
    )


def _named(traits: Traits, row: Row) -> Traits:
    """Return ``traits`` with the name that a row gives to its model, if its graph has only dimensions for a name."""
    stated = text(row, "model")[:_LONGEST]
    return replace(traits, model=stated) if ":" in traits.model and stated else traits


def made(data: Path, most: int) -> list[PublishedRun]:
    """Return the runs of a new index."""
    found = []
    for name, kind, rows in tables_below(data):
        timed = [n for n, row in enumerate(rows) if _states_time(kind, row)]
        numbers = [timed[i] for i in chosen([rows[n] for n in timed], most)]
        runs = [indexed(source_of(rows[n]), name, n, kind, rows[n]) for n in numbers]
        found += [run for run in runs if run is not None]
        print(f"{name}: {sum(run is not None for run in runs)} of {len(rows)} rows")
    return found


def _states_time(kind: Kind, row: Row) -> bool:
    """Whether a row ran and states a time; those of other kinds are told when they are read."""
    if kind == "finetune":
        return text(row, "judge_time").lower() not in {"false", "0"}
    return kind != "steps" or steps.has_run(row)


def refreshed(data: Path) -> list[PublishedRun]:
    """Return the runs of the shipped index with new forecasts; a run that can no longer be read is left out."""
    index = measured_runs()
    tables = {name: (kind, rows) for name, kind, rows in tables_below(data)}
    found = []
    for number in range(len(index)):
        run = index.run(number)
        kind, rows = tables[run.table]
        again = indexed(run.source, run.table, run.row, kind, rows[run.row])
        found += [replace(again, measured_s=run.measured_s)] if again else []
    return found


def by_nearest(runs: Runs, others: Runs) -> tuple[Floats, Floats]:
    """Return for each run the distance of the nearest of ``others`` of another source, and how far errors lie apart.

    Errors are logarithms of forecast over measured time.
    """
    errors, theirs = (np.log(of["predicted_s"] / of["measured_s"]) for of in (runs, others))
    far, apart = np.empty(len(runs)), np.empty(len(runs))
    for number in range(len(runs)):
        found = distances(runs.run(number).traits, others)
        found[others["source"] == runs["source"][number]] = np.inf
        nearest = int(np.argmin(found))
        far[number], apart[number] = found[nearest], abs(errors[number] - theirs[nearest])
    return far, apart


def rank_correlation(runs: Runs) -> float:
    """Return Spearman's rank correlation between distance and |difference of errors|, over pairs of one kind.

    Pairs are of different sources; every pair of sources has the same weight.
    """
    from scipy.stats import spearmanr  # type: ignore[import-untyped, unused-ignore]

    errors = np.log(runs["predicted_s"] / runs["measured_s"])
    names, source = np.unique(runs["source"], return_inverse=True)
    pairs: list[Floats] = []
    for number in range(len(runs)):
        other = (source > source[number]) & (runs["kind"] == runs["kind"][number])
        if other.any():
            far = distances(runs.run(number).traits, runs)[other]
            both = source[number] * len(names) + source[other]
            pairs.append(np.stack([far, np.abs(errors[other] - errors[number]), both.astype(np.float64)]))
    far, apart, both = np.concatenate(pairs, axis=1)
    _, group, count = np.unique(both, return_inverse=True, return_counts=True)
    weight = 1.0 / count[group]
    drawn = np.random.default_rng(0).choice(len(far), _PAIRS, p=weight / weight.sum())
    return float(spearmanr(far[drawn], apart[drawn]).statistic)


def judged_distances(runs: Runs, others: Runs) -> str:
    """Return a table of errors by the distance of the nearest of ``others``; sources have equal weights."""
    errors = np.abs(np.log(runs["predicted_s"] / runs["measured_s"]))
    far, apart = by_nearest(runs, others)
    source, count = np.unique(runs["source"], return_inverse=True, return_counts=True)[1:]
    weight = 1.0 / count[source]
    lines = []
    for low, high in itertools.pairwise(_EDGES):
        own = (far >= low) & (far < high)
        if own.any():
            means = (np.expm1(np.average(of[own], weights=weight[own])) for of in (errors, apart))
            where = f"{low:g} to {high:g}" if high < np.inf else f"above {low:g}"
            lines.append([where, str(int(own.sum())), *(f"{mean:.0%}" for mean in means)])
    head = ["nearest run of another source", "runs", "forecast off by", "off from its neighbour's error by"]
    return table(head, lines)


def _of_role(runs: Runs, role: str) -> Runs:
    """Return the runs of sources that guide, or that judge."""
    divided = tomllib.loads(_SOURCES.read_text(encoding="utf-8"))
    names = [name for kind in ("steps", "dp-steps", "finetune") for name in divided[kind][role]]
    own = np.isin(runs["source"], names)
    return runs.of_numbers(np.flatnonzero(own).tolist())


def main() -> None:
    """PublishedRun from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--refresh", action="store_true")
    parser.add_argument("--distance", action="store_true")
    parser.add_argument("--most", type=int, default=MOST)
    given = parser.parse_args()
    if given.distance:
        guides, judges = (_of_role(measured_runs(), role) for role in ("guide", "judge"))
        print(f"guide sources: rank correlation of pairs {rank_correlation(guides):.2f}\n")
        print(judged_distances(guides, guides))
        print(f"\njudging sources, among all runs\n\n{judged_distances(judges, measured_runs())}")
        return
    runs = refreshed(given.data) if given.refresh else made(given.data, given.most)
    write_bytes(INDEX, index_bytes(runs))
    print(f"{len(runs)} runs of {len({run.source for run in runs})} sources, {INDEX.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
