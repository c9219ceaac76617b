"""Job logs: read from a table or a published log, checked, in order of submission.

::

    log = load_jobs(Path("jobs.csv"))
    log.jobs               # what a simulation takes
    log["duration_s"]      # a column, as NumPy
    log.notes              # what was left out, sorted or rounded, one sentence each
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from traincast.collector import without_collector
from traincast.errors import FileFormatError, RequestError, UnknownNameError
from traincast.scheduling.joblogs import alibaba, helios, native, philly, swf
from traincast.scheduling.joblogs.job import Job
from traincast.scheduling.joblogs.source import Source, open_source, printable
from traincast.scheduling.joblogs.table import Bools, Floats, Ints, JobColumns, Texts, jobs
from traincast.scheduling.joblogs.values import check_values

NUMBERS: Final[Mapping[str, float]] = {
    "submit_s": np.nan,
    "num_gpus": np.nan,
    "duration_s": np.nan,
    "priority": 0.0,
    "deadline_s": np.nan,
    "estimate_s": np.nan,
    "batch": 0.0,
    "steps": 0.0,
    "min_gpus": 0.0,
    "max_gpus": 0.0,
}
"""Columns of numbers, and the value for a job that states none."""
TEXTS: Final = ("job_id", "vc", "gpu_type", "user", "model", "strategy", "status")
_OPTIONAL: Final = ("deadline_s", "estimate_s")
_WHOLE: Final = ("batch", "min_gpus", "max_gpus")


class Read(Protocol):
    """Reads a file of one format; with ``drop_invalid`` it skips malformed lines."""

    def __call__(self, source: Source, *, drop_invalid: bool = False) -> JobColumns:
        """Return the jobs of ``source``, in its order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How logs of one format are recognised and read; ``dated`` if submissions are dates."""

    about: str
    matches: Callable[[Source], bool]
    read: Read
    dated: bool = False


FORMATS: Final[Mapping[str, Format]] = {
    "philly": Format(about="Philly's cluster_job_log (JSON)", matches=philly.matches, read=philly.read, dated=True),
    "swf": Format(about="Standard Workload Format", matches=swf.matches, read=swf.read),
    "openb": Format(about="Alibaba's openb_pod_list", matches=alibaba.matches_openb, read=alibaba.read_openb),
    "helios": Format(about="Helios's cluster_log.csv", matches=helios.matches, read=helios.read, dated=True),
    "pai": Format(about="Alibaba's pai_task_table", matches=alibaba.matches_pai, read=alibaba.read_pai),
    "native": Format(about="this project's CSV or Parquet", matches=native.matches, read=native.read),
}
"""Formats by name, in the order in which a file is tried."""


@dataclass(frozen=True, kw_only=True, eq=False)
class JobLog:
    """Jobs as columns, in order of submission.

    ``log[name]`` is the column of a field of :class:`Job`, or ``status``; texts are "" and numbers NaN or 0 where a
    job has none. ``lines`` is where each job stands in the file (its line, row or entry, which ``place`` says).
    """

    path: Path
    format: str
    numbers: Mapping[str, Floats]
    texts: Mapping[str, Texts]
    lines: Ints
    place: str = "line"
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, name: str) -> Floats | Texts:
        if name in self.texts:
            return self.texts[name]
        if name in self.numbers:
            return self.numbers[name]
        raise UnknownNameError("column of a log", name, (*self.numbers, *self.texts))

    @property
    def to_forecast(self) -> Bools:
        """Mark the jobs that have a model but no duration. Their ``duration_s`` is 0 until it is forecast."""
        return np.equal(self.numbers["duration_s"], 0.0)

    @property
    def span_s(self) -> float:
        """Return the seconds between the first and the last submission."""
        submitted = self.numbers["submit_s"]
        return float(submitted[-1] - submitted[0]) if len(self) else 0.0

    def where(self, index: int) -> str:
        """Return where a job stands in the file, and its name: ``line 12 (job philly-000010)``."""
        return f"{self.place} {self.lines[index]} (job {printable(self.texts['job_id'][index])})"

    def select(self, mask: Bools) -> JobLog:
        """Return the log with only the jobs of ``mask``."""
        return replace(
            self,
            numbers={name: column[mask] for name, column in self.numbers.items()},
            texts={name: column[mask] for name, column in self.texts.items()},
            lines=self.lines[mask],
        )

    def with_columns(
        self, *, numbers: Mapping[str, Floats] | None = None, texts: Mapping[str, Texts] | None = None
    ) -> JobLog:
        """Return the jobs with other values in some columns, such as forecast durations."""
        return replace(self, numbers={**self.numbers, **(numbers or {})}, texts={**self.texts, **(texts or {})})

    def with_notes(self, *notes: str) -> JobLog:
        """Return the log with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs as objects; refuses a log with a job that has no duration."""
        missing = np.flatnonzero(self.to_forecast)
        if len(missing):
            raise RequestError(
                f"{self.path}: {jobs(len(missing))} of {len(self):,} {'has' if len(missing) == 1 else 'have'} no "
                f"duration_s, {self.where(int(missing[0]))} first: forecast them before they are run"
            )
        fields = self._fields()
        with without_collector():
            return tuple(Job(**dict(zip(fields, values, strict=True))) for values in zip(*fields.values(), strict=True))

    def _fields(self) -> dict[str, list[Any]]:
        """The fields of the jobs as lists; fields that no job states keep their defaults."""
        always = ("job_id", "submit_s", "num_gpus", "duration_s")
        fields: dict[str, list[Any]] = {}
        for name in (*TEXTS, *NUMBERS):
            column = self[name]
            absent = column == "" if name in TEXTS else np.isnan(column) if name in _OPTIONAL else column == 0.0
            if name == "status" or (name not in always and np.all(absent)):
                continue
            values = column.tolist()
            if name in _OPTIONAL:
                values = [None if gone else value for value, gone in zip(values, absent, strict=True)]
            fields[name] = [int(value) for value in values] if name in _WHOLE else values
        return fields


def load_jobs(path: Path | str, *, format: str | None = None, drop_invalid: bool = False) -> JobLog:  # noqa: A002
    """Read a log and check every job; without ``format``, the format is detected from the content.

    Jobs that no simulation can run (no time of submission, no GPUs, a negative duration, a name used twice) are
    refused together, in one line that counts them and names the first; with ``drop_invalid`` they are left out, and
    a note counts them.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise UnknownNameError("log format", format, FORMATS)
    if path.is_dir() and (path / "pai_task_table.csv").is_file():
        path = path / "pai_task_table.csv"
    source = open_source(path)
    name = format or detect_format(source)
    columns = FORMATS[name].read(source, drop_invalid=drop_invalid)
    _fill(columns)
    if FORMATS[name].dated:
        _count_from_first(columns)
    check_values(columns, path, drop_invalid=drop_invalid)
    notes = [f"{path}: {note}" for note in columns.notes]
    if columns.left_out:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in columns.left_out.items())
        notes.append(f"{path}: {jobs(sum(columns.left_out.values()))} left out: {counts}")
    if not len(columns):
        reason = f"; {notes[-1].partition(': ')[2]}" if columns.left_out else ""
        raise FileFormatError(f"{path} has no jobs that can run{reason}: give a log with at least one")
    order = np.argsort(columns.numbers["submit_s"], kind="stable")
    if np.any(np.diff(columns.numbers["submit_s"]) < 0.0):
        notes.append(f"{path}: jobs were not in order of submission: sorted by submit_s")
    return JobLog(
        path=path,
        format=name,
        numbers={name: columns.numbers[name][order] for name in NUMBERS},
        texts={name: columns.texts[name][order] for name in TEXTS},
        lines=columns.lines[order],
        place=columns.place,
        notes=tuple(notes),
    )


