"""Checks before a run: each job by itself, and all jobs against the cluster.

All jobs are checked before anything is reported. A refusal counts the jobs that break a rule and names the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from traincast.errors import FileFormatError, RequestError
from traincast.scheduling.joblogs.source import printable
from traincast.scheduling.joblogs.table import Bools, Floats, JobColumns, Texts, jobs
from traincast.scheduling.space.cluster import SharedCluster

if TYPE_CHECKING:
    from traincast.scheduling.joblogs.read import JobLog

MAX_SECONDS: Final = 1e11
"""Three thousand years: a larger number is milliseconds, or a mistake."""
MAX_GPUS: Final = 1e6
MAX_NUMBER: Final = 1e15
SHOWN: Final = 3
"""How many jobs that break a rule are named; all are counted."""

Oversize: TypeAlias = Literal["refuse", "drop", "clip"]


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


def check_fit(log: JobLog, cluster: SharedCluster, *, oversize: Oversize = "refuse", any_gpu: bool = False) -> JobLog:
    """Return the jobs of ``log`` that ``cluster`` can run, with notes on changes and on overload.

    Some jobs ask for more GPUs than they can ever get: more than the nodes of their GPU type or of their virtual
    cluster have, or more than their quota. They are refused, left out (``drop``) or reduced to what they can get
    (``clip``). With ``any_gpu``, the GPU types that jobs ask for are ignored.
    """
    log = _settle_types(log, cluster, any_gpu=any_gpu)
    log = _note_unknown_vcs(log, cluster)
    room = _room(log, cluster)
    least = np.where(log.numbers["min_gpus"] > 0, log.numbers["min_gpus"], log.numbers["num_gpus"])
    large = least > room
    if np.any(large):
        log = _oversized(log, cluster, room, large, oversize)
    elif np.any(cramped := log.numbers["num_gpus"] > room):
        row = int(np.flatnonzero(cramped)[0])
        log = log.with_notes(
            f"{log.path}: {jobs(int(np.count_nonzero(cramped)))} can start only under an elastic policy: "
            f"{log.where(row)} {_wants(log, cluster, row, room[row])}, with min_gpus as its least"
        )
    return log.with_notes(*_overload(log, cluster))


def _settle_types(log: JobLog, cluster: SharedCluster, *, any_gpu: bool) -> JobLog:
    """Use the cluster's names for the GPU types that jobs ask for; of several (``A|B``), the one with most GPUs."""
    asked: Texts = log.texts["gpu_type"]
    if not np.any(asked != ""):
        return log
    has: dict[str, int] = {}
    for node in cluster.nodes:
        has[node.gpu_type] = has.get(node.gpu_type, 0) + node.num_gpus
    if any_gpu or set(has) == {""}:
        note = () if any_gpu else (f"{log.path}: GPU types that jobs ask for are passed over: the nodes name none",)
        return log.with_columns(texts={"gpu_type": np.full(len(log), "", dtype=object)}).with_notes(*note)
    settled: dict[str, str] = {}
    for spec in dict.fromkeys(asked.tolist()):
        choices = [name for name in spec.split("|") if name in has]
        settled[spec] = max(choices, key=has.__getitem__) if choices else spec
    several = sum(1 for spec in asked.tolist() if "|" in spec)
    chosen: Texts = np.array([settled[spec] for spec in asked.tolist()], dtype=object)
    log = log.with_columns(texts={"gpu_type": chosen})
    if not several:
        return log
    return log.with_notes(
        f"{log.path}: {jobs(several)} that may run on several GPU types kept to the one with the most GPUs"
    )


def _note_unknown_vcs(log: JobLog, cluster: SharedCluster) -> JobLog:
    known = {node.vc for node in cluster.nodes if node.vc} | set(cluster.quotas)
    if not known:
        return log
    names: list[str] = log.texts["vc"].tolist()
    unknown = sorted({name for name in names if name and name not in known})
    if not unknown:
        return log
    count = sum(1 for name in names if name and name not in known)
    return log.with_notes(
        f"{log.path}: {jobs(count)} of virtual clusters that the cluster does not know, {printable(unknown[0])!r} for "
        f"one: they have no quota, and share the nodes without owner; known are {_some(sorted(known))}"
    )


def _some(names: list[str], shown: int = 6) -> str:
    return ", ".join(printable(name) for name in names[:shown]) + (", …" if len(names) > shown else "")


