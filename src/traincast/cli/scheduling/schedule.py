"""``traincast schedule``: replay a job log on a shared cluster under one or several policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincast.cli import options
from traincast.cli.output import console, plain, print_json, progress_bar
from traincast.cli.scheduling.options import (
    check_names,
    cluster_of,
    costs_of,
    engine_of,
    failures_of,
    hardware_of,
    listed,
    number_of,
    policies_of,
    seeds_of,
    shares_of,
)
from traincast.cli.scheduling.tables import means, shares_data, show, show_shares
from traincast.files import check_outputs

if TYPE_CHECKING:
    from traincast.engines import Engine
    from traincast.scheduling.schedule import Queue, Schedule
    from traincast.scheduling.study import StudyRow


@click.command(
    short_help="Replay a job log on a cluster under a scheduling policy.",
    epilog=options.example("schedule jobs.csv --nodes 2x8 --compare fifo,sjf,easy --html queue.html"),
)
@click.argument("jobs")
@click.option(
    "--nodes", metavar="N|NxGPUS[:TYPE]+…", help="Number of nodes, or nodes x GPUs per node: 5x8, 2x8:V100+16x4:T4."
)
@click.option("--gpus-per-node", type=int, metavar="N", help="GPUs of each node; needed if --nodes is a number.")
@click.option(
    "--cluster-file", metavar="FILE", help="Node list (.csv) instead of --nodes: node,gpu_type,gpus[,rack,switch,vc]."
)
@click.option("--gpu-type", default="", metavar="NAME", help="GPU type of nodes without one of their own.")
@click.option(
    "--hardware",
    metavar="TYPE=NAME,…",
    help="Device or node type of the catalog that each GPU type means; forecasts of jobs use it.",
)
@options.allow_code()
@click.option(
    "--nodes-per-rack",
    type=int,
    default=0,
    metavar="N",
    help="Group the nodes into racks of N; each rack has its own switch.",
)
@click.option(
    "--uplink",
    metavar="RATE",
    help="Rate of the links from each rack's switch to the others, such as 200Gbit, in each direction. Forecast jobs "
    "that span racks get no more, and with --share they divide it among them.",
)
@click.option(
    "--quota", multiple=True, metavar="VC=N,…", help="Maximum number of GPUs that a virtual cluster may hold at once."
)
@click.option(
    "--policy",
    metavar="NAME",
    help="Which job runs next: a policy, or your own as package.module:Class. Default: fifo.",
)
@click.option(
    "--placement",
    default="pooled",
    show_default=True,
    metavar="NAME",
    help="Which GPUs a job gets: a placement, or your own as package.module:Class.",
)
@click.option(
    "--share",
    metavar="KIND,…",
    help="Let jobs that meet on a node, or at an --uplink, slow one another down; nodes are exclusive, shared blind, "
    "or shared by complementary jobs. Several are compared.",
)
@click.option("--compare", metavar="NAME,…", help="Compare these policies; `all` compares every policy.")
@click.option(
    "--estimates",
    default="exact",
    show_default=True,
    metavar="KIND,…",
    help="Durations that the scheduler expects: exact, predicted, noisy:0.3 or user. Several are compared.",
)
@click.option(
    "--format",
    "kind",
    metavar="NAME",
    help="Format of JOBS: native, philly, helios, pai, openb or swf. Detected from the file if omitted.",
)
@click.option("--drop-invalid", is_flag=True, help="Leave out jobs that cannot be read, instead of refusing the log.")
@click.option(
    "--oversize",
    type=click.Choice(["refuse", "drop", "clip"]),
    default="refuse",
    show_default=True,
    metavar="KIND",
    help="Jobs larger than the cluster: refuse the log, drop them, or clip them to its size.",
)
@click.option("--any-gpu", is_flag=True, help="Ignore the GPU types that jobs ask for.")
@click.option(
    "--load",
    default="1",
    show_default=True,
    metavar="X,…",
    help="Submit jobs X times as fast as in the log. Several loads are compared.",
)
@click.option(
    "--mtbf", metavar="KIND=TIME,…", help="Mean time between failures of each node, device or switch: node=30d."
)
@click.option("--repair", metavar="TIME|KIND=TIME,…", help="Mean time to repair. Default: 1h.")
@click.option("--fixed-repair", is_flag=True, help="Every repair takes exactly the time of --repair.")
@click.option(
    "--weibull-shape",
    metavar="K|KIND=K,…",
    help="Weibull shape of the times between failures. Default: 1, the exponential distribution.",
)
@click.option("--failure-events", metavar="FILE", help="Known failures (.csv): time_s,kind,target,repair_s[,gpu].")
@click.option(
    "--checkpoint-interval", metavar="TIME", help="Execution time between regular checkpoints. Default: none."
)
@click.option("--checkpoint-cost", metavar="TIME", help="Time to write a checkpoint, such as 10s or 10s+1s/gpu.")
@click.option("--restore-cost", metavar="TIME", help="Time to read a checkpoint, such as 20s or 20s+1s/gpu.")
@click.option("--restart-cost", metavar="TIME", help="Time to start again after a failure.")
@options.seed("Noise, failures and random placements depend on it.")
@click.option(
    "--seeds",
    type=options.COUNT,
    default=1,
    show_default=True,
    metavar="N",
    help="Run N seeds, counted from --seed, and show means over them.",
)
@options.engine()
@options.workers("The runs of a study (policies, seeds, estimates, loads) are divided among them.", default=1)
@click.option("--jobs-out", metavar="FILE.csv", help="Write the outcome of each job.")
@options.html()
@options.json()
def schedule(
    jobs: str,
    nodes: str | None,
    gpus_per_node: int | None,
    cluster_file: str | None,
    gpu_type: str,
    hardware: str | None,
    allow_code: bool,
    nodes_per_rack: int,
    uplink: str | None,
    quota: tuple[str, ...],
    policy: str | None,
    placement: str,
    share: str | None,
    compare: str | None,
    estimates: str,
    kind: str | None,
    drop_invalid: bool,
    oversize: str,
    any_gpu: bool,
    load: str,
    mtbf: str | None,
    repair: str | None,
    fixed_repair: bool,
    weibull_shape: str | None,
    failure_events: str | None,
    checkpoint_interval: str | None,
    checkpoint_cost: str | None,
    restore_cost: str | None,
    restart_cost: str | None,
    seed: int,
    seeds: int,
    engine: str,
    workers: int,
    address: str | None,
    jobs_out: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Replay the jobs of a log on a shared cluster; report waiting times, completion times and utilization.

    JOBS is a table of your own (job_id, submit_s, num_gpus, duration_s, …), or a published log of Philly, Helios or
    Alibaba, or one in the Standard Workload Format. A time is 90s, 30min, 2h or 14d; without a unit, seconds.
    """
    from traincast.scheduling.schedule import prepare, read_log

    _check_outputs(jobs, jobs_out, html)
    policies = policies_of(policy, compare)
    check_names(policies, placement)
    kinds, loads = listed(estimates, "--estimates"), [number_of(x, "--load") for x in listed(load, "--load")]
    shares = shares_of(share, placement, policies)
    every_seed = seeds_of(seed, seeds)
    runner = engine_of(engine, workers, address)
    costs = costs_of(checkpoint_interval, checkpoint_cost, restore_cost, restart_cost)
    failures = failures_of(mtbf, repair, fixed_repair, weibull_shape, failure_events)
    shared, notes = cluster_of(nodes, gpus_per_node, cluster_file, gpu_type, nodes_per_rack, uplink, quota)
    log = read_log(jobs, format=kind, drop_invalid=drop_invalid)
    with progress_bar("forecasts") as progress:
        queue = prepare(
            log,
            shared,
            estimates=kinds[0],
            costs=costs,
            failures=failures,
            load=loads[0],
            oversize=oversize,  # type: ignore[arg-type]  # click has checked it
            any_gpu=any_gpu,
            hardware=None if hardware is None else hardware_of(hardware),
            allow_code=allow_code,
            notes=notes,
            progress=progress,
        )
        queue = queue.sharing() if shares else queue
        queues = [queue, *(queue.believing(name, progress=progress) for name in kinds[1:])]
    _show_notes(queue.notes, quiet=as_json)
    placement = next(iter(shares.values()), placement)
    is_study = runner is not None or seeds > 1 or len(kinds) > 1 or len(loads) > 1
    rows = _study(queues, policies, placement, loads=loads, seeds=every_seed, engine=runner) if is_study else []
    # in a study, only the runs that files and virtual clusters need are repeated here
    runs = _run(queue, policies if not is_study or html is not None else policies[:1], placement=placement, seed=seed)
    by_share = _shared(queue, shares, runs[0], seed=seed)
    _write(runs, jobs_out=jobs_out, html=html)
    if as_json:
        print_json(_document(runs, rows, policies, compared=compare is not None) | shares_data(by_share))
    else:
        _show_all(runs, rows, by_share, jobs_out=jobs_out, html=html)


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


