"""Parameter servers that really run: workers push gradients, servers update and send the weights back.

The rules are those of :mod:`traincast.strategy.servers.tasks`. A worker runs forward and backward of its pieces. It
pushes a piece as soon as its gradient exists, while backward goes on. Synchronous: a server updates a shard when the
pushes of all workers have arrived. Asynchronous: it applies every push when it arrives. After the update, the weights
go back, and the next forward of the piece waits for them.

Ranks are numbered workers first. Start every rank with :func:`run_servers`, on the node that :func:`nodes_of` names.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from traincast.errors import TraincastError
from traincast.simulate.servers import ServerTimeline
from traincast.strategy.servers.setup import Piece, ServerSetup, shards
from traincast.strategy.servers.tasks import ServerRole, lay_out
from traincast.testbed.parallel.wire import Connection, Store, WireMessage, accept, connect
from traincast.testbed.rank.recorder import SpanRow, now, sleep_until

_KINDS: Final = {
    ServerRole.FORWARD: ("compute", "forward"),
    ServerRole.BACKWARD: ("compute", "backward"),
    ServerRole.UPDATE: ("compute", "optimizer"),
    ServerRole.PUSH: ("communication", "communication"),
    ServerRole.PULL: ("communication", "communication"),
}
"""Stream and category of each role."""


class ServerSpan(NamedTuple):
    """What a worker or a server did, in seconds of the clock that all processes share.

    ``worker`` is −1 for the updates of synchronous training; ``server`` and ``shard`` are −1 for passes.
    """

    role: int
    step: int
    worker: int
    server: int
    piece: int
    shard: int
    start: float
    end: float
    nbytes: float


def rows_of(setup: ServerSetup, spans: Sequence[ServerSpan], names: Sequence[str]) -> Iterator[tuple[int, SpanRow]]:
    """Yield rank and row of every span; a message has one at both of its ends. ``names`` are those of the pieces."""
    for span in spans:
        stream, category = _KINDS[ServerRole(span.role)]
        server = setup.workers + span.server
        message = category == "communication"
        label = ServerRole(span.role).name.lower()
        ends = [(span.worker, server), (server, span.worker)] if message else []
        for rank, peer in ends or [(server if span.role == ServerRole.UPDATE else span.worker, -1)]:
            row = SpanRow(
                step=span.step,
                microbatch=-1,
                stream=stream,
                category=category,
                label=label,
                name=f"{label} {names[span.piece]}",
                start_s=span.start,
                end_s=span.end,
                nbytes=span.nbytes,
                peer=peer,
            )
            yield rank, row


def timeline_of(setup: ServerSetup, pieces: Sequence[Piece], spans: Sequence[ServerSpan]) -> ServerTimeline:
    """Returns the spans of all ranks as the simulation returns a forecast, to be measured and compared in the same way.

    Time 0 is the start of the first pass.
    """
    steps = 1 + max(span.step for span in spans)
    tasks = lay_out(setup, pieces, steps=steps)
    found = {(s.role, s.step, s.worker, s.piece, s.shard): (s.start, s.end) for s in spans}
    zero = min(span.start for span in spans)
    keys = zip(*(c.tolist() for c in (tasks.role, tasks.step, tasks.worker, tasks.piece, tasks.shard)), strict=True)
    times = np.array([found.get(key, (np.nan, np.nan)) for key in keys]) - zero
    waits = tasks.role == ServerRole.LATENCY
    message = np.flatnonzero(waits) + 1  # a message follows its latency
    times[waits] = times[message, :1]
    return ServerTimeline(tasks=tasks, start=times[:, 0], end=times[:, 1])


_LEAD_S: Final = 0.05
"""Workers start this long after they have agreed on it."""
_CHECK_S: Final = 1.0
_ELEMENT: Final = 4  # bytes of a parameter


class Shard(NamedTuple):
    """A part of a piece that one server holds: ``nbytes`` bytes of its parameters from ``offset`` on."""

    piece: int
    server: int
    offset: int
    nbytes: int


class Passes(Protocol):
    """The computation of a worker, and the memory of its parameters."""

    def run(self, piece: int, *, backward: bool, earliest: float) -> tuple[float, float]:
        """Runs a pass through a piece, not before ``earliest``; returns its start and its end, which has come."""

    def gradient(self, shard: int) -> memoryview:
        """The bytes of a shard that are pushed."""

    def weights(self, shard: int) -> memoryview:
        """The memory into which a shard is pulled."""


class PassDevice(Protocol):
    """The emulated device of a worker, as a sampler sees it."""

    def run(self, piece: int, *, backward: bool, start_s: float, end_s: float) -> None:
        """Runs the operators of a pass between two moments; returns when the last has begun."""


class Updates(Protocol):
    """The memory of a server and its updates."""

    def room(self, shard: int, worker: int) -> memoryview:
        """The memory into which a push of a worker is received."""

    def apply(self, shard: int, workers: Sequence[int], *, earliest: float) -> tuple[float, float]:
        """Applies the pushes of ``workers``, not before ``earliest``; returns start and end, which has come."""

    def weights(self, shard: int) -> memoryview:
        """The bytes of a shard that workers pull."""


def nodes_of(setup: ServerSetup) -> list[int]:
    """Returns the node of every rank: of the workers, then of the servers."""
    workers = [setup.node_of_worker(worker) for worker in range(setup.workers)]
    return workers + [setup.node_of_server(server) for server in range(setup.servers)]


def shards_of(setup: ServerSetup, pieces: Sequence[Piece]) -> list[Shard]:
    """Returns all shards in the order of their numbers, which is that of backward; each has whole elements."""
    chosen = shards(pieces, setup)
    found = []
    for piece in reversed(range(len(pieces))):
        done, offset = 0.0, 0
        for server, nbytes in chosen[piece]:
            done += nbytes
            end = round(done / _ELEMENT) * _ELEMENT
            found.append(Shard(piece=piece, server=server, offset=offset, nbytes=end - offset))
            offset = end
    return found


def run_servers(
    rank: int,
    setup: ServerSetup,
    pieces: Sequence[Piece],
    *,
    steps: int,
    store: Store,
    passes: Passes | None = None,
    updates: Updates | None = None,
) -> list[ServerSpan]:
    """Runs ``steps`` steps as rank ``rank`` and returns what it did and received.

    A worker returns its passes and pulls, a server the pushes of all workers and its updates.
    Without ``passes`` and ``updates``, both are emulated: they take the seconds that ``pieces`` and ``setup`` name.
    ``store`` is one that all ranks share.
    """
    parts = shards_of(setup, pieces)
    if rank >= setup.workers:
        server = rank - setup.workers
        return _serve(server, setup, parts, store, updates or EmulatedUpdates(setup, parts, server))
    work = passes or EmulatedPasses(setup, pieces, parts, rank)
    return _Worker(rank, setup, pieces=pieces, parts=parts, store=store, passes=work).run(steps)


class _Worker:
    """A worker, with a connection to every server."""

    def __init__(
        self,
        number: int,
        setup: ServerSetup,
        *,
        pieces: Sequence[Piece],
        parts: Sequence[Shard],
        store: Store,
        passes: Passes,
    ) -> None:
        self._number, self._setup, self._pieces, self._parts = number, setup, pieces, parts
        self._passes, self._store = passes, store
        self._shards = [[n for n, part in enumerate(parts) if part.piece == piece] for piece in range(len(pieces))]
        self._spans: list[ServerSpan] = []
        self._pulled: dict[tuple[int, int], float] = {}
        self._news = threading.Condition()
        self._servers = [
            Connection(connect(store, number, server), room=passes.weights, arrived=self._arrived)
            for server in range(setup.servers)
        ]

    def run(self, steps: int) -> list[ServerSpan]:
        """Runs ``steps`` steps, and waits for the pulls of the last."""
        self._begin()
        for step in range(steps):
            for piece in range(len(self._pieces)):
                self._pass(step, piece, backward=False)
            for piece in reversed(range(len(self._pieces))):
                self._pass(step, piece, backward=True)
                for shard in self._shards[piece]:
                    self._servers[self._parts[shard].server].send(step, shard, self._passes.gradient(shard))
        for shard in range(len(self._parts)):
            self._wait(steps - 1, shard)
        for server in self._servers:
            server.close()
        return sorted(self._spans, key=lambda span: span.start)

    def _pass(self, step: int, piece: int, *, backward: bool) -> None:
        ready = 0.0
        if step and not backward:
            ready = max((self._wait(step - 1, shard) for shard in self._shards[piece]), default=0.0)
        start, end = self._passes.run(piece, backward=backward, earliest=ready)
        role = ServerRole.BACKWARD if backward else ServerRole.FORWARD
        self._spans.append(ServerSpan(role, step, self._number, -1, piece, -1, start, end, 0.0))

    def _begin(self) -> None:
        """Waits until all workers are connected, then for the common start and this worker's own delay."""
        ready, start = "traincast/ready/{}", "traincast/start"
        self._store.set(ready.format(self._number), "yes")
        if self._number == 0:
            for worker in range(self._setup.workers):
                self._store.get(ready.format(worker))
            self._store.set(start, repr(now() + _LEAD_S))
        first = float(self._store.get(start))
        release = lay_out(self._setup, self._pieces, steps=1).release
        mine = release[self._number * 2 * len(self._pieces)]
        self._passes.run(-1, backward=False, earliest=first + float(mine))

    def _wait(self, step: int, shard: int) -> float:
        """Waits for the pull of a shard, and returns when it arrived."""
        with self._news:
            while (step, shard) not in self._pulled:
                for number, server in enumerate(self._servers):
                    if server.failure is not None:
                        raise TraincastError(f"worker {self._number} lost server {number}: {server.failure}")
                self._news.wait(_CHECK_S)
            return self._pulled[step, shard]

    def _arrived(self, pull: WireMessage | None) -> None:
        if pull is None:
            return
        step, shard = pull.step, pull.shard
        part = self._parts[shard]
        place = (step, self._number, part.server, part.piece, shard)
        with self._news:
            self._spans.append(ServerSpan(ServerRole.PULL, *place, pull.start, pull.end, part.nbytes))
            self._pulled[step, shard] = pull.end
            self._news.notify_all()


