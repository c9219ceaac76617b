"""``traincast trace show | replay | whatif | diff | learn``: profiler traces explained, replayed and changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from traincast.cli import options
from traincast.cli.output import console, print_json
from traincast.cli.trace_tables import show_answer, show_comparison, show_learned, show_replay, show_summary
from traincast.errors import RequestError
from traincast.files import check_folder, check_output, write_text

if TYPE_CHECKING:
    from traincast.traces.change import TraceChange
    from traincast.traces.recording import Recording
    from traincast.traces.replay import Replayed
    from traincast.traces.trace import ProfilerTrace

_FACTOR: Final = re.compile(r"^\d+(?:\.\d+)?x$")
_TRACES: Final = click.argument("traces", nargs=-1, required=True, metavar="TRACE…")
_RANGE: Final = click.option(
    "--range",
    "named",
    metavar="NAME",
    help="Take the ranges of this name as steps. Default: the profiler's steps, else batches, else the whole trace.",
)
_EXECUTION: Final = click.option(
    "--execution-trace",
    "execution",
    multiple=True,
    metavar="FILE",
    help="Take shapes that a trace does not state from PyTorch's execution trace of the same run; once for each rank. "
    "Default: those in the folder of the trace, where they match.",
)


@click.group(
    short_help="Explain, replay and change what a profiler recorded.",
    epilog=options.example("trace show trace.json.gz"),
)
def trace() -> None:
    """Read traces of PyTorch's profiler: a file, a folder with one file per rank, plain or compressed by gzip."""


@trace.command(name="show", epilog=options.example("trace show rank0.json.gz"))
@_TRACES
@_RANGE
@_EXECUTION
@options.json()
def show_command(traces: tuple[str, ...], named: str | None, execution: tuple[str, ...], as_json: bool) -> None:
    """Show what traces hold: steps, where the time went, the critical path, operators, and what is missing."""
    from traincast.traces.show import summarize_traces

    summary = summarize_traces(_loaded(traces, execution), named=named)
    if not as_json:
        show_summary(summary)
        return
    first = summary.ranks[0]
    data = asdict(summary)
    data["steps"] = [{"name": name, "start_s": start, "seconds": seconds} for name, start, seconds in first.steps_s]
    for rank, found in zip(data["ranks"], summary.ranks, strict=True):
        rank["steps"] = [{"name": n, "start_s": start, "seconds": s} for n, start, s in found.steps_s]
        del rank["steps_s"]
    print_json(data)


@trace.command(name="replay", epilog=options.example("trace replay trace.json.gz"))
@_TRACES
@_RANGE
@click.option(
    "--fit-steps",
    metavar="even|odd",
    type=click.Choice(["even", "odd"]),
    help="Infer waits between streams from these steps only; the others then judge them.",
)
@options.output(
    "the replayed trace (.json, .json.gz; .et for Chakra); a folder, if there are several ranks.", required=False
)
@options.json()
def replay_command(
    traces: tuple[str, ...], named: str | None, fit_steps: str | None, output: str | None, as_json: bool
) -> None:
    """Run traces as a plan with unchanged durations, and compare with what was recorded.

    Strict: without the delays that nothing recorded explains. Opaque: the share of these delays in the critical path.
    """
    _check(output, traces)
    from traincast.traces.replay import replay, run

    recording = _recorded(traces, named, fit=fit_steps)
    report = replay(recording)
    if output is not None:
        _write(run(recording), output)
    if as_json:
        print_json(asdict(report))
    else:
        show_replay(report)


