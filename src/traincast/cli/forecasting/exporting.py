"""``--export NAME``: choose the runtime of the forecast, and print the strategy as the framework reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from traincast.cli.output import console
from traincast.errors import StrategyError

if TYPE_CHECKING:
    from traincast.strategy import Request

T = TypeVar("T")


def runtime_for(framework: str | None, runtime: T | None) -> T | str | None:
    """Return ``runtime`` if given, else the runtime of ``framework``; refuse an unknown framework."""
    if framework is None:
        return runtime
    from traincast.export import check_framework

    check_framework(framework)
    return runtime or framework


def exported(request: Request, framework: str | None, *, chosen: bool = False) -> dict[str, str] | None:
    """Return the ``export`` part of ``--json``: the text, the release it is for, and the runtime of the forecast.

    ``chosen``: Traincast chose the strategy, not the user. If the framework refuses it, the error says how to find
    another. Without a framework, return ``None``.
    """
    if framework is None:
        return None
    from traincast.export import FRAMEWORKS, export

    try:
        text = export(request, framework)
    except StrategyError as error:
        if not chosen:
            raise
        raise StrategyError(
            f"{error}. Traincast chose the strategy {request.strategy}: give --strategy, or let "
            f"`traincast search … --export {framework}` find one"
        ) from error
    release = FRAMEWORKS[framework].release
    return {"framework": framework, "release": release, "runtime": request.runtime.name, "text": text}


def show_export(found: dict[str, str] | None, what: str) -> None:
    """Print a heading that names ``what`` is exported and the runtime of the forecast, then the text."""
    if found is None:
        return
    framework, runtime = found["framework"], found["runtime"]
    timed = f"with the runtime {runtime}"
    if runtime != framework:
        timed += f", as --runtime says; omit --runtime to time the step as {framework} runs it"
    console().print(f"\n[bold]{what} for {framework}[/bold] ({found['release']}), timed {timed}", highlight=False)
    click.echo(found["text"].rstrip("\n"))
