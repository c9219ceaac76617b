"""The report: everything a forecast says about one training step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.estimate import SOURCES, Estimates
from traincast.graph import Operator, OperatorGraph, work_amount
from traincast.report.breakdown import Breakdown, breakdowns, mean_breakdown
from traincast.report.critical_path import PathEntry, critical_tasks, summarize
from traincast.report.floor import floor_of
from traincast.report.job import JobForecast
from traincast.report.outlook import outlook
from traincast.simulate import Conditions, ServerRun, Timeline, who_waits
from traincast.strategy import Category, Lowered, Memory, Plan, Request
from traincast.strategy.fits import MARGIN, MemoryNeed, need_of
from traincast.strategy.memory_timeline import Holder, Moment
from traincast.units import format_bytes
from traincast.work import Collective, Demand, Launch, Transfer, demand_of

SHOWN_ENTRIES: Final = 12
"""Entries of the critical path that a report has at most."""
_MOST_ROWS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One pipeline stage's rank (all replicas of it do the same): its time and memory."""

    rank: int
    stage: int
    breakdown: Breakdown
    memory: Memory

    @property
    def utilization(self) -> float:
        """Share of the step in which its device computes."""
        total = self.breakdown.total_s
        return (self.breakdown.compute_s + self.breakdown.optimizer_s) / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWaits:
    """How long a rank's device waits in a step, and for which rank most (−1: for none)."""

    rank: int
    busy_s: float
    waiting_s: float
    for_rank: int
    for_rank_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleUse:
    """What a bundle that a user named estimated: shares of the time of all works, of operators, of what is sent."""

    path: str
    covered: float
    operators: float
    collectives: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a forecast says; seconds, bytes, and shares from 0 to 1.

    Memory is that of the fullest rank. ``host_memory_bytes`` is what the fullest node's host holds; ``host_memory`` has
    it by part, for one rank of the stage that offloads most. ``fits`` says that both suffice: the device's with a
    probability of ``fits_margin`` at least, the host's where its capacity is known. ``floor_s`` are the seconds that no
    step of this plan can beat on these devices.
    """

    model: str
    cluster: str
    strategy: str
    runtime: str
    precision: str
    num_devices: int
    global_batch: int
    micro_batch: int
    tokens_per_sample: int
    num_parameters: int
    num_trainable_parameters: int
    step_s: float
    low_s: float
    high_s: float
    floor_s: float
    samples_per_s: float
    tokens_per_s: float
    mfu: float
    compute_s: float
    exposed_communication_s: float
    bubble_s: float
    optimizer_s: float
    overhead_s: float
    calibrated_s: float
    peak_memory_bytes: float
    memory_capacity_bytes: float
    memory_low_bytes: float
    memory_high_bytes: float
    memory: Memory
    host_memory_bytes: float
    host_memory_capacity_bytes: float | None
    host_memory: dict[str, float] = field(hash=False)
    fits: bool
    fits_probability: float
    fits_margin: float
    verdict: str
    demand: Demand
    estimated_by: dict[str, float] = field(hash=False)
    ranks: tuple[RankReport, ...]
    critical_path: tuple[PathEntry, ...]
    warnings: tuple[str, ...]
    fullest_stage: int = 0
    memory_over_time: tuple[Moment, ...] = ()
    peak_tensors: tuple[Holder, ...] = ()
    waits: tuple[RankWaits, ...] = ()
    bundles: tuple[BundleUse, ...] = ()
    servers: ServerRun | None = None
    conditions: Conditions | None = None
    job: JobForecast | None = None

    @property
    def num_servers(self) -> int:
        """Parameter servers; none unless a strategy has them."""
        return len(self.servers.nodes) if self.servers else 0

    def summary(self) -> dict[str, Any]:
        """What was forecast and under which conditions: the note that goes with a trace."""
        names = ("model", "cluster", "strategy", "runtime", "precision", "global_batch", "step_s")
        values = {name: getattr(self, name) for name in names}
        return {**values, "conditions": self.conditions.as_dict() if self.conditions else None}

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        data = asdict(self)
        data["memory"] = self.memory.as_dict()
        data["memory_parts"] = dict(self.memory.parts)
        data["memory_over_time"] = [{"label": m.label, **m.components} for m in self.memory_over_time]
        data["ranks"] = [
            {
                "rank": r.rank,
                "stage": r.stage,
                "utilization": r.utilization,
                **asdict(r.breakdown),
                "peak_memory_bytes": r.memory.total,
            }
            for r in self.ranks
        ]
        data["servers"] = asdict(self.servers) if self.servers else None
        data["conditions"] = self.conditions.as_dict() if self.conditions else None
        data["job"] = self.job.as_dict() if self.job else None
        data["job_s"] = self.job.job_s if self.job else None
        data["cost"] = self.job.cost if self.job else None
        data["energy_j"] = self.job.energy_j if self.job else None
        return data


def model_flops(graph: OperatorGraph) -> float:
    """FLOPs of forward and backward products for one sample, nothing recomputed: what MFU counts."""
    return sum(work_amount.model_flops(op) * count for op, count in graph)


def make_report(
    request: Request, lowered: Lowered, estimates: Estimates, timeline: Timeline, *, folded: Timeline | None = None
) -> Report:
    """Put together what ``timeline`` and ``lowered`` say about ``request``.

    A timeline of ranks that differ comes with that of equal ones (``folded``), which the interval is scaled from.
    """
    plan = timeline.plan
    stages = [plan.mesh.coordinate(rank, "pp") for rank in plan.ranks.tolist()]
    rows = rows_to_report(len(stages), plan.mesh.pp)
    parts = breakdowns(timeline, rows, plan.shares(estimates.seconds, plan.communicates()))
    ranks = tuple(
        RankReport(
            rank=int(plan.ranks[row]),
            stage=stages[row],
            breakdown=part,
            memory=lowered.memory[stages[row]],
        )
        for row, part in zip(rows, parts, strict=True)
    )
    expected = outlook(request, lowered.plan, estimates, folded or timeline)
    if folded is not None and folded.step_s:
        expected = expected.scaled(timeline.step_s / folded.step_s)
    floor_s = floor_of(lowered.plan, request.cluster)
    expected = expected.above(floor_s)
    step_s = expected.step_s
    mean = mean_breakdown([r.breakdown for r in ranks])
    fullest = max(lowered.memory, key=lambda m: m.total)
    need = need_of(lowered.memory, strategy=request.strategy, runtime=request.runtime, cluster=request.cluster)
    offloads = max(lowered.memory, key=lambda m: sum(m.host.values()))
    device = request.cluster.device
    samples = request.global_batch / step_s if step_s else 0.0
    graph = request.graph
    return Report(
        model=graph.name,
        cluster=where(request.cluster),
        strategy=str(request.strategy),
        runtime=request.runtime.name,
        precision=request.precision.name,
        num_devices=request.cluster.num_devices,
        global_batch=request.global_batch,
        micro_batch=lowered.micro_batch,
        tokens_per_sample=graph.tokens_per_sample,
        num_parameters=graph.num_parameters,
        num_trainable_parameters=graph.num_trainable_parameters,
        step_s=step_s,
        low_s=expected.low_s,
        high_s=expected.high_s,
        floor_s=floor_s,
        samples_per_s=samples,
        tokens_per_s=samples * graph.tokens_per_sample,
        mfu=model_flops(graph) * samples / peak_flops(request.cluster, request.precision.linear.value),
        **asdict(mean),
        calibrated_s=step_s - timeline.step_s,
        peak_memory_bytes=fullest.total,
        memory_capacity_bytes=device.memory_bytes,
        memory_low_bytes=need.low,
        memory_high_bytes=need.high,
        memory=fullest,
        host_memory_bytes=need.host,
        host_memory_capacity_bytes=need.host_capacity or None,
        host_memory=dict(offloads.host),
        fits=need.fits,
        fits_probability=need.probability,
        fits_margin=MARGIN,
        verdict=need.verdict,
        demand=_demand(lowered.plan),
        estimated_by=_sources(timeline, estimates),
        bundles=bundle_uses(lowered.plan, estimates),
        ranks=ranks,
        critical_path=tuple(summarize(timeline, critical_tasks(timeline), estimates.seconds)[:SHOWN_ENTRIES]),
        warnings=(*_warnings(request, estimates, need), *expected.warnings),
    )


def rows_to_report(count: int, stages: int) -> list[int]:
    """Rows to look at: all, or of many ranks some of each stage, evenly spaced."""
    if count <= max(stages, _MOST_ROWS):
        return list(range(count))
    each, replicas = max(1, _MOST_ROWS // stages), count // stages
    return [stage * replicas + n * replicas // each for stage in range(stages) for n in range(each)]


def waits_of(timeline: Timeline) -> tuple[RankWaits, ...]:
    """Ranks by how long they wait, those that wait least first: the ones the others wait for."""
    found = who_waits(timeline)
    order = np.argsort(found.waiting_s, kind="stable").tolist()
    return tuple(
        RankWaits(
            rank=int(found.ranks[i]),
            busy_s=float(found.busy_s[i]),
            waiting_s=float(found.waiting_s[i]),
            for_rank=int(found.for_rank[i]),
            for_rank_s=float(found.for_rank_s[i]),
        )
        for i in order
    )


def _demand(plan: Plan) -> Demand:
    """What one device is asked for in a step, on average over the stages."""
    counts = plan.work_counts() / len(plan.ranks)
    demands = [demand_of(work) for work in plan.works]
    return Demand(
        computation_flop=float(counts @ [d.computation_flop for d in demands]),
        memory_access_bytes=float(counts @ [d.memory_access_bytes for d in demands]),
        communication_bytes=float(counts @ [d.communication_bytes for d in demands]),
    )


def peak_flops(cluster: Cluster, dtype: str) -> float:
    """Peak FLOP/s of all devices together, each at its own rate."""
    return sum(part.device.peak(dtype) * part.num_devices for part in cluster.parts or (cluster,))


def where(cluster: Cluster) -> str:
    """What a cluster is made of, in words."""
    parts = [f"{p.num_nodes} × {p.devices_per_node} {p.device.name}" for p in cluster.parts or (cluster,)]
    parts += [f"{host.num_nodes} {host.name}" for host in cluster.hosts]
    return f"{cluster.name} ({' + '.join(parts)})"


def _sources(timeline: Timeline, estimates: Estimates) -> dict[str, float]:
    """Share of all time of works, by where the estimate came from."""
    plan = timeline.plan
    device = plan.cost[plan.category != Category.HOST]
    counts = np.bincount(device, minlength=plan.num_costs)
    seconds = {
        name: float(counts @ plan.shares(estimates.seconds, estimates.source == number))
        for number, name in enumerate(SOURCES)
    }
    total = sum(seconds.values()) or 1.0
    return {name: value / total for name, value in seconds.items()}


def bundle_uses(plan: Plan, estimates: Estimates) -> tuple[BundleUse, ...]:
    """What each bundle that a user named estimated of a step; what is hidden behind other works counts as well."""
    if estimates.bundle is None:
        return ()
    spent = estimates.seconds * plan.work_counts()
    computes = np.array([isinstance(work, Operator) for work in plan.works], dtype=bool)
    sends = np.array([isinstance(work, Collective | Transfer) for work in plan.works], dtype=bool)
    runs = np.array([not isinstance(work, Launch) for work in plan.works], dtype=bool)

    def share(number: int, among: npt.NDArray[np.bool_]) -> float:
        total = float(spent[among].sum())
        return float(spent[among & (estimates.bundle == number)].sum()) / total if total > 0.0 else 0.0

    return tuple(
        BundleUse(
            path=path,
            covered=share(number, runs),
            operators=share(number, computes),
            collectives=share(number, sends),
        )
        for number, path in enumerate(estimates.bundles)
    )


def _warnings(request: Request, estimates: Estimates, need: MemoryNeed) -> tuple[str, ...]:
    warnings = list(estimates.warnings)
    if not need.fits:
        warnings.append(f"{need.verdict}: {need.shortage()}")
    if need.host and not need.host_capacity:
        warnings.append(
            f"the host memory of {request.cluster.name} is not known: whether it holds the {format_bytes(need.host)} "
            "that a node offloads is not checked; set host_memory_bytes of its node"
        )
    unknown = sorted({op.name for op, _ in request.graph if op.attributes.get("unknown")})
    if unknown:
        warnings.append(f"operators without a formula of their own, taken as element-wise: {', '.join(unknown)}")
    dtype = request.precision.linear.value
    if not request.cluster.device.supports(dtype):
        warnings.append(f"{request.cluster.device.name} has no {dtype}: taken at the rate of the next wider dtype")
    return tuple(warnings)