def detect_format(source: Source) -> str:
    """Return which of :data:`FORMATS` a file has."""
    for name, kind in FORMATS.items():
        if kind.matches(source):
            return name
    known = {column for names in native.NAMES.values() for column in names}
    if known & set(source.header):
        return "native"
    others = [kind.about for name, kind in FORMATS.items() if name != "native"]
    shown = ", ".join(repr(printable(cell, 24)) for cell in source.header[:6]) + (
        ", …" if len(source.header) > 6 else ""
    )
    raise FileFormatError(
        f"{source.path} is not a job log of a known format: its first line has {shown or 'nothing'}; expected the "
        f"columns job_id, submit_s, num_gpus and duration_s, or {', '.join(others)}"
    )


def _fill(columns: JobColumns) -> None:
    """Give every job every field."""
    for name, absent in NUMBERS.items():
        values = columns.numbers.get(name)
        if values is None:
            columns.numbers[name] = np.full(len(columns), absent)
        elif absent == 0.0:
            columns.numbers[name] = np.where(np.isnan(values), absent, values)
    for name in TEXTS:
        columns.texts.setdefault(name, np.full(len(columns), "", dtype=object))
    least, most, gpus = (columns.numbers[name] for name in ("min_gpus", "max_gpus", "num_gpus"))
    columns.numbers["min_gpus"] = np.where((least == 0.0) & (most != 0.0), gpus, least)
    columns.numbers["max_gpus"] = np.where((most == 0.0) & (least != 0.0), gpus, most)


def _count_from_first(columns: JobColumns) -> None:
    submitted = columns.numbers["submit_s"]
    if not np.all(np.isnan(submitted)):
        columns.numbers["submit_s"] = submitted - np.nanmin(submitted)
