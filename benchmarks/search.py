"""The search: strategies per second, a whole space, the gain over simple strategies, and Ray against local processes.

``python -m benchmarks.search [speed|space|improvement|ray]``; without a part, all of them. ``benchmarks.accuracy``
shows how good the choices are among measured runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np

from benchmarks.timing import best, table
from traincast.ask import Training
from traincast.engines import Engine, local_engine, ray_engine
from traincast.errors import StrategyError
from traincast.forecast import estimates_of, forecast
from traincast.resolve import resolve
from traincast.searching.bulk.columns import StrategyColumns, joined
from traincast.searching.constraints import apply_constraints
from traincast.searching.explore import bulk_of, explore
from traincast.searching.problem import Problem, SpaceCounts, Task
from traincast.searching.ranking import naive_choice, naive_strategies
from traincast.searching.search import search
from traincast.searching.space import Degrees, usual_axes
from traincast.simulate import Evaluator
from traincast.strategy import Request, lower
from traincast.units import format_seconds

WORKER: Final = "traincast.searching.explore:worker"
LARGE: Final = {"model": "gpt3-175b", "cluster": "dgx-a100:128", "global_batch": 1536}
SAMPLE: Final = (
    Degrees(tp=8, cp=1, pp=8, ep=1),
    Degrees(tp=8, cp=1, pp=16, ep=1),
    Degrees(tp=4, cp=1, pp=32, ep=1),
    Degrees(tp=8, cp=2, pp=4, ep=1),
    Degrees(tp=2, cp=1, pp=64, ep=1),
    Degrees(tp=16, cp=1, pp=2, ep=1),
    Degrees(tp=8, cp=1, pp=1, ep=1),
)
"""Meshes of the large problem, deep and flat ones."""
ALONE: Final = 40
"""Strategies that are forecast one by one, for comparison."""
GAINS: Final = (("bert-large", 256, 1024), ("gpt2", 256, 1024), ("t5-large", 256, 1024), ("llama3-70b", 256, 1024))
"""Models, and their global batches on 16 and on 128 devices."""
EXHAUSTIBLE: Final = "offload=none"
"""Limits the spaces that are evaluated in full: with offloading they would have four times as many strategies."""
LAST_RESORT: Final = "offload=optimizer"
"""Used if nothing fits without it."""


def _problem(constraint: str = "", *, model: str, cluster: str, global_batch: int) -> Problem:
    request = resolve(Training(model, cluster=cluster, global_batch=global_batch, use_cache=True)).request
    axes, most_memory = apply_constraints(constraint, usual_axes(request), request.cluster.device.memory_bytes)
    return Problem(request=request, axes=axes, most_memory=most_memory)


def _request(problem: Problem, columns: StrategyColumns, row: int) -> Request:
    return replace(problem.request, strategy=columns.strategy(row, problem.request.strategy))


def speed() -> None:
    """Members of a fixed sample of meshes in bulk; some of them forecast alone are the baseline."""
    problem = _problem(**LARGE)  # type: ignore[arg-type]
    explore(bulk_of(problem), problem, Task(degrees=SAMPLE[-1:]))  # compiles, and reads what estimates are made with
    rows = []
    parts, total = [], SpaceCounts()
    bulk = bulk_of(problem)
    for at in SAMPLE:
        columns, counts = explore(bulk, problem, Task(degrees=(at,)))
        parts.append(columns)
        total += counts
        rows.append((f"tp={at.tp},cp={at.cp},pp={at.pp}", *_rates(counts.evaluated, counts.feasible, counts.cpu_s)))
    rows.append(("all, in bulk", *_rates(total.evaluated, total.feasible, total.cpu_s)))
    columns = joined(parts)
    fitting = np.flatnonzero(np.isfinite(columns.seconds)).tolist()
    chosen = random.Random(0).sample(fitting, min(ALONE, len(fitting)))
    worst = 0.0

    def alone(row: int) -> None:
        nonlocal worst
        request = _request(problem, columns, row)
        plan = lower(request).plan
        seconds = Evaluator(plan)(estimates_of(request, plan.works).seconds)
        worst = max(worst, abs(float(columns.seconds[row]) / seconds - 1.0))

    for name, run in (
        ("lower, estimate, evaluate", alone),
        ("forecast", lambda row: forecast(_request(problem, columns, row))),
    ):
        spent = _spent(run, chosen)
        rows.append((f"one by one: {name}", *_rates(len(chosen), len(chosen), spent)))
    title = "GPT-3 175B on 1,024 A100, batch 1,536: strategies per CPU-second (to reach: 5,000)"
    table(title, ("meshes", "evaluated", "simulated", "CPU", "evaluated/s", "simulated/s"), rows)
    print(f"  largest difference between bulk and alone: {worst:.1e}")


def _rates(evaluated: int, feasible: int, cpu_s: float) -> tuple[str, ...]:
    each = f"{evaluated / cpu_s:,.0f}", f"{feasible / cpu_s:,.0f}"
    return f"{evaluated:,}", f"{feasible:,}", f"{cpu_s:.2f} s", *each


def _spent(run: Callable[[int], object], rows: Sequence[int]) -> float:
    """Return the CPU seconds for all rows."""
    run(rows[0])
    began = time.process_time()
    for row in rows:
        run(row)
    return time.process_time() - began


def space() -> None:
    """The whole space of the large problem by branch and bound with two workers; one worker is the baseline."""
    rows = []
    for workers in (2, 1):
        began = time.perf_counter()
        answer = search(**LARGE, engine=local_engine(workers), use_cache=True)  # type: ignore[call-overload]
        counts = answer.counts
        rows.append(
            (
                str(workers),
                f"{time.perf_counter() - began:.1f} s",
                f"{counts.cpu_s:.1f} s",
                f"{counts.evaluated:,}",
                f"{counts.feasible:,}",
                f"{counts.families:,}",
                f"{counts.beyond:,}",
                f"{counts.behind:,}",
                f"{answer.best.report.step_s:.3f} s",
            )
        )
    header = ("workers", "wall", "CPU", "evaluated", "feasible", "families", "beyond memory", "behind", "best")
    table("GPT-3 175B on 1,024 A100: the whole space (to reach: 60 s on two cores)", header, rows)
    best = answer.best
    print(f"  best: {best.strategy}, MFU {best.report.mfu:.1%}; {answer.sure:.0%} sure")


def improvement() -> None:
    """Show the gain of the best strategy over plain data parallelism, the median and the worst that fits."""
    rows = []
    engine = local_engine(2)
    for model, *batches in GAINS:
        for nodes, batch in zip((2, 16), batches, strict=True):
            began = time.perf_counter()
            for constraint in (EXHAUSTIBLE, LAST_RESORT):
                problem = _problem(constraint, model=model, cluster=f"dgx-a100:{nodes}", global_batch=batch)
                columns = _exhausted(problem, engine)
                if np.isfinite(columns.seconds).any():
                    break
            took = time.perf_counter() - began
            fits = columns.seconds[np.isfinite(columns.seconds)]
            at = int(columns.order(columns.seconds)[0])
            best = float(columns.seconds[at])
            rows.append(
                (
                    model,
                    str(nodes * 8),
                    str(batch),
                    f"{len(columns):,}",
                    f"{len(fits):,}",
                    f"{took:.0f} s",
                    format_seconds(best),
                    _data_parallel(problem.request, best),
                    f"{np.median(fits) / best:.2f}×",
                    f"{fits.max() / best:.1f}×",
                    str(_request(problem, columns, at).strategy),
                )
            )
            print(*rows[-1], sep="  ", flush=True)
    header = (
        "model", "GPUs", "batch", "strategies", "fit", "took", "best", "data parallel", "median", "worst", "strategy",
    )  # fmt: skip
    limits = f"{EXHAUSTIBLE}, or else {LAST_RESORT}"
    title = f"The best of all strategies ({limits}) against others, as multiples of its time (DistSim: up to 7.37×)"
    table(title, header, rows)


def _exhausted(problem: Problem, engine: Engine, *, done: Callable[[], None] = lambda: None) -> StrategyColumns:
    """Evaluate a whole space."""
    found: dict[int, StrategyColumns] = {}

    def keep(index: int, result: tuple[StrategyColumns, SpaceCounts]) -> None:
        found[index] = result[0]
        done()

    engine.run(WORKER, problem, problem.tasks(), done=keep)
    return joined([found[index] for index in sorted(found)])


def _data_parallel(request: Request, best_s: float) -> str:
    """Return plain data parallelism with the largest micro batch that fits, or why there is none."""
    name, plain = next(iter(naive_strategies(request)))
    try:
        report = forecast(replace(plain, strategy=naive_choice(name, plain))).report
    except StrategyError as error:
        return str(error).partition(";")[0][:60]
    if not report.fits:
        return f"does not fit: {report.peak_memory_bytes / 2**30:.0f} GiB"
    return f"{report.step_s / best_s:.2f}×"


def ray() -> None:
    """A space on two nodes of Ray with one processor each, and with one of them lost; processes are the baseline."""
    problem = _problem(EXHAUSTIBLE, model="gpt2", cluster="dgx-a100:2", global_batch=256)
    columns = _exhausted(problem, local_engine(2))
    local = best(lambda: _exhausted(problem, local_engine(2)), repeats=2)
    rows = [("2 local processes", f"{local:.1f} s", "", f"{len(columns):,}", "")]
    with _two_nodes() as (cluster, second, started):
        rows.append(("start of Ray", f"{started:.1f} s", "", "", ""))
        for name, loses in (("2 nodes of Ray", False), ("2 nodes of Ray, again", False), ("one of them lost", True)):
            began = time.perf_counter()
            done = _loser(cluster, second) if loses else lambda: None
            found = _exhausted(problem, ray_engine(str(cluster.address)), done=done)
            took = time.perf_counter() - began
            rows.append((name, f"{took:.1f} s", f"{took - local:+.1f} s", f"{len(found):,}", _same(columns, found)))
    title = f"GPT-2 on 16 A100, all strategies ({EXHAUSTIBLE}): Ray against processes"
    table(title, ("where", "took", "overhead", "strategies", "answer"), rows)


@contextmanager
def _two_nodes() -> Iterator[tuple[Any, Any, float]]:
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS_SKIP_REGEX": ".*"})
    import ray as ray_package
    from ray.cluster_utils import Cluster

    began = time.perf_counter()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    ray_package.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster, second, time.perf_counter() - began
    finally:
        ray_package.shutdown()
        cluster.shutdown()


def _loser(cluster: Any, second: Any) -> Callable[[], None]:
    """Removes the second node, with its workers, once the first part is done."""
    psutil = importlib.import_module("psutil")  # comes with Ray
    raylet = second.all_processes["raylet"][0].process.pid
    lost = threading.Event()

    def lose() -> None:
        if lost.is_set():
            return
        lost.set()
        workers = [child.pid for child in psutil.Process(raylet).children(recursive=True)]
        cluster.remove_node(second, allow_graceful=False)
        for pid in workers:  # on one machine, they outlive their node by a second
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    return lose


def _same(one: StrategyColumns, other: StrategyColumns) -> str:
    if len(one) != len(other) or not np.array_equal(one.memory, other.memory):
        return "DIFFERENT"
    finite = np.isfinite(one.seconds)
    if not np.array_equal(finite, np.isfinite(other.seconds)):
        return "DIFFERENT"
    apart = float(np.abs(one.seconds[finite] / other.seconds[finite] - 1.0).max(initial=0.0))
    return f"the same, seconds to {apart:.0e}"


PARTS: Final = {"speed": speed, "space": space, "improvement": improvement, "ray": ray}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="|".join(PARTS))
    parts = parser.parse_args(arguments).parts
    for unknown in set(parts) - set(PARTS):
        parser.error(f"unknown part {unknown!r}: known are {', '.join(PARTS)}")
    for name in parts or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
