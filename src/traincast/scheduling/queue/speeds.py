"""How fast a job truly runs where it is placed, relative to its reference placement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from traincast.errors import RequestError
from traincast.scheduling.joblogs.job import Job
from traincast.scheduling.space.cluster import Node


@dataclass(frozen=True, slots=True)
class PlacedGpus:
    """The GPUs of a job: how many on which nodes, all of one type."""

    nodes: tuple[Node, ...]
    gpus_per_node: tuple[int, ...]

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs."""
        return sum(self.gpus_per_node)

    @property
    def gpu_type(self) -> str:
        """Return the type of the GPUs."""
        return self.nodes[0].gpu_type

    @property
    def num_racks(self) -> int:
        """Return how many racks it spans; all nodes without a rack count as one rack."""
        return len({(node.switch, node.rack) for node in self.nodes})


class Speeds(Protocol):
    """Gives the speed of a job on its GPUs. The result depends only on the two arguments.

    The simulation calls it when a job starts; policies call it to compare placements.
    """

    def speed(self, job: Job, placed: PlacedGpus) -> float:
        """Return the seconds of ``duration_s`` that the job completes in one second on these GPUs; above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Speed as a product of factors: of the GPU type, of crossing nodes and racks, and of the number of GPUs.

    ``gpu_types`` has the factor of each type (1 if not listed). ``across_nodes`` and ``across_racks`` apply to jobs
    that span several. An elastic job on n GPUs runs at (n / ``num_gpus``)^``scaling``: 1 is linear, and a smaller
    exponent accounts for communication.
    """

    gpu_types: Mapping[str, float] = field(default_factory=dict)
    across_nodes: float = 1.0
    across_racks: float = 1.0
    scaling: float = 1.0

    def __post_init__(self) -> None:
        named = {"across_nodes": self.across_nodes, "across_racks": self.across_racks, **self.gpu_types}
        for name, value in named.items():
            if not (math.isfinite(value) and value > 0):
                raise RequestError(f"speed factor {name}={value}: expected a number above 0")
        if not 0 <= self.scaling <= 1:
            raise RequestError(f"scaling={self.scaling}: expected an exponent from 0 to 1")

    def speed(self, job: Job, placed: PlacedGpus) -> float:
        """Return the product of the factors."""
        found = self.gpu_types.get(placed.gpu_type, 1.0)
        if len(placed.nodes) > 1:
            found *= self.across_nodes
            if placed.num_racks > 1:
                found *= self.across_racks
        if job.num_gpus >= 1 and placed.num_gpus != job.num_gpus:
            found *= float((placed.num_gpus / job.num_gpus) ** self.scaling)
        return found


PLAIN: Final = Factors()
"""Every job runs at its reference speed, an elastic one in proportion to its GPUs."""
