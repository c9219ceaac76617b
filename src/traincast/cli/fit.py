"""``traincast fit operators | collectives``: bundles from measurements."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincast.cli.output import console, print_json, print_table
from traincast.errors import RequestError

if TYPE_CHECKING:
    from traincast.fitting.collective_table import CollectiveTable
    from traincast.fitting.dataset import OperatorTable
    from traincast.fitting.operators import FittedCell
    from traincast.fitting.rivals import RivalScore

_PROBLEMS_SHOWN = 12


@click.group(short_help="Fit bundles of operator and collective times to measurements.")
def fit() -> None:
    """Fit what estimates times to tables of measurements, and write it as a bundle."""


@fit.command(name="operators")
@click.argument("data", nargs=-1, required=True, metavar="DATA…")
@click.option("-o", "--output", required=True, metavar="BUNDLE", help="Folder to write the bundle to.")
@click.option("--compare", is_flag=True, help="Also fit FI-Net's rivals, and print what each reaches.")
@click.option("--networks", default="*", metavar="PATTERN,…", help="Cells that also try a network; 'none' for none.")
@click.option("--epochs", type=click.IntRange(1, 10_000), help="Epochs of each network.")
@click.option("--where", multiple=True, metavar="NAME=VALUE,…", help="Fit the rows of one device, op, dtype … only.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="Seed of split and training.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=1, help="Processes to train in.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def operators(
    data: tuple[str, ...],
    output: str,
    compare: bool,
    networks: str,
    epochs: int | None,
    where: tuple[str, ...],
    seed: int,
    jobs: int,
    as_json: bool,
) -> None:
    """Fit operator times to tables of measured operators (.parquet, .csv).

    One model is fitted for each family, setting, dtype and device; with three devices or more, also a network for
    devices that were not measured. A device with few measurements adapts that network.
    """
    from dataclasses import asdict

    from traincast.cli.validate import conditions
    from traincast.engines import local_engine
    from traincast.estimate.bundle import check_output, save_bundle
    from traincast.fitting.operator_bundle import bundle_of, shipped_base
    from traincast.fitting.operators import FitConfig, fit_operators
    from traincast.fitting.train import TrainConfig

    check_output(Path(output))
    table = _read(data, conditions(where))
    _say_problems(table)
    config = FitConfig(
        seed=seed,
        networks=() if networks == "none" else tuple(networks.split(",")),
        general=len(table.devices) >= 3,
        training=TrainConfig() if epochs is None else TrainConfig(epochs=epochs),
    )
    with _progress() as say:
        fitted = fit_operators(table, config, base=shipped_base(), engine=local_engine(jobs), progress=say)
    card, arrays = bundle_of(fitted, table, data=_about(data, table), config=config)
    save_bundle(Path(output), card, arrays)
    rivals = _compare(table, seed, epochs) if compare else []
    if as_json:
        problems = table.problems_summary()
        print_json(
            {"bundle": output, "cells": _cells(fitted), "rivals": [asdict(r) for r in rivals], "left_out": problems}
        )
        return
    _show(fitted)
    if compare:
        _show_rivals(rivals)
    console().print(f"bundle: {output}")


def _read(data: tuple[str, ...], where: dict[str, set[str]]) -> OperatorTable:
    from traincast.fitting.dataset import joined, read_operators
    from traincast.validating.operators import FILTERS

    unknown = sorted(set(where) - set(FILTERS))
    if unknown:
        raise RequestError(f"cannot choose rows by {', '.join(unknown)}: known are {', '.join(FILTERS)}")
    chosen: dict[str, Any] = {FILTERS[name]: values for name, values in where.items()}
    table = joined([read_operators(Path(path), derive=True, **chosen) for path in data])
    if not len(table):
        reasons = "; ".join(table.problems_summary()[:2]) or "it has no rows"
        raise RequestError(f"nothing to fit in {', '.join(data)}: {reasons}")
    return table


def _say_problems(table: OperatorTable | CollectiveTable) -> None:
    lines = table.problems_summary()
    for line in lines[:_PROBLEMS_SHOWN]:
        console(stderr=True).print(f"[yellow]left out[/yellow] {line}", highlight=False, soft_wrap=True)
    if len(lines) > _PROBLEMS_SHOWN:
        console(stderr=True).print(f"left out for {len(lines) - _PROBLEMS_SHOWN} more reasons")


def _about(data: tuple[str, ...], table: OperatorTable | CollectiveTable) -> dict[str, Any]:
    import hashlib

    return {
        "files": {Path(path).name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in data},
        "rows": len(table),
        "left_out": len(table.problems),
        "sources": sorted(set(table.source.tolist())),
    }


@contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    """What has been fitted, line by line on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    yield lambda text: console(stderr=True).print(f"[dim]{text}[/dim]", highlight=False)


