"""Tables of ``traincast testbed``: runs, comparisons and studies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traincast.cli.output import console, plain, print_table
from traincast.units import format_seconds

if TYPE_CHECKING:
    from traincast.testbed.folder import RunFolder
    from traincast.testbed.outcome import Comparison, Disagreement
    from traincast.testbed.study.outcome import Study

_MOST_DEVICES = 16
_WORST = 5
_SHOWN = 1e-3


def signed(error: float) -> str:
    """Return a signed error in per cent: ``+3.1 %``."""
    return f"{error:+.1%}".replace("%", " %").replace("-", "−")


def percent(share: float | None) -> str:
    """Return a share in per cent: ``3.1 %``; a dash if it is not known."""
    return "–" if share is None else f"{share:.1%}".replace("%", " %")


def show_run(run: RunFolder) -> None:
    """Print what a run measured."""
    out = console()
    out.print(f"[bold]{plain(run.model)}[/bold] · {plain(run.strategy)} · {run.num_ranks} ranks · {_where(run)}")
    out.print(
        f"step {format_seconds(run.step_s)}: mean of {len(run.steps_s)} steps, which vary by {percent(run.repeat_cv)}"
    )
    if run.disturbed_steps:
        out.print(f"{run.disturbed_steps} more steps were disturbed by other processes and do not count")
    if run.cannot_carry:
        out.print(f"[yellow]this machine cannot carry it:[/yellow] {plain(run.cannot_carry)}", highlight=False)
    _show_warnings(run.warnings)


def show_comparison(found: Comparison) -> None:
    """Print a comparison: errors of the step and of every device, and the worst disagreements."""
    out = console()
    out.print(
        f"[bold]{plain(found.model)}[/bold] · {plain(found.strategy)} · {found.num_ranks} ranks · {_where(found)}"
    )
    errors = [
        ["batch error", signed(found.batch_error), f"noise of the machine: {percent(found.noise)}"],
        ["activity error", percent(found.activity_error), f"noise of the machine: {percent(found.activity_noise)}"],
    ]
    rows = [
        ["step measured", format_seconds(found.measured_s), f"mean of {found.num_steps} steps"],
        ["step forecast", format_seconds(found.predicted_s), _times_from(found)],
        *([] if found.cannot_carry else errors),
    ]
    if found.cannot_carry:
        _show_figures(rows)
        out.print(f"[yellow]this machine cannot carry the run:[/yellow] {plain(found.cannot_carry)}", highlight=False)
        _show_warnings(found.warnings)
        return
    if found.span_shift is not None:
        rows.append(["shift of single spans", percent(found.span_shift), "start and end, matched by order"])
    _show_figures(rows)
    _show_devices(found)
    worst = [one for one in found.worst if abs(one.error) >= _SHOWN][:_WORST]
    out.print("worst disagreements (share of the step):" if worst else "no figure differs by 0.1 % of the step or more")
    for one in worst:
        out.print(f"  {plain(sentence_of(one))}", highlight=False)
    _show_warnings(found.warnings)


def _show_figures(rows: list[list[str]]) -> None:
    """Print a name, a value and a note in each row."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column()
    for row in rows:
        table.add_row(*row)
    console().print(table)
    console().print()


def sentence_of(one: Disagreement) -> str:
    """Return a disagreement as a sentence."""
    size, where = percent(abs(one.error)), f"rank {one.rank}, {one.name}"
    if one.figure == "missing":
        side = "forecast" if one.measured_s is None else "run"
        return f"{where}: only in the {side}, busy for {size}"
    noise = f"(noise {percent(one.noise)})"
    if one.figure == "busy":
        return f"{where}: the forecast is busy {'longer' if one.error > 0 else 'shorter'} by {size} {noise}"
    return f"{where}: the forecast {one.figure}s {'later' if one.error > 0 else 'earlier'} by {size} {noise}"


def _where(found: RunFolder | Comparison) -> str:
    compute = "real compute" if found.compute == "real" else f"emulated {plain(found.compute)}"
    return f"{compute} · {plain(found.network)}"


def _times_from(found: Comparison) -> str:
    if found.events is None:
        return "times from bundles and physics"
    return f"{percent(found.estimated_by.get('measured', 0.0))} of the device time from events"


def _show_devices(found: Comparison) -> None:
    names = list(dict.fromkeys(each.name for device in found.by_device for each in device.classes))
    rows = []
    for device in found.by_device[:_MOST_DEVICES]:
        errors = {each.name: each.error for each in device.classes}
        title = f"rank {device.rank}" if device.rank < found.num_ranks else f"server {device.rank - found.num_ranks}"
        figures = [percent(device.error), percent(device.noise), *(percent(errors.get(n)) for n in names)]
        rows.append([title, *figures, *map(_seconds, (device.measured_idle_s, device.predicted_idle_s))])
    columns = ["device", "error", "noise", *names, "idle, run", "idle, forecast"]
    print_table("activity error by device", columns, rows, right=range(1, len(columns)))


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)


def _show_warnings(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        console().print(f"[yellow]warning:[/yellow] {plain(warning)}", highlight=False)


def show_study(study: Study) -> None:
    """Print the cells of a study and its mean errors."""
    models = {cell.model for cell in study.done}
    shared = f"{next(iter(models))} · " if len(models) == 1 else ""  # a spec leaves no room for figures
    rows = [
        [
            cell.name.removeprefix(shared),
            format_seconds(cell.measured_s),
            format_seconds(cell.predicted_s),
            signed(cell.batch_error),
            percent(cell.activity_error),
            percent(cell.noise),
        ]
        for cell in study.carried
    ]
    columns = ["cell", "measured", "forecast", "batch error", "activity error", "noise"]
    print_table(f"study of {next(iter(models))}" if shared else "study", columns, rows, right=range(1, len(columns)))
    for name, summary in study.summaries().items():
        console().print(
            f"{name}: {summary.cells} cells, batch error {percent(summary.batch_error)} on average, worst "
            f"{percent(summary.worst_batch_error)}; activity error {percent(summary.activity_error)}; "
            f"noise {percent(summary.noise)}; {summary.beyond_noise} beyond twice their noise",
            highlight=False,
        )
    for one in study.done:
        if one.cannot_carry:
            out = f"[yellow]not carried by this machine:[/yellow] {plain(one.name)}: {plain(one.cannot_carry)}"
            console().print(out, highlight=False)
    for cell, reason in study.failed.items():
        console().print(f"[yellow]failed:[/yellow] {plain(cell)}: {plain(reason)}", highlight=False)
    _show_warnings(study.warnings)
