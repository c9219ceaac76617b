"""The forecast from end to end: model, cluster and strategy in, report out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from traincast.cluster import Cluster, load_cluster
from traincast.errors import RequestError
from traincast.estimate import CostModel, Estimates, LearnedCostModel, learned_cost_model
from traincast.estimate.calibrated import calibrated
from traincast.estimate.coverage import check_used
from traincast.estimate.limits import above_limits
from traincast.graph import OperatorGraph, Phase
from traincast.graph.load import load_model
from traincast.report import JobForecast, JobSettings, Report, make_report
from traincast.report.job import forecast_job
from traincast.report.report import BundleUse, bundle_uses, peak_flops, waits_of, where
from traincast.report.servers import with_servers
from traincast.simulate import Conditions, Timeline, expand, simulate, under
from traincast.simulate.server_timeline import ServerJob
from traincast.simulate.servers import SERVER_STEPS, run_servers
from traincast.strategy import (
    Lowered,
    Request,
    Runtime,
    Strategy,
    choose_micro_batch,
    choose_strategy,
    load_precision,
    load_runtime,
    lower,
    parse_strategy,
)
from traincast.strategy.fits import DOES_NOT_FIT, MAY_NOT_FIT
from traincast.strategy.mesh import Mesh
from traincast.strategy.plan_builder import Grain
from traincast.strategy.prepare import exchanged_parts, for_workers, memory_in_detail, need_only
from traincast.strategy.program import BlockProgram, Item
from traincast.strategy.remedy import find_remedy
from traincast.strategy.server_setup import Piece, setup_on
from traincast.strategy.strategy import says_micro_batch
from traincast.work import Work

_MAX_BATCH: Final = 10**9
_MOST_WORKERS: Final = 64
"""Workers of parameter servers that a timeline shows unless all are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A report, and what it was made from: the request, its plan, the estimates and the timeline."""

    report: Report
    request: Request
    lowered: Lowered
    estimates: Estimates
    timeline: Timeline
    cost_model: CostModel
    servers: ServerJob | None = None

    def detailed(self, *, all_ranks: bool = False) -> Timeline:
        """The timeline of single operators, of one rank per stage or of all ranks (of all, where they differ).

        With parameter servers, one steady step of all workers, or without ``all_ranks`` of the first.
        """
        if self.servers is not None:
            return self.servers.timeline(grain="operator", most=None if all_ranks else _MOST_WORKERS)
        if self.report.waits:
            return self.timeline
        lowered = lower(self.request, grain="operator")
        estimates = _estimate(self.cost_model, lowered.plan.works, self.request.cluster)
        return simulate(expand(lowered.plan) if all_ranks else lowered.plan, estimates.seconds)


def predict(
    model: str | OperatorGraph,
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
    optimizer: bool = True,
    conditions: Conditions | None = None,
    use_cache: bool = False,
) -> Forecast:
    """Forecast one training step, and the whole job if ``tokens``, ``samples`` or ``steps`` say how long it is.

    Without ``strategy`` a sensible one that fits is chosen; without a micro batch in it, the largest that
    fits. A bundle that was given to ``cost_model`` and covers nothing of the step is refused; the report says what the
    others cover. ``precision`` defaults to bf16 for sequence models and amp otherwise, where the device has it.
    """
    request = make_request(
        model,
        cluster=cluster,
        global_batch=global_batch,
        seq=seq,
        precision=precision,
        runtime=runtime,
        optimizer=optimizer,
        use_cache=use_cache,
        hosts=True,
    )
    request = replace(request, strategy=_strategy(strategy, request, shard_rules))
    result = forecast(request, cost_model=cost_model, conditions=conditions)
    used = [use.path for use in result.report.bundles if use.covered > 0.0]
    check_used(cost_model, used, result.lowered.plan.works, [request.cluster])
    result = replace(result, report=_with_memory(result))
    num_steps = steps_of(request.graph, global_batch, tokens=tokens, samples=samples, steps=steps)
    if num_steps is None:
        return result
    return replace(result, report=replace(result.report, job=job_of(result, num_steps, job or JobSettings())))


def make_request(
    model: str | OperatorGraph,
    *,
    cluster: str | Cluster,
    global_batch: int,
    seq: int | None = None,
    precision: str | None = None,
    runtime: str | Runtime | None = None,
    optimizer: bool = True,
    use_cache: bool = False,
    hosts: bool = False,
) -> Request:
    """Everything but the strategy, which is that of one device; what is not said is as usual for such a model.

    With ``hosts``, a cluster's nodes may have no accelerators: parameter servers can stand there.
    """
    if not isinstance(global_batch, int) or not 1 <= global_batch <= _MAX_BATCH:
        raise RequestError(f"global batch {global_batch}: expected a whole number from 1 to {_MAX_BATCH}")
    place = load_cluster(cluster, hosts=hosts) if isinstance(cluster, str) else cluster
    graph = load_model(model, seq=seq, use_cache=use_cache) if isinstance(model, str) else model
    return Request(
        graph=graph,
        cluster=place,
        strategy=Strategy(),
        runtime=runtime
        if isinstance(runtime, Runtime)
        else load_runtime(usual_runtime(graph) if runtime is None else runtime),
        precision=load_precision(usual_precision(graph, place) if precision is None else precision),
        global_batch=global_batch,
        optimizer=optimizer,
    )


def _with_memory(result: Forecast) -> Report:
    """The report with memory over time, what makes its peak, and what would make it fit."""
    report, request = result.report, for_workers(result.request)
    stage, moments, tensors = memory_in_detail(request)
    every = -(-len(moments) // _MOST_MOMENTS)
    report = replace(
        report, fullest_stage=stage, memory_over_time=tuple(moments[::every]), peak_tensors=tuple(tensors)
    )  # fmt: skip
    if report.fits:
        return report

    def seconds(strategy: Strategy) -> float:
        plan = lower(replace(request, strategy=strategy)).plan
        return simulate(plan, _estimate(result.cost_model, plan.works, request.cluster).seconds).step_s

    remedy = find_remedy(
        request.strategy,
        global_batch=request.global_batch,
        need=lambda strategy: need_only(replace(request, strategy=strategy)),
        seconds=seconds,
        most_tensor=min(8, request.cluster.domain_devices),
    )
    needs, verdicts = f"{remedy.need.verdict}: {remedy}", (DOES_NOT_FIT, MAY_NOT_FIT)
    return replace(report, warnings=tuple(needs if w.startswith(verdicts) else w for w in report.warnings))


_MOST_MOMENTS: Final = 2000
"""Slots whose memory a report has at most; of more, evenly spaced ones."""


@lru_cache(maxsize=8)
def default_cost_model(kernels: str = "") -> CostModel:
    """The cost model used when none is given: the bundles that come with Traincast, physics for the rest.

    ``kernels`` is the framework whose measured operators are preferred.
    """
    return replace(_shipped(), framework=kernels)


@lru_cache(maxsize=1)
def _shipped() -> LearnedCostModel:
    return learned_cost_model()


def estimates_of(request: Request, works: Sequence[Work], *, cost_model: CostModel | None = None) -> Estimates:
    """What works of ``request`` take, by its cost model (or the usual one) and the calibration of its cluster."""
    return _estimate(_model_for(request, cost_model), works, request.cluster)


def _model_for(request: Request, cost_model: CostModel | None) -> CostModel:
    model = cost_model or default_cost_model(request.runtime.kernels)
    if isinstance(model, LearnedCostModel) and not model.framework:
        return replace(model, framework=request.runtime.kernels)
    return model


def _estimate(model: CostModel, works: Sequence[Work], cluster: Cluster) -> Estimates:
    """What ``model`` says of ``works``, as the cluster was calibrated."""
    return calibrated(model.estimate(works, cluster), works, cluster)


def forecast(
    request: Request,
    *,
    cost_model: CostModel | None = None,
    grain: Grain = "segment",
    conditions: Conditions | None = None,
) -> Forecast:
    """Lower, estimate, simulate and report ``request``; both grains give the same times.

    Under ``conditions``, or where nodes differ, every rank is simulated on its own.
    """
    model = _model_for(request, cost_model)
    if request.strategy.servers:
        return _with_servers(request, model, grain=grain, conditions=conditions)
    alike = conditions is None and not request.cluster.parts
    lowered = lower(request, grain=grain if alike else "operator")
    works = lowered.plan.works
    estimates = above_limits(_estimate(model, works, request.cluster), works, request.cluster)
    timeline = simulate(lowered.plan, estimates.seconds)
    if alike:
        report = make_report(request, lowered, estimates, timeline)
    else:
        folded = timeline
        timeline = _every_rank(request, lowered, model, conditions or Conditions())
        report = make_report(request, lowered, estimates, timeline, folded=folded)
        report = replace(
            report,
            waits=waits_of(timeline),
            conditions=conditions,
            bundles=_bundles_of_kinds(request, lowered, model),
        )
    return Forecast(
        report=report,
        request=request,
        lowered=lowered,
        estimates=estimates,
        timeline=timeline,
        cost_model=model,
    )


def _every_rank(request: Request, lowered: Lowered, model: CostModel, conditions: Conditions) -> Timeline:
    """The timeline of all ranks: each with its own device's times, under ``conditions``."""
    kinds = request.cluster.kinds()
    seconds = np.stack([_estimate(model, lowered.plan.works, kind).seconds for kind in kinds])
    return under(lowered.plan, seconds, conditions, kind_of_rank=np.array(request.cluster.kind_of_device()))


