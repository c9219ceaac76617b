"""``traincast monitor``: sample a real run, and show what it drew from its machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincast.cli import options
from traincast.cli.output import console, plain, print_json, print_table
from traincast.cli.resources.tables import amounts, show_refused
from traincast.errors import TraincastError
from traincast.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from traincast.cli.resources.monitored import MonitoredRun


@click.command(
    short_help="Sample a real run: what it draws from its machine.",
    epilog=options.example("monitor --hz 50 -o readings.csv --html readings.html -- python train.py"),
)
@click.option(
    "--hz",
    type=float,
    default=50.0,
    show_default=True,
    metavar="RATE",
    help="Samples per second, as a monitor would take them; from 10 to 100.",
)
@click.option("--pid", type=options.COUNT, metavar="PID", help="Sample this process, which runs already.")
@click.option("--for", "for_s", type=options.TIME, metavar="TIME", help="Stop sampling after this time.")
@click.option(
    "--link-rate",
    metavar="RATE",
    help="Rate of the machine's network link, such as 1Gbit, of which network amounts are shares. Detected if omitted.",
)
@options.output("the readings, as CSV.")
@options.html()
@options.json()
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def monitor(
    hz: float,
    pid: int | None,
    for_s: float | None,
    link_rate: str | None,
    output: str,
    html: str | None,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND, sample it until it ends, and tell what it drew: devices, memory traffic, network.

    The exit code is that of COMMAND (128 + n if signal n ended it), however short it was. Ctrl-C reaches COMMAND; the
    readings are written when it has ended. With --json, what COMMAND writes to standard output goes to standard error.
    A file of COMMAND, or one that no monitor has written, is not replaced.
    """
    from traincast.cli.resources.monitored import check_monitor_outputs
    from traincast.cli.resources.monitored import monitor as run

    check_monitor_outputs({"-o": Path(output)} | ({"--html": Path(html)} if html else {}), command)
    found = run(command, pid=pid, hz=hz, for_s=for_s, link_rate=link_rate, quiet=as_json)
    with _exit_code_of(found):
        found.write_readings(output)
        if html is not None and found.used is not None:
            found.write_page(html)
        if as_json:
            print_json(found.to_dict())
        else:
            _show(found)
            page = f"\npage: {html}" if html and found.used else ""
            console().print(f"readings: {output}{page}", highlight=False)


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