class _Push(NamedTuple):
    """A push that has arrived at a server; without a message, its worker has finished."""

    worker: int
    message: WireMessage | None


def _serve(server: int, setup: ServerSetup, parts: Sequence[Shard], store: Store, updates: Updates) -> list[ServerSpan]:
    """Serves all workers until each of them has finished."""
    arrivals: queue.SimpleQueue[_Push] = queue.SimpleQueue()

    def connection(worker: int, link: socket.socket) -> Connection:
        return Connection(
            link,
            room=lambda shard: updates.room(shard, worker),
            arrived=lambda message: arrivals.put(_Push(worker, message)),
        )

    links = [connection(worker, link) for worker, link in enumerate(accept(store, server, setup.workers))]
    waiting: dict[tuple[int, int], list[_Push]] = {}
    spans: list[ServerSpan] = []
    working = set(range(setup.workers))
    while working:
        worker, push = arrived = arrivals.get()
        if push is None:
            working.discard(worker)
            continue
        step, shard, part = push.step, push.shard, parts[push.shard]
        place = (server, part.piece, shard)
        spans.append(ServerSpan(ServerRole.PUSH, step, worker, *place, push.start, push.end, part.nbytes))
        together = waiting.setdefault((step, shard), [])
        together.append(arrived)
        if not setup.asynchronous and len(together) < setup.workers:
            continue
        del waiting[step, shard]
        of = [push.worker for push in together]
        start, end = updates.apply(shard, of, earliest=push.end)
        for one in of:
            links[one].send(step, shard, updates.weights(shard))
        by = worker if setup.asynchronous else -1
        spans.append(ServerSpan(ServerRole.UPDATE, step, by, *place, start, end, part.nbytes))
    for link in links:
        link.close()
    return spans


