"""``traincast resources simulate``: a table of simulated runs, to train an inspector on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import click

from traincast.ask import Workers
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import ADDRESS, ENGINE, Shown
from traincast.cli.output import console, plain, print_json, progress_bar
from traincast.files import check_outputs
from traincast.fitting.inspector.ask import SimulateAsk


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateShown(Shown):
    """Where ``resources simulate`` runs, and what it shows."""

    workers: Annotated[Workers | None, options.workers_option("Each simulates one run at a time.")] = None
    engine: Annotated[str, ENGINE] = "local"
    address: Annotated[str | None, ADDRESS] = None


@click.command(name="simulate", epilog=options.example("resources simulate -o runs.csv.gz --runs 2000 --workers 4"))
@asks(SimulateAsk, SimulateShown)
def simulate(ask: SimulateAsk, shown: SimulateShown) -> None:
    """Simulate runs of many models, clusters and strategies, and write what each draws from its resources.

    Finished runs are kept in a journal beside the table; the same command resumes after an interruption.
    """
    from traincast.engines import load_engine
    from traincast.fitting.inspector.make import simulate_resources

    check_outputs({"--output": Path(ask.output)})
    with progress_bar("runs") as progress:
        engine = load_engine(shown.engine, workers=shown.workers, address=shown.address)
        made = simulate_resources(replace(ask, engine=engine, progress=progress))
    if shown.as_json:
        print_json(made.to_dict())
        return
    console().print(f"{made.written} runs written, {made.left_out} left out: {plain(str(ask.output))}", highlight=False)
