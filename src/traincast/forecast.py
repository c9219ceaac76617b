"""The forecast from end to end: model, cluster and strategy in, report out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from traincast.brief import Brief, BriefTable
from traincast.cluster import Cluster, assumed_nodes, load_cluster
from traincast.errors import RequestError, expect
from traincast.estimate import CostModel, Estimates, EventsCostModel, LearnedCostModel, learned_cost_model
from traincast.estimate.calibrated import calibrated
from traincast.estimate.coverage import check_used
from traincast.estimate.limits import above_limits
from traincast.graph import Operator, OperatorGraph, Phase
from traincast.graph.load import load_model
from traincast.graph.tuning.tune import FineTuning, fine_tuned, parse_fine_tuning
from traincast.report import JobForecast, JobSettings, Report, make_report
from traincast.report.advice import advice_of
from traincast.report.by_rank import estimates_by_rank
from traincast.report.job import job_of_steps, steps_of
from traincast.report.report import BundleUse, UnsearchedChoice
from traincast.simulate import Conditions, Timeline, busiest_s, expand, simulate, under
from traincast.simulate.server_job import run_job
from traincast.simulate.server_timeline import ServerJob
from traincast.strategy import (
    Lowered,
    Plan,
    Request,
    Runtime,
    Strategy,
    choose_micro_batch,
    load_precision,
    load_runtime,
    lower,
    parse_strategy,
)
from traincast.strategy.choose import (
    Choice,
    assumed_runtime,
    choose,
    remedy_of,
    usual_micro_batch,
    usual_precision,
    usual_runtime,
)
from traincast.strategy.lower import Layout
from traincast.strategy.memory.remedy import Change, Remedy
from traincast.strategy.plan_builder import Grain
from traincast.strategy.prepare import for_workers, memory_in_detail
from traincast.strategy.releases import settled
from traincast.strategy.strategy import says_micro_batch
from traincast.strategy.uneven import with_variants
from traincast.strategy.variants import plain
from traincast.work import Work

if TYPE_CHECKING:
    import torch

    from traincast.graph.zoo.traceable import Traceable

_MAX_BATCH: Final = 10**9
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
        """Return that of the report: the other parts hold megabytes."""
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


def predict(
    model: str | OperatorGraph | torch.nn.Module | Traceable,
    example_inputs: Any = None,
    *,
    cluster: str | Cluster,
    global_batch: int,
    strategy: str | Strategy | None = None,
    seq: int | None = None,
    precision: str | None = None,
    runtime: str | Runtime | None = None,
    tokens: int | None = None,
    samples: int | None = None,
    steps: int | None = None,
    job: JobSettings | None = None,
    shard_rules: tuple[tuple[str, str], ...] = (),
    cost_model: CostModel | None = None,
    optimizer: bool | str = True,
    lora: str | None = None,
    freeze: Sequence[str] = (),
    quantize: int | str | None = None,
    conditions: Conditions | None = None,
    use_cache: bool = False,
) -> Forecast:
    """Forecast one training step, and the whole job if its length is given in ``tokens``, ``samples`` or ``steps``.

    ``model`` is a name as on the command line, a graph, or a live module with ``example_inputs`` (a tensor, or a tuple
    of tensors, whose first dim is the batch).

    Without ``strategy``, the fastest of a few that fit in memory is chosen, without a search; ``choice`` of the report
    says how much a search could gain. A strategy without a micro batch gets the largest that
    fits. A bundle of ``cost_model`` that covers no work of the step is refused; the report has the share that each
    covers. ``precision`` defaults to bf16 for sequence models and to amp for others, if the device supports it.

    ``lora``, ``freeze`` and ``quantize`` describe fine-tuning (:func:`traincast.graph.tuning.tune.parse_fine_tuning`).
    ``optimizer`` is a name, True for the model's own optimizer, or False for a step without an update.
    """
    for rule in shard_rules:
        wanted = "pairs of a pattern and column, row or replicate"
        expect("shard_rules", shard_rules if isinstance(rule, str) else rule, tuple, wanted)
    expect("cost_model", cost_model, (CostModel, type(None)), "a CostModel")
    expect("conditions", conditions, (Conditions, type(None)), "Conditions")
    expect("job", job, (JobSettings, type(None)), "JobSettings")
    request = make_request(
        model,
        example_inputs,
        cluster=cluster,
        global_batch=global_batch,
        seq=seq,
        precision=precision,
        runtime=runtime,
        optimizer=optimizer,
        tuning=parse_fine_tuning(lora, freeze, quantize),
        use_cache=use_cache,
        hosts=True,
    )
    choice = None
    if strategy is None:
        choice = _choice(request, cost_model, shard_rules)
        strategy = choice.strategy
    request = replace(request, strategy=_strategy(strategy, request, shard_rules))
    result = forecast(
        request,
        cost_model=cost_model,
        conditions=conditions,
        in_detail=True,
        num_steps=steps_of(request.graph, global_batch, tokens=tokens, samples=samples, steps=steps),
        job=job,
    )
    used = [use.path for use in result.report.bundles if use.covered > 0.0]
    check_used(cost_model, used, result.lowered.plan.works, [request.cluster])
    assumed = (*assumed_runtime(runtime, request), *assumed_nodes(request.cluster))
    if not assumed and choice is None:
        return result
    unsearched = _unsearched(choice, result) if choice else None
    said = (*result.report.warnings, *assumed)
    return replace(result, report=replace(result.report, warnings=said, choice=unsearched))


def make_request(
    model: str | OperatorGraph | torch.nn.Module | Traceable,
    example_inputs: Any = None,
    *,
    cluster: str | Cluster,
    global_batch: int,
    seq: int | None = None,
    precision: str | None = None,
    runtime: str | Runtime | None = None,
    optimizer: bool | str = True,
    tuning: FineTuning | None = None,
    use_cache: bool = False,
    hosts: bool = False,
) -> Request:
    """Return a request with an empty strategy for the caller to replace; omitted arguments get the model's defaults.

    With ``hosts``, the cluster may have nodes without accelerators, on which parameter servers can run.
    """
    wanted = f"a whole number from 1 to {_MAX_BATCH}"
    expect("global batch", global_batch, int, wanted)
    if not 1 <= global_batch <= _MAX_BATCH:
        raise RequestError(f"global batch {global_batch}: expected {wanted}")
    expect("cluster", cluster, (str, Cluster), "a name such as dgx-h100:4, or a Cluster")
    expect("seq", seq, (int, type(None)), "a whole number of tokens")
    expect("optimizer", optimizer, (bool, str), "True, False or a name such as adamw")
    place = load_cluster(cluster, hosts=hosts) if isinstance(cluster, str) else cluster
    graph = (
        model if isinstance(model, OperatorGraph) else load_model(model, example_inputs, seq=seq, use_cache=use_cache)
    )
    graph = fine_tuned(graph, tuning)
    if isinstance(optimizer, str):
        graph = graph.with_optimizer(optimizer)
    chosen = load_precision(usual_precision(graph, place) if precision is None else precision)
    return Request(
        graph=graph,
        cluster=place,
        strategy=Strategy(),
        runtime=settled(
            runtime
            if isinstance(runtime, Runtime)
            else load_runtime(usual_runtime(graph, place) if runtime is None else runtime),
            graph=graph,
            cluster=place,
            precision=chosen,
        ),
        precision=chosen,
        global_batch=global_batch,
        optimizer=bool(optimizer),
    )


@lru_cache(maxsize=8)
def default_cost_model(kernels: str = "") -> LearnedCostModel:
    """Return the default cost model: the bundles that come with Traincast, and formulas for everything else.

    ``kernels`` is the framework whose measured operators are preferred.
    """
    return replace(default_cost_model(), framework=kernels) if kernels else learned_cost_model()


def estimates_of(request: Request, works: Sequence[Work], *, cost_model: CostModel | None = None) -> Estimates:
    """Return estimates of ``works`` by the cost model, or the default one, with the calibration of the cluster."""
    return _estimate(_model_for(request, cost_model), works, request.cluster)


def _model_for(request: Request, cost_model: CostModel | None) -> CostModel:
    model = cost_model or default_cost_model(request.runtime.kernels)
    if isinstance(model, EventsCostModel):
        return model.with_fallback(lambda fallback: _model_for(request, fallback))
    if isinstance(model, LearnedCostModel) and not model.framework:
        return replace(model, framework=request.runtime.kernels)
    return model


def _estimate(model: CostModel, works: Sequence[Work], cluster: Cluster) -> Estimates:
    """Return estimates of ``works`` by ``model``, with the calibration of ``cluster``."""
    return calibrated(model.estimate(works, cluster), works, cluster)


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
) -> Forecast:
    """Lower, estimate and simulate ``request``, and return its forecast; both grains give the same times.

    Under ``conditions``, or if nodes differ, every rank is simulated separately. ``in_detail`` adds memory over time
    to the report and, for a strategy that does not fit, a change that makes it fit. ``num_steps`` adds the job.
    """
    model = _model_for(request, cost_model)
    if isinstance(model, EventsCostModel):
        request = replace(request, cluster=model.on(request.cluster))
    simulated = _simulate_servers if request.strategy.servers else _simulate_ranks
    made = simulated(request, model, grain=grain, conditions=conditions)
    lowered = made.lowered
    report = make_report(
        made.request,
        lowered,
        made.estimates,
        made.timeline,
        folded=made.folded,
        servers=made.servers,
        conditions=conditions,
        bundles=made.bundles,
        detail=memory_in_detail(lowered.request, lowered.prepared, lowered.memory) if in_detail else None,
        remedy=_remedy(lowered, model) if in_detail and not lowered.need.fits else None,
        num_steps=num_steps,
        job=job,
    )
    if in_detail and (
        advice := advice_of(
            made.request,
            lowered.plan.mesh,
            report,
            made.computing_s,
            lambda chosen: forecast(chosen, cost_model=model, conditions=conditions).report,
        )
    ):
        report = replace(report, warnings=(*report.warnings, *advice))
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


def _choice(request: Request, cost_model: CostModel | None, shard: tuple[tuple[str, str], ...]) -> Choice:
    """Return a strategy that fits if any does: the fastest of a few that fit, where all ranks do the same."""
    alike = not (request.cluster.parts or request.cluster.hosts or request.runtime.servers)
    timed = alike and not isinstance(cost_model, EventsCostModel)
    found = choose(request, seconds=_Pace(request, _model_for(request, cost_model)).seconds if timed else None)
    return replace(found, strategy=replace(found.strategy, shard_rules=shard))


def _unsearched(choice: Choice, result: Forecast) -> UnsearchedChoice:
    """Return how the strategy of ``result`` was chosen, and about the most that a search could gain.

    A step takes at least its computation: that of the strategy or, if it is shorter, that of whole microbatches on
    single devices, which recompute nothing and wait for nobody, and of an update that all devices share.
    """
    request, report = result.request, result.report
    if request.strategy.servers or request.cluster.parts:
        return UnsearchedChoice(fits=choice.need.fits, timed=choice.timed)
    size = usual_micro_batch(request, math.ceil(request.global_batch / request.cluster.num_devices))
    alone = replace(request.cluster, num_nodes=1, devices_per_node=1, domain_nodes=1)
    plan = lower(replace(request, cluster=alone, strategy=Strategy(), global_batch=size)).plan
    seconds = _estimate(result.cost_model, plan.works, request.cluster).seconds
    batches = request.global_batch / size
    repeats = [
        0.0 if not isinstance(work, Operator) else 1.0 if work.phase is Phase.OPTIMIZER else batches
        for work in plan.works
    ]
    shared_s = float((seconds * plan.work_counts() * repeats).sum()) / request.cluster.num_devices
    least_s = min(report.compute_s + report.optimizer_s, shared_s)
    gain = max(0.0, 1.0 - least_s / report.step_s)
    return UnsearchedChoice(fits=choice.need.fits, timed=choice.timed, most_gain=gain)


def _simulate_ranks(
    request: Request, model: CostModel, *, grain: Grain, conditions: Conditions | None = None
) -> _Simulated:
    """Simulate a step whose ranks exchange gradients among themselves."""
    differ = bool(request.cluster.parts or request.strategy.shares)
    alike = conditions is None and not differ
    lowered = lower(request, grain=grain if alike else "operator")
    if differ:
        lowered = with_variants(lowered)
    plan = lowered.plan
    works = plain(plan.works) if request.cluster.parts else plan.works
    estimates = above_limits(_estimate(model, works, request.cluster), works, request.cluster)
    timeline = simulate(plan, estimates.seconds)
    if alike:
        return _Simulated(request=request, lowered=lowered, estimates=estimates, timeline=timeline)
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
        * replace(conditions or Conditions(), jitter=0.0).compute_factors(plan.mesh.num_ranks),
    )


def _simulate_servers(
    request: Request, model: CostModel, *, grain: Grain, conditions: Conditions | None = None
) -> _Simulated:
    """Simulate a step whose workers exchange gradients and weights through parameter servers."""
    request = replace(request, optimizer=False)  # servers make the updates
    lowered = lower(for_workers(request), grain="operator" if request.strategy.shares else grain)
    lowered = with_variants(lowered) if request.strategy.shares else lowered
    plan, cluster = lowered.plan, lowered.request.cluster
    works = plain(plan.works) if cluster.parts else plan.works
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


def _strategy(strategy: str | Strategy, request: Request, shard: tuple[tuple[str, str], ...]) -> Strategy:
    if isinstance(strategy, Strategy):
        return replace(strategy, shard_rules=shard) if shard else strategy
    parsed = replace(parse_strategy(strategy, global_batch=request.global_batch), shard_rules=shard)
    if says_micro_batch(strategy):
        return parsed
    chosen = choose_micro_batch(for_workers(replace(request, strategy=parsed)))
    return replace(parsed, num_microbatches=chosen.num_microbatches)


def job_of(result: Forecast, num_steps: int, settings: JobSettings, *, step_s: float | None = None) -> JobForecast:
    """Return the job of ``num_steps`` forecast steps; with ``step_s``, each step takes that time instead."""
    report = result.report
    computing = (report.compute_s + report.optimizer_s) / report.step_s
    seconds = report.step_s if step_s is None else step_s
    return job_of_steps(result.request, num_steps=num_steps, step_s=seconds, computing=computing, settings=settings)
