"""Assembles the report of a forecast; the only place that does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from traincast.ask import Conditions, JobSettings
from traincast.cluster import Cluster
from traincast.estimate import SOURCES, Estimates
from traincast.estimate.power import mean_slowdown
from traincast.evidence import Evidence
from traincast.graph import Operator
from traincast.report.doubt import BETWEEN, doubt_of
from traincast.report.figures import StepFigures, figures_of_ranks
from traincast.report.job import JobForecast, job_of_steps
from traincast.report.report import BundleUse, Report, UnsearchedChoice
from traincast.simulate import Timeline
from traincast.strategy import Lowered, Plan, Request
from traincast.strategy.memory.fits import MARGIN
from traincast.strategy.memory.remedy import Remedy
from traincast.strategy.prepare import MemoryDetail
from traincast.units import format_bytes
from traincast.work import Collective, Launch, Transfer, Work

if TYPE_CHECKING:
    from traincast.simulate.server_timeline import ServerJob

_MOST_KINDS: Final = 6
_MOST_MOMENTS: Final = 2000
"""Greatest number of slots in a report's memory over time; of more slots, evenly spaced ones are kept."""


def step_figures(
    request: Request,
    lowered: Lowered,
    estimates: Estimates,
    timeline: Timeline,
    *,
    folded: Timeline | None = None,
    servers: ServerJob | None = None,
) -> StepFigures:
    """Return the figures of a step, given its ``lowered`` plan, ``estimates`` and ``timeline``.

    ``folded`` is the timeline of the lowered plan itself, if ``timeline`` shows ranks that differ or workers of
    parameter ``servers``.
    """
    if servers is None:
        return figures_of_ranks(lowered, estimates, timeline, folded=folded)
    assert folded is not None
    from traincast.report.servers import figures_of_servers

    return figures_of_servers(request, lowered, estimates, alone=folded, job=servers, timeline=timeline)


