"""The queue simulator: compared with the reference job by job, every policy on one slice, time and memory at scale.

``python -m benchmarks.scheduling JOBS [PART...]`` where JOBS is a folder with ``philly_2017.csv.gz`` and, below
``reference``, a slice of it with the outcomes that other programs agree on. Without a folder only the made-up week is
run. Parts are ``reference``, ``policies``, ``scale``, and ``estimates`` (with ``gavel_msr_seed0.csv.gz``). The last
shows how much policies lose if they believe forecasts, or noisy durations, instead of the truth.
"""

from __future__ import annotations

import csv
import gzip
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.timing import best, table
from traincast.errors import RequestError
from traincast.scheduling import POLICIES, Costs, Job, Metrics, Outcome, SharedCluster, measure, simulate
from traincast.scheduling.check import check_fit
from traincast.scheduling.estimates.beliefs import Beliefs, Given
from traincast.scheduling.estimates.sources import load_estimates
from traincast.scheduling.estimates.stand_ins import load_stand_ins
from traincast.scheduling.joblogs.read import JobLog, load_jobs
from traincast.scheduling.joblogs.table import Bools, Floats
from traincast.scheduling.sharing.step_times import StepTimes
from traincast.scheduling.space.nodes import load_nodes
from traincast.scheduling.study import Regret, regrets, run_study