def _check_outputs(jobs: str, jobs_out: str | None, html: str | None) -> None:
    """Refuse outputs that cannot be written, or would overwrite the log or each other, before anything runs."""
    outputs = {"--jobs-out": jobs_out, "--html": html}
    check_outputs({option: Path(path) for option, path in outputs.items() if path}, inputs={"JOBS": Path(jobs)})


def _write(runs: Sequence[Schedule], *, jobs_out: str | None, html: str | None) -> None:
    if jobs_out is not None:
        runs[0].write_jobs(jobs_out)
    if html is not None:
        from traincast.scheduling.page import write_page

        write_page(runs, Path(html))


def _show_notes(notes: Sequence[str], *, quiet: bool) -> None:
    """Print notes on how the log and the cluster were read; print nothing if the answer is JSON."""
    for note in () if quiet else notes:
        console().print(f"[yellow]note[/yellow] {plain(note)}", soft_wrap=True)


def _show_all(
    runs: Sequence[Schedule],
    rows: Sequence[StudyRow],
    by_share: Mapping[str, Schedule],
    *,
    jobs_out: str | None,
    html: str | None,
) -> None:
    """Print the tables, then the paths of the files."""
    show(runs, rows)
    show_shares(by_share)
    for what, path in (("jobs", jobs_out), ("page", html)):
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
