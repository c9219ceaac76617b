"""Measured runs prepared for fitting: each is lowered and estimated once, then simulated thousands of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Calibration
from traincast.errors import TraincastError
from traincast.estimate import CostModel
from traincast.estimate.calibrated import Parts
from traincast.estimate.power import estimated
from traincast.forecast import default_cost_model
from traincast.measured import Measured
from traincast.report.outlook import StepTraits, look_at
from traincast.simulate import Evaluator, simulate
from traincast.strategy import Plan, lower
from traincast.strategy.memory.peak import reported
from traincast.tables import Row, RowError

Floats = npt.NDArray[np.float64]

_MOST_REASONS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredRun:
    """A measured run that can be simulated under any calibration in less than a millisecond.

    ``look`` has the features that a correction may depend on. ``by_part`` has the uncalibrated seconds of each part of
    the step.
    """

    measured: Measured
    estimates: Floats
    parts: Parts
    evaluator: Evaluator
    look: StepTraits
    by_part: Mapping[str, float] = field(default_factory=dict)
    predicted_memory: float = 0.0

    @property
    def seconds(self) -> float:
        """Measured seconds of one step."""
        seconds = self.measured.seconds
        assert seconds is not None, "prepare_run refuses runs without a time"
        return seconds

    @property
    def nodes(self) -> int:
        """Number of nodes that it ran on."""
        return self.measured.request.cluster.num_nodes

    def simulated(self, calibration: Calibration, *, stalled: bool = False) -> float:
        """Return the seconds of one step under ``calibration``, without its correction."""
        seconds = self.parts.scaled(self.estimates, calibration, stalled=stalled)
        step = self.evaluator(seconds, interference=calibration.interference)
        step = calibration.step(step, nodes=self.nodes)
        if stalled and calibration.stall is not None:
            step += calibration.stall.seconds * self.look.messages
        return step


def prepare_run(measured: Measured, cost_model: CostModel | None = None) -> MeasuredRun:
    """Lower and estimate one measured run; a run without a time is refused."""
    if measured.seconds is None:
        raise RowError("no step time is stated")
    request = replace(measured.request, cluster=replace(measured.request.cluster, calibration=None))
    model = cost_model or default_cost_model(request.runtime.kernels.measured_with)
    lowered = lower(request)
    plan = lowered.plan
    seconds = estimated(model, plan.works, request.cluster).seconds
    parts = Parts(plan.works, request.cluster)
    timeline = simulate(plan, seconds)
    return MeasuredRun(
        measured=measured,
        estimates=seconds,
        parts=parts,
        evaluator=Evaluator(plan),
        look=look_at(request, timeline, seconds),
        by_part={**parts.seconds_by_part(seconds, plan.work_counts()), "interference": _slowed_down(plan, seconds)},
        predicted_memory=reported(lowered.memory, request.runtime, capacity=request.cluster.device.memory_bytes),
    )


def _slowed_down(plan: Plan, seconds: Floats) -> float:
    """Return the seconds by which traffic slows the works beside it, counting each kind of overlap once."""
    return sum(replace(o, waited=False).cost(seconds) for o in plan.overlaps if o.interference > 0.0)


def prepare_runs(
    rows: Sequence[Row],
    measure: Callable[[int, Row], Measured],
    *,
    cost_model: CostModel | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[MeasuredRun], dict[int, str]]:
    """Return the runs of all rows that can be forecast, and the reason for each other row, by row number."""
    runs: list[MeasuredRun] = []
    skipped: dict[int, str] = {}
    for index, row in enumerate(rows):
        try:
            runs.append(prepare_run(measure(index, row), cost_model))
        except (RowError, TraincastError) as error:
            skipped[index] = str(error)[:_MOST_REASONS]
        if progress is not None:
            progress(index + 1, len(rows))
    return runs, skipped
