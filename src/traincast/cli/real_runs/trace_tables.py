"""Tables of ``traincast trace``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traincast.cli.output import console, plain, print_table
from traincast.units import format_seconds

if TYPE_CHECKING:
    from traincast.traces.diff import Difference, TraceDiff
    from traincast.traces.learn import LearnedEvents
    from traincast.traces.replay import ReplayReport
    from traincast.traces.show import TraceSummary
    from traincast.traces.whatif import WhatIfAnswer

_MOST: Final = 10
_STEPS: Final = 8
_NAME: Final = 72


def signed(error: float) -> str:
    """Return a signed error in per cent, with two decimals."""
    return f"{error:+.2%}".replace("%", " %").replace("-", "−")


def share(value: float) -> str:
    """Return a share in per cent."""
    return f"{value:.1%}".replace("%", " %")


def show_summary(summary: TraceSummary) -> None:
    """Print what traces hold."""
    out = console()
    first = summary.ranks[0]
    ranks = f"{len(summary.ranks)} of {first.world_size} ranks" if first.world_size > 1 else "one rank"
    out.print(f"[bold]{plain(first.path)}[/bold] · {ranks} · {plain(first.device)}")
    steps = ", ".join(format_seconds(seconds) for _, _, seconds in first.steps_s[:_STEPS])
    more = f" and {len(first.steps_s) - _STEPS} more" if len(first.steps_s) > _STEPS else ""
    num_steps = "one step" if len(first.steps_s) == 1 else f"{len(first.steps_s)} steps"
    whole = format_seconds(first.step_s * len(first.steps_s))
    out.print(f"step {format_seconds(summary.step_s)}: {num_steps} in {whole} on the {first.paced_by}")
    out.print(f"steps on the host: {steps}{more}")
    found = summary.breakdown
    if summary.processor:
        parts = [
            ("compute", found.compute_s, "operators run"),
            ("exposed communication", found.exposed_communication_s, "only communication runs"),
            ("host", found.host_s, "no operator runs: Python, the loader, autograd's engine"),
        ]
    else:
        parts = [
            ("compute", found.compute_s, "kernels run"),
            ("exposed communication", found.exposed_communication_s, "only communication runs"),
            ("bubble", found.bubble_s, "communication waits for another rank"),
            ("copies", found.copies_s, "only copies and fills run"),
            ("host", found.host_s, "nothing runs: the next kernel is not launched yet"),
            ("idle", found.idle_s, "nothing runs, for another reason"),
        ]
    rows = [[name, format_seconds(s), share(s / summary.breakdown.total_s), text] for name, s, text in parts]
    print_table("Where a step goes", ["part", "time", "share", "meaning"], rows, right=(1, 2))
    if not summary.processor:  # all of it is the host's
        rows = [
            [plain(e.label[:_NAME]), format_seconds(e.seconds), share(e.share), str(e.count)]
            for e in summary.critical_path[:_MOST]
        ]
        title = f"Critical path of the whole trace, {format_seconds(summary.total_s)}"
        print_table(title, ["what", "time", "share", "tasks"], rows, right=(1, 2, 3))
    rows = [
        [plain(o.name[:_NAME]), format_seconds(o.seconds), share(o.share), f"{o.kernels:g}"]
        for o in summary.operators[:_MOST]
    ]
    on, what = ("processor", "runs") if summary.processor else ("device", "kernels")
    print_table(f"Operators by time on the {on}, per step", ["operator", "time", "share", what], rows, right=(1, 2, 3))
    if summary.rates:
        rows = [
            [plain(r.name), format_seconds(r.seconds), share(r.compute_share), share(r.memory_share), r.bound]
            for r in summary.rates[:_MOST]
        ]
        columns = ["operator", "time", "of peak FLOP/s", "of peak bandwidth", "bound by"]
        print_table("Roofline, per step", columns, rows, right=(1, 2, 3))
    for text in summary.missing:
        out.print(f"missing: {plain(text)}")
    for note in summary.notes:
        out.print(f"note: {plain(note)}")


def show_replay(report: ReplayReport) -> None:
    """Print how a replay agrees with its trace."""
    rows = [
        ["step, measured", format_seconds(report.measured_step_s), ""],
        ["step, replayed", format_seconds(report.replayed_step_s), signed(report.step_error)],
        ["measured", format_seconds(report.measured_s), ""],
        ["replayed", format_seconds(report.replayed_s), signed(report.error)],
        ["worst step", "", signed(report.worst_step_error)],
        ["strict", format_seconds(report.strict_s), signed(report.strict_error)],
        ["strict, worst step", "", signed(report.strict_worst_step_error)],
        ["opaque share", "", share(report.opaque_share)],
    ]
    print_table("Replay", ["", "time", "error"], rows, right=(1, 2))
    for note in report.notes:
        console().print(f"note: {plain(note)}")


def show_answer(answer: WhatIfAnswer) -> None:
    """Print the answer to a what-if question."""
    out = console()
    out.print(f"[bold]{plain('; '.join(answer.changes))}[/bold]")
    out.print(f"step now   {format_seconds(answer.base_s)}")
    if answer.refused is not None or answer.step_s is None or answer.low_s is None or answer.high_s is None:
        out.print(f"refused: {plain(answer.refused or '')}")
        for note in answer.notes:
            out.print(f"note: {plain(note)}")
        return
    interval = f"{format_seconds(answer.low_s)} to {format_seconds(answer.high_s)}"
    out.print(
        f"step then  {format_seconds(answer.step_s)} ({interval}): {answer.base_s / answer.step_s:.2f} times as fast"
    )
    for text in answer.assumptions:
        out.print(f"assumes: {plain(text)}")
    for note in answer.notes:
        out.print(f"note: {plain(note)}")


def show_comparison(found: TraceDiff) -> None:
    """Print what differs between two runs."""
    out = console()
    out.print(f"before: {plain(found.before)}", highlight=False)
    out.print(f"after:  {plain(found.after)}", highlight=False)
    rows = [_row(d) for d in (found.step, *found.parts)]
    print_table("A step", ["part", "before", "after", "change", "times"], rows, right=(1, 2, 3, 4))
    if found.operators:
        rows = [[*_row(d), f"{d.count_before:g} → {d.count_after:g}"] for d in found.operators[: 2 * _MOST]]
        columns = ["operator", "before", "after", "change", "times", "runs" if found.processor else "kernels"]
        print_table(
            f"Operators by time on the {'processor' if found.processor else 'device'}, per step",
            columns,
            rows,
            right=(1, 2, 3, 4, 5),
        )
    for note in found.notes:
        out.print(f"note: {plain(note)}")


def _row(one: Difference) -> list[str]:
    sign = "−" if one.change_s < 0 else "+"
    times = f"{one.after_s / one.before_s:.2f}" if one.before_s > 0 else "–"
    change = f"{sign}{format_seconds(abs(one.change_s))}"
    return [plain(one.name[:_NAME]), format_seconds(one.before_s), format_seconds(one.after_s), change, times]


def show_learned(learned: LearnedEvents, path: str) -> None:
    """Print what became events."""
    out, kinds = console(), learned.counts
    found = f"{kinds['operator']} operators and {kinds['collective']} collectives"
    where = f"{plain(learned.card.device)} in {plain(learned.card.precision)}"
    out.print(f"{found} of {where}: {share(learned.covered)} of the device's compute time")
    out.print(f"wrote {plain(path)}; use it with `traincast predict MODEL … --events {plain(path)}`", highlight=False)
    for note in learned.notes:
        out.print(f"note: {plain(note)}")