def _bundles_of_kinds(request: Request, lowered: Lowered, model: CostModel) -> tuple[BundleUse, ...]:
    """What bundles cover on average over the devices, each of which may cover another kind of node."""
    kinds, kind_of = request.cluster.kinds(), request.cluster.kind_of_device()
    uses = [bundle_uses(lowered.plan, _estimate(model, lowered.plan.works, kind)) for kind in kinds]
    weights = [kind_of.count(number) / len(kind_of) for number in range(len(kinds))]

    def mean(of: Sequence[BundleUse], name: str) -> float:
        return sum(weight * float(getattr(use, name)) for weight, use in zip(weights, of, strict=True))

    return tuple(
        replace(of[0], **{name: mean(of, name) for name in ("covered", "operators", "collectives")})
        for of in zip(*uses, strict=True)
    )


def _with_servers(
    request: Request, model: CostModel, *, grain: Grain, conditions: Conditions | None = None
) -> Forecast:
    """The forecast of a step whose workers exchange gradients and weights through parameter servers."""
    request = replace(request, optimizer=False)  # servers make the updates
    workers = for_workers(request)
    lowered = lower(workers, grain=grain)
    works = lowered.plan.works
    estimates = above_limits(_estimate(model, works, workers.cluster), works, workers.cluster)
    job = _server_job(request, workers, model, conditions or Conditions())
    timeline = job.timeline(most=_MOST_WORKERS)
    report = make_report(workers, lowered, estimates, simulate(lowered.plan, estimates.seconds))
    report = with_servers(report, job, timeline)
    dtype = request.precision.linear.value
    report = replace(
        report,
        cluster=where(request.cluster),
        strategy=str(request.strategy),
        num_devices=request.cluster.num_devices,
        low_s=max(report.low_s, min(report.floor_s, report.step_s)),
        mfu=report.mfu * (peak_flops(workers.cluster, dtype) / peak_flops(request.cluster, dtype)),
        conditions=conditions,
    )
    return Forecast(
        report=report,
        request=request,
        lowered=lowered,
        estimates=estimates,
        timeline=timeline,
        cost_model=model,
        servers=job,
    )


