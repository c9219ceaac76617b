"""The best of what was found, forecast in full and put in order, and how sure that order is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.errors import StrategyError
from traincast.estimate import CostModel
from traincast.forecast import Forecast, forecast, job_of
from traincast.report import JobSettings
from traincast.report.job import power_w, price_per_s
from traincast.searching.answer import Candidate, Naive
from traincast.searching.columns import Columns
from traincast.searching.front import pareto_rows
from traincast.searching.naive import naive_choice, naive_strategies
from traincast.searching.problem import Limits, Objective
from traincast.searching.sureness import chances, drawn_seconds, ties
from traincast.strategy import Request

Floats = npt.NDArray[np.float64]

_DRAWN: Final = 12
_FRONT: Final = 12
"""How many candidates are compared in draws at least, and how many points of a front are shown."""
_OPERATOR_GRAIN: Final = 3
"""So many of the best are forecast operator by operator."""
_MOST_TASKS: Final = 3_000_000
"""Unless a plan would have more tasks than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Makes candidates of rows of ``columns``; those that ``accepts`` refuses are left out."""

    requests: Sequence[Request]
    columns: Columns
    limits: Limits
    settings: JobSettings
    objective: Objective
    cost_model: CostModel | None
    accepts: Callable[[Request], bool] | None

    def best(self, values: Floats, count: int) -> list[tuple[Forecast, Candidate]]:
        """The best rows by ``values``, forecast in full, in the order of what these forecasts say."""
        found: list[tuple[Forecast, Candidate]] = []
        for row in self.columns.order(values).tolist():
            if len(found) == count or not math.isfinite(values[row]):
                break
            request = self._request(row)
            if self.accepts is None or self.accepts(request):
                made = forecast(request, cost_model=self.cost_model)
                candidate = self._candidate(made)
                if candidate.job is None or self.limits.allow(candidate.job):
                    found.append((made, candidate))
        return sorted(found, key=lambda each: self.objective_of(each[1]))

    def _request(self, row: int) -> Request:
        request = self.requests[int(self.columns.cluster[row])]
        return replace(request, strategy=self.columns.strategy(row, request.strategy))

    def _candidate(self, made: Forecast) -> Candidate:
        report, cluster = made.report, made.request.cluster
        busy = (report.compute_s + report.optimizer_s) / report.step_s if report.step_s else 0.0
        if self.limits.num_steps is not None:
            job = job_of(made, self.limits.num_steps, self.settings)
            return Candidate(request=made.request, report=report, cost=job.cost, energy_j=job.energy_j, job=job)
        return Candidate(
            request=made.request,
            report=report,
            cost=report.step_s * price_per_s(cluster),
            energy_j=report.step_s * power_w(cluster, busy),
        )

    def objective_of(self, candidate: Candidate) -> float:
        """What a candidate is judged by; of equal ones the one with less memory is better."""
        match self.objective:
            case "time":
                return candidate.job.job_s if candidate.job else candidate.report.step_s
            case "cost":
                return candidate.cost
            case "energy":
                return candidate.energy_j
            case "memory":
                return candidate.report.peak_memory_bytes

    def compared(
        self, ranked: Sequence[tuple[Forecast, Candidate]], top: int, seed: int
    ) -> tuple[list[Candidate], float]:
        """The candidates with their chances and ties, the first ones confirmed at the grain of operators.

        Memory is counted, not estimated: there the first is the best, and equals are ties.
        """
        made = [each for each, _ in ranked]
        candidates = [candidate for _, candidate in ranked]
        for n, each in enumerate(made[:_OPERATOR_GRAIN]):
            self._confirm(each, candidates[n])
        if self.objective == "memory":
            least = self.objective_of(candidates[0])
            alike = [c.report.peak_memory_bytes <= least * (1.0 + 1e-9) for c in candidates]
            return [
                replace(c, tie=a and n > 0, chance=float(n == 0))
                for n, (c, a) in enumerate(zip(candidates, alike, strict=True))
            ], 1.0
        count = max(top, _DRAWN)
        drawn = drawn_seconds(made[:count], seed=seed)
        scale = np.array([self.objective_of(c) / c.report.step_s for c in candidates[:count]])
        likely, tied = chances(drawn * scale), ties(drawn * scale)
        result = [replace(c, chance=float(p), tie=bool(t)) for c, p, t in zip(candidates, likely, tied, strict=False)]
        return [*result, *candidates[count:]], float(likely[0])

    def _confirm(self, made: Forecast, candidate: Candidate) -> None:
        """Forecast operator by operator what was found segment by segment: both must say the same."""
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
        """Some candidates, evenly spaced, that no other beats in step time, memory and cost; the fastest first."""
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
                yield self._candidate(forecast(request, cost_model=self.cost_model))

    def naive(self, first: float) -> Iterator[Naive]:
        """What people would have done on the first cluster, and how far behind it is."""
        for name, request in naive_strategies(self.requests[0]):
            try:
                chosen = replace(request, strategy=naive_choice(name, request))
                candidate = self._candidate(forecast(chosen, cost_model=self.cost_model))
            except StrategyError as error:
                yield Naive(name=name, candidate=None, reason=str(error))
                continue
            reason = "" if candidate.report.fits else "does not fit"
            behind = self.objective_of(candidate) / first - 1.0
            yield Naive(name=name, candidate=replace(candidate, behind=behind), reason=reason)
