"""Checks all jobs against the cluster before a run.

All jobs are checked before anything is reported. A refusal counts the jobs that break a rule and names the first.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from traincast.errors import RequestError
from traincast.scheduling.joblogs.read import JobLog
from traincast.scheduling.joblogs.source import printable
from traincast.scheduling.joblogs.table import Bools, Floats, Texts, jobs
from traincast.scheduling.joblogs.values import SHOWN
from traincast.scheduling.space.cluster import SharedCluster

Oversize: TypeAlias = Literal["refuse", "drop", "clip"]


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
