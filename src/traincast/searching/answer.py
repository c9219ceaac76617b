"""What a search answers: the best strategies, how sure that is, and what else there is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from traincast.report import JobForecast, Report
from traincast.report.job import price_per_s
from traincast.searching.columns import StrategyColumns
from traincast.searching.problem import Limits, Objective, SpaceCounts
from traincast.strategy import Request, Strategy

PARTS = ("compute", "communication", "bubble", "optimizer", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy whose forecast was made in full.

    ``behind`` is how much more of the objective it takes than the best, as a share. ``chance`` is how likely it is to
    be the best of all that were compared, ``tie`` whether it may be as good as the first: the 90 % interval of their
    ratio holds 1. Cost and energy are of a step, or of the job where its length is known. ``in_time`` and
    ``in_budget`` are how likely the job is to meet its deadline and its budget, where one was given.
    """

    request: Request = field(repr=False)
    report: Report = field(repr=False)
    cost: float
    energy_j: float
    behind: float = 0.0
    chance: float = 0.0
    tie: bool = False
    job: JobForecast | None = None
    in_time: float | None = None
    in_budget: float | None = None

    @property
    def calibrated(self) -> bool:
        """Whether its cluster is."""
        return self.request.cluster.calibration is not None

    @property
    def strategy(self) -> Strategy:
        """How it is spread."""
        return self.request.strategy

    @property
    def shares(self) -> dict[str, float]:
        """What the simulated step is spent on; they add up to one."""
        r = self.report
        seconds = (r.compute_s, r.exposed_communication_s, r.bubble_s, r.optimizer_s, r.overhead_s)
        total = sum(seconds) or 1.0
        return dict(zip(PARTS, (s / total for s in seconds), strict=True))

    @property
    def limiter(self) -> str:
        """What limits it: memory that leaves no room for more, or what it waits for most beside computing."""
        shares = self.shares
        waits = {part: share for part, share in shares.items() if part not in ("compute", "optimizer")}
        part = max(waits, key=lambda name: waits[name])
        return part if waits[part] >= 0.1 else "compute"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        r, s = self.report, self.strategy
        return {
            "strategy": str(s),
            "cluster": self.request.cluster.name,
            "num_nodes": self.request.cluster.num_nodes,
            "num_devices": r.num_devices,
            "dp": s.dp, "tp": s.tp, "pp": s.pp, "cp": s.cp, "ep": s.ep,
            "micro_batch": r.micro_batch,
            "num_microbatches": s.num_microbatches,
            "virtual_stages": s.virtual_stages,
            "schedule": s.schedule,
            "zero": s.zero,
            "sequence_parallel": s.sequence_parallel,
            "recompute": s.recompute,
            "recompute_every": s.recompute_every,
            "offload": list(s.offload),
            "layers": list(s.layers),
            "step_s": r.step_s, "low_s": r.low_s, "high_s": r.high_s,
            "samples_per_s": r.samples_per_s, "tokens_per_s": r.tokens_per_s, "mfu": r.mfu,
            "peak_memory_bytes": r.peak_memory_bytes,
            "memory_capacity_bytes": r.memory_capacity_bytes,
            "host_memory_bytes": r.host_memory_bytes,
            "fits": r.fits, "fits_probability": r.fits_probability,
            "limiter": self.limiter,
            "shares": self.shares,
            "cost": self.cost, "energy_j": self.energy_j,
            "job_s": self.job.job_s if self.job else None,
            "in_time": self.in_time, "in_budget": self.in_budget,
            "behind": self.behind, "chance": self.chance, "tie": self.tie,
            "warnings": list(r.warnings),
            "bundles": [asdict(use) for use in r.bundles],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Naive:
    """What someone would do without a search; without a candidate, ``reason`` says why it cannot be done."""

    name: str
    candidate: Candidate | None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found = self.candidate.as_dict() if self.candidate else None
        return {"name": self.name, "candidate": found, "reason": self.reason}


Status: TypeAlias = Literal["ok", "does not fit", "not legal", "late", "too costly", "slower", "not accepted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A cluster to choose from, and what became of it.

    ``best`` is the best strategy there, forecast in full, also where it is too late or too costly; without one,
    ``reason`` says why. ``chance`` is how likely the best of all compared is there, ``ratio`` between what and what
    times the first its best lies in 90 % of cases; both are 0 where it is not compared. ``unmeasured`` is the share of
    its operators' time of which nothing was measured on this device or its architecture.
    """

    request: Request = field(repr=False)
    status: Status
    reason: str = ""
    best: Candidate | None = None
    evaluated: int = 0
    feasible: int = 0
    chance: float = 0.0
    ratio: tuple[float, float] = (0.0, 0.0)
    unmeasured: float = 0.0

    @property
    def name(self) -> str:
        """The cluster with its number of nodes, in words."""
        return f"{self.request.cluster.num_nodes} × {self.request.cluster.name}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        cluster = self.request.cluster
        return {
            "cluster": cluster.name,
            "num_nodes": cluster.num_nodes,
            "num_devices": cluster.num_devices,
            "device": cluster.device.name,
            "memory_bytes": cluster.device.memory_bytes,
            "price_per_s": price_per_s(cluster),
            "calibrated": cluster.calibration is not None,
            "status": self.status,
            "reason": self.reason,
            "evaluated": self.evaluated,
            "feasible": self.feasible,
            "chance": self.chance,
            "ratio": list(self.ratio) if self.ratio[1] else None,
            "unmeasured": self.unmeasured,
            "best": self.best.as_dict() if self.best else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of a search.

    ``candidates`` are the best in order, ``pareto`` those that no other one beats in step time, memory and cost at
    once. ``sure`` is how likely the first is the best of those compared. ``influence`` has, for every axis, the best
    objective with each of its values. ``places`` are the clusters to choose from, in the order they were asked for,
    ``limits`` what the job may take. ``columns`` are all strategies that were looked at.
    """

    model: str
    runtime: str
    precision: str
    global_batch: int
    objective: Objective
    searcher: str
    engine: str
    counts: SpaceCounts
    seconds: float
    best: Candidate
    candidates: tuple[Candidate, ...]
    pareto: tuple[Candidate, ...]
    naive: tuple[Naive, ...]
    places: tuple[Place, ...]
    limits: Limits
    sure: float
    influence: dict[str, dict[str, float]]
    columns: StrategyColumns = field(repr=False)
    requests: tuple[Request, ...] = field(repr=False)
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "model": self.model,
            "runtime": self.runtime,
            "precision": self.precision,
            "global_batch": self.global_batch,
            "objective": self.objective,
            "searcher": self.searcher,
            "engine": self.engine,
            "evaluated": self.counts.evaluated,
            "feasible": self.counts.feasible,
            "families": self.counts.families,
            "families_beyond_memory": self.counts.beyond,
            "families_behind": self.counts.behind,
            "families_needless": self.counts.needless,
            "works": self.counts.works,
            "seconds": self.seconds,
            "cpu_seconds": self.counts.cpu_s,
            "sure": self.sure,
            "num_steps": self.limits.num_steps,
            "deadline_s": self.limits.deadline_s,
            "budget": self.limits.budget,
            "confidence": self.limits.confidence if self.limits.some else None,
            "clusters": [place.as_dict() for place in self.places],
            "best": self.best.as_dict(),
            "candidates": [c.as_dict() for c in self.candidates],
            "pareto": [c.as_dict() for c in self.pareto],
            "naive": [n.as_dict() for n in self.naive],
            "influence": self.influence,
            "warnings": list(self.warnings),
        }
