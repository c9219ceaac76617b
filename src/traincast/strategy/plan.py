"""A plan: all tasks of a step, as columns, without durations.

Tasks stand in program order: a task comes after every task it waits for. A task refers to a *cost*, not to a time.
Costs 0 … W-1 are the distinct works. Then come the works that run behind others (:class:`Overlap`). Then each segment
adds three: the host's lead before the device can start, the device's work, and the host's tail (:class:`Segment`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.strategy.costs import Composition, overlap_seconds, ragged, segment_seconds, tail_seconds
from traincast.strategy.mesh import Mesh
from traincast.work import Collective, HostCopy, Transfer, Work

Ints = npt.NDArray[np.int64]


class Stream(enum.IntEnum):
    """The lanes of a rank; each is first in, first out."""

    HOST = 0
    COMPUTE = 1
    COMMUNICATION = 2  # collectives that compute waits for
    DATA = 3  # gradient and parameter traffic that may overlap compute
    SEND_FORWARD = 4
    SEND_BACKWARD = 5
    PUSH = 6  # gradients on their way to parameter servers
    PULL = 7  # weights on their way back
    UPDATE = 8  # what a parameter server applies
    WAIT = 9  # what a worker of parameter servers waits for


NUM_STREAMS: Final = len(Stream)


class Category(enum.IntEnum):
    """The part of a breakdown that a task's time counts towards."""

    HOST = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    COMMUNICATION = 4
    WAIT = 5  # shown in a timeline, never counted: the lanes it waits on are


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The cost of a communication that runs behind other works: what they do not hide, and how it slows them down.

    ``work`` hides behind a ``share`` of the seconds of the works ``behind``, and slows them down by ``interference``;
    ``waited`` says whether anyone waits for it. :func:`traincast.strategy.costs.overlap_seconds` has the formula.
    """

    work: int
    behind: tuple[int, ...]
    share: float = 1.0
    interference: float = 0.0
    waited: bool = True

    def cost(self, seconds: npt.NDArray[np.float64]) -> float:
        """Seconds, from those of the works."""
        compute = self.share * float(seconds[list(self.behind)].sum())
        return float(overlap_seconds(float(seconds[self.work]), compute, self.interference, self.waited))


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of works on one rank in which each work waits for its own launch and for nothing else.

    With launches h₁…hₙ on the host and works d₁…dₙ on the device, the device ends at
    max(device + Σd, host + maxᵢ(h₁+…+hᵢ + dᵢ+…+dₙ)). Three tasks reproduce this exactly: the host runs
    ``lead`` = maxᵢ(Σ_{j≤i} h − Σ_{j<i} d), then the device may run Σd, and the host goes on for Σh − lead.
    """

    launches: Ints
    works: Ints
    labels: Ints

    def costs(self, seconds: npt.NDArray[np.float64]) -> tuple[float, float, float]:
        """``(lead, device, tail)`` for given seconds of the works."""
        lead, device, host = segment_seconds(seconds[self.launches], seconds[self.works])
        return float(lead), float(device), float(tail_seconds(lead, host))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Tasks of one step in program order.

    ``lanes`` and ``predecessors`` are ragged: task i has ``lanes[lane_start[i]:lane_start[i+1]]`` and so
    on. A lane is ``row * NUM_STREAMS + stream``; ``ranks[row]`` is the rank that row stands for. In a
    folded plan a row stands for all ranks that do the same; in an expanded one for itself. Rows whose rank is beyond
    the mesh stand for parameter servers.
    """

    mesh: Mesh
    works: tuple[Work, ...]
    overlaps: tuple[Overlap, ...]
    segments: tuple[Segment, ...]
    ranks: Ints
    cost: npt.NDArray[np.int32]
    lane_start: npt.NDArray[np.int64]
    lanes: npt.NDArray[np.int64]
    predecessor_start: npt.NDArray[np.int64]
    predecessors: npt.NDArray[np.int64]
    category: npt.NDArray[np.int8]
    group: npt.NDArray[np.int8]
    label: npt.NDArray[np.int32]
    microbatch: npt.NDArray[np.int32]
    labels: tuple[str, ...]

    @property
    def num_tasks(self) -> int:
        """Tasks of the plan."""
        return len(self.cost)

    def name_of(self, rank: int) -> str:
        """The name of a rank or server."""
        if rank >= self.mesh.num_ranks:
            return f"server {rank - self.mesh.num_ranks}"
        return f"rank {rank} (stage {self.mesh.coordinate(rank, 'pp')})"

    @property
    def num_lanes(self) -> int:
        """Lanes of the plan."""
        return len(self.ranks) * NUM_STREAMS

    @property
    def num_leaves(self) -> int:
        """Number of works and overlaps: all costs but those of segments."""
        return len(self.works) + len(self.overlaps)

    @property
    def num_costs(self) -> int:
        """Size of the cost table: one per work and overlap, three per segment."""
        return self.num_leaves + 3 * len(self.segments)

    def composition(self) -> Composition:
        """Which works the overlaps and segments are made of."""
        behind_start, behind = ragged([overlap.behind for overlap in self.overlaps])
        nothing = np.zeros(0, dtype=np.int64)
        return Composition(
            overlap_work=np.array([overlap.work for overlap in self.overlaps], dtype=np.int64),
            terms=np.array([(o.share, o.interference, float(o.waited)) for o in self.overlaps]).reshape(-1, 3),
            behind_start=behind_start,
            behind=behind,
            segment_start=np.cumsum([0, *(len(segment.works) for segment in self.segments)], dtype=np.int64),
            launches=np.concatenate([nothing, *(segment.launches for segment in self.segments)]),
            works=np.concatenate([nothing, *(segment.works for segment in self.segments)]),
        )

    def leaves(self, seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Seconds of works and overlaps, from the seconds of the works."""
        return np.concatenate([seconds, [overlap.cost(seconds) for overlap in self.overlaps]])

    def work_of(self, cost: int) -> Work | None:
        """The work of a cost; None for the costs of segments."""
        if cost >= self.num_leaves:
            return None
        return self.works[cost if cost < len(self.works) else self.overlaps[cost - len(self.works)].work]

    def costs(self, seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Seconds of every cost, from the seconds of the works."""
        leaves = self.leaves(seconds)
        table = np.empty(self.num_costs)
        table[: len(leaves)] = leaves
        for number, segment in enumerate(self.segments):
            at = len(leaves) + 3 * number
            table[at : at + 3] = segment.costs(leaves)
        return table

    def shares(self, seconds: npt.NDArray[np.float64], chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """Seconds within every cost that fall to the ``chosen`` works."""
        also = np.array([chosen[o.work if o.waited else o.behind[0]] for o in self.overlaps], dtype=bool)
        part = np.where(np.concatenate([chosen, also]), self.leaves(seconds), 0.0)
        table = np.zeros(self.num_costs)
        table[: self.num_leaves] = part
        at = self.num_leaves
        for segment in self.segments:
            table[at + 1] = part[segment.works].sum()
            at += 3
        return table

    def work_counts(self) -> npt.NDArray[np.int64]:
        """How often each work runs, within segments and behind other works as well."""
        uses = np.bincount(self.cost, minlength=self.num_costs)
        counts = uses[: self.num_leaves].copy()
        for number, segment in enumerate(self.segments):
            repeats = uses[self.num_leaves + 3 * number + 1]
            np.add.at(counts, segment.works, repeats)
            np.add.at(counts, segment.launches, repeats)
        for number, overlap in enumerate(self.overlaps):
            if overlap.waited:
                counts[overlap.work] += counts[len(self.works) + number]
        return counts[: len(self.works)]

    def communicates(self) -> npt.NDArray[np.bool_]:
        """Which works are communication."""
        return np.array([isinstance(w, Collective | Transfer | HostCopy) for w in self.works], dtype=bool)
