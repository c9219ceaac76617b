"""Training with parameter servers: the tasks of some steps of all workers, as input of the event engine.

A worker runs forward and backward. As soon as the gradient of a piece exists, it is pushed to the servers that hold
the piece's parameters, while backward goes on. Synchronous: a server updates a shard when the pushes of all workers
have arrived, and then all workers pull it. Asynchronous: a server applies every push when it arrives, and its worker
pulls at once. The next forward of a piece needs the pull of its parameters.

Messages between a worker and a server go one after the other, in the order in which they are ready. Messages that are
on a link at the same time share it; a message that another link limits leaves the rest to the others. Links send and
receive at the same time. A push and its pull have the same size.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from traincast.strategy.servers.setup import Piece, ServerNode, ServerSetup, shards

__all__ = ["Piece", "ServerNode", "ServerRole", "ServerSetup", "ServerTasks", "lay_out", "shards"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class ServerRole(enum.IntEnum):
    """What a task of parameter-server training does."""

    FORWARD = 0
    BACKWARD = 1
    LATENCY = 2  # before the bytes of a message move
    PUSH = 3
    UPDATE = 4
    PULL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTasks:
    """Some steps of all workers as columns of the event engine, with the meaning of each task.

    ``worker`` is -1 for the updates of synchronous training; ``shard`` and ``server`` are -1 for computation. Resources
    are, in this order: the sending and the receiving side of every node's NIC, the same two sides of every process
    (workers, then servers) inside its node, and the devices of the workers. The first ``num_links`` are links, which
    messages share max-min fairly.
    """

    duration: Floats
    lane_start: Ints
    lanes: Ints
    predecessor_start: Ints
    predecessors: Ints
    release: Floats
    by_arrival: npt.NDArray[np.bool_]
    use_start: Ints
    use_resource: Ints
    use_weight: Floats
    num_resources: int
    num_links: int
    role: npt.NDArray[np.int8]
    worker: Ints
    piece: Ints
    shard: Ints
    server: Ints
    nbytes: Floats
    step: Ints


@dataclass(slots=True)
class _Step:
    """The tasks of one step while it is built.

    An edge is (task, predecessor): of ``edges``, the predecessor is in this step; of ``back``, in the previous one.
    """

    duration: list[float] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    role: list[int] = field(default_factory=list)
    worker: list[int] = field(default_factory=list)
    piece: list[int] = field(default_factory=list)
    shard: list[int] = field(default_factory=list)
    server: list[int] = field(default_factory=list)
    nbytes: list[float] = field(default_factory=list)
    uses: list[tuple[int, int, float]] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    back: list[tuple[int, int]] = field(default_factory=list)

    def add(
        self,
        role: ServerRole,
        seconds: float,
        *,
        lane: int = -1,
        worker: int = -1,
        piece: int,
        shard: int = -1,
        server: int = -1,
        nbytes: float = 0.0,
        after: int = -1,
    ) -> int:
        """Append a task and return its number."""
        task = len(self.duration)
        self.duration.append(seconds)
        self.lane.append(lane)
        self.role.append(role)
        self.worker.append(worker)
        self.piece.append(piece)
        self.shard.append(shard)
        self.server.append(server)
        self.nbytes.append(nbytes)
        if after >= 0:
            self.edges.append((task, after))
        return task


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Lanes and resources of a setup, by number."""

    setup: ServerSetup

    @property
    def num_lanes(self) -> int:
        """Compute of each worker, updates of each server, and both ways of every connection."""
        return self.setup.workers + self.setup.servers + 2 * self.setup.workers * self.setup.servers

    def updates(self, server: int) -> int:
        """The lane on which a server applies gradients."""
        return self.setup.workers + server

    def connection(self, worker: int, server: int, *, push: bool) -> int:
        """The lane of the messages between a worker and a server, one way."""
        pairs = self.setup.workers * self.setup.servers
        base = self.setup.workers + self.setup.servers + (0 if push else pairs)
        return base + worker * self.setup.servers + server

    def message(
        self, worker: int, server: int, nbytes: float, *, push: bool
    ) -> tuple[float, float, list[tuple[int, float]]]:
        """Latency, seconds without other traffic, and (resource, weight) pairs of a message.

        The slowest link sets the rate of the message; its weight on a faster link is the share that it uses there.
        """
        setup = self.setup
        near, far = setup.node_of_worker(worker), setup.node_of_server(server)
        if near == far:
            first = 2 * setup.num_nodes
            local = setup.node(near).local
            ends, links = (first + 2 * worker, first + 2 * (setup.workers + server)), (local, local)
        else:
            ends, links = (2 * near, 2 * far), (setup.node(near).nic, setup.node(far).nic)
        rate = min(link.bandwidth for link in links)
        sends, receives = (0, 1) if push else (1, 0)
        uses = [
            (end + side, rate / link.bandwidth if np.isfinite(link.bandwidth) else 0.0)
            for end, side, link in zip(ends, (sends, receives), links, strict=True)
        ]
        if setup.interference:
            uses.append((self.device(worker), setup.interference))
        return max(link.latency_s for link in links), nbytes / rate, uses

    def device(self, worker: int) -> int:
        """The resource that computation of a worker fills."""
        return 2 * (self.setup.num_nodes + self.setup.workers + self.setup.servers) + worker


