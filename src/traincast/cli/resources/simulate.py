"""``traincast resources simulate``: a table of simulated runs, to train an inspector on."""

from __future__ import annotations

from pathlib import Path

import click

from traincast.cli import options
from traincast.cli.output import console, plain, print_json, progress_bar
from traincast.files import check_outputs


@click.command(name="simulate", epilog=options.example("resources simulate -o runs.csv.gz --runs 2000 --workers 4"))
@options.output("the table, a .csv or .csv.gz file.")
@click.option(
    "--runs",
    type=click.IntRange(1, 1_000_000),
    default=3000,
    show_default=True,
    metavar="N",
    help="Number of runs to draw. Those that fit no memory, or that a rule forbids, are left out.",
)
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Draw only MODEL. May be given several times.")
@options.seed("The drawn runs depend on it.")
@options.workers("Each simulates one run at a time.")
@options.engine()
@options.json()
def simulate(
    output: str,
    runs: int,
    models: tuple[str, ...],
    seed: int,
    workers: int | None,
    engine: str,
    address: str | None,
    as_json: bool,
) -> None:
    """Simulate runs of many models, clusters and strategies, and write what each draws from its resources.

    Finished runs are kept in a journal beside the table; the same command resumes after an interruption.
    """
    from traincast.engines import load_engine
    from traincast.fitting.inspector.make import simulate_resources

    check_outputs({"--output": Path(output)})
    with progress_bar("runs") as progress:
        made = simulate_resources(
            output,
            runs=runs,
            seed=seed,
            models=models,
            engine=load_engine(engine, workers=workers, address=address),
            progress=progress,
        )
    if as_json:
        print_json(made.to_dict())
        return
    console().print(f"{made.written} runs written, {made.left_out} left out: {plain(output)}", highlight=False)
