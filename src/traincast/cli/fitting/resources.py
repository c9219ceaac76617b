"""``traincast fit resources``: an inspector of resources, from a table of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from traincast.cli import options
from traincast.cli.output import console, plain, print_json, print_table, say_left_out

if TYPE_CHECKING:
    from traincast.fitting.inspector.scores import FigureScore


@click.command(name="resources", epilog=options.example("fit resources runs.csv -o mine.inspector --epochs 40"))
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@options.output("the bundle, a folder.")
@click.option(
    "--from",
    "start",
    metavar="BUNDLE",
    help="Adapt the inspector in BUNDLE (or `shipped`) to the setting of FILE: half of its repeated layers and its "
    "head are trained.",
)
@click.option(
    "--grouping",
    metavar="NAME",
    help="How operators are grouped: proportional (to the size of the graph), uniform or none. Default: proportional.",
)
@click.option(
    "--num-groups",
    "groups",
    type=click.IntRange(1, 256),
    metavar="M",
    help="Groups of each graph, if they are uniform.",
)
@click.option(
    "--factor",
    type=float,
    metavar="F",
    help="With `proportional`, a graph of n operators has F × log10(n) groups. Default: 4.",
)
@click.option(
    "--epochs", type=click.IntRange(1, 10_000), metavar="N", help="Train each network for N epochs. Default: 60."
)
@click.option(
    "--members",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    metavar="N",
    help="Train N networks from different first weights, and average them. With --from: as many as BUNDLE has.",
)
@options.rivals()
@options.seed("The held-out models and the training depend on it.")
@options.json()
def fit_resources(
    files: tuple[str, ...],
    output: str,
    start: str | None,
    grouping: str | None,
    groups: int | None,
    factor: float | None,
    epochs: int | None,
    members: int,
    rivals: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Train an inspector, which predicts burst and idle figures of a run from its graph, on tables of runs.

    `traincast resources simulate` makes a table of simulated runs; the page on the inspector lists the columns.
    """
    from traincast.estimate.inspector.grouping import Grouping
    from traincast.fitting.inspector.fit import fit_resources as fit
    from traincast.fitting.inspector.train import InspectorTraining

    asked = {"method": grouping, "groups": groups, "factor": factor}
    chosen = {name: value for name, value in asked.items() if value is not None}
    result = fit(
        files,
        output=output,
        start=start,
        grouping=Grouping(**chosen) if chosen else None,  # type: ignore[arg-type]
        config=InspectorTraining(seed=seed, members=members, epochs=epochs or InspectorTraining().epochs),
        rivals=rivals,
        warn=say_left_out,
    )
    if as_json:
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
    console().print(f"bundle: {plain(output)}")


def _rows(scores: Mapping[str, Mapping[tuple[str, str], FigureScore]]) -> list[list[str]]:
    rows = []
    for (resource, figure), first in scores["inspector"].items():
        row = [resource, figure, str(first.n)]
        for found in scores.values():
            one = found[resource, figure]
            row += [f"{one.mape:.1f} %", f"{one.median_ape:.1f} %", f"{one.nrmse:.3f}"]
        rows.append(row)
    return rows
