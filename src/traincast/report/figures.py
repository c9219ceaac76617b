"""Figures of one simulated step: its time, the parts of its time, waits between ranks, and the critical path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.estimate import SOURCES, Estimates
from traincast.graph import OperatorGraph, work_amount
from traincast.report.breakdown import Breakdown, breakdowns, mean_breakdown
from traincast.report.critical_path import PathEntry, critical_tasks, summarize
from traincast.report.floor import floor_of
from traincast.report.outlook import Mode, outlook, scaled_modes
from traincast.report.report import RankReport, RankWaits
from traincast.report.split import TimeSplit, split_of
from traincast.simulate import Timeline, who_waits
from traincast.strategy import Category, Lowered, Plan
from traincast.work import Demand, Launch, demand_of

if TYPE_CHECKING:
    from traincast.simulate.servers import ServerRun

SHOWN_ENTRIES: Final = 12
"""Greatest number of critical-path entries in a report."""
_MOST_ROWS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The time of a step, its 90 % interval and its floor, in seconds; throughput; MFU; warnings; modes; and doubt.

    ``modes`` and ``doubt`` are those of :class:`traincast.report.outlook.Outlook`.
    """

    step_s: float
    low_s: float
    high_s: float
    floor_s: float
    samples_per_s: float
    tokens_per_s: float
    mfu: float
    warnings: tuple[str, ...]
    modes: tuple[Mode, ...] = ()
    doubt: Mapping[str, float] = field(default_factory=dict, hash=False)

    def slowed(self, step_s: float) -> Pace:
        """Return the pace of the same work in a step of ``step_s`` seconds."""
        ratio = step_s / self.step_s
        return replace(
            self,
            step_s=step_s,
            low_s=self.low_s * ratio,
            high_s=self.high_s * ratio,
            samples_per_s=self.samples_per_s / ratio,
            tokens_per_s=self.tokens_per_s / ratio,
            mfu=self.mfu / ratio,
            modes=scaled_modes(self.modes, ratio),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """All figures of a report that concern the step's time; :class:`traincast.report.Report` explains each.

    ``breakdown`` is the mean over ranks. ``on_path`` says how often each cost of the plan occurs on its critical path,
    if all ranks do the same.
    """

    pace: Pace
    breakdown: Breakdown
    calibrated_s: float
    split: TimeSplit
    demand: Demand
    estimated_by: dict[str, float]
    ranks: tuple[RankReport, ...]
    critical_path: tuple[PathEntry, ...]
    on_path: npt.NDArray[np.int64]
    waits: tuple[RankWaits, ...] = ()
    servers: ServerRun | None = None


def pace_of(
    lowered: Lowered,
    estimates: Estimates,
    timeline: Timeline,
    *,
    folded: Timeline | None = None,
    breakdown: Breakdown | None = None,
) -> Pace:
    """Return the pace of a step whose ranks run as in ``timeline``; ``breakdown`` is its mean one, if it is known.

    If ranks differ, ``folded`` is the timeline of equal ranks, and the interval is scaled from it.
    """
    request = lowered.request
    known = breakdown if folded is None else None
    expected = outlook(request, lowered.plan, estimates, folded or timeline, known)
    if folded is not None and folded.step_s:
        expected = expected.scaled(timeline.step_s / folded.step_s)
    floor_s = floor_of(lowered.plan, request.cluster, lowered.variants)
    expected = expected.above(floor_s)
    step_s, graph = expected.step_s, request.graph
    samples = request.global_batch / step_s if step_s else 0.0
    return Pace(
        step_s=step_s,
        low_s=expected.low_s,
        high_s=expected.high_s,
        floor_s=floor_s,
        samples_per_s=samples,
        tokens_per_s=samples * graph.tokens_per_sample,
        mfu=model_flops(graph) * samples / peak_flops(request.cluster, request.precision.linear.value),
        warnings=expected.warnings,
        modes=expected.modes,
        doubt=expected.doubt,
    )


def figures_of_ranks(
    lowered: Lowered, estimates: Estimates, timeline: Timeline, *, folded: Timeline | None = None
) -> StepFigures:
    """Return the figures of a step whose ranks exchange gradients directly; ``folded`` as in :func:`pace_of`."""
    plan = timeline.plan
    stages = [plan.mesh.coordinate(rank, "pp") for rank in plan.ranks.tolist()]
    rows = rows_to_report(len(stages), plan.mesh.pp)
    parts = breakdowns(timeline, rows, plan.shares(estimates.seconds, plan.communicates()))
    mean = mean_breakdown(parts)
    pace = pace_of(lowered, estimates, timeline, folded=folded, breakdown=mean)
    calibrated_s, cluster = pace.step_s - timeline.step_s, lowered.request.cluster
    path = critical_tasks(timeline)
    return StepFigures(
        pace=pace,
        breakdown=mean,
        calibrated_s=calibrated_s,
        split=split_of(lowered.plan, estimates.seconds, cluster, breakdown=mean, calibrated_s=calibrated_s),
        demand=demand_per_device(lowered.plan),
        estimated_by=sources(plan, estimates),
        ranks=tuple(
            RankReport(rank=int(plan.ranks[row]), stage=stages[row], breakdown=part, memory=lowered.memory[stages[row]])
            for row, part in zip(rows, parts, strict=True)
        ),
        critical_path=tuple(summarize(timeline, path, estimates.seconds)[:SHOWN_ENTRIES]),
        on_path=uses_of(lowered.plan, path if folded is None else critical_tasks(folded)),
        waits=() if folded is None else waits_of(timeline),
    )


def uses_of(plan: Plan, tasks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how often each cost of ``plan`` occurs among ``tasks``."""
    return np.bincount(plan.cost[tasks], minlength=plan.num_costs)


def model_flops(graph: OperatorGraph) -> float:
    """Return the FLOPs of one sample's forward and backward products, without recomputation, as MFU counts them."""
    return sum(work_amount.model_flops(op) * count for op, count in graph)


def peak_flops(cluster: Cluster, dtype: str) -> float:
    """Return the sum of the peak FLOP/s of all devices."""
    return sum(part.device.peak(dtype) * part.num_devices for part in cluster.parts or (cluster,))


def rows_to_report(count: int, stages: int) -> list[int]:
    """Return the rows of a timeline to report: all, or evenly spaced ones of each stage if there are many."""
    if count <= max(stages, _MOST_ROWS):
        return list(range(count))
    each, replicas = max(1, _MOST_ROWS // stages), count // stages
    return [stage * replicas + n * replicas // each for stage in range(stages) for n in range(each)]


def waits_of(timeline: Timeline) -> tuple[RankWaits, ...]:
    """Return how long each rank waits, in ascending order: the ranks that others wait for come first."""
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


def demand_per_device(plan: Plan) -> Demand:
    """Return the work that one device does in a step, averaged over the stages."""
    counts = plan.work_counts() / len(plan.ranks)
    demands = [demand_of(work) for work in plan.works]
    return Demand(
        computation_flop=float(counts @ [d.computation_flop for d in demands]),
        memory_access_bytes=float(counts @ [d.memory_access_bytes for d in demands]),
        communication_bytes=float(counts @ [d.communication_bytes for d in demands]),
    )


def sources(plan: Plan, estimates: Estimates) -> dict[str, float]:
    """Return the share of each source in the time of all works but launches; ``carried`` only if there is any."""
    device = plan.cost[plan.category != Category.HOST]
    counts = np.bincount(device, minlength=plan.num_costs)
    runs = np.array([not isinstance(work, Launch) for work in plan.works], dtype=bool)
    seconds = {
        name: float(counts @ plan.shares(estimates.seconds, runs & (estimates.source == number)))
        for number, name in enumerate(SOURCES)
    }
    total = sum(seconds.values()) or 1.0
    return {name: value / total for name, value in seconds.items() if value or name != "carried"}
