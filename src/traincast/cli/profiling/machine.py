"""``traincast profile machine``: this machine as a cluster file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from traincast.ask import Option
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, print_json, print_table
from traincast.errors import RequestError
from traincast.profiling.machine.ask import MachineAsk
from traincast.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from traincast.profiling.machine.figures import Figure, MachineFigures

_NOISY = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShown(Shown):
    """What ``profile machine`` writes and shows."""

    output: Annotated[
        str,
        Option("Write to PATH: the cluster file (.toml). An existing cluster file is replaced.", "PATH", short="-o"),
    ]


@click.command(
    name="machine",
    short_help="Measure this machine and write a cluster file.",
    epilog=options.example("profile machine -o my.toml"),
)
@asks(MachineAsk, MachineShown)
def machine(ask: MachineAsk, shown: MachineShown) -> None:
    """Measure what a cluster file says about a machine: rates, bandwidths, launches and the link inside the node.

    One device of the file is one process with --threads threads, or one device of the kind cuda. Let nothing else run
    meanwhile. The network between nodes cannot be measured on one machine: the file has a placeholder for it.
    """
    from traincast.profiling.machine.figures import expected_seconds, measure_machine
    from traincast.profiling.machine.file import check_cluster_file, machine_toml, save_machine

    path = Path(shown.output)
    check_cluster_file(path)
    if ask.repeats < 3:
        raise RequestError(f"--repeats {ask.repeats}: give 3 or more, to see how much they differ")
    expected = expected_seconds(ask)
    click.echo(f"measuring takes about {expected:.0f} s", err=True)
    found = measure_machine(ask)
    save_machine(machine_toml(found, name=path.stem), path)
    warnings = _warnings(found)
    if shown.as_json:
        print_json(
            {
                "file": shown.output,
                "expected_s": expected,
                "figures": [asdict(figure) for figure in found.figures],
                "facts": found.facts,
                "assumed": found.assumed,
                "warnings": warnings,
            }
        )
        return
    rows = [[figure.name, _shown(figure), f"{figure.spread:.1%}", figure.note] for figure in found.figures]
    print_table(str(found.facts["name"]), ("figure", "measured", "spread", ""), rows, right=range(1, 3))
    out = console()
    for line in found.assumed:
        out.print(f"assumed: {line}", markup=False)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    out.print(f"cluster file: {shown.output} ({found.facts['devices']} devices)", markup=False)


def _warnings(found: MachineFigures) -> list[str]:
    noisy = [figure.name for figure in found.figures if figure.spread > _NOISY]
    if not noisy:
        return []
    return [
        f"repeats differ by more than {_NOISY:.0%} for {', '.join(noisy)}: does something else run on this machine?"
    ]


def _shown(figure: Figure) -> str:
    match figure.unit:
        case "FLOP/s":
            return f"{figure.value / 1e9:,.1f} GFLOP/s"
        case "bytes/s":
            return f"{figure.value / 1e9:,.2f} GB/s"
        case "bytes":
            return format_bytes(figure.value)
        case "s":
            return format_seconds(figure.value)
        case _:
            return f"{figure.value:.2f} {figure.unit}"
