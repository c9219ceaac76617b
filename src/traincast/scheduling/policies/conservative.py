"""Conservative backfill: every waiting job has a reservation."""

from __future__ import annotations

from bisect import bisect_left, insort

from traincast.scheduling.policy import Policy
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.state import State
from traincast.scheduling.space.free import Allocation, FreeCounts, JobDemand


class FreeProfile:
    """The number of GPUs believed to be free over time; the last value holds for ever."""

    def __init__(self, now: float, space: FreeCounts) -> None:
        self.times: list[float] = [now]
        self.spaces: list[FreeCounts] = [space]

    def give_from(self, time_s: float, allocation: Allocation) -> None:
        """Add free GPUs from a time on."""
        for at in range(self._break(time_s), len(self.times)):
            self.spaces[at].give(allocation)

    def take(self, start_s: float, end_s: float, allocation: Allocation) -> None:
        """Remove free GPUs between two times."""
        first, last = self._break(start_s), self._break(end_s)
        for at in range(first, last):
            self.spaces[at].take(allocation)

    def forget_before(self, now: float) -> None:
        """Drop all times before ``now``."""
        past = 0
        while past + 1 < len(self.times) and self.times[past + 1] <= now:
            past += 1
        del self.times[:past], self.spaces[:past]
        self.times[0] = now

    def earliest(self, demand: JobDemand, length_s: float) -> tuple[float, Allocation] | None:
        """Return the earliest time from which that many GPUs are free for that long."""
        best: tuple[float, Allocation] | None = None
        for pool in demand.pools:
            asked = demand._replace(pools=(pool,))
            start: float | None = None
            found: Allocation | None = None
            for at, space in enumerate(self.spaces):
                if start is not None and self.times[at] >= start + length_s:
                    break
                claim = space.find(asked)
                if claim is None:
                    start = None
                elif start is None:
                    start, found = self.times[at], claim
            if start is not None and found is not None and (best is None or start < best[0]):
                best = (start, found)
        return best

    def _break(self, time_s: float) -> int:
        """Return the index of a time, which is inserted if missing."""
        at = bisect_left(self.times, time_s)
        if at == len(self.times) or self.times[at] != time_s:
            self.times.insert(at, time_s)
            self.spaces.insert(at, self.spaces[at - 1].copy())
        return at


class Conservative(Policy):
    """Conservative backfill (Feitelson and Weil 1998): a job starts only if it delays no earlier one.

    Reservations are made in order of submission, from the number of GPUs believed to be free over time. They are made
    again whenever a job ends at another time than believed, or anything fails or is repaired. A reservation does not
    say which GPUs: placement picks them when the job starts. If placement then finds no room, the job starts as soon as
    there is room.
    """

    def begin(self, state: State) -> None:
        """Start without reservations."""
        self._profile: FreeProfile | None = None
        self._reserved: list[tuple[float, int]] = []
        self._new: list[int] = []
        self._changes = 0

    def queued(self, run: JobRun, state: State) -> None:
        """Mark the job as without reservation. A job that was stopped keeps its place before later ones."""
        self._new.append(run.order)
        if run.token:
            self._profile = None

    def stopped(self, run: JobRun, state: State) -> None:
        """Discard all reservations, unless the job ended when it was believed to."""
        if run.believed_end_s != state.now:
            self._profile = None

    def decide(self, state: State) -> None:
        """Reserve for jobs without a reservation, and start those whose time has come."""
        profile = self._profile
        if profile is None or self._changes != state.num_changes:
            profile = self._begin_anew(state)
        profile.forget_before(state.now)
        for order in self._new:
            run = state.waiting[order]
            found = profile.earliest(run.demand, self._length_s(run, state))
            if found is not None:
                profile.take(found[0], found[0] + self._length_s(run, state), found[1])
                insort(self._reserved, (found[0], order))
        self._new = []
        while self._reserved and self._reserved[0][0] <= state.now:
            run = state.waiting[self._reserved.pop(0)[1]]
            expected = state.now + self._length_s(run, state)
            if not state.start(run) or run.believed_end_s != expected:
                self._profile = None  # no room after all, or the job is slower there than its reservation assumes

    def _begin_anew(self, state: State) -> FreeProfile:
        self._profile = profile = FreeProfile(state.now, state.free.counts())
        for run in state.running.values():
            assert run.allocation is not None
            profile.give_from(state.believed_end_s(run), run.allocation)
        self._changes = state.num_changes
        self._reserved = []
        self._new = sorted(state.waiting)
        return profile

    @staticmethod
    def _length_s(run: JobRun, state: State) -> float:
        gpus = run.num_gpus
        return state.overhead_s(run, gpus) + state.costs.elapsed_s(run.remaining_s(state.now), gpus)
