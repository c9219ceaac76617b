"""Simulated runs of parameter-server training: steady speed, staleness of gradients, utilization of NICs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.simulate.event_queue import Uses, execute_queue
from traincast.strategy.servers.tasks import Piece, ServerRole, ServerSetup, ServerTasks, lay_out

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SERVER_STEPS: Final = 20
"""Steps of every worker that a forecast simulates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """Parameter-server training in its steady state.

    ``step_s`` is the mean time of a step of one worker; ``worker_steps_per_s`` counts the steps of all workers, and is
    the sum of ``steps_per_s_by_worker``. Staleness is the number of updates by other workers that a shard gets between
    a worker's pull and the update with the gradient that the worker computed from it. For each server,
    ``nic_utilization`` is the used share of its node's NIC in the busier direction, ``update_utilization`` the share
    of time in which it applies updates, and ``nodes`` its node, which also has workers unless ``own_nodes``.
    """

    step_s: float
    worker_steps_per_s: float
    mean_staleness: float
    max_staleness: int
    nic_utilization: tuple[float, ...]
    update_utilization: tuple[float, ...]
    nodes: tuple[int, ...]
    own_nodes: bool
    steps_per_s_by_worker: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimeline:
    """Start and end of every task of parameter-server training, in seconds."""

    tasks: ServerTasks
    start: Floats
    end: Floats


def run_servers(setup: ServerSetup, pieces: Sequence[Piece], *, steps: int) -> ServerTimeline:
    """Simulates ``steps`` steps of every worker; returns the start and end of every task."""
    tasks = lay_out(setup, pieces, steps=steps)
    uses = Uses(
        start=tasks.use_start,
        resource=tasks.use_resource,
        weight=tasks.use_weight,
        capacity=np.ones(tasks.num_resources),
        fair=np.arange(tasks.num_resources) < tasks.num_links,
    )
    start, end = execute_queue(
        tasks.duration,
        lane_start=tasks.lane_start,
        lanes=tasks.lanes,
        predecessor_start=tasks.predecessor_start,
        predecessors=tasks.predecessors,
        num_lanes=len(tasks.by_arrival),
        uses=uses,
        release=tasks.release,
        by_arrival=tasks.by_arrival,
    )
    return ServerTimeline(tasks=tasks, start=start, end=end)


def measure(setup: ServerSetup, timeline: ServerTimeline) -> ServerRun:
    """Rates, staleness and utilization over the steady part of a run."""
    ends, window = ends_of_steps(setup, timeline), steady_window(setup, timeline)
    seconds = max(window[1] - window[0], 1e-300)
    progress = [_progress(one, window) for one in ends]
    rate = sum(progress) / seconds
    staleness = _staleness(timeline, window)
    return ServerRun(
        step_s=setup.workers / rate,
        worker_steps_per_s=rate,
        mean_staleness=float(staleness.mean()) if len(staleness) else 0.0,
        max_staleness=int(staleness.max(initial=0)),
        nic_utilization=_utilization(setup, timeline, window),
        update_utilization=_updating(setup, timeline, window),
        nodes=tuple(setup.node_of_server(server) for server in range(setup.servers)),
        own_nodes=setup.own_nodes,
        steps_per_s_by_worker=tuple(one / seconds for one in progress),
    )


def ends_of_steps(setup: ServerSetup, timeline: ServerTimeline) -> Floats:
    """The time at which the backward of every step ends: [workers, steps]."""
    tasks = timeline.tasks
    last = (tasks.role == ServerRole.BACKWARD) & (tasks.piece == 0)
    ends = np.zeros((setup.workers, int(tasks.step[-1]) + 1))
    ends[tasks.worker[last], tasks.step[last]] = timeline.end[last]
    return ends


def steady_window(setup: ServerSetup, timeline: ServerTimeline) -> tuple[float, float]:
    """Start and end of the steady part of a run: the later half of the steps of the worker that finishes first.

    After that, the other workers have less competition for the servers.
    """
    ends = ends_of_steps(setup, timeline)
    first = ends[np.argmin(ends[:, -1])]
    return float(first[len(first) // 2 - 1]), float(first[-1])


def _progress(ends: Floats, window: tuple[float, float]) -> float:
    """The number of steps that a worker makes within ``window``; steps at its ends count in part."""
    first, last = np.interp(window, np.append(0.0, ends), np.arange(len(ends) + 1))
    return float(last - first)


def _staleness(timeline: ServerTimeline, window: tuple[float, float]) -> Ints:
    """For each update in ``window``, the updates of the same shard by other workers since this worker's previous one.

    A worker pulls a shard right after its own update.
    """
    tasks, end = timeline.tasks, timeline.end
    update = np.flatnonzero(tasks.role == ServerRole.UPDATE)
    update = update[np.lexsort((update, end[update], tasks.shard[update]))]
    shard, worker = tasks.shard[update], tasks.worker[update]
    turn = np.arange(len(update))
    order = np.lexsort((turn, worker, shard))
    same = (shard[order][1:] == shard[order][:-1]) & (worker[order][1:] == worker[order][:-1])
    between = np.diff(turn[order])[same] - 1
    when = end[update[order[1:][same]]]
    return np.asarray(between[(window[0] < when) & (when <= window[1])])


def _utilization(setup: ServerSetup, timeline: ServerTimeline, window: tuple[float, float]) -> tuple[float, ...]:
    """For every server, the used share of its NIC in ``window``, in the busier direction."""
    tasks, start, end = timeline.tasks, timeline.start, timeline.end
    user = np.repeat(np.arange(len(end)), np.diff(tasks.use_start))
    inside = np.clip(end, *window) - np.clip(start, *window)
    share = np.divide(inside, end - start, out=np.zeros(len(end)), where=end > start)
    moved = np.bincount(
        tasks.use_resource, weights=tasks.use_weight * (tasks.duration * share)[user], minlength=tasks.num_resources
    )
    full = max(window[1] - window[0], 1e-300)
    nodes = [setup.node_of_server(server) for server in range(setup.servers)]
    return tuple(float(max(moved[2 * node], moved[2 * node + 1]) / full) for node in nodes)


def _updating(setup: ServerSetup, timeline: ServerTimeline, window: tuple[float, float]) -> tuple[float, ...]:
    """For every server, the share of ``window`` in which it applies updates."""
    tasks = timeline.tasks
    updates = tasks.role == ServerRole.UPDATE
    inside = (np.clip(timeline.end, *window) - np.clip(timeline.start, *window))[updates]
    spent = np.bincount(tasks.server[updates], weights=inside, minlength=setup.servers)
    return tuple((spent / max(window[1] - window[0], 1e-300)).tolist())