def _server_job(request: Request, workers: Request, model: CostModel, conditions: Conditions) -> ServerJob:
    """Some steps with parameter servers, run; ``workers`` is the part of ``request`` without their own nodes."""
    parts, count = exchanged_parts(workers), request.strategy.num_microbatches
    items = [item for program, _ in parts for item in (*program.forward, *program.backward)]
    works: list[Work] = list(dict.fromkeys([*(i.work for i in items), *(i.launches for i in items)]))
    number = {work: n for n, work in enumerate(works)}
    seconds = np.stack([_estimate(model, works, kind).seconds for kind in workers.cluster.kinds()])

    def piece(program: BlockProgram, nbytes: float, kind: int) -> Piece:
        """All microbatches of a block on one kind of device."""
        own = seconds[kind].tolist()

        def both(items: tuple[Item, ...]) -> tuple[float, float]:
            return sum(own[number[i.work]] for i in items) * count, sum(own[number[i.launches]] for i in items) * count

        (forward_s, forward_host_s), (backward_s, backward_host_s) = both(program.forward), both(program.backward)
        return Piece(
            forward_s=forward_s,
            backward_s=backward_s,
            nbytes=nbytes,
            forward_host_s=forward_host_s,
            backward_host_s=backward_host_s,
        )

    pieces = tuple(
        replace(piece(p, nbytes, 0), elsewhere=tuple(piece(p, nbytes, kind) for kind in range(1, len(seconds))))
        for p, nbytes in parts
    )
    states = max((program.optimizer_states for program, _ in parts), default=0)
    factors = conditions.compute_factors(request.strategy.dp).tolist()
    setup = setup_on(
        request.cluster,
        request.strategy,
        update_bytes=2.0 + 2.0 * (1 + states),
        factors=tuple(factors) if set(factors) != {1.0} else (),
        busy_network=conditions.busy_network,
        interference=conditions.interference,
    )
    return ServerJob(
        setup=setup,
        pieces=pieces,
        programs=tuple(program for program, _ in parts),
        num_microbatches=count,
        works=tuple(works),
        seconds=seconds,
        mesh=Mesh.of(request.strategy, request.cluster),
        run=run_servers(setup, pieces, steps=SERVER_STEPS),
    )


