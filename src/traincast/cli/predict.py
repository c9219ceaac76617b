"""``traincast predict``: the forecast of one training step, and of the job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincast.cli import options
from traincast.cli.exporting import exported, runtime_for, show_export
from traincast.cli.output import console, input_files, print_json, print_table, traced
from traincast.errors import RequestError
from traincast.files import check_outputs
from traincast.units import (
    HOUR,
    format_bytes,
    format_count,
    format_flops,
    format_parameters,
    format_seconds,
    parse_count,
)

if TYPE_CHECKING:
    from rich.table import Table

    from traincast.forecast import Forecast
    from traincast.report import Report
    from traincast.simulate import Conditions, Timeline

_READABLE_SPANS = 150_000
_CHART_WIDTH = 64


@click.command(
    short_help="Forecast a training step, and the whole job.",
    epilog=options.example("predict llama3-8b --cluster dgx-h100:4 --global-batch 256 --tokens 1e12 --html step.html"),
)
@click.argument("model")
@options.cluster(options.CATALOG_CLUSTER)
@options.global_batch()
@click.option("--strategy", metavar="dp=8,tp=4,…", help="How to spread the work. Chosen to fit in memory if omitted.")
@options.seq()
@options.precision(options.PRECISIONS)
@options.runtime()
@click.option(
    "--shard-rule",
    "shard_rules",
    multiple=True,
    metavar="MODULE=ROLE",
    help="Shard the linear layers that match MODULE by column or row, or replicate them. May be given several times.",
)
@options.job_length()
@click.option(
    "--slow",
    multiple=True,
    metavar="RANK=FACTOR",
    help="3=1.5: rank 3 computes 1.5 times slower. May be given several times.",
)
@click.option("--jitter", type=float, default=0.0, metavar="SIGMA", help="Spread of the ranks' speed, such as 0.05.")
@options.seed("The jitter is drawn with it.")
@click.option(
    "--busy-network",
    type=float,
    default=0.0,
    metavar="SHARE",
    help="Share of the bandwidth between nodes that other jobs use, such as 0.3.",
)
@click.option("--share-links", is_flag=True, help="Let simultaneous messages of a rank share its links.")
@click.option(
    "--memory", "show_memory", is_flag=True, help="Show memory over time, and the largest tensors at its peak."
)
@click.option(
    "--trace", metavar="FILE", help="Write a Chrome trace for Perfetto to FILE. A folder gets one file per rank."
)
@click.option(
    "--trace-ranks", metavar="N|all", help="Number of ranks in the trace. If omitted, as many as stay readable."
)
@options.html()
@options.export("The forecast uses its runtime unless --runtime names another.")
@options.bundle()
@options.no_cache()
@options.json()
@options.renamed("predict")
def predict(
    model: str,
    cluster: str,
    global_batch: int,
    strategy: str | None,
    seq: int | None,
    precision: str | None,
    runtime: str | None,
    shard_rules: tuple[str, ...],
    tokens: int | None,
    samples: int | None,
    steps: int | None,
    slow: tuple[str, ...],
    jitter: float,
    seed: int,
    busy_network: float,
    share_links: bool,
    show_memory: bool,
    trace: str | None,
    trace_ranks: str | None,
    html: str | None,
    export: str | None,
    bundle: tuple[str, ...],
    no_cache: bool,
    as_json: bool,
) -> None:
    """Forecast one training step of MODEL on a cluster.

    MODEL is a name of the zoo (`traincast models`), a family by its dimensions
    (gpt:layers=24,hidden=2048,heads=16), a Hugging Face config.json, a saved graph, or
    package.module:factory.
    """
    from traincast.cluster import load_cluster
    from traincast.estimate import learned_cost_model
    from traincast.forecast import predict as forecast_step

    inputs = input_files({"MODEL": model, "--cluster": cluster, "--runtime": runtime})
    _check_outputs(trace=trace, html=html, inputs=inputs)
    if trace_ranks is not None and trace is None:
        raise RequestError(f"--trace-ranks {trace_ranks} without a trace: give --trace FILE as well")
    place = load_cluster(cluster, hosts=True)
    result = forecast_step(
        traced(model, seq=seq, use_cache=not no_cache),
        cluster=place,
        strategy=strategy,
        global_batch=global_batch,
        precision=precision,
        runtime=runtime_for(export, runtime),
        shard_rules=tuple(_rule(text) for text in shard_rules),
        tokens=tokens,
        samples=samples,
        steps=steps,
        cost_model=learned_cost_model([Path(path) for path in bundle]) if bundle else None,
        conditions=_conditions(slow, jitter=jitter, seed=seed, busy_network=busy_network, share_links=share_links),
    )
    text = exported(result.request, export, chosen=strategy is None)
    written = _write(result, trace=trace, trace_ranks=trace_ranks, html=html)
    if as_json:
        print_json({**result.report.as_dict(), "export": text})
        return
    _show(result.report, chosen=strategy is None, memory=show_memory)
    for what, path in written:
        console().print(f"{what}: {path}")
    _say_if_calibrated(result)
    show_export(text, "the strategy")


def _check_outputs(*, trace: str | None, html: str | None, inputs: Mapping[str, Path]) -> None:
    """Refuse what cannot be written before anything is forecast."""
    outputs = {} if html is None else {"--html": Path(html)}
    if trace is not None and not _is_folder(trace):
        from traincast.report.trace import check_name

        check_name(Path(trace))
    if trace is not None:
        outputs["--trace"] = Path(trace) / "rank0.json.gz" if Path(trace).is_dir() else Path(trace)
    check_outputs(outputs, inputs=inputs)


def _is_folder(trace: str) -> bool:
    return trace.endswith("/") or Path(trace).is_dir()


def _conditions(
    slow: tuple[str, ...], *, jitter: float, seed: int, busy_network: float, share_links: bool
) -> Conditions | None:
    """What was said of the cluster's state; none if nothing was."""
    if not (slow or jitter or busy_network or share_links):
        return None
    from traincast.simulate import Conditions

    pairs = []
    for text in slow:
        rank, _, factor = text.partition("=")
        try:
            pairs.append((int(rank), float(factor)))
        except ValueError:
            raise RequestError(f"--slow {text!r}: expected RANK=FACTOR, such as 3=1.5") from None
    return Conditions(slow=tuple(pairs), jitter=jitter, seed=seed, busy_network=busy_network, share_links=share_links)


