"""Ranks the best strategies by their full forecasts: the chance that each is the best, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.ask import JobSettings
from traincast.cluster import Cluster
from traincast.errors import StrategyError
from traincast.estimate import CostModel
from traincast.forecast import Forecast, forecast, job_of
from traincast.graph import Operator
from traincast.report import JobForecast, Report
from traincast.report.job import power_w, price_per_s
from traincast.searching.answer import Candidate, Naive, Place
from traincast.searching.ask import Objective
from traincast.searching.bulk.columns import StrategyColumns
from traincast.searching.doubts import EXPECTED, Doubts, lacking
from traincast.searching.odds import Odds, odds
from traincast.searching.problem import Limits
from traincast.searching.space import AXES
from traincast.searching.sureness import chances, drawn_seconds, median_regrets, ratios, regrets, ties
from traincast.strategy import Request, Strategy, choose_micro_batch, choose_strategy
from traincast.strategy.choose import expert_groups

_MOST_TENSOR: Final = 8
_BY_HABIT: Final = "first that fits, by habit"


def naive_strategies(request: Request) -> Iterator[tuple[str, Request]]:
    """Yield the name and the request of each naive strategy; :func:`naive_choice` completes the strategy."""
    devices = request.cluster.num_devices
    base = request.strategy
    inside = max(d for d in range(1, _MOST_TENSOR + 1) if request.cluster.domain_devices % d == 0)
    plain = replace(base, dp=devices)
    shares = request.runtime.defaults.sequence_parallel and inside > 1
    yield "data parallel", replace(request, strategy=plain)
    if devices > 1:
        yield "sharded data parallel (ZeRO-3)", replace(request, strategy=replace(plain, zero=3))
    experts = expert_groups(request, plain)[0]
    if experts > 1:
        yield "data and expert parallel", replace(request, strategy=replace(plain, ep=experts))
    if inside > 1 and devices % inside == 0:
        within = replace(base, dp=devices // inside, tp=inside, sequence_parallel=shares)
        yield "tensor parallel in a node", replace(request, strategy=within)
    yield _BY_HABIT, request


def naive_choice(name: str, request: Request) -> Strategy:
    """Return the strategy of a naive request with the largest micro batch that fits; refuse one that is not legal."""
    return choose_strategy(request) if name == _BY_HABIT else choose_micro_batch(request)


Ints = npt.NDArray[np.intp]


def pareto_rows(values: Floats) -> Ints:
    """Return the Pareto-optimal rows of ``values``: one column per objective, less is better.

    A row is left out if another is at least as good in all columns. Of equal rows, the first is kept. The result is
    sorted by the first objective.
    """
    left = np.lexsort(values.T[::-1])
    kept: list[int] = []
    while len(left):
        first, left = left[0], left[1:]
        kept.append(int(first))
        left = left[(values[left] < values[first]).any(axis=1)]
    return np.array(kept, dtype=np.intp)


def influence(columns: StrategyColumns, objective: Floats) -> dict[str, dict[str, float]]:
    """Return, for each axis with more than one value, the least objective with each value."""
    found: dict[str, dict[str, float]] = {}
    for name in AXES:
        values = columns.cut > 0 if name == "cut" else getattr(columns, name)
        each, where = np.unique(values, return_index=True)
        if len(each) < 2:
            continue
        best = [float(objective[values == value].min(initial=np.inf)) for value in each]
        found[name] = {
            str(columns.value(name, int(at))): least
            for at, least in zip(where, best, strict=True)
            if np.isfinite(least)
        }
    return found


Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_DRAWN: Final = 12
_FRONT: Final = 12
"""Least number of candidates compared in draws, and greatest number of points of the front."""
_FAR: Final = 3.0
"""A cluster whose best takes more than this many times the first is not compared in draws: it cannot be the best."""
_TRIED: Final = 4
"""If candidates miss the limits, at most this many times the wanted number are forecast."""
_EXTRA: Final = 2
"""Number of the fastest of all, and of the best with evidence, that are forecast in full in any case."""
_CONVINCING: Final = 0.95
"""A strategy without evidence comes first if it beats the best one with evidence in this share of the draws."""
_HALVINGS: Final = 40
_OPERATOR_GRAIN: Final = 3
"""Number of the best strategies that are also forecast operator by operator."""
_MOST_TASKS: Final = 3_000_000
"""A plan with more tasks than this is not forecast operator by operator."""


class Made(NamedTuple):
    """A full forecast, and the candidate made from it."""

    forecast: Forecast
    candidate: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Makes candidates from rows of ``columns``; requests that ``accepts`` refuses are left out.

    Forecasts are cached.
    """

    requests: Sequence[Request]
    columns: StrategyColumns
    limits: Limits
    settings: JobSettings
    objective: Objective
    cost_model: CostModel | None
    accepts: Callable[[Request], bool] | None
    kept: dict[tuple[str, int, str, Strategy], Made] = field(default_factory=dict, repr=False)
    doubts: list[Doubts] = field(default_factory=list, repr=False)
    lacking: Counts = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Count the techniques without evidence of every row."""
        if not self.doubts:
            self.doubts.extend(map(Doubts, self.requests))
        found = np.zeros(len(self.columns), dtype=np.int64)
        for number, doubts in enumerate(self.doubts):
            here = np.flatnonzero(self.columns.cluster == number)
            found[here] = doubts.counted(self.columns.take(here))
        object.__setattr__(self, "lacking", found)

    @property
    def factors(self) -> Floats:
        """The expected time of every row over its forecast."""
        return EXPECTED ** self.lacking.astype(np.float64)

    def contenders(self, values: Floats, count: int) -> list[Made]:
        """Return the best rows by ``values`` within the limits, the fastest of all, and the best with evidence."""
        found = self.best(values, count, within=True)
        if self.objective != "memory":
            found += self.best(values / self.factors, _EXTRA, within=True)
            found += self.best(np.where(self.lacking == 0, values, np.inf), _EXTRA, within=True)
        every = {id(each.candidate): each for each in found}.values()
        return sorted(every, key=lambda each: self.objective_of(each.candidate))

    def best(self, values: Floats, count: int, *, within: bool = False) -> list[Made]:
        """Return the ``count`` best rows by ``values`` with full forecasts, sorted by the objective in these forecasts.

        With ``within``, candidates that miss the limits are left out.
        """
        found: list[Made] = []
        tried = 0
        for row in self.columns.order(values).tolist():
            if len(found) == count or tried == _TRIED * count or not math.isfinite(values[row]):
                break
            request = self._request(row)
            if self.accepts is None or self.accepts(request):
                tried += 1
                made = self._made(request)
                if not within or self.allows(made.candidate):
                    found.append(made)
        return sorted(found, key=lambda each: self.objective_of(each.candidate))

    def made(self, candidate: Candidate) -> Made:
        """Return a candidate with the forecast it was made from."""
        return self._made(candidate.request)

    def _request(self, row: int) -> Request:
        request = self.requests[int(self.columns.cluster[row])]
        return replace(request, strategy=self.columns.strategy(row, request.strategy))

    def _made(self, request: Request) -> Made:
        cluster = request.cluster
        key = cluster.name, cluster.num_nodes, cluster.device.name, request.strategy
        if key not in self.kept:
            made = forecast(request, cost_model=self.cost_model)
            self.kept[key] = Made(made, self._candidate(made))
        return self.kept[key]

    def _candidate(self, made: Forecast) -> Candidate:
        report, cluster, limits = made.report, made.request.cluster, self.limits
        busy = (report.compute_s + report.optimizer_s) / report.step_s if report.step_s else 0.0
        evidence = self._doubts_of(cluster).of(made.request.strategy)
        expected = EXPECTED ** len(lacking(evidence))
        if limits.num_steps is None:
            return Candidate(
                request=made.request,
                report=report,
                evidence=evidence,
                expected=expected,
                cost=report.step_s * price_per_s(cluster),
                energy_j=report.step_s * power_w(cluster, busy),
            )
        job = job_of(made, limits.num_steps, self.settings)
        likely = _odds(report, cluster)
        in_time = in_budget = None
        if limits.deadline_s is not None:
            in_time = likely.chance(self._step_within(made, limits.deadline_s))
        if limits.budget is not None:
            paid_s = replace(limits, deadline_s=None).job_s(cluster)
            in_budget = likely.chance(self._step_within(made, paid_s))
        return Candidate(
            request=made.request,
            report=report,
            evidence=evidence,
            expected=expected,
            cost=job.cost,
            energy_j=job.energy_j,
            job=job,
            in_time=in_time,
            in_budget=in_budget,
        )

    def _doubts_of(self, cluster: Cluster) -> Doubts:
        """Return the doubts about strategies on one of the clusters."""
        same = [n for n, request in enumerate(self.requests) if request.cluster is cluster]
        same += [n for n, request in enumerate(self.requests) if request.cluster == cluster]
        return self.doubts[same[0] if same else 0]

    def _step_within(self, made: Forecast, job_s: float) -> float:
        """Return the longest step with which the job takes at most ``job_s``; 0 if its other parts take longer."""
        assert self.limits.num_steps is not None
        if not math.isfinite(job_s):
            return math.inf
        low, high = 0.0, job_s / self.limits.num_steps
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            within = job_of(made, self.limits.num_steps, self.settings, step_s=middle).job_s <= job_s
            low, high = (middle, high) if within else (low, middle)
        return low

    def allows(self, candidate: Candidate) -> bool:
        """Return whether a candidate meets the limits with the required chance."""
        chances = [chance for chance in (candidate.in_time, candidate.in_budget) if chance is not None]
        return all(chance >= self.limits.confidence for chance in chances)

    def job_at(self, made: Made, chance: float) -> JobForecast:
        """Return the job at the step time that is not exceeded with probability ``chance``."""
        assert self.limits.num_steps is not None
        step_s = _odds(made.candidate.report, made.forecast.request.cluster).quantile(chance)
        return job_of(made.forecast, self.limits.num_steps, self.settings, step_s=step_s)

    def excess(self, made: Made) -> float:
        """Return the job's time at the required chance over the time that its limits allow."""
        job = self.job_at(made, self.limits.confidence)
        return job.job_s / self.limits.job_s(made.forecast.request.cluster)

    def most_s(self, made: Made) -> float:
        """Return the longest step by the bulk evaluation with which a job on the same cluster meets the limits."""
        if not self.limits.some:
            return math.inf
        report, cluster = made.candidate.report, made.forecast.request.cluster
        within = self._step_within(made.forecast, self.limits.job_s(cluster))
        return within * made.forecast.timeline.step_s / _odds(report, cluster).quantile(self.limits.confidence)

    def objective_of(self, candidate: Candidate) -> float:
        """Return the expected value of the objective: seconds, dollars, joules or bytes."""
        return self.forecast_of(candidate) * (1.0 if self.objective == "memory" else candidate.expected)

    def forecast_of(self, candidate: Candidate) -> float:
        """Return the forecast of the objective, whatever the evidence."""
        match self.objective:
            case "time" | "robust":
                return candidate.job.job_s if candidate.job else candidate.report.step_s
            case "cost":
                return candidate.cost
            case "energy":
                return candidate.energy_j
            case "memory":
                return candidate.report.peak_memory_bytes

    def compared(
        self, ranked: Sequence[Made], places: Sequence[Place], top: int, seed: int
    ) -> tuple[list[Candidate], list[Place], float, str]:
        """Return candidates and places with their chances and ties, and the chance that the first is the best.

        The first candidates are checked against forecasts operator by operator. The best of every place, the fastest of
        all and the best with evidence take part. If the objective is memory nothing is drawn: the first has chance 1,
        and equal ones are ties. The last result says why the first has a technique without evidence, if it has one.
        """
        for each in ranked[:_OPERATOR_GRAIN]:
            self._confirm(each.forecast, each.candidate)
        candidates = [each.candidate for each in ranked]
        first = self.objective_of(candidates[0])
        if self.objective == "memory":
            alike = [c.report.peak_memory_bytes <= first * (1.0 + 1e-9) for c in candidates]
            return (
                [
                    replace(c, tie=a and n > 0, chance=float(n == 0))
                    for n, (c, a) in enumerate(zip(candidates, alike, strict=True))
                ],
                [replace(p, chance=float(p.best is candidates[0])) for p in places],
                1.0,
                "",
            )
        count = max(top, _DRAWN * (2 if self.objective == "robust" else 1))
        near = (p.best for p in places if p.status == "ok" and p.best and self.objective_of(p.best) <= _FAR * first)
        evident = next((c for c in candidates if not c.marked), None)
        extra = (min(candidates, key=self.forecast_of), *([evident] if evident else []))
        drawn = list({id(c): c for c in (*candidates[:count], *extra, *near)}.values())
        scale = np.array([self.forecast_of(c) / c.report.step_s for c in drawn])
        seconds = scale * drawn_seconds(
            [self.made(c).forecast for c in drawn], without=[lacking(c.evidence) for c in drawn], seed=seed
        )
        order, reason = self._ordered(drawn, seconds)
        drawn, seconds = [drawn[n] for n in order], seconds[:, order]
        likely, tied, lost = chances(seconds), ties(seconds), regrets(seconds)
        judged = [
            replace(c, chance=float(p), tie=bool(t), regret=float(r))
            for c, p, t, r in zip(drawn, likely, tied, lost, strict=True)
        ]
        chance = {id(c): each for c, each in zip(drawn, judged, strict=True)}
        listed = {id(c) for c in candidates}
        inside = [each for c, each in zip(drawn, judged, strict=True) if id(c) in listed]
        result = [*inside, *(c for c in candidates if id(c) not in chance)]
        first, between = self.objective_of(result[0]), ratios(seconds)
        return result, [self._placed(p, drawn, likely, between, first) for p in places], float(likely[0]), reason

    def _ordered(self, drawn: Sequence[Candidate], seconds: Floats) -> tuple[list[int], str]:
        """Return the order of candidates, and why the first has a technique without evidence, if it has one.

        They are in the order of the expected objective, or of their median regret if the objective is
        ``robust``. The best of those with evidence comes first unless another beats it in nearly all draws.
        """
        keys = median_regrets(seconds).tolist() if self.objective == "robust" else [self.objective_of(c) for c in drawn]
        order = sorted(range(len(drawn)), key=lambda n: (keys[n], n))
        evident = next((n for n in order if not drawn[n].marked), None)
        if evident is None:
            return order, "no strategy fits whose techniques were all used by measured runs near this one"
        if evident == order[0]:
            return order, ""
        ahead = float((seconds[:, order[0]] < seconds[:, evident]).mean())
        if ahead >= _CONVINCING:
            return order, f"it is better than the best strategy with evidence in {ahead:.0%} of the draws"
        return [evident, *(n for n in order if n != evident)], ""

    def _placed(self, place: Place, drawn: Sequence[Candidate], likely: Floats, between: Floats, first: float) -> Place:
        """Return the place with the chance that the best of all is there, and the ratio of its best to the first."""
        if place.best is None:
            return place
        place = replace(place, unmeasured=_unmeasured(self.made(place.best).forecast))
        assert place.best is not None
        best = replace(place.best, behind=self.objective_of(place.best) / first - 1.0)
        here = [n for n, c in enumerate(drawn) if c.request.cluster is place.request.cluster]
        at = [n for n in here if drawn[n] is place.best]
        if place.status != "ok" or not at:
            return replace(place, best=best)
        low, high = between[at[0]].tolist()
        best = replace(best, chance=float(likely[at[0]]), tie=bool(at[0] and low <= 1.0))
        return replace(place, best=best, chance=float(likely[here].sum()), ratio=(low, high))

    def _confirm(self, made: Forecast, candidate: Candidate) -> None:
        """Check that a forecast operator by operator gives the same step time as the one segment by segment."""
        operators = int(made.lowered.plan.work_counts().sum())
        if operators > _MOST_TASKS:
            return
        fine = forecast(made.request, cost_model=made.cost_model, grain="operator").report.step_s
        if not math.isclose(fine, candidate.report.step_s, rel_tol=1e-6):
            raise StrategyError(
                f"{made.request.strategy}: {candidate.report.step_s:.6g} s by segments, {fine:.6g} s by operators; "
                "please report this"
            )

    def front(self, values: Floats) -> Iterator[Candidate]:
        """Yield candidates of the Pareto front of step time, memory and cost, evenly spaced, the fastest first."""
        columns = self.columns
        rows = np.flatnonzero(np.isfinite(values))
        rates = np.array([price_per_s(r.cluster) for r in self.requests])[columns.cluster[rows]]
        objectives = np.stack([columns.seconds[rows], columns.memory[rows], columns.seconds[rows] * rates], axis=1)
        chosen = rows[pareto_rows(np.round(objectives, 9))]
        if len(chosen) > _FRONT:
            chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, _FRONT).round().astype(int))]
        for row in chosen.tolist():
            request = self._request(row)
            if self.accepts is None or self.accepts(request):
                yield self._made(request).candidate

    def naive(self, first: float) -> Iterator[Naive]:
        """Yield the strategies chosen without a search on the first cluster, and how far behind each is."""
        for name, request in naive_strategies(self.requests[0]):
            try:
                chosen = replace(request, strategy=naive_choice(name, request))
                candidate = self._candidate(forecast(chosen, cost_model=self.cost_model))
            except StrategyError as error:
                yield Naive(name=name, candidate=None, reason=str(error))
                continue
            reason = "" if candidate.report.fits else candidate.report.verdict
            behind = self.objective_of(candidate) / first - 1.0
            yield Naive(name=name, candidate=replace(candidate, behind=behind), reason=reason)


def _unmeasured(made: Forecast) -> float:
    """Return the share of operators' time for which no measurement exists on this device or its architecture."""
    estimates, plan = made.estimates, made.lowered.plan
    operators = np.array([isinstance(work, Operator) for work in plan.works], dtype=bool)
    spent = np.where(operators, estimates.seconds * plan.work_counts(), 0.0)
    total = float(spent.sum())
    return float(spent[estimates.unmeasured].sum()) / total if estimates.unmeasured is not None and total else 0.0


def _odds(report: Report, cluster: Cluster) -> Odds:
    return odds(report.step_s, report.low_s, report.high_s, calibrated=cluster.calibration is not None)