REFERENCE = {
    "fifo": "expected_fifo_pooled.csv.gz",
    "fifo-fit": "expected_fifo_greedy_pooled.csv.gz",
    "easy": "expected_easy_pooled.csv.gz",
    "srtf": "expected_srtf_free_preemption.csv.gz",
}
COSTS = Costs(checkpoint_s=10, checkpoint_s_per_gpu=1, restore_s=20, restore_s_per_gpu=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """Errors of the forecasts of one model's jobs: ratios of forecast over duration."""

    model: str
    num_jobs: int
    median_ratio: float
    low_ratio: float
    high_ratio: float
    mape: float


def forecast_errors(log: JobLog, believed: Beliefs | Mapping[str, float]) -> list[ModelError]:
    """Forecasts against durations, for each model of a log and (as "all") together; jobs without one are left out."""
    timed = log.select(log.numbers["duration_s"] > 0)
    given = believed.by_job if isinstance(believed, Given) else believed
    if not isinstance(given, Mapping):
        raise RequestError("only forecasts have errors: give the estimates that load_estimates returns for predicted")
    seconds = np.array([given[name] for name in timed.texts["job_id"].tolist()], dtype=np.float64)
    ratios = seconds / timed.numbers["duration_s"]
    names = timed.texts["model"]
    found = [_error(name, ratios, np.asarray(names == name, dtype=bool)) for name in sorted(set(names.tolist()))]
    return [*found, _error("all", ratios, np.ones(len(ratios), dtype=bool))]


def _error(name: str, ratios: Floats, mask: Bools) -> ModelError:
    chosen = ratios[mask]
    return ModelError(
        model=name,
        num_jobs=len(chosen),
        median_ratio=float(np.median(chosen)),
        low_ratio=float(chosen.min()),
        high_ratio=float(chosen.max()),
        mape=float(np.mean(np.abs(chosen - 1.0))),
    )


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """Return the rows of a table, gzipped or not."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from csv.DictReader(file)


def jobs_of(path: Path) -> list[Job]:
    """Return the jobs of a table."""
    return [
        Job(
            job_id=row["job_id"],
            submit_s=float(row["submit_time_s"]),
            num_gpus=float(row["n_gpus"]),
            duration_s=float(row["duration_s"]),
            vc=row["vc"],
        )
        for row in rows_of(path)
    ]


def made_up_week(number: int = 12_000, *, gpus: int = 512, load: float = 0.9, seed: int = 1) -> list[Job]:
    """Jobs that come evenly over a week: mostly small, with lengths of a long tail, for so much of the cluster."""
    draw = random.Random(seed)
    week = 7 * 86400.0
    made = [
        (
            draw.uniform(0, week),
            draw.choices((1, 2, 4, 8, 16, 32), (60, 12, 12, 12, 3, 1))[0],
            30 + min(draw.lognormvariate(7.0, 2.0), 5 * 86400),
        )
        for _ in range(number)
    ]
    scale = load * gpus * week / sum(n * seconds for _, n, seconds in made)
    return [
        Job(job_id=str(at), submit_s=round(submit), num_gpus=n, duration_s=max(10, round(seconds * scale)))
        for at, (submit, n, seconds) in enumerate(sorted(made))
    ]


def compare_with_reference(folder: Path) -> None:
    """Compare start and end of every job with those of other programs."""
    jobs = jobs_of(folder / "philly_ee9e8c_30d.csv")
    cluster = SharedCluster.uniform(5, 8)
    rows = []
    for policy, name in REFERENCE.items():
        outcome = simulate(jobs, cluster, policy=policy)
        mine = {fate.job_id: (fate.start_s, fate.end_s) for fate in outcome.fates}
        theirs = {
            row["job_id"]: (float(row.get("start", row.get("start_time", "nan"))), float(_end(row)))
            for row in rows_of(folder / name)
        }
        wrong = sum(mine.get(job) != times for job, times in theirs.items())
        found = measure(outcome)
        took = best(lambda policy=policy: simulate(jobs, cluster, policy=policy))  # type: ignore[misc]
        figures = (f"{found.mean_jct_s:.6f}", f"{found.mean_queue_s:.6f}", f"{found.makespan_s:.0f}")
        rows.append((policy, f"{len(theirs) - wrong} of {len(theirs)}", *figures, f"{took * 1e3:.0f} ms"))
    table(
        "against the reference, 5 × 8 GPUs, pooled (to reach: all equal; FIFO 100 ms)",
        ("policy", "jobs equal", "mean JCT s", "mean queueing s", "makespan s", "time"),
        rows,
    )


def _end(row: dict[str, str]) -> str:
    return row["end"] if "end" in row else row["end_time"]


def all_policies(folder: Path, placement: str) -> None:
    """Run every policy on the slice."""
    jobs = jobs_of(folder / "philly_ee9e8c_30d.csv")
    rows = []
    for policy in POLICIES:
        started = time.perf_counter()
        found = measure(simulate(jobs, SharedCluster.uniform(5, 8), policy=policy, placement=placement))
        rows.append((policy, *_figures(found), f"{time.perf_counter() - started:.2f} s"))
    table(f"{len(jobs)} jobs on 5 × 8 GPUs, {placement}, free preemption", ("policy", *_NAMES, "time"), rows)


_NAMES = ("mean JCT h", "median h", "p99 h", "queueing h", "makespan d", "used", "fragmented", "idle", "preempted", "ρ")


def _figures(found: Metrics) -> tuple[str, ...]:
    hours = (found.mean_jct_s, found.median_jct_s, found.p99_jct_s, found.mean_queue_s)
    return (
        *(f"{seconds / 3600:.2f}" for seconds in hours),
        f"{found.makespan_s / 86400:.2f}",
        f"{found.utilization:.1%}",
        f"{found.fragmentation:.1%}",
        f"{found.idle_while_waiting:.1%}",
        f"{found.preemptions}",
        f"{found.mean_rho:.2f}",
    )


def _at_scale(path: str, nodes: int, policy: str, placement: str) -> tuple[str, ...]:
    """Do one large run; its own process makes its memory measurable."""
    jobs = jobs_of(Path(path)) if path else made_up_week()
    started, busy = time.perf_counter(), time.process_time()
    outcome = simulate(jobs, SharedCluster.uniform(nodes, 8), policy=policy, placement=placement, costs=COSTS)
    took, busy = time.perf_counter() - started, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return (
        policy,
        placement,
        f"{len(jobs):,}",
        f"{nodes} × 8",
        f"{took:.1f} s",
        f"{busy:.1f} s",
        f"{peak / 1e6:.0f} MB",
        f"{_most_waiting(outcome):.0f}",
        f"{sum(fate.preemptions for fate in outcome.fates)}",
    )


def _most_waiting(outcome: Outcome) -> float:
    return float(outcome.history.waiting.max())


def at_scale(folder: Path | None) -> None:
    """Run large queues, one process each, on a cluster with room to spare and on an overloaded one."""
    runs = [("", 64, "srtf", "pooled"), ("", 64, "srtf", "consolidated")]
    if folder is not None:
        log = str(folder / "philly_2017.csv.gz")
        runs += [(log, nodes, policy, "pooled") for nodes in (300, 45) for policy in ("fifo", "sjf", "easy")]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        rows = list(pool.map(_at_scale, *zip(*runs, strict=True)))
    table(
        "at scale, checkpoints of 10 s + 1 s/GPU (to reach: a week of 12,000 jobs 10 s; 82,247 jobs 20 s and 1 GB)",
        ("policy", "placement", "jobs", "cluster", "time", "processor", "memory", "most waiting", "preempted"),
        rows,
    )


BELIEVED = ("exact", "predicted", "predicted, scaled", "noisy:0.3", "noisy:1.0")
BELIEVERS = ("sjf", "easy", "qssf", "srtf", "sjf-fit")
HISTORY = 500
"""Jobs from which the scale of each model's forecasts is learned; they are not among those judged."""


def estimates(folder: Path) -> None:
    """Show the loss in mean completion time if policies believe forecasts, on jobs whose models are named."""
    whole = load_jobs(folder / "gavel_msr_seed0.csv.gz")
    timed = whole.select(~whole.to_forecast)
    print(f"{len(whole):,} jobs, of which {len(timed):,} have a measured duration; the first {HISTORY} are the history")
    for number, nodes, loads in ((3000, "66x8:V100", (0.6, 0.75, 1.0)), (0, "36x8:V100", (1.0,))):
        cluster = SharedCluster(nodes=load_nodes(nodes).nodes)
        log = check_fit(timed, cluster, any_gpu=True)
        at = np.arange(len(log))
        history, judged = log.select(at < HISTORY), log.select((at >= HISTORY) & (at < HISTORY + (number or 10**9)))
        _estimates(history, judged, cluster, nodes, loads, show_errors=not number)


def _estimates(
    history: JobLog, log: JobLog, cluster: SharedCluster, nodes: str, loads: tuple[float, ...], *, show_errors: bool
) -> None:
    table_of = load_stand_ins("gavel")
    steps = StepTimes(cluster, precision=table_of.precision, runtime=table_of.runtime)
    started = time.perf_counter()
    beliefs = {
        "predicted": load_estimates("predicted:gavel", log, cluster, steps=steps),
        "predicted, scaled": load_estimates("predicted:gavel", log, cluster, steps=steps, history=history),
    }
    took = time.perf_counter() - started
    if show_errors:
        for name, believed in beliefs.items():
            table(
                f"{name}: forecast over measured duration, {steps.num_forecasts} forecasts in {took:.0f} s",
                ("model", "jobs", "median", "least", "most", "MAPE", "stand-in"),
                [
                    (
                        e.model,
                        f"{e.num_jobs:,}",
                        *(f"{ratio:.2f}" for ratio in (e.median_ratio, e.low_ratio, e.high_ratio)),
                        f"{e.mape:.0%}",
                        table_of.models[e.model].likeness if e.model in table_of.models else "",
                    )
                    for e in forecast_errors(log, believed)
                ],
            )
    offered = float((log["num_gpus"] * log["duration_s"]).sum()) / log.span_s / cluster.num_gpus
    started = time.perf_counter()
    rows = run_study(
        log.jobs,
        cluster,
        policies=BELIEVERS,
        placements=("consolidated",),
        estimates=BELIEVED,
        seeds=range(3),
        loads=loads,
        beliefs=beliefs,
    )
    took = time.perf_counter() - started
    found = {(one.policy, one.estimates, one.load): one for one in regrets(rows)}
    for load in loads:
        table(
            f"{len(log):,} jobs on {nodes}, {offered * load:.0%} of the cluster asked for, consolidated: mean "
            f"completion time in h, loss against exact (of three seeds), and loss of queueing time (all {took:.0f} s)",
            ("policy", *BELIEVED),
            [(policy, *(_loss(found[policy, estimate, load]) for estimate in BELIEVED)) for policy in BELIEVERS],
        )


def _loss(one: Regret) -> str:
    if one.estimates == "exact":
        return f"{one.mean_jct_s / 3600:.2f} ({one.mean_queue_s / 3600:.2f} queueing)"
    spread = f" [{one.low:+.1%} to {one.high:+.1%}]" if one.low < one.high else ""
    return f"{one.mean_jct_s / 3600:.2f} ({one.loss:+.1%}{spread}; {one.queue_loss:+.0%})"


def main(folder: Path | None = None, parts: tuple[str, ...] = ()) -> None:
    """Run all studies, or the parts that are named."""
    if folder is not None:
        if not parts or "reference" in parts:
            compare_with_reference(folder / "reference")
        if not parts or "policies" in parts:
            for placement in ("pooled", "consolidated"):
                all_policies(folder / "reference", placement)
        if not parts or "estimates" in parts:
            estimates(folder)
    if not parts or "scale" in parts:
        at_scale(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, tuple(sys.argv[2:]))
