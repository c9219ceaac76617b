"""``traincast calibrate``: learn a cluster from a few of its own measured runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincast.cli.output import console, input_files, plain, print_json, print_table, progress_bar
from traincast.cli.validate import ALLOW_CODE
from traincast.errors import RequestError
from traincast.files import check_output

if TYPE_CHECKING:
    from traincast.calibrating.procedure import Calibrated


@click.command(short_help="Learn a cluster from its own measured runs.")
@click.argument("file")
@click.option("--cluster", required=True, metavar="NAME|FILE", help="The cluster that all runs of FILE ran on.")
@click.option("-o", "--output", required=True, metavar="FILE.toml", help="Where to write the calibrated cluster.")
@click.option("--curve", default="0,1,3,10,30", show_default=True, help="Numbers of runs of the learning curve.")
@ALLOW_CODE
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def calibrate(file: str, cluster: str, output: str, curve: str, allow_code: bool, as_json: bool) -> None:
    """Fit what datasheets do not say of a cluster to measured runs (.csv or .parquet), and write it as a cluster file.

    A row has at least model, n_gpus and step_time_s; see the reference for all columns. A calibration that was
    stopped goes on where it was when it is called again.
    """
    from traincast.calibrating.procedure import calibrate as learn
    from traincast.calibrating.read import read_runs
    from traincast.cluster import load_cluster, write_calibrated
    from traincast.validating.outcome import kind

    target = Path(output)
    _check_output(target, inputs=input_files({"the table of runs": file, "the cluster that it extends": cluster}))
    extends = _extended(cluster, target)
    place = load_cluster(cluster)
    sizes = _sizes(curve)
    with progress_bar("runs") as progress:
        runs, skipped = read_runs(Path(file), place, allow_code=allow_code, progress=progress)

    def save(result: Calibrated) -> None:
        write_calibrated(
            target,
            extends=extends,
            calibration=result.calibration,
            name=place.name if place.calibration else f"{place.name}-calibrated",
            source=f"{place.source}; calibrated with {len(runs)} runs" if place.source else "",
            num_nodes=place.num_nodes if place.num_nodes > 1 else 0,
            comments={move.name: f"± {100 * move.sure:.0f} %" for move in result.moves if move.taught > 0.05},
        )

    journal = target.with_name(f"{target.name}.journal")
    with progress_bar("calibration") as progress:
        result = learn(runs, curve=sizes, journal=journal, save=save, progress=progress)
    if as_json:
        skips = [{"index": index, "reason": reason} for index, reason in skipped.items()]
        assumed = [{"index": run.measured.index, "assumed": list(run.measured.assumed)} for run in runs]
        print_json(
            {"output": str(target), "cluster": place.name, "skipped": skips, "assumed": assumed, **result.as_dict()}
        )
        return
    _show(result, skipped, target)
    counts = Counter(name for run in runs for name in dict.fromkeys(map(kind, run.measured.assumed)))
    for name, count in counts.most_common():
        console().print(f"[dim]assumed in {count} of {len(runs)} runs: {plain(name)}[/dim]", highlight=False)


def _check_output(target: Path, *, inputs: Mapping[str, Path]) -> None:
    """Refuse an output that cannot be written before anything is fitted."""
    if target.suffix != ".toml":
        raise RequestError(f"cannot write {target}: a cluster file is TOML, so its name must end in .toml")
    check_output(target, inputs=inputs)


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and int(part) <= 100_000 for part in parts):
        raise RequestError(f"--curve {text!r}: expected whole numbers of runs, such as 0,1,3,10,30")
    return sorted({int(part) for part in parts})


def _extended(cluster: str, target: Path) -> str:
    """What the output extends: a name of the catalog, or the path of a file as seen from the output's folder."""
    name, _, numbers = cluster.rpartition(":") if ":" in cluster and not Path(cluster).exists() else (cluster, "", "")
    if "x" in numbers or "+" in cluster:
        raise RequestError(
            f"--cluster {cluster}: calibrate a whole kind of node, such as {name}; rows say how many devices they used"
        )
    if not name.endswith(".toml"):
        return name
    return os.path.relpath(Path(name).resolve(), target.resolve().parent)


def _show(result: Calibrated, skipped: dict[int, str], target: Path) -> None:
    data = result.as_dict()
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
    columns = ["parameter", "before", "after", "sure to", "learned", "what it is"]
    if moves:
        print_table("what the runs taught", columns, moves, right=(1, 2, 3, 4))
    curve = [
        [str(p.runs), _percent(p.mean_error), _percent(p.median_error), f"{p.best:.1f} … {p.worst:.1f} %"]
        for p in result.curve
    ]
    if curve:
        print_table("error on runs not seen", ["runs seen", "mean", "median", "draws"], curve, right=range(4))
    out = console()
    calibration = result.calibration
    for warning in result.warnings:
        out.print(f"[yellow]{plain(warning)}[/yellow]")
    if not result.helped:
        out.print(
            "[yellow]on runs not seen, calibration was no better than none: parameters are left as they were[/yellow]"
        )
    out.print(
        f"a run takes {calibration.low:.2f} to {calibration.high:.2f} times its forecast in 90 % of cases"
        f"{'' if result.correction_kept else '; a learned correction did not pay and was left out'}"
    )
    if calibration.stall:
        out.print("some runs stall, for no reason that their configuration shows: forecasts say how likely that is")
    for odd in result.odd[:8]:
        what = "stalled" if odd.stalled else "odd"
        out.print(
            f"[yellow]row {odd.index} looks {what}[/yellow]: {odd.measured_s:.3g} s measured, "
            f"{odd.forecast_s:.3g} s forecast by the others"
        )
    if len(result.odd) > 8:
        out.print(f"[dim]… and {len(result.odd) - 8} more (--json has them all)[/dim]")
    for index, reason in list(skipped.items())[:5]:
        out.print(f"[dim]skipped row {index}: {reason}[/dim]")
    if len(skipped) > 5:
        out.print(f"[dim]… and {len(skipped) - 5} more[/dim]")
    out.print(f"written: {target}")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def _value(name: str, value: float) -> str:
    if name.endswith("_s"):
        return f"{1e6 * value:.3g} µs" if value < 1e-3 else f"{1e3 * value:.3g} ms"
    return f"{100 * value:.2g} %" if name == "jitter" else f"× {value:.2f}"
