"""The event engine against the executor: tasks per second on the same plan, with and without sharing, in one run."""

from __future__ import annotations

import numpy as np

from benchmarks.timing import best, table
from traincast.ask import Conditions
from traincast.cluster import Link, load_cluster
from traincast.forecast import default_cost_model
from traincast.graph.load import load_model
from traincast.simulate import expand, simulate
from traincast.simulate.conditions import under, who_waits
from traincast.simulate.event_queue import execute_queue
from traincast.simulate.servers import run_servers
from traincast.strategy import Request, Strategy, load_precision, load_runtime, lower
from traincast.strategy.servers.tasks import Piece, ServerSetup


def rate() -> None:
    """Run about a million tasks over 1,024 ranks, by the executor and by the event engine under several conditions."""
    request = Request(
        graph=load_model("gpt3-13b", use_cache=True),
        cluster=load_cluster("dgx-a100:128"),
        strategy=Strategy(dp=32, tp=8, pp=4, num_microbatches=2),
        runtime=load_runtime("megatron"),
        precision=load_precision("bf16"),
        global_batch=64,
    )
    plan = lower(request, grain="operator").plan
    seconds = default_cost_model().estimate(plan.works, request.cluster).seconds
    full = expand(plan)
    duration = full.costs(seconds)[full.cost]

    def events() -> float:
        _, end = execute_queue(
            duration,
            lane_start=full.lane_start,
            lanes=full.lanes,
            predecessor_start=full.predecessor_start,
            predecessors=full.predecessors,
            num_lanes=full.num_lanes,
        )
        return float(end.max())

    usual = simulate(full, seconds)
    assert events() == usual.step_s
    rows = [
        _row("executor", full.num_tasks, best(lambda: simulate(full, seconds)), usual.step_s),
        _row("event engine, nothing shared", full.num_tasks, best(events), usual.step_s),
    ]
    for name, conditions in (
        ("under: jitter (expand and executor)", Conditions(jitter=0.02)),
        ("under: shared links (expand and events)", Conditions(share_links=True)),
        ("under: interference", Conditions(interference=0.2)),
        ("under: interference and shared links", Conditions(interference=0.2, share_links=True)),
        ("under: all of them", Conditions(jitter=0.02, interference=0.2, share_links=True)),
    ):
        found = under(plan, seconds, conditions)
        took = best(lambda conditions=conditions: under(plan, seconds, conditions), repeats=2)  # type: ignore[misc]
        rows.append(_row(name, found.plan.num_tasks, took, found.step_s))
    rows.append(_row("who waits for whom", full.num_tasks, best(lambda: who_waits(usual), repeats=2), usual.step_s))
    table(
        f"{full.num_tasks:,} tasks over {len(full.ranks):,} ranks (to reach: 1 M/s)",
        ("what", "time", "rate", "simulated step"),
        rows,
    )


def servers() -> None:
    """Run parameter servers: lanes serve in order of arrival, and every transfer uses two shared links."""
    link = Link(name="10 Gb/s", bandwidth=1.25e9, latency_s=30e-6)
    pieces = [Piece(forward_s=1e-3, backward_s=2e-3, nbytes=n) for n in np.geomspace(1e4, 1e7, 50)]
    rows = []
    for asynchronous in (False, True):
        setup = ServerSetup(
            servers=4,
            workers=16,
            asynchronous=asynchronous,
            worker_nic=link,
            server_nic=link,
            local=link,
            update_s_per_byte=1e-10,
        )
        found = run_servers(setup, pieces, steps=30)
        took = best(lambda setup=setup: run_servers(setup, pieces, steps=30))  # type: ignore[misc]
        name = "asynchronous" if asynchronous else "synchronous"
        rows.append(_row(name, len(found.end), took, float(found.end.max()) / 30))
    table("parameter servers, 4 × 16 workers, 30 steps", ("what", "time", "rate", "simulated step"), rows)


def _row(name: str, tasks: int, took: float, step: float) -> tuple[str, ...]:
    return (name, f"{took:.3f} s", f"{tasks / took / 1e6:.2f} M tasks/s", f"{step * 1e3:.2f} ms")


def main() -> None:
    """Run both studies."""
    rate()
    servers()


if __name__ == "__main__":
    main()
