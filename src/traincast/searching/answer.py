"""The answer of a search: the best strategies, the chance that each is the best, the alternatives; all as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.brief import Brief, BriefTable
from traincast.evidence import Support
from traincast.files import write_bytes
from traincast.report import JobForecast, Report
from traincast.report.job import price_per_s
from traincast.searching.ask import Objective
from traincast.searching.bulk.columns import StrategyColumns
from traincast.searching.problem import Limits, SpaceCounts
from traincast.searching.space import OFFLOADS, recomputation, recomputes
from traincast.strategy import Request, Strategy
from traincast.strategy.schedules import SCHEDULES
from traincast.tables import to_frame
from traincast.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


PARTS = ("compute", "communication", "bubble", "optimizer", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy with its full forecast.

    ``behind`` is how much more of the objective it takes than the best, as a share. ``chance`` is the probability
    that it is the best of all compared. ``tie`` says that it may be as good as the first: the 90 % interval of
    their ratio contains 1. ``evidence`` is what measured runs say about each technique; ``expected`` is the
    expected time over the forecast, above 1 if a technique has no evidence; ``regret`` is the expected loss against
    the best of all compared, as a share of the best; ``None`` if it was not drawn. Cost (US dollars) and energy are
    those of the job if its length is known, else of a step. ``in_time`` and ``in_budget`` are the probabilities
    that the job meets its deadline and its budget; ``None`` without one.
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
    evidence: tuple[Support, ...] = ()
    expected: float = 1.0
    regret: float | None = None

    @property
    def marked(self) -> bool:
        """Whether no measured run near this one has used one of its techniques."""
        return any(not each.supported for each in self.evidence)

    @property
    def calibrated(self) -> bool:
        """Whether its cluster is calibrated."""
        return self.request.cluster.calibration is not None

    @property
    def strategy(self) -> Strategy:
        """Its strategy."""
        return self.request.strategy

    @property
    def shares(self) -> dict[str, float]:
        """The share of each part in the simulated step; they add up to 1."""
        r = self.report
        seconds = (r.compute_s, r.exposed_communication_s, r.bubble_s, r.optimizer_s, r.overhead_s)
        total = sum(seconds) or 1.0
        return dict(zip(PARTS, (s / total for s in seconds), strict=True))

    @property
    def limiter(self) -> str:
        """The largest part of the step other than computing, if at least 10 %; else ``compute``."""
        shares = self.shares
        waits = {part: share for part, share in shares.items() if part not in ("compute", "optimizer")}
        part = max(waits, key=lambda name: waits[name])
        return part if waits[part] >= 0.1 else "compute"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
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
            "modes": [asdict(mode) for mode in r.modes],
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
            "evidence": [asdict(each) for each in self.evidence],
            "marked": self.marked, "expected": self.expected, "regret": self.regret,
            "warnings": list(r.warnings),
            "bundles": [asdict(use) for use in r.bundles],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Naive:
    """A strategy chosen without a search; ``reason`` says why it has no candidate, or does not fit."""

    name: str
    candidate: Candidate | None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        found = self.candidate.to_dict() if self.candidate else None
        return {"name": self.name, "candidate": found, "reason": self.reason}


Status: TypeAlias = Literal["ok", "does not fit", "not legal", "late", "too costly", "slower", "not accepted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A cluster to choose from, and the result there.

    ``best`` is the best strategy on it with its full forecast, even if the job is late or too costly. ``reason`` says
    why the cluster is ruled out. ``chance`` is the probability that the best strategy of all runs on it; ``ratio`` is
    the 90 % interval of the objective of ``best`` over that of the first strategy. Both are 0 if it is not compared.
    ``unmeasured`` is the share of its operators' time for which no measurement exists on this device or architecture.
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
        """The number of nodes and the name of the cluster, such as ``4 × dgx-h100``."""
        return f"{self.request.cluster.num_nodes} × {self.request.cluster.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
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
            "best": self.best.to_dict() if self.best else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer(Brief):
    """The outcome of a search.

    ``candidates`` are the best strategies in order; ``pareto`` are those that no other beats in step time, memory
    and cost at once. ``sure`` is the probability that the first is the best of those compared. ``fastest`` has the
    best forecast, ``with_evidence`` is the first of ``candidates`` whose techniques all have evidence, ``None`` if
    there is none, and ``reason`` says why the first has a technique without evidence, if it has one. ``influence``
    has, for each axis, the best objective with each of its values. ``places`` are the clusters to choose from, in
    the order of the request. ``limits`` are the limits of the job. ``columns`` has all evaluated strategies.
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
    fastest: Candidate
    with_evidence: Candidate | None
    reason: str
    influence: dict[str, dict[str, float]]
    columns: StrategyColumns = field(repr=False)
    requests: tuple[Request, ...] = field(repr=False)
    warnings: tuple[str, ...] = ()

    def brief(self) -> BriefTable:
        """Return the first ten strategies."""
        rows = [
            (
                str(found.strategy),
                found.request.cluster.name,
                format_seconds(found.report.step_s),
                format_bytes(found.report.peak_memory_bytes),
                f"{found.chance:.0%}",
            )
            for found in self.candidates[:10]
        ]
        said = f"{self.model}, global batch {self.global_batch}: best {self.objective} of {self.counts.evaluated:,}"
        return BriefTable(f"{said} strategies", rows, ("strategy", "cluster", "step", "memory", "chance"))

    def to_pandas(self) -> pd.DataFrame:
        """Return the candidates, one row each, as a pandas table."""
        return to_frame(candidate.to_dict() for candidate in self.candidates)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
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
            "clusters": [place.to_dict() for place in self.places],
            "best": self.best.to_dict(),
            "fastest": self.fastest.to_dict(),
            "with_evidence": self.with_evidence.to_dict() if self.with_evidence else None,
            "reason": self.reason,
            "candidates": [c.to_dict() for c in self.candidates],
            "pareto": [c.to_dict() for c in self.pareto],
            "naive": [n.to_dict() for n in self.naive],
            "influence": self.influence,
            "warnings": list(self.warnings),
        }


