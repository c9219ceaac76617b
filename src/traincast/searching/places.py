"""What became of each cluster that could be chosen, and what is said when none of them will do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.errors import NoneAcceptedError, StrategyError
from traincast.report.job import power_w, price_per_s
from traincast.searching.answer import Candidate, Place, Status
from traincast.searching.columns import StrategyColumns
from traincast.searching.problem import Limits, Objective, Problem
from traincast.searching.ranking import Made, Ranking
from traincast.strategy import Request
from traincast.strategy.prepare import need_only
from traincast.units import format_bytes, format_money, format_seconds

Floats = npt.NDArray[np.float64]

MEMORY_REACH: Final = 2.0
"""Where least memory is asked for, how many times the time of the fastest a strategy may take: slower is of no use."""
_FASTEST: Final = 3
_FASTEST_CALIBRATED: Final = 8
"""Of how many strategies the best of a cluster is taken; more of them where a calibration has a word in their order."""
_NO_MESH: Final = (
    "no mesh of these devices shares out the global batch and the model as asked; choose another batch, another number "
    "of nodes, or fewer constraints"
)


def survey(ranking: Ranking, problems: Sequence[Problem | StrategyError]) -> tuple[list[Place], Floats]:
    """What became of each cluster, and the objective of every strategy: infinite where it will not do.

    A strategy will do if it fits, is on a cluster whose fastest ones keep to the limits, and is not so much slower
    that it would not; each is checked again when it is forecast in full.
    """
    columns, requests = ranking.columns, ranking.requests
    places: list[Place] = []
    most_s = np.zeros(len(requests))
    for number, problem in enumerate(problems):
        here = columns.cluster == number
        fits = here & np.isfinite(columns.seconds)
        place = Place(request=requests[number], status="ok", evaluated=int(here.sum()), feasible=int(fits.sum()))
        if isinstance(problem, StrategyError):
            places.append(replace(place, status="not legal", reason=str(problem)))
        elif not here.any():
            places.append(replace(place, status="not legal", reason=_NO_MESH))
        elif not fits.any():
            places.append(replace(place, status="does not fit", reason=_leanest(columns, here, problem)))
        else:
            count = _FASTEST_CALIBRATED if requests[number].cluster.calibration else _FASTEST
            made = ranking.best(np.where(here, columns.seconds, np.inf), count)
            place, most_s[number] = _judged(place, made, ranking)
            places.append(place)
    values = objectives(columns, requests, ranking.objective, most_s)
    if ranking.objective == "memory":
        places = [_leanest_in_reach(place, n, ranking, values) for n, place in enumerate(places)]
    return places, values


def objectives(columns: StrategyColumns, requests: Sequence[Request], objective: Objective, most_s: Floats) -> Floats:
    """The objective of every strategy; infinite where it does not fit or takes more than ``most_s`` of its cluster."""
    rates = np.array([rate_of(request, objective) for request in requests])
    seconds = np.where(columns.seconds <= most_s[columns.cluster], columns.seconds, np.inf)
    values = seconds * rates[columns.cluster]
    if objective == "memory":
        seconds = np.where(seconds <= MEMORY_REACH * seconds.min(initial=np.inf), seconds, np.inf)
        values = columns.memory
    # Estimates differ in the last digits with the company they are made in: no order may depend on these.
    rounded = np.exp(np.round(np.log(np.maximum(values, 1e-30)), 7))
    found: Floats = np.where(np.isfinite(seconds), rounded, np.inf)
    return found


def rate_of(request: Request, objective: Objective) -> float:
    """What a second of a step counts for an objective: itself, dollars or joules."""
    match objective:
        case "cost":
            return price_per_s(request.cluster) or 1.0
        case "energy":
            return power_w(request.cluster, 1.0)
        case _:
            return 1.0


def _judged(place: Place, made: Sequence[Made], ranking: Ranking) -> tuple[Place, float]:
    """A place with the best of ``made``, and what a step there may take at most before calibration's correction."""
    if not made:
        return replace(
            place, status="not accepted", reason="the filter that was given accepted none of the strategies there"
        ), 0.0
    allowed = [each for each in made if ranking.allows(each.candidate)]
    if not allowed:
        nearest = min(made, key=ranking.excess)
        status, reason = _beyond(nearest.candidate, ranking.limits)
        return replace(place, status=status, reason=reason, best=nearest.candidate), 0.0
    first = min(allowed, key=lambda each: ranking.objective_of(each.candidate))
    return replace(place, best=first.candidate), max(ranking.most_s(each) for each in allowed)


def _leanest_in_reach(place: Place, number: int, ranking: Ranking, values: Floats) -> Place:
    """A place with its leanest strategy of those that are fast enough."""
    if place.status != "ok" or place.best is None:
        return place
    found = ranking.best(np.where(ranking.columns.cluster == number, values, np.inf), 1)
    if found:
        return replace(place, best=found[0].candidate)
    reason = (
        f"its fastest step takes {format_seconds(place.best.report.step_s)}, more than {MEMORY_REACH:g} times the "
        "fastest of all: least memory is looked for among those that take no longer"
    )
    return replace(place, status="slower", reason=reason)


