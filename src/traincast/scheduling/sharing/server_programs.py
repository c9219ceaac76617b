"""Jobs with parameter servers that run together with others: all workers and servers, on the nodes where they are.

A server's node sends and receives more than a worker's, pushes and pulls go in opposite directions, and a worker whose
push is late holds up all others. So one row cannot stand for such a job. Its tasks are those of its own forecast
(:mod:`traincast.strategy.servers.tasks`); its messages share links with those of other jobs, message by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from traincast.scheduling.sharing.together import RepeatedSteps, run_steps
from traincast.simulate.server_timeline import ServerJob
from traincast.simulate.servers import ends_of_steps, measure
from traincast.strategy.servers.tasks import Piece, ServerRole, ServerSetup, lay_out

_MOST_TASKS: Final = 1200
"""Most tasks of one step; of a job with more, pieces of the model that follow one another are sent as one."""
_FEWEST_PIECES: Final = 4
_ALONE_STEPS: Final = 12
"""Steps that a job runs alone; the later half counts."""
_NETWORK: Final = ("send", "receive")
"""The sides of a NIC, in the order of :class:`traincast.strategy.servers.tasks.ServerTasks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProgram:
    """The steps of a job with parameter servers; all times are ``factor`` times those of ``setup`` and ``pieces``.

    The nodes of the program are those of ``setup``: of the workers, then of the servers if they have their own.
    ``shared`` are the resources that it shares with others; its own messages always share them. A node has
    ``1 / nic_share`` times the NICs of the setup.
    """

    setup: ServerSetup
    pieces: tuple[Piece, ...]
    factor: float = 1.0
    shared: tuple[str, ...] = _NETWORK
    nic_share: float = 1.0

    @property
    def step_s(self) -> float:
        """The seconds of a step that runs alone, in the steady state."""
        ends = run_steps([self], [_ALONE_STEPS], nodes=[()])[0]
        first = _ALONE_STEPS // 2
        return float(ends[-1] - ends[first - 1]) / (_ALONE_STEPS - first)

    @property
    def num_tasks(self) -> int:
        """The tasks of one step."""
        return len(lay_out(self.setup, self.pieces, steps=1).duration)

    @property
    def draws(self) -> bool:
        """Whether it puts any weight on a resource that can be shared."""
        return bool(self.shared)

    def most(self, resource: str) -> float:
        """The largest weight on a resource: several messages may ask for all of a NIC at once."""
        return 1.0 if resource in self.shared else 0.0

    def only(self, *resources: str) -> ServerProgram:
        """The program that shares these resources only."""
        return replace(self, shared=tuple(name for name in self.shared if name in resources))

    def scaled(self, share: float) -> ServerProgram:
        """The program on nodes whose NICs it shares with others: ``share`` is its part of all NICs of a node."""
        return replace(self, nic_share=self.nic_share * share)

    def slowed(self, times: int) -> ServerProgram:
        """The program with steps ``times`` as long."""
        return replace(self, factor=self.factor * times)

    def repeated(self, steps: int, *, begin_s: float, nodes: Sequence[int] = ()) -> RepeatedSteps:
        """Return the tasks of ``steps`` steps that begin at ``begin_s``.

        ``nodes[n]`` is the number of the shared node on which the program's own node n runs. A node without an entry,
        or with a negative one, is shared with nobody.
        """
        tasks = lay_out(self.setup, self.pieces, steps=steps)
        sides, weight = 2 * self.setup.num_nodes, tasks.use_weight.copy()
        resources: list[tuple[str, int]] = []
        for number in range(tasks.num_resources):
            node, side = divmod(number, 2)
            if number < sides and _NETWORK[side] in self.shared and node < len(nodes) and nodes[node] >= 0:
                resources.append((_NETWORK[side], nodes[node]))
                weight[tasks.use_resource == number] *= self.nic_share
            else:
                resources.append(("own", number))
        last = np.flatnonzero((tasks.role == ServerRole.BACKWARD) & (tasks.piece == 0))
        return RepeatedSteps(
            duration=tasks.duration * self.factor,
            lane_start=tasks.lane_start,
            lanes=tasks.lanes,
            by_arrival=tasks.by_arrival,
            predecessor_start=tasks.predecessor_start,
            predecessors=tasks.predecessors,
            release=tasks.release * self.factor + begin_s,
            use_start=tasks.use_start,
            use_resource=tasks.use_resource,
            use_weight=weight,
            resources=tuple(resources),
            fair=np.arange(tasks.num_resources) < tasks.num_links,
            ends=last.reshape(steps, -1),
        )


def server_program(job: ServerJob, *, step_s: float) -> ServerProgram:
    """Return the steps of a job with parameter servers as a program, stretched to a forecast of ``step_s``.

    The program's step is the mean step of its workers. The forecast's step is the number of workers over the steps
    that all of them make in a second: if asynchronous workers differ in speed, it is shorter than the mean.
    """
    made = ServerProgram(setup=job.setup, pieces=_joined(job.pieces, job.setup))
    ends = ends_of_steps(job.setup, job.run).mean(axis=0)
    half = len(ends) // 2
    simulated = float(ends[-1] - ends[half - 1]) / (len(ends) - half)
    alone, counted = made.step_s, measure(job.setup, job.run).step_s
    return replace(made, factor=simulated / alone * step_s / counted if alone > 0.0 and counted > 0.0 else 1.0)


def _joined(pieces: Sequence[Piece], setup: ServerSetup) -> tuple[Piece, ...]:
    """The pieces, or fewer and larger ones if a step of all workers would have too many tasks."""
    each = len(lay_out(setup, pieces, steps=1).duration) / max(1, len(pieces))
    count = max(_FEWEST_PIECES, int(_MOST_TASKS / max(each, 1e-9)))
    if count >= len(pieces):
        return tuple(pieces)
    edges = np.linspace(0, len(pieces), count + 1).round().astype(int).tolist()
    return tuple(_sum(pieces[first:after]) for first, after in pairwise(edges))


def _sum(pieces: Sequence[Piece]) -> Piece:
    """Pieces that follow one another, as one."""
    return Piece(
        forward_s=sum(piece.forward_s for piece in pieces),
        backward_s=sum(piece.backward_s for piece in pieces),
        nbytes=sum(piece.nbytes for piece in pieces),
        forward_host_s=sum(piece.forward_host_s for piece in pieces),
        backward_host_s=sum(piece.backward_host_s for piece in pieces),
        elsewhere=tuple(_sum(kind) for kind in zip(*(piece.elsewhere for piece in pieces), strict=True)),
    )
