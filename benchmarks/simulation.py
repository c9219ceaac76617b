"""The simulation: tasks per second, against plain Python, and cost against the size of the cluster."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from benchmarks.timing import best, table
from traincast.cluster import load_cluster
from traincast.forecast import default_cost_model, forecast
from traincast.graph.load import load_model
from traincast.simulate import Evaluator, expand, simulate
from traincast.simulate.executor import execute_tasks
from traincast.strategy import Request, Strategy, load_precision, load_runtime, lower


def _request(model: str, cluster: str, strategy: Strategy, global_batch: int) -> Request:
    return Request(
        graph=load_model(model, use_cache=True),
        cluster=load_cluster(cluster),
        strategy=strategy,
        runtime=load_runtime("megatron"),
        precision=load_precision("bf16"),
        global_batch=global_batch,
    )


def rate() -> None:
    """Lower and execute about a million tasks over 1,024 ranks; the same loop in plain Python is the baseline."""
    strategy = Strategy(dp=32, tp=8, pp=4, num_microbatches=2)
    request = _request("gpt3-13b", "dgx-a100:128", strategy, 64)
    plan = lower(request, grain="operator").plan
    seconds = default_cost_model().estimate(plan.works, request.cluster).seconds
    full = expand(plan)
    simulate(full, seconds)
    lowering = best(lambda: lower(request, grain="operator"))
    expanding = best(lambda: expand(plan))
    executing = best(lambda: simulate(full, seconds))
    total = lowering + expanding + executing
    started = time.perf_counter()
    duration = full.costs(seconds)[full.cost].tolist()
    start, end = [0.0] * full.num_tasks, [0.0] * full.num_tasks
    execute_tasks(
        0,
        full.num_tasks,
        0.0,
        duration,
        full.lane_start.tolist(),
        full.lanes.tolist(),
        full.predecessor_start.tolist(),
        full.predecessors.tolist(),
        [0.0] * full.num_lanes,
        start,
        end,
    )
    plain = time.perf_counter() - started
    rows = [
        ("lower", f"{lowering:.4f} s", ""),
        ("expand", f"{expanding:.4f} s", ""),
        ("execute, compiled", f"{executing:.4f} s", f"{full.num_tasks / executing / 1e6:.1f} M tasks/s"),
        ("execute, plain Python", f"{plain:.4f} s", f"{full.num_tasks / plain / 1e6:.2f} M tasks/s"),
        ("lower + expand + execute", f"{total:.4f} s", f"{full.num_tasks / total / 1e6:.1f} M tasks/s"),
    ]
    table(f"{full.num_tasks:,} tasks over {len(full.ranks):,} ranks (to reach: 3 M/s)", ("part", "time", "rate"), rows)
    assert np.isclose(max(end), simulate(full, seconds).step_s, rtol=1e-12)


def scaling() -> None:
    """One forecast on 8 to 131,072 devices at fixed work per device; the smallest is the baseline."""
    base: float | None = None
    rows = []
    for nodes in (1, 8, 64, 512, 4096, 16384):
        devices = nodes * 8
        request = _request(
            "llama3-8b", f"dgx-h100:{nodes}", Strategy(dp=devices // 4, tp=4, num_microbatches=4), devices
        )
        took = best(lambda request=request: forecast(replace(request)), repeats=5)  # type: ignore[misc]
        base = base or took
        rows.append((f"{devices:,}", f"{took * 1e3:.1f} ms", f"{took / base:.2f}"))
    table("cost against cluster size (to reach: flat within 2×)", ("devices", "forecast", "against 8 devices"), rows)


def evaluation() -> None:
    """One strategy of GPT-3 175B on 1,024 devices evaluated again: the evaluator against a plain simulation."""
    rows = []
    for strategy in (
        Strategy(dp=16, tp=8, pp=8, num_microbatches=96, zero=1, sequence_parallel=True),
        Strategy(dp=8, tp=8, pp=16, num_microbatches=192, zero=1, sequence_parallel=True),
        Strategy(dp=16, tp=8, pp=8, virtual_stages=2, num_microbatches=48, schedule="interleaved"),
        Strategy(dp=128, tp=8, num_microbatches=12, zero=3, sequence_parallel=True),
    ):
        request = _request("gpt3-175b", "dgx-a100:128", strategy, 1536)
        plan = lower(request).plan
        seconds = default_cost_model().estimate(plan.works, request.cluster).seconds
        evaluate = Evaluator(plan)
        simulated, evaluated = simulate(plan, seconds).step_s, evaluate(seconds)
        again, once = best(lambda: evaluate(seconds)), best(lambda: simulate(plan, seconds))  # noqa: B023
        difference = abs(evaluated / simulated - 1.0)
        rows.append(
            (str(strategy), f"{plan.num_tasks:,}", f"{again * 1e3:.2f} ms", f"{once * 1e3:.1f} ms", f"{difference:.0e}")
        )
    table("A strategy evaluated again", ("strategy", "tasks", "evaluator", "simulation", "difference"), rows)


def main() -> None:
    """Run all studies."""
    rate()
    scaling()
    evaluation()


if __name__ == "__main__":
    main()
