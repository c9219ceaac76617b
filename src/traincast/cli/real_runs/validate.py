"""``traincast validate operators | collectives | steps | dp-steps | finetune``: forecasts against measured runs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import Meta

from traincast.ask import Option
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, plain, print_json, print_table, progress_bar
from traincast.validating.ask import TableKind, ValidateAsk, refused

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
@asks(ValidateAsk, Shown, without=refused("operators"))
def operators(ask: ValidateAsk, shown: Shown) -> None:
    """Compare estimates of single operators on one device with FILE."""
    from traincast.validating.operators import OperatorValidation

    result = _compared(ask, "operators")
    assert isinstance(result, OperatorValidation)
    if shown.as_json:
        for line in result.json_lines():
            click.echo(line)
        return
    _show(result, as_json=False)
    _show_cells(result)
    _say_if_trained_on(Path(ask.table), [Path(bundle) for bundle in ask.bundles])


def _compared(ask: ValidateAsk, kind: TableKind) -> Validation:
    """Compare with a table of this kind, and show the progress."""
    from traincast.validating.validate import validate as compare

    with progress_bar(kind) as progress:
        return compare(replace(ask, kind=kind, progress=progress))


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
@asks(ValidateAsk, Shown, without=refused("collectives"), defaults={"own_points": 0})
def collectives(ask: ValidateAsk, shown: Shown) -> None:
    """Compare estimates of single collectives and transfers with FILE.

    The table's `system` column names the machine of a row. A system that no bundle was fitted to is estimated from what
    is known of other systems.
    """
    _show(_compared(ask, "collectives"), as_json=shown.as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsShown(Shown):
    """What ``validate steps`` shows."""

    row: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Option("Show where the time of one row went, counted from 0.", "ROW", flag="--explain"),
    ] = None


@validate.command(name="steps", epilog=options.example("validate steps runs.csv --cluster dgx-h100 --explain 3"))
@asks(ValidateAsk, StepsShown, without=refused("steps"))
def steps(ask: ValidateAsk, shown: StepsShown) -> None:
    """Compare forecasts of training steps of language models with FILE; each row states its strategy."""
    if shown.row is None:
        _show(_compared(ask, "steps"), as_json=shown.as_json)
        return
    from traincast.calibrating.explain import explain_row
    from traincast.cli.real_runs.explain import show_explanation
    from traincast.cluster import load_cluster
    from traincast.measured.dialect import load_dialect

    found = explain_row(
        Path(ask.table),
        shown.row,
        cluster=load_cluster(str(ask.cluster), whole_nodes=True) if ask.cluster else None,
        calibrated=ask.calibrated,
        allow_code=ask.allow_code,
        dialect=load_dialect(Path(ask.dialect)) if ask.dialect else None,
    )
    show_explanation(found, as_json=shown.as_json)


@validate.command(name="dp-steps", epilog=options.example("validate dp-steps runs.csv"))
@asks(ValidateAsk, Shown, without=refused("dp-steps"))
def dp_steps(ask: ValidateAsk, shown: Shown) -> None:
    """Compare forecasts of data-parallel training steps of any model with FILE."""
    _show(_compared(ask, "dp-steps"), as_json=shown.as_json)


@validate.command(name="finetune", epilog=options.example("validate finetune runs.csv"))
@asks(ValidateAsk, Shown, without=refused("finetune"))
def finetune(ask: ValidateAsk, shown: Shown) -> None:
    """Compare forecasts of fine-tuning runs with FILE: full, LoRA, QLoRA and other adapters.

    Memory is compared in the kind that a row states: allocated, reserved, or as nvidia-smi shows it.
    """
    _show(_compared(ask, "finetune"), as_json=shown.as_json)


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
