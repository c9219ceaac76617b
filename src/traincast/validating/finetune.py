"""``validate finetune``: forecasts of measured fine-tuning runs, their time and their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from traincast.errors import TraincastError
from traincast.estimate import CostModel
from traincast.forecast import forecast
from traincast.measured import finetune
from traincast.measured.calibrations import calibrated_by, may_have_seen, with_calibration, without_calibration
from traincast.measured.finetune import Cache, MeasuredTuning
from traincast.measured.finetune_habits import USUAL, Habits
from traincast.measured.finetune_words import MemoryKind
from traincast.report import Report
from traincast.strategy import Memory, Request, Runtime
from traincast.strategy.fits import at_share, factor
from traincast.strategy.prepare import memory_by_stage, prepare
from traincast.tables import RowError, read_rows
from traincast.validating.outcome import RowOutcome, RowValidation


def validate_finetune(
    path: Path,
    *,
    cost_model: CostModel | None = None,
    calibrated: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> RowValidation:
    """Forecast every row of a table of fine-tuning runs and compare time and memory.

    Memory is compared in the kind that a row states: allocated, reserved, or as nvidia-smi shows it. With
    ``calibrated`` false, no calibration is used.
    """
    rows = read_rows(path, needs=finetune.NEEDS)
    times = lru_cache(maxsize=64)(lambda request: forecast(request, cost_model=cost_model).report)
    outcomes = []
    for index, row in enumerate(rows):
        try:
            found = finetune.read_tuning(index, row)
            made = _judged(found, group=finetune.group_of(row), forecast_of=times, calibrated=calibrated)
            outcomes.append(_later(made, finetune.start_up(row)))
        except (RowError, TraincastError) as error:
            outcomes.append(RowOutcome.skipped(index, source=finetune.group_of(row), reason=str(error)))
        if progress is not None:
            progress(index + 1, len(rows))
    return RowValidation(rows=tuple(outcomes), with_memory=True)


def _judged(
    found: MeasuredTuning, *, group: str, forecast_of: Callable[[Request], Report], calibrated: bool
) -> RowOutcome:
    run = found.run
    use = with_calibration if calibrated else without_calibration
    by = calibrated_by(run.request) if calibrated else ""
    report = forecast_of(use(run.request))
    longest = use(found.longest)
    memories, runtime = memory_by_stage(longest, prepare(longest)), longest.runtime
    low, high = ([at_share(m, factor(runtime, p)) for m in memories] for p in (0.05, 0.95))
    middle, below, above = (counted(m, found.kind, runtime, cache=found.cache) for m in (memories, low, high))
    capacity = longest.cluster.device.memory_bytes
    return RowOutcome(
        index=run.index,
        source=group,
        measured=run.seconds,
        predicted=report.step_s,
        low=report.low_s,
        high=report.high_s,
        ran=True,
        fits=report.fits,
        fits_probability=report.fits_probability,
        assumed=run.assumed,
        calibrated_by=by,
        maybe_seen=bool(by) and may_have_seen(by, run.source),
        memory_kind=found.kind,
        measured_memory=run.memory_bytes,
        predicted_memory=min(middle, capacity),
        memory_low=min(below, capacity),
        memory_high=min(above, capacity),
    )


def counted(
    memories: Sequence[Memory], kind: MemoryKind, runtime: Runtime, *, cache: Cache, habits: Habits = USUAL
) -> float:
    """Return the bytes that a tool shows of the fullest rank, or of the first if the runtime reports that one.

    ``allocated`` counts tensors; ``reserved`` also the allocator's ``cache``; ``nvidia-smi`` everything on the device.
    """
    shown = []
    for memory in memories:
        kept, working = (memory.parts.get(name, 0.0) for name in ("kept for backward", "working"))
        idle = memory.parts.get("fragmentation", 0.0)
        added = {"emptied": 0.0, "grown": habits.grown * working, "steady": habits.steady * (kept + working)}
        cached = idle + added[cache]
        beside = {"allocated": 0.0, "reserved": cached, "nvidia-smi": memory.other - idle + cached}
        shown.append(memory.tensors + beside[kind])
    return shown[0] if runtime.reports == "first" else max(shown)


def _later(outcome: RowOutcome, seconds: float) -> RowOutcome:
    """Return ``outcome`` with ``seconds`` added to its forecast."""
    if not seconds or outcome.predicted is None or outcome.low is None or outcome.high is None:
        return outcome
    return replace(
        outcome,
        predicted=outcome.predicted + seconds,
        low=outcome.low + seconds,
        high=outcome.high + seconds,
    )