@trace.command(name="whatif", epilog=options.example("trace whatif trace.json.gz --host 2x"))
@_TRACES
@_RANGE
@_EXECUTION
@click.option("--host", metavar="2x", help="Hosts so many times as fast; 0.5x: half as fast.")
@click.option(
    "--network", metavar="2x", help="Links between ranks so many times as fast. Needs the traces of all ranks."
)
@click.option("--no-communication", is_flag=True, help="Ranks that do not communicate.")
@click.option("--overlap", is_flag=True, help="Compute does not wait for communication before the step ends.")
@click.option(
    "--bucket", metavar="100MB", help="Gradients exchanged in buckets of this size. Needs the traces of all ranks."
)
@click.option("--amp", is_flag=True, help="Mixed precision: products and traffic of kernels in half precision.")
@click.option("--fuse-optimizer", is_flag=True, help="The update of all weights in few kernels.")
@click.option("--graph", is_flag=True, help="Each step launched as one graph.")
@click.option("--gpu", metavar="DEVICE", help="The same step on another device of the catalog.")
@click.option("--loader-workers", type=options.COUNT, metavar="N", help="N processes prepare the batches.")
@options.output(
    "the changed trace (.json, .json.gz; .et for Chakra); a folder, if there are several ranks.", required=False
)
@options.json()
def whatif_command(
    traces: tuple[str, ...],
    named: str | None,
    execution: tuple[str, ...],
    host: str | None,
    network: str | None,
    no_communication: bool,
    overlap: bool,
    bucket: str | None,
    amp: bool,
    fuse_optimizer: bool,
    graph: bool,
    gpu: str | None,
    loader_workers: int | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Change what a trace recorded, run it again, and show the new time per step.

    Changes are applied one after another. A change that the trace cannot tell is refused, with the reason.
    """
    _check(output, traces)
    changes = _changes(
        host, network, no_communication, overlap, bucket, amp, fuse_optimizer, graph, gpu, loader_workers
    )
    if not changes:
        raise RequestError("nothing is changed: give --host 2x, --network 2x, --gpu DEVICE or another change")
    from traincast.traces.whatif import ask

    answer = ask(_recorded(traces, named, execution=execution), changes)
    if output is not None and answer.replayed is not None:
        _write(answer.replayed, output)
    if as_json:
        print_json(
            {
                "base_s": answer.base_s,
                "step_s": answer.step_s,
                "low_s": answer.low_s,
                "high_s": answer.high_s,
                "speedup": answer.speedup,
                "changes": answer.changes,
                "assumptions": answer.assumptions,
                "refused": answer.refused,
                "notes": answer.notes,
            }
        )
    else:
        show_answer(answer)


@trace.command(name="diff", epilog=options.example("trace diff before.json.gz after.json.gz"))
@click.argument("before", metavar="TRACE")
@click.argument("after", metavar="[OTHER]", required=False)
@_RANGE
@click.option(
    "--forecast", "forecast", metavar="MODEL", help="Compare TRACE with the forecast of a step of this model."
)
@options.cluster("that of the forecast, a name or a .toml file.", required=False)
@click.option(
    "--strategy", metavar="dp=8,tp=4,…", help="How to distribute the work over the devices. That of the forecast."
)
@options.global_batch(required=False)
@options.seq()
@options.precision("fp32, amp, bf16 or another of `predict`.")
@options.html()
@options.json()
def diff_command(
    before: str,
    after: str | None,
    named: str | None,
    forecast: str | None,
    cluster: str | None,
    strategy: str | None,
    global_batch: int | None,
    seq: int | None,
    precision: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Compare two traces (files or folders of ranks), or a trace with a forecast: step, parts and operators."""
    from traincast.traces.diff import compare_forecast, compare_traces

    if (after is None) == (forecast is None):
        raise RequestError("a comparison needs two traces, or one trace and --forecast MODEL")
    _check(html, [before, *([after] if after else [])])
    if after is not None:
        found = compare_traces(_loaded([before]), _loaded([after]), named=named)
    else:
        if forecast is None or cluster is None or global_batch is None:
            raise RequestError("--forecast needs --cluster and --global-batch: with which the trace was recorded")
        from traincast.forecast import predict

        predicted = predict(
            forecast, cluster=cluster, global_batch=global_batch, strategy=strategy, seq=seq, precision=precision
        )
        found = compare_forecast(_loaded([before])[0], predicted.detailed(), named=named)
    if html is not None:
        from traincast.traces.diff_page import diff_page

        write_text(Path(html), diff_page(found))
    if as_json:
        print_json(asdict(found))
        return
    show_comparison(found)
    if html is not None:
        console().print(f"page: {html}")


@trace.command(name="learn", epilog=options.example("trace learn trace.json.gz -o events"))
@_TRACES
@_RANGE
@_EXECUTION
@click.option(
    "--device", metavar="DEVICE", help="Where the traces were recorded, if they do not say. Default: a processor."
)
@options.output("a folder of events, for `predict --events` and `search --events`.")
@options.json()
def learn_command(
    traces: tuple[str, ...],
    named: str | None,
    execution: tuple[str, ...],
    device: str | None,
    output: str,
    as_json: bool,
) -> None:
    """Turn measured operators, launches and collectives into events that forecasts use.

    Files of the same rank are repeats, or runs of other batch sizes. Two sizes make forecasts of others better.
    """
    check_folder(Path(output))
    from traincast.cluster.catalog import load_device
    from traincast.estimate.events_file import contents_of
    from traincast.files import write_folder
    from traincast.traces.execution import with_executions_beside
    from traincast.traces.learn import learn
    from traincast.traces.load import load_jobs

    ran_on = load_device(device) if device else None
    if execution:
        jobs = [_loaded(traces, execution)]
    else:
        jobs = [with_executions_beside(job) for job in load_jobs([Path(path) for path in traces])]
    learned = learn(jobs, named=named, device=ran_on)
    write_folder(Path(output), contents_of(learned.card, learned.rows))
    kinds = {kind: sum(row["kind"] == kind for row in learned.rows) for kind in ("operator", "launch", "collective")}
    if as_json:
        covered = {"device": learned.card.device, "events": kinds, "covered": learned.covered}
        print_json({**covered, "notes": learned.notes})
    else:
        show_learned(learned, kinds, output)


def _changes(
    host: str | None,
    network: str | None,
    no_communication: bool,
    overlap: bool,
    bucket: str | None,
    amp: bool,
    fuse_optimizer: bool,
    graph: bool,
    gpu: str | None,
    loader_workers: int | None,
) -> list[TraceChange]:
    """Return the changes that the options ask for."""
    from traincast.traces import changes as on_host
    from traincast.traces import changes_device as on_device

    found: list[Any] = []
    if gpu is not None:
        from traincast.cluster.catalog import load_device
        from traincast.forecast import default_cost_model

        found.append(on_device.OtherDevice(load_device(gpu), default_cost_model("pytorch")))
    if amp:
        found.append(on_device.HalfPrecision())
    if fuse_optimizer:
        found.append(on_host.FusedOptimizer())
    if bucket is not None:
        from traincast.units import parse_bytes

        found.append(on_device.Buckets(parse_bytes(bucket, what="--bucket")))
    if network is not None:
        found.append(on_host.FasterNetwork(_factor(network, "--network")))
    if no_communication:
        found.append(on_host.NoCommunication())
    if overlap:
        found.append(on_host.Overlapped())
    if loader_workers is not None:
        found.append(on_host.LoaderWorkers(loader_workers))
    if graph:
        found.append(on_host.GraphLaunch())
    if host is not None:
        found.append(on_host.FasterHost(_factor(host, "--host")))
    return found


def _factor(text: str, option: str) -> float:
    """Return the number of ``2x``."""
    if not _FACTOR.match(text) or float(text[:-1]) <= 0:
        raise RequestError(f"{option} {text}: expected a factor such as 2x or 0.5x")
    return float(text[:-1])


def _loaded(paths: Sequence[str], execution: Sequence[str] | None = None) -> list[ProfilerTrace]:
    """Return the traces; with shapes of these execution traces, or, if none are named, of those beside them."""
    from traincast.traces.execution import with_execution, with_executions_beside
    from traincast.traces.load import load_traces

    traces = load_traces([Path(path) for path in paths])
    if execution is None:
        return traces
    return with_execution(traces, [Path(path) for path in execution]) if execution else with_executions_beside(traces)


def _recorded(
    paths: Sequence[str], named: str | None, *, fit: str | None = None, execution: Sequence[str] | None = None
) -> Recording:
    """Return the recording of all ranks."""
    from traincast.traces.couple import couple
    from traincast.traces.record import record

    if all(path.endswith(".et") for path in paths):
        if execution:
            raise RequestError("--execution-trace is for the profiler's traces: Chakra's have no operators with shapes")
        from traincast.traces.chakra import read_chakra

        return couple([read_chakra(Path(path)) for path in paths])
    parity = None if fit is None else range(0 if fit == "even" else 1, 1_000_000, 2)
    return couple([record(one, named=named, fit=parity) for one in _loaded(paths, execution)])


def _check(output: str | None, traces: Sequence[str]) -> None:
    """Refuse an output that cannot be written, or that is one of the traces."""
    if output is not None:
        check_output(Path(output), inputs={f"trace {path}": Path(path) for path in traces})


def _write(replayed: Replayed, output: str) -> None:
    """Write a trace that has run: as Chakra's if the name ends in .et, else as the profiler's."""
    from traincast.traces.chakra import write_chakra
    from traincast.traces.write import write_timeline

    if output.endswith(".et"):
        write_chakra(replayed, Path(output))
    else:
        write_timeline(replayed, Path(output))
