"""Where the time of one measured run went according to its forecast, and what its error depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from traincast.calibrating.parameters import NAMES, PARAMETERS, Prior, calibration_at, matters
from traincast.calibrating.runs import Measured, MeasuredRun, prepare_run
from traincast.cluster import Calibration
from traincast.forecast import forecast
from traincast.report import Report

_TENTH: Final = float(np.log(1.1))
_LEAST: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """What a step would take if one parameter were a tenth more, and what that parameter would have to be alone.

    ``per_tenth`` is the change of the step time in per cent; ``to_match`` the factor on the parameter with which the
    forecast would be what was measured (0: no factor within ten does it).
    """

    name: str
    meaning: str
    per_tenth: float
    to_match: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One measured run beside its forecast."""

    index: int
    measured_s: float
    report: Report
    seconds_by_part: dict[str, float]
    sensitivities: tuple[Sensitivity, ...]

    @property
    def error(self) -> float:
        """Forecast over measured, minus one."""
        return self.report.step_s / self.measured_s - 1.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "index": self.index,
            "measured_s": self.measured_s,
            "error": self.error,
            "report": self.report.as_dict(),
            "seconds_by_part": self.seconds_by_part,
            "sensitivities": [asdict(s) for s in self.sensitivities],
        }


def explain(measured: Measured) -> Explanation:
    """Why the forecast of a measured run is what it is."""
    made = forecast(measured.request)
    run = prepare_run(measured)
    found = [_sensitivity(run, i) for i in range(len(NAMES)) if matters(NAMES[i], run.by_part, nodes=run.nodes)]
    found = sorted((s for s in found if abs(s.per_tenth) > 100.0 * _LEAST), key=lambda s: -abs(s.per_tenth))
    return Explanation(
        index=measured.index,
        measured_s=measured.seconds,
        report=made.report,
        seconds_by_part={name: seconds for name, seconds in run.by_part.items() if seconds > 0.0},
        sensitivities=tuple(found),
    )


def _sensitivity(run: MeasuredRun, i: int) -> Sensitivity:
    calibration = run.measured.request.cluster.calibration or Calibration()
    values = Prior.around(calibration).mean
    base = run.simulated(calibration_at(values, like=calibration))

    def at(shift: float) -> float:
        moved = values.copy()
        moved[i] += shift
        return run.simulated(calibration_at(moved, like=calibration))

    return Sensitivity(
        name=NAMES[i],
        meaning=PARAMETERS[i].meaning,
        per_tenth=100.0 * (at(_TENTH) / base - 1.0),
        to_match=_factor(at, run.seconds),
    )


def _factor(at: Any, target: float) -> float:
    """The factor on a parameter with which ``at`` gives ``target``, by bisection; it grows with the parameter."""
    low, high = -float(np.log(10.0)), float(np.log(10.0))
    if not at(low) <= target <= at(high):
        return 0.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if at(middle) < target else (low, middle)
    return float(np.exp(0.5 * (low + high)))


def uncalibrated(measured: Measured) -> Measured:
    """The same run, with nothing that calibration taught."""
    cluster = replace(measured.request.cluster, calibration=None)
    return replace(measured, request=replace(measured.request, cluster=cluster))
