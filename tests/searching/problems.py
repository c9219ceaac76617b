"""Small problems to search, and the same strategies forecast one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np

from tests.conftest import AnalyticalCostModel, CostModel, devices, graph_of
from traincast import Cluster, Request, Strategy, load_cluster, load_runtime
from traincast.ask import Ask
from traincast.forecast import estimates_of
from traincast.resolve import resolve
from traincast.searching.bulk.columns import StrategyColumns, joined
from traincast.searching.bulk.evaluate import Bulk
from traincast.searching.bulk.family import EvaluatedFamily
from traincast.searching.constraints import apply_constraints
from traincast.searching.explore import bulk_of, explore
from traincast.searching.problem import Best, Problem
from traincast.searching.space import Family, families, meshes, usual_axes
from traincast.simulate import Evaluator
from traincast.strategy import load_precision, lower
from traincast.strategy.releases import settled

TINY = "gpt:layers=4,hidden=256,heads=4,vocab=1000,seq=256"
DEEP = "gpt:layers=8,hidden=256,heads=4,vocab=8000,seq=256"
MOE = "moe:layers=4,hidden=256,heads=4,kv_heads=4,experts=8,top_k=2,expert_ffn=512,vocab=1000,seq=256"
CNN = "resnet18"


def request_for(
    model: str, cluster: str | Cluster | int, batch: int, *, runtime: str = "megatron", precision: str = "bf16"
) -> Request:
    """Everything but the strategy; a number is one of A100s."""
    place = devices(cluster) if isinstance(cluster, int) else cluster
    place = load_cluster(place) if isinstance(place, str) else place
    graph, chosen = graph_of(model), load_precision(precision)
    return Request(
        graph=graph,
        cluster=place,
        strategy=Strategy(),
        runtime=settled(load_runtime(runtime), graph=graph, cluster=place, precision=chosen),
        precision=chosen,
        global_batch=batch,
    )


def problem_for(
    model: str = TINY,
    cluster: str | Cluster | int = 8,
    batch: int = 16,
    *,
    runtime: str = "megatron",
    constraint: str = "",
    reach: float = math.inf,
    most_memory: float | None = None,
    cost_model: CostModel | None = None,
) -> Problem:
    """A problem with the analytical cost model, unless another one is given."""
    request = request_for(model, cluster, batch, runtime=runtime)
    axes, most = apply_constraints(constraint, usual_axes(request), request.cluster.device.memory_bytes)
    return Problem(
        request=request,
        axes=axes,
        most_memory=most_memory or most,
        reach=reach,
        cost_model=cost_model or AnalyticalCostModel(),
    )


def all_families(problem: Problem) -> list[Family]:
    """The families of a problem's space."""
    count, batch = problem.request.cluster.num_devices, problem.request.global_batch
    return [
        family
        for at in meshes(problem.axes, count, batch)
        for found in families(problem.axes, at, count, batch)
        for family in found
    ]


def evaluated(bulk: Bulk, family: Family) -> EvaluatedFamily | None:
    """A family with memory and seconds of all its members."""
    entry = bulk.prepare(family)
    if entry is not None:
        bulk.estimate([entry])
        bulk.enter(entry)
        bulk.run([entry])
    return entry


def asked(strategy: str, *, model: str, cluster: str, batch: int) -> Request:
    """The request of a model of the zoo, or of a made one, on a cluster of the catalog."""
    ask = Ask(model, cluster=cluster, global_batch=batch, strategy=strategy, runtime="megatron", use_cache=True)
    return resolve(ask).request


def solved(problem: Problem, *, best_s: float = math.inf) -> StrategyColumns:
    """All that the search of a problem finds, part by part."""
    bulk = bulk_of(problem)
    return joined([explore(bulk, problem, task)[0] for task in problem.tasks(Best(best_s, best_s, best_s))])


@cache
def exhausted(problem_key: tuple[object, ...]) -> tuple[Problem, StrategyColumns]:
    """A problem (given by model, cluster, batch and constraint) and all of its space, searched once per session."""
    model, cluster, batch, constraint = problem_key
    runtime = "pytorch" if model == CNN else "megatron"
    problem = problem_for(model, cluster, batch, constraint=constraint, runtime=runtime)  # type: ignore[arg-type]
    return problem, solved(problem)


def single(request: Request, cost_model: CostModel | None) -> tuple[float, float]:
    """Seconds and bytes of a strategy, forecast alone."""
    lowered = lower(request)
    seconds = estimates_of(request, lowered.plan.works, cost_model=cost_model).seconds
    return Evaluator(lowered.plan)(seconds), max(memory.total for memory in lowered.memory)


def strategies_of(problem: Problem, columns: StrategyColumns) -> list[Strategy]:
    """The strategies of all rows."""
    return [columns.strategy(row, problem.request.strategy) for row in range(len(columns))]


def with_strategy(problem: Problem, strategy: Strategy) -> Request:
    """The request of a member."""
    return replace(problem.request, strategy=strategy)


def finite(columns: StrategyColumns) -> StrategyColumns:
    """The rows that fit."""
    return columns.take(np.flatnonzero(np.isfinite(columns.seconds)))
