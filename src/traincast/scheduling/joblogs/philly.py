"""``cluster_job_log`` of Philly: four months of jobs on clusters of Microsoft, as a list in JSON.

Each job has ``status`` (Pass, Killed, Failed), ``vc``, ``jobid``, ``submitted_time``, ``user`` and ``attempts``; each
attempt has ``start_time``, ``end_time`` and ``detail``, a list of ``ip`` and ``gpus``. A job's duration is the sum
over its attempts: the time for which it held GPUs. The waits between attempts are queueing, which a simulation
replaces by its own. Its GPUs are those of its last attempt. Times are local and without zone, so a run across the end
of summer time is an hour too short. Source: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN
Training Workloads", USENIX ATC 2019.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np

from traincast.errors import FileFormatError
from traincast.scheduling.joblogs.source import MAX_JSON_BYTES, Source, printable, read_text
from traincast.scheduling.joblogs.table import JobColumns

_KEYS: Final = ("jobid", "submitted_time", "attempts")
_SPACE: Final = re.compile(r"[ \t\r\n]*")


class _Row(NamedTuple):
    entry: int
    job_id: str
    submit_s: float
    num_gpus: float
    duration_s: float
    vc: str
    user: str
    status: str


def matches(source: Source) -> bool:
    """Whether the file is JSON."""
    return source.head.lstrip()[:1] in ("[", "{")


def read(source: Source, *, drop_invalid: bool = False) -> JobColumns:
    """Read the jobs with attempts that have ended; submissions are in seconds since 1970."""
    rows: list[_Row] = []
    left_out: dict[str, int] = {}
    for entry, value in _entries(source):
        try:
            row = _row(entry, value)
        except _EntryError as error:
            if not drop_invalid:
                raise FileFormatError(
                    f"{source.path}: entry {entry} {error}; expected a job of Philly's cluster_job_log with "
                    f"{', '.join(_KEYS)}; correct it, or leave such out with drop_invalid"
                ) from error
            row = "without what a job of Philly has"
        if isinstance(row, str):
            left_out[row] = left_out.get(row, 0) + 1
        else:
            rows.append(row)
    columns = JobColumns(
        numbers={
            name: np.array([getattr(row, name) for row in rows], dtype=np.float64)
            for name in ("submit_s", "num_gpus", "duration_s")
        },
        texts={
            name: np.array([getattr(row, name) for row in rows], dtype=object)
            for name in ("job_id", "vc", "user", "status")
        },
        lines=np.array([row.entry for row in rows], dtype=np.int64),
        place="entry",
        left_out=left_out,
    )
    columns.round_up_short_runs()
    return columns


class _EntryError(Exception):
    """What is wrong with an entry, as the end of a sentence about it."""


def _entries(source: Source) -> Iterator[tuple[int, Any]]:
    """Yield the entries of the list with their numbers, from 1; beside the text, only one entry is in memory."""
    text = read_text(source, max_bytes=MAX_JSON_BYTES, max_line=None)
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise FileFormatError(f"{source.path} is JSON, but not a list: Philly's cluster_job_log is a list of jobs")
    at = _skip(text, at + 1)
    entry = 0
    while text[at : at + 1] != "]":
        entry += 1
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).split(":")[0]
            raise FileFormatError(
                f"{source.path} is not valid JSON in entry {entry}: {reason[:80]}; fetch it again, or repair it"
            ) from error
        yield entry, value
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise FileFormatError(
                f"{source.path} is cut off or damaged after entry {entry}: expected a comma or the end of the list; "
                "fetch it again"
            )


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None, "the pattern matches nothing too"
    return match.end()


def _row(entry: int, value: Any) -> _Row | str:
    """Return an entry as a job, or the reason why it is left out."""
    if not isinstance(value, dict):
        raise _EntryError(f"is {_shown(value)}")
    for key in _KEYS:
        if key not in value:
            raise _EntryError(f"lacks {key}")
    attempts = value["attempts"]
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        raise _EntryError("has attempts that are not a list of objects")
    submit = _seconds(value["submitted_time"], "submitted_time")
    if not attempts:
        return "that never ran"
    spans = [(_seconds(a.get("start_time"), "start_time"), _seconds(a.get("end_time"), "end_time")) for a in attempts]
    if spans[-1][0] is not None and spans[-1][1] is None:
        return "still running when the log ends"
    ran = [end - start for start, end in spans if start is not None and end is not None and end >= start]
    if not ran:
        return "without a start or an end"
    gpus = next((count for count in map(_gpus, reversed(attempts)) if count), 0)
    if not gpus:
        return "without GPUs"
    return _Row(
        entry=entry,
        job_id=_text(value["jobid"]),
        submit_s=np.nan if submit is None else submit,
        num_gpus=gpus,
        duration_s=sum(ran),
        vc=_text(value.get("vc")),
        user=_text(value.get("user")),
        status=_text(value.get("status")),
    )


def _gpus(attempt: dict[str, Any]) -> int:
    detail = attempt.get("detail") or []
    if not isinstance(detail, list):
        raise _EntryError("has a detail that is not a list")
    count = 0
    for part in detail:
        gpus = part.get("gpus") if isinstance(part, dict) else None
        if not isinstance(gpus, list):
            raise _EntryError("has a detail without a list of gpus")
        count += len(gpus)
    return count


def _seconds(value: Any, name: str) -> float | None:
    """Return a time of the log in seconds since 1970, or ``None`` if the log has none."""
    if value is None or value in ("", "None"):
        return None
    try:
        return datetime.fromisoformat(value[:19]).replace(tzinfo=UTC).timestamp()
    except (TypeError, ValueError) as error:
        raise _EntryError(f"has {_shown(value)} as {name}, which is not a date such as 2017-10-07 01:11:39") from error


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "an object"
    return printable(repr(value))
