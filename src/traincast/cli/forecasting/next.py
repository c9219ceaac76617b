"""``traincast next``: the measurements that lower the doubt about a decision most per dollar."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import click

from traincast.ask import Option
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, print_json, print_table, progress_bar
from traincast.searching.measurements import NextAsk
from traincast.units import format_money, format_seconds

if TYPE_CHECKING:
    from traincast.searching.measurements import Advice


@dataclass(frozen=True, slots=True, kw_only=True)
class NextShown(Shown):
    """How ``next`` shows its advice."""

    commands: Annotated[int, Option("Print the commands of the first N measurements.", "N")] = 2


@click.command(
    short_help="Tell what to measure next: what lowers the doubt most per dollar.",
    epilog=options.example("next llama3-8b --cluster dgx-h100:4 --global-batch 256"),
)
@asks(NextAsk, NextShown)
def next(ask: NextAsk, shown: NextShown) -> None:  # noqa: A001 -- the name of the verb
    """Tell which cheap measurements lower the doubt about MODEL on a cluster most per dollar.

    With --strategy, the doubt is about its step time. Otherwise the best strategies are searched, and the doubt is
    about which of them to run.
    """
    from traincast.cluster import load_cluster
    from traincast.searching.measurements import next_measurements

    load_cluster(str(ask.cluster))  # an unknown cluster is refused before the model is traced
    if ask.strategy is not None:
        advice = next_measurements(ask)
    else:
        with progress_bar("parts of the space") as progress:
            advice = next_measurements(replace(ask, progress=progress))
    if shown.as_json:
        print_json(advice.to_dict())
        return
    _show(advice, shown.commands)


def _show(advice: Advice, commands: int) -> None:
    out = console()
    out.print(f"[bold]{advice.model}[/bold] on {advice.cluster}", highlight=False)
    took = f"{format_seconds(advice.step_s)} ({format_seconds(advice.low_s)} … {format_seconds(advice.high_s)})"
    out.print(f"{advice.strategy}: {took} a step", highlight=False)
    if advice.about == "choice":
        out.print(
            f"The decision is which of {advice.compared} strategies to run. The one above is expected to lose "
            f"{advice.doubt:.1%} against the best of them.\n"
        )
    else:
        out.print(
            f"The decision is how long this strategy takes: its step is known to {advice.doubt:.1%} (one standard "
            "deviation).\n"
        )
    rows = [
        [m.what, format_money(m.cost), format_seconds(m.seconds), f"{m.doubt_before:.1%}", f"{m.doubt_after:.1%}"]
        for m in advice.measurements
    ]
    print_table("what to measure next, most doubt per dollar first", _COLUMNS, rows, right=(1, 2, 3, 4))
    for number, measurement in enumerate(advice.measurements[: max(0, commands)], 1):
        out.print(f"{number}. {measurement.what}:", highlight=False)
        for line in measurement.commands:
            click.echo(f"   {line}")


_COLUMNS = ("measurement", "cost", "time", "doubt", "doubt after")
