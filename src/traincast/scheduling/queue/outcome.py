"""The outcome of a queue: each job's times, and the state of the cluster over time; as a table of jobs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.files import write_text
from traincast.scheduling.joblogs.job import Job
from traincast.scheduling.space.cluster import SharedCluster
from traincast.scheduling.space.free import Allocation

Floats = npt.NDArray[np.float64]


class Occupancy(NamedTuple):
    """One period in which a job held GPUs; ``order`` is its place in `Outcome.jobs`."""

    order: int
    start_s: float
    end_s: float
    allocation: Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The outcome of one job. Times are in seconds.

    ``jct_s`` is the time from submission to end, ``queue_s`` the part of it without GPUs. ``lost_s`` is execution that
    failures undid, in seconds of the reference placement. ``overhead_s`` is time on GPUs without execution. The fields
    in GPU-seconds are time on GPUs, lost execution and overhead, each times the GPUs held. ``nodes`` are those on which
    the job ended. ``shared_s`` is the execution time that neighbours on its nodes cost it; below 0, time that it gained
    because neighbours on its GPU did not need theirs.
    """

    job_id: str
    submit_s: float
    start_s: float
    end_s: float
    n_gpus: float
    jct_s: float
    queue_s: float
    preemptions: int
    restarts: int
    nodes: tuple[str, ...]
    vc: str
    lost_s: float
    overhead_s: float
    served_gpu_s: float
    lost_gpu_s: float
    overhead_gpu_s: float
    shared_s: float = 0.0

    @property
    def slowdown(self) -> float:
        """Its execution time over what that would have been without neighbours."""
        executed = (self.served_gpu_s - self.overhead_gpu_s) / self.n_gpus
        return executed / (executed - self.shared_s) if self.shared_s and executed > self.shared_s else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The cluster at every instant at which something happened; a value holds until the next time.

    ``used_gpus`` counts a shared GPU by the share in use. ``split_gpus`` are free GPUs on nodes partly in use.
    """

    time_s: Floats
    waiting: Floats
    running: Floats
    used_gpus: Floats
    free_gpus: Floats
    split_gpus: Floats
    down_gpus: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished simulation: jobs in order of submission, each with its fate, and the history of the cluster."""

    policy: str
    placement: str
    cluster: SharedCluster
    jobs: Sequence[Job]
    fates: Sequence[JobOutcome]
    segments: Sequence[Occupancy]
    history: History

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end."""
        return max(f.end_s for f in self.fates) - min(f.submit_s for f in self.fates) if self.fates else 0.0


COLUMNS: Final = (
    *("job_id", "submit_s", "start_s", "end_s", "n_gpus", "jct_s", "queue_s", "preemptions", "restarts", "nodes"),
)
"""Columns of the table of jobs; several nodes are separated by semicolons."""


def write_jobs(outcome: Outcome, path: Path) -> None:
    """Write the outcome of each job as CSV, in order of submission, with all digits."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for fate in outcome.fates:
        rows.writerow(
            (
                fate.job_id,
                *(_exact(value) for value in (fate.submit_s, fate.start_s, fate.end_s, fate.n_gpus)),
                *(_exact(value) for value in (fate.jct_s, fate.queue_s, fate.preemptions, fate.restarts)),
                ";".join(fate.nodes),
            )
        )
    write_text(path, text.getvalue())


def _exact(value: float) -> str:
    """Format a whole number without decimals, and any other number with all its digits."""
    return str(int(value)) if value == int(value) else repr(float(value))
