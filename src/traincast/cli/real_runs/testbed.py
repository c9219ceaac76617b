"""``traincast testbed run | compare | study``: train on this machine, and compare with the forecast."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, print_json, progress_bar
from traincast.cli.real_runs.testbed_tables import show_comparison, show_run, show_study
from traincast.files import check_folder
from traincast.testbed.ask import STUDY, CompareAsk, RunAsk, StudyAsk


@click.group(
    short_help="Train on this machine, and compare with the forecast.",
    epilog=options.example(
        "testbed run gpt2 --ranks 2 --strategy dp=2 --global-batch 8 --compute h100-sxm5-80gb -o run"
    ),
)
def testbed() -> None:
    """Train a model on this machine with several processes, and compare what was measured with the forecast.

    Compute is real or emulated; communication is always real.
    """


@testbed.command(
    name="run",
    epilog=options.example(
        "testbed run gpt2 --ranks 4 --strategy dp=2,pp=2,microbatches=4 --global-batch 16 --compute h100-sxm5-80gb "
        "--network 1Gbit -o run"
    ),
)
@asks(RunAsk, Shown)
def run_command(ask: RunAsk, shown: Shown) -> None:
    """Train MODEL on this machine with N processes, and record every span of every rank."""
    check_folder(Path(ask.output))
    from traincast.testbed.run import run_testbed

    with progress_bar("steps") as progress:
        done = run_testbed(replace(ask, progress=progress))
    if shown.as_json:
        print_json(done.to_dict())
        return
    show_run(done)
    console().print(f"run: {ask.output}")
    console().print(f"[dim]compare it with its forecast: traincast testbed compare {ask.output}[/dim]")
    if ask.monitor is not None:
        console().print(f"[dim]compare what it drew: traincast resources compare {ask.output}[/dim]")


@testbed.command(name="compare", epilog=options.example("testbed compare run --html compare.html"))
@asks(CompareAsk, Shown)
def compare_command(ask: CompareAsk, shown: Shown) -> None:
    """Forecast the run in the folder RUN, and compare step time and activities device by device."""
    from traincast.testbed.compare import compare_testbed

    found = compare_testbed(ask)
    if shown.as_json:
        print_json(found.to_dict())
        return
    show_comparison(found)
    if ask.html is not None:
        console().print(f"page: {ask.html}")


@testbed.command(name="study", epilog=options.example("testbed study --quick -o study"))
@asks(StudyAsk, Shown, defaults={"output": None})
def study_command(ask: StudyAsk, shown: Shown) -> None:
    """Run models, strategies and networks on the testbed, forecast each from the events of its run, and compare."""
    from traincast.testbed.study.study import study_testbed

    folder = Path(ask.output or STUDY)
    with progress_bar("cells") as progress:
        quiet = shown.as_json or progress is not None
        say = None if quiet else lambda line: click.echo(line, err=True)
        found = study_testbed(replace(ask, output=folder, progress=progress, say=say))
    if shown.as_json:
        print_json(found.to_dict())
        return
    show_study(found)
    written = sorted(path for path in folder.glob("study*") if path.suffix != ".journal")
    console().print(f"study: {', '.join(map(str, written))}")