def _room(log: JobLog, cluster: SharedCluster) -> Floats:
    """Return how many GPUs each job could get on the empty cluster; a job does not mix GPU types."""
    owners = {node.vc for node in cluster.nodes if node.vc}
    sizes: dict[tuple[str, str], int] = {}
    for node in cluster.nodes:
        sizes[node.vc, node.gpu_type] = sizes.get((node.vc, node.gpu_type), 0) + node.num_gpus
    room: dict[tuple[str, str], float] = {}
    pairs = list(zip(log.texts["vc"].tolist(), log.texts["gpu_type"].tolist(), strict=True))
    for vc, gpu_type in set(pairs):
        owner = vc if vc in owners else ""
        most = max((n for (o, kind), n in sizes.items() if o == owner and gpu_type in ("", kind)), default=0)
        room[vc, gpu_type] = min(most, cluster.quotas.get(vc, np.inf))
    return np.array([room[pair] for pair in pairs], dtype=np.float64)


def _oversized(log: JobLog, cluster: SharedCluster, room: Floats, large: Bools, oversize: Oversize) -> JobLog:
    count = int(np.count_nonzero(large))
    if oversize == "drop":
        left = log.select(~large)
        if not len(left):
            raise RequestError(f"{log.path}: every job is larger than the cluster's {cluster.num_gpus} GPUs: add nodes")
        return left.with_notes(f"{log.path}: {jobs(count)} left out: larger than what the cluster can give them")
    nowhere = large & (room <= 0)
    if oversize == "clip" and not np.any(nowhere):
        gpus = np.where(large, np.where(room >= 1, np.floor(room), room), log.numbers["num_gpus"])
        bounds = {name: np.where(large, 0.0, log.numbers[name]) for name in ("min_gpus", "max_gpus")}
        return log.with_columns(numbers={"num_gpus": gpus, **bounds}).with_notes(
            f"{log.path}: {jobs(count)} made smaller, to what the cluster can give them; durations are as they were"
        )
    rows = np.flatnonzero(nowhere if np.any(nowhere) else large)
    named = ", ".join(f"{log.where(int(row))} {_wants(log, cluster, int(row), room[row])}" for row in rows[:SHOWN])
    more = f" and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else ""
    types = sorted({node.gpu_type for node in cluster.nodes if node.gpu_type})
    has = f"{len(cluster.nodes)} nodes with {cluster.num_gpus} GPUs" + (f" ({_some(types)})" if types else "")
    remedy = (
        "give it nodes for them, or any_gpu"
        if np.any(nowhere)
        else "add nodes, or have oversize jobs dropped or clipped"
    )
    raise RequestError(
        f"{log.path}: {len(rows):,} of {jobs(len(log))} can never start: {named}{more}; the cluster has {has}: {remedy}"
    )


def _wants(log: JobLog, cluster: SharedCluster, row: int, room: float) -> str:
    gpus, kind, vc = (log[name][row] for name in ("num_gpus", "gpu_type", "vc"))
    of_type = f" of type {printable(kind)}" if kind else ""
    bounded = vc in cluster.quotas or any(node.vc for node in cluster.nodes)
    within = f" for virtual cluster {printable(vc) or 'none'}" if bounded else ""
    return f"asks for {gpus:g} GPU{'s' if gpus > 1 else ''}{of_type} of {room:g}{within}"


def _overload(log: JobLog, cluster: SharedCluster) -> list[str]:
    """Note the GPU types for which jobs submit more GPU time per second than the cluster has."""
    if log.span_s <= 0.0:
        return []
    work = log.numbers["num_gpus"] * log.numbers["duration_s"]
    forecast = int(np.count_nonzero(log.to_forecast))
    without = f", not counting {jobs(forecast)} whose duration is to be forecast" if forecast else ""
    offered = float(work.sum()) / log.span_s
    notes = []
    if offered > cluster.num_gpus:
        notes.append(
            f"{log.path}: overload: jobs ask for {offered:.1f} GPUs on average between the first and the last "
            f"submission{without}, the cluster has {cluster.num_gpus} ({offered / cluster.num_gpus:.0%}): the queue "
            "grows until submissions end; add nodes, or take a part of the log"
        )
    names: Texts = log.texts["vc"]
    over = []
    for vc, quota in sorted(cluster.quotas.items()):
        asked = float(work[names == vc].sum()) / log.span_s
        if asked > quota:
            over.append(f"{printable(vc)} ({asked:.1f} of {quota:g} GPUs)")
    if over:
        notes.append(
            f"{log.path}: overload: {len(over)} virtual cluster{'s are' if len(over) > 1 else ' is'} asked for more "
            f"than the quota: {_some(over, 4)}; raise quotas, or take a part of the log"
        )
    return notes
