"""What is searched: a request, its space, and what counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from traincast.cluster import Cluster
from traincast.estimate import CostModel
from traincast.report.job import price_per_s
from traincast.searching.space import Axes, Degrees, meshes
from traincast.strategy import Request

Objective: TypeAlias = Literal["time", "cost", "energy", "memory"]

CONFIDENCE: Final = 0.8
"""With what chance a job must meet its deadline and its budget unless asked otherwise."""
OBJECTIVES: Final[tuple[Objective, ...]] = ("time", "cost", "energy", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many steps the job has, what it may take in seconds and dollars, and how likely it must keep to that."""

    num_steps: int | None = None
    deadline_s: float | None = None
    budget: float | None = None
    confidence: float = CONFIDENCE

    @property
    def some(self) -> bool:
        """Whether there are any."""
        return self.num_steps is not None and (self.deadline_s is not None or self.budget is not None)

    def job_s(self, cluster: Cluster) -> float:
        """Seconds that the job may take on a cluster: until the deadline, and until the budget is spent."""
        rate = price_per_s(cluster)
        paid = self.budget / rate if self.budget is not None and rate else float("inf")
        return min(paid, float("inf") if self.deadline_s is None else self.deadline_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A space of strategies of one request, which may use ``most_memory`` bytes of a device.

    Families that cannot come within ``reach`` times the best time are cut; with an infinite one nothing is. ``lean``
    keeps what recomputes or offloads more than it must: least memory is asked for.
    """

    request: Request
    axes: Axes
    most_memory: float
    reach: float = float("inf")
    lean: bool = False
    cost_model: CostModel | None = None

    def tasks(self, best_s: float = float("inf")) -> list[Task]:
        """Parts of the space that can be searched one by one, those with the most to do first."""
        groups: dict[tuple[int, int, int], list[Degrees]] = {}
        for at in meshes(self.axes, self.request.cluster.num_devices, self.request.global_batch):
            groups.setdefault((at.tp, at.cp, at.ep), []).append(at)
        ordered = sorted(groups.values(), key=lambda group: -len(group))
        return [Task(degrees=tuple(group), best_s=best_s) for group in ordered]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Meshes that share most of their works; ``best_s`` is a time that was found already.

    Of a ``whole`` one nothing is cut but what does not fit.
    """

    degrees: tuple[Degrees, ...]
    best_s: float = float("inf")
    whole: bool = False


@dataclass(slots=True, kw_only=True)
class SpaceCounts:
    """How a space was worked off: members by what became of them; ``families`` are those that were looked at.

    ``evaluated`` members had their memory checked, ``feasible`` ones fit and were simulated. Of other families nothing
    was looked at: ``beyond`` memory are larger micro batches of what does not fit, ``behind`` the best those bounded
    from below by more than is worth finding, ``needless`` those that recompute or offload what fits as it is.
    """

    families: int = 0
    evaluated: int = 0
    feasible: int = 0
    beyond: int = 0
    behind: int = 0
    needless: int = 0
    works: int = 0
    cpu_s: float = field(default=0.0, compare=False)

    def __iadd__(self, other: SpaceCounts) -> SpaceCounts:
        self.families += other.families
        self.evaluated += other.evaluated
        self.feasible += other.feasible
        self.beyond += other.beyond
        self.behind += other.behind
        self.needless += other.needless
        self.works += other.works
        self.cpu_s += other.cpu_s
        return self
