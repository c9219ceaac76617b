"""Files that a simulation leaves: each takes its place only when all of it is written."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Final

from traincast.errors import FileFormatError
from traincast.scheduling.outcome import Outcome

COLUMNS: Final = (
    *("job_id", "submit_s", "start_s", "end_s", "n_gpus", "jct_s", "queue_s", "preemptions", "restarts", "nodes"),
)
"""Columns of the table of jobs; several nodes are separated by semicolons."""


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written before anything is simulated."""
    if path.is_dir():
        raise FileFormatError(f"cannot write {path}: it is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        return  # a device or a pipe
    beside = _beside(path.resolve())
    try:
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise _refusal(path, error) from error


def write_whole(path: Path, text: str) -> None:
    """Write a file beside ``path`` and let it take its place; devices and pipes are written to as they are."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()
        beside = _beside(target)
        try:
            beside.write_text(text, encoding="utf-8", newline="")
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise _refusal(path, error) from error


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.part")


def _refusal(path: Path, error: OSError) -> FileFormatError:
    if isinstance(error, FileNotFoundError) and not path.resolve().parent.is_dir():
        return FileFormatError(f"cannot write {path}: the folder {path.resolve().parent} does not exist")
    return FileFormatError(
        f"cannot write {path}: {error.strerror or error}; give the name of a file in a folder that can be written to"
    )


def write_jobs(outcome: Outcome, path: Path) -> None:
    """Write what became of each job as CSV, in order of submission; numbers are exact."""
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
    write_whole(path, text.getvalue())


def _exact(value: float) -> str:
    """A whole number as such, any other with all of its digits."""
    return str(int(value)) if value == int(value) else repr(float(value))
