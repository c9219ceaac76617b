"""``traincast validate steps | dp-steps``: forecasts against a table of measured runs."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincast.cli.output import console, print_json, print_table

if TYPE_CHECKING:
    from traincast.validate import Validation


@click.group(short_help="Compare forecasts with a table of measured runs.")
def validate() -> None:
    """Run the forecast over a table of measured runs and report its error per source."""


@validate.command(name="steps")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def steps(file: str, as_json: bool) -> None:
    """Steps of language models under a stated strategy (.csv or .parquet)."""
    from traincast.validate import validate_steps

    with _progress("steps") as progress:
        result = validate_steps(Path(file), progress=progress)
    _show(result, as_json=as_json)


@validate.command(name="dp-steps")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def dp_steps(file: str, as_json: bool) -> None:
    """Data-parallel steps of convolutional and other models (.csv or .parquet)."""
    from traincast.validate import validate_dp_steps

    with _progress("dp-steps") as progress:
        result = validate_dp_steps(Path(file), progress=progress)
    _show(result, as_json=as_json)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(result: Validation, *, as_json: bool) -> None:
    if as_json:
        print_json(result.as_dict())
        return
    rows = []
    for source, figures in result.summary().items():
        row = [
            source,
            f"{figures['forecast']}/{figures['rows']}",
            str(figures["n"]),
            *(_percent(figures[k]) for k in ("mape", "median_ape", "bias")),
            _share(figures["spearman"]),
            _share(figures["coverage_90"]),
        ]
        if result.with_memory:
            row += [_share(figures["oom_f1"]), _percent(figures["memory_mape"])]
        rows.append(row)
    columns = ["source", "forecast", "judged", "mean error", "median", "bias", "rank corr.", "in 90 % int."]
    if result.with_memory:
        columns += ["does-not-fit F1", "memory error"]
    print_table("forecast against measured", columns, rows, right=range(1, len(columns)))
    reasons = Counter(_kind(row.reason) for row in result.rows if row.status == "skipped")
    for reason, count in reasons.most_common(8):
        console().print(f"[dim]skipped {count}: {reason}[/dim]")


def _kind(reason: str) -> str:
    return reason.split(";", maxsplit=1)[0][:110]


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f} %"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
