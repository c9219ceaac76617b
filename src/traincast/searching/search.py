"""The search from end to end: model, cluster and batch in, the best strategies out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.engines import Engine, local_engine
from traincast.errors import RequestError, StrategyError, UnknownNameError
from traincast.estimate import CostModel
from traincast.estimate.coverage import check_possible, check_used, unused_warnings
from traincast.forecast import Forecast, make_request, steps_of
from traincast.graph import Operator, OperatorGraph
from traincast.report import JobSettings
from traincast.report.job import power_w, price_per_s
from traincast.searching.annealing import anneal
from traincast.searching.answer import Answer, Candidate
from traincast.searching.choices import clusters_to_try
from traincast.searching.columns import Columns, joined
from traincast.searching.constraints import apply_constraints
from traincast.searching.explore import bulk_of, explore
from traincast.searching.front import influence
from traincast.searching.journal import Journal
from traincast.searching.problem import OBJECTIVES, Counts, Limits, Objective, Problem, Task
from traincast.searching.ranking import Ranking
from traincast.searching.space import Axes, Degrees, families, meshes, usual_axes, ways
from traincast.strategy import Request, Runtime
from traincast.strategy.prepare import layers_of, need_only
from traincast.units import format_bytes

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

SEARCHERS: Final = ("auto", "exhaustive", "branch-and-bound", "annealing")
REACH: Final = 1.1
"""Branch and bound finds the best strategies up to so many times the time of the best."""
MEMORY_REACH: Final = 2.0
"""The same where least memory is asked for: slower ones are of no use to anybody."""
_EXHAUSTIVE: Final = 20_000
"""Strategies up to which a search is exhaustive unless asked otherwise."""
_AROUND: Final = 3
"""Meshes of the best strategies of which everything is evaluated in the end, for the front of time and memory."""
_COMPARED: Final = 24
_COMPARED_CALIBRATED: Final = 48
"""How many candidates are forecast in full; more of them where a calibration has a word in their order."""


def search(
    model: str | OperatorGraph,
    *,
    cluster: str | Cluster,
    global_batch: int,
    seq: int | None = None,
    precision: str | None = None,
    runtime: str | Runtime | None = None,
    objective: Objective = "time",
    top: int = 10,
    constraint: str = "",
    nodes: Sequence[int] = (),
    devices: Sequence[str] = (),
    tokens: int | None = None,
    samples: int | None = None,
    steps: int | None = None,
    deadline_s: float | None = None,
    budget: float | None = None,
    searcher: str = "auto",
    engine: Engine | None = None,
    engine_name: str = "local",
    resume: Path | None = None,
    progress: Progress | None = None,
    job: JobSettings | None = None,
    cost_model: CostModel | None = None,
    accepts: Callable[[Request], bool] | None = None,
    seed: int = 0,
    use_cache: bool = False,
) -> Answer:
    """The best strategies for a model on a cluster, or on the best of several.

    ``constraint`` limits axes and memory, ``nodes`` and ``devices`` say which clusters to choose from, ``deadline_s``
    and ``budget`` what the job may take in all. ``accepts`` leaves out candidates for which it is false. Finished parts
    are kept in the folder ``resume``.
    """
    began = time.perf_counter()
    if objective not in OBJECTIVES:
        raise UnknownNameError("objective", objective, OBJECTIVES)
    if searcher not in SEARCHERS:
        raise UnknownNameError("searcher", searcher, SEARCHERS)
    if top < 1 or seed < 0:
        raise RequestError(f"top {top} and seed {seed}: expected at least 1 and 0")
    requests = [
        make_request(
            model, cluster=place, global_batch=global_batch, seq=seq, precision=precision, runtime=runtime,
            use_cache=use_cache,
        )
        for place in clusters_to_try(cluster, nodes, devices)
    ]  # fmt: skip
    check_possible(cost_model, [request.cluster for request in requests])
    num_steps = steps_of(requests[0].graph, global_batch, tokens=tokens, samples=samples, steps=steps)
    if (deadline_s or budget) and num_steps is None:
        raise RequestError("a deadline or a budget is for a whole job: say how long it is in tokens, samples or steps")
    limits = Limits(num_steps=num_steps, deadline_s=deadline_s, budget=budget)
    problems = [_problem(r, constraint, objective, searcher, cost_model) for r in requests]
    means = _Means(
        searcher=searcher, engine=engine or local_engine(), resume=resume, progress=progress, seed=seed
    )  # fmt: skip
    columns, counts = _run(problems, means, objective, limits)
    values = _values(columns, requests, objective, limits)
    if not np.isfinite(values).any():
        raise StrategyError(_nothing(columns, problems, limits))
    ranking = Ranking(
        requests=requests,
        columns=columns,
        limits=limits,
        settings=job or JobSettings(),
        objective=objective,
        cost_model=cost_model,
        accepts=accepts,
    )
    measured = any(request.cluster.calibration for request in requests)
    best = ranking.best(values, max(top, _COMPARED_CALIBRATED if measured else _COMPARED))
    if not best and accepts is None:  # what a job does beside its steps takes it beyond its limits
        raise StrategyError(_nothing(columns, problems, limits))
    if not best:
        raise StrategyError("no strategy that was found is accepted by what it is for; loosen what is asked for")
    ranked, sure = ranking.compared(best, top, seed)
    unused = _check_bundles(cost_model, best)
    first = ranking.objective_of(ranked[0])
    candidates = tuple(replace(c, behind=ranking.objective_of(c) / first - 1.0) for c in ranked)
    return Answer(
        model=requests[0].graph.name,
        runtime=requests[0].runtime.name,
        precision=requests[0].precision.name,
        global_batch=global_batch,
        objective=objective,
        searcher=_chosen(problems[0], searcher),
        engine=engine_name,
        counts=counts,
        seconds=time.perf_counter() - began,
        best=candidates[0],
        candidates=candidates[:top],
        pareto=tuple(ranking.front(values)),
        naive=tuple(ranking.naive(first)),
        sure=sure,
        influence=influence(columns, values),
        columns=columns,
        requests=tuple(requests),
        warnings=(*candidates[0].report.warnings, *unused),
    )


def _check_bundles(cost_model: CostModel | None, best: Sequence[tuple[Forecast, Candidate]]) -> tuple[str, ...]:
    """Refuse a bundle of operators that covers nothing of the best strategies.

    One of collectives may have ruled out what it covers: then a warning says that the best do without.
    """
    used = {use.path for _, candidate in best for use in candidate.report.bundles if use.covered > 0.0}
    works = [work for made, _ in best for work in made.lowered.plan.works if isinstance(work, Operator)]
    places = dict.fromkeys(made.request.cluster for made, _ in best)
    curves = {str(model.path) for model in getattr(cost_model, "collectives", ())}
    check_used(cost_model, used | curves, list(dict.fromkeys(works)), places)
    return unused_warnings(cost_model, used)


def _problem(
    request: Request, constraint: str, objective: Objective, searcher: str, cost_model: CostModel | None
) -> Problem:
    axes, most_memory = apply_constraints(constraint, usual_axes(request), request.cluster.device.memory_bytes)
    problem = Problem(request=request, axes=axes, most_memory=most_memory, cost_model=cost_model)
    if _chosen(problem, searcher) != "branch-and-bound":
        return problem
    lean = objective == "memory"
    return replace(problem, reach=MEMORY_REACH if lean else REACH, lean=lean)


def _chosen(problem: Problem, searcher: str) -> str:
    """The searcher to use: all of a small space, branch and bound in a large one."""
    if searcher != "auto":
        return searcher
    return "exhaustive" if _size(problem) <= _EXHAUSTIVE else "branch-and-bound"


def _size(problem: Problem) -> int:
    """About how many strategies there are, counted no further than it matters."""
    request, axes = problem.request, problem.axes
    devices, batch, layers = request.cluster.num_devices, request.global_batch, layers_of(request.graph)
    total = 0
    for at in meshes(axes, devices, batch):
        for found in families(axes, at, devices, batch):
            sharings = len(axes.zero) if devices > at.tp * at.pp else 1
            total += sum(len(ways(axes, at.pp, f.num_microbatches, layers)) for f in found) * sharings
        if total > _EXHAUSTIVE:
            break
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Means:
    """How a search is run, which its answer does not depend on."""

    searcher: str
    engine: Engine
    resume: Path | None
    progress: Progress | None
    seed: int


def _run(problems: Sequence[Problem], means: _Means, objective: Objective, limits: Limits) -> tuple[Columns, Counts]:
    """Everything that was found of all problems; what one of them has found limits the next ones."""
    parts: list[Columns] = []
    counts = Counts()
    requests = [problem.request for problem in problems]
    bounded = problems[0].reach < np.inf
    total = sum(len(problem.tasks()) for problem in problems) + _AROUND * bounded
    so_far, best = 0, float("inf")
    for number, problem in enumerate(problems):
        if means.searcher == "annealing":
            found = [anneal(bulk_of(problem), problem, seed=means.seed)]
        else:
            known = best / _rate(problem.request, objective) if objective != "memory" else float("inf")
            some = _tasks(problem, known, limits.most_s(problem.request.cluster))
            found = _worked_off(problem, some, means, (so_far, total))
            so_far += len(some)
        for columns, more in found:
            parts.append(replace(columns, cluster=np.full(len(columns), number, dtype=np.int16)))
            counts += more
            best = min(best, float(_values(parts[-1], requests, objective, limits).min(initial=np.inf)))
    columns = joined(parts)
    if bounded:
        number, around = _around(columns, _values(columns, requests, objective, limits))
        for more_columns, more in _worked_off(problems[number], around, means, (so_far, total)):
            parts.append(replace(more_columns, cluster=np.full(len(more_columns), number, dtype=np.int16)))
            counts += more
    columns = joined(parts).distinct()
    counts.evaluated, counts.feasible = len(columns), int(np.isfinite(columns.seconds).sum())
    return columns, counts


def _around(columns: Columns, values: Floats) -> tuple[int, list[Task]]:
    """The cluster of the best strategy, and the meshes of the best ones there, to be searched in full."""
    found: dict[Degrees, None] = {}
    order = columns.order(values).tolist()
    cluster = int(columns.cluster[order[0]]) if order else 0
    for row in order:
        if len(found) == _AROUND or not np.isfinite(values[row]):
            break
        if columns.cluster[row] == cluster:
            found[Degrees(**{name: int(getattr(columns, name)[row]) for name in ("tp", "cp", "pp", "ep")})] = None
    return cluster, [Task(degrees=(at,), whole=True) for at in found]


def _tasks(problem: Problem, known_s: float, most_s: float) -> list[Task]:
    """Parts of a problem, none of which may take more than ``most_s``.

    Branch and bound begins with the best that is known, or that of a small part of the space.
    """
    if not np.isfinite(problem.reach):
        return problem.tasks()
    best = known_s
    if not np.isfinite(best):
        probe = replace(problem, axes=_probe(problem.axes, problem.request), reach=float("inf"))
        bulk = bulk_of(probe)
        for task in probe.tasks():
            columns, _ = explore(bulk, probe, task)
            best = min(best, float(columns.seconds.min(initial=np.inf)))
    return problem.tasks(min(best, most_s))


def _probe(axes: Axes, request: Request) -> Axes:
    """A small part of the space that has something good in it: habits of the field."""

    def some(values: tuple[str, ...] | tuple[int, ...], wanted: Sequence[object]) -> tuple[object, ...]:
        return tuple(v for v in values if v in wanted) or values[:1]

    inside = request.cluster.domain_devices
    chosen = {
        "tp": tuple(t for t in axes.tp if t <= inside) or axes.tp[:1],
        "cp": axes.cp[:1],
        "micro_batch": axes.micro_batch[:3],
        "virtual_stages": some(axes.virtual_stages, (1, 2)),
        "schedule": some(axes.schedule, ("1f1b", "interleaved")),
        "zero": some(axes.zero, (1, 3)),
        "sequence_parallel": axes.sequence_parallel[:1],
        "recompute": some(axes.recompute, ("none", "full")),
        "offload": axes.offload[:1],
        "cut": axes.cut[:1],
    }
    return replace(axes, **chosen)  # type: ignore[arg-type]


def _worked_off(
    problem: Problem, tasks: Sequence[Task], means: _Means, counted: tuple[int, int]
) -> list[tuple[Columns, Counts]]:
    """Results of all tasks in their order, whoever worked them off; those that are kept are not done again."""
    journal = Journal(means.resume, problem) if means.resume else None
    found: dict[int, tuple[Columns, Counts]] = {}
    if journal:
        found = {n: kept for n, task in enumerate(tasks) if (kept := journal.read(task)) is not None}
    left = [n for n in range(len(tasks)) if n not in found]

    def done(index: int, result: tuple[Columns, Counts]) -> None:
        found[left[index]] = result
        if journal:
            journal.write(tasks[left[index]], *result)
        if means.progress:
            means.progress(counted[0] + len(found), counted[1])

    means.engine.run("traincast.searching.explore:worker", problem, [tasks[n] for n in left], done=done)
    return [found[n] for n in range(len(tasks))]


def _rate(request: Request, objective: Objective) -> float:
    """What a second of a step counts for an objective: itself, dollars or joules."""
    match objective:
        case "cost":
            return price_per_s(request.cluster) or 1.0
        case "energy":
            return power_w(request.cluster, 1.0)
        case _:
            return 1.0


def _values(columns: Columns, requests: Sequence[Request], objective: Objective, limits: Limits) -> Floats:
    """The objective of every strategy; infinite for those that do not fit, or not into a deadline or a budget."""
    rates = np.array([_rate(request, objective) for request in requests])
    most_s = np.array([limits.most_s(request.cluster) for request in requests])
    seconds = np.where(columns.seconds <= most_s[columns.cluster], columns.seconds, np.inf)
    values = seconds * rates[columns.cluster]
    if objective == "memory":
        seconds = np.where(seconds <= MEMORY_REACH * seconds.min(initial=np.inf), seconds, np.inf)
        values = columns.memory
    # Estimates differ in the last digits with the company they are made in: no order may depend on these.
    rounded = np.exp(np.round(np.log(np.maximum(values, 1e-30)), 7))
    found: Floats = np.where(np.isfinite(seconds), rounded, np.inf)
    return found


def _nothing(columns: Columns, problems: Sequence[Problem], limits: Limits) -> str:
    """Why no strategy is left."""
    if limits.some and (not len(columns) or np.isfinite(columns.seconds).any()):
        fastest = float(columns.seconds.min(initial=np.inf))
        found = f"the fastest step found takes {fastest:.4g} s" if np.isfinite(fastest) else "none comes near"
        return (
            f"no strategy meets the deadline and the budget: {found}, for {limits.num_steps:,} steps; use more or "
            "faster devices, or give the job more time or money"
        )
    if not len(columns):
        return (
            "no legal strategy: no mesh of these devices shares out the global batch and the model as asked; choose "
            "another batch, another number of nodes, or fewer constraints"
        )
    least = int(np.argmin(columns.memory))
    problem = problems[int(columns.cluster[least])]
    strategy = columns.strategy(least, problem.request.strategy)
    need = need_only(replace(problem.request, strategy=strategy))
    needs = f"needs {format_bytes(need.forecast)} per device of the {format_bytes(problem.most_memory)} there are"
    if not need.fits:
        needs = f"{need.verdict}: {need.shortage()}"
    return (
        f"no strategy fits: the leanest of {len(columns):,}, {strategy}, {needs}; use more devices, a smaller batch or "
        "a narrower dtype"
    )
