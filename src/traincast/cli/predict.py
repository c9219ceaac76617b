"""``traincast predict``: the forecast of one training step, and of the job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincast.cli import options
from traincast.cli.cost_model import events_cost_model, inspector_in
from traincast.cli.exporting import exported, runtime_for, show_export
from traincast.cli.finetuning import fine_tuning
from traincast.cli.inspected import inspected_by, show_inspected
from traincast.cli.output import console, input_files, print_json, traced
from traincast.cli.predict_tables import show
from traincast.cli.resource_options import resources_options
from traincast.cli.resource_tables import Drawn, drawn_by, show_drawn
from traincast.errors import RequestError
from traincast.files import check_outputs
from traincast.units import parse_count

if TYPE_CHECKING:
    from traincast.ask import Conditions
    from traincast.forecast import Forecast
    from traincast.simulate import Timeline

_READABLE_SPANS = 150_000


@click.command(
    short_help="Forecast a training step, and the whole job.",
    epilog=options.example("predict llama3-8b --cluster dgx-h100:4 --global-batch 256 --tokens 1e12 --html step.html"),
)
@click.argument("model")
@options.cluster(options.CATALOG_CLUSTER)
@options.global_batch()
@click.option(
    "--strategy",
    metavar="dp=8,tp=4,…",
    help="How to distribute the work over the devices. If omitted, one that fits in memory is chosen, if any does.",
)
@options.seq()
@options.precision(options.PRECISIONS)
@options.runtime()
@fine_tuning()
@click.option(
    "--shard-rule",
    "shard_rules",
    multiple=True,
    metavar="MODULE=ROLE",
    help="Tensor parallelism of linear layers that match MODULE: column, row or replicate. May be given several times.",
)
@options.job_length()
@click.option(
    "--slow",
    multiple=True,
    metavar="RANK=FACTOR",
    help="3=1.5: rank 3 computes 1.5 times slower. May be given several times.",
)
@click.option(
    "--jitter",
    type=float,
    default=0.0,
    metavar="SIGMA",
    help="Spread of the ranks' speed (sigma of its logarithm), such as 0.05.",
)
@options.seed("The jitter depends on it.")
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
@resources_options()
@click.option(
    "--trace", metavar="FILE", help="Write a Chrome trace for Perfetto to FILE. A folder gets one file per rank."
)
@click.option(
    "--trace-ranks", metavar="N|all", help="Number of ranks in the trace. If omitted, as many as a viewer can show."
)
@options.html()
@options.export("The forecast uses the framework's runtime unless --runtime names another.")
@options.bundle()
@options.events()
@options.no_cache()
@options.explain()
@options.json()
def predict(
    model: str,
    cluster: str,
    global_batch: int,
    strategy: str | None,
    seq: int | None,
    precision: str | None,
    runtime: str | None,
    lora: str | None,
    freeze: tuple[str, ...],
    quantize: str | None,
    optimizer: str | None,
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
    resources: bool,
    hz: float | None,
    resources_csv: str | None,
    trace: str | None,
    trace_ranks: str | None,
    html: str | None,
    export: str | None,
    bundle: tuple[str, ...],
    events: str | None,
    no_cache: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Forecast one training step of MODEL on a cluster.

    MODEL is a name of the zoo (`traincast models`), a family with its dimensions
    (gpt:layers=24,hidden=2048,heads=16), a Hugging Face config.json, a saved graph, or
    package.module:factory.
    """
    from traincast.cluster import load_cluster
    from traincast.forecast import predict as forecast_step

    inputs = input_files({"MODEL": model, "--cluster": cluster, "--runtime": runtime})
    _check_outputs({"--html": html, "--resources-csv": resources_csv}, trace=trace, inputs=inputs)
    if trace_ranks is not None and trace is None:
        raise RequestError(f"--trace-ranks {trace_ranks} without a trace: give --trace FILE as well")
    place = load_cluster(cluster, hosts=True)
    bundle, inspector = inspector_in(bundle, wanted=resources)
    result = forecast_step(
        traced(model, seq=seq, use_cache=not no_cache),
        cluster=place,
        strategy=strategy,
        global_batch=global_batch,
        precision=precision,
        runtime=runtime_for(export, runtime),
        lora=lora,
        freeze=freeze,
        quantize=quantize,
        optimizer=optimizer or True,
        shard_rules=tuple(_rule(text) for text in shard_rules),
        tokens=tokens,
        samples=samples,
        steps=steps,
        cost_model=events_cost_model(events, bundle),
        conditions=_conditions(slow, jitter=jitter, seed=seed, busy_network=busy_network, share_links=share_links),
    )
    text = exported(result.request, export, chosen=strategy is None)
    drawn = drawn_by(result, hz) if resources or resources_csv or hz is not None else None
    inspected = inspected_by(result, inspector) if inspector else None
    written = _write(result, trace=trace, trace_ranks=trace_ranks, html=html, drawn=drawn, resources_csv=resources_csv)
    if as_json:
        more = drawn.to_dict() if drawn else {}
        if inspected:
            more |= {"timeline_resources": more["resources"], **inspected.to_dict()}
        print_json({**result.report.to_dict(), **more, "export": text})
        return
    show(result.report, memory=show_memory, explain=explain)
    show_drawn(result, drawn)
    if inspected:
        show_inspected(inspected)
    for what, path in written:
        console().print(f"{what}: {path}")
    _say_if_calibrated(result)
    show_export(text, "the strategy")


