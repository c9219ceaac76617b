"""What ``traincast profile`` shows while it measures and afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincast.cli.output import console
from traincast.errors import TraincastError

if TYPE_CHECKING:
    from traincast.profiling.operators import OperatorProfile, Progress


_SHOWN_FAILURES = 12


def facts_of(result: OperatorProfile) -> dict[str, object]:
    """What ``--json`` says of a run, but for its summary."""
    return {
        "file": str(result.output),
        "rows": len(result.rows),
        "measured": result.measured,
        "kept": result.kept,
        "left": result.left,
        "failures": [{"what": f.what, "reason": f.reason, "count": f.count} for f in result.failures],
        "warnings": list(result.warnings),
    }


def show_rest(result: OperatorProfile) -> None:
    """What was not measured and why, and where the table is."""
    from traincast.profiling.timing import SUSPECT_DISPERSION

    out = console()
    if result.failures:
        number = sum(failure.count for failure in result.failures)
        out.print(f"not measured: {number}")
        ordered = sorted(result.failures, key=lambda failure: -failure.count)
        for failure in ordered[:_SHOWN_FAILURES]:
            times = f" ({failure.count} times)" if failure.count > 1 else ""
            out.print(f"  {failure.what}{times}: {failure.reason}", markup=False)
        if len(ordered) > _SHOWN_FAILURES:
            out.print(f"  … and {len(ordered) - _SHOWN_FAILURES} more reasons; --json lists all")
    if result.left:
        out.print(f"left for the next run: {result.left}")
    for warning in result.warnings:
        click.echo(f"warning: {warning}", err=True)
    out.print(
        f"{result.measured} rows measured, {result.kept} kept; suspect is a dispersion (interquartile range over "
        f"median) above {SUSPECT_DISPERSION:.0%}"
    )
    out.print(f"table: {result.output}", markup=False)


@contextmanager
def progress_on_terminal() -> Iterator[Progress | None]:
    """A progress bar on standard error, where that is a terminal."""
    if not sys.stderr.isatty() or os.environ.get("RANK", "0") != "0":
        yield None
        return
    from rich.progress import Progress as Bar

    with Bar(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("profile")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what or "profile")


@contextmanager
def saying_what_is_kept(output: Path) -> Iterator[None]:
    """After an interruption, say where the rows are."""
    from traincast.profiling.output import journal_path

    try:
        yield
    except KeyboardInterrupt:
        if journal_path(output).exists() and os.environ.get("RANK", "0") == "0":
            click.echo(
                f"finished rows are kept in {journal_path(output)}: the same command goes on from there", err=True
            )
        raise


@contextmanager
def only_rank_0_speaks() -> Iterator[None]:
    """All ranks find the same fault; one of them says it."""
    try:
        yield
    except TraincastError:
        if os.environ.get("RANK", "0") != "0":
            sys.exit(2)
        raise