def _beyond(candidate: Candidate, limits: Limits) -> tuple[Status, str]:
    """Which limit a job does not keep to with the chance asked for, and how likely it is to."""
    assert candidate.job is not None
    late = candidate.in_time is not None and candidate.in_time < limits.confidence
    if late and limits.deadline_s is not None:
        what = (
            f"forecast to take {format_seconds(candidate.job.job_s)}; ends within {format_seconds(limits.deadline_s)}"
        )
        return "late", f"{what} with a chance of {candidate.in_time:.0%}"
    assert limits.budget is not None
    costs, most = format_money(candidate.job.cost), format_money(limits.budget)
    return "too costly", f"forecast to cost {costs}; costs {most} at most with a chance of {candidate.in_budget:.0%}"


def _leanest(columns: StrategyColumns, here: npt.NDArray[np.bool_], problem: Problem) -> str:
    """What the strategy that needs least memory of those ``here`` lacks."""
    least = int(np.argmin(np.where(here, columns.memory, np.inf)))
    strategy = columns.strategy(least, problem.request.strategy)
    need = need_only(replace(problem.request, strategy=strategy))
    lacks = f"needs {format_bytes(need.forecast)} per device of the {format_bytes(problem.most_memory)} there are"
    if not need.fits:
        lacks = f"{need.verdict}: {need.shortage()}"
    return f"the leanest of {int(here.sum()):,}, {strategy}, {lacks}"


def nothing(places: Sequence[Place], ranking: Ranking) -> StrategyError:
    """Return the error that says why no strategy is left on any cluster, and what comes nearest."""
    known = [place for place in places if place.best is not None]
    if known:
        return StrategyError(_nearest(known, ranking))
    statuses = {place.status for place in places}
    place = next(p for p in places if p.status != "not legal") if statuses != {"not legal"} else places[0]
    on = f" on {place.name}" if len(places) > 1 else ""
    if place.status == "does not fit":
        lean = _least(places, ranking.columns)
        on = f" on {lean.name}" if len(places) > 1 else ""
        return StrategyError(
            f"no strategy fits: {lean.reason}{on}; use more devices, a smaller batch or a narrower dtype"
        )
    if place.status == "not accepted":
        return NoneAcceptedError("the filter that was given accepted none of the strategies that were found; loosen it")
    return StrategyError(f"no legal strategy{on}: {place.reason}")


def _least(places: Sequence[Place], columns: StrategyColumns) -> Place:
    """The place that lacks the smallest share of memory."""

    def lack(number: int) -> float:
        memory = columns.memory[columns.cluster == number]
        if places[number].status != "does not fit" or not len(memory):
            return float("inf")
        return float(memory.min()) / places[number].request.cluster.device.memory_bytes

    return places[min(range(len(places)), key=lack)]


def _nearest(known: Sequence[Place], ranking: Ranking) -> str:
    """What the job that comes nearest to the limits lacks."""
    limits, made = ranking.limits, {id(p): ranking.made(p.best) for p in known if p.best is not None}
    place = min(known, key=lambda p: ranking.excess(made[id(p)]))
    best, later = made[id(place)].candidate, ranking.job_at(made[id(place)], limits.confidence)
    assert best.job is not None
    asked, lacks = [], []
    if limits.deadline_s is not None and best.in_time is not None:
        asked.append(f"the deadline of {format_seconds(limits.deadline_s)}")
        lacks.append(
            f"is forecast to take {format_seconds(best.job.job_s)} and meets the deadline with a chance of "
            f"{best.in_time:.0%}; with one of {limits.confidence:.0%} it ends within {format_seconds(later.job_s)}"
            + _distance(later.job_s - limits.deadline_s, format_seconds, "too late")
        )
    if limits.budget is not None and best.in_budget is not None:
        asked.append(f"the budget of {format_money(limits.budget)}")
        lacks.append(
            f"is forecast to cost {format_money(best.job.cost)} and keeps to the budget with a chance of "
            f"{best.in_budget:.0%}; with one of {limits.confidence:.0%} it costs {format_money(later.cost)} at most"
            + _distance(later.cost - limits.budget, format_money, "too much")
        )
    return (
        f"no strategy meets {' and '.join(asked)} with a chance of {limits.confidence:.0%}: the nearest, "
        f"{best.strategy} on {place.name}, {'; it '.join(lacks)}; use more or faster devices, allow more, or ask for a "
        "lower confidence"
    )


def _distance(beyond: float, shown: Callable[[float], str], word: str) -> str:
    return f", {shown(beyond)} {word}" if beyond > 0.0 else ""
