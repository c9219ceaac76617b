"""``traincast.calibrate``: fit a cluster's parameters to runs that were measured on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from traincast.ask import verb
from traincast.brief import Brief, BriefTable
from traincast.calibrating.ask import CalibrateAsk
from traincast.calibrating.procedure import Calibrated, calibrate_runs
from traincast.calibrating.runs import MeasuredRun, prepare_runs
from traincast.cluster import Calibration, Cluster, load_cluster, write_calibrated
from traincast.errors import FileFormatError, RequestError, expect
from traincast.files import check_output
from traincast.measured import Measured
from traincast.measured.steps import NEEDS_ON_A_CLUSTER, read_timed_run
from traincast.measured.table import completed, rows_of
from traincast.measured.wrong_units import memory_unit, time_unit, wrong_memory_unit, wrong_time_unit

_LEARNED: Final = 0.05
"""Parameters whose uncertainty the runs reduced by less than this share are not shown."""


def _errors(found: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return found["median_ape"], found["mape"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalibratedCluster(Brief):
    """A cluster with the parameters fitted to its own runs, and how good they are.

    ``cluster`` can be given to `predict` and `search`. ``base`` is the cluster before calibration, and ``extends`` the
    name or the file that it was loaded from. ``fit`` has the parameters, the errors on runs seen and not seen, and
    the runs that stand out. ``runs`` are the rows that were used; ``skipped`` has the reason for each other row, by
    its number from 0.
    """

    cluster: Cluster
    base: Cluster
    extends: str
    fit: Calibrated
    runs: tuple[Measured, ...]
    skipped: Mapping[int, str]

    def brief(self) -> BriefTable:
        """Return the errors before and after the fit."""
        errors = self.fit.to_dict()["errors"]
        rows = [
            (name, f"{found['n']}", *("–" if value is None else f"{value:.1f} %" for value in _errors(found)))
            for name, found in errors.items()
        ]
        title = f"{self.base.name} calibrated with {len(self.runs)} runs, {len(self.skipped)} rows skipped"
        return BriefTable(title, rows, ("errors", "runs", "median", "mean"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibrated cluster as a TOML file that extends the one that was calibrated."""
        target = _toml(Path(path))
        write_calibrated(
            target,
            extends=_as_seen_from(self.extends, target),
            calibration=self.fit.calibration,
            name=self.cluster.name,
            source=self.cluster.source,
            num_nodes=self.base.num_nodes if self.base.num_nodes > 1 else 0,
            comments={move.name: f"± {100 * move.sure:.0f} %" for move in self.fit.moves if move.taught > _LEARNED},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {
            "cluster": self.base.name,
            "skipped": [{"index": index, "reason": reason} for index, reason in self.skipped.items()],
            "assumed": [{"index": run.index, "assumed": list(run.assumed)} for run in self.runs],
            **self.fit.to_dict(),
        }


@verb(CalibrateAsk)
def calibrate(ask: CalibrateAsk) -> CalibratedCluster:
    """Fit the parameters that datasheets do not give to measured runs (``.csv``, ``.csv.gz`` or ``.parquet``).

    All rows of ``table`` ran on ``cluster``: a name of the catalog or a TOML file, without a number of devices. A row
    states at least ``model``, ``n_gpus`` and ``step_time_s``; docs/calibration.md lists all columns. Rows that cannot
    be used are skipped with the reason; a table without a usable row is refused, and so is one whose figures look as
    if they were in another unit.

    With ``output``, a name that ends in ``.toml``, the calibrated cluster is written there. Finished stages are saved
    beside it, and the same call resumes from them if it was stopped. Without ``output`` nothing is written.
    ``curve`` has the numbers of runs for the learning curve. ``allow_code`` lets rows name models and schedules that
    are Python code, and runs it.
    """
    expect("table", ask.table, (str, os.PathLike), "the path of a table of runs")
    extends, path, base = _extended(ask.cluster), Path(ask.table), load_cluster(ask.cluster, whole_nodes=True)
    target = None if ask.output is None else _toml(Path(ask.output))
    if target is not None:
        inputs = {"the table of runs": path, "the cluster that it extends": Path(extends)}
        check_output(target, inputs={name: file for name, file in inputs.items() if file.is_file()})
    runs, skipped = read_runs(path, base, allow_code=ask.allow_code, progress=ask.progress)

    def result(fit: Calibrated) -> CalibratedCluster:
        calibrated = replace(
            base,
            name=base.name if base.calibration else f"{base.name}-calibrated",
            source=f"{base.source}; calibrated with {len(runs)} runs" if base.source else "",
            calibration=fit.calibration,
        )
        return CalibratedCluster(
            cluster=calibrated,
            base=base,
            extends=extends,
            fit=fit,
            runs=tuple(run.measured for run in runs),
            skipped=skipped,
        )

    return result(
        calibrate_runs(
            runs,
            curve=ask.curve,
            journal=None if target is None else target.with_name(f"{target.name}.journal"),
            save=None if target is None else lambda fit: result(fit).save(target),
            progress=ask.progress,
        )
    )


def _toml(path: Path) -> Path:
    if path.suffix != ".toml":
        raise RequestError(f"cannot write {path}: a cluster file is TOML, so its name must end in .toml")
    return path


def _extended(cluster: str) -> str:
    """Return the name or the file of ``cluster`` without its number of nodes; part of a node is refused."""
    name, _, numbers = cluster.rpartition(":") if ":" in cluster and not Path(cluster).exists() else (cluster, "", "")
    if "x" in numbers or "+" in cluster:
        raise RequestError(
            f"cluster {cluster}: calibrate a whole kind of node, such as {name}; rows say how many devices they used"
        )
    return name


def _as_seen_from(extends: str, target: Path) -> str:
    """Return a name of the catalog as it is, and a file as a path relative to the folder of ``target``."""
    return os.path.relpath(Path(extends).resolve(), target.resolve().parent) if extends.endswith(".toml") else extends


def read_runs(
    path: Path,
    cluster: Cluster,
    *,
    allow_code: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[MeasuredRun], dict[int, str]]:
    """Return the runs of a table, all on ``cluster``, and the reasons why other rows are skipped, by row number from 0.

    If most times, or most figures of memory, look as if they were in another unit, the table is refused with a guess
    of the unit. Single rows that look so are skipped.
    """
    rows = completed(rows_of(path, needs=NEEDS_ON_A_CLUSTER))
    if not rows:
        columns = ", ".join(NEEDS_ON_A_CLUSTER)
        raise FileFormatError(f"{path} has no rows: it needs one row for each measured run, with {columns}")
    runs, skipped = prepare_runs(
        rows,
        lambda index, row: read_timed_run(index, row, cluster=cluster, allow_code=allow_code),
        progress=progress,
    )
    if not runs:
        index, reason = next(iter(skipped.items()))
        raise FileFormatError(f"{path} has no run that can be forecast: row {index}, for example: {reason}")
    runs = _in_their_units(path, runs, skipped)
    return runs, dict(sorted(skipped.items()))


def _in_their_units(path: Path, runs: Sequence[MeasuredRun], skipped: dict[int, str]) -> list[MeasuredRun]:
    """Return the runs whose time and memory look right; the others go to ``skipped``, with a guess of their unit."""
    forecast = [run.simulated(Calibration()) for run in runs]
    times = [(run.seconds, seconds) for run, seconds in zip(runs, forecast, strict=True)]
    memories = [(run.measured.memory_bytes, run.predicted_memory) for run in runs if run.measured.memory_bytes]
    for guess in (wrong_time_unit(times), wrong_memory_unit([(m, p) for m, p in memories if m and p])):
        if guess:
            raise FileFormatError(f"{path}: {guess}; convert the column, or correct the device in the cluster's file")
    kept = []
    for run, (seconds, expected) in zip(runs, times, strict=True):
        memory, need = run.measured.memory_bytes, run.predicted_memory
        if unit := time_unit(seconds, expected):
            skipped[run.measured.index] = (
                f"step_time_s is {seconds:.4g}, but the forecast is {expected:.4g} s: it looks like {unit}"
            )
        elif memory and need and (unit := memory_unit(memory, need)):
            skipped[run.measured.index] = f"mem_gb is {memory / need:.3g} times the forecast: it looks like {unit}"
        else:
            kept.append(run)
    return kept
