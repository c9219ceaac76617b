"""One measured run beside its forecast: where the forecast's time goes, and which parameters change it most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from traincast.calibrating.parameters import NAMES, PARAMETERS, Prior, calibration_at, matters
from traincast.calibrating.runs import MeasuredRun, prepare_run
from traincast.cluster import Calibration, Cluster
from traincast.errors import RequestError
from traincast.forecast import forecast
from traincast.measured import Measured
from traincast.measured.calibrations import with_calibration, without_calibration
from traincast.measured.dialect import Dialect
from traincast.measured.steps import NEEDS_ON_A_CLUSTER, read_timed_run
from traincast.measured.table import completed, rows_of
from traincast.report import Report
from traincast.tables import RowError

_TENTH: Final = float(np.log(1.1))
_LEAST: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How the forecast of a step depends on one parameter.

    ``per_tenth`` is the change of the step time, in per cent, if the parameter grows by a tenth. ``to_match`` is the
    factor on this parameter alone that makes the forecast equal to the measurement (0: no factor from 0.1 to 10 does).
    """

    name: str
    meaning: str
    per_tenth: float
    to_match: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One measured run beside its forecast; times in seconds.

    ``seconds_by_part`` is the uncalibrated time of each part of the step. ``sensitivities`` are in descending order.
    """

    index: int
    measured_s: float
    report: Report
    seconds_by_part: dict[str, float]
    sensitivities: tuple[Sensitivity, ...]
    assumed: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Forecast over measured, minus one."""
        return self.report.step_s / self.measured_s - 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "index": self.index,
            "measured_s": self.measured_s,
            "error": self.error,
            "report": self.report.to_dict(),
            "seconds_by_part": self.seconds_by_part,
            "sensitivities": [asdict(s) for s in self.sensitivities],
            "assumed": list(self.assumed),
        }


def explain_row(
    path: Path,
    index: int,
    *,
    cluster: Cluster | None = None,
    calibrated: bool = True,
    allow_code: bool = False,
    dialect: Dialect | None = None,
) -> Explanation:
    """Explain row ``index`` (from 0) of a table of measured steps.

    The run took place on ``cluster`` if it is given, otherwise on the machine that the row describes. With
    ``calibrated`` false, no calibration is used. ``dialect`` says how the table writes its columns and words. A row
    that cannot be read is refused.
    """
    rows = completed(rows_of(path, needs=NEEDS_ON_A_CLUSTER, dialect=dialect))
    if index >= len(rows):
        raise RequestError(f"row {index} is not in {path}: it has rows 0 to {len(rows) - 1}")
    try:
        run = read_timed_run(index, rows[index], cluster=cluster, allow_code=allow_code)
    except RowError as error:
        raise RequestError(f"row {index} of {path} cannot be explained: {error}") from error
    request = with_calibration(run.request) if calibrated else without_calibration(run.request)
    return explain(replace(run, request=request))


def explain(measured: Measured) -> Explanation:
    """Explain the forecast of one measured run, with the calibration that its cluster has."""
    made = forecast(measured.request)
    run = prepare_run(measured)
    found = [_sensitivity(run, i) for i in range(len(NAMES)) if matters(NAMES[i], run.by_part, nodes=run.nodes)]
    found = sorted((s for s in found if abs(s.per_tenth) > 100.0 * _LEAST), key=lambda s: -abs(s.per_tenth))
    return Explanation(
        index=measured.index,
        measured_s=run.seconds,
        report=made.report,
        seconds_by_part={name: seconds for name, seconds in run.by_part.items() if seconds > 0.0},
        sensitivities=tuple(found),
        assumed=measured.assumed,
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


def _factor(at: Callable[[float], float], target: float) -> float:
    """Return the factor on a parameter for which ``at`` gives ``target``, by bisection: ``at`` never falls."""
    low, high = -float(np.log(10.0)), float(np.log(10.0))
    if not at(low) <= target <= at(high):
        return 0.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if at(middle) < target else (low, middle)
    return float(np.exp(0.5 * (low + high)))
