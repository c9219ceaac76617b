"""The runs of a table, ready for fitting; figures in another unit are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from traincast.calibrating.runs import MeasuredRun, prepare_runs
from traincast.cluster import Calibration, Cluster
from traincast.errors import FileFormatError
from traincast.measured.steps import NEEDS_ON_A_CLUSTER, read_timed_run
from traincast.measured.table import completed, rows_of
from traincast.measured.wrong_units import memory_unit, time_unit, wrong_memory_unit, wrong_time_unit


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
