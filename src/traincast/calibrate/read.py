"""Tables of measured runs, as calibration reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from traincast.calibrate.runs import Measured, Run, prepare_runs
from traincast.cluster import Cluster, find_device
from traincast.errors import FileFormatError, TraincastError
from traincast.units import GIB
from traincast.validate.steps import NEEDS_ON_A_CLUSTER, request_of
from traincast.validate.tables import Row, RowError, number, read_table, text

NEEDS: Final = NEEDS_ON_A_CLUSTER
_FAILED: Final = ("fail", "oom", "error")


def read_runs(
    path: Path, cluster: Cluster, *, progress: Callable[[int, int], None] | None = None
) -> tuple[list[Run], dict[int, str]]:
    """The runs of a table, all on ``cluster``, and why the other rows are none, by row number from 0."""
    rows = read_table(path, needs=NEEDS)
    if not rows:
        raise FileFormatError(f"{path} has no rows: it needs one for each measured run, with {', '.join(NEEDS)}")
    runs, skipped = prepare_runs(rows, lambda index, row: measured(index, row, cluster), progress=progress)
    if not runs:
        index, reason = next(iter(skipped.items()))
        raise FileFormatError(f"{path} has no run that can be forecast: row {index} for one: {reason}")
    return runs, skipped


def measured(index: int, row: Row, cluster: Cluster | None = None) -> Measured:
    """One row as a measured run, on ``cluster`` or on what its own columns say."""
    if any(word in text(row, "status").lower() for word in _FAILED):
        raise RowError("the run failed: it has no step time")
    seconds = number(row, "step_time_s")
    if seconds is None or not 0.0 < seconds < 1e6:
        raise RowError(f"step_time_s is {row.get('step_time_s')}: expected seconds above 0")
    if cluster is not None and text(row, "gpu"):
        _check_device(text(row, "gpu"), cluster)
    memory = number(row, "mem_gb")
    request = request_of(row, cluster=cluster)
    return Measured(
        index=index,
        request=request,
        seconds=seconds,
        memory_bytes=memory * GIB if memory and memory > 0.0 else None,
    )


def _check_device(written: str, cluster: Cluster) -> None:
    """A row that names another device did not run on ``cluster``."""
    try:
        device = find_device(written)
    except TraincastError:
        return  # not of the catalog: the cluster's own file knows better
    if device.architecture != cluster.device.architecture:
        raise RowError(f"ran on {device.name}, but {cluster.name} has {cluster.device.name}")
