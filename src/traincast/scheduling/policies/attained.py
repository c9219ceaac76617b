"""Policies that need no estimates: jobs rank by the service they have received."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import numpy as np

from traincast.errors import RequestError
from traincast.scheduling.policies.lanes import Key
from traincast.scheduling.policies.ranked import SLACK_S, Ranked
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.state import State


class Las(Ranked):
    """Least attained service: the job that has run for the fewest quanta of ``quantum_s`` seconds comes first.

    Jobs with equal quanta are served in order of submission, so that they take turns.
    """

    keys_fall = True

    def __init__(self, quantum_s: float = 600.0) -> None:
        super().__init__()
        if not quantum_s > 0:
            raise RequestError(f"quantum_s={quantum_s}: expected seconds above 0")
        self.quantum_s = quantum_s

    def key(self, run: JobRun, state: State) -> Key:
        """Return the quanta that the job has used."""
        return ((run.attained_s(state.now) + SLACK_S) // self.quantum_s,)

    def next_change_s(self, run: JobRun, state: State) -> float:
        """Return when the job's current quantum is used up."""
        quanta = (run.attained_s(state.now) + SLACK_S) // self.quantum_s
        return run.started_s + (quanta + 1) * self.quantum_s - run.served_s


class Tiresias(Ranked):
    """Two-dimensional LAS, discretised (Gu et al., NSDI 2019): queues by GPU time attained, each first in, first out.

    A job begins in the first queue and falls to the next at each threshold of GPU-seconds. Jobs of an earlier queue
    preempt those of a later one. Choose thresholds that suit the workload; the defaults are one and ten GPU-hours.
    """

    keys_fall = True

    def __init__(self, thresholds_gpu_s: Sequence[float] = (3600.0, 36000.0)) -> None:
        super().__init__()
        self.thresholds_gpu_s = tuple(thresholds_gpu_s)
        if (
            list(self.thresholds_gpu_s) != sorted(set(self.thresholds_gpu_s))
            or min(self.thresholds_gpu_s, default=1) <= 0
        ):
            raise RequestError(f"thresholds {self.thresholds_gpu_s}: expected GPU-seconds above 0 that grow")

    def queue(self, run: JobRun, state: State) -> int:
        """Return the number of the job's queue, from 0."""
        return bisect_right(self.thresholds_gpu_s, run.attained_gpu_s(state.now) + SLACK_S)

    def key(self, run: JobRun, state: State) -> Key:
        """Return the number of the job's queue."""
        return (self.queue(run, state),)

    def next_change_s(self, run: JobRun, state: State) -> float:
        """Return when the job falls to the next queue."""
        queue = self.queue(run, state)
        if queue == len(self.thresholds_gpu_s):
            return math.inf
        return run.started_s + (self.thresholds_gpu_s[queue] - run.served_gpu_s) / run.num_gpus


class Gittins(Tiresias):
    """The Gittins index of jobs whose GPU time is known only as a distribution (Gittins 1979; Tiresias-G).

    For a job with GPU time S that has received a of it, the index is the maximum over Δ of
    P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a]: the best chance of completion per GPU-second spent. The
    distribution of S is that of the jobs that have ended so far. The time a is rounded down to steps that double.
    """

    def __init__(self, first_gpu_s: float = 60.0, levels: int = 24) -> None:
        super().__init__([first_gpu_s * 2.0**level for level in range(levels)])

    def begin(self, state: State) -> None:
        """Forget all jobs that ended."""
        super().begin(state)
        self._ended: list[float] = []
        self._known = 0
        self._index = [0.0] * (len(self.thresholds_gpu_s) + 1)

    def key(self, run: JobRun, state: State) -> Key:
        """Return the job's negative index, so that the largest comes first."""
        return (-self._index[self.queue(run, state)],)

    def stopped(self, run: JobRun, state: State) -> None:
        """Add the GPU time of a job that is done to the distribution."""
        if not run.work_s:
            insort(self._ended, run.served_gpu_s)

    def decide(self, state: State) -> None:
        """Update the distribution whenever the number of ended jobs has grown by a tenth, then decide."""
        if len(self._ended) > 1.1 * self._known:
            self._known = len(self._ended)
            sizes = np.array(self._ended)
            self._index = [_gittins(sizes, attained) for attained in (0.0, *self.thresholds_gpu_s)]
            self._lanes.clear()
            for run in state.waiting.values():
                self.queued(run, state)
        super().decide(state)


def _gittins(sizes: np.typing.NDArray[np.float64], attained: float) -> float:
    """Return the index of a job with that GPU time, given the sorted times of ended jobs; 0 if it exceeds them all."""
    left = sizes[bisect_left(sizes, attained) :] - attained
    left = left[left > 0]
    if not len(left):
        return 0.0
    count = np.arange(1, len(left) + 1)
    return float((count / (np.cumsum(left) + (len(left) - count) * left)).max())
