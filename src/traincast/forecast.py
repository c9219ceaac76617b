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
from traincast.graph import OperatorGraph, Phase
from traincast.graph.load import load_model
from traincast.report import JobForecast, JobSettings, Report, make_report
from traincast.report.job import forecast_job
from traincast.report.report import DOES_NOT_FIT, waits_of
from traincast.simulate import Conditions, Timeline, expand, simulate, simulate_servers, under
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
from traincast.strategy.prepare import exchanged_parts, memory_in_detail, memory_only
from traincast.strategy.program import Item
from traincast.strategy.remedy import find_remedy
from traincast.strategy.servers import Piece, ServerSetup
from traincast.strategy.strategy import says_micro_batch
from traincast.strategy.template import Grain
from traincast.work import Launch, Work

_MAX_BATCH: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A report, and what it was made from: the request, its plan, the estimates and the timeline."""

    report: Report
    request: Request
    lowered: Lowered
    estimates: Estimates
    timeline: Timeline
    cost_model: CostModel

    def detailed(self, *, all_ranks: bool = False) -> Timeline:
        """The timeline of single operators, of one rank per stage or of all ranks (of all, where they differ)."""
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
    shard: tuple[tuple[str, str], ...] = (),
    cost_model: CostModel | None = None,
    optimizer: bool = True,
    conditions: Conditions | None = None,
    use_cache: bool = False,
) -> Forecast:
    """Forecast one training step, and the whole job if ``tokens``, ``samples`` or ``steps`` say how long it is.

    Without ``strategy`` a sensible one that fits is chosen; without a micro batch in it, the largest that
    fits. ``precision`` defaults to bf16 for sequence models and amp otherwise, where the device has it.
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
    )
    request = replace(request, strategy=_strategy(strategy, request, shard))
    result = forecast(request, cost_model=cost_model, conditions=conditions)
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
) -> Request:
    """Everything but the strategy, which is that of one device; what is not said is as usual for such a model."""
    if not isinstance(global_batch, int) or not 1 <= global_batch <= _MAX_BATCH:
        raise RequestError(f"global batch {global_batch}: expected a whole number from 1 to {_MAX_BATCH}")
    place = load_cluster(cluster) if isinstance(cluster, str) else cluster
    graph = load_model(model, seq=seq, use_cache=use_cache) if isinstance(model, str) else model
    return Request(
        graph=graph,
        cluster=place,
        strategy=Strategy(),
        runtime=runtime
        if isinstance(runtime, Runtime)
        else load_runtime(_usual_runtime(graph) if runtime is None else runtime),
        precision=load_precision(_usual_precision(graph, place) if precision is None else precision),
        global_batch=global_batch,
        optimizer=optimizer,
    )


def _with_memory(result: Forecast) -> Report:
    """The report with memory over time, what makes its peak, and what would make it fit."""
    report, request = result.report, result.request
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
        capacity=request.cluster.device.memory_bytes,
        global_batch=request.global_batch,
        memory=lambda strategy: memory_only(replace(request, strategy=strategy)),
        seconds=seconds,
        most_tensor=min(8, request.cluster.domain_devices),
    )
    needs = f"{DOES_NOT_FIT}: {remedy}"
    return replace(report, warnings=tuple(needs if w.startswith(DOES_NOT_FIT) else w for w in report.warnings))


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
    if request.strategy.servers and conditions is not None:
        raise RequestError(
            "slow ranks and a busy network are not simulated with parameter servers; leave one of them out"
        )
    alike = conditions is None and not request.cluster.parts
    if request.strategy.servers:  # they make the updates
        request = replace(request, optimizer=False)
    lowered = lower(request, grain=grain if alike else "operator")
    estimates = _estimate(model, lowered.plan.works, request.cluster)
    timeline = simulate(lowered.plan, estimates.seconds)
    if alike:
        report = make_report(request, lowered, estimates, timeline)
    else:
        folded = timeline
        timeline = _every_rank(request, lowered, model, conditions or Conditions())
        report = make_report(request, lowered, estimates, timeline, folded=folded)
        report = replace(report, waits=waits_of(timeline))
    if request.strategy.servers:
        report = with_servers(report, request, model)
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


