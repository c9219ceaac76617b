"""Two logs of Alibaba: PAI (two months of 2020, jobs made of tasks) and openb (2023, pods that share GPUs).

PAI's tables come without header. ``pai_task_table.csv`` has ``job_name, task_name, inst_num, status, start_time,
end_time, plan_cpu, plan_mem, plan_gpu, gpu_type``, with ``plan_gpu`` in hundredths of a GPU for each of ``inst_num``
instances. A job is all tasks of a name that have GPUs: their sum, from their first start to their last end. Where
``pai_job_table.csv`` (``job_name, inst_id, user, status, start_time, end_time``) lies beside it, submission, user and
status are taken from there; without it, a job is submitted when its first task starts. ``pai_instance_table.csv``,
if given instead, has start and end of each instance. ``gpu_type`` is what a task was given, not what it needs, so the
job does not require it. Source: Weng et al., "MLaaS in the Wild", NSDI 2022.

openb's pods have ``name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, qos, pod_phase, creation_time,
deletion_time, scheduled_time``; one GPU may be shared by thousandths. A pod runs from ``scheduled_time`` to
``deletion_time``; ``qos`` is its virtual cluster, ``gpu_spec`` the types it may run on, separated by "|". Source: Weng
et al., "Beware of Fragmentation", USENIX ATC 2023.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from traincast.errors import FileFormatError
from traincast.scheduling.joblogs.source import Source, open_source, printable
from traincast.scheduling.joblogs.table import Bools, Floats, Ints, JobColumns, Texts, TextTable, jobs, need, read_table

TABLES: Final[dict[str, tuple[str, ...]]] = {
    "pai_job_table": ("job_name", "inst_id", "user", "status", "start_time", "end_time"),
    "pai_task_table": tuple(
        "job_name task_name inst_num status start_time end_time plan_cpu plan_mem plan_gpu gpu_type".split()
    ),
    "pai_instance_table": tuple(
        "job_name task_name inst_name worker_name inst_id status start_time end_time machine".split()
    ),
}
_STATES: Final = ("Running", "Terminated", "Failed", "Waiting", "Interrupted")
_WANTED: Final = ("job_name", "inst_num", "status", "start_time", "end_time", "plan_gpu", "user", "task_name")

POD_NEEDS: Final = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
_POD_WANTED: Final = (*POD_NEEDS, "gpu_spec", "qos", "pod_phase")


def pai_table(source: Source) -> str | None:
    """Return which of PAI's tables a file is, by its header, or by the position of a status in its first line."""
    first = source.header
    for name, columns in TABLES.items():
        if set(columns) <= set(first):
            return name
        if len(first) == len(columns) and first[columns.index("status")] in _STATES:
            return name
    return None


def matches_pai(source: Source) -> bool:
    """Whether the file is one of PAI's tables."""
    return pai_table(source) is not None


def read_pai(source: Source, *, drop_invalid: bool = False) -> JobColumns:
    """Read the jobs whose tasks with GPUs have started and ended."""
    kind = pai_table(source)
    if kind is None:
        need(source, TABLES["pai_task_table"], what="a table of PAI's tasks")
    assert kind is not None, "a table with all columns of the tasks is theirs"
    tasks = _read(source, kind, "pai_task_table", drop_invalid=drop_invalid)
    launches = _read(source, kind, "pai_job_table", drop_invalid=drop_invalid)
    assert tasks is not None, "it is refused where there is none"
    shares = _numbers(tasks, "plan_gpu", drop_invalid) / 100.0
    instances = _numbers(tasks, "inst_num", drop_invalid)
    gpus = shares * np.where(np.isnan(instances), 1.0, instances)
    codes, names = tasks.codes("job_name")
    whole = _per_job(tasks, codes, len(names), gpus > 0, drop_invalid=drop_invalid)
    timed = whole
    if kind == "pai_instance_table":
        parts = _read(source, kind, kind, drop_invalid=drop_invalid)
        assert parts is not None, "it is the file that was given"
        number_of = {name: number for number, name in enumerate(names)}
        part_codes, part_names = parts.codes("job_name")
        ours = np.array([number_of.get(name, -1) for name in part_names], dtype=np.int64)[part_codes]
        mask = (ours >= 0) & np.isin(_task_keys(parts), _task_keys(tasks)[gpus > 0])
        timed = _per_job(parts, ours, len(names), mask, drop_invalid=drop_invalid)
    total: Floats = np.bincount(codes, np.where(gpus > 0, gpus, 0.0), minlength=len(names)).astype(np.float64)
    columns = _pai_columns(tasks, names, total, whole, timed)
    if launches is not None:
        _take_launches(columns, launches, drop_invalid=drop_invalid)
    without = int(np.count_nonzero(np.bincount(codes, minlength=len(names)) > 0) - np.count_nonzero(total > 0))
    if without:
        columns.left_out["without GPUs"] = without
    columns.left_out |= tasks.left_out()
    _leave_out_unfinished(columns)
    _round_up_shares(columns)
    columns.round_up_short_runs()
    return columns


