"""A run as one row of a table of measured steps, for ``validate steps`` and ``calibrate``."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Final

from traincast.files import write_text
from traincast.testbed.folder import RunFolder

ROW: Final = "row.csv"
"""The name of the table in the folder of a run."""


def row_of_run(run: RunFolder) -> dict[str, Any]:
    """Return the row of a run: the columns that ``validate steps`` reads, and what the machine was.

    The device is that of the first rank: the emulated one, or ``cpu``. Cells of what a run does not state are ``None``.
    """
    device = run.ranks[0].device if run.ranks and run.ranks[0].device else run.compute
    return {
        "source": "testbed",
        "date": str(run.started)[:10],
        "framework": run.runtime,
        "gpu": "cpu" if run.compute == "real" else device,
        "n_gpus": run.num_ranks,
        "gpus_per_node": 1,
        "interconnect": _network(run),
        "model": run.model,
        "seq": run.seq,
        "global_batch": run.global_batch,
        "strategy": run.strategy,
        "precision": run.precision,
        "step_time_s": run.step_s,
        "step_time_cv": run.repeat_cv,
        "steps": len(run.steps_s),
        "notes": f"testbed, {'real' if run.compute == 'real' else 'emulated'} compute, torch {run.torch}",
    }


def _network(run: RunFolder) -> str:
    """Return the slowest link of a run in words that a table of runs uses."""
    rates = [place.rate for place in run.ranks if place.rate]
    return f"{min(rates) * 8e-9:g} Gbit/s Ethernet" if rates else "Ethernet"


def write_row(run: RunFolder, path: Path) -> None:
    """Write the row of a run as a table of one row."""
    row = row_of_run(run)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(row)
    table.writerow("" if value is None else value for value in row.values())
    write_text(path, text.getvalue())
