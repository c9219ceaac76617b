"""Tables of ``traincast predict``: the report of a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from traincast.cli.output import console, plain, print_table, print_warnings
from traincast.units import HOUR, format_bytes, format_count, format_flops, format_parameters, format_seconds

if TYPE_CHECKING:
    from traincast.report import Report

_CHART_WIDTH = 64
_SMALL = 0.05
"""Share of the doubt below which a cause is not printed; the JSON has all of them."""
_NEIGHBOURS = 3
"""Number of measured runs shown beside a forecast; the JSON has more."""
_SLOWED = 1.005
"""From this factor on, the report says that power slows products."""


Row: TypeAlias = tuple[str, str, str]
"""Name of a figure, its value, and a note."""


def show(report: Report, *, memory: bool, explain: bool) -> None:
    """Print ``report``; ``memory``: also print memory over time; ``explain``: print all warnings."""
    out = console()
    out.print(f"[bold]{report.model}[/bold] on {report.cluster}", highlight=False)
    how = " (chosen by Traincast)" if report.choice else ""
    out.print(
        f"{report.strategy}{how} · global batch {report.global_batch}, micro batch {report.micro_batch}"
        f"{f' × {report.tokens_per_sample} tokens' if report.tokens_per_sample else ''} · "
        f"{report.precision} · {report.runtime} · "
        f"{format_parameters(report.num_parameters, report.num_trainable_parameters)}"
    )
    if report.choice is not None:
        out.print(f"chosen: {report.choice}", highlight=False)
    if report.conditions is not None:
        out.print(f"under conditions: {report.conditions}", highlight=False)
    details = [*_sources(report), _split(report), *_power(report), *_doubt(report), *_demand(report)]
    _show_figures([_pace(report), _parts(report), _memory(report), details, _evidence(report), _job(report)])
    _show_stages(report)
    _show_waits(report)
    if memory:
        _show_memory(report)
    _show_path(report)
    for sentence in report.evidence_words:
        out.print(plain(sentence), highlight=False)
    print_warnings(report.warnings, explain=explain)


def _show_figures(sections: Sequence[Sequence[Row]]) -> None:
    """Print the figures as one table, with a gap between sections; a section without rows is left out."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column()
    for number, rows in enumerate(filter(None, sections)):
        if number:
            table.add_section()
        for row in rows:
            table.add_row(*row)
    console().print(table)


def _pace(report: Report) -> list[Row]:
    """Return the rows of the step time, the throughput and the MFU."""
    spread = f"{format_seconds(report.low_s)} … {format_seconds(report.high_s)} (90 % interval)"
    rate = f"{format_count(report.samples_per_s)} samples/s"
    throughput: Row = ("throughput", rate, "")
    if report.tokens_per_s:
        each = format_count(report.tokens_per_s / report.num_devices)
        throughput = (
            "throughput",
            f"{format_count(report.tokens_per_s)} tokens/s",
            f"{rate}, {each} tokens/s per device",
        )
    return [
        ("step", f"[bold]{format_seconds(report.step_s)}[/bold]", spread),
        *(
            (f"  if {mode.name}", format_seconds(mode.step_s), f"{mode.probability:.0%} of runs")
            for mode in report.modes
        ),
        throughput,
        ("MFU", f"{report.mfu:.1%}", "of the peak FLOP rate, counting model FLOPs only"),
    ]


def _parts(report: Report) -> list[Row]:
    """Return one row for each part of the step time."""
    parts = [
        ("compute", report.compute_s),
        ("exposed communication", report.exposed_communication_s),
        ("bubble", report.bubble_s),
        ("optimizer", report.optimizer_s),
        ("overhead", report.overhead_s),
        *([("calibrated", report.calibrated_s)] if report.calibrated_s else []),
    ]
    shares = [(name, seconds, seconds / report.step_s) for name, seconds in parts]
    return [(name, format_seconds(seconds), f"{_bar(share)} {share:.1%}") for name, seconds, share in shares]


