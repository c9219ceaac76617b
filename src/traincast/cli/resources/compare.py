"""``traincast resources compare``: what a run drew from its machines, beside its forecast."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from traincast.ask import HTML, Option
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, plain, print_json, print_table
from traincast.cli.real_runs.testbed_tables import signed
from traincast.cli.resources.ask import ComparedWith
from traincast.cli.resources.tables import amounts, show_refused
from traincast.errors import RequestError
from traincast.files import check_outputs, write_text
from traincast.units import format_seconds

if TYPE_CHECKING:
    from traincast.cli.resources.real_runs import ComparedRun
    from traincast.resources.comparing import ResourceComparison


@dataclass(frozen=True, slots=True)
class CompareShown(Shown):
    """The folder of the run, after the file of its forecast if there is one, and how both are shown."""

    paths: Annotated[tuple[str, ...], Option("The folder of a run.", "[FORECAST.json] RUN")]
    _: KW_ONLY
    html: Annotated[str | None, HTML] = None


@click.command(
    short_help="Compare a sampled run with its forecast.",
    epilog=options.example("resources compare run --html compare.html"),
)
@asks(ComparedWith, CompareShown)
def compare(given: ComparedWith, shown: CompareShown) -> None:
    """Lay what the testbed run in the folder RUN drew over its forecast, and tell the error of each figure.

    RUN was made by `traincast testbed run --monitor`. Its forecast is made from its recorded request, or read from
    FORECAST.json, which `traincast predict --resources --json` wrote; such a file has figures, and no curves.
    """
    paths, html = shown.paths, shown.html
    if len(paths) > 2:
        raise RequestError(f"{len(paths)} paths given: expected RUN, or FORECAST.json and RUN")
    run, forecast = Path(paths[-1]), Path(paths[0]) if len(paths) == 2 else None
    if html is not None:
        check_outputs({"--html": Path(html)}, inputs={"the run": run / "run.json"})
        if forecast is not None:
            raise RequestError("FORECAST.json has figures alone, without curves: leave --html out")
    from traincast.cli.resources.real_runs import compare_resources

    found = compare_resources(run, forecast=forecast, events=given.events, hz=given.hz)
    if html is not None:
        from traincast.resources.sampled_page import compared_page

        write_text(Path(html), compared_page(found.comparison, _about(found)))
    if shown.as_json:
        print_json(found.to_dict())
        return
    _show(found.comparison, _about(found))
    if html is not None:
        console().print(f"page: {html}")


def _about(found: ComparedRun) -> dict[str, Any]:
    """What the run was, for headers."""
    record, events = found.record, found.events
    source = f"times from events in {events}" if events else "times from bundles and physics"
    return {
        "model": record.model,
        "strategy": record.strategy,
        "title": record.model,
        "steps": f"mean of {len(record.steps_s)} steps",
        "source": source,
        "facts": [
            ["strategy", record.strategy],
            ["compute", record.compute if record.compute == "real" else f"emulated {record.compute}"],
            ["network", record.network],
            ["sampled", f"{record.monitor_hz:g} times a second"],
        ],
        "warnings": list(record.warnings),
    }


def _show(found: ResourceComparison, about: dict[str, Any]) -> None:
    out = console()
    out.print(f"[bold]{plain(about['model'])}[/bold] · {plain(about['strategy'])} · {plain(about['source'])}")
    out.print(
        f"step measured {format_seconds(found.measured_step_s)}, forecast {format_seconds(found.predicted_step_s)}; "
        f"{found.hz:g} samples per second over {format_seconds(found.observed_s)}",
        highlight=False,
    )
    errors, correlations = found.errors(), found.correlations()
    rows = []
    for name, use in found.measured.items():
        other, same = found.predicted[name], correlations[name]
        (pattern, *figures), (expected, *others) = amounts(use), amounts(other)
        told = [
            f"{measured} → {predicted} {'' if error is None else signed(error)}".rstrip()
            for measured, predicted, error in zip(figures, others, errors[name].values(), strict=True)
        ]
        both = pattern if pattern == expected else f"{pattern} → {expected}"
        rows.append((name, both, *told, "–" if same is None else f"{same:.3f}"))
    columns = ("resource", "pattern", "amount", "burst", "pause", "correlation")
    print_table("measured → forecast", columns, rows, right=range(2, 6))
    show_refused(found.refused())
    for warning in about["warnings"]:
        out.print(f"[yellow]warning:[/yellow] {plain(warning)}", highlight=False)
