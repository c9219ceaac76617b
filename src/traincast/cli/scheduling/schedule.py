"""``traincast schedule``: replay a job log on a shared cluster under one or several policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from traincast.ask import HTML, Option, Workers
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import ADDRESS, ENGINE, Shown
from traincast.cli.output import console, plain, print_json, progress_bar
from traincast.cli.scheduling.tables import means, shares_data, show, show_shares
from traincast.files import check_outputs
from traincast.scheduling.ask import ScheduleAsk

if TYPE_CHECKING:
    from traincast.engines import Engine
    from traincast.scheduling.schedule import Queue, Schedule
    from traincast.scheduling.study import StudyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShown(Shown):
    """Where the runs of a study run, and what ``schedule`` shows and writes."""

    engine: Annotated[str, ENGINE] = "local"
    workers: Annotated[
        Workers,
        options.workers_option("The runs of a study (policies, seeds, estimates, loads) are divided among them."),
    ] = 1
    address: Annotated[str | None, ADDRESS] = None
    jobs_out: Annotated[str | None, Option("Write the outcome of each job.", "FILE.csv")] = None
    html: Annotated[str | None, HTML] = None

    def runner(self) -> Engine | None:
        """Return the engine that runs a study; ``None`` if this process runs it."""
        if self.engine == "local" and self.workers == 1 and self.address is None:
            return None
        from traincast.engines import load_engine

        return load_engine(self.engine, workers=self.workers, address=self.address)


@click.command(
    short_help="Replay a job log on a cluster under a scheduling policy.",
    epilog=options.example("schedule jobs.csv --nodes 2x8 --compare fifo,sjf,easy --html queue.html"),
)
@asks(ScheduleAsk, ScheduleShown)
def schedule(ask: ScheduleAsk, shown: ScheduleShown) -> None:
    """Replay the jobs of a log on a shared cluster; report waiting times, completion times and utilization.

    JOBS is a table of your own (job_id, submit_s, num_gpus, duration_s, …), or a published log of Philly, Helios or
    Alibaba, or one in the Standard Workload Format. A time is 90s, 30min, 2h or 14d; without a unit, seconds.
    """
    from traincast.scheduling.schedule import check_names, prepared

    _check_outputs(str(ask.jobs), shown)
    policies, seeds = [str(name) for name in ask.policies()], ask.every_seed()
    shares = {name: str(rule) for name, rule in ask.shares().items()}
    check_names(ask)
    kinds, loads = ask.beliefs(), ask.loads()
    runner = shown.runner()
    with progress_bar("forecasts") as progress:
        queue = prepared(ask, progress=progress)
        queues = [queue, *(queue.believing(name, progress=progress) for name in kinds[1:])]
    _show_notes(queue.notes, quiet=shown.as_json)
    placement = next(iter(shares.values()), str(ask.placement))
    is_study = runner is not None or len(seeds) > 1 or len(kinds) > 1 or len(loads) > 1
    rows = _study(queues, policies, placement, loads=loads, seeds=seeds, engine=runner) if is_study else []
    # in a study, only the runs that files and virtual clusters need are repeated here
    needed = policies if not is_study or shown.html is not None else policies[:1]
    runs = _run(queue, needed, placement=placement, seed=ask.seed)
    by_share = _shared(queue, shares, runs[0], seed=ask.seed)
    _write(runs, shown)
    if shown.as_json:
        print_json(_document(runs, rows, policies, compared=ask.compare is not None) | shares_data(by_share))
    else:
        _show_all(runs, rows, by_share, shown)


def _run(queue: Queue, policies: Sequence[str], *, placement: str, seed: int) -> list[Schedule]:
    runs = []
    with progress_bar("policies") as progress:
        for done, name in enumerate(policies):
            runs.append(queue.run(name, placement=placement, seed=seed))
            if progress:
                progress(done + 1, len(policies))
    return runs


def _shared(queue: Queue, shares: Mapping[str, str], first: Schedule, *, seed: int) -> dict[str, Schedule]:
    """Run the queue once for every way to share nodes; ``first`` is the run of the first."""
    return {
        name: queue.run(first.policy, placement=rule, seed=seed) if number else first
        for number, (name, rule) in enumerate(shares.items())
    }


def _study(
    queues: Sequence[Queue],
    policies: Sequence[str],
    placement: str,
    *,
    loads: Sequence[float],
    seeds: range,
    engine: Engine | None,
) -> list[StudyRow]:
    """Run every policy with every estimate, load and seed."""
    from traincast.scheduling.schedule import blaming
    from traincast.scheduling.study import run_study

    queue = queues[0]
    by_scale = {load / loads[0]: load for load in loads}
    with progress_bar("runs") as progress, blaming(*policies, placement, failures=queue.failures is not None):
        rows = run_study(
            queue.log.jobs,
            queue.cluster,
            policies=policies,
            placements=[placement],
            estimates=[each.estimates for each in queues],
            seeds=seeds,
            loads=list(by_scale),
            beliefs={name: found for each in queues for name, found in each.beliefs.items()},
            speeds=queue.speeds,
            costs=queue.costs,
            failures=queue.failures,
            contention=queue.contention,
            engine=engine,
            progress=progress,
        )
    return [replace(row, case=row.case._replace(load=by_scale[row.case.load])) for row in rows]


def _check_outputs(jobs: str, shown: ScheduleShown) -> None:
    """Refuse outputs that cannot be written, or would overwrite the log or each other, before anything runs."""
    outputs = {"--jobs-out": shown.jobs_out, "--html": shown.html}
    check_outputs({option: Path(path) for option, path in outputs.items() if path}, inputs={"JOBS": Path(jobs)})


def _write(runs: Sequence[Schedule], shown: ScheduleShown) -> None:
    if shown.jobs_out is not None:
        runs[0].write_jobs(shown.jobs_out)
    if shown.html is not None:
        from traincast.scheduling.page import write_page

        write_page(runs, Path(shown.html))


def _show_notes(notes: Sequence[str], *, quiet: bool) -> None:
    """Print notes on how the log and the cluster were read; print nothing if the answer is JSON."""
    for note in () if quiet else notes:
        console().print(f"[yellow]note[/yellow] {plain(note)}", soft_wrap=True)


def _show_all(
    runs: Sequence[Schedule],
    rows: Sequence[StudyRow],
    by_share: Mapping[str, Schedule],
    shown: ScheduleShown,
) -> None:
    """Print the tables, then the paths of the files."""
    show(runs, rows)
    show_shares(by_share)
    for what, path in (("jobs", shown.jobs_out), ("page", shown.html)):
        if path is not None:
            console().print(f"{what}: {plain(path)}", soft_wrap=True)


def _document(
    runs: Sequence[Schedule], rows: Sequence[StudyRow], policies: Sequence[str], *, compared: bool
) -> dict[str, Any]:
    """Return the figures of the first policy; with --compare those of all, and every run of a study."""
    data = runs[0].to_dict()
    known = {run.policy: run.figures() for run in runs}
    if rows:
        averages = means(rows)
        first = rows[0].case
        for name in policies:
            found = averages[first._replace(policy=name, seed=0)].to_dict()
            known[name] = {"policy": name, **found, "virtual_clusters": known.get(name, {}).get("virtual_clusters", {})}
        data["study"] = [row.to_dict() for row in rows]
        if len({row.case.estimates for row in rows}) > 1:
            from traincast.scheduling.study import regrets

            data["regret"] = [asdict(found) for found in regrets(rows, against=first.estimates)]
    if compared:
        data["compare"] = [known[name] for name in policies]
    return data