def _split(report: Report) -> Row:
    """Return the row that says what bounds the step, the longest part first."""
    names = {"waiting_s": "other ranks", "calibrated_s": "calibration"}
    parts = sorted(report.split.parts.items(), key=lambda part: -part[1])
    said = [
        f"{format_seconds(seconds)} {names.get(name, name.removesuffix('_s').replace('_', ' '))}"
        for name, seconds in parts
        if seconds >= 0.0005 * report.step_s
    ]
    return "bound by", said[0], ", ".join(said[1:])


def _doubt(report: Report) -> list[Row]:
    """Return the row that says what makes the interval as wide as it is, the largest cause first."""
    said = [f"{share:.0%} {name.replace('_', ' ')}" for name, share in report.doubt.items() if share >= _SMALL]
    return [("doubt from", said[0], ", ".join(said[1:]))] if said else []


def _memory(report: Report) -> list[Row]:
    """Return the rows of memory: the fullest device, whether it fits, its parts, and host memory."""
    from traincast.strategy.memory.fits import MemoryFit, shown_share

    verdict = report.verdict if report.fits else f"[bold red]{report.verdict}[/bold red]"
    if report.fit is MemoryFit.MAY_NOT_FIT:
        verdict += f": {shown_share(report.fits_probability)}"
    spread = f"{format_bytes(report.memory_low_bytes)} … {format_bytes(report.memory_high_bytes)} (90 % interval)"
    rows: list[Row] = [
        ("memory", format_bytes(report.peak_memory_bytes), spread),
        ("", "", f"of {format_bytes(report.memory_capacity_bytes)} per device: {verdict}"),
        *((f"  {name}", format_bytes(nbytes), "") for name, nbytes in report.memory.to_dict().items()),
    ]
    if report.host_memory_bytes:
        there = report.host_memory_capacity_bytes
        known = f"of {format_bytes(there)} per node" if there else "per node, whose memory is not known"
        rows.append(("host memory", format_bytes(report.host_memory_bytes), known))
    return rows


def _sources(report: Report) -> list[Row]:
    """Return the rows that name the sources of the times, and the rows of parameter servers."""
    sources = ", ".join(f"{share:.0%} {name}" for name, share in report.estimated_by.items() if share > 0)
    rows: list[Row] = [("estimated by", sources, "")]
    for use in report.bundles:
        parts = f"{use.operators:.0%} of operators' time, {use.collectives:.0%} of collectives' time"
        rows.append((f"  {Path(use.path).name}", f"{use.covered:.0%}", parts))
    if report.servers is not None:
        run = report.servers
        nodes = sorted(set(run.nodes))
        at = f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(map(str, nodes))}"
        rows += [
            (
                "servers",
                f"{len(run.nodes)}",
                f"on {at} of their own" if run.own_nodes else f"beside the workers on {at}",
            ),
            (
                "",
                f"{format_count(run.worker_steps_per_s)} steps/s",
                f"of all workers; busiest server: network {max(run.nic_utilization):.0%} in use, updates "
                f"{max(run.update_utilization):.0%} of the time; staleness {run.mean_staleness:.1f} updates "
                f"(at most {run.max_staleness})",
            ),
        ]
    return rows


def _power(report: Report) -> list[Row]:
    """Return the row that says how much a power limit slows products; none if it hardly does."""
    if report.power_slowdown < _SLOWED:
        return []
    limit = f"{report.power_limit_w:.0f} W"
    return [("power", limit, f"products take {report.power_slowdown:.2f} times as long as at full clock")]


def _demand(report: Report) -> list[Row]:
    """Return the rows of the work that one device does in a step."""
    need = report.demand
    return [
        ("per device", format_flops(need.computation_flop), "computed in a step"),
        ("", format_bytes(need.memory_access_bytes), "read and written in device memory"),
        ("", format_bytes(need.communication_bytes), "in messages"),
    ]


