"""``traincast fit resources``: an inspector of resources, from a table of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, plain, print_json, print_table, say_left_out
from traincast.fitting.inspector.ask import InspectorSettings, ResourceFitAsk

if TYPE_CHECKING:
    from traincast.fitting.inspector.scores import FigureScore


@click.command(name="resources", epilog=options.example("fit resources runs.csv -o mine.inspector --epochs 40"))
@asks(ResourceFitAsk, InspectorSettings, Shown)
def fit_resources(ask: ResourceFitAsk, settings: InspectorSettings, shown: Shown) -> None:
    """Train an inspector, which predicts burst and idle figures of a run from its graph, on tables of runs.

    `traincast resources simulate` makes a table of simulated runs; the page on the inspector lists the columns.
    """
    from traincast.estimate.inspector.grouping import Grouping
    from traincast.fitting.inspector.fit import fit_resources as fit
    from traincast.fitting.inspector.train import InspectorTraining

    words = {"method": settings.method, "groups": settings.groups, "factor": settings.factor}
    chosen = {name: value for name, value in words.items() if value is not None}
    result = fit(
        replace(
            ask,
            grouping=Grouping(**chosen) if chosen else None,  # type: ignore[arg-type]
            config=InspectorTraining(
                seed=settings.seed, members=settings.members, epochs=settings.epochs or InspectorTraining().epochs
            ),
            warn=say_left_out,
        )
    )
    if shown.as_json:
        print_json(result.to_dict())
        return
    print_table(
        f"errors on {result.held_out}, trained on the others",
        (
            "resource",
            "figure",
            "runs",
            *(name for who in ("inspector", *result.rivals) for name in (who, "median", "NRMSE")),
        ),
        _rows({"inspector": result.scores, **result.rivals}),
        right=range(2, 3 + 3 * (1 + len(result.rivals))),
    )
    console().print(f"patterns predicted: {result.patterns:.0%}; trained in {result.train_s:.0f} s", highlight=False)
    console().print(f"bundle: {plain(str(ask.output))}")


def _rows(scores: Mapping[str, Mapping[tuple[str, str], FigureScore]]) -> list[list[str]]:
    rows = []
    for (resource, figure), first in scores["inspector"].items():
        row = [resource, figure, str(first.n)]
        for found in scores.values():
            one = found[resource, figure]
            row += [f"{one.mape:.1f} %", f"{one.median_ape:.1f} %", f"{one.nrmse:.3f}"]
        rows.append(row)
    return rows
