"""The forecast from end to end: model, cluster and strategy in, report out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from traincast.ask import Ask, Conditions, JobSettings, verb
from traincast.brief import Brief, BriefTable
from traincast.cluster import Cluster
from traincast.estimate import CostModel, Estimates, LearnedCostModel, MeasuredCostModel, learned_cost_model
from traincast.estimate.calibrated import calibrated
from traincast.estimate.coverage import check_used
from traincast.estimate.limits import above_limits
from traincast.estimate.power import estimated
from traincast.evidence import evidence_of
from traincast.graph import Operator, Phase
from traincast.report import JobForecast, Report, make_report
from traincast.report.assemble import step_figures
from traincast.report.figures import StepFigures
from traincast.report.job import job_of_steps, steps_of
from traincast.report.report import BundleUse, UnsearchedChoice
from traincast.resolve import cost_model_of, resolve
from traincast.simulate import Timeline, busiest_s, expand, simulate, under
from traincast.simulate.conditions import compute_factors
from traincast.strategy import Lowered, Plan, Request, Strategy, lower
from traincast.strategy.choose import Choice, choose, remedy_of, usual_micro_batch
from traincast.strategy.lower import Layout
from traincast.strategy.memory.remedy import Change, Remedy
from traincast.strategy.plan_builder import Grain
from traincast.strategy.prepare import for_workers, memory_in_detail
from traincast.strategy.variants import unmarked
from traincast.work import Work

if TYPE_CHECKING:
    from traincast.simulate.server_timeline import ServerJob

_MOST_WORKERS: Final = 64
"""Greatest number of workers in the default timeline of a run with parameter servers."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Forecast(Brief):
    """A report with its origin: the request, its plan, the estimates and the timeline."""

    report: Report
    request: Request
    lowered: Lowered
    estimates: Estimates
    timeline: Timeline
    cost_model: CostModel
    servers: ServerJob | None = None

    def brief(self) -> BriefTable:
        """Return the brief of the report; the other parts of a forecast hold megabytes."""
        return self.report.brief()

    def detailed(self, *, all_ranks: bool = False, bound: Literal["low", "seconds", "high"] = "seconds") -> Timeline:
        """Return the timeline operator by operator: of one rank per stage, or of all ranks if asked or if they differ.

        With parameter servers it is one steady step: of the first workers, or of all with ``all_ranks``. ``bound``
        takes an end of the interval of every work; if ranks differ or there are servers, it changes nothing.
        """
        if self.servers is not None:
            return self.servers.timeline(grain="operator", most=None if all_ranks else _MOST_WORKERS)
        if self.report.waits:
            return self.timeline
        plan = Layout(request=self.request, prepared=self.lowered.prepared).plan("operator")
        estimates = _estimate(self.cost_model, plan.works, self.request.cluster)
        return simulate(expand(plan) if all_ranks else plan, getattr(estimates, bound))


@verb(Ask)
def predict(ask: Ask) -> Forecast:
    """Forecast one training step, and the whole job if its length is given in ``tokens``, ``samples`` or ``steps``.

    Takes an :class:`Ask`, or its fields as arguments. ``model`` is a name as on the command line, a graph, or a live
    module with ``example_inputs``.

    Without ``strategy``, the fastest of a few that fit in memory is chosen, without a search; ``choice`` of the report
    says how much a search could gain. A strategy without a micro batch gets the largest that
    fits. A bundle of ``cost_model`` that covers no work of the step is refused; the report has the share that each
    covers. ``precision`` defaults to bf16 for sequence models and to amp for others, if the device supports it.
    ``optimizer`` is a name, True for the model's own optimizer, or False for a step without an update.
    """
    given = cost_model_of(ask)
    resolved = resolve(ask, chooser=lambda request: _choice(request, given))
    request = resolved.request
    result = forecast(
        request,
        cost_model=given,
        conditions=ask.conditions,
        in_detail=True,
        num_steps=steps_of(request.graph, ask.global_batch, tokens=ask.tokens, samples=ask.samples, steps=ask.steps),
        job=ask.job,
        choice=resolved.choice,
        assumed=resolved.assumed,
    )
    used = [use.path for use in result.report.bundles if use.covered > 0.0]
    check_used(given, used, result.lowered.plan.works, [request.cluster])
    return result


@lru_cache(maxsize=8)
def default_cost_model(kernels: str = "") -> LearnedCostModel:
    """Return the default cost model: the bundles that come with Traincast, and formulas for everything else.

    ``kernels`` is the framework whose measured operators are preferred.
    """
    return replace(default_cost_model(), framework=kernels) if kernels else learned_cost_model()


def estimates_of(request: Request, works: Sequence[Work], *, cost_model: CostModel | None = None) -> Estimates:
    """Return estimates of ``works`` by the cost model, or the default one, as on the cluster of ``request``."""
    return _estimate(_model_for(request, cost_model), works, request.cluster)


