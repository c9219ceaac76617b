"""``traincast calibrate``: fit a cluster to its own measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincast.calibrating.ask import CalibrateAsk
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, plain, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from traincast.calibrating.procedure import Calibrated


@click.command(
    short_help="Learn a cluster from its own measured runs.",
    epilog=options.example("calibrate runs.csv --cluster dgx-h100 -o mine.toml"),
)
@asks(CalibrateAsk, Shown, defaults={"output": MISSING, "curve": "0,1,3,10,30"})
def calibrate(ask: CalibrateAsk, shown: Shown) -> None:
    """Fit the parameters of a cluster that datasheets do not state to its measured runs; write a cluster file.

    FILE is a table (.csv, .csv.gz or .parquet). Each row has at least model, n_gpus and step_time_s; the reference
    lists all columns. A calibration that was interrupted resumes when the same command is run again.
    """
    from traincast.calibrating.calibrate import calibrate as learn
    from traincast.measured import count_assumptions

    output = Path(str(ask.output))
    with progress_bar("calibration") as progress:
        result = learn(replace(ask, progress=progress))
    if shown.as_json:
        print_json({"output": str(output), **result.to_dict()})
        return
    _show(result.fit, result.skipped, output)
    for name, count in count_assumptions(run.assumed for run in result.runs).items():
        console().print(f"[dim]assumed in {count} of {len(result.runs)} runs: {plain(name)}[/dim]", highlight=False)


def _show(result: Calibrated, skipped: Mapping[int, str], target: Path) -> None:
    data = result.to_dict()
    rows = [
        [name, str(figures["n"]), _percent(figures["mape"]), _percent(figures["median_ape"])]
        for name, figures in data["errors"].items()
        if figures["n"]
    ]
    print_table("error of the forecast", ["", "runs", "mean", "median"], rows, right=(1, 2, 3))
    moves = [
        [
            m.name,
            _value(m.name, m.before),
            _value(m.name, m.after),
            f"± {100 * m.sure:.0f} %",
            f"{100 * m.taught:.0f} %",
            m.meaning,
        ]
        for m in result.moves
        if m.taught > 0.05
    ]
    columns = ["parameter", "before", "after", "std. dev.", "learned", "meaning"]
    if moves:
        print_table("parameters learned from the runs", columns, moves, right=(1, 2, 3, 4))
    curve = [
        [str(p.runs), _percent(p.mean_error), _percent(p.median_error), f"{p.best:.1f} … {p.worst:.1f} %"]
        for p in result.curve
    ]
    if curve:
        print_table("error on unseen runs", ["runs seen", "mean", "median", "range of draws"], curve, right=range(4))
    out = console()
    calibration = result.calibration
    for warning in result.warnings:
        out.print(f"[yellow]{plain(warning)}[/yellow]")
    if not result.helped:
        out.print("[yellow]calibration did not help on unseen runs: the parameters are left unchanged[/yellow]")
    few = calibration.few
    if few is not None:
        out.print(
            f"runs are few ({calibration.runs}): their shrunk errors count {few.share:.0%}, fitted parameters "
            f"{1.0 - few.share:.0%}; steps of models that did not run take {few.offset:.2f} times as long"
        )
    else:
        out.print(
            f"90 % of runs take {calibration.low:.2f} to {calibration.high:.2f} times their forecast"
            f"{'' if result.correction_kept else '; a learned correction did not help on unseen runs and was left out'}"
        )
    if calibration.seen and few is not None:
        out.print(f"{len(calibration.seen)} models and precisions have a factor of their own")
    elif calibration.seen:
        alone = "" if result.moves else "; parameters did not help on unseen models and were left unchanged"
        out.print(f"{len(calibration.seen)} models and precisions have a factor of their own{alone}")
    if calibration.stall:
        out.print("some runs stall for no reason in their configuration: forecasts state the probability of a stall")
    for odd in result.odd[:8]:
        what = "seems to have stalled" if odd.stalled else "stands out"
        out.print(
            f"[yellow]row {odd.index} {what}[/yellow]: {odd.measured_s:.3g} s measured, "
            f"{odd.forecast_s:.3g} s forecast from the other runs"
        )
    if len(result.odd) > 8:
        out.print(f"[dim]… and {len(result.odd) - 8} more (see --json)[/dim]")
    for index, reason in list(skipped.items())[:5]:
        out.print(f"[dim]skipped row {index}: {reason}[/dim]")
    if len(skipped) > 5:
        out.print(f"[dim]… and {len(skipped) - 5} more (see --json)[/dim]")
    out.print(f"written: {target}")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def _value(name: str, value: float) -> str:
    if name.endswith("_s"):
        return f"{1e6 * value:.3g} µs" if value < 1e-3 else f"{1e3 * value:.3g} ms"
    return f"{100 * value:.2g} %" if name == "jitter" else f"× {value:.2f}"