def usual_runtime(graph: OperatorGraph) -> str:
    """The runtime taken where none is said."""
    return "megatron" if graph.tokens_per_sample else "pytorch"


def usual_precision(graph: OperatorGraph, cluster: Cluster) -> str:
    """The precision taken where none is said: half on devices that have it."""
    if graph.tokens_per_sample:
        return "bf16" if cluster.device.supports("bf16") else "fp16" if cluster.device.supports("fp16") else "fp32"
    return "amp" if cluster.device.supports("fp16") else "fp32"


def _strategy(strategy: str | Strategy | None, request: Request, shard: tuple[tuple[str, str], ...]) -> Strategy:
    if isinstance(strategy, Strategy):
        return replace(strategy, shard_rules=shard) if shard else strategy
    if strategy is None:
        return replace(choose_strategy(request), shard_rules=shard)
    parsed = replace(parse_strategy(strategy, global_batch=request.global_batch), shard_rules=shard)
    if says_micro_batch(strategy):
        return parsed
    chosen = choose_micro_batch(for_workers(replace(request, strategy=parsed)))
    return replace(parsed, num_microbatches=chosen.num_microbatches)


def steps_of(
    graph: OperatorGraph, global_batch: int, *, tokens: int | None, samples: int | None, steps: int | None
) -> int | None:
    """How many steps a job has whose length is said in one way, or in none."""
    given = [n for n, v in (("tokens", tokens), ("samples", samples), ("steps", steps)) if v is not None]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} are given: say how long the job is in one way")
    if tokens is not None:
        if not graph.tokens_per_sample:
            raise RequestError(f"tokens are given, but {graph.name} has no tokens: say samples or steps")
        return max(1, math.ceil(tokens / (global_batch * graph.tokens_per_sample)))
    if samples is not None:
        return max(1, math.ceil(samples / global_batch))
    return steps


def job_of(result: Forecast, num_steps: int, settings: JobSettings, *, step_s: float | None = None) -> JobForecast:
    """The job of ``num_steps`` such steps, or of steps that take ``step_s`` instead and do the same."""
    report, request = result.report, result.request
    states = max((len(op.inputs) - 2 for op, _ in request.graph if op.phase is Phase.OPTIMIZER), default=0)
    state_bytes = report.num_parameters * request.precision.weights.nbytes
    state_bytes += request.precision.optimizer_bytes(report.num_trainable_parameters, states)
    return forecast_job(
        num_steps=num_steps,
        step_s=report.step_s if step_s is None else step_s,
        busy=(report.compute_s + report.optimizer_s)
        / report.step_s
        * (request.strategy.num_ranks / report.num_devices),
        forward_share=1 / 3,
        state_bytes=state_bytes,
        samples_per_step=report.global_batch,
        tokens_per_sample=report.tokens_per_sample,
        cluster=request.cluster,
        settings=settings,
    )
