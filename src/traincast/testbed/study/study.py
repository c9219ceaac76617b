"""``traincast testbed study``: runs a grid of cells, forecasts each from the events of its run, and compares the two.

Runs and their events are measurements: they are kept in the study's folder, and a later study in the same folder uses
them. Forecasts and comparisons are made anew every time. A cell that fails is named, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from traincast.errors import TraincastError
from traincast.estimate.events.file import read_card
from traincast.files import check_folder, make_folder
from traincast.journal import Journal
from traincast.testbed.compare import compare
from traincast.testbed.events import EVENTS
from traincast.testbed.folder import read_run_folder
from traincast.testbed.request import rate_of
from traincast.testbed.study.grid import StudyCell, cells_of

_JOURNAL: Final = "study.journal"
_WARMUP: Final = 3
Progress = Callable[[int, int], None]


def study_testbed(
    *,
    quick: bool = False,
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
    rates: Sequence[str] = (),
    ranks: int | None = None,
    output: str | Path = "testbed-study",
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Study:
    """Run models, strategies and networks on this machine, forecast each from the events of its run, and compare.

    This is ``traincast testbed study``. Without choices, the whole grid of the study runs; ``quick`` runs five
    strategies of one model on one network. ``models`` are names of the study's models or specs, ``rates`` those of all
    links, such as ``200Mbit``. The folder ``output`` gets runs, tables and plots; a study in the same folder resumes.
    ``say`` is told about every finished or failed cell.
    """
    from traincast.testbed.study.output import write_study

    cells = cells_of(models=models, strategies=strategies, networks=rates, ranks=ranks, quick=quick)
    folder = Path(output)
    check_folder(folder)
    found = study(cells, folder, progress=progress, say=say)
    write_study(found, folder)
    return found


class CellRunner(Protocol):
    """Measures a cell; the study calls it for cells that its folder does not have."""

    def run(self, cell: StudyCell, folder: Path) -> None:
        """Train the cell, and write the folder of the run with its events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutcome:
    """What a cell measured and what was forecast; errors as in :class:`traincast.testbed.outcome.Comparison`.

    ``noise`` is that of the machine. ``run_s`` and ``events_s`` are the seconds that the run and the measuring of its
    events took, with as many processes as ``ranks`` and ``events_processes``. If the machine could not carry the cell,
    ``cannot_carry`` says why.
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
    noise: float
    activity_error: float
    activity_noise: float
    span_shift: float | None
    job_measured_s: float
    job_predicted_s: float
    run_s: float
    events_s: float
    events_processes: int
    cannot_carry: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def job_error(self) -> float:
        """The signed error of the time of all counted steps."""
        return self.job_predicted_s / self.job_measured_s - 1.0

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the batch error is larger than twice the noise."""
        return abs(self.batch_error) > 2.0 * self.noise

    def to_dict(self) -> dict[str, Any]:
        """Return the cell as JSON shows it; errors are ``None`` if the machine could not carry it."""
        told = {**asdict(self), "job_error": self.job_error}
        if self.cannot_carry:
            told |= dict.fromkeys(("batch_error", "activity_error", "span_shift", "job_error"))
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """Mean figures of the cells of one kind; ``worst_batch_error`` is the largest absolute one.

    ``beyond_noise`` is the number of cells whose batch error is larger than twice their noise.
    """

    cells: int
    batch_error: float
    worst_batch_error: float
    activity_error: float
    activity_noise: float
    noise: float
    beyond_noise: int
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
    """The outcome of a study: cells that were compared, and for those that failed the reason.

    Figures are of the cells that the machine could carry.
    """

    done: tuple[CellOutcome, ...]
    failed: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def carried(self) -> tuple[CellOutcome, ...]:
        """The cells that the machine could carry."""
        return tuple(cell for cell in self.done if not cell.cannot_carry)

    def summaries(self) -> dict[str, StudySummary]:
        """Return the mean figures of each kind of cells."""
        kinds = dict.fromkeys(cell.kind for cell in self.carried)
        return {kind: summary_of([cell for cell in self.carried if cell.kind == kind]) for kind in kinds}

    def costs(self) -> tuple[StudyCost, ...]:
        """Return the cost of events for each model and network of the grid."""
        grid = [cell for cell in self.carried if cell.kind == "emulated"]
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

    def to_dict(self) -> dict[str, Any]:
        """Return the study as JSON shows it."""
        return {
            "cells": [cell.to_dict() for cell in self.done],
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
        noise=mean([cell.noise for cell in cells]),
        beyond_noise=sum(cell.is_beyond_noise for cell in cells),
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
                reason = done[-1].cannot_carry
                line = f"{done[-1].batch_error:+.1%} of {done[-1].measured_s:.3f} s"
                line = f"this machine cannot carry it: {reason}" if reason else line
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
    """Run a cell unless the journal has it, and compare."""
    run = output / "runs" / cell.folder
    make_folder(run.parent)
    key = f"run with events {cell!r}"
    if not (run / "run.json").exists() or key not in journal.parts:
        start = time.monotonic()
        runner.run(cell, run)
        journal.keep(key, time.monotonic() - start)
    record = read_run_folder(run)
    found = compare(run).comparison
    cost = read_card(run / EVENTS).cost if found.events else {"seconds": 0.0, "process_seconds": 0.0}
    processes = round(cost["process_seconds"] / cost["seconds"]) if cost["seconds"] else 0
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
        noise=found.noise,
        activity_error=found.activity_error,
        activity_noise=found.activity_noise,
        span_shift=found.span_shift,
        job_measured_s=total,
        job_predicted_s=found.predicted_s * len(record.steps_s),
        run_s=float(journal.parts[key]) - cost["seconds"],
        events_s=cost["seconds"],
        events_processes=processes,
        cannot_carry=found.cannot_carry,
        warnings=found.warnings,
    )


class ThisMachine:
    """Measures cells on this machine."""

    def run(self, cell: StudyCell, folder: Path) -> None:
        """Train the cell, and write the folder of the run with its events."""
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
            events=True,
        )
        run(request, folder)
