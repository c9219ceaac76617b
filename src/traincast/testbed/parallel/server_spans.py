"""What workers and parameter servers did: spans, as a timeline of the simulation or as rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from traincast.simulate.servers import ServerTimeline
from traincast.strategy.servers.setup import Piece, ServerSetup
from traincast.strategy.servers.tasks import ServerRole, lay_out
from traincast.testbed.rank.recorder import SpanRow

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