def lay_out(setup: ServerSetup, pieces: Sequence[Piece], *, steps: int) -> ServerTasks:
    """All tasks of ``steps`` steps; the workers have the parameters when the first step begins."""
    layout = _Layout(setup=setup)
    step, chosen = _Step(), shards(pieces, setup)
    ready = [_compute(step, layout, pieces, worker) for worker in range(setup.workers)]
    shard = 0
    for piece in reversed(range(len(pieces))):
        for server, nbytes in chosen[piece]:
            sent = [_Exchange(worker, server, piece, shard, nbytes) for worker in range(setup.workers)]
            _exchange(step, layout, sent, ready)
            shard += 1
    return _repeat(step, layout, steps)


def _compute(step: _Step, layout: _Layout, pieces: Sequence[Piece], worker: int) -> list[tuple[int, int]]:
    """Forward and backward of a worker: the numbers of both tasks, for every piece."""
    setup = layout.setup
    factor, kind = setup.factor(worker), setup.kind(worker)
    seconds = [piece.on(kind).takes_s(factor) for piece in pieces]
    forward = [
        step.add(ServerRole.FORWARD, forward_s, lane=worker, worker=worker, piece=number)
        for number, (forward_s, _) in enumerate(seconds)
    ]
    backward = [
        step.add(ServerRole.BACKWARD, backward_s, lane=worker, worker=worker, piece=number)
        for number, (_, backward_s) in reversed(list(enumerate(seconds)))
    ]
    if setup.interference:
        step.uses.extend((task, layout.device(worker), 1.0) for task in (*forward, *backward))
    return list(zip(forward, reversed(backward), strict=True))


