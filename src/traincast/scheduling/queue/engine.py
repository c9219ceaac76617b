"""The event engine of the queue: exact times, and one rule for what happens at the same time.

At each instant, four things happen in this order: jobs that are due end, in order of submission; failures and repairs
happen, in the order in which their process yields them; jobs arrive, in order of submission; the policy decides, once.
Nothing happens between two events, so time jumps from one to the next. A job that a decision starts can end at the same
instant only if it has no work left; then the four steps run again.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from traincast.errors import RequestError, SimulationError
from traincast.scheduling.estimates.beliefs import Beliefs, Exact
from traincast.scheduling.joblogs.job import Job
from traincast.scheduling.policies import load_policy
from traincast.scheduling.policy import Policy
from traincast.scheduling.queue.costs import Costs
from traincast.scheduling.queue.failures import FailureProcess, Failures
from traincast.scheduling.queue.outcome import History, JobOutcome, Occupancy, Outcome
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.speeds import PLAIN, Speeds
from traincast.scheduling.queue.state import State
from traincast.scheduling.space.cluster import SharedCluster
from traincast.scheduling.space.free import UNIT
from traincast.scheduling.space.placement import Placement, load_placement

if TYPE_CHECKING:
    from traincast.scheduling.sharing.contention import Contention

_PATIENCE: Final = 100_000
"""After this many decisions in a row that leave the cluster idle, a run counts as stuck."""
_MOST_RESTARTS: Final = 10_000
"""After this many restarts of one job, a run stops: failures come faster than the job can save."""


def simulate(
    jobs: Sequence[Job],
    cluster: SharedCluster,
    *,
    policy: str | Policy = "fifo",
    placement: str | Placement = "pooled",
    beliefs: Beliefs | None = None,
    speeds: Speeds | None = None,
    believed_speeds: Speeds | None = None,
    costs: Costs | None = None,
    failures: Failures | None = None,
    contention: Contention | None = None,
    seed: int = 0,
) -> Outcome:
    """Run a queue of jobs on a cluster; equal arguments give equal outcomes.

    ``speeds`` are the true speeds of jobs where they are placed. Before a job starts, the scheduler relies on
    ``believed_speeds``, by default the true ones. With ``contention``, jobs that meet on a node slow one another down.
    ``beliefs`` are the durations that the scheduler believes. Jobs that cannot run even on the empty cluster are
    refused before the simulation starts.
    """
    rule = load_placement(placement, seed=seed) if isinstance(placement, str) else placement
    chosen = load_policy(policy) if isinstance(policy, str) else policy
    state = State(
        cluster=cluster,
        policy=chosen,
        placement=rule,
        beliefs=beliefs or Exact(),
        speeds=speeds or PLAIN,
        believed_speeds=believed_speeds or speeds or PLAIN,
        costs=costs or Costs(),
        contention=contention,
    )
    ordered = [job for _, job in sorted(enumerate(jobs), key=lambda pair: (pair[1].submit_s, pair[0]))]
    rule.prepare(Counter(job.num_gpus for job in ordered))
    _refuse_impossible(ordered, state, resizes=chosen.resizes)
    runs = [JobRun(job, order, state.demand(job), state.costs) for order, job in enumerate(ordered)]
    chosen.begin(state)
    process = failures.process(state.layout, seed=seed) if failures else None
    recorder = _Recorder(state)
    _play(runs, state, chosen, process, recorder)
    return Outcome(
        policy=policy if isinstance(policy, str) else type(policy).__name__,
        placement=placement if isinstance(placement, str) else type(placement).__name__,
        cluster=cluster,
        jobs=ordered,
        fates=_fates(runs, state.segments, cluster),
        segments=state.segments,
        history=recorder.history(),
    )


def _refuse_impossible(jobs: Sequence[Job], state: State, *, resizes: bool) -> None:
    fits: dict[tuple[float, str, str], bool] = {}
    impossible: list[Job] = []
    for job in jobs:
        fewest = _fewest(job, resizes=resizes)
        key = (fewest, job.vc, job.gpu_type)
        if key not in fits:
            fits[key] = state.placement.find(state.demand(job, num_gpus=fewest), state.free) is not None
        if not fits[key]:
            impossible.append(job)
    if impossible:
        more = f" (and {len(impossible) - 1} more jobs that cannot run)" if len(impossible) > 1 else ""
        raise RequestError(_why_impossible(impossible[0], state, _fewest(impossible[0], resizes=resizes)) + more)


def _fewest(job: Job, *, resizes: bool) -> float:
    return job.min_gpus if resizes and job.min_gpus else job.num_gpus


def _why_impossible(job: Job, state: State, fewest: float) -> str:
    demand = state.demand(job, num_gpus=fewest)
    asked = f"job {job.job_id} asks for {fewest:g} GPUs{f' of type {job.gpu_type}' if job.gpu_type else ''}"
    if not demand.pools:
        known = ", ".join(sorted({node.gpu_type for node in state.cluster.nodes if node.gpu_type})) or "none named"
        return f"{asked}, but no node that virtual cluster {job.vc!r} may use has them; GPU types: {known}"
    if not state.free.in_quota(demand):
        return f"{asked}, but the quota of virtual cluster {job.vc!r} is {state.cluster.quotas[job.vc]:g}: leave it out"
    most = max(state.free.count(pool) for pool in demand.pools)
    if demand.num_gpus > most:
        return f"{asked}, but the cluster has {most} that it may use: leave the job out or add nodes"
    return f"{asked}, which cannot be placed even on the empty cluster of {most} such GPUs: choose another placement"


def _play(
    runs: Sequence[JobRun], state: State, policy: Policy, process: FailureProcess | None, recorder: _Recorder
) -> None:
    """Run from the first event to the end of the last job."""
    arrivals = 0
    ends, idle = state.ends, 0
    while True:
        while ends and _is_stale(ends[0], runs):
            heapq.heappop(ends)
        now = min(ends[0][0] if ends else math.inf, state.wake_s)
        if arrivals < len(runs):
            now = min(now, runs[arrivals].job.submit_s)
        elif not state.waiting and not state.running:
            return
        if process:
            now = min(now, process.next_s)
        if now == math.inf:
            raise SimulationError(_why_stuck(state))
        state.now = now
        while ends and ends[0][0] <= now:
            end = heapq.heappop(ends)
            if not _is_stale(end, runs):
                state.complete(runs[end[1]])
        while process and process.next_s <= now:
            gpus, is_repair = process.pop()
            if is_repair:
                state.mend(gpus)
            else:
                state.strike(gpus)
                _refuse_endless(state)
        while arrivals < len(runs) and runs[arrivals].job.submit_s <= now:
            state.submit(runs[arrivals])
            arrivals += 1
        state.wake_s = math.inf
        policy.decide(state)
        recorder.note()
        idle = idle + 1 if state.waiting and not state.running else 0
        if idle > _PATIENCE:
            raise SimulationError(_why_stuck(state))


def _is_stale(end: tuple[float, int, int], runs: Sequence[JobRun]) -> bool:
    """Whether a job was stopped before this end, or has another speed since it was computed."""
    time, order, token = end
    return runs[order].token != token or runs[order].end_s != time


def _why_stuck(state: State) -> str:
    run = next(iter(state.waiting.values()))
    up = sum(state.layout.sizes) - len(state.free.down)
    return (
        f"{len(state.waiting)} jobs wait for ever at {state.now:g} s, the first is {run.job.job_id} for "
        f"{run.num_gpus:g} GPUs while {state.free.total} of {up} GPUs in service are free: "
        "the policy must start what fits, and failures must be repaired"
    )


def _refuse_endless(state: State) -> None:
    for run in state.waiting.values():
        if run.restarts > _MOST_RESTARTS:
            raise RequestError(
                f"job {run.job.job_id} was restarted {run.restarts} times and has {run.work_s:g} s left: failures come "
                "faster than it is saved; shorten the checkpoint interval or lengthen the time between failures"
            )


class _Recorder:
    """Records the cluster after every decision, as columns."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._rows = array("d")

    def note(self) -> None:
        state = self._state
        free = state.free
        self._rows.extend(
            (
                state.now,
                len(state.waiting),
                len(state.running),
                state.used_units / UNIT,
                free.total,
                free.total - free.in_empty,
                len(free.down),
            )
        )

    def history(self) -> History:
        rows = np.frombuffer(self._rows, dtype=np.float64).reshape(-1, 7) if self._rows else np.zeros((0, 7))
        time, waiting, running, used, free, split, down = (column.copy() for column in rows.T)
        return History(
            time_s=time,
            waiting=waiting,
            running=running,
            used_gpus=used,
            free_gpus=free,
            split_gpus=split,
            down_gpus=down,
        )


def _fates(runs: Sequence[JobRun], segments: Sequence[Occupancy], cluster: SharedCluster) -> list[JobOutcome]:
    last: dict[int, Occupancy] = {segment.order: segment for segment in segments}
    names = [node.name for node in cluster.nodes]
    return [
        JobOutcome(
            job_id=run.job.job_id,
            submit_s=run.job.submit_s,
            start_s=run.first_start_s,
            end_s=run.end_s,
            n_gpus=run.job.num_gpus,
            jct_s=run.end_s - run.job.submit_s,
            queue_s=run.end_s - run.job.submit_s - run.served_s,
            preemptions=run.preemptions,
            restarts=run.restarts,
            nodes=tuple(names[node] for node in last[run.order].allocation.nodes) if run.order in last else (),
            vc=run.job.vc,
            lost_s=run.lost_s,
            overhead_s=run.overhead_s,
            served_gpu_s=run.served_gpu_s,
            lost_gpu_s=run.lost_gpu_s,
            overhead_gpu_s=run.overhead_gpu_s,
            shared_s=run.shared_s,
        )
        for run in runs
    ]
