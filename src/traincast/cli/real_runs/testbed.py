"""``traincast testbed run | compare | study``: train on this machine, and compare with the forecast."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from traincast.cli import options
from traincast.cli.output import console, print_json, progress_bar
from traincast.cli.real_runs.testbed_tables import show_comparison, show_run, show_study
from traincast.errors import RequestError
from traincast.files import check_folder

_RANKS: Final = "Number of ranks."


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
@click.argument("model")
@click.option("--ranks", required=True, type=options.COUNT, metavar="N", help=f"{_RANKS} The strategy fills them.")
@click.option(
    "--strategy",
    required=True,
    metavar="dp=8,tp=4,…",
    help="How to distribute the work over the devices. There is one for each rank.",
)
@options.global_batch()
@options.seq()
@options.compute()
@click.option(
    "--network",
    default="loopback",
    show_default=True,
    metavar="RATE|loopback",
    help="Rate of every rank's link, such as 1Gbit (needs root); loopback: the links are not shaped.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="RANK=RATE",
    help="3=200Mbit: the link of rank 3 has that rate. May be given several times.",
)
@click.option(
    "--slow",
    multiple=True,
    metavar="RANK=FACTOR",
    help="3=1.5: rank 3 computes 1.5 times slower. May be given several times.",
)
@click.option(
    "--steps",
    default=10,
    show_default=True,
    type=options.COUNT,
    metavar="N",
    help="Length of the job in steps.",
)
@click.option(
    "--warmup",
    default=3,
    show_default=True,
    type=options.COUNT,
    metavar="N",
    help="Steps that run first and do not count.",
)
@click.option(
    "--monitor",
    "monitor_hz",
    is_flag=False,
    flag_value=50.0,
    type=float,
    metavar="[HZ]",
    help="Sample devices, networks and processes of all ranks HZ times a second, from 10 to 100; 50 if HZ is left out.",
)
@click.option(
    "--no-events",
    is_flag=True,
    help="Do not measure the works of the plan between the steps, from which `testbed compare` forecasts.",
)
@options.threads()
@options.output("a folder with the run: its step times, spans, events, trace and cluster file.")
@options.json()
def run_command(
    model: str,
    ranks: int,
    strategy: str,
    global_batch: int,
    seq: int | None,
    compute: str,
    network: str,
    links: tuple[str, ...],
    slow: tuple[str, ...],
    steps: int,
    warmup: int,
    monitor_hz: float | None,
    no_events: bool,
    threads: int,
    output: str,
    as_json: bool,
) -> None:
    """Train MODEL on this machine with N processes, and record every span of every rank."""
    check_folder(Path(output))
    rates = dict(_pair(text, "--link", "RANK=RATE, such as 3=200Mbit") for text in links)
    factors = dict(_pair(text, "--slow", "RANK=FACTOR, such as 3=1.5") for text in slow)
    from traincast.testbed.run import run_testbed

    with progress_bar("steps") as progress:
        done = run_testbed(
            model, ranks=ranks, strategy=strategy, global_batch=global_batch, output=output, seq=seq, compute=compute,
            network=network, link=rates, slow={rank: _factor(text) for rank, text in factors.items()}, steps=steps,
            warmup=warmup, monitor=monitor_hz, events=not no_events, threads=threads, progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(done.to_dict())
        return
    show_run(done)
    console().print(f"run: {output}")
    console().print(f"[dim]compare it with its forecast: traincast testbed compare {output}[/dim]")
    if monitor_hz is not None:
        console().print(f"[dim]compare what it drew: traincast resources compare {output}[/dim]")


def _pair(text: str, option: str, form: str) -> tuple[int, str]:
    rank, equals, value = text.partition("=")
    if not equals or not (rank.isascii() and rank.isdigit()) or not value:
        raise RequestError(f"{option} {text!r}: expected {form}")
    return int(rank), value


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0.0 < factor < 1e6:
        raise RequestError(f"--slow factor {text!r}: expected a number above 0, such as 1.5")
    return factor


@testbed.command(name="compare", epilog=options.example("testbed compare run --html compare.html"))
@click.argument("run")
@click.option(
    "--events",
    metavar="FOLDER",
    help="Use the times measured by `traincast profile events`; estimate only what FOLDER does not have. If omitted, "
    "the events that the run measured are used.",
)
@options.html()
@options.json()
def compare_command(run: str, events: str | None, html: str | None, as_json: bool) -> None:
    """Forecast the run in the folder RUN, and compare step time and activities device by device."""
    from traincast.testbed.compare import compare_testbed

    found = compare_testbed(run, events=events, html=html)
    if as_json:
        print_json(found.to_dict())
        return
    show_comparison(found)
    if html is not None:
        console().print(f"page: {html}")


@testbed.command(name="study", epilog=options.example("testbed study --quick -o study"))
@click.option("--quick", is_flag=True, help="Run five strategies of one model on one network.")
@click.option("--models", metavar="MODEL,…", help="Models of the study, such as llama or resnet, or one spec.")
@click.option("--strategies", metavar="'S S …'", help="Strategies, separated by spaces: 'dp=2 pp=2,microbatches=4'.")
@click.option("--rates", metavar="RATE,…", help="Networks: the rates of all links, such as 200Mbit,1Gbit, or loopback.")
@click.option("--ranks", type=options.COUNT, metavar="N", help=f"{_RANKS} Other cells are left out.")
@options.output("a folder for runs, events, tables and plots; a study in the same folder resumes.", required=False)
@options.json()
def study_command(
    quick: bool,
    models: str | None,
    strategies: str | None,
    rates: str | None,
    ranks: int | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Run models, strategies and networks on the testbed, forecast each from the events of its run, and compare."""
    from traincast.testbed.study.study import study_testbed

    folder = Path(output or "testbed-study")
    with progress_bar("cells") as progress:
        quiet = as_json or progress is not None
        found = study_testbed(
            quick=quick,
            models=[models] if models and ":" in models else _list(models),
            strategies=(strategies or "").split(),
            rates=_list(rates),
            ranks=ranks,
            output=folder,
            progress=progress,
            say=None if quiet else lambda line: click.echo(line, err=True),
        )
    if as_json:
        print_json(found.to_dict())
        return
    show_study(found)
    written = sorted(path for path in folder.glob("study*") if path.suffix != ".journal")
    console().print(f"study: {', '.join(map(str, written))}")


def _list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]
