"""``traincast predict``: the forecast of one training step, and of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from traincast.ask import Ask, Option
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.forecasting.exporting import exported, runtime_for, show_export
from traincast.cli.forecasting.inspected import inspected_by, inspector_in, show_inspected
from traincast.cli.forecasting.predict_tables import show
from traincast.cli.options import ForecastShown
from traincast.cli.output import console, files_of, loaded_cluster, print_json, traced
from traincast.cli.resources.tables import Drawn, drawn_by, show_drawn
from traincast.errors import RequestError
from traincast.files import check_outputs
from traincast.resources.ask import RATE
from traincast.units import parse_count

if TYPE_CHECKING:
    from traincast.forecast import Forecast
    from traincast.simulate import Timeline

_READABLE_SPANS = 150_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictShown(ForecastShown):
    """What ``predict`` shows and writes."""

    memory: Annotated[bool, Option("Show memory over time, and the largest tensors at its peak.")] = False
    resources: Annotated[bool, Option("Show what the step draws over time from devices, memory, network and host.")] = (
        False
    )
    hz: Annotated[float | None, RATE] = None
    resources_csv: Annotated[str | None, Option("Write the use of resources over time to FILE, as CSV.", "FILE")] = None
    trace: Annotated[
        str | None, Option("Write a Chrome trace for Perfetto to FILE. A folder gets one file per rank.", "FILE")
    ] = None
    trace_ranks: Annotated[
        str | None, Option("Number of ranks in the trace. If omitted, as many as a viewer can show.", "N|all")
    ] = None
    export: Annotated[
        str | None, options.exports("The forecast uses the framework's runtime unless --runtime names another.")
    ] = None


@click.command(
    short_help="Forecast a training step, and the whole job.",
    epilog=options.example("predict llama3-8b --cluster dgx-h100:4 --global-batch 256 --tokens 1e12 --html step.html"),
)
@asks(Ask, PredictShown)
def predict(ask: Ask, shown: PredictShown) -> None:
    """Forecast one training step of MODEL on a cluster.

    MODEL is a name of the zoo (`traincast models`), a family with its dimensions
    (gpt:layers=24,hidden=2048,heads=16), a Hugging Face config.json, a saved graph, or
    package.module:factory.
    """
    from traincast.forecast import predict as forecast_step

    chosen = ask.strategy is None
    files = {"--html": shown.html, "--resources-csv": shown.resources_csv}
    _check_outputs(files, trace=shown.trace, inputs=files_of(ask))
    if shown.trace_ranks is not None and shown.trace is None:
        raise RequestError(f"--trace-ranks {shown.trace_ranks} without a trace: give --trace FILE as well")
    place = loaded_cluster(ask)  # an unknown cluster is refused before the model is traced
    bundle, inspector = inspector_in(ask.bundle, wanted=shown.resources)
    ask = replace(ask, cluster=place, bundle=bundle, runtime=runtime_for(shown.export, ask.runtime))
    result = forecast_step(traced(ask))
    text = exported(result.request, shown.export, chosen=chosen)
    drawn = drawn_by(result, shown.hz) if shown.resources or shown.resources_csv or shown.hz is not None else None
    inspected = inspected_by(result, inspector) if inspector else None
    written = _write(result, shown, drawn)
    if shown.as_json:
        more = drawn.to_dict() if drawn else {}
        if inspected:
            more |= {"timeline_resources": more["resources"], **inspected.to_dict()}
        print_json({**result.report.to_dict(), **more, "export": text})
        return
    show(result.report, memory=shown.memory, explain=shown.explain)
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


def _write(result: Forecast, shown: PredictShown, drawn: Drawn | None) -> list[tuple[str, str]]:
    """Write the requested files; return a description and the path of each."""
    written = []
    trace, trace_ranks, html = shown.trace, shown.trace_ranks, shown.html
    if trace is not None:
        from traincast.report import write_trace, write_traces

        timeline = result.detailed(all_ranks=result.servers is not None and trace_ranks is not None)
        ranks, world = _ranks_to_trace(timeline, trace_ranks), timeline.plan.mesh.num_ranks
        about = result.report.summary()
        if _is_folder(trace):
            write_traces(timeline, Path(trace), ranks=ranks, about=about)
        else:
            write_trace(timeline, Path(trace), ranks=ranks, about=about)
        count = f"{sum(rank < world for rank in ranks)} of {world} ranks"
        count += f" and {result.report.num_servers} servers" if result.servers else ""
        written.append((f"trace of {count}", trace))
    if html is not None:
        from traincast.report import write_page

        detailed = result.lowered.plan.num_tasks * 15 < _READABLE_SPANS
        timeline = result.detailed() if detailed else result.timeline
        write_page(result.report, timeline, Path(html), resources=drawn.page_data() if drawn else None)
        written.append(("page", html))
    if shown.resources_csv is not None and drawn is not None:
        drawn.write_csv(Path(shown.resources_csv))
        written.append(("resources over time", shown.resources_csv))
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
