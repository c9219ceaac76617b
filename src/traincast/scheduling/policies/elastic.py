"""Elastic allocation: GPUs go one by one to the job that gains most from another one."""

from __future__ import annotations

import heapq

from traincast.scheduling.policy import Policy
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.state import State
from traincast.scheduling.space.free import UNIT, JobDemand


class Elastic(Policy):
    """Marginal gains in believed time (Peng et al., EuroSys 2018, Optimus; Qiao et al., OSDI 2021, Pollux).

    Jobs that fit are admitted in order of submission, with the fewest GPUs they can run on; running jobs stay admitted.
    The remaining GPUs go one by one to the elastic job whose remaining time falls most. A running job gives GPUs back
    only if that admits other jobs. It gets more only if there is room and it saves more time than stopping and resuming
    costs. Speeds are those of the first GPU type that a job may use. Rigid jobs get the GPUs that they ask for.
    """

    resizes = True

    def begin(self, state: State) -> None:
        """Forget all speed curves."""
        self._curves: dict[int, dict[int, float]] = {}

    def stopped(self, run: JobRun, state: State) -> None:
        """Forget the curve of a job that is done."""
        if not run.work_s:
            self._curves.pop(run.order, None)

    def decide(self, state: State) -> None:
        """Admit jobs, distribute the remaining GPUs, and resize or start every job accordingly."""
        admitted, left = self._admit(state)
        wanted = self._share_out(admitted, left, state)
        if self._lacks_room(admitted, state):
            for run in admitted:
                if run.job.is_elastic and run.phase == "running" and wanted[run.order] < run.num_gpus:
                    state.preempt(run)
        for run in [*admitted, *state.waiting.values()]:  # those that ran before come first
            if run.phase == "waiting":
                self._start(run, wanted.get(run.order, _fewest(run)), state)
        for run in admitted:
            if run.job.is_elastic and run.phase == "running" and wanted[run.order] > run.num_gpus:
                self._grow(run, wanted[run.order], state)

    @staticmethod
    def _lacks_room(admitted: list[JobRun], state: State) -> bool:
        """Return whether an admitted job finds no room beside the running ones."""
        room = state.free.counts()
        for run in admitted:
            if run.phase == "waiting":
                claim = room.find(_least(run, state))
                if claim is None:
                    return True
                room.take(claim)
        return False

    def _admit(self, state: State) -> tuple[list[JobRun], int]:
        """Return the admitted jobs at their smallest sizes, and the remaining GPUs."""
        room = state.free.counts()
        for run in state.running.values():
            assert run.allocation is not None
            if run.job.is_elastic:
                room.give(run.allocation)
                room.take(run.allocation._replace(num_gpus=_fewest(run)))
        admitted = list(state.running.values())
        for run in sorted(state.waiting.values(), key=lambda run: run.order):
            claim = room.find(_least(run, state))
            if claim is not None:
                room.take(claim)
                admitted.append(run)
        return admitted, sum(room.groups) // UNIT

    def _share_out(self, admitted: list[JobRun], left: int, state: State) -> dict[int, int]:
        """Return the number of GPUs for each admitted job."""
        wanted = {run.order: _fewest(run) for run in admitted}
        gains = [
            (-self._gain_s(run, wanted[run.order], state), run.order, run) for run in admitted if run.job.is_elastic
        ]
        heapq.heapify(gains)
        while gains and left > 0:
            gain, order, run = heapq.heappop(gains)
            if gain >= 0 or wanted[order] >= run.job.max_gpus:
                continue
            wanted[order] += 1
            left -= 1
            heapq.heappush(gains, (-self._gain_s(run, wanted[order], state), order, run))
        return wanted

    def _gain_s(self, run: JobRun, num_gpus: int, state: State) -> float:
        """Return the seconds that one more GPU saves."""
        left = run.remaining_s(state.now)
        return left / self._speed(run, num_gpus, state) - left / self._speed(run, num_gpus + 1, state)

    def _speed(self, run: JobRun, num_gpus: int, state: State) -> float:
        curve = self._curves.setdefault(run.order, {})
        if num_gpus not in curve:
            curve[num_gpus] = state.speed_in(run, run.demand.pools[0], num_gpus)
        return curve[num_gpus]

    def _grow(self, run: JobRun, num_gpus: int, state: State) -> None:
        """Grow a running job up to that many GPUs, if there is room and it pays."""
        assert run.allocation is not None
        held = run.allocation.num_gpus
        space = state.space()
        space.give(run.allocation)
        left = run.remaining_s(state.now)
        for count in range(num_gpus, held, -1):
            found = space.find(state.demand(run.job, num_gpus=count))
            if found is not None:
                cost = state.costs.saving_s(count) + state.costs.loading_s(count)
                if left / self._speed(run, count, state) + cost < left / run.speed:
                    state.preempt(run)
                    state.start(run, demand=state.demand(run.job, num_gpus=count), at=found)
                return

    @staticmethod
    def _start(run: JobRun, num_gpus: int, state: State) -> None:
        """Start a job on that many GPUs, or on fewer if there is no room."""
        if not run.job.is_elastic:
            state.start(run)
            return
        for count in range(num_gpus, run.job.min_gpus - 1, -1):
            if state.start(run, demand=state.demand(run.job, num_gpus=count)):
                return


def _fewest(run: JobRun) -> int:
    return run.job.min_gpus if run.job.is_elastic else run.demand.num_gpus


def _least(run: JobRun, state: State) -> JobDemand:
    return state.demand(run.job, num_gpus=run.job.min_gpus) if run.job.is_elastic else run.demand
