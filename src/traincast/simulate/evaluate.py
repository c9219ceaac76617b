"""The step time of one plan for many estimates: what search and calibration ask thousands of times.

Everything that does not change with the seconds is laid out once; a call is a compiled loop over works, overlaps
and segments, and the executor's. It says what :func:`traincast.simulate.simulate` says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled
from traincast.simulate.executor import execute_compiled
from traincast.strategy.plan import Plan, ragged

Floats = npt.NDArray[np.float64]


class Evaluator:
    """Calls with the seconds of a plan's works; returns the step time."""

    def __init__(self, plan: Plan) -> None:
        self._num_works = len(plan.works)
        behind = ragged([overlap.behind for overlap in plan.overlaps])
        overlaps = (
            np.array([overlap.work for overlap in plan.overlaps], dtype=np.int64),
            np.array([(o.share, o.interference, float(o.waited)) for o in plan.overlaps]).reshape(-1, 3),
            *behind,
        )
        starts = np.cumsum([0, *(len(segment.works) for segment in plan.segments)])
        empty = np.zeros(0, dtype=np.int64)
        segments = (
            starts.astype(np.int64),
            np.concatenate([empty, *(segment.launches for segment in plan.segments)]),
            np.concatenate([empty, *(segment.works for segment in plan.segments)]),
        )
        self._columns = (*overlaps, *segments)
        self._cost = plan.cost
        self._tasks = (plan.lane_start, plan.lanes, plan.predecessor_start, plan.predecessors)
        self._costs = np.empty(plan.num_costs)
        self._free = np.empty(plan.num_lanes)
        self._start, self._end = np.empty(plan.num_tasks), np.empty(plan.num_tasks)

    def __call__(self, seconds: Floats, *, interference: float = 1.0) -> float:
        """Seconds of the step; what works are slowed down by beside traffic is multiplied by ``interference``."""
        self._costs[: self._num_works] = seconds
        _fill_compiled(self._num_works, *self._columns, self._costs, interference)
        self._free[:] = 0.0
        execute_compiled(self._costs[self._cost], *self._tasks, self._free, self._start, self._end)
        return float(self._end.max(initial=0.0))


def _fill(  # noqa: PLR0917  (Numba takes positional arguments)
    num_works: int,
    overlap_work: Any,
    overlap_terms: Any,
    behind_start: Any,
    behind: Any,
    segment_start: Any,
    launches: Any,
    works: Any,
    costs: Any,
    interference: float,
) -> None:
    """Fill the costs of overlaps and segments, which follow those of the works."""
    at = num_works
    for number in range(len(overlap_work)):
        here, there = costs[overlap_work[number]], 0.0
        for i in range(behind_start[number], behind_start[number + 1]):
            there += costs[behind[i]]
        there *= overlap_terms[number, 0]
        costs[at] = interference * overlap_terms[number, 1] * min(here, there)
        if overlap_terms[number, 2] > 0.0:
            costs[at] += max(0.0, here - there)
        at += 1
    for number in range(len(segment_start) - 1):
        host, device, lead = 0.0, 0.0, -1e300
        for i in range(segment_start[number], segment_start[number + 1]):
            host += costs[launches[i]]
            lead = max(lead, host - device)
            device += costs[works[i]]
        costs[at], costs[at + 1], costs[at + 2] = lead, device, max(0.0, host - lead)
        at += 3


_fill_compiled = Compiled(_fill)