def with_servers(report: Report, request: Request, model: CostModel) -> Report:
    """``report`` of a step whose workers exchange gradients and weights through parameter servers."""
    cluster, strategy = request.cluster, request.strategy
    parts = exchanged_parts(request)
    works = list(dict.fromkeys(i.work for program, _ in parts for i in (*program.forward, *program.backward)))
    launches = list(dict.fromkeys(i.launches for program, _ in parts for i in (*program.forward, *program.backward)))
    estimates = _estimate(model, [*works, *launches], cluster)
    seconds: dict[Work, float] = dict(zip(works, estimates.seconds.tolist(), strict=False))
    host: dict[Launch, float] = dict(zip(launches, estimates.seconds[len(works) :].tolist(), strict=True))

    def of(items: tuple[Item, ...]) -> float:
        """A piece takes what its device or its host takes, whichever is longer, for every microbatch."""
        longer = max(sum(seconds[i.work] for i in items), sum(host[i.launches] for i in items))
        return longer * strategy.num_microbatches

    pieces = [Piece(forward_s=of(p.forward), backward_s=of(p.backward), nbytes=nbytes) for p, nbytes in parts]
    nic = replace(cluster.inter_node, bandwidth=cluster.inter_node.bandwidth * cluster.nics_per_node)
    states = max((program.optimizer_states for program, _ in parts), default=0)
    setup = ServerSetup(
        servers=strategy.servers,
        workers=strategy.dp,
        asynchronous=strategy.asynchronous,
        workers_per_node=cluster.devices_per_node,
        servers_per_node=-(-strategy.servers // cluster.num_nodes),
        own_nodes=False,
        worker_nic=nic,
        server_nic=nic,
        local=replace(cluster.intra_node, name="host", bandwidth=cluster.host_bandwidth),
        update_s_per_byte=(2.0 + 2.0 * (1 + states)) / cluster.host_memory_bandwidth,
    )
    run = simulate_servers(setup, pieces)
    extra = run.step_s - report.step_s
    ratio = run.step_s / report.step_s
    return replace(
        report,
        step_s=run.step_s,
        low_s=report.low_s * ratio,
        high_s=report.high_s * ratio,
        samples_per_s=report.samples_per_s / ratio,
        tokens_per_s=report.tokens_per_s / ratio,
        mfu=report.mfu / ratio,
        exposed_communication_s=max(0.0, report.exposed_communication_s + extra),
        demand=replace(report.demand, communication_bytes=2.0 * sum(nbytes for _, nbytes in parts)),
        servers=run,
    )


def _usual_runtime(graph: OperatorGraph) -> str:
    return "megatron" if graph.tokens_per_sample else "pytorch"


def _usual_precision(graph: OperatorGraph, cluster: Cluster) -> str:
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
    return choose_micro_batch(replace(request, strategy=parsed))


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


def job_of(result: Forecast, num_steps: int, settings: JobSettings) -> JobForecast:
    """The job of ``num_steps`` such steps."""
    report, request = result.report, result.request
    states = max((len(op.inputs) - 2 for op, _ in request.graph if op.phase is Phase.OPTIMIZER), default=0)
    state_bytes = report.num_parameters * request.precision.weights.nbytes
    state_bytes += request.precision.optimizer_bytes(report.num_parameters, states)
    return forecast_job(
        num_steps=num_steps,
        step_s=report.step_s,
        busy=(report.compute_s + report.optimizer_s) / report.step_s,
        forward_share=1 / 3,
        state_bytes=state_bytes,
        samples_per_step=report.global_batch,
        tokens_per_sample=report.tokens_per_sample,
        cluster=request.cluster,
        settings=settings,
    )
