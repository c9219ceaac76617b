"""Output of ``traincast profile``: progress, results, and what to do after an interruption."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincast.cli.output import console, print_table
from traincast.errors import TraincastError

if TYPE_CHECKING:
    from traincast.graph import Operator
    from traincast.profiling.output import Profile, Progress


_SHOWN_FAILURES = 12


def facts_of(result: Profile) -> dict[str, object]:
    """Return the fields that ``--json`` prints for a run, except its summary."""
    return {
        "file": str(result.output),
        "rows": len(result.rows),
        "measured": result.measured,
        "kept": result.kept,
        "left": result.left,
        "failures": [{"what": f.what, "reason": f.reason, "count": f.count} for f in result.failures],
        "warnings": list(result.warnings),
    }


def show_rest(result: Profile) -> None:
    """Print what was not measured and why, the warnings, and the path of the table."""
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
        f"{result.measured} rows measured, {result.kept} kept from earlier; suspect: dispersion (interquartile "
        f"range over median) above {SUSPECT_DISPERSION:.0%}"
    )
    out.print(f"table: {result.output}", markup=False)


@contextmanager
def progress_on_terminal() -> Iterator[Progress | None]:
    """Show a progress bar on standard error, if that is a terminal and this is rank 0."""
    if not sys.stderr.isatty() or os.environ.get("RANK", "0") != "0":
        yield None
        return
    from rich.progress import Progress as Bar

    with Bar(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("profile")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what or "profile")


@contextmanager
def saying_what_is_kept(output: Path) -> Iterator[None]:
    """After an interruption, print where the finished rows are."""
    from traincast.profiling.output import journal_path

    try:
        yield
    except KeyboardInterrupt:
        if journal_path(output).exists() and os.environ.get("RANK", "0") == "0":
            click.echo(
                f"finished rows are kept in {journal_path(output)}: the same command resumes from there", err=True
            )
        raise


@contextmanager
def only_rank_0_speaks() -> Iterator[None]:
    """Report an error on rank 0 only; the other ranks, which find the same error, exit with code 2."""
    try:
        yield
    except TraincastError:
        if os.environ.get("RANK", "0") != "0":
            sys.exit(2)
        raise


def phase_counts(operators: Sequence[Operator]) -> list[str]:
    """How many operators run forward, backward and in the update, for a table."""
    from traincast.graph import Phase

    counts = Counter(op.phase for op in operators)
    return [str(counts[phase]) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)]


def show_families() -> None:
    """Print how many operators of each type the families of convolutional networks have."""
    from traincast.profiling.operators.opset import COLUMNS, operators_by_family

    rows = [[name, *(str(n.get(c, 0)) for c in COLUMNS)] for name, n in operators_by_family().items()]
    print_table("distinct forward operators", ("family", *COLUMNS), rows, right=range(1, len(COLUMNS) + 1))
