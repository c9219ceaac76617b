"""``traincast schedule``: a job trace on a shared cluster, under one policy or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincast.cli.output import console, plain, print_json, progress_bar
from traincast.cli.schedule_options import (
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
)
from traincast.cli.schedule_tables import means, show
from traincast.files import check_outputs

if TYPE_CHECKING:
    from traincast.engines import Engine
    from traincast.scheduling.schedule import Queue, Schedule
    from traincast.scheduling.study import StudyRow


@click.command(short_help="Replay a job trace on a cluster under a scheduling policy.")
@click.argument("jobs")
@click.option("--nodes", metavar="N|2x8:V100+…", help="Number of nodes, or nodes × GPUs of each type.")
@click.option("--gpus-per-node", type=int, metavar="N", help="GPUs of each node, where --nodes is a number.")
@click.option(
    "--cluster-file", metavar="FILE", help="List of nodes (.csv) instead: node,gpu_type,gpus[,rack,switch,vc]."
)
@click.option("--gpu-type", default="", metavar="NAME", help="Type of the GPUs of nodes that name none.")
@click.option("--hardware", metavar="TYPE=NAME,…", help="What a GPU type is in the catalog, for jobs to be forecast.")
@click.option("--allow-code", is_flag=True, help="Let JOBS name models or schedules that are Python code, and run it.")
@click.option("--nodes-per-rack", type=int, default=0, metavar="N", help="Put nodes into racks, each with its switch.")
@click.option("--quota", multiple=True, metavar="VC=GPUS,…", help="Most GPUs that a virtual cluster holds at a time.")
@click.option("--policy", metavar="NAME", help="Who runs next; a name or package.module:Class. Default: fifo.")
@click.option("--placement", default="pooled", show_default=True, metavar="NAME", help="Which GPUs; or module:Class.")
@click.option("--compare", metavar="NAME,…", help="Policies to show side by side; all for every one.")
@click.option("--estimates", default="exact", show_default=True, metavar="KIND,…",
              help="What the scheduler knows: exact, predicted, noisy:0.3 or user. Several are compared.")  # fmt: skip
@click.option(
    "--format", "kind", metavar="NAME", help="native, philly, helios, pai, openb or swf; found out if not given."
)
@click.option("--drop-invalid", is_flag=True, help="Leave out jobs that cannot be read, instead of refusing the trace.")
@click.option("--oversize", type=click.Choice(["refuse", "drop", "clip"]), default="refuse", show_default=True,
              help="What to do with jobs larger than the cluster.")  # fmt: skip
@click.option("--any-gpu", is_flag=True, help="Forget which GPU types jobs ask for.")
@click.option(
    "--load", default="1", metavar="X,…", help="Submit jobs X times as fast as in the trace; several are compared."
)
@click.option("--mtbf", metavar="node=30d,…", help="Mean time between failures of each node, device or switch.")
@click.option("--repair", metavar="TIME|node=4h,…", help="Mean time to repair; default 1h.")
@click.option("--fixed-repair", is_flag=True, help="Repairs take always that long, instead of on average.")
@click.option("--weibull-shape", metavar="K|node=0.7,…", help="Shape of the times between failures; 1 is exponential.")
@click.option("--failure-events", metavar="FILE", help="Failures that are known: time_s,kind,target,repair_s[,gpu].")
@click.option("--checkpoint-interval", metavar="TIME", help="Execution between regular checkpoints; none by default.")
@click.option("--checkpoint-cost", metavar="TIME", help="Time to write a checkpoint, such as 10s or 10s+1s/gpu.")
@click.option("--restore-cost", metavar="TIME", help="Time to read one, such as 20s or 20s+1s/gpu.")
@click.option("--restart-cost", metavar="TIME", help="Time to start again after a failure.")
@click.option("--seed", type=int, default=0, metavar="N", help="Of noise, failures and random placement.")
@click.option("--seeds", type=int, default=1, metavar="N", help="Run so many seeds from --seed on; figures are means.")
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True,
              help="Where the runs of a study are spread: policies, seeds, estimates, loads.")  # fmt: skip
@click.option("--workers", type=int, default=1, show_default=True, metavar="N", help="Processes for these runs.")
@click.option("--address", metavar="ADDRESS", help="Of the Ray cluster; one is started here if not given.")
@click.option("--jobs-out", metavar="FILE.csv", help="Write what became of each job.")
@click.option("--html", metavar="FILE", help="Write one self-contained page.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def schedule(
    jobs: str,
    nodes: str | None,
    gpus_per_node: int | None,
    cluster_file: str | None,
    gpu_type: str,
    hardware: str | None,
    allow_code: bool,
    nodes_per_rack: int,
    quota: tuple[str, ...],
    policy: str | None,
    placement: str,
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
    """Replay the jobs of a trace on a shared cluster, and say how they fared.

    JOBS is a table of your own (job_id, submit_s, num_gpus, duration_s, …) or a log of Philly, Helios, Alibaba
    or in the Standard Workload Format.
    """
    from traincast.scheduling.schedule import prepare, read_trace

    _check_outputs(jobs, jobs_out, html)
    policies = policies_of(policy, compare)
    check_names(policies, placement)
    kinds, loads = listed(estimates, "--estimates"), [number_of(x, "--load") for x in listed(load, "--load")]
    every_seed = seeds_of(seed, seeds)
    runner = engine_of(engine, workers, address)
    costs = costs_of(checkpoint_interval, checkpoint_cost, restore_cost, restart_cost)
    failures = failures_of(mtbf, repair, fixed_repair, weibull_shape, failure_events)
    cluster, notes = cluster_of(nodes, gpus_per_node, cluster_file, gpu_type, nodes_per_rack, quota)
    trace = read_trace(jobs, format=kind, drop_invalid=drop_invalid)
    with progress_bar("forecasts") as progress:
        queue = prepare(
            trace,
            cluster,
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
        queues = [queue, *(queue.believing(name, progress=progress) for name in kinds[1:])]
    _show_notes(queue.notes, quiet=as_json)
    is_study = runner is not None or seeds > 1 or len(kinds) > 1 or len(loads) > 1
    rows = _study(queues, policies, placement, loads=loads, seeds=every_seed, engine=runner) if is_study else []
    # in a study, only what files and virtual clusters are made of is run here
    runs = _run(queue, policies if not is_study or html is not None else policies[:1], placement=placement, seed=seed)
    _write(runs, jobs_out=jobs_out, html=html)
    if as_json:
        print_json(_document(runs, rows, policies, compared=compare is not None))
    else:
        _show_all(runs, rows, jobs_out=jobs_out, html=html)


def _run(queue: Queue, policies: Sequence[str], *, placement: str, seed: int) -> list[Schedule]:
    runs = []
    with progress_bar("policies") as progress:
        for done, name in enumerate(policies):
            runs.append(queue.run(name, placement=placement, seed=seed))
            if progress:
                progress(done + 1, len(policies))
    return runs


def _study(
    queues: Sequence[Queue],
    policies: Sequence[str],
    placement: str,
    *,
    loads: Sequence[float],
    seeds: range,
    engine: Engine | None,
) -> list[StudyRow]:
    """Every policy with every estimate, load and seed."""
    from traincast.scheduling.schedule import blaming
    from traincast.scheduling.study import run_study

    queue = queues[0]
    by_scale = {load / loads[0]: load for load in loads}
    with progress_bar("runs") as progress, blaming(*policies, placement, failures=queue.failures is not None):
        rows = run_study(
            queue.trace.jobs,
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
            engine=engine,
            progress=progress,
        )
    return [replace(row, case=row.case._replace(load=by_scale[row.case.load])) for row in rows]


def _check_outputs(jobs: str, jobs_out: str | None, html: str | None) -> None:
    """Refuse outputs that cannot be written, or would overwrite the trace or each other, before anything runs."""
    outputs = {"--jobs-out": jobs_out, "--html": html}
    check_outputs({option: Path(path) for option, path in outputs.items() if path}, inputs={"JOBS": Path(jobs)})


def _write(runs: Sequence[Schedule], *, jobs_out: str | None, html: str | None) -> None:
    if jobs_out is not None:
        runs[0].write_jobs(jobs_out)
    if html is not None:
        from traincast.scheduling.page import write_page

        write_page(runs, Path(html))


def _show_notes(notes: Sequence[str], *, quiet: bool) -> None:
    """Print what a reader must know of how the trace and the cluster were read, unless the answer is for a program."""
    for note in () if quiet else notes:
        console().print(f"[yellow]note[/yellow] {plain(note)}", soft_wrap=True)


def _show_all(runs: Sequence[Schedule], rows: Sequence[StudyRow], *, jobs_out: str | None, html: str | None) -> None:
    """Print the tables, and where the files are."""
    show(runs, rows)
    for what, path in (("jobs", jobs_out), ("page", html)):
        if path is not None:
            console().print(f"{what}: {plain(path)}", soft_wrap=True)


def _document(
    runs: Sequence[Schedule], rows: Sequence[StudyRow], policies: Sequence[str], *, compared: bool
) -> dict[str, Any]:
    """The first policy's figures; with --compare those of all, and every run of a study."""
    data = runs[0].as_dict()
    known = {run.policy: run.figures() for run in runs}
    if rows:
        averages = means(rows)
        first = rows[0].case
        for name in policies:
            found = asdict(averages[first._replace(policy=name, seed=0)])
            known[name] = {"policy": name, **found, "virtual_clusters": known.get(name, {}).get("virtual_clusters", {})}
        data["study"] = [row.as_dict() for row in rows]
        if len({row.case.estimates for row in rows}) > 1:
            from traincast.scheduling.study import regrets

            data["regret"] = [asdict(found) for found in regrets(rows, against=first.estimates)]
    if compared:
        data["compare"] = [known[name] for name in policies]
    return data
