"""``traincast monitor``: sample a real run, and show what it drew from its machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from traincast.ask import HTML, Option
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, plain, print_json, print_table
from traincast.cli.resources.ask import MonitorAsk
from traincast.cli.resources.tables import amounts, show_refused
from traincast.errors import TraincastError
from traincast.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from traincast.cli.resources.monitored import MonitoredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorShown(Shown):
    """What ``monitor`` writes and shows."""

    output: Annotated[str, Option("Write to PATH: the readings, as CSV.", "PATH", short="-o")]
    html: Annotated[str | None, HTML] = None


@click.command(
    short_help="Sample a real run: what it draws from its machine.",
    epilog=options.example("monitor --hz 50 -o readings.csv --html readings.html -- python train.py"),
)
@asks(MonitorAsk, MonitorShown)
def monitor(ask: MonitorAsk, shown: MonitorShown) -> None:
    """Run COMMAND, sample it until it ends, and tell what it drew: devices, memory traffic, network.

    The exit code is that of COMMAND (128 + n if signal n ended it), however short it was. Ctrl-C reaches COMMAND; the
    readings are written when it has ended. With --json, what COMMAND writes to standard output goes to standard error.
    A file of COMMAND, or one that no monitor has written, is not replaced.
    """
    from traincast.cli.resources.monitored import check_monitor_outputs
    from traincast.cli.resources.monitored import monitor as run

    outputs = {"-o": Path(shown.output)} | ({"--html": Path(shown.html)} if shown.html else {})
    check_monitor_outputs(outputs, ask.command)
    found = run(replace(ask, quiet=shown.as_json))
    with _exit_code_of(found):
        found.write_readings(shown.output)
        if shown.html is not None and found.used is not None:
            found.write_page(shown.html)
        if shown.as_json:
            print_json(found.to_dict())
        else:
            _show(found)
            page = f"\npage: {shown.html}" if shown.html and found.used else ""
            console().print(f"readings: {shown.output}{page}", highlight=False)


@contextmanager
def _exit_code_of(found: MonitoredRun) -> Iterator[None]:
    """Exits as the command did; if a result cannot be written, the command's failure comes first."""
    try:
        yield
    except TraincastError as error:
        if not found.exit_code:
            raise
        console(stderr=True).print(f"traincast: {plain(str(error))}", highlight=False, soft_wrap=True)
    if found.exit_code:
        sys.exit(found.exit_code)


def _show(found: MonitoredRun) -> None:
    out, about = console(), found.to_dict()
    out.print(
        f"[bold]{plain(found.command)}[/bold] · {format_seconds(about['seconds'])} · {about['samples']} samples · "
        f"{format_seconds(about['processor_s'])} of processor time · at most "
        f"{format_bytes(about['peak_resident_bytes'])} in {about['processes']} processes",
        highlight=False,
    )
    if found.used is not None:
        uses, counted = found.used.uses, found.used.counted
        rows = [(name, *amounts(use), counted[name]) for name, use in uses.items()]
        print_table("resources", ("resource", "pattern", "amount", "burst", "pause", "counted"), rows, right=(2, 3, 4))
        show_refused({name: use.refused for name, use in uses.items()})
    out.print(f"the sampler took {about['sampler_cpu_share']:.2%} of a core", highlight=False)
    for warning in found.warnings:
        out.print(f"[yellow]warning:[/yellow] {plain(warning)}", highlight=False)