def _model_for(request: Request, cost_model: CostModel | None) -> CostModel:
    model = cost_model or default_cost_model(request.runtime.kernels.measured_with)
    if isinstance(model, MeasuredCostModel):
        return model.with_fallback(lambda fallback: _model_for(request, fallback))
    if isinstance(model, LearnedCostModel) and not model.framework:
        return replace(model, framework=request.runtime.kernels.measured_with)
    return model


def _estimate(model: CostModel, works: Sequence[Work], cluster: Cluster) -> Estimates:
    """Return estimates of ``works`` by ``model``, with the power limit and the calibration of ``cluster``."""
    return calibrated(estimated(model, works, cluster), works, cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Simulated:
    """A simulated request: arguments of :func:`make_report`, and the computing time of each rank if ranks differ."""

    request: Request
    lowered: Lowered
    estimates: Estimates
    timeline: Timeline
    folded: Timeline | None = None
    servers: ServerJob | None = None
    bundles: tuple[BundleUse, ...] | None = None
    computing_s: npt.NDArray[np.float64] | None = None


def forecast(
    request: Request,
    *,
    cost_model: CostModel | None = None,
    grain: Grain = "segment",
    conditions: Conditions | None = None,
    in_detail: bool = False,
    num_steps: int | None = None,
    job: JobSettings | None = None,
    choice: Choice | None = None,
    assumed: Sequence[str] = (),
) -> Forecast:
    """Lower, estimate and simulate ``request``, and return its forecast; both grains give the same times.

    Under ``conditions``, or if nodes differ, every rank is simulated separately. ``in_detail`` adds memory over time
    and the nearest measured runs to the report and, for a strategy that does not fit, a change that makes it fit.
    ``num_steps`` adds the job. The report says how the strategy was chosen (``choice``), and what was ``assumed``.
    """
    model = _model_for(request, cost_model)
    if isinstance(model, MeasuredCostModel):
        request = replace(request, cluster=model.on(request.cluster))
    simulated = _simulate_servers if request.strategy.servers else _simulate_ranks
    made = simulated(request, model, grain=grain, conditions=conditions)
    lowered = made.lowered
    figures = step_figures(
        made.request, lowered, made.estimates, made.timeline, folded=made.folded, servers=made.servers
    )
    advice: tuple[str, ...] = ()
    if in_detail and made.computing_s is not None:
        from traincast.report.by_rank import advice_of

        advice = advice_of(
            made.request,
            lowered.plan.mesh,
            figures.pace.step_s,
            made.computing_s,
            lambda chosen: forecast(chosen, cost_model=model, conditions=conditions).report,
        )
    report = make_report(
        made.request,
        lowered,
        made.estimates,
        figures,
        conditions=conditions,
        bundles=made.bundles,
        detail=memory_in_detail(lowered.request, lowered.prepared, lowered.memory) if in_detail else None,
        remedy=_remedy(lowered, model) if in_detail and not lowered.need.fits else None,
        num_steps=num_steps,
        job=job,
        said=(*advice, *assumed),
        choice=_unsearched(choice, made.request, figures, model) if choice else None,
        evidence=evidence_of(request) if in_detail else None,
    )
    return Forecast(
        report=report,
        request=made.request,
        lowered=lowered,
        estimates=made.estimates,
        timeline=made.timeline,
        cost_model=model,
        servers=made.servers,
    )


class _Pace:
    """Step times of ``request`` under other strategies, without a report."""

    def __init__(self, request: Request, model: CostModel) -> None:
        self._request, self._model = request, model
        self._laid_out: dict[Strategy, tuple[Plan, npt.NDArray[np.float64]]] = {}

    def least(self, strategy: Strategy) -> float:
        """Seconds that the step cannot beat; 0 if ranks differ."""
        return 0.0 if self._differ(strategy) else busiest_s(*self._plan(strategy))

    def seconds(self, strategy: Strategy) -> float:
        """Seconds of the step."""
        if self._differ(strategy):
            return forecast(replace(self._request, strategy=strategy), cost_model=self._model).report.step_s
        return simulate(*self._plan(strategy)).step_s

    def _differ(self, strategy: Strategy) -> bool:
        return bool(self._request.cluster.parts or strategy.shares)

    def _plan(self, strategy: Strategy) -> tuple[Plan, npt.NDArray[np.float64]]:
        if strategy not in self._laid_out:
            plan = lower(replace(self._request, strategy=strategy)).plan
            self._laid_out[strategy] = plan, _estimate(self._model, plan.works, self._request.cluster).seconds
        return self._laid_out[strategy]


def _remedy(lowered: Lowered, model: CostModel) -> Remedy:
    """Return the change of one or two settings that makes the strategy fit with the shortest step.

    If there is none, it is the strategy that Traincast would choose, if that fits.
    """
    request = lowered.request
    pace = _Pace(request, model)
    found = remedy_of(request, lowered.need, seconds=pace.seconds, least=pace.least)
    if found.change is not None or request.strategy.servers:
        return found
    other = choose(request)
    if not other.need.fits:
        return found
    strategy = replace(other.strategy, shard_rules=request.strategy.shard_rules)
    change = Change(description=str(strategy), strategy=strategy)
    return replace(found, change=change, changed=other.need, step_s=pace.seconds(strategy))


def _choice(request: Request, cost_model: CostModel | None) -> Choice:
    """Return a strategy that fits if any does: the fastest of a few that fit, where all ranks do the same."""
    alike = not (request.cluster.parts or request.cluster.hosts or request.runtime.defaults.servers)
    timed = alike and not isinstance(cost_model, MeasuredCostModel)
    return choose(request, seconds=_Pace(request, _model_for(request, cost_model)).seconds if timed else None)


def _unsearched(choice: Choice, request: Request, figures: StepFigures, model: CostModel) -> UnsearchedChoice:
    """Return how the strategy of ``request`` was chosen, and about the most that a search could gain.

    A step takes at least its computation: that of the strategy or, if it is shorter, that of whole microbatches on
    single devices, which recompute nothing and wait for nobody, and of an update that all devices share.
    """
    if request.strategy.servers or request.cluster.parts:
        return UnsearchedChoice(fits=choice.need.fits, timed=choice.timed)
    size = usual_micro_batch(request, math.ceil(request.global_batch / request.cluster.num_devices))
    alone = replace(request.cluster, num_nodes=1, devices_per_node=1, domain_nodes=1)
    plan = lower(replace(request, cluster=alone, strategy=Strategy(), global_batch=size)).plan
    seconds = _estimate(model, plan.works, request.cluster).seconds
    batches = request.global_batch / size
    repeats = [
        0.0 if not isinstance(work, Operator) else 1.0 if work.phase is Phase.OPTIMIZER else batches
        for work in plan.works
    ]
    shared_s = float((seconds * plan.work_counts() * repeats).sum()) / request.cluster.num_devices
    parts = figures.breakdown
    least_s = min(parts.compute_s + parts.optimizer_s, shared_s)
    gain = max(0.0, 1.0 - least_s / figures.pace.step_s)
    return UnsearchedChoice(fits=choice.need.fits, timed=choice.timed, most_gain=gain)


def _simulate_ranks(
    request: Request, model: CostModel, *, grain: Grain, conditions: Conditions | None = None
) -> _Simulated:
    """Simulate a step whose ranks exchange gradients among themselves."""
    differ = bool(request.cluster.parts or request.strategy.shares)
    alike = conditions is None and not differ
    lowered = lower(request, grain=grain if alike else "operator")
    if differ:
        from traincast.strategy.uneven import with_variants

        lowered = with_variants(lowered)
    plan = lowered.plan
    works = unmarked(plan.works) if request.cluster.parts else plan.works
    estimates = above_limits(_estimate(model, works, request.cluster), works, request.cluster)
    timeline = simulate(plan, estimates.seconds)
    if alike:
        return _Simulated(request=request, lowered=lowered, estimates=estimates, timeline=timeline)
    from traincast.report.by_rank import estimates_by_rank

    ranks = estimates_by_rank(lowered, estimates, lambda works, cluster: _estimate(model, works, cluster))
    return _Simulated(
        request=request,
        lowered=lowered,
        estimates=estimates,
        timeline=under(
            plan, ranks.seconds, conditions or Conditions(), kind_of_rank=ranks.of_rank, crossing=ranks.crossing
        ),
        folded=timeline,
        bundles=ranks.bundles,
        computing_s=ranks.computing_s(plan)
        * compute_factors(replace(conditions or Conditions(), jitter=0.0), plan.mesh.num_ranks),
    )


def _simulate_servers(
    request: Request, model: CostModel, *, grain: Grain, conditions: Conditions | None = None
) -> _Simulated:
    """Simulate a step whose workers exchange gradients and weights through parameter servers."""
    from traincast.simulate.server_job import run_job
    from traincast.strategy.uneven import with_variants

    request = replace(request, optimizer=False)  # servers make the updates
    lowered = lower(for_workers(request), grain="operator" if request.strategy.shares else grain)
    lowered = with_variants(lowered) if request.strategy.shares else lowered
    plan, cluster = lowered.plan, lowered.request.cluster
    works = unmarked(plan.works) if cluster.parts else plan.works
    estimates = above_limits(_estimate(model, works, cluster), works, cluster)
    job = run_job(
        request,
        lowered,
        seconds_of=lambda works: np.stack([_estimate(model, works, kind).seconds for kind in cluster.kinds()]),
        conditions=conditions or Conditions(),
    )
    return _Simulated(
        request=request,
        lowered=lowered,
        estimates=estimates,
        timeline=job.timeline(most=_MOST_WORKERS),
        folded=simulate(plan, estimates.seconds),
        servers=job,
    )


def job_of(result: Forecast, num_steps: int, settings: JobSettings, *, step_s: float | None = None) -> JobForecast:
    """Return the job of ``num_steps`` forecast steps; with ``step_s``, each step takes that time instead."""
    report = result.report
    computing = (report.compute_s + report.optimizer_s) / report.step_s
    seconds = report.step_s if step_s is None else step_s
    return job_of_steps(result.request, num_steps=num_steps, step_s=seconds, computing=computing, settings=settings)
