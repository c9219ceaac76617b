"""Jobs and clusters in one line each, for tests."""

from __future__ import annotations

from typing import Any

from traincast import Job, SharedCluster
from traincast.scheduling import Outcome, simulate


def job(submit_s: float, num_gpus: float, duration_s: float, **more: Any) -> Job:
    """A job; its name comes from `queue` unless given."""
    return Job(**{"job_id": "", **more}, submit_s=submit_s, num_gpus=num_gpus, duration_s=duration_s)


def queue(*rows: tuple[float, float, float]) -> list[Job]:
    """Jobs a, b, c, … of (submit, GPUs, seconds)."""
    return [job(*row, job_id="abcdefghijklmnopqrstuvwxyz"[at]) for at, row in enumerate(rows)]


def spans(outcome: Outcome) -> dict[str, list[tuple[float, float]]]:
    """When each job held GPUs."""
    found: dict[str, list[tuple[float, float]]] = {fate.job_id: [] for fate in outcome.fates}
    for segment in sorted(outcome.segments, key=lambda s: s.start_s):
        found[outcome.jobs[segment.order].job_id].append((segment.start_s, segment.end_s))
    return found


def starts(jobs: list[Job], policy: str, *, nodes: int = 1, gpus: int = 4, **more: Any) -> dict[str, float]:
    """When each job first starts."""
    outcome = simulate(jobs, SharedCluster.uniform(nodes, gpus), policy=policy, **more)
    return {fate.job_id: fate.start_s for fate in outcome.fates}
