"""Works: everything that takes time. A strategy creates works, a cost model estimates them.

This module is below both, so that neither imports the other. Works are values: tasks that do the same thing share one
work, which is estimated once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from traincast.graph import Operator

CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective among ``num_ranks`` ranks that span ``num_nodes`` nodes evenly.

    ``nbytes`` is counted as in nccl-tests: the buffer of an all_reduce or a broadcast, the whole output of an
    all_gather, the whole input of a reduce_scatter, the send buffer of one rank of an all_to_all. ``sharing`` is the
    number of equal groups that use a node's NICs at the same time. ``axes`` are the axes of the mesh along which the
    group lies; they are set only in plans of mixed clusters, where each group of those axes has links of its own.
    """

    kind: CollectiveKind
    nbytes: float
    num_ranks: int
    num_nodes: int = 1
    sharing: int = 1
    axes: tuple[str, ...] = ()

    @property
    def ranks_per_node(self) -> int:
        """Members of the group on one node."""
        return -(-self.num_ranks // self.num_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A message from one rank to another; ``sharing`` is the number of pairs that use a node's NICs at once.

    ``to_stage`` is the pipeline stage that receives it; it is set only in plans of mixed clusters, else it is −1.
    """

    nbytes: float
    crosses_nodes: bool = False
    sharing: int = 1
    to_stage: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The host's work before a device can start, by purpose; the unit is one kernel launch.

    ``kernels`` are launches of operators, ``blocks`` the bookkeeping of a layer or a pass, ``collectives`` and
    ``sends`` the host's part in communication. They are separate because a host may be fast at one and slow at
    another. ``prepared`` is what a library prepares before its kernels start. It belongs to ``kernels`` but is less
    certain: releases of libraries differ in it as much as hosts do. ``waits`` is the time in which the hosts of a
    collective's ranks wait for one another; it counts only if the hosts are ``crowded``.
    """

    kernels: float = 0.0
    blocks: float = 0.0
    collectives: float = 0.0
    sends: float = 0.0
    waits: float = 0.0
    crowded: bool = False
    prepared: float = 0.0

    def __add__(self, other: Launch) -> Launch:
        return Launch(
            kernels=self.kernels + other.kernels,
            blocks=self.blocks + other.blocks,
            collectives=self.collectives + other.collectives,
            sends=self.sends + other.sends,
            waits=self.waits + other.waits,
            crowded=self.crowded or other.crowded,
            prepared=self.prepared + other.prepared,
        )

    @property
    def launches(self) -> float:
        """All parts added up; ``waits`` only if ``crowded``."""
        waits = self.waits if self.crowded else 0.0
        return self.kernels + self.prepared + self.blocks + self.collectives + self.sends + waits


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """Offloaded bytes that move between a device and its host's memory."""

    nbytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUpdate:
    """An optimizer's update of offloaded states on the host; ``nbytes`` are read and written there."""

    nbytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Something that a profiler saw, and how long it took there: a work that states its own time."""

    name: str
    nanoseconds: int


Work: TypeAlias = Operator | Collective | Transfer | Launch | HostCopy | HostUpdate | Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What works demand of the hardware, split as in DeletePop: computation, memory access and communication."""

    computation_flop: float
    memory_access_bytes: float
    communication_bytes: float


def demand_of(work: Work) -> Demand:
    """Returns the demand of one work; ``communication_bytes`` are counted as :class:`Collective` counts ``nbytes``."""
    match work:
        case Operator():
            return Demand(computation_flop=work.flops, memory_access_bytes=work.nbytes, communication_bytes=0.0)
        case Launch() | HostUpdate() | Recorded():
            return Demand(computation_flop=0.0, memory_access_bytes=0.0, communication_bytes=0.0)
        case _:
            return Demand(computation_flop=0.0, memory_access_bytes=0.0, communication_bytes=work.nbytes)
