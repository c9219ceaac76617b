"""How much a few runs of one's own help: ``python -m benchmarks.few DATA [--draws 20] [--fits 2] [--inside 8]``.

DATA is a folder with tables of measured runs. A cluster is what one source measured on one device with one framework,
for models of one kind; those with at least twenty runs take part. Runs are drawn from it at random, the cluster is
calibrated with them, and other runs of it are forecast. The table gives the mean error of these forecasts, divided by
that of uncalibrated ones. With up to three runs the offsets decide alone and are computed in closed form, which is
what ``calibrate`` does. With more, the whole calibration is made for the first ``--fits`` draws.

``--inside N`` also forecasts N other runs of every cluster in full, for one draw, and counts those inside their
interval. ``benchmarks/data/sources.toml`` says which sources may guide choices; clusters of the others only judge.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from benchmarks.markdown import table
from benchmarks.unseen import TABLES, role_of
from traincast.calibrating.few import ONLY_FEW, offsets, share_of_few, with_few
from traincast.calibrating.procedure import calibrate_runs
from traincast.calibrating.runs import MeasuredRun, prepare_run
from traincast.calibrating.study import forecast_by
from traincast.cluster import Calibration
from traincast.errors import TraincastError
from traincast.forecast import forecast
from traincast.measured import Measured, dp_steps, steps
from traincast.measured.table import completed
from traincast.strategy.model_kind import model_kind
from traincast.tables import Row, RowError, read_rows, text

Key: TypeAlias = tuple[str, str, str, str]

READERS: Final[dict[str, Callable[[int, Row], Measured]]] = {
    "steps": steps.read_timed_run,
    "dp-steps": dp_steps.read_run,
}
SIZES: Final = (1, 3, 10)
FEWEST: Final = 20
_UNNAMED: Final = "NVIDIA/DeepLearningExamples"
"""Who published the table that names no source."""
_LOADED: Final = 0.7
"""Share of a step from which the time of loading its samples hides that of the device."""


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.few", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--draws", type=int, default=20, help="draws of one and of three runs")
    parser.add_argument("--fits", type=int, default=2, help="draws of ten runs")
    parser.add_argument("--most", type=int, default=60, help="runs of a cluster that take part at most")
    parser.add_argument("--inside", type=int, default=0, help="runs to forecast in full, for intervals")
    given = parser.parse_args(arguments)
    found = clusters(given.data, most=given.most)
    for named in ("guide", "judge"):
        rows, ratios = [], []
        for key, runs in sorted(found.items()):
            if role(key[0]) == named:
                error, mine = helped(runs, draws=given.draws, fits=given.fits)
                ratios.append(mine)
                within = inside(runs, given.inside) if given.inside else ""
                rows.append([" ".join(key), str(len(runs)), f"{100 * error:.1f} %", *map(_two, mine), within])
        if rows:
            mean, worst = np.mean(ratios, axis=0).tolist(), np.max(ratios, axis=0).tolist()
            rows.append([f"mean of {len(rows)}", "", "", *map(_two, mean), ""])
            rows.append(["worst", "", "", *map(_two, worst), ""])
            columns = ["cluster", "runs", "error without", *(f"with {n}" for n in SIZES), "inside, width"]
            print(f"\n{named}\n\n{table(columns, rows)}", flush=True)


def role(source: str) -> str:
    """Return ``guide`` or ``judge``; a source that is in no list judges."""
    return "guide" if any(role_of(kind, source) == "guide" for kind in READERS) else "judge"


def clusters(data: Path, *, most: int) -> dict[Key, list[MeasuredRun]]:
    """Return up to ``most`` runs of every cluster with at least :data:`FEWEST`, ready to be simulated."""
    read: dict[Key, list[Measured]] = defaultdict(list)
    for name, kind in TABLES.items():
        path = data / f"{name}.parquet"
        rows = read_rows(path, needs=()) if kind in READERS and path.is_file() else []
        for index, row in enumerate(completed(rows) if kind == "steps" else rows):
            try:
                run = READERS[kind](index, row)
            except (RowError, TraincastError):
                continue
            request = run.request
            source = text(row, "source") or text(row, "where").partition(":")[0] or _UNNAMED
            read[source, request.cluster.device.name, request.runtime.name, model_kind(request.graph)].append(run)
    made = {
        key: _prepared(random.Random(1).sample(runs, min(most, len(runs))))
        for key, runs in read.items()
        if len(runs) >= FEWEST
    }
    return {key: runs for key, runs in made.items() if len(runs) >= FEWEST}


def _prepared(runs: Sequence[Measured]) -> list[MeasuredRun]:
    made = []
    for run in runs:
        try:
            one = prepare_run(run)
        except (RowError, TraincastError):
            continue
        if run.loading_s <= _LOADED * one.seconds:
            made.append(one)
    return made


def calibrated(seen: Sequence[MeasuredRun]) -> Calibration:
    """Return the calibration that ``seen`` runs give; with very few of them in closed form."""
    if len(seen) <= ONLY_FEW:
        return with_few(Calibration(), offsets(seen), share_of_few(len(seen)))
    return calibrate_runs(seen, curve=()).calibration


def helped(runs: Sequence[MeasuredRun], *, draws: int, fits: int) -> tuple[float, list[float]]:
    """Return the mean error without a calibration, and for each of :data:`SIZES` the error with one divided by it."""
    before = np.array([abs(run.simulated(Calibration()) / run.seconds - 1.0) for run in runs])
    ratios = []
    for size in SIZES:
        errors, plain = [], []
        for draw in range(draws if size <= ONLY_FEW else fits):
            seen, others = _drawn(len(runs), size, draw)
            calibration = calibrated([runs[i] for i in seen])
            errors += [abs(forecast_by(calibration, runs[i]) / runs[i].seconds - 1.0) for i in others]
            plain += before[others].tolist()
        ratios.append(float(np.mean(errors) / np.mean(plain)))
    return float(before.mean()), ratios


def _drawn(runs: int, size: int, draw: int) -> tuple[list[int], list[int]]:
    """Return ``size`` runs drawn at random, and all others."""
    order = np.random.default_rng([draw, size]).permutation(runs).tolist()
    return order[:size], order[size:]


def inside(runs: Sequence[MeasuredRun], count: int) -> str:
    """Return the share of runs inside their interval and its median width, uncalibrated and after 1, 3, 10 runs."""
    said = []
    for size in (0, *SIZES):
        seen, others = _drawn(len(runs), size, 0)
        calibration = calibrated([runs[i] for i in seen]) if size else None
        held, widths = [], []
        for i in others[:count]:
            request = runs[i].measured.request
            report = forecast(replace(request, cluster=replace(request.cluster, calibration=calibration))).report
            held.append(report.low_s <= runs[i].seconds <= report.high_s)
            widths.append(math.log(report.high_s / report.low_s))
        said.append(f"{np.mean(held):.2f} {math.exp(np.median(widths)):.2f}")
    return "; ".join(said)


def _two(value: float) -> str:
    return f"{value:.2f}"


if __name__ == "__main__":
    main()
