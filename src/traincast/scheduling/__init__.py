"""Simulates a queue of jobs on a shared cluster: jobs, policies, placement, failures, outcomes and their figures.

>>> from traincast.scheduling import Job, SharedCluster, measure, simulate
>>> rows = [(0, 4, 3600), (60, 8, 1800), (120, 1, 600)]
>>> jobs = [Job(job_id=str(n), submit_s=s, num_gpus=g, duration_s=d) for n, (s, g, d) in enumerate(rows)]
>>> outcome = simulate(jobs, SharedCluster.uniform(1, 8), policy="easy", placement="consolidated")
>>> [(fate.job_id, round(fate.start_s), round(fate.end_s)) for fate in outcome.fates]
[('0', 0, 3600), ('1', 3600, 5400), ('2', 120, 720)]
>>> round(measure(outcome).mean_jct_s)
3180
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traincast.scheduling.estimates.beliefs import Beliefs, Exact, Given, Noisy, User, load_beliefs
    from traincast.scheduling.joblogs.job import Job
    from traincast.scheduling.policies import POLICIES, load_policy
    from traincast.scheduling.policy import Policy
    from traincast.scheduling.queue.costs import Costs
    from traincast.scheduling.queue.engine import simulate
    from traincast.scheduling.queue.failures import FailureEvent, FailureLaw, Failures
    from traincast.scheduling.queue.metrics import Metrics, measure, measure_by_vc
    from traincast.scheduling.queue.outcome import JobOutcome, Occupancy, Outcome
    from traincast.scheduling.queue.run import JobRun
    from traincast.scheduling.queue.speeds import Factors, PlacedGpus, Speeds
    from traincast.scheduling.queue.state import State
    from traincast.scheduling.space.cluster import Node, SharedCluster
    from traincast.scheduling.space.placement import PLACEMENTS, Placement, load_placement

_HOMES = {
    "traincast.scheduling.estimates.beliefs": "Beliefs Exact Given Noisy User load_beliefs",
    "traincast.scheduling.joblogs.job": "Job",
    "traincast.scheduling.policies": "POLICIES load_policy",
    "traincast.scheduling.policy": "Policy",
    "traincast.scheduling.queue.costs": "Costs",
    "traincast.scheduling.queue.engine": "simulate",
    "traincast.scheduling.queue.failures": "FailureEvent FailureLaw Failures",
    "traincast.scheduling.queue.metrics": "Metrics measure measure_by_vc",
    "traincast.scheduling.queue.outcome": "JobOutcome Occupancy Outcome",
    "traincast.scheduling.queue.run": "JobRun",
    "traincast.scheduling.queue.speeds": "Factors PlacedGpus Speeds",
    "traincast.scheduling.queue.state": "State",
    "traincast.scheduling.space.cluster": "Node SharedCluster",
    "traincast.scheduling.space.placement": "PLACEMENTS Placement load_placement",
}
"""The public names of each module. They are imported when they are first used: what is asked needs none of them."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "PLACEMENTS",
    "POLICIES",
    "Beliefs",
    "Costs",
    "Exact",
    "Factors",
    "FailureEvent",
    "FailureLaw",
    "Failures",
    "Given",
    "Job",
    "JobOutcome",
    "JobRun",
    "Metrics",
    "Node",
    "Noisy",
    "Occupancy",
    "Outcome",
    "PlacedGpus",
    "Placement",
    "Policy",
    "SharedCluster",
    "Speeds",
    "State",
    "User",
    "load_beliefs",
    "load_placement",
    "load_policy",
    "measure",
    "measure_by_vc",
    "simulate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'traincast.scheduling' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)
