"""The step time of one plan for many sets of estimates: search and calibration ask for it thousands of times.

The columns are laid out once. A call then runs two compiled loops: the costs of overlaps and segments
(:mod:`traincast.strategy.costs`), and the executor. The result is that of :func:`traincast.simulate.simulate`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traincast.simulate.executor import execute_compiled
from traincast.strategy.costs import CostTable
from traincast.strategy.plan import Plan

Floats = npt.NDArray[np.float64]


class Evaluator:
    """Calls with the seconds of a plan's works return its step time in seconds."""

    def __init__(self, plan: Plan) -> None:
        self._table = CostTable(plan.composition(), len(plan.works))
        self._cost = plan.cost.astype(np.intp)
        self._duration = np.empty(plan.num_tasks)
        self._tasks = (plan.lane_start, plan.lanes, plan.predecessor_start, plan.predecessors)
        self._free = np.empty(plan.num_lanes)
        self._start, self._end = np.empty(plan.num_tasks), np.empty(plan.num_tasks)

    def __call__(self, seconds: Floats, *, interference: float = 1.0) -> float:
        """Seconds of the step; ``interference`` multiplies the slowdown of every work that traffic runs beside."""
        self._table.fill(seconds, interference).take(self._cost, out=self._duration, mode="clip")
        self._free[:] = 0.0
        execute_compiled(
            0, len(self._cost), 0.0, self._duration, *self._tasks, self._free, self._start, self._end
        )  # fmt: skip
        return float(self._end.max(initial=0.0))
