"""``traincast resources whatif``: what another GPU, other servers and workers, or another batch would change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from traincast.cli import options
from traincast.cli.output import console, print_json, print_table, traced
from traincast.cli.resource_options import hz
from traincast.cli.resource_tables import amounts, show_refused
from traincast.units import format_seconds

if TYPE_CHECKING:
    from traincast.resources.whatif import WhatIf

_SAME: Final = 0.005
"""A relative change below this is not worth a mention."""


@click.command(
    short_help="Ask what another GPU, other workers or another batch would change.",
    epilog=options.example("resources whatif resnet50 --cluster dgx-a100:1 --global-batch 512 --to-gpu h100-sxm5-80gb"),
)
@click.argument("model")
@options.cluster(options.CATALOG_CLUSTER)
@options.global_batch()
@click.option(
    "--strategy",
    metavar="dp=8,tp=4,…",
    help="How to distribute the work over the devices. If omitted, one that fits in memory is chosen.",
)
@options.seq()
@options.precision(options.PRECISIONS)
@options.runtime()
@click.option("--to-gpu", metavar="DEVICE", help="Another device in the same nodes (see `traincast devices`).")
@click.option("--to-servers", type=int, metavar="P", help="Another number of parameter servers; 0: all-reduce.")
@click.option(
    "--to-workers",
    type=int,
    metavar="W",
    help="Another number of workers. Each keeps its share of the batch.",
)
@click.option("--to-batch", type=options.COUNT, metavar="N", help="Another global batch.")
@hz()
@options.bundle()
@options.no_cache()
@options.json()
def whatif(
    model: str,
    cluster: str,
    global_batch: int,
    strategy: str | None,
    seq: int | None,
    precision: str | None,
    runtime: str | None,
    to_gpu: str | None,
    to_servers: int | None,
    to_workers: int | None,
    to_batch: int | None,
    hz: float | None,
    bundle: tuple[str, ...],
    no_cache: bool,
    as_json: bool,
) -> None:
    """Forecast what MODEL draws as it is, and with the change that the options --to-… ask for."""
    from traincast.cli.cost_model import events_cost_model
    from traincast.resources.curves import HZ
    from traincast.resources.whatif import whatif_resources

    answer = whatif_resources(
        traced(model, seq=seq, use_cache=not no_cache),
        cluster=cluster,
        strategy=strategy,
        global_batch=global_batch,
        precision=precision,
        runtime=runtime,
        to_gpu=to_gpu,
        to_servers=to_servers,
        to_workers=to_workers,
        to_batch=to_batch,
        hz=HZ if hz is None else hz,
        cost_model=events_cost_model(None, bundle),
    )
    if as_json:
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