def _check_outputs(files: Mapping[str, str | None], *, trace: str | None, inputs: Mapping[str, Path]) -> None:
    """Refuse outputs that cannot be written, before the forecast runs."""
    outputs = {option: Path(path) for option, path in files.items() if path is not None}
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
    """Return the requested conditions, or ``None`` if the options state none."""
    if not (slow or jitter or busy_network or share_links):
        return None
    from traincast.ask import Conditions

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


def _write(
    result: Forecast,
    *,
    trace: str | None,
    trace_ranks: str | None,
    html: str | None,
    drawn: Drawn | None,
    resources_csv: str | None,
) -> list[tuple[str, str]]:
    """Write the requested files; return a description and the path of each."""
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
        timeline = result.detailed() if detailed else result.timeline
        write_page(result.report, timeline, Path(html), resources=drawn.page_data() if drawn else None)
        written.append(("page", html))
    if resources_csv is not None and drawn is not None:
        drawn.write_csv(Path(resources_csv))
        written.append(("resources over time", resources_csv))
    return written


def _say_if_calibrated(result: Forecast) -> None:
    """Print the name of a calibrated cluster with the same device and runtime, unless the request is calibrated."""
    from traincast.cluster import find_entry
    from traincast.strategy.model_kind import model_kind

    request, cluster = result.request, result.request.cluster
    known = find_entry(cluster, request.runtime.name, models=model_kind(request.graph))
    if known is not None and cluster.calibration is None:
        console().print(
            f"[dim]this forecast is not calibrated; {known.name} is calibrated with {known.runs} runs of the same "
            f"device and runtime: compare with --cluster {known.name}:{cluster.num_nodes}[/dim]"
        )


def _ranks_to_trace(timeline: Timeline, wanted: str | None) -> list[int]:
    """Return the ranks to trace: one of each stage, then others in order, up to ``wanted`` or the readable number."""
    mesh = timeline.plan.mesh
    if wanted == "all":
        count = mesh.num_ranks
    elif wanted is not None:
        count = min(mesh.num_ranks, max(mesh.pp, parse_count(wanted, what="--trace-ranks")))
    else:
        per_rank = max(1, len(timeline.plan.lanes) // (len(timeline.plan.ranks) if mesh.pp == 1 else mesh.pp))
        count = min(mesh.num_ranks, max(mesh.pp, _READABLE_SPANS // per_rank))
    first = [int(rank) for rank in timeline.plan.ranks]
    if first[-1] >= mesh.num_ranks:  # parameter servers are always shown
        return [*[rank for rank in first if rank < mesh.num_ranks][:count], *(r for r in first if r >= mesh.num_ranks)]
    others = [rank for rank in range(min(mesh.num_ranks, count + mesh.pp)) if rank not in set(first)]
    return sorted([*first, *others][:count])
