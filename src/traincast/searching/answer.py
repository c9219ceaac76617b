"""What a search answers: the best strategies, how sure that is, and what else there is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from traincast.report import JobForecast, Report
from traincast.searching.columns import Columns
from traincast.searching.problem import Counts, Objective
from traincast.strategy import Request, Strategy

PARTS = ("compute", "communication", "bubble", "optimizer", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy whose forecast was made in full.

    ``behind`` is how much more of the objective it takes than the best, as a share. ``chance`` is how likely it is to
    be the best of all that were compared, ``tie`` whether it may be as good as the first: the 90 % interval of their
    ratio holds 1. Cost and energy are of a step, or of the job where its length is known.
    """

    request: Request = field(repr=False)
    report: Report = field(repr=False)
    cost: float
    energy_j: float
    behind: float = 0.0
    chance: float = 0.0
    tie: bool = False
    job: JobForecast | None = None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of a search.

    ``candidates`` are the best in order, ``pareto`` those that no other one beats in step time, memory and cost at
    once. ``sure`` is how likely the first is the best of those compared. ``influence`` has, for every axis, the best
    objective with each of its values. ``columns`` are all strategies that were looked at.
    """

    model: str
    runtime: str
    precision: str
    global_batch: int
    objective: Objective
    searcher: str
    engine: str
    counts: Counts
    seconds: float
    best: Candidate
    candidates: tuple[Candidate, ...]
    pareto: tuple[Candidate, ...]
    naive: tuple[Naive, ...]
    sure: float
    influence: dict[str, dict[str, float]]
    columns: Columns = field(repr=False)
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
            "best": self.best.as_dict(),
            "candidates": [c.as_dict() for c in self.candidates],
            "pareto": [c.as_dict() for c in self.pareto],
            "naive": [n.as_dict() for n in self.naive],
            "influence": self.influence,
            "warnings": list(self.warnings),
        }