def _rule(text: str) -> tuple[str, str]:
    module, equals, role = text.rpartition("=")
    if not equals or not module:
        raise RequestError(f"--shard-rule {text!r}: expected MODULE=column, MODULE=row or MODULE=replicate")
    return module, role


def _write(result: Forecast, *, trace: str | None, trace_ranks: str | None, html: str | None) -> list[tuple[str, str]]:
    """Write the files asked for."""
    written = []
    if trace is not None:
        from traincast.report import write_trace, write_traces

        timeline = result.detailed(all_ranks=result.servers is not None and trace_ranks is not None)
        ranks, world = _ranks_to_trace(timeline, trace_ranks), timeline.plan.mesh.num_ranks
        about = result.report.summary()
        if _is_folder(trace):
            write_traces(timeline, Path(trace), ranks=ranks, about=about)
        else:
            write_trace(timeline, Path(trace), ranks=ranks, about=about)
        shown = f"{sum(rank < world for rank in ranks)} of {world} ranks"
        shown += f" and {result.report.num_servers} servers" if result.servers else ""
        written.append((f"trace of {shown}", trace))
    if html is not None:
        from traincast.report import write_page

        detailed = result.lowered.plan.num_tasks * 15 < _READABLE_SPANS
        write_page(result.report, result.detailed() if detailed else result.timeline, Path(html))
        written.append(("page", html))
    return written


def _say_if_calibrated(result: Forecast) -> None:
    """Point to what measured runs of the same device and runtime taught, where the request does not use it."""
    from traincast.cluster import find_calibrated

    cluster = result.request.cluster
    known = find_calibrated(cluster, result.request.runtime.name) if cluster.calibration is None else None
    if known is not None and known.calibration is not None:
        console().print(
            f"[dim]not calibrated; {known.name} is, with {known.calibration.runs} runs of the same device and runtime: "
            f"see what --cluster {known.name}:{cluster.num_nodes} says[/dim]"
        )