def _cells(fitted: list[FittedCell]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [
        {
            "cell": made.cell.id,
            "rows": made.rows,
            "network_share": made.cell.share,
            "train_s": made.seconds,
            "scores": {name: asdict(score) for name, score in made.scores.items()},
            "curve": made.curve,
        }
        for made in fitted
    ]


def _show(fitted: list[FittedCell]) -> None:
    rows = []
    general = [made.cell.family for made in fitted if made.cell.device == "any"]
    for made in fitted:
        if made.cell.device == "any":
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
        console().print(f"networks for devices that were not measured: {', '.join(sorted(general))}")
    for made in fitted:
        if made.curve:
            steps = ", ".join(f"{count}: {error:.1f} %" for count, error in made.curve.items())
            console().print(f"{made.cell.id}, error by number of its own operators: {steps}")


def _learner(made: FittedCell) -> str:
    cell = made.cell
    if cell.network is not None and cell.network.adapted is not None:
        return "adapted network"
    if cell.share in (0.0, 1.0):
        return "network" if cell.share else "trees"
    return f"{cell.share:.0%} network, {1 - cell.share:.0%} trees"


def _compare(table: OperatorTable, seed: int, epochs: int | None) -> list[RivalScore]:
    from traincast.fitting.compare import compare_cells
    from traincast.fitting.rivals import Budget

    budget = Budget() if epochs is None else Budget(epochs=epochs)
    with _progress() as say:
        return compare_cells(table, seed=seed, budget=budget, progress=say)


def _show_rivals(rivals: list[RivalScore]) -> None:
    rows = [
        [
            r.cell,
            r.operator,
            r.rival,
            str(r.n),
            f"{r.mape:.2f} %",
            f"{r.median:.2f} %",
            f"{r.p90:.1f} %",
            f"{r.train_s:.1f} s",
            f"{1e3 * r.inference_s:.2f} ms",
        ]
        for r in rivals
    ]
    columns = ["cell", "operator", "model", "tested on", "MAPE", "median", "90 %", "training", "per 1,000"]
    print_table("FI-Net and its rivals, same rows and features", columns, rows, right=range(3, 9))


@fit.command(name="renew")
@click.argument("bundles", nargs=-1, required=True, metavar="BUNDLE…")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def renew(bundles: tuple[str, ...], as_json: bool) -> None:
    """Write bundles of an earlier format in the present one; nothing is fitted again."""
    from traincast.estimate.bundle import renew_bundle

    renewed = {bundle: renew_bundle(Path(bundle)) for bundle in bundles}
    if as_json:
        print_json(
            {"renewed": [b for b, new in renewed.items() if new], "current": [b for b, n in renewed.items() if not n]}
        )
        return
    for bundle, new in renewed.items():
        console().print(f"{'renewed' if new else 'up to date'}: {bundle}", markup=False)


@fit.command(name="collectives")
@click.argument("data")
@click.option("-o", "--output", required=True, metavar="BUNDLE", help="Folder to write the bundle to.")
@click.option("--compare", is_flag=True, help="Also fit rivals, and print what each reaches.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="Seed of split and training.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def collectives(data: str, output: str, compare: bool, seed: int, as_json: bool) -> None:
    """Fit times of collectives and transfers to a table of measured ones (.parquet, .csv)."""
    from dataclasses import asdict

    from traincast.estimate.bundle import check_output, save_bundle
    from traincast.fitting.collective_table import read_collectives
    from traincast.fitting.collectives import compare_collectives, fit_collectives

    check_output(Path(output))
    table = read_collectives(Path(data))
    _say_problems(table)
    weights, model = fit_collectives(table, seed=seed)
    about = {**_about((data,), table), "rows": len(table)}
    save_bundle(Path(output), {"kind": "collectives", "data": about, "seed": seed, "model": model}, weights)
    rivals = compare_collectives(table, seed=seed) if compare else []
    if as_json:
        summary = {"bundle": output, "held_out": model["held_out"], "rivals": [asdict(r) for r in rivals]}
        print_json({**summary, "left_out": table.problems_summary()})
        return
    held = model["held_out"]
    if held:
        console().print(
            f"on {held['cells']:g} configurations held out: MAPE {held['mape']:.2f} %, "
            f"median {held['median_ape']:.2f} %"
        )
    if compare:
        columns = ["model", "tested on", "MAPE", "median", "90 %", "training", "inference"]
        rows = [
            [
                r.name,
                str(r.cells),
                *(f"{error:.2f} %" for error in (r.mape, r.median_ape, r.p90_ape)),
                f"{r.train_s:.1f} s",
                f"{r.predict_s:.2f} s",
            ]
            for r in rivals
        ]
        print_table("models of collectives, same rows", columns, rows, right=range(1, 7))
    console().print(f"bundle: {output}")
