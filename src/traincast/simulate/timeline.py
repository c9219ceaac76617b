"""Timelines: the start and end of every task of a plan; and its step time alone, for many estimates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from traincast.brief import Brief, BriefTable
from traincast.estimate import Estimates
from traincast.simulate.executor import execute, execute_compiled
from traincast.strategy.costs import CostTable
from traincast.strategy.plan import NUM_STREAMS, Plan, Stream
from traincast.tables import to_frame
from traincast.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
PlanEngine = Callable[..., tuple[Floats, Floats]]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Timeline(Brief):
    """Start and end of every task of a plan, in seconds from the start of the step.

    If the timeline is a window of a longer run, tasks are cut at its ends; ``whole_s`` then has their uncut seconds.
    """

    plan: Plan
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    whole_s: npt.NDArray[np.float64] | None = None

    def brief(self) -> BriefTable:
        """Return its size and its length."""
        return BriefTable(f"timeline of {self.plan.num_tasks:,} tasks in {format_seconds(self.step_s)}")

    @property
    def step_s(self) -> float:
        """The time at which the last task ends, in seconds."""
        return float(self.end.max()) if len(self.end) else 0.0

    def to_pandas(self) -> pd.DataFrame:
        """Return the spans as a pandas table: task, row, stream, start and end in seconds."""
        found = self.spans()
        return to_frame({field.name: getattr(found, field.name) for field in fields(found)})

    def spans(self) -> Spans:
        """One row per task and lane it holds, in program order."""
        plan = self.plan
        task = np.repeat(np.arange(plan.num_tasks), np.diff(plan.lane_start))
        return Spans(
            task=task,
            row=plan.lanes // NUM_STREAMS,
            stream=plan.lanes % NUM_STREAMS,
            start=self.start[task],
            end=self.end[task],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """A timeline as columns: each span is the time in which a task held one stream of one row."""

    task: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]

    def on(self, row: int, stream: Stream) -> Spans:
        """The spans of one lane, in order of time."""
        chosen = np.flatnonzero((self.row == row) & (self.stream == int(stream)))
        chosen = chosen[np.argsort(self.start[chosen], kind="stable")]
        return Spans(
            task=self.task[chosen],
            row=self.row[chosen],
            stream=self.stream[chosen],
            start=self.start[chosen],
            end=self.end[chosen],
        )


def simulate(plan: Plan, seconds: npt.NDArray[np.float64]) -> Timeline:
    """Executes ``plan``; ``seconds`` has the time of each of its works."""
    return executed(plan, plan.costs(seconds)[plan.cost])


def executed(plan: Plan, duration: npt.NDArray[np.float64], engine: PlanEngine = execute) -> Timeline:
    """Executes ``plan`` with the ``duration`` of each of its tasks, by an engine with the arguments of the executor."""
    start, end = engine(
        duration,
        lane_start=plan.lane_start,
        lanes=plan.lanes,
        predecessor_start=plan.predecessor_start,
        predecessors=plan.predecessors,
        num_lanes=plan.num_lanes,
    )
    return Timeline(plan=plan, start=start, end=end)


def busiest_s(plan: Plan, seconds: npt.NDArray[np.float64]) -> float:
    """The seconds of all tasks on the busiest lane; no step is shorter, since a lane runs one task after another."""
    duration = np.repeat(plan.costs(seconds)[plan.cost], np.diff(plan.lane_start))
    return float(np.bincount(plan.lanes, weights=duration, minlength=1).max())


def interval(plan: Plan, estimates: Estimates) -> tuple[float, float]:
    """The step time if every work takes the low end of its interval, and the step time if all take the high end.

    The errors of one cost model are correlated (an efficiency that is too high is too high everywhere), so they do not
    average out.
    """
    return simulate(plan, estimates.low).step_s, simulate(plan, estimates.high).step_s


class Evaluator:
    """Returns the step time of one plan for many sets of estimates: search and calibration ask thousands of times.

    The columns are laid out once. A call then runs two compiled loops: the costs of overlaps and segments
    (:mod:`traincast.strategy.costs`), and the executor. The result is that of :func:`simulate`.
    """

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