def make_report(
    request: Request,
    lowered: Lowered,
    estimates: Estimates,
    figures: StepFigures,
    *,
    conditions: Conditions | None = None,
    bundles: tuple[BundleUse, ...] | None = None,
    detail: MemoryDetail | None = None,
    remedy: Remedy | None = None,
    num_steps: int | None = None,
    job: JobSettings | None = None,
    said: Sequence[str] = (),
    choice: UnsearchedChoice | None = None,
    evidence: Evidence | None = None,
) -> Report:
    """Return the report of ``request``, given its ``lowered`` plan, ``estimates`` and ``figures``.

    Without ``bundles``, their use is computed from ``estimates``. ``detail`` adds memory over time, ``remedy`` a change
    that makes the strategy fit, ``num_steps`` the job, and ``choice`` how the strategy was chosen. ``said`` are further
    warnings: advice, and what was assumed. ``evidence`` adds the nearest measured runs and the causes of the interval.
    """
    ran, need, graph = lowered.request, lowered.need, request.graph
    pace = figures.pace
    fullest = max(lowered.memory, key=lambda m: m.total)
    offloads = max(lowered.memory, key=lambda m: sum(m.host.values()))
    moments = detail.moments if detail else []
    return Report(
        model=graph.name,
        cluster=where(request.cluster),
        strategy=str(request.strategy),
        runtime=request.runtime.name,
        precision=request.precision.name,
        num_devices=request.cluster.num_devices,
        global_batch=request.global_batch,
        micro_batch=lowered.prepared.micro_batch,
        tokens_per_sample=graph.tokens_per_sample,
        num_parameters=graph.num_parameters,
        num_trainable_parameters=graph.num_trainable_parameters,
        step_s=pace.step_s,
        low_s=pace.low_s,
        high_s=pace.high_s,
        modes=pace.modes,
        floor_s=pace.floor_s,
        samples_per_s=pace.samples_per_s,
        tokens_per_s=pace.tokens_per_s,
        mfu=pace.mfu,
        **asdict(figures.breakdown),
        calibrated_s=figures.calibrated_s,
        split=figures.split,
        peak_memory_bytes=fullest.total,
        memory_capacity_bytes=ran.cluster.device.memory_bytes,
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
        fit=need.fit,
        demand=figures.demand,
        power_limit_w=ran.cluster.device.limit_w,
        power_slowdown=mean_slowdown(estimates, lowered.plan.works, lowered.plan.work_counts()),
        estimated_by=figures.estimated_by,
        bundles=bundle_uses(lowered.plan, estimates) if bundles is None else bundles,
        ranks=figures.ranks,
        critical_path=figures.critical_path,
        warnings=(*_warnings(lowered, estimates, remedy, pace.warnings), *said),
        fullest_stage=detail.stage if detail else 0,
        memory_over_time=tuple(moments[:: max(1, -(-len(moments) // _MOST_MOMENTS))]),
        peak_tensors=tuple(detail.tensors) if detail else (),
        waits=figures.waits,
        servers=figures.servers,
        conditions=conditions,
        choice=choice,
        evidence=evidence.neighbours if evidence else (),
        evidence_words=evidence.words if evidence else (),
        doubt=_doubt(lowered, estimates, figures) if evidence else {},
        job=None if num_steps is None else _job(request, figures, num_steps, job or JobSettings()),
    )


def _doubt(lowered: Lowered, estimates: Estimates, figures: StepFigures) -> dict[str, float]:
    """Return the share of each cause of the interval; the causes of a calibrated step are known already."""
    known = figures.pace.doubt
    if BETWEEN not in known:
        return dict(known)
    return doubt_of(lowered.plan, estimates, figures.on_path, others=known)


def _job(request: Request, figures: StepFigures, num_steps: int, settings: JobSettings) -> JobForecast:
    """Return the job of ``num_steps`` steps with these figures."""
    step_s, parts = figures.pace.step_s, figures.breakdown
    computing = (parts.compute_s + parts.optimizer_s) / step_s
    return job_of_steps(request, num_steps=num_steps, step_s=step_s, computing=computing, settings=settings)


def where(cluster: Cluster) -> str:
    """Return the name of a cluster followed by its nodes."""
    parts = [f"{p.num_nodes} × {p.devices_per_node} {p.device.name}" for p in cluster.parts or (cluster,)]
    parts += [f"{host.num_nodes} {host.name}" for host in cluster.hosts]
    return f"{cluster.name} ({' + '.join(parts)})"


def bundle_uses(plan: Plan, estimates: Estimates) -> tuple[BundleUse, ...]:
    """Return, for each bundle named by the user, its share of the time of all works, including overlapped ones."""
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


def _not_measured(plan: Plan, estimates: Estimates) -> list[str]:
    """Return a warning that names the works without a measured time, if others were measured."""
    measured = estimates.source == SOURCES.index("measured")
    spent = estimates.seconds * plan.work_counts()
    carried = estimates.source == SOURCES.index("carried")
    if not (measured | carried).any() or not spent[~measured].sum() > 0.0:
        return []
    names = Counter(_kind_of_work(plan.works[i]) for i in np.flatnonzero(~measured & (spent > 0.0)).tolist())
    count, share = sum(names.values()), float(spent[~measured].sum() / spent.sum())
    shown = ", ".join(f"{number} {name}" for name, number in names.most_common(_MOST_KINDS))
    more = ", …" if len(names) > _MOST_KINDS else ""
    moved = float(spent[carried].sum() / spent.sum())
    told = f"bundles or physics estimate them, {share:.1%} of the time of all works"
    if moved:
        told = (
            f"{moved:.1%} of the time of all works is carried over from measured operators of other sizes, and "
            f"{share - moved:.1%} estimated by bundles or physics"
        )
    return [f"{count} of {len(plan.works)} distinct works have no measured time ({shown}{more}): {told}"]


def _kind_of_work(work: Work) -> str:
    match work:
        case Operator():
            return work.name
        case Collective():
            return work.kind
        case _:
            return type(work).__name__.lower()


def _warnings(lowered: Lowered, estimates: Estimates, remedy: Remedy | None, outlook: Sequence[str]) -> tuple[str, ...]:
    """Return all warnings, the most important first.

    What makes the run fail comes before what makes the whole forecast doubtful (``outlook``), and that before what
    makes single works doubtful.
    """
    request, need = lowered.request, lowered.need
    warnings = []
    if not need.fits:
        warnings.append(f"{need.verdict}: {remedy or need.shortage()}")
    if need.host and not need.host_capacity:
        warnings.append(
            f"the host memory of {request.cluster.name} is not known, so it was not checked that a node has room for "
            f"the {format_bytes(need.host)} offloaded to it; set host_memory_bytes of its node"
        )
    formats = dict.fromkeys(dtype.value for dtype in (request.precision.linear, request.precision.products))
    devices = dict.fromkeys(kind.device for kind in request.cluster.kinds())
    warnings += [d.lacks(dtype) for d in devices for dtype in formats if not d.supports(dtype)]
    warnings += outlook
    unknown = sorted({op.name for op, _ in request.graph if op.attributes.get("unknown")})
    if unknown:
        warnings.append(f"operators without a formula of their own are timed as element-wise: {', '.join(unknown)}")
    return tuple(dict.fromkeys((*warnings, *_not_measured(lowered.plan, estimates), *estimates.warnings)))