def _ranks_to_trace(timeline: Timeline, wanted: str | None) -> list[int]:
    """One rank of every stage, then the others in order, as many as are wanted or stay readable."""
    mesh = timeline.plan.mesh
    if wanted == "all":
        count = mesh.num_ranks
    elif wanted is not None:
        count = min(mesh.num_ranks, max(mesh.pp, parse_count(wanted, what="--trace-ranks")))
    else:
        per_rank = max(1, len(timeline.plan.lanes) // (len(timeline.plan.ranks) if mesh.pp == 1 else mesh.pp))
        count = min(mesh.num_ranks, max(mesh.pp, _READABLE_SPANS // per_rank))
    first = [int(rank) for rank in timeline.plan.ranks]
    if first[-1] >= mesh.num_ranks:  # parameter servers are shown always
        return [*[rank for rank in first if rank < mesh.num_ranks][:count], *(r for r in first if r >= mesh.num_ranks)]
    others = [rank for rank in range(min(mesh.num_ranks, count + mesh.pp)) if rank not in set(first)]
    return sorted([*first, *others][:count])


def _show(report: Report, *, chosen: bool, memory: bool) -> None:
    from rich import box
    from rich.table import Table

    out = console()
    out.print(f"[bold]{report.model}[/bold] on {report.cluster}", highlight=False)
    how = " (chosen)" if chosen else ""
    out.print(
        f"{report.strategy}{how} · global batch {report.global_batch}, micro batch {report.micro_batch}"
        f"{f' × {report.tokens_per_sample} tokens' if report.tokens_per_sample else ''} · "
        f"{report.precision} · {report.runtime} · "
        f"{format_parameters(report.num_parameters, report.num_trainable_parameters)}"
    )
    if report.conditions is not None:
        out.print(f"under conditions: {report.conditions}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column()
    spread = f"{format_seconds(report.low_s)} … {format_seconds(report.high_s)} (90 % interval)"
    table.add_row("step", f"[bold]{format_seconds(report.step_s)}[/bold]", spread)
    rate = f"{format_count(report.samples_per_s)} samples/s"
    if report.tokens_per_s:
        each = format_count(report.tokens_per_s / report.num_devices)
        table.add_row(
            "throughput", f"{format_count(report.tokens_per_s)} tokens/s", f"{rate}, {each} tokens/s per device"
        )
    else:
        table.add_row("throughput", rate, "")
    table.add_row("MFU", f"{report.mfu:.1%}", "of the peak rate, model FLOPs only")
    table.add_section()
    for name, seconds in (
        ("compute", report.compute_s),
        ("exposed communication", report.exposed_communication_s),
        ("bubble", report.bubble_s),
        ("optimizer", report.optimizer_s),
        ("overhead", report.overhead_s),
        *([("calibrated", report.calibrated_s)] if report.calibrated_s else []),
    ):
        table.add_row(name, format_seconds(seconds), f"{_bar(seconds / report.step_s)} {seconds / report.step_s:.1%}")
    table.add_section()
    _add_memory(table, report)
    table.add_section()
    sources = ", ".join(f"{share:.0%} {name}" for name, share in report.estimated_by.items() if share > 0)
    table.add_row("estimated by", sources, "")
    for use in report.bundles:
        parts = f"{use.operators:.0%} of operators' time, {use.collectives:.0%} of collectives' time"
        table.add_row(f"  {Path(use.path).name}", f"{use.covered:.0%}", parts)
    if report.servers is not None:
        run = report.servers
        nodes = sorted(set(run.nodes))
        at = f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(map(str, nodes))}"
        table.add_row(
            "servers", f"{len(run.nodes)}", f"on {at} of their own" if run.own_nodes else f"beside the workers on {at}"
        )
        table.add_row(
            "",
            f"{format_count(run.worker_steps_per_s)} steps/s",
            f"of all workers; network {max(run.nic_utilization):.0%} in use, updates {max(run.update_utilization):.0%} "
            f"of the time, staleness {run.mean_staleness:.1f} updates (at most {run.max_staleness})",
        )
    need = report.demand
    table.add_row("per device", format_flops(need.computation_flop), "computed in a step")
    table.add_row("", format_bytes(need.memory_access_bytes), "read and written in device memory")
    table.add_row("", format_bytes(need.communication_bytes), "in messages")
    _show_job(table, report)
    out.print(table)
    _show_stages(report)
    _show_waits(report)
    if memory:
        _show_memory(report)
    _show_path(report)
    for warning in report.warnings:
        out.print(f"[yellow]warning:[/yellow] {warning}")


def _add_memory(table: Table, report: Report) -> None:
    """Memory of the fullest device between its bounds, whether it fits, and what the hosts hold."""
    from traincast.strategy.fits import MAY_NOT_FIT, shown_share

    verdict = report.verdict if report.fits else f"[bold red]{report.verdict}[/bold red]"
    if report.verdict == MAY_NOT_FIT:
        verdict += f": {shown_share(report.fits_probability)}"
    spread = f"{format_bytes(report.memory_low_bytes)} … {format_bytes(report.memory_high_bytes)} (90 % interval)"
    table.add_row("memory", format_bytes(report.peak_memory_bytes), spread)
    table.add_row("", "", f"of {format_bytes(report.memory_capacity_bytes)} per device: {verdict}")
    for name, nbytes in report.memory.as_dict().items():
        table.add_row(f"  {name}", format_bytes(nbytes), "")
    if report.host_memory_bytes:
        there = report.host_memory_capacity_bytes
        known = f"of {format_bytes(there)} per node" if there else "per node, whose memory is not known"
        table.add_row("host memory", format_bytes(report.host_memory_bytes), known)


def _show_job(table: object, report: Report) -> None:
    from rich.table import Table

    assert isinstance(table, Table)
    job = report.job
    if job is None:
        return
    table.add_section()
    table.add_row("job", f"[bold]{format_seconds(job.job_s)}[/bold]", f"{job.num_steps:,} steps")
    for name, seconds in (
        ("start-up", job.startup_s),
        ("data loading", job.data_loading_s),
        ("steps", job.steps_s),
        ("checkpoints", job.checkpoints_s),
        ("evaluation", job.evaluation_s),
    ):
        table.add_row(f"  {name}", format_seconds(seconds), "")
    table.add_row("cost", f"${job.cost:,.0f}", f"{job.job_s / HOUR * report.num_devices:,.0f} device-hours")
    table.add_row("energy", f"{job.energy_j / 3.6e9:,.2f} MWh", "")


def _show_memory(report: Report) -> None:
    """Memory of the fullest stage over its schedule, what it is made of, and the tensors of its peak."""
    moments = report.memory_over_time
    if moments:
        most = max(report.memory_capacity_bytes, *(m.total for m in moments))
        every = -(-len(moments) // _CHART_WIDTH)
        levels = [max(m.total for m in moments[i : i + every]) / most for i in range(0, len(moments), every)]
        chart = "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * level))] for level in levels)
        console().print(f"[bold]memory of stage {report.fullest_stage}[/bold] over its {len(moments)} passes")
        console().print(f"{chart}  full height is {format_bytes(most)}", highlight=False)
    parts = [(name, format_bytes(nbytes)) for name, nbytes in report.memory.parts.items() if nbytes > 0]
    print_table("made of", ("part", "bytes"), parts, right=(1,))
    tensors = [(h.label, str(h.in_flight), format_bytes(h.nbytes)) for h in report.peak_tensors]
    print_table("activations at the peak", ("tensor", "in flight", "bytes"), tensors, right=(1, 2))


def _show_waits(report: Report) -> None:
    """Ranks that wait least and most, where ranks differ."""
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
    print_table("who waits", ["rank", "busy", "waits", "most for"], rows, right=(0, 1, 2))


def _show_stages(report: Report) -> None:
    """What the ranks of each pipeline stage do, where there is more than one."""
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
    table.add_column("what")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for entry in report.critical_path[:8]:
        table.add_row(entry.label, format_seconds(entry.seconds), f"{entry.share:.1%}")
    console().print(table)


def _bar(share: float, width: int = 24) -> str:
    filled = round(max(0.0, min(1.0, share)) * width)
    return "█" * filled + "·" * (width - filled)
