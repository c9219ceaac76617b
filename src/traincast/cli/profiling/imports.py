"""``traincast profile import``: logs of nccl-tests and rccl-tests as a table of collectives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from traincast import files
from traincast.ask import Option, paths_of
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, print_json, print_table
from traincast.errors import RequestError
from traincast.profiling.collectives.ask import LogImport

if TYPE_CHECKING:
    from traincast.profiling.collectives.nccl_logs import ImportedLogs

_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportShown(Shown):
    """What ``profile import`` writes and shows."""

    output: Annotated[
        str,
        Option("Write to PATH: the table (.csv or .parquet). An existing file is replaced.", "PATH", short="-o"),
    ]


@click.command(
    name="import",
    short_help="Read logs of nccl-tests and rccl-tests.",
    epilog=options.example("profile import all_reduce.log --interconnect 'NVLink, 8x400G IB' -o mine.csv"),
)
@asks(LogImport, ImportShown, defaults={"source": "profile"})
def import_logs(ask: LogImport, shown: ImportShown) -> None:
    """Read logs of nccl-tests and rccl-tests, and write a table that `fit collectives` and `validate collectives` read.

    LOG is a file or a folder. The log says which collective ran, over which ranks, on which device; an option replaces
    what it says. What is neither in the log nor given follows from its numbers, or from the name of the file: the
    output lists it as assumed.
    """
    from traincast.profiling.collectives.nccl_logs import FORMATS, save_collectives
    from traincast.profiling.collectives.nccl_logs import import_logs as read

    output = shown.output
    path = Path(output)
    if path.suffix not in FORMATS:
        raise RequestError(f"cannot write {output}: the name of the table must end in {' or '.join(FORMATS)}")
    files.check_output(path, inputs={f"the log {log}": log for log in paths_of(ask.logs)})
    result = read(ask)
    save_collectives(result.rows, path)
    if shown.as_json:
        print_json(
            {
                "file": output,
                "files": result.files,
                "rows": len(result.rows),
                "assumed": result.assumed,
                "skipped": result.skipped,
                "errors": result.errors,
            }
        )
        return
    _show(result, output)


def _show(result: ImportedLogs, output: str) -> None:
    counts: dict[tuple[str, str, int, str], list[int]] = {}
    for row in result.rows:
        key = (row["collective"], row["device"] or "unknown", row["n_ranks"], str(row["n_nodes"] or "unknown"))
        counts.setdefault(key, []).append(row["bytes"])
    rows = [
        [kind, device, str(ranks), nodes, str(len(sizes))] for (kind, device, ranks, nodes), sizes in counts.items()
    ]
    print_table("collectives read", ("collective", "device", "ranks", "nodes", "rows"), rows, right=range(2, 5))
    out = console()
    for error in result.errors:
        click.echo(f"not read: {error}", err=True)
    _list("assumed", [f"{entry['file']}: {entry['what']}" for entry in result.assumed])
    skipped = [
        f"{entry['file']}: {entry['count']} × {entry['reason']} (line {', '.join(map(str, entry['lines']))}"
        f"{', …' if entry['count'] > len(entry['lines']) else ''})"
        for entry in result.skipped
    ]
    _list("rows left out", skipped)
    number = len(result.files)
    out.print(f"{len(result.rows)} rows from {number} log{'' if number == 1 else 's'}", markup=False)
    out.print(f"table: {output}", markup=False)


def _list(title: str, lines: list[str]) -> None:
    out = console()
    if lines:
        out.print(f"{title}:")
    for line in lines[:_SHOWN]:
        out.print(f"  {line}", markup=False)
    if len(lines) > _SHOWN:
        out.print(f"  … and {len(lines) - _SHOWN} more; --json lists all")
