"""``traincast monitor``: sample a real run, and show what it drew from its machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from traincast.cli import options
from traincast.cli.output import console, plain, print_json, print_table
from traincast.cli.resource_tables import amounts, show_refused
from traincast.errors import RequestError
from traincast.files import check_outputs, write_text
from traincast.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from traincast.profiling.monitor import Monitored
    from traincast.resources.monitored import MonitoredUse

LEAST_HZ: Final = 10.0
MOST_HZ: Final = 100.0
_MISSED: Final = 0.05
"""Share of moments without a reading above which a warning says so."""


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

    The exit code is that of COMMAND (128 + n if signal n ended it). Ctrl-C reaches COMMAND; the readings are written
    when it has ended. With --json, what COMMAND writes to standard output goes to standard error.
    """
    if not LEAST_HZ <= hz <= MOST_HZ:
        raise RequestError(f"--hz {hz:g}: expected {LEAST_HZ:g} to {MOST_HZ:g} samples per second")
    check_outputs({"-o": Path(output)} | ({"--html": Path(html)} if html else {}))
    from traincast.profiling.monitor import monitor as run
    from traincast.profiling.monitor_network import link_rate as detected
    from traincast.testbed.request import rate_of

    rate = detected() if link_rate is None else rate_of(link_rate, "--link-rate")
    found = run(command, pid=pid, hz=hz, quiet=as_json, for_s=for_s)
    write_text(Path(output), _csv(found))
    from traincast.resources.monitored import use_of_command

    used = use_of_command(found.columns, hz=hz, cores=found.cores, link_rate=rate)
    about = _about(found, used, command, pid)
    if html is not None:
        from traincast.resources.sampled_page import monitored_page

        write_text(Path(html), monitored_page(used, found.columns, about))
    if as_json:
        print_json(about)
    else:
        _show(found, used, about)
        console().print(f"readings: {output}" + (f"\npage: {html}" if html else ""))
    if found.exit_code:
        sys.exit(found.exit_code)


def _about(found: Monitored, used: MonitoredUse, command: tuple[str, ...], pid: int | None) -> dict[str, Any]:
    """What was sampled and what was found, as JSON shows it."""
    columns = found.columns
    warnings = list(used.warnings)
    if found.missed > _MISSED * found.samples:
        warnings.append(
            f"{found.missed} of {found.missed + found.samples} readings were left out: the machine is too busy to "
            "sample that often"
        )
    return {
        "command": " ".join(command) if command else f"process {pid}",
        "seconds": columns["time_s"][-1] - columns["time_s"][0],
        "samples": found.samples,
        "missed": found.missed,
        "exit_code": found.exit_code,
        "processor_s": columns["processor_s"][-1] - columns["processor_s"][0],
        "peak_resident_bytes": max(columns["resident_bytes"]),
        "processes": int(max(columns["processes"])),
        "devices": int(max(columns["devices"])),
        "resources": used.as_dict(),
        "counted": used.counted,
        "peaks": used.peaks,
        "sampler_cpu_share": found.sampler_cpu_share,
        "warnings": warnings,
    }


def _csv(found: Monitored) -> str:
    """The readings as CSV, with times since the first."""
    first = found.columns["time_s"][0]
    columns = {**found.columns, "time_s": [time - first for time in found.columns["time_s"]]}
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(columns), *(",".join(f"{value:.9g}" for value in row) for row in rows)]) + "\n"


def _show(found: Monitored, used: MonitoredUse, about: dict[str, Any]) -> None:
    out = console()
    out.print(
        f"[bold]{plain(about['command'])}[/bold] · {format_seconds(about['seconds'])} · {found.samples} samples · "
        f"{format_seconds(about['processor_s'])} of processor time · at most "
        f"{format_bytes(about['peak_resident_bytes'])} in {about['processes']} processes",
        highlight=False,
    )
    rows = [(name, *amounts(use), used.counted[name]) for name, use in used.uses.items()]
    print_table("resources", ("resource", "pattern", "amount", "burst", "pause", "counted"), rows, right=(2, 3, 4))
    show_refused({name: use.refused for name, use in used.uses.items()})
    out.print(f"the sampler took {found.sampler_cpu_share:.2%} of a core", highlight=False)
    for warning in about["warnings"]:
        out.print(f"[yellow]warning:[/yellow] {plain(warning)}", highlight=False)
