"""Policies that preempt: at every decision the jobs that rank first run.

Running and waiting jobs are taken in order of rank, and each job that finds room beside those before it runs. A running
job keeps its GPUs if possible. If they went to a better-ranked job, it moves if there is room elsewhere.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from itertools import accumulate
from typing import ClassVar, Final

from traincast.scheduling.policies.lanes import Key, Lanes
from traincast.scheduling.policy import Policy
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.state import State
from traincast.scheduling.space.free import UNIT, Allocation

SLACK_S: Final = 1e-6
"""A slice or a level counts as used up this much earlier, because times are rounded."""


class Ranked(Policy):
    """The jobs with the smallest keys run; ties go to the earlier submission.

    `key` is called for running jobs at every decision, and for waiting jobs when they begin to wait; with
    ``keys_move``, for waiting jobs at every decision as well. With ``keys_fall``, a decision is also made when the key
    of a running job changes by itself (`next_change_s`).
    """

    keys_move: ClassVar[bool] = False
    keys_fall: ClassVar[bool] = False

    def __init__(self) -> None:
        self._lanes = Lanes()

    def key(self, run: JobRun, state: State) -> Key:
        """Return the rank of a job, running or waiting; the smallest comes first."""
        raise NotImplementedError

    def next_change_s(self, run: JobRun, state: State) -> float:
        """Return when the rank of a running job falls by itself, for the next decision."""
        return math.inf

    def begin(self, state: State) -> None:
        """Start with an empty queue."""
        self._lanes.clear()

    def queued(self, run: JobRun, state: State) -> None:
        """Add the job to the lane of its demand."""
        if not self.keys_move:
            self._lanes.push(run, self.key(run, state), run.demand)

    def decide(self, state: State) -> None:
        """Run the jobs that rank first."""
        if not state.waiting or (len(state.waiting) == 1 and state.start(next(iter(state.waiting.values())))):
            return
        if self.keys_move:
            self._lanes.clear()
            for run in state.waiting.values():
                self._lanes.push(run, self.key(run, state), run.demand)
        key = self.key
        ranked = sorted([(*key(run, state), order) for order, run in state.running.items()])
        while (first := self._first_with_room(ranked, state)) is not None:
            if state.start(state.waiting[first[-1]]):
                insort(ranked, first)
                continue
            worse = ranked[bisect_right(ranked, first) :]
            if worse:
                self._rearrange(worse, state)
            self._lanes.walk(state, lambda run, _: state.start(run))
            break
        if state.waiting and self.keys_fall:
            for run in state.running.values():
                state.wake(self.next_change_s(run, state))

    def _first_with_room(self, ranked: list[Key], state: State) -> Key | None:
        """Return the smallest key of a waiting job that fits into what is free or held by running jobs behind it.

        Only the first job of each lane is tried: those behind it ask for as much and have fewer jobs behind them. If
        the result is ``None``, nothing changes.
        """
        running = state.running
        held = list(accumulate([running[key[-1]].held_units for key in ranked], initial=0))
        free = state.free.total * UNIT + sum(state.free.partial.values())
        best: Key | None = None
        for key, run in self._lanes.heads(state):
            if best is None or key < best:
                behind = held[-1] - held[bisect_right(ranked, key)]
                if run.demand.num_gpus * run.demand.units <= free + behind:
                    best = key
        return best

    def _rearrange(self, worse: list[Key], state: State) -> None:
        """Fill the cluster again in order of rank; running jobs that are not in ``worse`` keep their GPUs."""
        plan = _Plan(worse, state)
        self._lanes.walk(state, plan.offer)
        plan.keep_until(None)
        for run in plan.stopped:
            state.preempt(run)
        for run, allocation in plan.chosen:
            if not state.start(run, at=allocation):
                self.queued(run, state)  # a share that fits into the sum of all free parts, but into none of them


class _Plan:
    """A plan: the jobs that will run, in order of rank, and the GPUs left free."""

    def __init__(self, worse: list[Key], state: State) -> None:
        self.chosen: list[tuple[JobRun, Allocation]] = []
        self.stopped: list[JobRun] = []
        self._keys = worse
        self._worse = [state.running[key[-1]] for key in worse]
        self._at = 0
        self._unused = None if state.placement.is_pooled else state.space()
        self._held = [True] * len(worse)  # whether those GPUs count as used
        self._room = state.space()
        for run in self._worse:
            assert run.allocation is not None
            self._room.give(run.allocation)

    def offer(self, run: JobRun, key: Key) -> bool:
        """Plan the running jobs that rank before a waiting job, then choose that job if there is room."""
        self.keep_until(key)
        allocation = self._find(run)
        if allocation is None:
            return False
        self.chosen.append((run, allocation))
        return True

    def keep_until(self, key: Key | None) -> None:
        """Let running jobs that rank before the key keep their GPUs, get others, or stop."""
        while self._at < len(self._worse) and (key is None or self._keys[self._at] < key):
            run = self._worse[self._at]
            self._at += 1
            assert run.allocation is not None
            if self._room.fits(run.allocation):
                self._room.take(run.allocation)
                continue
            self.stopped.append(run)
            allocation = self._find(run)
            if allocation is not None:
                self.chosen.append((run, allocation))

    def _find(self, run: JobRun) -> Allocation | None:
        """Return free GPUs, or those of jobs that rank behind."""
        if self._unused is not None:
            allocation = self._unused.find(run.demand)
            if allocation is not None:
                self._unused.take(allocation)
                self._room.take(allocation)
                return allocation
        allocation = self._room.find(run.demand)
        if allocation is not None and self._unused is not None:
            allocation = self._displace(run, allocation)
        if allocation is not None:
            self._room.take(allocation)
        return allocation

    def _displace(self, run: JobRun, anywhere: Allocation) -> Allocation:
        """Return GPUs for a job that finds room only if others stop: the last in rank, and no more than needed."""
        assert self._unused is not None
        later = [other.allocation for other in self._worse[self._at :] if other.allocation is not None]
        for number in range(len(later) - 1, -1, -1):
            if not self._held[self._at + number]:
                continue
            self._unused.give(later[number])
            self._held[self._at + number] = False
            allocation = self._unused.find(run.demand)
            if allocation is not None:
                break
        else:
            allocation = anywhere
            self._unused = self._room.copy()
            number = 0
        self._unused.take(allocation)
        for at in range(number, len(later)):
            self._held[self._at + at] = self._unused.fits(later[at])
            if self._held[self._at + at]:
                self._unused.take(later[at])
        return allocation


def _time_to_end_s(run: JobRun, state: State) -> float:
    """Return the seconds that a job is believed to need if it runs from now on, with loading.

    A waiting job is assumed to run at the speed of its reference placement, because its GPUs are not known yet.
    """
    if run.phase == "running":
        return state.believed_end_s(run) - state.now
    gpus = run.num_gpus
    return state.overhead_s(run, gpus) + state.costs.elapsed_s(run.remaining_s(state.now), gpus)


class Srtf(Ranked):
    """Shortest believed remaining time first; loading a checkpoint is part of it."""

    def key(self, run: JobRun, state: State) -> Key:
        """Return the believed remaining time."""
        return (_time_to_end_s(run, state),)


class Srsf(Ranked):
    """Shortest believed remaining service first: GPUs times time."""

    def key(self, run: JobRun, state: State) -> Key:
        """Return the believed remaining GPU-seconds."""
        return (_time_to_end_s(run, state) * run.num_gpus,)


class Edf(Ranked):
    """Earliest deadline first; jobs without one come last, in order of submission."""

    def key(self, run: JobRun, state: State) -> Key:
        """Return the job's deadline."""
        return (math.inf if run.job.deadline_s is None else run.job.deadline_s,)