def _read(source: Source, kind: str, table: str, *, drop_invalid: bool) -> TextTable | None:
    """One of PAI's tables: the file that was given, or the one of that name beside it."""
    found = source if kind == table else _beside(source, kind, table, needed=table == "pai_task_table")
    if found is None:
        return None
    return read_table(found, _WANTED, names=_names(found, table), drop_malformed=drop_invalid)


def _numbers(table: TextTable, name: str, drop_invalid: bool) -> Floats:
    unparsable: dict[str, dict[int, str]] = {}
    values = table.numbers(name, unparsable)
    if unparsable and not drop_invalid:
        cells = unparsable[name]
        row, text = next(iter(cells.items()))
        them = "them" if len(cells) > 1 else "it"
        raise FileFormatError(
            f"{table.source.path} has {len(cells):,} cell{'s' if len(cells) > 1 else ''} of {name} without a number: "
            f"{table.place} {table.lines[row]} has {printable(text)!r}; correct {them}, or leave {them} out "
            "with drop_invalid"
        )
    return values


def _task_keys(table: TextTable) -> Texts:
    keys: Texts = table.texts("job_name") + "/" + table.texts("task_name")
    return keys


class _Spans(NamedTuple):
    """For each job: first start and last end of its parts, whether none started, and whether one has not ended."""

    start: Floats
    end: Floats
    waits: Bools
    runs: Bools
    first_row: Ints


def _per_job(table: TextTable, codes: Ints, count: int, mask: Bools, *, drop_invalid: bool) -> _Spans:
    """The spans of the ``count`` jobs, over the rows of ``mask``."""
    start, end = (_numbers(table, name, drop_invalid)[mask] for name in ("start_time", "end_time"))
    jobs_of = codes[mask]
    first = np.full(count, np.inf)
    np.minimum.at(first, jobs_of, np.where(np.isnan(start), np.inf, start))
    last = np.full(count, -np.inf)
    np.maximum.at(last, jobs_of, np.where(np.isnan(end), -np.inf, end))
    running = np.bincount(jobs_of, ~np.isnan(start) & np.isnan(end), minlength=count) > 0
    rows = np.full(count, len(mask), dtype=np.int64)
    np.minimum.at(rows, jobs_of, np.flatnonzero(mask))
    return _Spans(start=first, end=last, waits=first == np.inf, runs=running, first_row=rows)


def _pai_columns(tasks: TextTable, names: list[str], gpus: Floats, whole: _Spans, timed: _Spans) -> JobColumns:
    """Return the jobs with GPUs; the duration is infinite for jobs that have not ended, NaN for those that wait."""
    has = np.flatnonzero(gpus > 0)
    start = np.where(timed.waits, np.nan, timed.start)[has]
    rows = whole.first_row[has]
    return JobColumns(
        numbers={
            "submit_s": start,
            "num_gpus": gpus[has],
            "duration_s": np.where(timed.runs[has], np.inf, timed.end[has] - start),
        },
        texts={"job_id": np.array(names, dtype=object)[has], "status": tasks.texts("status")[rows]},
        lines=tasks.lines[rows],
        place=tasks.place,
    )


