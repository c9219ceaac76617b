"""Write the outcome of a simulation as a table of jobs."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Final

from traincast.files import write_text
from traincast.scheduling.queue.outcome import Outcome

COLUMNS: Final = (
    *("job_id", "submit_s", "start_s", "end_s", "n_gpus", "jct_s", "queue_s", "preemptions", "restarts", "nodes"),
)
"""Columns of the table of jobs; several nodes are separated by semicolons."""


def write_jobs(outcome: Outcome, path: Path) -> None:
    """Write the outcome of each job as CSV, in order of submission, with all digits."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for fate in outcome.fates:
        rows.writerow(
            (
                fate.job_id,
                *(_exact(value) for value in (fate.submit_s, fate.start_s, fate.end_s, fate.n_gpus)),
                *(_exact(value) for value in (fate.jct_s, fate.queue_s, fate.preemptions, fate.restarts)),
                ";".join(fate.nodes),
            )
        )
    write_text(path, text.getvalue())


def _exact(value: float) -> str:
    """Format a whole number without decimals, and any other number with all its digits."""
    return str(int(value)) if value == int(value) else repr(float(value))
