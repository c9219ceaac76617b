"""Checks each job of a log by itself: values that no job can have.

All jobs are checked before anything is reported. A refusal counts the jobs that break a rule and names the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from traincast.errors import FileFormatError
from traincast.scheduling.joblogs.source import printable
from traincast.scheduling.joblogs.table import Bools, JobColumns, jobs

MAX_SECONDS: Final = 1e11
"""Three thousand years: a larger number is milliseconds, or a mistake."""
MAX_GPUS: Final = 1e6
MAX_NUMBER: Final = 1e15
SHOWN: Final = 3
"""How many jobs that break a rule are named; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule for one column, and a function that finds the jobs that break it."""

    column: str
    must: str
    broken: Callable[[JobColumns], Bools]


def check_values(columns: JobColumns, path: Path, *, drop_invalid: bool) -> None:
    """Refuse jobs with impossible values, all in one line; or leave them out and count them."""
    found = {rule: np.flatnonzero(mask) for rule in RULES if np.any(mask := _broken(rule, columns))}
    if not found:
        _note_deadlines(columns)
        return
    bad = np.zeros(len(columns), dtype=bool)
    for rows in found.values():
        bad[rows] = True
    shown = 1 if drop_invalid else SHOWN
    reasons = "; ".join(
        f"{rule.must}, but {_examples(rule.column, columns, rows.tolist(), shown)}" for rule, rows in found.items()
    )
    count = int(np.count_nonzero(bad))
    if not drop_invalid:
        raise FileFormatError(
            f"{path}: {count:,} of {jobs(len(columns))} cannot be run: {reasons}; correct "
            f"{'it' if count == 1 else 'them'}, or leave {'it' if count == 1 else 'them'} out with drop_invalid"
        )
    columns.notes.append(f"{count:,} of {jobs(len(columns))} left out as invalid: {reasons}")
    columns.keep(~bad)
    _note_deadlines(columns)


def _broken(rule: Rule, columns: JobColumns) -> Bools:
    with np.errstate(invalid="ignore"):
        mask = rule.broken(columns).copy()
    for row in columns.unparsable.get(rule.column, ()):
        mask[row] = True
    return mask


def _examples(column: str, columns: JobColumns, rows: list[int], named: int) -> str:
    texts = columns.unparsable.get(column, {})

    def shown(row: int) -> str:
        if row in texts:
            return repr(printable(texts[row]))
        if column in columns.texts:
            return repr(printable(columns.texts[column][row])) if columns.texts[column][row] else "nothing"
        if column == "max_gpus":
            return ", ".join(f"{columns.numbers[name][row]:.15g}" for name in ("min_gpus", "num_gpus", "max_gpus"))
        value = float(columns.numbers[column][row])
        return "nothing" if np.isnan(value) else f"{value:.15g}"

    def named_job(row: int) -> str:
        name = columns.texts["job_id"][row]
        return f" (job {printable(name)})" if name else ""

    examples = [f"{columns.place} {columns.lines[row]}{named_job(row)} has {shown(row)}" for row in rows[:named]]
    more = [f"{len(rows) - named:,} more"] if len(rows) > named else []
    return " and ".join([", ".join(examples), *more])


def _note_deadlines(columns: JobColumns) -> None:
    late = columns.numbers["deadline_s"] < columns.numbers["submit_s"]
    if np.any(late):
        row = int(np.flatnonzero(late)[0])
        columns.notes.append(
            f"{jobs(int(np.count_nonzero(late)))} with a deadline_s before submission, {columns.place} "
            f"{columns.lines[row]} first: deadlines are on the clock of submit_s, not counted from it"
        )


def _within(name: str, low: float, high: float, *, above: bool = False) -> Callable[[JobColumns], Bools]:
    """Whether a number is missing or out of bounds."""

    def broken(columns: JobColumns) -> Bools:
        values = columns.numbers[name]
        return ~((values > low if above else values >= low) & (values <= high))

    return broken


def _given(broken: Callable[[JobColumns], Bools], name: str) -> Callable[[JobColumns], Bools]:
    """Check as ``_within`` does, but accept a missing number."""

    def broken_if_given(columns: JobColumns) -> Bools:
        return ~np.isnan(columns.numbers[name]) & broken(columns)

    return broken_if_given


def _bad_gpus(columns: JobColumns) -> Bools:
    gpus = columns.numbers["num_gpus"]
    sound: Bools = (gpus > 0) & (gpus <= MAX_GPUS) & ((gpus < 1) | (gpus == np.floor(gpus)))
    return ~sound


def _bad_duration(columns: JobColumns) -> Bools:
    run = columns.numbers["duration_s"]
    forecast = (run == 0.0) & (columns.texts["model"] != "") & (columns.numbers["steps"] > 0)
    sound: Bools = ((run > 0) & (run <= MAX_SECONDS)) | forecast
    return ~sound


def _bad_bounds(columns: JobColumns) -> Bools:
    least, most, gpus = (columns.numbers[name] for name in ("min_gpus", "max_gpus", "num_gpus"))
    whole = (least == np.floor(least)) & (most == np.floor(most))
    sound: Bools = whole & (least >= 1) & (least <= gpus) & (gpus <= most) & (most <= MAX_GPUS)
    given: Bools = (least != 0) | (most != 0)
    return given & ~sound


def _nothing(columns: JobColumns) -> Bools:
    """Mark no job: for columns in which only unreadable cells break the rule."""
    return np.zeros(len(columns), dtype=bool)


def _no_name(columns: JobColumns) -> Bools:
    return np.asarray(columns.texts["job_id"] == "", dtype=bool)


def _named_twice(columns: JobColumns) -> Bools:
    names: list[str] = columns.texts["job_id"].tolist()
    mask = np.zeros(len(names), dtype=bool)
    if len(set(names)) < len(names):
        seen: set[str] = set()
        for row, name in enumerate(names):
            mask[row] = name in seen and name != ""
            seen.add(name)
    return mask


_SECONDS: Final = f"to {MAX_SECONDS:g}"
RULES: Final = (
    Rule(column="job_id", must="every job must have a job_id", broken=_no_name),
    Rule(column="job_id", must="every job needs its own job_id", broken=_named_twice),
    Rule(
        column="submit_s",
        must=f"submit_s must be seconds from 0 {_SECONDS}",
        broken=_within("submit_s", 0, MAX_SECONDS),
    ),
    Rule(
        column="num_gpus",
        must=f"num_gpus must be a whole number to {MAX_GPUS:g}, or a share between 0 and 1",
        broken=_bad_gpus,
    ),
    Rule(
        column="duration_s",
        must=f"duration_s must be seconds above 0 {_SECONDS}, unless model and steps are given",
        broken=_bad_duration,
    ),
    Rule(
        column="estimate_s",
        must=f"estimate_s must be seconds above 0 {_SECONDS}, or empty",
        broken=_given(_within("estimate_s", 0, MAX_SECONDS, above=True), "estimate_s"),
    ),
    Rule(
        column="deadline_s",
        must=f"deadline_s must be seconds from 0 {_SECONDS}, or empty",
        broken=_given(_within("deadline_s", 0, MAX_SECONDS), "deadline_s"),
    ),
    Rule(
        column="priority",
        must=f"priority must be a number from {-MAX_NUMBER:g} to {MAX_NUMBER:g}",
        broken=_within("priority", -MAX_NUMBER, MAX_NUMBER),
    ),
    Rule(column="batch", must=f"batch must be from 0 to {MAX_NUMBER:g}", broken=_within("batch", 0, MAX_NUMBER)),
    Rule(column="steps", must=f"steps must be from 0 to {MAX_NUMBER:g}", broken=_within("steps", 0, MAX_NUMBER)),
    Rule(
        column="max_gpus",
        must="bounds must be whole numbers with 1 ≤ min_gpus ≤ num_gpus ≤ max_gpus",
        broken=_bad_bounds,
    ),
    *(
        Rule(column=column, must=f"{column} must be a number, or empty", broken=_nothing)
        for column in ("min_gpus", "samples")
    ),
)
