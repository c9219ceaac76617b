"""The clusters to choose from, the result of each, and the error if none has a strategy that meets the request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster, find_device, find_node, load_cluster, node_names
from traincast.errors import NoneAcceptedError, RequestError, StrategyError, expect
from traincast.report.job import power_w, price_per_s
from traincast.searching.answer import Candidate, Place, Status
from traincast.searching.ask import Objective
from traincast.searching.bulk.columns import StrategyColumns
from traincast.searching.problem import Limits, Problem
from traincast.searching.ranking import Made, Ranking
from traincast.strategy import Request
from traincast.strategy.prepare import need_only
from traincast.units import format_bytes, format_money, format_seconds

_MOST_CLUSTERS: Final = 64


def clusters_to_try(cluster: str | Cluster, nodes: Sequence[int], devices: Sequence[str]) -> list[Cluster]:
    """Return the cluster with each number of ``nodes`` and each of ``devices``; unchanged if both are empty."""
    expect("cluster", cluster, (str, Cluster), "a name such as dgx-h100:4, or a Cluster")
    given = load_cluster(cluster, whole_nodes=bool(nodes)) if isinstance(cluster, str) else cluster
    if given.parts and (nodes or devices):
        raise RequestError(
            f"{given.name} has nodes of several kinds: neither their number nor their device can vary; "
            "omit nodes and devices"
        )
    kinds = [_with_device(given, name) for name in devices] or [given]
    found = [replace(kind, num_nodes=count) for kind in kinds for count in nodes or (given.num_nodes,)]
    if len(found) > _MOST_CLUSTERS:
        raise RequestError(f"{len(found)} clusters to choose from: at most {_MOST_CLUSTERS} are searched; name fewer")
    return found


def _with_device(given: Cluster, name: str) -> Cluster:
    """Return the node type ``name``, or the usual node type of the device ``name`` with the same number per node."""
    if name in node_names():
        return load_cluster(name)
    device = find_device(name)
    return given if device.name == given.device.name else find_node(device, given.devices_per_node)


Floats = npt.NDArray[np.float64]

MEMORY_REACH: Final = 2.0
"""If the objective is memory, strategies slower than this many times the fastest are left out."""
_FASTEST: Final = 3
_FASTEST_CALIBRATED: Final = 8
"""Number of strategies forecast in full to find the best of a cluster; more if a calibration can change their order."""
_NO_MESH: Final = (
    "no mesh of these devices divides the global batch and the model evenly within the constraints; choose another "
    "batch, another number of nodes, or fewer constraints"
)


def survey(ranking: Ranking, problems: Sequence[Problem | StrategyError]) -> tuple[list[Place], Floats]:
    """Return the result of each cluster, and the objective of every strategy: infinite if it is ruled out.

    A strategy is kept if it fits, and if the full forecasts of its cluster's fastest strategies show that a step of its
    length can meet the limits. It is checked again when it is forecast in full itself.
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
            made = ranking.best(np.where(here, columns.seconds * ranking.factors, np.inf), count)
            place, most_s[number] = _judged(place, made, ranking)
            places.append(place)
    values = objectives(columns, requests, ranking.objective, most_s, ranking.factors)
    if ranking.objective == "memory":
        places = [_leanest_in_reach(place, n, ranking, values) for n, place in enumerate(places)]
    return places, values


def objectives(
    columns: StrategyColumns,
    requests: Sequence[Request],
    objective: Objective,
    most_s: Floats,
    factors: Floats | float = 1.0,
) -> Floats:
    """Return the objective of every strategy; infinite if it does not fit or exceeds its cluster's ``most_s``.

    ``factors`` are expected times over forecasts; memory has none.
    """
    rates = np.array([rate_of(request, objective) for request in requests])
    seconds = np.where(columns.seconds <= most_s[columns.cluster], columns.seconds, np.inf)
    values = seconds * rates[columns.cluster] * factors
    if objective == "memory":
        seconds = np.where(seconds <= MEMORY_REACH * seconds.min(initial=np.inf), seconds, np.inf)
        values = columns.memory
    # The last digits of an estimate depend on which others are in the same call: the order must not depend on them.
    rounded = np.exp(np.round(np.log(np.maximum(values, 1e-30)), 7))
    found: Floats = np.where(np.isfinite(seconds), rounded, np.inf)
    return found


def rate_of(request: Request, objective: Objective) -> float:
    """Return the objective per second of a step: dollars, joules, or 1."""
    match objective:
        case "cost":
            return price_per_s(request.cluster) or 1.0
        case "energy":
            return power_w(request.cluster, 1.0)
        case _:
            return 1.0