class _Place(TypedDict):
    piece: int
    shard: int
    server: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A shard on its way between a worker and the server that holds it."""

    worker: int
    server: int
    piece: int
    shard: int
    nbytes: float

    @property
    def place(self) -> _Place:
        """The columns that all tasks of an exchange share."""
        return {"piece": self.piece, "shard": self.shard, "server": self.server, "nbytes": self.nbytes}


def _exchange(step: _Step, layout: _Layout, sent: list[_Exchange], ready: list[list[tuple[int, int]]]) -> None:
    """Pushes of all workers, the update or updates, and pulls."""
    setup, first = layout.setup, sent[0]
    pushes = [_message(step, layout, one, after=ready[one.worker][one.piece][1], push=True) for one in sent]
    seconds = first.nbytes * setup.node(setup.node_of_server(first.server)).update_s_per_byte
    lane = layout.updates(first.server)
    if setup.asynchronous:
        updates = [
            step.add(ServerRole.UPDATE, seconds, lane=lane, worker=s.worker, after=push, **s.place)
            for s, push in zip(sent, pushes, strict=True)
        ]
    else:
        update = step.add(ServerRole.UPDATE, seconds, lane=lane, **first.place)
        step.edges.extend((update, push) for push in pushes)
        updates = [update] * len(sent)
    for one, update in zip(sent, updates, strict=True):
        pull = _message(step, layout, one, after=update, push=False)
        step.back.append((ready[one.worker][one.piece][0], pull))


def _message(step: _Step, layout: _Layout, sent: _Exchange, *, after: int, push: bool) -> int:
    latency, seconds, uses = layout.message(sent.worker, sent.server, sent.nbytes, push=push)
    wait = step.add(ServerRole.LATENCY, latency, worker=sent.worker, after=after, **sent.place)
    lane = layout.connection(sent.worker, sent.server, push=push)
    role = ServerRole.PUSH if push else ServerRole.PULL
    task = step.add(role, seconds, lane=lane, worker=sent.worker, after=wait, **sent.place)
    step.uses.extend((task, resource, weight) for resource, weight in uses)
    return task


def _repeat(one: _Step, layout: _Layout, steps: int) -> ServerTasks:
    """Repeat a step, and join each repetition to the one before."""
    setup, size = layout.setup, len(one.duration)
    lane = np.tile(np.array(one.lane, dtype=np.int64), steps)
    held = lane >= 0
    edges, back = (np.array(e, dtype=np.int64).reshape(-1, 2) for e in (one.edges, one.back))
    shift = np.arange(steps)[:, None, None] * size
    across = back[None] + shift[1:] - np.array([0, size])
    waits = np.concatenate([(edges[None] + shift).reshape(-1, 2), across.reshape(-1, 2)])
    waits = waits[np.argsort(waits[:, 0], kind="stable")]
    uses = sorted(one.uses, key=lambda use: use[0])
    user = np.array([task for task, _, _ in uses], dtype=np.int64)
    total = steps * size
    by_arrival = np.ones(layout.num_lanes, dtype=np.bool_)
    by_arrival[: setup.workers] = False
    return ServerTasks(
        duration=np.tile(np.array(one.duration), steps),
        lane_start=_starts(held.astype(np.int64)),
        lanes=lane[held],
        predecessor_start=_starts(np.bincount(waits[:, 0], minlength=total)),
        predecessors=waits[:, 1],
        release=_release(one, setup, total),
        by_arrival=by_arrival,
        use_start=_starts(np.tile(np.bincount(user, minlength=size), steps)),
        use_resource=np.tile(np.array([resource for _, resource, _ in uses], dtype=np.int64), steps),
        use_weight=np.tile(np.array([weight for _, _, weight in uses], dtype=np.float64), steps),
        num_resources=layout.device(setup.workers),
        num_links=layout.device(0),
        role=np.tile(np.array(one.role, dtype=np.int8), steps),
        worker=np.tile(np.array(one.worker, dtype=np.int64), steps),
        piece=np.tile(np.array(one.piece, dtype=np.int64), steps),
        shard=np.tile(np.array(one.shard, dtype=np.int64), steps),
        server=np.tile(np.array(one.server, dtype=np.int64), steps),
        nbytes=np.tile(np.array(one.nbytes), steps),
        step=np.repeat(np.arange(steps), size),
    )


def _release(one: _Step, setup: ServerSetup, total: int) -> Floats:
    """When each task may start: the first task of each worker is delayed, spread over steps of the fastest worker."""
    release = np.zeros(total)
    if setup.asynchronous:
        computes = [0.0] * setup.workers
        for seconds, worker, role in zip(one.duration, one.worker, one.role, strict=True):
            computes[worker] += seconds if role <= ServerRole.BACKWARD else 0.0
        fastest = computes.index(min(computes))
        alone_s = sum(
            seconds
            for seconds, worker, role in zip(one.duration, one.worker, one.role, strict=True)
            if worker == (fastest if role <= ServerRole.BACKWARD else 0)
        )
        begins = [one.worker.index(worker) for worker in range(setup.workers)]
        release[begins] = np.arange(setup.workers) / setup.workers * setup.spread * alone_s
    return release


def _starts(counts: npt.NDArray[np.int64]) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
