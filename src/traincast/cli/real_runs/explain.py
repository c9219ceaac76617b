"""``traincast validate steps FILE --explain ROW``: one measured run beside its forecast."""

from __future__ import annotations

from traincast.calibrating.explain import Explanation
from traincast.cli.output import console, plain, print_json, print_table

_MOST = 10


def show_explanation(found: Explanation, *, as_json: bool) -> None:
    """Print where the forecast's time goes and which parameters change it most."""
    if as_json:
        print_json(found.to_dict())
        return
    _show(found)
    for sentence in found.assumed:
        console().print(f"[dim]assumed: {plain(sentence)}[/dim]", highlight=False)


def _show(found: Explanation) -> None:
    report, out = found.report, console()
    out.print(f"row {found.index}: {report.model} on {report.cluster}")
    out.print(f"[dim]{report.strategy}, {report.runtime}, {report.precision}, global batch {report.global_batch}[/dim]")
    inside = "inside" if report.low_s <= found.measured_s <= report.high_s else "outside"
    out.print(
        f"{found.measured_s:.4g} s measured, {report.step_s:.4g} s forecast ({100 * found.error:+.1f} %), "
        f"{inside} its interval of {report.low_s:.4g} to {report.high_s:.4g} s"
    )
    names = ("compute", "exposed_communication", "bubble", "optimizer", "overhead", "calibrated")
    parts = [(name.replace("_", " "), float(getattr(report, f"{name}_s"))) for name in names]
    rows = [[name, f"{seconds:.4g} s", f"{100 * seconds / report.step_s:.1f} %"] for name, seconds in parts if seconds]
    print_table("where the forecast's time goes", ["part", "time", "share"], rows, right=(1, 2))
    changes = [
        [s.name, f"{s.per_tenth:+.2f} %", f"× {s.to_match:.2f}" if s.to_match else "none up to × 10", s.meaning]
        for s in found.sensitivities[:_MOST]
    ]
    columns = ["parameter", "if 10 % larger", "factor to match", "meaning"]
    print_table("what the forecast depends on", columns, changes, right=(1, 2))
    for warning in report.warnings:
        out.print(f"[yellow]{warning}[/yellow]")