def _job(report: Report) -> list[Row]:
    """Return the rows of time, cost and energy of the job; none if the request has no job length."""
    job = report.job
    if job is None:
        return []
    parts = (
        ("start-up", job.startup_s),
        ("data loading", job.data_loading_s),
        ("steps", job.steps_s),
        ("checkpoints", job.checkpoints_s),
        ("evaluation", job.evaluation_s),
    )
    return [
        ("job", f"[bold]{format_seconds(job.job_s)}[/bold]", f"{job.num_steps:,} steps"),
        *((f"  {name}", format_seconds(seconds), "") for name, seconds in parts),
        ("cost", f"${job.cost:,.0f}", f"{job.job_s / HOUR * report.num_devices:,.0f} device-hours"),
        ("energy", f"{job.energy_j / 3.6e9:,.2f} MWh", ""),
    ]


def _show_memory(report: Report) -> None:
    """Print memory of the fullest stage over its schedule, its parts, and the tensors alive at its peak."""
    moments = report.memory_over_time
    if moments:
        most = max(report.memory_capacity_bytes, *(m.total for m in moments))
        every = -(-len(moments) // _CHART_WIDTH)
        levels = [max(m.total for m in moments[i : i + every]) / most for i in range(0, len(moments), every)]
        chart = "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * level))] for level in levels)
        console().print(f"[bold]memory of stage {report.fullest_stage}[/bold] over its {len(moments)} passes")
        console().print(f"{chart}  full height is {format_bytes(most)}", highlight=False)
    parts = [(name, format_bytes(nbytes)) for name, nbytes in report.memory.parts.items() if nbytes > 0]
    print_table("memory by part", ("part", "bytes"), parts, right=(1,))
    tensors = [(h.label, str(h.in_flight), format_bytes(h.nbytes)) for h in report.peak_tensors]
    print_table("activations at the peak", ("tensor", "in flight", "bytes"), tensors, right=(1, 2))


def _show_waits(report: Report) -> None:
    """Print the ranks that wait least and most; print nothing if all ranks do the same."""
    if not report.waits:
        return
    few = report.waits if len(report.waits) <= 8 else (*report.waits[:4], *report.waits[-4:])
    rows = [
        [
            str(w.rank),
            format_seconds(w.busy_s),
            format_seconds(w.waiting_s),
            "" if w.for_rank < 0 else f"rank {w.for_rank}, {format_seconds(w.for_rank_s)}",
        ]
        for w in few
    ]
    print_table("ranks that wait", ["rank", "busy", "waiting", "mostly for"], rows, right=(0, 1, 2))


def _show_stages(report: Report) -> None:
    """Print one row for each pipeline stage, if there are several."""
    if len({r.stage for r in report.ranks}) == 1:
        return
    rows = [
        (
            str(r.stage),
            str(r.rank),
            f"{r.utilization:.1%}",
            format_seconds(r.breakdown.compute_s),
            format_seconds(r.breakdown.exposed_communication_s),
            format_seconds(r.breakdown.bubble_s),
            format_bytes(r.memory.total),
        )
        for _, r in sorted({r.stage: r for r in reversed(report.ranks)}.items())
    ]
    columns = ("stage", "first rank", "busy", "compute", "exposed comm.", "bubble", "memory")
    print_table("stages", columns, rows, right=range(1, 7))


def _show_path(report: Report) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title="critical path", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("event")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for entry in report.critical_path[:8]:
        table.add_row(entry.label, format_seconds(entry.seconds), f"{entry.share:.1%}")
    console().print(table)


def _evidence(report: Report) -> list[Row]:
    """Return the rows of the nearest measured runs: the time of a step, and how far our forecast of it is off."""
    return [
        (
            "" if number else "measured nearby",
            format_seconds(one.measured_s),
            plain(
                f"{one.model} on {one.devices:,} {one.device}: forecast {100 * one.error:+.0f} %, "
                f"distance {one.distance:.1f}"
            ),
        )
        for number, one in enumerate(report.evidence[:_NEIGHBOURS])
    ]


def _bar(share: float, width: int = 24) -> str:
    filled = round(max(0.0, min(1.0, share)) * width)
    return "█" * filled + "·" * (width - filled)