def _judged(place: Place, made: Sequence[Made], ranking: Ranking) -> tuple[Place, float]:
    """Return the place with the best of ``made``, and the longest step, uncalibrated, that meets the limits there."""
    if not made:
        return replace(
            place, status="not accepted", reason="the given filter accepted none of the strategies on this cluster"
        ), 0.0
    allowed = [each for each in made if ranking.allows(each.candidate)]
    if not allowed:
        nearest = min(made, key=ranking.excess)
        status, reason = _beyond(nearest.candidate, ranking.limits)
        return replace(place, status=status, reason=reason, best=nearest.candidate), 0.0
    first = min(allowed, key=lambda each: ranking.objective_of(each.candidate))
    return replace(place, best=first.candidate), max(ranking.most_s(each) for each in allowed)


def _leanest_in_reach(place: Place, number: int, ranking: Ranking, values: Floats) -> Place:
    """Return the place with the strategy of least memory among those that are fast enough."""
    if place.status != "ok" or place.best is None:
        return place
    found = ranking.best(np.where(ranking.columns.cluster == number, values, np.inf), 1)
    if found:
        return replace(place, best=found[0].candidate)
    reason = (
        f"its fastest step takes {format_seconds(place.best.report.step_s)}, more than {MEMORY_REACH:g} times the "
        "fastest of all: slower strategies are left out"
    )
    return replace(place, status="slower", reason=reason)


def _beyond(candidate: Candidate, limits: Limits) -> tuple[Status, str]:
    """Return which limit a job fails to meet with the required chance, and its chance of meeting it."""
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
    """Return how much memory the strategy with the least need among those ``here`` lacks."""
    least = int(np.argmin(np.where(here, columns.memory, np.inf)))
    strategy = columns.strategy(least, problem.request.strategy)
    need = need_only(replace(problem.request, strategy=strategy))
    lacks = f"needs {format_bytes(need.forecast)} per device of the {format_bytes(problem.most_memory)} there are"
    if not need.fits:
        lacks = f"{need.verdict}: {need.shortage()}"
    return f"the leanest of {int(here.sum()):,}, {strategy}, {lacks}"


def nothing(places: Sequence[Place], ranking: Ranking) -> StrategyError:
    """Return the error that says why no strategy is left on any cluster, and which comes nearest."""
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
        return NoneAcceptedError("the given filter accepted none of the strategies found; relax it")
    return StrategyError(f"no legal strategy{on}: {place.reason}")


def _least(places: Sequence[Place], columns: StrategyColumns) -> Place:
    """Return the place that lacks the smallest share of memory."""

    def lack(number: int) -> float:
        memory = columns.memory[columns.cluster == number]
        if places[number].status != "does not fit" or not len(memory):
            return float("inf")
        return float(memory.min()) / places[number].request.cluster.device.memory_bytes

    return places[min(range(len(places)), key=lack)]


def _nearest(known: Sequence[Place], ranking: Ranking) -> str:
    """Return the text of the error for limits that no job meets: the nearest job and what it lacks."""
    limits, made = ranking.limits, {id(p): ranking.made(p.best) for p in known if p.best is not None}
    place = min(known, key=lambda p: ranking.excess(made[id(p)]))
    best, later = made[id(place)].candidate, ranking.job_at(made[id(place)], limits.confidence)
    assert best.job is not None
    asked, lacks = [], []
    if limits.deadline_s is not None and best.in_time is not None:
        asked.append(f"the deadline of {format_seconds(limits.deadline_s)}")
        lacks.append(
            f"is forecast to take {format_seconds(best.job.job_s)} and meets the deadline with a chance of "
            f"{best.in_time:.0%}; with a chance of {limits.confidence:.0%} it ends within {format_seconds(later.job_s)}"
            + _distance(later.job_s - limits.deadline_s, format_seconds, "too late")
        )
    if limits.budget is not None and best.in_budget is not None:
        asked.append(f"the budget of {format_money(limits.budget)}")
        lacks.append(
            f"is forecast to cost {format_money(best.job.cost)} and meets the budget with a chance of "
            f"{best.in_budget:.0%}; with a chance of {limits.confidence:.0%} it costs at most "
            f"{format_money(later.cost)}" + _distance(later.cost - limits.budget, format_money, "too much")
        )
    return (
        f"no strategy meets {' and '.join(asked)} with a chance of {limits.confidence:.0%}: the nearest, "
        f"{best.strategy} on {place.name}, {'; it '.join(lacks)}; use more or faster devices, raise the limits, or "
        "lower the confidence"
    )


def _distance(beyond: float, shown: Callable[[float], str], word: str) -> str:
    return f", {shown(beyond)} {word}" if beyond > 0.0 else ""
