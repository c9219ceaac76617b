"""The Standard Workload Format (version 2.2) of the Parallel Workloads Archive, with processors read as GPUs.

Lines of 18 numbers, -1 for what is unknown; lines that begin with ``;`` are comments. Of the fields, from 1: number
of the job (1), submission (2), run time (4), processors allocated (5) and requested (8), requested time (9), status
(11: 0 failed, 1 completed, 5 cancelled), user (12), queue (15). Source: Feitelson, Tsafrir and Krakov, "Experience
with using the Parallel Workloads Archive", JPDC 74(10), 2014.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traincast.errors import FileFormatError
from traincast.scheduling.joblogs.source import MAX_BYTES, Source, printable, read_text
from traincast.scheduling.joblogs.table import Floats, JobColumns, Texts

FIELDS: Final = 18
_STATUS: Final = {0: "failed", 1: "completed", 2: "partial", 3: "partial", 4: "partial", 5: "cancelled"}
_CANCELLED: Final = 5


def matches(source: Source) -> bool:
    """Return whether the first line that is not a comment has the 18 numbers of the format."""
    lines = [line for line in source.head.splitlines() if line.strip()]
    data = [line for line in lines if not line.lstrip().startswith(";")]
    if not data:
        return bool(lines)
    cells = data[0].split()
    return (len(data) < len(lines) and "," not in data[0]) or (len(cells) == FIELDS and _is_number(cells[0]))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def read(source: Source, *, drop_invalid: bool = False) -> JobColumns:
    """Read the jobs that ran."""
    text = read_text(source, max_bytes=MAX_BYTES)
    numbered = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip() and line.lstrip()[0] != ";"]
    values, kept = _values(source, numbered, drop_invalid=drop_invalid)
    number, submit, _, run, allocated, _, _, requested, limit, _, status, user, _, _, queue = values.T[:15]
    columns = JobColumns(
        numbers={
            "submit_s": np.where(submit == -1.0, np.nan, submit),
            "num_gpus": np.where(requested > 0, requested, allocated),
            "duration_s": run,
            "estimate_s": np.where(limit > 0, limit, np.nan),
        },
        texts={
            "job_id": _texts(number, unknown=None),
            "user": _texts(user),
            "vc": _texts(queue),
            "status": np.array([_STATUS.get(int(s) if np.isfinite(s) else -1, "") for s in status], dtype=object),
        },
        lines=np.array([numbered[i][0] for i in kept], dtype=np.int64),
    )
    if len(kept) < len(numbered):
        columns.left_out["on lines without 18 numbers"] = len(numbered) - len(kept)
    cancelled = status == _CANCELLED
    ran = (run != -1.0) & ~((run == 0.0) & cancelled)
    columns.keep(ran, "that never ran")
    gpus = columns.numbers["num_gpus"]
    columns.keep((gpus != -1.0) & (gpus != 0.0), "without processors")
    columns.round_up_short_runs()
    return columns


def _texts(column: Floats, unknown: float | None = -1.0) -> Texts:
    return np.array(["" if v == unknown or np.isnan(v) else f"{v:.15g}" for v in column.tolist()], dtype=object)


def _values(source: Source, numbered: list[tuple[int, str]], *, drop_invalid: bool) -> tuple[Floats, list[int] | range]:
    """Return the numbers of each line with a job, and the numbers of these lines."""
    if not numbered:
        raise FileFormatError(f"{source.path} has no jobs: all of its lines are comments; give a log with jobs")
    try:
        return np.loadtxt([line for _, line in numbered], ndmin=2, usecols=range(FIELDS)), range(len(numbered))
    except ValueError:
        pass
    rows = [line.split() for _, line in numbered]
    bad = [i for i, cells in enumerate(rows) if len(cells) < FIELDS or not all(map(_is_number, cells[:FIELDS]))]
    if bad and (not drop_invalid or len(bad) == len(rows)):
        cells, where = rows[bad[0]], numbered[bad[0]][0]
        wrong = next((cell for cell in cells[:FIELDS] if not _is_number(cell)), None)
        found = f"has {len(cells)} fields" if wrong is None else f"has {printable(wrong)!r}"
        them = "them" if len(bad) > 1 else "it"
        raise FileFormatError(
            f"{source.path} has {len(bad):,} line{'s' if len(bad) > 1 else ''} without the {FIELDS} numbers of the "
            f"Standard Workload Format: line {where} {found}; correct "
            f"{them}, or leave {them} out with drop_invalid"
        )
    kept = sorted(set(range(len(rows))) - set(bad))
    return np.array([[float(cell) for cell in rows[i][:FIELDS]] for i in kept], dtype=np.float64), kept
