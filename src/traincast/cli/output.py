"""Output of all verbs: tables for people, one JSON document for programs, and progress bars."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from traincast.files import finite

if TYPE_CHECKING:
    from rich.console import Console

    from traincast.graph import OperatorGraph

_REDRAW_S: Final = 0.1
"""Least time between two redraws of a progress bar, in seconds."""


def console(*, stderr: bool = False) -> Console:
    """Return a console; it is at least 120 columns wide in a file, and exits with code 0 if its reader has gone."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            close_quietly()

    made = Quiet(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal:
        made.width = max(made.width, 120)
    return made


def plain(text: str) -> str:
    """Return the text with its brackets escaped, so that the console does not read them as markup."""
    from rich.markup import escape

    return escape(text)


def close_quietly() -> NoReturn:
    """Exit with code 0 and no message, because the reader of the pipe has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def input_files(arguments: Mapping[str, str | None]) -> dict[str, Path]:
    """Return the paths of those arguments that name a file, by argument; no output may overwrite them.

    A cluster may be a file with a number of nodes (``lab.toml:4``), or several clusters joined by ``+``.
    """
    found = {}
    for name, text in arguments.items():
        for part in (text or "").split("+"):
            for path in (part, part.rpartition(":")[0]):
                with suppress(OSError):  # a text that is too long for a file name
                    if path and Path(path).is_file():
                        found[name] = Path(path)
    return found


def print_json(data: Any) -> None:
    """Print one JSON document to standard output; an infinite or undefined number becomes null."""
    try:
        click.echo(json.dumps(finite(data), indent=2, ensure_ascii=False))
    except BrokenPipeError:
        close_quietly()


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on standard error, if that is a terminal; yield the function that moves it, or ``None``.

    The bar is redrawn by calls of that function, not by a thread, because a process with threads must not fork.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True, auto_refresh=False) as bar:
        task, drawn = bar.add_task(what, total=None), 0.0
        bar.refresh()

        def move(done: int, total: int) -> None:
            nonlocal drawn
            now = time.monotonic()
            due = now - drawn >= _REDRAW_S or done >= total
            bar.update(task, completed=done, total=total, refresh=due)
            drawn = now if due else drawn

        yield move


def traced(model: str, *, seq: int | None, use_cache: bool) -> OperatorGraph:
    """Return the operator graph of MODEL; show a progress bar while it is traced."""
    from traincast.graph.load import load_model

    with progress_bar("tracing modules") as progress:
        graph = load_model(model, seq=seq, use_cache=use_cache, progress=progress)
    if "note" in graph.attributes:
        console(stderr=True).print(f"note: {graph.attributes['note']}")
    return graph


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> None:
    """Print a table; ``right`` has the numbers of the right-aligned columns, counted from 0."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in right else "left", overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    console().print(table)


_WARNINGS_SHOWN: Final = 5


def print_warnings(warnings: Sequence[str], *, explain: bool) -> None:
    """Print the first warnings, which are the most important ones; with ``explain`` all of them."""
    shown = warnings if explain else warnings[:_WARNINGS_SHOWN]
    for warning in shown:
        console().print(f"[yellow]warning:[/yellow] {plain(warning)}", highlight=False)
    if len(shown) < len(warnings):
        console().print(f"{len(warnings) - len(shown)} less important warnings: --explain shows them", highlight=False)


_REASONS_SHOWN: Final = 12


def say_left_out(lines: Sequence[str]) -> None:
    """Print on standard error why rows of a table are left out, the first reasons in full."""
    for line in lines[:_REASONS_SHOWN]:
        console(stderr=True).print(f"[yellow]left out[/yellow] {plain(line)}", highlight=False, soft_wrap=True)
    if len(lines) > _REASONS_SHOWN:
        console(stderr=True).print(f"left out for {len(lines) - _REASONS_SHOWN} more reasons")
