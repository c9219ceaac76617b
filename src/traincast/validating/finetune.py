"""``validate finetune``: forecasts of measured fine-tuning runs, their time and their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from traincast.errors import TraincastError
from traincast.estimate import CostModel
from traincast.forecast import forecast
from traincast.measured import source_of
from traincast.measured.calibrations import calibrated_by, may_have_seen, with_calibration, without_calibration
from traincast.measured.dialect import Dialect
from traincast.measured.memory import MEMORY_KINDS, MemoryKind
from traincast.measured.table import rows_of
from traincast.measured.tuning import rows as finetune
from traincast.measured.tuning.rows import MeasuredTuning
from traincast.report import Report
from traincast.strategy import Memory, Request, Runtime
from traincast.strategy.memory.allocations import allocations_of, simulate
from traincast.strategy.memory.fits import at_share, factor
from traincast.strategy.prepare import memory_by_stage, prepare
from traincast.tables import RowError
from traincast.validating.outcome import RowOutcome, RowValidation


def validate_finetune(
    path: Path,
    *,
    cost_model: CostModel | None = None,
    calibrated: bool = True,
    dialect: Dialect | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RowValidation:
    """Forecast every row of a table of fine-tuning runs and compare time and memory.

    Memory is compared in the kind that a row states: allocated, reserved, or as nvidia-smi shows it. With
    ``calibrated`` false, no calibration is used. ``dialect`` says how the table writes its columns and words.
    """
    rows = rows_of(path, needs=finetune.NEEDS, dialect=dialect)
    times = lru_cache(maxsize=64)(lambda request: forecast(request, cost_model=cost_model).report)
    outcomes = []
    for index, row in enumerate(rows):
        try:
            found = finetune.read_tuning(index, row)
            made = _judged(found, group=source_of(row), forecast_of=times, calibrated=calibrated)
            outcomes.append(_later(made, finetune.start_up(row)))
        except (RowError, TraincastError) as error:
            outcomes.append(RowOutcome.skipped(index, source=source_of(row), reason=str(error)))
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
    prepared, runtime = prepare(longest), longest.runtime
    memories = memory_by_stage(longest, prepared)
    ratio = reserved_ratio(found, longest, memories)
    low, high = ([at_share(m, runtime, factor(runtime, p)) for m in memories] for p in (0.05, 0.95))
    middle = counted(memories, found.kind, runtime, ratio=ratio)
    least, most = (found.kind, found.kind) if found.kind_stated else (MEMORY_KINDS[0], MEMORY_KINDS[-1])
    below, above = counted(low, least, runtime, ratio=ratio), counted(high, most, runtime, ratio=ratio)
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


def reserved_ratio(found: MeasuredTuning, request: Request, memories: Sequence[Memory]) -> float:
    """Return the bytes that the allocator reserves per byte of activations and gradients, from a simulation.

    ``request`` is that of the batch whose memory is forecast. 1 for a row that states allocated memory.
    """
    if not found.batches:
        return 1.0
    fullest = max(memories, key=lambda memory: memory.tensors)
    room = request.cluster.device.memory_bytes - (fullest.tensors - _moving(fullest, request.runtime)) - fullest.other
    return _simulated(request, found.batches, max(0.0, room + fullest.parts.get("fragmentation", 0.0)))


@lru_cache(maxsize=512)
def _simulated(request: Request, batches: tuple[tuple[float, ...], ...], room: float) -> float:
    step = allocations_of(request, prepare(request))
    runs = [
        simulate(step, lengths, accumulated=request.strategy.num_microbatches, capacity=room) for lengths in batches
    ]
    return max(1.0, sum(run.reserved for run in runs) / len(runs) / simulate(step, (1.0,)).allocated)


def _moving(memory: Memory, runtime: Runtime) -> float:
    """Return the bytes that are allocated and freed in every step."""
    return memory.activations + (memory.gradients if runtime.memory.frees_gradients else 0.0)


def counted(memories: Sequence[Memory], kind: MemoryKind, runtime: Runtime, *, ratio: float = 1.0) -> float:
    """Return the bytes that a tool shows of the fullest rank, or of the first if the runtime reports that one.

    ``allocated`` counts tensors, except paged ones; ``reserved`` also the allocator's cache, ``ratio`` bytes for each
    byte that is allocated and freed in every step; ``nvidia-smi`` everything on the device.
    """
    shown = []
    for memory in memories:
        cached = (ratio - 1.0) * _moving(memory, runtime)
        idle = memory.parts.get("fragmentation", 0.0)
        paged = memory.parts.get("paged optimizer states", 0.0)
        beside = {"allocated": -paged, "reserved": cached - paged, "nvidia-smi": memory.other - idle + cached}
        shown.append(memory.tensors + beside[kind])
    return shown[0] if runtime.memory.reports == "first" else max(shown)


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
