"""``traincast testbed study``: runs a grid of cells, forecasts each from the events of its run, and compares the two.

Runs and their events are measurements: they are kept in the study's folder, and a later study in the same folder uses
them. Forecasts and comparisons are made anew every time. A cell that fails is named, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from traincast.ask import Progress, verb
from traincast.errors import TraincastError
from traincast.estimate.events.file import read_card
from traincast.files import check_folder, make_folder
from traincast.journal import Journal
from traincast.testbed.ask import StudyAsk
from traincast.testbed.compare import compare
from traincast.testbed.events import EVENTS
from traincast.testbed.folder import read_run_folder
from traincast.testbed.request import rate_of
from traincast.testbed.study.grid import StudyCell, cells_of
from traincast.testbed.study.outcome import CellOutcome, Study
from traincast.testbed.study.output import write_study

_JOURNAL: Final = "study.journal"
_WARMUP: Final = 3


@verb(StudyAsk)
def study_testbed(ask: StudyAsk) -> Study:
    """Run models, strategies and networks on this machine, forecast each from the events of its run, and compare.

    This is ``traincast testbed study``. Without choices, the whole grid of the study runs; ``quick`` runs five
    strategies of one model on one network. ``models`` are names of the study's models or specs, ``rates`` those of all
    links, such as ``200Mbit``. The folder ``output`` gets runs, tables and plots; a study in the same folder resumes.
    """
    cells = cells_of(models=ask.models, strategies=ask.strategies, networks=ask.rates, ranks=ask.ranks, quick=ask.quick)
    folder = Path(ask.output)
    check_folder(folder)
    found = study(cells, folder, progress=ask.progress, say=ask.say)
    write_study(found, folder)
    return found


class CellRunner(Protocol):
    """Measures a cell; the study calls it for cells that its folder does not have."""

    def run(self, cell: StudyCell, folder: Path) -> None:
        """Train the cell, and write the folder of the run with its events."""


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
