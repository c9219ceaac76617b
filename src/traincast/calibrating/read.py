"""Tables of measured runs, as calibration reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from traincast.calibrating.runs import Measured, MeasuredRun, prepare_runs
from traincast.cluster import Calibration, Cluster, find_device
from traincast.errors import FileFormatError, TraincastError
from traincast.tables import RowError
from traincast.validating.steps import LONGEST_S, NEEDS_ON_A_CLUSTER, has_run, memory_of, read_row
from traincast.validating.tables import Row, figure, memory_bytes, read_table, text
from traincast.validating.wrong_units import memory_unit, time_unit, wrong_memory_unit, wrong_time_unit

NEEDS: Final = NEEDS_ON_A_CLUSTER


def read_runs(
    path: Path,
    cluster: Cluster,
    *,
    allow_code: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[MeasuredRun], dict[int, str]]:
    """The runs of a table, all on ``cluster``, and why the other rows are none, by row number from 0.

    A table most of whose figures look like another unit is refused with the guess; single rows that do are left out.
    """
    rows = read_table(path, needs=NEEDS)
    if not rows:
        raise FileFormatError(f"{path} has no rows: it needs one for each measured run, with {', '.join(NEEDS)}")
    runs, skipped = prepare_runs(
        rows, lambda index, row: measured(index, row, cluster, allow_code=allow_code), progress=progress
    )
    if not runs:
        index, reason = next(iter(skipped.items()))
        raise FileFormatError(f"{path} has no run that can be forecast: row {index} for one: {reason}")
    runs = _in_their_units(path, runs, skipped)
    return runs, dict(sorted(skipped.items()))


def _in_their_units(path: Path, runs: Sequence[MeasuredRun], skipped: dict[int, str]) -> list[MeasuredRun]:
    """The runs whose time and memory are in the right unit; ``skipped`` gets the others with the guess."""
    forecast = [run.simulated(Calibration()) for run in runs]
    times = [(run.seconds, seconds) for run, seconds in zip(runs, forecast, strict=True)]
    memories = [(run.measured.memory_bytes, run.predicted_memory) for run in runs if run.measured.memory_bytes]
    for guess in (wrong_time_unit(times), wrong_memory_unit([(m, p) for m, p in memories if m and p])):
        if guess:
            raise FileFormatError(f"{path}: {guess}; convert the column, or describe the cluster's device as it is")
    kept = []
    for run, (seconds, expected) in zip(runs, times, strict=True):
        memory, need = run.measured.memory_bytes, run.predicted_memory
        if unit := time_unit(seconds, expected):
            skipped[run.measured.index] = (
                f"step_time_s is {seconds:.4g} where {expected:.4g} s are forecast: it looks like {unit}"
            )
        elif memory and need and (unit := memory_unit(memory, need)):
            skipped[run.measured.index] = f"mem_gb looks like {unit}: {memory / need:.3g} times the forecast"
        else:
            kept.append(run)
    return kept


def measured(index: int, row: Row, cluster: Cluster | None = None, *, allow_code: bool = False) -> Measured:
    """One row as a measured run, on ``cluster`` or on what its own columns say."""
    if not has_run(row):
        raise RowError("the run failed: it has no step time")
    seconds = figure(row, "step_time_s")
    if seconds is None or not 0.0 < seconds < LONGEST_S:
        raise RowError(f"step_time_s is {row.get('step_time_s')}: expected seconds above 0")
    if cluster is not None and text(row, "gpu"):
        _check_device(text(row, "gpu"), cluster)
    reading = read_row(row, cluster=cluster, allow_code=allow_code)
    assumed = list(reading.assumed)
    memory = memory_of(row, memory_bytes(row), reading.request.cluster.device, assumed)
    return Measured(index=index, request=reading.request, seconds=seconds, memory_bytes=memory, assumed=tuple(assumed))


def _check_device(written: str, cluster: Cluster) -> None:
    """A row that names another device did not run on ``cluster``."""
    try:
        device = find_device(written)
    except TraincastError:
        return  # not of the catalog: the cluster's own file knows better
    if device.architecture != cluster.device.architecture:
        raise RowError(f"ran on {device.name}, but {cluster.name} has {cluster.device.name}")
