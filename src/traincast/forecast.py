"""The forecast from end to end: model, cluster and strategy in, report out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from traincast.cluster import Cluster, load_cluster
from traincast.errors import RequestError
from traincast.estimate import CostModel, Estimates, learned_cost_model
from traincast.graph import OperatorGraph, Phase
from traincast.graph.load import load_model
from traincast.report import JobForecast, JobSettings, Report, make_report
from traincast.report.job import forecast_job
from traincast.simulate import Timeline, expand, simulate
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
from traincast.strategy.strategy import says_micro_batch
from traincast.strategy.template import Grain

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
        """The timeline of single operators, of one rank per pipeline stage or of all ranks."""
        lowered = lower(self.request, grain="operator")
        estimates = self.cost_model.estimate(lowered.plan.works, self.request.cluster)
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
    use_cache: bool = False,
) -> Forecast:
    """Forecast one training step, and the whole job if ``tokens``, ``samples`` or ``steps`` say how long it is.

    Without ``strategy`` a sensible one that fits is chosen; without a micro batch in it, the largest that
    fits. ``precision`` defaults to bf16 for sequence models and amp otherwise, where the device has it.
    """
    if not isinstance(global_batch, int) or not 1 <= global_batch <= _MAX_BATCH:
        raise RequestError(f"global batch {global_batch}: expected a whole number from 1 to {_MAX_BATCH}")
    place = load_cluster(cluster) if isinstance(cluster, str) else cluster
    graph = load_model(model, seq=seq, use_cache=use_cache) if isinstance(model, str) else model
    habits = runtime if isinstance(runtime, Runtime) else load_runtime(runtime or _usual_runtime(graph))
    request = Request(
        graph=graph,
        cluster=place,
        strategy=Strategy(),
        runtime=habits,
        precision=load_precision(precision or _usual_precision(graph, place)),
        global_batch=global_batch,
        optimizer=optimizer,
    )
    request = replace(request, strategy=_strategy(strategy, request, shard))
    result = forecast(request, cost_model=cost_model)
    num_steps = _num_steps(graph, global_batch, tokens=tokens, samples=samples, steps=steps)
    if num_steps is None:
        return result
    return replace(result, report=replace(result.report, job=_job(result, num_steps, job or JobSettings())))


@lru_cache(maxsize=1)
def default_cost_model() -> CostModel:
    """The cost model used when none is given: the bundles that come with Traincast, physics for the rest."""
    return learned_cost_model()


def forecast(request: Request, *, cost_model: CostModel | None = None, grain: Grain = "segment") -> Forecast:
    """Lower, estimate, simulate and report ``request``; both grains give the same times."""
    model = cost_model or default_cost_model()
    lowered = lower(request, grain=grain)
    estimates = model.estimate(lowered.plan.works, request.cluster)
    timeline = simulate(lowered.plan, estimates.seconds)
    report = make_report(request, lowered, estimates, timeline)
    return Forecast(
        report=report,
        request=request,
        lowered=lowered,
        estimates=estimates,
        timeline=timeline,
        cost_model=model,
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


def _num_steps(
    graph: OperatorGraph, global_batch: int, *, tokens: int | None, samples: int | None, steps: int | None
) -> int | None:
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


def _job(result: Forecast, num_steps: int, settings: JobSettings) -> JobForecast:
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
