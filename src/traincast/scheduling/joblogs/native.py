"""This project's own table of jobs: CSV or Parquet, one job a row, times in seconds.

A job with ``model`` and ``steps`` (or ``samples`` and a batch) needs no ``duration_s``. It is then 0 until forecast.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traincast.scheduling.joblogs.source import Source
from traincast.scheduling.joblogs.table import JobColumns, need, read_table

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "job_id": ("job_id",),
    "submit_s": ("submit_s", "submit_time_s"),
    "num_gpus": ("num_gpus", "n_gpus"),
    "duration_s": ("duration_s",),
    "vc": ("vc",),
    "user": ("user",),
    "status": ("status",),
    "gpu_type": ("gpu_type",),
    "priority": ("priority",),
    "deadline_s": ("deadline_s",),
    "estimate_s": ("estimate_s",),
    "model": ("model",),
    "batch": ("batch", "batch_size"),
    "steps": ("steps",),
    "samples": ("samples",),
    "strategy": ("strategy",),
    "min_gpus": ("min_gpus",),
    "max_gpus": ("max_gpus",),
}
"""Possible names of the column for each field of a job; the first name that the file has counts."""
TEXTS: Final = ("job_id", "vc", "user", "status", "gpu_type", "model", "strategy")


def _found(header: tuple[str, ...]) -> dict[str, str]:
    """Return the column of the file for each field that it has."""
    return {name: next(n for n in names if n in header) for name, names in NAMES.items() if set(names) & set(header)}


def matches(source: Source) -> bool:
    """Whether the columns are those of this project."""
    return {"submit_s", "num_gpus"} <= _found(source.header).keys()


def read(source: Source, *, drop_invalid: bool = False) -> JobColumns:
    """Read the jobs of the table."""
    found = _found(source.header)
    described = "model" in found and ("steps" in found or "samples" in found)
    needed = ("job_id", "submit_s", "num_gpus", *(() if described else ("duration_s",)))
    need(source, [found.get(name, NAMES[name][0]) for name in needed], what="a table of jobs")
    table = read_table(source, list(found.values()), drop_malformed=drop_invalid)
    columns = table.jobs()
    for name, column in found.items():
        if name in TEXTS:
            columns.texts[name] = table.texts(column)
        else:
            columns.numbers[name] = table.numbers(column, columns.unparsable, called=name)
    columns.numbers.setdefault("duration_s", np.full(len(columns), np.nan))
    _describe(columns)
    return columns


def _describe(columns: JobColumns) -> None:
    """Turn samples into steps, and mark described jobs without a duration as to be forecast (0 s)."""
    numbers = columns.numbers
    nothing = np.full(len(columns), np.nan)
    steps = numbers.get("steps", nothing)
    samples = numbers.pop("samples", None)
    if samples is not None:
        batch = numbers.get("batch", nothing)
        steps = np.where(np.isnan(steps), np.ceil(samples / np.where(batch > 0, batch, np.nan)), steps)
        numbers["steps"] = steps
    if "model" not in columns.texts:
        return
    described = (columns.texts["model"] != "") & (steps > 0)
    missing = np.isnan(numbers["duration_s"])
    missing[list(columns.unparsable.get("duration_s", ()))] = False
    numbers["duration_s"] = np.where(described & missing, 0.0, numbers["duration_s"])
