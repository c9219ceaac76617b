"""``traincast trace show | replay | whatif | diff | learn``: profiler traces explained, replayed and changed."""

from __future__ import annotations

from dataclasses import MISSING

import click

from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, print_json
from traincast.cli.real_runs.trace_tables import show_answer, show_comparison, show_learned, show_replay, show_summary
from traincast.traces.ask import DiffAsk, LearnAsk, ReplayAsk, ShowAsk, TraceChangesAsk


@click.group(
    short_help="Explain, replay and change what a profiler recorded.",
    epilog=options.example("trace show trace.json.gz"),
)
def trace() -> None:
    """Read traces of PyTorch's profiler: a file, a folder with one file per rank, plain or compressed by gzip."""


@trace.command(name="show", epilog=options.example("trace show rank0.json.gz"))
@asks(ShowAsk, Shown)
def show_command(ask: ShowAsk, shown: Shown) -> None:
    """Show what traces hold: steps, where the time went, the critical path, operators, and what is missing."""
    from traincast.traces.verbs import trace as verbs

    summary = verbs.show(ask)
    if shown.as_json:
        print_json(summary.to_dict())
    else:
        show_summary(summary)


@trace.command(name="replay", epilog=options.example("trace replay trace.json.gz"))
@asks(ReplayAsk, Shown)
def replay_command(ask: ReplayAsk, shown: Shown) -> None:
    """Run traces as a plan with unchanged durations, and compare with what was recorded.

    Strict: without the delays that nothing recorded explains. Opaque: the share of these delays in the critical path.
    """
    from traincast.traces.verbs import trace as verbs

    report = verbs.replay(ask)
    if shown.as_json:
        print_json(report.to_dict())
    else:
        show_replay(report)


@trace.command(name="whatif", epilog=options.example("trace whatif trace.json.gz --host 2x"))
@asks(TraceChangesAsk, Shown)
def whatif_command(ask: TraceChangesAsk, shown: Shown) -> None:
    """Change what a trace recorded, run it again, and show the new time per step.

    Changes are applied one after another. A change that the trace cannot tell is refused, with the reason.
    """
    from traincast.traces.verbs import trace as verbs

    answer = verbs.whatif(ask)
    if shown.as_json:
        print_json(answer.to_dict())
    else:
        show_answer(answer)


@trace.command(name="diff", epilog=options.example("trace diff before.json.gz after.json.gz"))
@asks(DiffAsk, Shown)
def diff_command(ask: DiffAsk, shown: Shown) -> None:
    """Compare two traces (files or folders of ranks), or a trace with a forecast: step, parts and operators."""
    from traincast.traces.verbs import trace as verbs

    found = verbs.diff(ask)
    if shown.as_json:
        print_json(found.to_dict())
        return
    show_comparison(found)
    if ask.html is not None:
        console().print(f"page: {ask.html}")


@trace.command(name="learn", epilog=options.example("trace learn trace.json.gz -o events"))
@asks(LearnAsk, Shown, defaults={"output": MISSING})
def learn_command(ask: LearnAsk, shown: Shown) -> None:
    """Turn measured operators, launches and collectives into events that forecasts use.

    Files of the same rank are repeats, or runs of other batch sizes. Two sizes make forecasts of others better.
    """
    from traincast.traces.verbs import trace as verbs

    learned = verbs.learn(ask)
    if shown.as_json:
        print_json(learned.to_dict())
    else:
        show_learned(learned, str(ask.output))
