"""``traincast testbed study``: runs a grid of cells, forecasts each from events of two ranks, and compares the two.

Runs and events are measurements: they are kept in the study's folder, and a later study in the same folder uses them.
Forecasts and comparisons are made anew every time. A cell that fails is named, and the others go on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from traincast.errors import TraincastError
from traincast.files import make_folder
from traincast.journal import Journal
from traincast.testbed.compare import compare
from traincast.testbed.folder import read_run_folder
from traincast.testbed.request import REAL, rate_of
from traincast.testbed.study_grid import StudyCell

_JOURNAL: Final = "study.journal"
_WARMUP: Final = 3
Progress = Callable[[int, int], None]


class CellRunner(Protocol):
    """Measures a cell; the study calls it for cells that its folder does not have."""

    def run(self, cell: StudyCell, folder: Path) -> None:
        """Train the cell, and write the folder of the run."""

    def measure_events(self, cell: StudyCell, run: Path, events: Path) -> int:
        """Measure the works of the cell that the folder ``events`` lacks; return the number of processes used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutcome:
    """What a cell measured and what was forecast; errors as in :class:`traincast.testbed.outcome.Comparison`.

    ``run_s`` and ``events_s`` are the seconds that the run and the measuring of its events took, with as many
    processes as ``ranks`` and ``events_processes``.
    """

    name: str
    kind: str
    model: str
    strategy: str
    network: str
    compute: str
    ranks: int
    steps: int
    measured_s: float
    predicted_s: float
    batch_error: float
    repeat_cv: float
    activity_error: float
    activity_noise: float
    span_shift: float | None
    job_measured_s: float
    job_predicted_s: float
    run_s: float
    events_s: float
    events_processes: int
    warnings: tuple[str, ...] = ()

    @property
    def job_error(self) -> float:
        """The signed error of the time of all counted steps."""
        return self.job_predicted_s / self.job_measured_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """Mean figures of the cells of one kind; ``worst_batch_error`` is the largest absolute one."""

    cells: int
    batch_error: float
    worst_batch_error: float
    activity_error: float
    activity_noise: float
    repeat_cv: float
    job_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCost:
    """What events cost against full runs, in seconds of one process, for all strategies of a model on a network."""

    model: str
    network: str
    strategies: int
    events: float
    runs: float

    @property
    def share(self) -> float:
        """The cost of the events divided by that of the runs."""
        return self.events / self.runs if self.runs else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The outcome of a study: cells that were compared, and for those that failed the reason."""

    done: tuple[CellOutcome, ...]
    failed: dict[str, str]
    warnings: tuple[str, ...] = ()

    def summaries(self) -> dict[str, StudySummary]:
        """Return the mean figures of each kind of cells."""
        kinds = dict.fromkeys(cell.kind for cell in self.done)
        return {kind: summary_of([cell for cell in self.done if cell.kind == kind]) for kind in kinds}

    def costs(self) -> tuple[StudyCost, ...]:
        """Return the cost of events for each model and network of the grid."""
        grid = [cell for cell in self.done if cell.kind == "emulated"]
        found = []
        for model, network in dict.fromkeys((cell.model, cell.network) for cell in grid):
            cells = [cell for cell in grid if (cell.model, cell.network) == (model, network)]
            found.append(
                StudyCost(
                    model=model,
                    network=network,
                    strategies=len(cells),
                    events=sum(cell.events_s * cell.events_processes for cell in cells),
                    runs=sum(cell.run_s * cell.ranks for cell in cells),
                )
            )
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """Return the study as JSON shows it."""
        return {
            "cells": [{**asdict(cell), "job_error": cell.job_error} for cell in self.done],
            "summary": {kind: asdict(summary) for kind, summary in self.summaries().items()},
            "costs": [{**asdict(cost), "share": cost.share} for cost in self.costs()],
            "failed": self.failed,
            "warnings": list(self.warnings),
        }


def summary_of(cells: Sequence[CellOutcome]) -> StudySummary:
    """Return the mean figures of ``cells``; errors are absolute."""

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return StudySummary(
        cells=len(cells),
        batch_error=mean([abs(cell.batch_error) for cell in cells]),
        worst_batch_error=max(abs(cell.batch_error) for cell in cells),
        activity_error=mean([cell.activity_error for cell in cells]),
        activity_noise=mean([cell.activity_noise for cell in cells]),
        repeat_cv=mean([cell.repeat_cv for cell in cells]),
        job_error=mean([abs(cell.job_error) for cell in cells]),
    )


def study(
    cells: Sequence[StudyCell],
    output: Path,
    *,
    runner: CellRunner | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Study:
    """Measure and compare ``cells`` in the folder ``output``; ``say`` is told about each finished or failed cell."""
    make_folder(output)
    chosen = runner or ThisMachine()
    done: list[CellOutcome] = []
    failed: dict[str, str] = {}
    with Journal(output / _JOURNAL, kind="a study of the testbed", key="measurements") as journal:
        for number, cell in enumerate(cells):
            if progress is not None:
                progress(number, len(cells))
            try:
                done.append(_cell(cell, output, journal, chosen))
                line = f"{done[-1].batch_error:+.1%} of {done[-1].measured_s:.3f} s"
            except Exception as error:  # one cell must not stop the others
                kind = "" if isinstance(error, TraincastError) else f"{type(error).__name__}: "
                failed[cell.name] = kind + " ".join(str(error).split())
                line = f"failed: {failed[cell.name]}"
            if say is not None:
                say(f"{number + 1} of {len(cells)} · {cell.name}: {line}")
        warnings = tuple(journal.warnings)
    if progress is not None:
        progress(len(cells), len(cells))
    return Study(done=tuple(done), failed=failed, warnings=warnings)


def _cell(cell: StudyCell, output: Path, journal: Journal, runner: CellRunner) -> CellOutcome:
    """Run a cell unless the journal has it, measure the events that are missing, and compare."""
    run = output / "runs" / cell.folder
    events = output / "events" / cell.events_folder
    for folder in (run.parent, events.parent):
        make_folder(folder)
    key = repr(cell)
    if not (run / "run.json").exists() or f"run {key}" not in journal.parts:
        seconds = _timed(lambda: runner.run(cell, run))[0]
        journal.keep(f"run {key}", seconds)
    if f"events {key}" not in journal.parts:
        seconds, processes = _timed(lambda: runner.measure_events(cell, run, events))
        journal.keep(f"events {key}", [seconds if processes else 0.0, processes])
    events_s, processes = journal.parts[f"events {key}"]
    record = read_run_folder(run)
    found = compare(run, events=events if events.is_dir() else None).comparison
    total = sum(record.steps_s)
    return CellOutcome(
        name=cell.name,
        kind=cell.kind,
        model=cell.model,
        strategy=cell.strategy,
        network=cell.network,
        compute=cell.compute,
        ranks=cell.ranks,
        steps=len(record.steps_s),
        measured_s=found.measured_s,
        predicted_s=found.predicted_s,
        batch_error=found.batch_error,
        repeat_cv=found.repeat_cv,
        activity_error=found.activity_error,
        activity_noise=found.activity_noise,
        span_shift=found.span_shift,
        job_measured_s=total,
        job_predicted_s=found.predicted_s * len(record.steps_s),
        run_s=float(journal.parts[f"run {key}"]),
        events_s=float(events_s),
        events_processes=int(processes),
        warnings=found.warnings,
    )


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    start = time.monotonic()
    result = act()
    return time.monotonic() - start, result


class ThisMachine:
    """Measures cells on this machine: runs with as many ranks as their strategy has, events with two ranks."""

    def run(self, cell: StudyCell, folder: Path) -> None:
        """Train the cell, and write the folder of the run."""
        from traincast.testbed.request import RunRequest
        from traincast.testbed.run import run

        request = RunRequest(
            model=cell.spec,
            ranks=cell.ranks,
            strategy=cell.strategy,
            global_batch=cell.global_batch,
            compute=cell.compute,
            network=cell.network,
            link_rates=tuple((rank, rate_of(rate)) for rank, rate in cell.links),
            slow=cell.slow,
            steps=cell.steps,
            warmup=_WARMUP,
        )
        run(request, folder)

    def measure_events(self, cell: StudyCell, run: Path, events: Path) -> int:
        """Measure the works of the cell that the folder ``events`` lacks; return the number of processes used."""
        from traincast.profiling.events import measure_events
        from traincast.profiling.events_request import EventsRequest

        record = read_run_folder(run)
        request = EventsRequest(
            model=cell.spec,
            cluster=str(run / record.cluster),
            strategy=cell.strategy,
            global_batch=cell.global_batch,
            precision=record.precision,
            runtime=record.runtime,
            compute=cell.compute,
            network=cell.events_network,
        )
        launcher = _Launcher(rate_of(cell.events_network), emulated=cell.compute != REAL)
        return measure_events(request, events, launcher=launcher).processes


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Starts processes that measure events, each on a node of its own with links of ``rate`` bytes per second.

    They run as those of the run do: before all others if compute is emulated.
    """

    rate: float
    emulated: bool

    def __call__(self, arguments: Sequence[str], *, ranks: int) -> int:
        """Return 0; raises if a process fails."""
        from traincast.testbed.launch import launch
        from traincast.testbed.network import loopback, shaped

        words = [sys.executable, "-m", "traincast", *arguments]
        with loopback(ranks) if self.rate == float("inf") else shaped([self.rate] * ranks) as network:
            launch([words] * ranks, network, urgent=self.emulated)
        return 0
