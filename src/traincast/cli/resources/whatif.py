"""``traincast resources whatif``: what another GPU, other servers and workers, or another batch would change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, print_json, print_table, traced
from traincast.cli.resources.tables import amounts, show_refused
from traincast.resources.ask import WhatIfAsk
from traincast.units import format_seconds

if TYPE_CHECKING:
    from traincast.resources.whatif import WhatIf

_SAME: Final = 0.005
"""A relative change below this is not worth a mention."""


@click.command(
    short_help="Ask what another GPU, other workers or another batch would change.",
    epilog=options.example("resources whatif resnet50 --cluster dgx-a100:1 --global-batch 512 --to-gpu h100-sxm5-80gb"),
)
@asks(WhatIfAsk, Shown, defaults={"hz": None})
def whatif(ask: WhatIfAsk, shown: Shown) -> None:
    """Forecast what MODEL draws as it is, and with the change that the options --to-… ask for."""
    from traincast.resources.whatif import whatif_resources

    answer = whatif_resources(traced(ask))
    if shown.as_json:
        print_json(answer.to_dict())
        return
    _show(answer)


def _show(answer: WhatIf) -> None:
    """Print both settings, their steps, and the twelve figures of each."""
    before, after = answer.before.report, answer.after.report
    out = console()
    for name, report in (("before", before), ("after", after)):
        out.print(
            f"[bold]{name}[/bold]: {report.cluster}, {report.strategy}, global batch {report.global_batch}: "
            f"[bold]{format_seconds(report.step_s)}[/bold] per step "
            f"({format_seconds(report.low_s)} … {format_seconds(report.high_s)})"
        )
    change = after.step_s / before.step_s - 1.0
    each = before.step_s / before.global_batch, after.step_s / after.global_batch
    out.print(f"step {change:+.1%}, time per sample {each[1] / each[0] - 1.0:+.1%}", highlight=False)
    rows = []
    for name, changes in answer.changes.items():
        old, new = amounts(answer.drawn_before.uses[name]), amounts(answer.drawn_after.uses[name])
        cells = [f"{a} → {b}" if a != b else a for a, b in zip(old, new, strict=True)]
        for place, value in zip((1, 2, 3), changes.values(), strict=True):
            cells[place] += "" if value is None or abs(value) < _SAME else f" ({value:+.0%})"
        rows.append((name, *cells))
    columns = ("resource", "pattern", "amount of a burst", "burst", "pause")
    print_table("what changes, as a monitor on node 0 sees it", columns, rows, right=(2, 3, 4))
    for side, drawn in (("before", answer.drawn_before), ("after", answer.drawn_after)):
        show_refused({f"{side} {name}": use.refused for name, use in drawn.uses.items()})
    for report in (before, after):
        for warning in report.warnings:
            out.print(f"[yellow]warning:[/yellow] {warning}")
