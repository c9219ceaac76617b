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
