"""``traincast trace show | replay | whatif | diff | learn``: profiler traces explained, replayed and changed."""

from __future__ import annotations

from typing import Final, Literal

import click

from traincast.cli import options
from traincast.cli.output import console, print_json
from traincast.cli.real_runs.trace_tables import show_answer, show_comparison, show_learned, show_replay, show_summary

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
    from traincast.traces.verbs import trace as verbs

    summary = verbs.show(traces, range=named, execution_trace=execution)
    if as_json:
        print_json(summary.to_dict())
    else:
        show_summary(summary)


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
    traces: tuple[str, ...],
    named: str | None,
    fit_steps: Literal["even", "odd"] | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Run traces as a plan with unchanged durations, and compare with what was recorded.

    Strict: without the delays that nothing recorded explains. Opaque: the share of these delays in the critical path.
    """
    from traincast.traces.verbs import trace as verbs

    report = verbs.replay(traces, range=named, fit_steps=fit_steps, output=output)
    if as_json:
        print_json(report.to_dict())
    else:
        show_replay(report)


@trace.command(name="whatif", epilog=options.example("trace whatif trace.json.gz --host 2x"))
@_TRACES
@_RANGE
@_EXECUTION
@click.option("--host", metavar="2x", help="Hosts run their code twice as fast; `0.5x` is half as fast.")
@click.option(
    "--network",
    metavar="2x",
    help="Links between ranks are twice as fast; `0.5x` is half as fast. Needs the traces of all ranks.",
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
    from traincast.traces.verbs import trace as verbs

    answer = verbs.whatif(
        traces,
        range=named,
        execution_trace=execution,
        host=host,
        network=network,
        no_communication=no_communication,
        overlap=overlap,
        bucket=bucket,
        amp=amp,
        fuse_optimizer=fuse_optimizer,
        graph=graph,
        gpu=gpu,
        loader_workers=loader_workers,
        output=output,
    )
    if as_json:
        print_json(answer.to_dict())
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
@options.precision("fp32, amp, bf16 or another of `predict`. Default: that of the trace, if it tells.")
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
    from traincast.traces.verbs import trace as verbs

    found = verbs.diff(
        before,
        after,
        range=named,
        forecast=forecast,
        cluster=cluster,
        strategy=strategy,
        global_batch=global_batch,
        seq=seq,
        precision=precision,
        html=html,
    )
    if as_json:
        print_json(found.to_dict())
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
    from traincast.traces.verbs import trace as verbs

    learned = verbs.learn(traces, output=output, range=named, execution_trace=execution, device=device)
    if as_json:
        print_json(learned.to_dict())
    else:
        show_learned(learned, output)
