"""Policies that preempt: at every decision the jobs that rank first run.

Jobs are taken in order of rank, running or waiting, and each that finds room beside those before it runs. A running
job keeps its GPUs where it can; one whose GPUs went to a better-ranked job moves if there is room elsewhere.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from itertools import accumulate
from typing import ClassVar, Final

from traincast.scheduling.policies.lanes import Key, Lanes
from traincast.scheduling.policy import Policy
from traincast.scheduling.run import JobRun
from traincast.scheduling.space import UNIT, Allocation
from traincast.scheduling.state import State

SLACK_S: Final = 1e-6
"""A slice or a level counts as used up so much earlier, for clocks that end in a last digit."""


class Ranked(Policy):
    """The jobs with the smallest keys run; ties go to the earlier submission.

    Keys of running jobs are asked for at every decision, those of waiting jobs when they begin to wait, or always if
    ``keys_move``. With ``keys_fall`` they are looked at again when that of a running job changes by itself.
    """

    keys_move: ClassVar[bool] = False
    keys_fall: ClassVar[bool] = False

    def __init__(self) -> None:
        self._lanes = Lanes()

    def key(self, run: JobRun, state: State) -> Key:
        """The rank of a job, running or waiting."""
        raise NotImplementedError

    def next_change_s(self, run: JobRun, state: State) -> float:
        """When the rank of a running job falls by itself; then it is decided again."""
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
        """The smallest key of a waiting job for which all that is free or held by those behind it would do.

        Where there is none, nothing changes: jobs behind the first of a lane ask for as much and find less.
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
        """Fill the cluster in order of rank, where only the running jobs that rank before all waiting ones are set."""
        plan = _Plan(worse, state)
        self._lanes.walk(state, plan.offer)
        plan.keep_until(None)
        for run in plan.stopped:
            state.preempt(run)
        for run, allocation in plan.chosen:
            if not state.start(run, at=allocation):
                self.queued(run, state)  # a share of a GPU that only the sum of all rests has room for


class _Plan:
    """The jobs that shall run, in order of rank, and the GPUs left free."""

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
        """A waiting job, after the running ones that rank before it: it is chosen if there is room."""
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
        """Free GPUs, else those of jobs that rank behind."""
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
        """GPUs for a job that finds room only if others stop: those that rank last, and no more than needed."""
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
    """Seconds that a job is believed to need if it runs from now on, with what it has to load first.

    Of a waiting job it is not known where it will run: it is taken at the speed of its reference placement.
    """
    if run.phase == "running":
        return state.believed_end_s(run) - state.now
    gpus = run.num_gpus
    return state.overhead_s(run, gpus) + state.costs.elapsed_s(run.remaining_s(state.now), gpus)


class Srtf(Ranked):
    """Shortest remaining time first, by what is believed; loading a checkpoint is part of what remains."""

    def key(self, run: JobRun, state: State) -> Key:
        """How long it still needs."""
        return (_time_to_end_s(run, state),)


class Srsf(Ranked):
    """Shortest remaining service first: GPUs times time, by what is believed."""

    def key(self, run: JobRun, state: State) -> Key:
        """How many GPU-seconds it still needs."""
        return (_time_to_end_s(run, state) * run.num_gpus,)


class Edf(Ranked):
    """Earliest deadline first; jobs without one come last, in order of submission."""

    def key(self, run: JobRun, state: State) -> Key:
        """Its deadline."""
        return (math.inf if run.job.deadline_s is None else run.job.deadline_s,)
