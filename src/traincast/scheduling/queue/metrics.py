"""Figures of a simulated queue: completion times, queueing, utilization, fragmentation, fairness, losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from traincast.scheduling.queue.outcome import History, JobOutcome, Outcome

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures of a whole cluster or of one virtual cluster. Times are seconds.

    - ``utilization``: GPU-seconds held, over those of the whole cluster during the makespan.
    - ``goodput``: share of the GPU-seconds held that was useful work: neither overhead nor lost to failures.
    - ``fragmentation``: share of the free GPU-seconds that was on nodes partly in use; the free parts of shared GPUs
      count as free.
    - ``idle_while_waiting``: GPU-seconds free while some job waited, over those of the cluster during the makespan.
    - ``rho``: finish-time fairness ρ (Mahajan et al., NSDI 2020): the time from submission to end, over the time that
      the job would have taken on 1/N of the cluster. N is the mean number of jobs present meanwhile. Above 1 is worse
      than fair.
    - ``mean_slowdown``: mean over jobs of their execution time, over that without neighbours on their nodes; 1 if
      sharing a node costs nothing, or is not simulated.
    - ``deadlines_met``: share of the jobs with a deadline that met it; 1 if no job has one.

    For one virtual cluster, fragmentation and idle time are those of the whole cluster. Its makespan is from its first
    submission to its last end. Its utilization is its own GPU-seconds over those of the whole cluster meanwhile.
    """

    num_jobs: int
    mean_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    mean_queue_s: float
    median_queue_s: float
    p99_queue_s: float
    makespan_s: float
    utilization: float
    goodput: float
    fragmentation: float
    idle_while_waiting: float
    preemptions: int
    restarts: int
    lost_gpu_s: float
    overhead_gpu_s: float
    mean_rho: float
    max_rho: float
    deadlines_met: float
    mean_slowdown: float = 1.0

    def to_dict(self) -> dict[str, float]:
        """Return the figures by name; ``utilisation``, the earlier spelling, stays for programs that read it."""
        return {**asdict(self), "utilisation": self.utilization}


def measure(outcome: Outcome) -> Metrics:
    """Figures of all jobs."""
    return _measure(outcome, range(len(outcome.fates)), rho(outcome))


def measure_by_vc(outcome: Outcome) -> dict[str, Metrics]:
    """Figures of the jobs of each virtual cluster, by its name."""
    orders: dict[str, list[int]] = {}
    for order, fate in enumerate(outcome.fates):
        orders.setdefault(fate.vc, []).append(order)
    fairness = rho(outcome)
    return {vc: _measure(outcome, orders[vc], fairness) for vc in sorted(orders)}


def rho(outcome: Outcome) -> Floats:
    """Finish-time fairness ρ of every job, in order."""
    fates = outcome.fates
    submit = np.array([fate.submit_s for fate in fates])
    end = np.array([fate.end_s for fate in fates])
    gpus = np.array([fate.n_gpus for fate in fates])
    length = np.array([job.duration_s for job in outcome.jobs])
    times = np.concatenate([submit, end])
    order = np.argsort(times, kind="stable")
    times, steps = times[order], np.concatenate([np.ones(len(fates)), -np.ones(len(fates))])[order]
    present = np.cumsum(steps)
    summed = np.concatenate([[0.0], np.cumsum(present[:-1] * np.diff(times))])
    between = np.interp(end, times, summed) - np.interp(submit, times, summed)
    average = between / np.maximum(end - submit, 1e-12)
    ideal = length * np.maximum(1.0, gpus * average / outcome.cluster.num_gpus)
    found: Floats = (end - submit) / ideal
    return found


def _measure(outcome: Outcome, orders: Sequence[int], fairness: Floats) -> Metrics:
    if not orders:
        raise ValueError("no jobs to measure")
    fates: list[JobOutcome] = [outcome.fates[order] for order in orders]
    jct = np.array([fate.jct_s for fate in fates])
    queue = np.array([fate.queue_s for fate in fates])
    free, split = _unused(outcome)
    waiting = outcome.history.waiting
    free_s = _total(outcome.history, free)
    span = max(fate.end_s for fate in fates) - min(fate.submit_s for fate in fates)
    capacity = outcome.cluster.num_gpus * span
    held = sum(fate.served_gpu_s for fate in fates)
    lost = sum(fate.lost_gpu_s for fate in fates)
    overhead = sum(fate.overhead_gpu_s for fate in fates)
    due = [(f.end_s, d) for f, o in zip(fates, orders, strict=True) if (d := outcome.jobs[o].deadline_s) is not None]
    return Metrics(
        num_jobs=len(fates),
        mean_jct_s=float(jct.mean()),
        median_jct_s=float(np.median(jct)),
        p99_jct_s=float(np.percentile(jct, 99)),
        mean_queue_s=float(queue.mean()),
        median_queue_s=float(np.median(queue)),
        p99_queue_s=float(np.percentile(queue, 99)),
        makespan_s=span,
        utilization=held / capacity,
        goodput=(held - lost - overhead) / held,
        fragmentation=_total(outcome.history, split) / free_s if free_s else 0.0,
        idle_while_waiting=_total(outcome.history, np.where(waiting > 0, free, 0.0))
        / (outcome.cluster.num_gpus * outcome.makespan_s),
        preemptions=sum(fate.preemptions for fate in fates),
        restarts=sum(fate.restarts for fate in fates),
        lost_gpu_s=lost,
        overhead_gpu_s=overhead,
        mean_rho=float(fairness[list(orders)].mean()),
        max_rho=float(fairness[list(orders)].max()),
        deadlines_met=sum(end <= deadline for end, deadline in due) / len(due) if due else 1.0,
        mean_slowdown=float(np.mean([fate.slowdown for fate in fates])),
    )


def _total(history: History, values: Floats) -> float:
    """Integrate over time a value that holds until the next time."""
    return float((values[:-1] * np.diff(history.time_s)).sum())


def _unused(outcome: Outcome) -> tuple[Floats, Floats]:
    """Return the free GPUs, with free parts of shared ones, and those of them on nodes partly in use, at each time."""
    history = outcome.history
    rests = outcome.cluster.num_gpus - history.down_gpus - history.used_gpus - history.free_gpus
    return history.free_gpus + rests, history.split_gpus + rests
