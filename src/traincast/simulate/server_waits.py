"""How workers of parameter servers spend their time: computing, launching and waiting. Every wait has a cause."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.simulate.servers import ServerTimeline, steady_window
from traincast.strategy.servers.tasks import Piece, ServerRole, ServerSetup

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Cause(enum.IntEnum):
    """What a worker waits for, in order of time."""

    PUSH = 0  # its own push to arrive
    WORKER = 1  # another worker to compute the last gradient that the update needs
    THEIR_PUSH = 2  # that worker's push to arrive
    SERVER = 3  # the update
    PULL = 4  # its own pull to arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWaits:
    """The waits of workers and their causes, as columns.

    ``whom`` is another worker for ``Cause.WORKER`` and ``Cause.THEIR_PUSH``, else a server.
    """

    worker: Ints
    since: Floats
    until: Floats
    cause: Ints
    whom: Ints
    piece: Ints


def waits_within(setup: ServerSetup, timeline: ServerTimeline, window: tuple[float, float]) -> WorkerWaits:
    """All waits within ``window``.

    A worker waits for a pull, which follows an update, which follows the last push to arrive. A wait is cut where one
    of these ends: the time until the worker's own push arrived is a wait for that push, and so on.
    """
    tasks, end = timeline.tasks, timeline.end
    since, until, task = _gaps(setup, timeline, window)
    latest = _latest_predecessor(timeline)
    pull = latest[task]
    update = latest[latest[pull]]  # the predecessor of a pull is its latency
    last = latest[update]
    computed = latest[latest[last]]  # the predecessor of a push is its latency
    mine = _own_pushes(setup, timeline)[tasks.step[update], tasks.shard[update], tasks.worker[task]]
    cuts = np.stack([since, end[mine], end[computed], end[last], end[update], until])
    cuts = np.maximum.accumulate(np.clip(cuts, since, until))
    server, other = tasks.server[update], tasks.worker[last]
    columns = WorkerWaits(
        worker=np.tile(tasks.worker[task], len(Cause)),
        since=cuts[:-1].ravel(),
        until=cuts[1:].ravel(),
        cause=np.repeat(np.arange(len(Cause)), len(task)),
        whom=np.concatenate([server, other, other, server, server]),
        piece=np.tile(tasks.piece[task], len(Cause)),
    )
    long = columns.until > columns.since
    return WorkerWaits(
        worker=columns.worker[long],
        since=columns.since[long],
        until=columns.until[long],
        cause=columns.cause[long],
        whom=columns.whom[long],
        piece=columns.piece[long],
    )


def _gaps(setup: ServerSetup, timeline: ServerTimeline, window: tuple[float, float]) -> tuple[Floats, Floats, Ints]:
    """Start and end of every gap between passes of a worker, and the task that ends the gap."""
    tasks = timeline.tasks
    passes = np.flatnonzero(tasks.role <= ServerRole.BACKWARD)
    order = passes[np.lexsort((passes, timeline.start[passes], tasks.worker[passes]))]
    before, task = order[:-1], order[1:]
    since, until = np.clip(timeline.end[before], *window), np.clip(timeline.start[task], *window)
    waits = (tasks.worker[before] == tasks.worker[task]) & (until > since)
    return since[waits], until[waits], task[waits]


def _latest_predecessor(timeline: ServerTimeline) -> Ints:
    """For every task, the predecessor that ends last, or −1."""
    tasks, end = timeline.tasks, timeline.end
    waiter = np.repeat(np.arange(len(end)), np.diff(tasks.predecessor_start))
    latest = np.full(len(end), -1, dtype=np.int64)
    order = np.argsort(end[tasks.predecessors], kind="stable")
    latest[waiter[order]] = tasks.predecessors[order]  # the last to end is written last, and stays
    return latest


def _own_pushes(setup: ServerSetup, timeline: ServerTimeline) -> Ints:
    """The number of the push of every step, shard and worker."""
    tasks = timeline.tasks
    pushes = np.flatnonzero(tasks.role == ServerRole.PUSH)
    shape = (int(tasks.step[-1]) + 1, int(tasks.shard.max(initial=0)) + 1, setup.workers)
    own = np.full(shape, -1, dtype=np.int64)
    own[tasks.step[pushes], tasks.shard[pushes], tasks.worker[pushes]] = pushes
    return own


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """Seconds of each worker within ``window_s``; the first four add up to it.

    ``computing_s``: its device computes. ``launching_s``: its device waits for its own host. ``bytes_s``: it waits for
    pushes and pulls to arrive. ``others_s``: it waits for a server's update, or for another worker to compute.
    ``for_worker`` is the worker that it waits for most (−1: none), for ``for_worker_s`` seconds.
    """

    window_s: float
    computing_s: Floats
    launching_s: Floats
    bytes_s: Floats
    others_s: Floats
    for_worker: Ints
    for_worker_s: Floats


def worker_times(setup: ServerSetup, pieces: Sequence[Piece], timeline: ServerTimeline) -> WorkerTimes:
    """How each worker spends the steady part of a run."""
    tasks, window = timeline.tasks, steady_window(setup, timeline)
    passes = np.flatnonzero(tasks.role <= ServerRole.BACKWARD)
    inside = (np.clip(timeline.end, *window) - np.clip(timeline.start, *window))[passes]
    worker = tasks.worker[passes]
    share = device_shares(setup, pieces)[worker, tasks.piece[passes], tasks.role[passes].astype(np.int64)]
    held, computing = np.zeros(setup.workers), np.zeros(setup.workers)
    np.add.at(held, worker, inside)
    np.add.at(computing, worker, inside * share)
    found = waits_within(setup, timeline, window)
    waited = np.zeros((setup.workers, len(Cause)))
    np.add.at(waited, (found.worker, found.cause), found.until - found.since)
    by_worker = found.cause == Cause.WORKER
    whom = np.zeros((setup.workers, setup.workers))
    np.add.at(whom, (found.worker[by_worker], found.whom[by_worker]), (found.until - found.since)[by_worker])
    most = np.asarray(whom.argmax(axis=1))
    for_worker_s = whom[np.arange(setup.workers), most]
    return WorkerTimes(
        window_s=window[1] - window[0],
        computing_s=computing,
        launching_s=held - computing,
        bytes_s=waited[:, Cause.PUSH] + waited[:, Cause.THEIR_PUSH] + waited[:, Cause.PULL],
        others_s=waited[:, Cause.WORKER] + waited[:, Cause.SERVER],
        for_worker=np.where(for_worker_s > 0.0, most, -1),
        for_worker_s=for_worker_s,
    )


def device_shares(setup: ServerSetup, pieces: Sequence[Piece]) -> Floats:
    """The fraction of each pass in which the device computes, [worker, piece, pass]; else it waits for its host."""
    known: dict[tuple[int, float], Floats] = {}
    for worker in range(setup.workers):
        key = kind, factor = setup.kind(worker), setup.factor(worker)
        if key not in known:
            computes = np.array([piece.on(kind).computes_s(factor) for piece in pieces])
            takes = np.array([piece.on(kind).takes_s(factor) for piece in pieces])
            known[key] = np.divide(computes, takes, out=np.ones_like(computes), where=takes > 0.0)
    return np.stack([known[setup.kind(worker), setup.factor(worker)] for worker in range(setup.workers)])
