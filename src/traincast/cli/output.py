"""Output of all verbs: tables for people, one JSON document for programs, and progress bars."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from traincast.ask import Training
from traincast.files import finite

if TYPE_CHECKING:
    from rich.console import Console

    from traincast.cluster import Cluster
    from traincast.graph import OperatorGraph

T = TypeVar("T", bound=Training)

_REDRAW_S: Final = 0.1
"""Least time between two redraws of a progress bar, in seconds."""
_FIRST_LINE_S: Final = 1.0
_NEXT_LINE_S: Final = 10.0
"""When a command whose standard error is no terminal first says how far it is, and how often after that."""


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


def files_of(ask: Training) -> dict[str, Path]:
    """Return the files that an ask names, by argument."""
    return input_files({"MODEL": ask.model, "--cluster": ask.cluster, "--runtime": ask.runtime})


def input_files(arguments: Mapping[str, object]) -> dict[str, Path]:
    """Return the paths of those arguments that name a file, by argument; no output may overwrite them.

    A cluster may be a file with a number of nodes (``lab.toml:4``), or several clusters joined by ``+``.
    """
    found = {}
    for name, text in arguments.items():
        for part in text.split("+") if isinstance(text, str) else ():
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
    """Show progress on standard error, as a bar or as a line now and then; yield the function that moves it.

    The bar is redrawn by calls of that function, not by a thread, because a process with threads must not fork. Where
    standard error is no terminal and no line can be printed either, ``None`` is yielded.
    """
    if not sys.stderr.isatty():
        with _progress_lines(what) as tell:
            yield tell
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


@contextmanager
def _progress_lines(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Print how far a long command is on standard error: after a second, and then every ten; short ones are silent.

    A timer of the process interrupts it for each line, so that lines come also while it waits for its workers. Workers
    do not inherit the timer. Yields ``None`` beside another use of that timer, or outside the main thread.
    """
    alarm = getattr(signal, "SIGALRM", None)  # not on every system
    here = threading.current_thread() is threading.main_thread()
    if alarm is None or not here or signal.getsignal(alarm) is not signal.SIG_DFL:
        yield None
        return
    began, reached = time.monotonic(), (0, 0)

    def move(done: int, total: int) -> None:
        nonlocal reached
        reached = done, total

    def line(number: int, frame: object) -> None:
        done, total = reached
        far = f"{done:,} of {total:,} done" if total else f"{done:,} done"
        with suppress(OSError, ValueError, RuntimeError):  # closed, or interrupted while it was being written to
            click.echo(f"{what}: {far} after {time.monotonic() - began:.0f} s", err=True)

    signal.signal(alarm, line)
    signal.setitimer(signal.ITIMER_REAL, _FIRST_LINE_S, _NEXT_LINE_S)
    try:
        yield move
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(alarm, signal.SIG_DFL)


def loaded_cluster(ask: Training) -> Cluster:
    """Return the cluster that an ask names."""
    from traincast.cluster import load_cluster

    return load_cluster(str(ask.cluster), hosts=True)


def traced(ask: T) -> T:
    """Return the ask with the operator graph of its MODEL; show a progress bar while it is traced."""
    return replace(ask, model=traced_graph(str(ask.model), seq=ask.seq, use_cache=ask.use_cache))


def traced_graph(model: str, *, seq: int | None, use_cache: bool) -> OperatorGraph:
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
