"""``traincast schedule``: a job trace on a shared cluster, under one policy or several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from traincast.cli.output import console, plain, print_json, progress_bar
from traincast.cli.schedule_tables import means, show
from traincast.errors import RequestError
from traincast.files import check_outputs
from traincast.units import parse_seconds

if TYPE_CHECKING:
    from traincast.scheduling import Costs, Failures, SharedCluster
    from traincast.scheduling.schedule import Queue, Schedule
    from traincast.scheduling.study import Engine, StudyRow

_MOST_SEEDS: Final = 1000


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
    policies = _policies(policy, compare)
    _check_names(policies, placement)
    kinds, loads = _listed(estimates, "--estimates"), [_number(x, "--load") for x in _listed(load, "--load")]
    if not 1 <= seeds <= _MOST_SEEDS:
        raise RequestError(f"--seeds {seeds}: expected a number of runs from 1 to {_MOST_SEEDS}")
    runner = _engine(engine, workers, address)
    costs = _costs(checkpoint_interval, checkpoint_cost, restore_cost, restart_cost)
    failures = _failures(mtbf, repair, fixed_repair, weibull_shape, failure_events)
    cluster, notes = _cluster(nodes, gpus_per_node, cluster_file, gpu_type, nodes_per_rack, quota)
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
            hardware=None if hardware is None else _hardware(hardware),
            allow_code=allow_code,
            notes=notes,
            progress=progress,
        )
        queues = [queue, *(queue.believing(name, progress=progress) for name in kinds[1:])]
    if not as_json:
        for note in queue.notes:
            console().print(f"[yellow]note[/yellow] {plain(note)}", soft_wrap=True)
    is_study = runner is not None or seeds > 1 or len(kinds) > 1 or len(loads) > 1
    rows: list[StudyRow] = []
    if is_study:
        rows = _study(
            queues, policies, placement=placement, loads=loads, seeds=range(seed, seed + seeds), engine=runner
        )
    # in a study, only what files and virtual clusters are made of is run here
    runs = _run(queue, policies if not is_study or html is not None else policies[:1], placement=placement, seed=seed)
    _write(runs, jobs_out=jobs_out, html=html)
    if as_json:
        print_json(_document(runs, rows, policies, compared=compare is not None))
        return
    show(runs, rows)
    for what, path in (("jobs", jobs_out), ("page", html)):
        if path is not None:
            console().print(f"{what}: {plain(path)}", soft_wrap=True)


def _run(queue: Queue, policies: Sequence[str], *, placement: str, seed: int) -> list[Schedule]:
    runs = []
    with progress_bar("policies") as progress:
        for done, name in enumerate(policies):
            runs.append(queue.run(name, placement=placement, seed=seed))
            if progress:
                progress(done + 1, len(policies))
    return runs


def _engine(name: str, workers: int, address: str | None) -> Engine | None:
    """The engine that runs of a study are spread over; none where they are run in this process."""
    if workers < 1:
        raise RequestError(f"--workers {workers}: expected at least 1")
    if name == "local" and workers == 1 and address is None:
        return None
    from traincast.engines import load_engine

    return load_engine(name, workers=workers, address=address)


def _study(
    queues: Sequence[Queue],
    policies: Sequence[str],
    *,
    placement: str,
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


def _listed(text: str, option: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(names):
        raise RequestError(f"{option} {text!r}: expected values separated by commas, none of them empty")
    return names


def _check_outputs(jobs: str, jobs_out: str | None, html: str | None) -> None:
    """Refuse outputs that cannot be written, or would overwrite the trace or each other, before anything runs."""
    outputs = {"--jobs-out": jobs_out, "--html": html}
    check_outputs({option: Path(path) for option, path in outputs.items() if path}, inputs={"JOBS": Path(jobs)})


def _policies(policy: str | None, compare: str | None) -> list[str]:
    """The policies to run: that of ``--policy``, then those of ``--compare``, each once."""
    if compare is None:
        return ["fifo" if policy is None else policy]
    from traincast.scheduling import POLICIES

    names = list(POLICIES) if compare.strip() == "all" else [name.strip() for name in compare.split(",")]
    if not all(names):
        raise RequestError(f"--compare {compare!r}: expected names of policies, such as fifo,sjf,easy, or all")
    return list(dict.fromkeys(names if policy is None else [policy, *names]))


def _hardware(text: str) -> dict[str, str]:
    """What GPU types are in the catalog; a name that is not there is refused, whether a job needs it or not."""
    from traincast.scheduling.step_times import node_of

    found = _pairs([text], "--hardware", "TYPE=NAME")
    for name in found.values():
        node_of(name, 1)
    return found


def _check_names(policies: Sequence[str], placement: str) -> None:
    """Refuse a policy or placement that is none before anything runs."""
    from traincast.scheduling import load_placement, load_policy
    from traincast.scheduling.schedule import blaming

    with blaming(*policies, placement, failures=False):
        for name in policies:
            load_policy(name)
        load_placement(placement)


def _cluster(
    nodes: str | None,
    gpus_per_node: int | None,
    cluster_file: str | None,
    gpu_type: str,
    nodes_per_rack: int,
    quota: tuple[str, ...],
) -> tuple[SharedCluster, tuple[str, ...]]:
    from traincast.scheduling.schedule import load_shared_cluster

    if (nodes is None) == (cluster_file is None):
        raise RequestError(
            "say what the cluster is in one way: --nodes 5 --gpus-per-node 8, --nodes 5x8, or --cluster-file FILE"
        )
    quotas = {name: _number(value, f"--quota {name}") for name, value in _pairs(quota, "--quota", "VC=GPUS").items()}
    return load_shared_cluster(
        Path(cluster_file) if cluster_file is not None else str(nodes),
        gpus_per_node=gpus_per_node,
        gpu_type=gpu_type,
        nodes_per_rack=nodes_per_rack,
        quotas=quotas,
    )


def _pairs(texts: Sequence[str], option: str, form: str) -> dict[str, str]:
    """``a=1,b=2`` by name."""
    found: dict[str, str] = {}
    for part in (part for text in texts for part in text.split(",")):
        name, sign, value = (piece.strip() for piece in part.rpartition("="))
        if not (sign and name and value):
            raise RequestError(f"{option} {part!r}: expected {form}")
        if name in found:
            raise RequestError(f"{option} has {name} twice: give it once")
        found[name] = value
    return found


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise RequestError(f"{what} is {text!r}: expected a number above 0")
    return value


def _failures(
    mtbf: str | None, repair: str | None, fixed: bool, shape: str | None, events: str | None
) -> Failures | None:
    """What may fail, as it was said; nothing if nothing was."""
    if mtbf is None and events is None:
        for option, text in (("--repair", repair), ("--weibull-shape", shape), ("--fixed-repair", fixed or None)):
            if text is not None:
                raise RequestError(f"{option} without failures: give --mtbf, such as --mtbf node=30d")
        return None
    from traincast.scheduling import FailureLaw, Failures
    from traincast.scheduling.failure_list import load_failure_events

    means = _pairs([mtbf], "--mtbf", "KIND=TIME, such as node=30d,device=1y") if mtbf is not None else {}
    repairs = _by_kind(repair if repair is not None else "1h", means, "--repair", "a time, or KIND=TIME")
    shapes = _by_kind(shape if shape is not None else "1", means, "--weibull-shape", "a number, or KIND=NUMBER")
    laws = [
        FailureLaw(
            kind=kind,  # type: ignore[arg-type]  # the law checks it
            mtbf_s=parse_seconds(text, what=f"--mtbf {kind}"),
            repair_s=parse_seconds(repairs.get(kind, "1h"), what=f"--repair {kind}"),
            shape=_number(shapes.get(kind, "1"), f"--weibull-shape {kind}"),
            repair_is_fixed=fixed,
        )
        for kind, text in means.items()
    ]
    return Failures(laws=tuple(laws), events=load_failure_events(events) if events is not None else ())


def _by_kind(text: str, kinds: Mapping[str, str], option: str, form: str) -> dict[str, str]:
    """A value for every kind of failure: one for all, or one by one."""
    if "=" not in text:
        return dict.fromkeys(kinds, text)
    found = _pairs([text], option, form)
    for name in found:
        if name not in kinds:
            raise RequestError(
                f"{option} {name}={found[name]}: --mtbf has no {name}; it has {', '.join(kinds) or 'none'}"
            )
    return found


def _costs(interval: str | None, checkpoint: str | None, restore: str | None, restart: str | None) -> Costs:
    from traincast.scheduling import Costs

    saving, saving_per_gpu = _by_size(checkpoint, "--checkpoint-cost")
    loading, loading_per_gpu = _by_size(restore, "--restore-cost")
    return Costs(
        checkpoint_s=saving,
        checkpoint_s_per_gpu=saving_per_gpu,
        restore_s=loading,
        restore_s_per_gpu=loading_per_gpu,
        restart_s=0.0 if restart is None else parse_seconds(restart, what="--restart-cost"),
        interval_s=0.0 if interval is None else parse_seconds(interval, what="--checkpoint-interval"),
    )


def _by_size(text: str | None, option: str) -> tuple[float, float]:
    """``10s``, ``1s/gpu`` or ``10s+1s/gpu`` as seconds for every job and for each GPU."""
    fixed = per_gpu = 0.0
    for part in () if text is None else text.split("+"):
        amount, slash, unit = part.strip().partition("/")
        if slash and unit.strip().lower() != "gpu":
            raise RequestError(f"{option} is {text!r}: expected a time such as 10s, 1s/gpu or 10s+1s/gpu")
        seconds = parse_seconds(amount, what=option)
        fixed, per_gpu = (fixed, per_gpu + seconds) if slash else (fixed + seconds, per_gpu)
    return fixed, per_gpu


def _write(runs: Sequence[Schedule], *, jobs_out: str | None, html: str | None) -> None:
    if jobs_out is not None:
        runs[0].write_jobs(jobs_out)
    if html is not None:
        from traincast.scheduling.page import write_page

        write_page(runs, Path(html))


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
