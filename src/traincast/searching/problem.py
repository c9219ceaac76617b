"""The problem that a search solves: a request, its space of strategies, and the limits of the job."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, field
from typing import Final

from traincast.cluster import Cluster
from traincast.estimate import CostModel
from traincast.report.job import price_per_s
from traincast.searching.ask import CONFIDENCE
from traincast.searching.space import Axes, Degrees, meshes
from traincast.strategy import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Number of steps of the job, its deadline in seconds, its budget in US dollars, and the required probability."""

    num_steps: int | None = None
    deadline_s: float | None = None
    budget: float | None = None
    confidence: float = CONFIDENCE

    @property
    def some(self) -> bool:
        """Whether the job has a deadline or a budget."""
        return self.num_steps is not None and (self.deadline_s is not None or self.budget is not None)

    def job_s(self, cluster: Cluster) -> float:
        """Return the seconds that the job may take on a cluster: until the deadline, or until the budget is spent."""
        rate = price_per_s(cluster)
        paid = self.budget / rate if self.budget is not None and rate else float("inf")
        return min(paid, float("inf") if self.deadline_s is None else self.deadline_s)


_INTEREST: Final = 2.0
"""A strategy with evidence is not searched for beyond this many times the shortest expected time."""


@dataclass(frozen=True, slots=True)
class Best:
    """The shortest step times known so far, in seconds.

    ``fastest_s`` is the shortest forecast of all, ``expected_s`` the shortest expected time (see
    :mod:`traincast.searching.doubts`), and ``evident_s`` that of strategies whose techniques all have evidence.
    """

    fastest_s: float = math.inf
    expected_s: float = math.inf
    evident_s: float = math.inf

    def least(self, other: Best) -> Best:
        """Return the shorter of each."""
        return Best(*map(min, astuple(self), astuple(other)))

    def most_s(self, reach: float, factor: float) -> float:
        """Return the longest forecast that is worth finding of strategies whose expected time is ``factor`` times it.

        Strategies with evidence count up to ``reach`` times the best of them, others up to ``reach`` times the shortest
        expected time; a strategy that may have the shortest forecast counts in any case.
        """
        if factor <= 1.0:
            return max(reach * min(self.evident_s, _INTEREST * self.expected_s), self.fastest_s)
        return max(reach * self.expected_s / factor, self.fastest_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The space of strategies of one request; each may use ``most_memory`` bytes of a device.

    Families that cannot come within ``reach`` times the best time are skipped; an infinite reach skips none. ``lean``
    keeps families that recompute or offload more than they must, because the objective is memory.
    """

    request: Request
    axes: Axes
    most_memory: float
    reach: float = float("inf")
    lean: bool = False
    cost_model: CostModel | None = None

    def tasks(self, best: Best | None = None) -> list[Task]:
        """Return the parts of the space, the longest first; ``best`` are step times known already.

        With a finite reach, a part has all meshes that differ in the number of stages: a good time on one leaves out
        families on the others. Else each mesh is a part, so that workers end at about the same time.
        """
        groups: dict[tuple[int, ...], list[Degrees]] = {}
        for at in meshes(self.axes, self.request.cluster.num_devices, self.request.global_batch):
            alone = () if math.isfinite(self.reach) else (at.pp,)
            groups.setdefault((at.tp, at.cp, at.ep, *alone), []).append(at)
        ordered = sorted(groups.values(), key=lambda group: (-len(group), -group[0].pp))
        return [Task(degrees=tuple(group), best=best or Best()) for group in ordered]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A part of the space: meshes that share most of their works.

    ``best`` has the best step times known so far. In a ``whole`` task no family is skipped for its time.
    """

    degrees: tuple[Degrees, ...]
    best: Best = Best()
    whole: bool = False


@dataclass(slots=True, kw_only=True)
class SpaceCounts:
    """Counts of a search.

    ``families`` were evaluated; the memory of ``evaluated`` strategies was checked, ``feasible`` ones fit and were
    simulated. Other families were skipped: ``beyond`` have a larger micro batch than one that does not fit, the lower
    bound of ``behind`` is too far above the best time, and ``needless`` recompute or offload although all members fit
    without. ``works`` is the number of distinct works estimated, ``cpu_s`` the processor time in seconds.
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