Array = npt.NDArray[Any]


def write_table(answer: Answer, path: Path) -> int:
    """Write every evaluated strategy, the fastest first, and return their number.

    ``step_s`` and ``cost`` (US dollars of a step) are null if a strategy does not fit. An earlier file at ``path`` is
    replaced only when the new one is complete.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = pa.BufferOutputStream()
    pq.write_table(_table(answer), whole, compression="zstd")
    write_bytes(path, whole.getvalue())
    return len(answer.columns)


def _table(answer: Answer) -> pa.Table:
    import pyarrow as pa

    found = answer.columns
    columns = found.take(found.order(found.seconds))
    clusters = [request.cluster for request in answer.requests]
    number, seconds = columns.cluster.astype(np.int64), columns.seconds
    techniques = [recomputation(value) for value in recomputes()]
    fits = np.isfinite(seconds)
    rates = np.array([price_per_s(cluster) for cluster in clusters])[number]
    return pa.table(
        {
            "cluster": _named(number, [cluster.name for cluster in clusters]),
            "nodes": np.array([cluster.num_nodes for cluster in clusters], dtype=np.int32)[number],
            "dp": columns.dp,
            "tp": columns.tp,
            "pp": columns.pp,
            "cp": columns.cp,
            "ep": columns.ep,
            "micro_batch": columns.micro_batch,
            "num_microbatches": columns.num_microbatches,
            "virtual_stages": columns.virtual_stages,
            "schedule": _named(columns.schedule, list(SCHEDULES)),
            "zero": columns.zero,
            "sequence_parallel": pa.array(columns.sequence_parallel, pa.bool_()),
            "recompute": _named(columns.recompute, [name for name, _ in techniques]),
            "recompute_every": np.array([every for _, every in techniques], np.int8)[columns.recompute],
            "offload": _named(columns.offload, ["+".join(offload) for offload in OFFLOADS.values()]),
            "layers": _named(columns.cut, ["/".join(map(str, layers)) for layers in columns.cuts]),
            "memory_bytes": columns.memory.astype(np.float64),
            "step_s": pa.array(np.where(fits, seconds, 0.0), mask=~fits),
            "fits": pa.array(fits, pa.bool_()),
            "cost": pa.array(np.where(fits, seconds, 0.0) * rates, mask=~fits),
        }
    )


def _named(numbers: Array, names: Sequence[str]) -> pa.Array:
    """Return the names of ``numbers`` as a dictionary column, which stores each distinct name once."""
    import pyarrow as pa

    known = list(dict.fromkeys(names))
    codes = np.array([known.index(name) for name in names], dtype=np.int32)[numbers.astype(np.int64)]
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(known, pa.string()))
