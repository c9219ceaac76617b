"""``traincast validate operators | collectives | steps | dp-steps | finetune``: forecasts against measured runs."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincast.cli import options
from traincast.cli.output import console, plain, print_json, print_table, progress_bar
from traincast.errors import RequestError

if TYPE_CHECKING:
    from traincast.validating.operators import OperatorValidation
    from traincast.validating.outcome import RowValidation, Validation

_MOST = 12


@click.group(
    short_help="Compare forecasts with a table of measured runs.",
    epilog=options.example("validate steps runs.csv --cluster dgx-h100"),
)
def validate() -> None:
    """Forecast every row of a table of measurements, and report the error of each source.

    Tables are .csv, .csv.gz or .parquet; the reference lists their columns.
    """


@validate.command(name="operators", epilog=options.example("validate operators operators.parquet --where device=A100"))
@click.argument("file")
@click.option("--rows", type=options.COUNT, metavar="N", help="Use an even sample of N rows.")
@options.where()
@options.bundle()
@options.json()
def operators(file: str, rows: int | None, where: tuple[str, ...], bundle: tuple[str, ...], as_json: bool) -> None:
    """Compare estimates of single operators on one device with FILE."""
    from traincast.validating.operators import OperatorValidation
    from traincast.validating.validate import validate as compare

    with progress_bar("operators") as progress:
        result = compare(file, kind="operators", rows=rows, where=conditions(where), bundles=bundle, progress=progress)
    assert isinstance(result, OperatorValidation)
    if as_json:
        for line in result.json_lines():
            click.echo(line)
        return
    _show(result, as_json=False)
    _show_cells(result)
    _say_if_trained_on(Path(file), [Path(b) for b in bundle])


def conditions(texts: tuple[str, ...]) -> dict[str, set[str]]:
    """Parse ``device=A100,op=gemm`` into the accepted values of each column."""
    found: dict[str, set[str]] = {}
    for pair in (part for text in texts for part in text.split(",")):
        name, sign, value = pair.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise RequestError(f"--where {pair!r} is not of the form NAME=VALUE")
        found.setdefault(name.strip(), set()).add(value.strip())
    return found


def _say_if_trained_on(path: Path, bundles: list[Path]) -> None:
    """Print a warning if a bundle was fitted to this table, because its errors on new rows are larger."""
    import hashlib

    from traincast.estimate import learned_cost_model

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for bundle in learned_cost_model(bundles).bundles:
        if digest in bundle.card.get("data", {}).get("files", {}).values():
            console().print(
                f"[yellow]{bundle.path.name} was fitted to four fifths of this table[/yellow]: "
                "its card.json has the errors on the other fifth, under scores",
                highlight=False,
            )


def _show_cells(result: OperatorValidation) -> None:
    rows = [
        [
            cell["source"],
            cell["op"],
            cell["phase"],
            str(cell["n"]),
            *(_percent(cell[k]) for k in ("mape", "median_ape", "bias")),
            _share(cell["coverage_90"]),
        ]
        for cell in result.cells()
    ]
    columns = ["source", "operator", "phase", "compared", "mean error", "median", "bias", "in 90 % int."]
    print_table("by operator", columns, rows, right=range(3, len(columns)))


@validate.command(
    name="collectives", epilog=options.example("validate collectives collectives.parquet --own-points 10")
)
@click.argument("file")
@click.option(
    "--own-points",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="K",
    help="Adapt the estimates of each system without a fit of its own to K of its rows, chosen evenly over sizes and "
    "ranks. These rows are skipped, the others are compared.",
)
@options.bundle()
@options.json()
def collectives(file: str, own_points: int, bundle: tuple[str, ...], as_json: bool) -> None:
    """Compare estimates of single collectives and transfers with FILE.

    The table's `system` column names the machine of a row. A system that no bundle was fitted to is estimated from what
    is known of other systems.
    """
    from traincast.validating.validate import validate as compare

    with progress_bar("collectives") as progress:
        result = compare(file, kind="collectives", bundles=bundle, own_points=own_points, progress=progress)
    _show(result, as_json=as_json)


@validate.command(name="steps", epilog=options.example("validate steps runs.csv --cluster dgx-h100 --explain 3"))
@click.argument("file")
@options.cluster("a name or a .toml file; all rows ran on it. If omitted, each row names its own.", required=False)
@options.uncalibrated()
@options.dialect()
@click.option(
    "--explain", type=click.IntRange(min=0), metavar="ROW", help="Show where the time of one row went, counted from 0."
)
@options.allow_code()
@options.json()
def steps(
    file: str,
    cluster: str | None,
    uncalibrated: bool,
    dialect: str | None,
    explain: int | None,
    allow_code: bool,
    as_json: bool,
) -> None:
    """Compare forecasts of training steps of language models with FILE; each row states its strategy."""
    from traincast.cluster import load_cluster
    from traincast.validating.validate import validate as compare

    place = load_cluster(cluster, whole_nodes=True) if cluster else None
    if explain is not None:
        from traincast.calibrating.explain import explain_row
        from traincast.cli.real_runs.explain import show_explanation
        from traincast.measured.dialect import load_dialect

        found = explain_row(
            Path(file),
            explain,
            cluster=place,
            calibrated=not uncalibrated,
            allow_code=allow_code,
            dialect=load_dialect(Path(dialect)) if dialect else None,
        )
        show_explanation(found, as_json=as_json)
        return
    with progress_bar("steps") as progress:
        result = compare(
            file,
            kind="steps",
            cluster=place,
            calibrated=not uncalibrated,
            allow_code=allow_code,
            dialect=dialect,
            progress=progress,
        )
    _show(result, as_json=as_json)


@validate.command(name="dp-steps", epilog=options.example("validate dp-steps runs.csv"))
@click.argument("file")
@options.uncalibrated()
@options.dialect()
@options.json()
def dp_steps(file: str, uncalibrated: bool, dialect: str | None, as_json: bool) -> None:
    """Compare forecasts of data-parallel training steps of any model with FILE."""
    from traincast.validating.validate import validate as compare

    with progress_bar("dp-steps") as progress:
        result = compare(file, kind="dp-steps", calibrated=not uncalibrated, dialect=dialect, progress=progress)
    _show(result, as_json=as_json)


@validate.command(name="finetune", epilog=options.example("validate finetune runs.csv"))
@click.argument("file")
@options.uncalibrated()
@options.dialect()
@options.json()
def finetune(file: str, uncalibrated: bool, dialect: str | None, as_json: bool) -> None:
    """Compare forecasts of fine-tuning runs with FILE: full, LoRA, QLoRA and other adapters.

    Memory is compared in the kind that a row states: allocated, reserved, or as nvidia-smi shows it.
    """
    from traincast.validating.validate import validate as compare

    with progress_bar("finetune") as progress:
        result = compare(file, kind="finetune", calibrated=not uncalibrated, dialect=dialect, progress=progress)
    _show(result, as_json=as_json)


def _show(result: Validation, *, as_json: bool) -> None:
    if as_json:
        print_json(result.to_dict())
        return
    from traincast.validating.outcome import RowValidation

    rows, summary = [], result.summary()
    assumes = bool(summary["all"].get("assumed"))
    for source, figures in summary.items():
        row = [
            source,
            f"{figures['forecast']}/{figures['rows']}",
            str(figures["n"]),
            *(_percent(figures[k]) for k in ("mape", "median_ape", "bias")),
            _share(figures["spearman"]),
            _share(figures["coverage_90"]),
        ]
        if assumes:
            row.insert(2, str(figures["assumed"]))
        if result.with_memory:
            row += [_share(figures["oom_f1"]), _percent(figures["memory_mape"])]
        rows.append(row)
    columns = ["source", "forecast", "compared", "mean error", "median", "bias", "rank corr.", "in 90 % int."]
    if assumes:
        columns.insert(2, "assumed")
    if result.with_memory:
        columns += ["does-not-fit F1", "memory error"]
    print_table("forecast against measured", columns, rows, right=range(1, len(columns)))
    if result.with_memory:
        _show_fitting(result.summary())
    reasons = Counter(_kind(row.reason) for row in result.rows if row.status == "skipped")
    _list("skipped", reasons.most_common())
    _list("assumed in", list(summary["all"].get("assumptions", {}).items()))
    for warning in result.warnings():
        console().print(f"[yellow]{plain(warning)}[/yellow]", highlight=False)
    if isinstance(result, RowValidation):
        _say_if_calibrated_with(result)


def _list(what: str, counts: list[tuple[str, int]]) -> None:
    """Print one line for each of the most frequent texts, and one for all others."""
    for text, count in counts[:_MOST]:
        console().print(f"[dim]{what} {_counted(count, 'row')}: {plain(text)}[/dim]", highlight=False)
    if len(counts) > _MOST:
        more = sum(count for _, count in counts[_MOST:])
        console().print(f"[dim]{what} {more} more for {len(counts) - _MOST} other reasons: see --json[/dim]")


def _say_if_calibrated_with(result: RowValidation) -> None:
    """Print how many forecasts use a calibration that may have been fitted to the rows they are compared with."""
    seen = result.calibration()["rows_maybe_seen"]
    if seen:
        console().print(
            f"[yellow]{_counted(seen, 'forecast')} may come from a calibration fitted to the same rows[/yellow]: "
            "errors on new runs are larger; --uncalibrated ignores calibrations",
            highlight=False,
        )


def _show_fitting(summary: dict[str, dict[str, Any]]) -> None:
    """Print how well "fits in memory" was forecast, for each source with failed runs."""
    for source, figures in summary.items():
        if math.isnan(figures["oom_f1"]) or source == "all":
            continue
        failed = _percent(100 * figures["fits_failed"])
        text = f"{source}: F1 of fits {_share(figures['fits_f1'])}; {failed} of the runs forecast to fit failed"
        if figures["failed_otherwise"]:
            left = figures["memory_failures"]
            text += (
                f"; without {_counted(figures['failed_otherwise'], 'failure')} that memory did not cause (another run "
                f"that needs at least as much memory succeeded): {_share(left['fits_f1'])} and "
                f"{_percent(100 * left['fits_failed'])}"
            )
        console().print(f"[dim]{text}[/dim]")


def _counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def _kind(reason: str) -> str:
    return reason.split(";", maxsplit=1)[0][:110]


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f} %"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