def _take_launches(columns: JobColumns, launches: TextTable, *, drop_invalid: bool) -> None:
    """Take submission, user and status of each job from the table of jobs."""
    row_of = {name: row for row, name in enumerate(launches.texts("job_name").tolist())}
    rows = np.array([row_of.get(name, -1) for name in columns.texts["job_id"].tolist()], dtype=np.int64)
    known = rows >= 0
    submitted = _numbers(launches, "start_time", drop_invalid)[rows]
    submitted = np.where(known & ~np.isnan(submitted), submitted, columns.numbers["submit_s"])
    columns.numbers["submit_s"] = np.minimum(submitted, np.fmin(columns.numbers["submit_s"], submitted))
    columns.texts["user"] = np.where(known, launches.texts("user")[rows], "")
    columns.texts["status"] = np.where(known, launches.texts("status")[rows], columns.texts["status"])


def _leave_out_unfinished(columns: JobColumns) -> None:
    columns.keep(~np.isnan(columns.numbers["duration_s"]), "that never ran")
    columns.keep(columns.numbers["duration_s"] != np.inf, "still running when the log ends")


def _round_up_shares(columns: JobColumns) -> None:
    """Round shares of several GPUs up: instances that share GPUs may sum to 2.5, and the job gets 3 whole GPUs."""
    gpus = np.round(columns.numbers["num_gpus"], 9)
    uneven = (gpus > 1.0) & (gpus != np.floor(gpus))
    columns.numbers["num_gpus"] = np.where(uneven, np.ceil(gpus), gpus)
    if count := int(np.count_nonzero(uneven)):
        columns.notes.append(f"{jobs(count)} with shares of several GPUs rounded up to whole ones")


def _names(source: Source, kind: str) -> tuple[str, ...] | None:
    """Return the columns of a table that has no header."""
    return None if set(TABLES[kind]) <= set(source.header) else TABLES[kind]


def _beside(source: Source, kind: str, other: str, *, needed: bool = True) -> Source | None:
    """Another table of the same folder."""
    for suffix in (".csv", ".csv.gz"):
        path = source.path.with_name(other + suffix)
        if path.is_file():
            found = open_source(path)
            if pai_table(found) != other:
                raise FileFormatError(
                    f"{path} is not PAI's {other}: its columns are other ones; fetch it again, or move it away"
                )
            return found
    if needed:
        raise FileFormatError(
            f"{source.path} is PAI's {kind}, which does not say how many GPUs a job has: put {other}.csv into the "
            "same folder"
        )
    return None


def matches_openb(source: Source) -> bool:
    """Whether the columns are those of openb's list of pods."""
    return set(POD_NEEDS) <= set(source.header)


def read_openb(source: Source, *, drop_invalid: bool = False) -> JobColumns:
    """Read the pods with GPUs that were scheduled."""
    need(source, POD_NEEDS, what="openb's list of pods")
    table = read_table(source, _POD_WANTED, drop_malformed=drop_invalid)
    columns = table.jobs()
    bad = columns.unparsable
    count = table.numbers("num_gpu", bad, called="num_gpus")
    milli = table.numbers("gpu_milli", bad, called="num_gpus")
    created = table.numbers("creation_time", bad, called="submit_s")
    scheduled = table.numbers("scheduled_time", bad, called="duration_s")
    deleted = table.numbers("deletion_time", bad, called="duration_s")
    columns.numbers = {
        "submit_s": created,
        "num_gpus": np.where(count == 1.0, np.where(np.isnan(milli), 1.0, milli / 1000.0), count),
        "duration_s": deleted - scheduled,
    }
    names = {"job_id": "name", "vc": "qos", "status": "pod_phase", "gpu_type": "gpu_spec"}
    columns.texts = {name: table.texts(column) for name, column in names.items()}
    unread = np.zeros(len(columns), dtype=bool)
    unread[list(bad.get("duration_s", ()))] = True
    with_gpus = columns.numbers["num_gpus"] != 0
    waits = ~unread & np.isnan(scheduled)
    runs = ~unread & ~waits & np.isnan(deleted)
    columns.keep(with_gpus, "without GPUs")
    columns.keep(~waits[with_gpus], "that never ran")
    columns.keep(~runs[with_gpus & ~waits], "still running when the log ends")
    columns.round_up_short_runs()
    return columns
