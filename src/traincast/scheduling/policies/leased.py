"""Policies that share the cluster over time in rounds: each round selects the jobs that run."""

from __future__ import annotations

import math
from functools import partial

from traincast.errors import RequestError
from traincast.scheduling.policies.lanes import Key
from traincast.scheduling.policies.ranked import SLACK_S, Ranked
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.state import State
from traincast.scheduling.space.cluster import Pool


class Leased(Ranked):
    """As `Ranked`, but jobs are stopped only at the end of a round: every ``lease_s`` seconds from time 0.

    A job that started in the second half of a round keeps its GPUs for the next round as well. Free GPUs are assigned
    at any time. All jobs have the same rounds, as in Gavel, so that many leases end in one decision.
    """

    keys_fall = True
    keys_move = True

    def __init__(self, lease_s: float = 600.0) -> None:
        super().__init__()
        if not lease_s > 0:
            raise RequestError(f"lease_s={lease_s}: expected seconds above 0")
        self.lease_s = lease_s

    def rank(self, run: JobRun, state: State) -> float:
        """Return the rank of a job; the smallest is served first."""
        raise NotImplementedError

    def key(self, run: JobRun, state: State) -> Key:
        """Return the job's rank; a job whose lease lasts comes before all others."""
        return (-math.inf if self.holds(run, state) else self.rank(run, state),)

    def holds(self, run: JobRun, state: State) -> bool:
        """Return whether the lease of a running job lasts."""
        if run.phase != "running":
            return False
        into_round = (state.now + SLACK_S) % self.lease_s
        return into_round > 2 * SLACK_S or state.now - run.started_s < self.lease_s / 2 - SLACK_S

    def next_change_s(self, run: JobRun, state: State) -> float:
        """Return when the round ends."""
        return ((state.now + SLACK_S) // self.lease_s + 1) * self.lease_s


class Gandiva(Leased):
    """Time slicing (Xiao et al., OSDI 2018): jobs take turns, and the one that has waited longest is next.

    Only Gandiva's suspend and resume is here, without packing and migration. Its slices last one minute; here the
    default is ten, because checkpoints have a cost.
    """

    def rank(self, run: JobRun, state: State) -> float:
        """Return since when the job waits; a running job goes to the end of the line."""
        return state.now if run.phase == "running" else run.waiting_since_s


class MaxMin(Leased):
    """Max-min fairness: the job with the least GPU time per second since its submission comes first."""

    def rank(self, run: JobRun, state: State) -> float:
        """Return the mean number of GPUs since submission; a younger job counts as one lease old."""
        return run.attained_gpu_s(state.now) / max(state.now - run.job.submit_s, self.lease_s)


class Themis(Leased):
    """Finish-time fairness (Mahajan et al., NSDI 2020): the job with the largest ρ comes first.

    ρ is the believed time of a job from submission to end if it runs from now on, over its time alone on 1/N of the
    cluster: its length · max(1, GPUs · N / GPUs of the cluster). N is the mean number of jobs present since its
    submission.
    """

    def begin(self, state: State) -> None:
        """Forget all jobs."""
        super().begin(state)
        self._total = state.cluster.num_gpus
        self._seen_s = 0.0
        self._present = 0
        self._job_s = 0.0  # jobs present, summed over time
        self._at_arrival: dict[int, tuple[float, float]] = {}

    def queued(self, run: JobRun, state: State) -> None:
        """Note the believed length of the job, and the jobs present when it arrived."""
        self._pass_time(state)
        self._at_arrival.setdefault(run.order, (run.believed_work_s, self._job_s))

    def decide(self, state: State) -> None:
        """Update the count of jobs present, then decide."""
        self._pass_time(state)
        super().decide(state)
        self._present = len(state.waiting) + len(state.running)

    def _pass_time(self, state: State) -> None:
        self._job_s += self._present * (state.now - self._seen_s)
        self._seen_s = state.now

    def rank(self, run: JobRun, state: State) -> float:
        """Return −ρ, so that the largest ρ comes first."""
        length, before = self._at_arrival[run.order]
        age = state.now - run.job.submit_s
        present = (self._job_s - before) / age if age else len(state.waiting) + len(state.running)
        ideal = length * max(1.0, run.num_gpus * present / self._total)
        return -(age + run.remaining_s(state.now)) / ideal


class Gavel(Leased):
    """Heterogeneity-aware max-min fairness (Narayanan et al., OSDI 2020), greedily instead of by a linear program.

    The job with the least progress per second since its submission comes first. Each job is placed on the GPU type that
    favours it most: the one where its speed, over the mean speed of all jobs on that type, is largest. At the end of a
    round, a job moves to a faster type that has room, if that saves more time than it costs.
    """

    def begin(self, state: State) -> None:
        """Forget all jobs."""
        super().begin(state)
        self._speeds: dict[int, dict[int, float]] = {}
        self._sums: dict[int, tuple[float, int]] = {}

    def queued(self, run: JobRun, state: State) -> None:
        """Forecast its speed on each GPU type."""
        if len(run.demand.pools) > 1 and run.order not in self._speeds:
            self._speeds[run.order] = {}
            for pool in run.demand.pools:
                self._note(run, pool, state)

    def _note(self, run: JobRun, pool: Pool, state: State) -> None:
        speed = state.speed_in(run, pool, run.demand.num_gpus)
        self._speeds[run.order][pool.group] = speed
        total, count = self._sums.get(pool.group, (0.0, 0))
        self._sums[pool.group] = (total + speed, count + 1)

    def _favour(self, run: JobRun, pool: Pool) -> float:
        total, count = self._sums[pool.group]
        return self._speeds[run.order][pool.group] * count / total

    def rank(self, run: JobRun, state: State) -> float:
        """Return the progress per second since submission, in seconds of the reference placement."""
        age = max(state.now - run.job.submit_s, self.lease_s)
        return (run.job.duration_s - run.left_s(state.now)) / age

    def decide(self, state: State) -> None:
        """Start jobs on the GPU types that favour them, then move running jobs to faster types that are free."""
        for run in state.waiting.values():
            if run.order in self._speeds:
                favour = partial(self._favour, run)
                state.prefer_pools(run, sorted(run.demand.pools, key=favour, reverse=True))
        super().decide(state)
        if len(state.layout.groups) == 1:
            return
        for run in list(state.running.values()):
            if run.order in self._speeds and not self.holds(run, state):
                self._move(run, state)
            if run.phase == "running":
                state.wake(self.next_change_s(run, state))

    def _move(self, run: JobRun, state: State) -> None:
        assert run.allocation is not None
        speeds = self._speeds[run.order]
        left = run.remaining_s(state.now)
        gpus = run.num_gpus
        cost = state.costs.saving_s(gpus) + state.costs.loading_s(gpus)
        for pool in sorted(run.demand.pools, key=lambda pool: -speeds[pool.group]):
            here = speeds[run.allocation.group]
            if pool.group == run.allocation.group or left / speeds[pool.group] + cost >= left / here:
                return
            found = state.placement.find(run.demand._replace(pools=(pool,), vc=""), state.free)
            if found is not None:
                state.preempt(run)
                state.start(run, at=found._replace(vc=run.demand.vc))
                return
