"""``traincast fit operators | collectives | resources | renew``: bundles from measurements."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from traincast.ask import Option
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.fitting.resources import fit_resources
from traincast.cli.options import Shown
from traincast.cli.output import console, plain, print_json, print_table, progress_bar, say_left_out
from traincast.fitting.ask import COLLECTIVES_ONLY, OPERATORS_ONLY, CollectivesFitAsk, FitAsk

if TYPE_CHECKING:
    from traincast.fitting.operators.fit import FittedCell


@click.group(
    short_help="Fit bundles of operator and collective times, and of resource use, to measurements.",
    epilog=options.example("fit operators mine.parquet -o mine.bundle"),
)
def fit() -> None:
    """Fit models of operator and collective times, or of resource use, to tables, and write them as a bundle.

    Tables are .csv, .csv.gz or .parquet; `traincast profile` writes them, and the reference lists their columns.
    """


@fit.command(name="operators", epilog=options.example("fit operators mine.parquet -o mine.bundle --where device=A100"))
@asks(FitAsk, Shown, without=COLLECTIVES_ONLY, defaults={"networks": "*", "workers": 1})
def operators(ask: FitAsk, shown: Shown) -> None:
    """Fit operator times to tables of measured operators.

    One model is fitted per family, setting, dtype and device. With three or more devices, a network for unmeasured
    devices is fitted as well. A device with few measurements adapts that network.
    """
    from traincast.fitting.fit import fit as fit_times

    with _progress() as say:
        result = fit_times(replace(ask, progress=say, warn=say_left_out))
    if shown.as_json:
        print_json(result.to_dict())
        return
    _show(result.cells)
    if ask.rivals:
        _show_rivals(result.to_dict()["rivals"])
    console().print(f"bundle: {plain(str(ask.output))}")


@contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    """Print each fitted model on standard error, if that is a terminal; else how many there are, now and then."""
    if not sys.stderr.isatty():
        numbers = count(1)
        with progress_bar("fitted models") as move:
            yield None if move is None else lambda text: move(next(numbers), 0)
        return
    yield lambda text: console(stderr=True).print(f"[dim]{text}[/dim]", highlight=False)


def _show(fitted: Sequence[FittedCell]) -> None:
    rows = []
    general = [made.cell.family for made in fitted if made.cell.setting == "any"]
    for made in fitted:
        if made.cell.setting == "any":
            continue
        for name, score in made.scores.items():
            if name != "all" and len(made.scores) == 2:
                continue
            rows.append(
                [
                    made.cell.id if name == "all" else "",
                    name,
                    str(made.rows) if name == "all" else "",
                    str(score.n),
                    f"{score.mape:.2f} %",
                    f"{score.median:.2f} %",
                    f"{score.p90:.1f} %",
                    f"{score.coverage:.2f}",
                    _learner(made) if name == "all" else "",
                ]
            )
    columns = ["cell", "operator", "trained on", "tested on", "MAPE", "median", "90 %", "in 90 % int.", "learner"]
    print_table("error on operators not trained on", columns, rows, right=range(2, 8))
    if general:
        console().print(f"networks for unmeasured devices: {', '.join(sorted(general))}")
    for made in fitted:
        if made.curve:
            steps = ", ".join(f"{count}: {error:.1f} %" for count, error in made.curve.items())
            console().print(f"{made.cell.id}, error by number of operators measured on the device: {steps}")


def _learner(made: FittedCell) -> str:
    cell = made.cell
    if cell.points is not None:
        return "Gaussian process"
    if cell.network is not None and cell.network.adapted is not None:
        return "adapted network"
    if cell.share in (0.0, 1.0):
        return "network" if cell.share else "trees"
    return f"{cell.share:.0%} network, {1 - cell.share:.0%} trees"


def _show_rivals(rivals: Sequence[dict[str, Any]]) -> None:
    rows = [
        [
            r["cell"],
            r["operator"],
            r["rival"],
            str(r["n"]),
            f"{r['mape']:.2f} %",
            f"{r['median']:.2f} %",
            f"{r['p90']:.1f} %",
            f"{r['train_s']:.1f} s",
            f"{1e3 * r['inference_s']:.2f} ms",
        ]
        for r in rivals
    ]
    columns = ["cell", "operator", "model", "tested on", "MAPE", "median", "90 %", "training", "per 1,000"]
    print_table("FI-Net and its rivals, same rows and features", columns, rows, right=range(3, 9))


@dataclass(frozen=True, slots=True)
class Renewed(Shown):
    """What ``fit renew`` converts."""

    bundles: Annotated[tuple[str, ...], Option("Folders of bundles.", "BUNDLE…")]


@fit.command(name="renew", epilog=options.example("fit renew mine.bundle"))
@asks(Renewed)
def renew(given: Renewed) -> None:
    """Convert bundles of an earlier format to the current one, without fitting them again."""
    from traincast.estimate.bundle import renew_bundle

    renewed = {bundle: renew_bundle(Path(bundle)) for bundle in given.bundles}
    if given.as_json:
        print_json(
            {"renewed": [b for b, new in renewed.items() if new], "current": [b for b, n in renewed.items() if not n]}
        )
        return
    for bundle, new in renewed.items():
        console().print(f"{'renewed' if new else 'up to date'}: {bundle}", markup=False)


@fit.command(name="collectives", epilog=options.example("fit collectives mine.parquet -o mine.bundle"))
@asks(CollectivesFitAsk, Shown, without=OPERATORS_ONLY)
def collectives(ask: CollectivesFitAsk, shown: Shown) -> None:
    """Fit the times of collectives and transfers to a table of measurements.

    Curves of time over message size are fitted to a large table. A small table, such as ten lines of a log, corrects
    the shipped collectives instead; the bundle then estimates all sizes, ranks and collectives over the same links.
    """
    from traincast.fitting.fit import fit as fit_times

    result = fit_times(replace(ask, warn=say_left_out))
    if shown.as_json:
        print_json(result.to_dict())
        return
    held = result.held_out
    if result.adapted:
        console().print(plain(result.adapted), highlight=False)
        console().print(
            f"each point estimated from the others: MAPE {held['mape']:.2f} %, median {held['median_ape']:.2f} %"
        )
    elif held:
        console().print(
            f"on {held['cells']:g} configurations held out: MAPE {held['mape']:.2f} %, "
            f"median {held['median_ape']:.2f} %"
        )
    if ask.rivals:
        columns = ["model", "tested on", "MAPE", "median", "90 %", "training", "inference"]
        rows = [
            [
                r["name"],
                str(r["cells"]),
                *(f"{r[error]:.2f} %" for error in ("mape", "median_ape", "p90_ape")),
                f"{r['train_s']:.1f} s",
                f"{r['predict_s']:.2f} s",
            ]
            for r in result.to_dict()["rivals"]
        ]
        print_table("models of collectives, same rows", columns, rows, right=range(1, 7))
    console().print(f"bundle: {plain(str(ask.output))}")


fit.add_command(fit_resources)
