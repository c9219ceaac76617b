"""The search from end to end: model, cluster and batch in, the best strategies out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.ask import JobSettings, Progress, verb
from traincast.engines import Engine, local_engine
from traincast.errors import RequestError, StrategyError, UnknownNameError
from traincast.estimate import CostModel, MeasuredCostModel
from traincast.estimate.coverage import check_possible, check_used, unused_warnings
from traincast.forecast import Forecast
from traincast.graph import Operator
from traincast.report.job import steps_of
from traincast.resolve import cost_model_of, resolve
from traincast.searching.annealing import anneal
from traincast.searching.answer import Answer, Candidate
from traincast.searching.ask import CONFIDENCE, OBJECTIVES, Objective, SearchAsk
from traincast.searching.bulk.columns import StrategyColumns, joined
from traincast.searching.constraints import apply_constraints
from traincast.searching.doubts import Doubts
from traincast.searching.explore import bulk_of, explore
from traincast.searching.journal import from_json, part_name, search_journal, to_json
from traincast.searching.places import MEMORY_REACH, clusters_to_try, nothing, survey
from traincast.searching.problem import Best, Limits, Problem, SpaceCounts, Task
from traincast.searching.ranking import Ranking, influence
from traincast.searching.space import Axes, Degrees, families, meshes, usual_axes, ways
from traincast.simulate.executor import execute_compiled
from traincast.strategy import Request
from traincast.strategy.prepare import layers_of
from traincast.strategy.program.recompute import leanest

Floats = npt.NDArray[np.float64]

SEARCHERS: Final = ("auto", "exhaustive", "branch-and-bound", "annealing")
REACH: Final = 1.1
"""Branch and bound finds every strategy within this many times the best time."""
_EXHAUSTIVE: Final = 20_000
"""A search of up to this many strategies is exhaustive, unless another searcher is named."""
_AROUND: Final = 3
"""At the end, all strategies on the meshes of this many of the best are evaluated, for the Pareto front."""
_COMPARED: Final = 24
_COMPARED_CALIBRATED: Final = 48
"""Number of candidates that are forecast in full; a calibration can change their order, so it needs more of them."""


@verb(SearchAsk)
def search(ask: SearchAsk) -> Answer:
    """Find the best strategies for a model on a cluster, or on the best of several clusters.

    ``constraint`` limits axes and memory; ``nodes`` and ``devices`` are the clusters to choose from. The whole job must
    meet ``deadline_s`` and ``budget`` (US dollars) with a chance of at least ``confidence``. ``accepts`` returns False
    for requests to leave out. Finished parts are saved in the folder ``resume``; a later search with the same folder
    resumes from them. Raises :class:`traincast.errors.StrategyError` if no strategy is left.
    """
    began = time.perf_counter()
    _check_settings(objective=ask.objective, searcher=ask.searcher, top=ask.top, seed=ask.seed)
    limits = _limits(deadline_s=ask.deadline_s, budget=ask.budget, confidence=ask.confidence)
    cost_model = cost_model_of(ask)
    found = [resolve(replace(ask, cluster=place)) for place in clusters_to_try(ask.cluster, ask.nodes, ask.devices)]
    requests = [each.request for each in found]
    if isinstance(cost_model, MeasuredCostModel):
        requests = [replace(request, cluster=cost_model.on(request.cluster)) for request in requests]
    check_possible(cost_model, [request.cluster for request in requests])
    num_steps = steps_of(requests[0].graph, ask.global_batch, tokens=ask.tokens, samples=ask.samples, steps=ask.steps)
    if (ask.deadline_s is not None or ask.budget is not None) and num_steps is None:
        raise RequestError("a deadline or a budget is for a whole job: give its length in tokens, samples or steps")
    problems = _problems(requests, ask.constraint, ask.objective, ask.searcher, cost_model)
    means = _Means(
        searcher=ask.searcher,
        engine=ask.engine or local_engine(),
        resume=None if ask.resume is None else Path(ask.resume),
        progress=ask.progress,
        seed=ask.seed,
    )
    parts, counts = _run(problems, means)
    ranking = Ranking(
        requests=requests,
        columns=joined(parts).distinct(),
        limits=replace(limits, num_steps=num_steps),
        settings=ask.job or JobSettings(),
        objective=ask.objective,
        cost_model=cost_model,
        accepts=ask.accepts,
    )
    return _answer(
        ranking,
        problems,
        means,
        parts,
        counts,
        top=ask.top,
        engine_name=ask.engine_name,
        began=began,
        assumed=tuple(dict.fromkeys(said for each in found for said in each.assumed)),
    )


def _check_settings(*, objective: str, searcher: str, top: int, seed: int) -> None:
    """Refuse an unknown objective or searcher, and numbers out of range."""
    if objective not in OBJECTIVES:
        raise UnknownNameError("objective", objective, OBJECTIVES)
    if searcher not in SEARCHERS:
        raise UnknownNameError("searcher", searcher, SEARCHERS)
    if top < 1 or seed < 0:
        raise RequestError(f"top {top} and seed {seed}: expected at least 1 and 0")


def _limits(*, deadline_s: float | None, budget: float | None, confidence: float) -> Limits:
    """Return the limits of a job whose length is not known yet; refuse limits that no job can meet."""
    if not 0.0 < confidence < 1.0:
        raise RequestError(f"confidence {confidence:g}: expected a chance between 0 and 1, such as {CONFIDENCE:g}")
    for name, most in (("deadline_s", deadline_s), ("budget", budget)):
        if most is not None and not most > 0.0:
            raise RequestError(f"{name} {most:g}: expected more than 0")
    return Limits(deadline_s=deadline_s, budget=budget, confidence=confidence)


def _answer(
    ranking: Ranking,
    problems: Sequence[Problem | StrategyError],
    means: _Means,
    parts: Sequence[StrategyColumns],
    counts: SpaceCounts,
    *,
    top: int,
    engine_name: str,
    began: float,
    assumed: tuple[str, ...],
) -> Answer:
    """Evaluate all strategies on the meshes of the best, compare the best by full forecasts, and return the answer.

    ``parts`` and ``counts`` are the results so far. Raises an error if no strategy meets the request.
    """
    requests = ranking.requests
    execute_compiled.prefer()  # the draws that estimate chances need Numba in any case
    places, values = survey(ranking, problems)
    number, around = _around(ranking.columns, values)
    chosen = problems[number]
    if isinstance(chosen, Problem) and np.isfinite(chosen.reach) and around:
        more, counted = _worked_off(number, chosen, around, means)
        counts += counted
        ranking = replace(ranking, columns=joined([*parts, *more]).distinct())
        places, values = survey(ranking, problems)
    columns = ranking.columns
    counts.evaluated, counts.feasible = len(columns), int(np.isfinite(columns.seconds).sum())
    measured = any(request.cluster.calibration for request in requests)
    best = ranking.contenders(values, max(top, _COMPARED_CALIBRATED if measured else _COMPARED))
    if not best:
        raise nothing(places, ranking)
    unused = _check_bundles(ranking.cost_model, best)
    ranked, places, sure, reason = ranking.compared(best, places, top, means.seed)
    first = ranking.objective_of(ranked[0])
    candidates = tuple(replace(c, behind=ranking.objective_of(c) / first - 1.0) for c in ranked)
    return Answer(
        model=requests[0].graph.name,
        runtime=requests[0].runtime.name,
        precision=requests[0].precision.name,
        global_batch=requests[0].global_batch,
        objective=ranking.objective,
        searcher=_chosen(chosen, means.searcher) if isinstance(chosen, Problem) else means.searcher,
        engine=engine_name,
        counts=counts,
        seconds=time.perf_counter() - began,
        best=candidates[0],
        candidates=candidates[:top],
        pareto=tuple(ranking.front(values)),
        naive=tuple(ranking.naive(first)),
        places=tuple(places),
        limits=ranking.limits,
        sure=sure,
        fastest=min(candidates, key=ranking.forecast_of),
        with_evidence=next((c for c in candidates if not c.marked), None),
        reason=reason,
        influence=influence(columns, values),
        columns=columns,
        requests=tuple(requests),
        warnings=(*candidates[0].report.warnings, *unused, *means.warnings, *assumed),
    )


def _check_bundles(cost_model: CostModel | None, best: Sequence[tuple[Forecast, Candidate]]) -> tuple[str, ...]:
    """Refuse a bundle of operators that covers no operator of the best strategies.

    Return a warning for each bundle of collectives that the best strategies do not use: its times may have ruled out
    the strategies that would.
    """
    used = {use.path for _, candidate in best for use in candidate.report.bundles if use.covered > 0.0}
    works = [work for made, _ in best for work in made.lowered.plan.works if isinstance(work, Operator)]
    places = dict.fromkeys(made.request.cluster for made, _ in best)
    curves = {str(model.path) for model in getattr(cost_model, "collectives", ())}
    check_used(cost_model, used | curves, list(dict.fromkeys(works)), places)
    return unused_warnings(cost_model, used)


def _problems(
    requests: Sequence[Request], constraint: str, objective: Objective, searcher: str, cost_model: CostModel | None
) -> list[Problem | StrategyError]:
    """Return the problem of each cluster, or the error if the constraint excludes it; raise if it excludes all."""
    found: list[Problem | StrategyError] = []
    for request in requests:
        try:
            found.append(_problem(request, constraint, objective, searcher, cost_model))
        except StrategyError as error:
            found.append(error)
    if isinstance(found[0], StrategyError) and all(isinstance(each, StrategyError) for each in found):
        raise found[0]
    return found


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
    """Return the searcher to use; ``auto`` is exhaustive in a small space, branch and bound in a large one."""
    if searcher != "auto":
        return searcher
    return "exhaustive" if _size(problem) <= _EXHAUSTIVE else "branch-and-bound"


def _size(problem: Problem) -> int:
    """Return about how many strategies a problem has; counting stops beyond the limit of an exhaustive search."""
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


@dataclass(slots=True, kw_only=True)
class _Means:
    """How a search runs, and how many of its parts are done."""

    searcher: str
    engine: Engine
    resume: Path | None
    progress: Progress | None
    seed: int
    finished: int = 0
    total: int = 0
    warnings: list[str] = field(default_factory=list)

    def tell(self, parts: int) -> None:
        """Report that ``parts`` more parts are done."""
        if self.progress:
            self.progress(self.finished + parts, max(self.total, self.finished + parts))


def _run(problems: Sequence[Problem | StrategyError], means: _Means) -> tuple[list[StrategyColumns], SpaceCounts]:
    """Search each cluster separately, so that all can be compared; return all evaluated strategies and counts."""
    parts: list[StrategyColumns] = []
    counts = SpaceCounts()
    searched = [problem for problem in problems if isinstance(problem, Problem)]
    means.total = sum(len(p.tasks()) for p in searched) + _AROUND * any(np.isfinite(p.reach) for p in searched)
    for number, problem in enumerate(problems):
        if isinstance(problem, StrategyError):
            continue
        if means.searcher == "annealing":
            columns, counted = anneal(bulk_of(problem), problem, seed=means.seed)
            found = [replace(columns, cluster=np.full(len(columns), number, dtype=np.int16))]
        else:
            tasks = _tasks(problem)
            found, counted = _worked_off(number, problem, tasks, means)
        parts += found
        counts += counted
    return parts, counts


def _around(columns: StrategyColumns, values: Floats) -> tuple[int, list[Task]]:
    """Return the cluster of the best strategy, and tasks that search the meshes of its best ones in full."""
    found: dict[Degrees, None] = {}
    order = columns.order(values).tolist()
    cluster = int(columns.cluster[order[0]]) if order else 0
    for row in order:
        if len(found) == _AROUND or not np.isfinite(values[row]):
            break
        if columns.cluster[row] == cluster:
            found[Degrees(**{name: int(getattr(columns, name)[row]) for name in ("tp", "cp", "pp", "ep")})] = None
    return cluster, [Task(degrees=(at,), whole=True) for at in found]


def _tasks(problem: Problem) -> list[Task]:
    """Return the parts of a problem; for branch and bound, first find a good time in a small part of the space."""
    if not np.isfinite(problem.reach):
        return problem.tasks()
    probe = replace(problem, axes=_probe(problem.axes, problem.request), reach=float("inf"))
    bulk, best, doubts = bulk_of(probe), Best(), Doubts(problem.request)
    for task in probe.tasks():
        columns, _ = explore(bulk, probe, task)
        best = best.least(doubts.shortest(columns))
    if problem.lean:  # no technique is doubted if memory is the objective
        best = Best(best.fastest_s, best.fastest_s, best.fastest_s)
    return problem.tasks(best)


def _probe(axes: Axes, request: Request) -> Axes:
    """Return a small part of the space that usually holds a good strategy: common choices."""

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
        "recompute": some(axes.recompute, ("none", leanest())),
        "offload": axes.offload[:1],
        "cut": axes.cut[:1],
    }
    return replace(axes, **chosen)  # type: ignore[arg-type]


def _worked_off(
    number: int, problem: Problem, tasks: Sequence[Task], means: _Means
) -> tuple[list[StrategyColumns], SpaceCounts]:
    """Return the results of all tasks on a cluster, in order; results in the journal are not computed again."""
    found: dict[int, tuple[StrategyColumns, SpaceCounts]] = {}
    with search_journal(means.resume, problem) if means.resume else nullcontext() as journal:
        if journal:
            kept = {n: journal.parts.get(part_name(task)) for n, task in enumerate(tasks)}
            found = {n: from_json(value, journal.path) for n, value in kept.items() if value is not None}
            means.warnings += journal.warnings
        left = [n for n in range(len(tasks)) if n not in found]

        def done(index: int, result: tuple[StrategyColumns, SpaceCounts]) -> None:
            found[left[index]] = result
            if journal:
                journal.keep(part_name(tasks[left[index]]), to_json(*result))
            means.tell(len(found))

        means.engine.run("traincast.searching.explore:worker", problem, [tasks[n] for n in left], done=done)
    means.finished += len(tasks)
    counts = SpaceCounts()
    for n in range(len(tasks)):
        counts += found[n][1]
    columns = [found[n][0] for n in range(len(tasks))]
    return [replace(each, cluster=np.full(len(each), number, dtype=np.int16)) for each in columns], counts