class EmulatedPasses:
    """Passes that sleep as long as the device of a worker computes, on a clock of its own; parameters are zeros.

    ``device`` shows a sampler what the device does within a pass.
    """

    def __init__(
        self,
        setup: ServerSetup,
        pieces: Sequence[Piece],
        parts: Sequence[Shard],
        worker: int,
        *,
        device: PassDevice | None = None,
    ) -> None:
        own = [piece.on(setup.kind(worker)) for piece in pieces]
        self._seconds = [piece.takes_s(setup.factor(worker)) for piece in own]
        self._device = device
        self._sizes = [part.nbytes for part in parts]
        self._memory = memoryview(bytearray(max(self._sizes, default=0)))
        self._clock = 0.0

    def run(self, piece: int, *, backward: bool, earliest: float) -> tuple[float, float]:
        """Sleeps until the pass would have ended; piece −1 only waits until ``earliest``."""
        start = max(self._clock, earliest)
        self._clock = start if piece < 0 else start + self._seconds[piece][backward]
        if self._device is not None and piece >= 0:
            self._device.run(piece, backward=backward, start_s=start, end_s=self._clock)
        sleep_until(self._clock)
        return start, self._clock

    def gradient(self, shard: int) -> memoryview:
        """Zeros."""
        return self._memory[: self._sizes[shard]]

    weights = gradient


class EmulatedUpdates:
    """Updates that sleep as long as the memory of a server's node needs; parameters are zeros."""

    def __init__(self, setup: ServerSetup, parts: Sequence[Shard], server: int) -> None:
        self._seconds = setup.node(setup.node_of_server(server)).update_s_per_byte
        self._sizes = [part.nbytes for part in parts]
        self._memory = memoryview(bytearray(max(self._sizes, default=0)))
        self._clock = 0.0

    def room(self, shard: int, worker: int) -> memoryview:
        """Memory that all pushes share."""
        return self.weights(shard)

    def apply(self, shard: int, workers: Sequence[int], *, earliest: float) -> tuple[float, float]:
        """Sleeps until the update would have ended."""
        start = max(self._clock, earliest)
        self._clock = start + self._sizes[shard] * self._seconds
        sleep_until(self._clock)
        return start, self._clock

    def weights(self, shard: int) -> memoryview:
        """Zeros."""
        return self._memory[: self._sizes[shard]]
