"""``validate steps`` and ``validate dp-steps``: forecasts of measured steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from traincast.cluster import Cluster
from traincast.errors import StrategyError, TraincastError
from traincast.estimate import CostModel
from traincast.forecast import Forecast, forecast
from traincast.measured import Measured, dp_steps, source_of, steps
from traincast.measured.calibrations import calibrated_by, may_have_seen, with_calibration, without_calibration
from traincast.measured.dialect import Dialect
from traincast.measured.table import completed, failed_otherwise, rows_of
from traincast.strategy.memory.fits import at_share, factor
from traincast.strategy.memory.peak import reported
from traincast.tables import Row, RowError
from traincast.validating.outcome import RowOutcome, RowValidation

Progress = Callable[[int, int], None]
_LOADING_SPREAD: Final = 1.6
"""Ratio between the time of loading samples and the ends of its interval: hosts differ by this much."""


def validate_steps(
    path: Path,
    *,
    cost_model: CostModel | None = None,
    cluster: Cluster | None = None,
    calibrated: bool = True,
    allow_code: bool = False,
    dialect: Dialect | None = None,
    progress: Progress | None = None,
) -> RowValidation:
    """Forecast every row of a table of language-model steps and compare time and memory.

    Rows ran on ``cluster`` if it is given, otherwise on the machines that they describe. With ``calibrated`` false,
    no calibration is used. ``allow_code`` lets rows name models and schedules that are Python code. ``dialect`` says
    how the table writes its columns and words.
    """
    rows = completed(rows_of(path, needs=steps.NEEDS if cluster is None else steps.NEEDS_ON_A_CLUSTER, dialect=dialect))

    def outcome(index: int, row: Row) -> RowOutcome:
        run = steps.read_run(index, row, cluster=cluster, allow_code=allow_code)
        judged = _judged(run, group=source_of(row), cost_model=cost_model, calibrated=calibrated)
        return replace(judged, maybe_seen=True) if judged.calibrated_by and cluster is not None else judged

    outcomes = _outcomes(rows, outcome, group=source_of, progress=progress)
    otherwise = failed_otherwise(rows, [steps.has_run(row) for row in rows])
    pairs = zip(outcomes, otherwise, strict=True)
    return RowValidation(rows=tuple(replace(row, failed_otherwise=found) for row, found in pairs), with_memory=True)


def validate_dp_steps(
    path: Path,
    *,
    cost_model: CostModel | None = None,
    calibrated: bool = True,
    dialect: Dialect | None = None,
    progress: Progress | None = None,
) -> RowValidation:
    """Forecast every row of a table of data-parallel steps, written in a ``dialect``, and compare the times."""
    rows = rows_of(path, needs=dp_steps.NEEDS, dialect=dialect)

    def outcome(index: int, row: Row) -> RowOutcome:
        run = dp_steps.read_run(index, row)
        return _judged(
            run, group=dp_steps.group_of(row), cost_model=cost_model, calibrated=calibrated, with_memory=False
        )

    outcomes = _outcomes(rows, outcome, group=dp_steps.group_of, progress=progress)
    return RowValidation(rows=tuple(outcomes), with_memory=False)


def _outcomes(
    rows: Sequence[Row],
    outcome: Callable[[int, Row], RowOutcome],
    *,
    group: Callable[[Row], str],
    progress: Progress | None,
) -> list[RowOutcome]:
    """Return one outcome for each row, in order; a row that cannot be forecast is skipped with its reason."""
    outcomes = []
    for index, row in enumerate(rows):
        try:
            outcomes.append(outcome(index, row))
        except (RowError, TraincastError) as error:
            outcomes.append(RowOutcome.skipped(index, source=group(row), reason=str(error)))
        if progress is not None:
            progress(index + 1, len(rows))
    return outcomes


def _judged(
    run: Measured, *, group: str, cost_model: CostModel | None, calibrated: bool, with_memory: bool = True
) -> RowOutcome:
    """Forecast one measured run.

    If the run failed and its strategy is impossible, the forecast counts as "does not fit".
    """
    use = with_calibration if calibrated else without_calibration
    request = use(run.request)
    by = calibrated_by(run.request) if calibrated else ""
    outcome = RowOutcome(
        index=run.index,
        source=group,
        measured=run.seconds,
        ran=run.ran if with_memory else None,
        assumed=run.assumed,
        calibrated_by=by,
        maybe_seen=bool(by) and may_have_seen(by, run.source),
    )
    try:
        made = forecast(request, cost_model=cost_model)
    except StrategyError as error:
        if run.ran:
            raise
        return replace(outcome, fits=False, fits_probability=0.0, reason=str(error))
    report = made.report
    others = [forecast(use(other), cost_model=cost_model).report.step_s for other in run.others]
    outcome = replace(
        outcome,
        predicted=max(report.step_s, run.loading_s),
        low=max(min(report.low_s, *others, math.inf), run.loading_s / _LOADING_SPREAD),
        high=max(report.high_s, *others, run.loading_s * _LOADING_SPREAD),
        fits=report.fits,
        fits_probability=report.fits_probability,
    )
    if with_memory:
        return _with_reported_memory(outcome, run, made)
    return replace(
        outcome,
        predicted_memory=report.peak_memory_bytes,
        memory_low=report.memory_low_bytes,
        memory_high=report.memory_high_bytes,
    )


def _with_reported_memory(outcome: RowOutcome, run: Measured, made: Forecast) -> RowOutcome:
    """Return ``outcome`` with the memory that was measured, and what the runtime would report of the forecast's."""
    memories, runtime = made.lowered.memory, made.request.runtime
    shown = partial(reported, runtime=runtime, capacity=made.request.cluster.device.memory_bytes)
    return replace(
        outcome,
        measured_memory=run.memory_bytes,
        predicted_memory=shown(memories),
        memory_low=shown([at_share(m, runtime, factor(runtime, 0.05)) for m in memories]),
        memory_high=shown([at_share(m, runtime, factor(runtime, 0.95)) for m in memories]),
    )
