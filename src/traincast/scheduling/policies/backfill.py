"""Backfilling: a small job may overtake waiting ones unless it delays a job with a reservation: the first, or any."""

from __future__ import annotations

import math
from bisect import bisect_left, insort

from traincast.scheduling.policies.ordered import line_of
from traincast.scheduling.policy import Policy
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.state import State
from traincast.scheduling.space.free import Allocation, FreeCounts, JobDemand
from traincast.scheduling.space.placement import Space


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


class FirstBelow:
    """Numbers by position, with a search for the first position whose number is at most a limit.

    It is a tree of minima over the positions: setting and finding take logarithmic time.
    """

    __slots__ = ("_size", "_tree")

    def __init__(self) -> None:
        self._size = 1
        self._tree = [math.inf, math.inf]

    def set(self, at: int, value: float) -> None:
        """Put a number at a position; ``inf`` removes it."""
        while at >= self._size:
            leaves = self._tree[self._size :] + [math.inf] * self._size
            self._size *= 2
            self._tree = [math.inf] * self._size + leaves
            for node in range(self._size - 1, 0, -1):
                self._tree[node] = min(self._tree[2 * node], self._tree[2 * node + 1])
        tree, node = self._tree, at + self._size
        tree[node] = value
        node >>= 1
        while node:
            left, right = tree[2 * node], tree[2 * node + 1]
            least = left if left < right else right
            if tree[node] == least:
                return
            tree[node] = least
            node >>= 1

    def find(self, limit: float) -> int | None:
        """Return the first position whose number is at most the limit."""
        tree = self._tree
        if tree[1] > limit or tree[1] == math.inf:
            return None
        node = 1
        while node < self._size:
            node *= 2
            if tree[node] > limit or tree[node] == math.inf:
                node += 1
        return node - self._size


class _Alike:
    """Waiting jobs of one line with equal demands, in order of submission, and their believed durations."""

    __slots__ = ("demand", "line", "orders", "seconds")

    def __init__(self, demand: JobDemand, line: str) -> None:
        self.demand = demand
        self.line = line
        self.orders: list[int] = []
        self.seconds = FirstBelow()

    def add(self, run: JobRun, seconds: float) -> None:
        at = bisect_left(self.orders, run.order)
        if at == len(self.orders):
            self.orders.append(run.order)
        self.seconds.set(at, seconds)

    def remove(self, run: JobRun) -> None:
        self.seconds.set(bisect_left(self.orders, run.order), math.inf)

    def first(self, within_s: float = math.inf) -> int | None:
        at = self.seconds.find(within_s)
        return None if at is None else self.orders[at]


class Easy(Policy):
    """EASY backfill (Lifka 1995): in order of submission; a job behind a waiting head starts if it does not delay it.

    The head's reservation (the shadow time) is the earliest time at which it finds room if running jobs end as
    believed. Another job may start now if it is believed to end by then, or if the head still finds room beside it.
    There is one head for each line. Jobs that are held back by their quota are passed over.
    """

    def begin(self, state: State) -> None:
        """Start with an empty queue."""
        self._alike: dict[tuple[JobDemand, str], _Alike] = {}
        self._ends: list[tuple[float, int]] = []

    def queued(self, run: JobRun, state: State) -> None:
        """Add the job to those with equal demands."""
        key = (run.demand, line_of(run, state))
        alike = self._alike.get(key)
        if alike is None:
            alike = self._alike[key] = _Alike(*key)
        gpus = run.num_gpus
        alike.add(run, state.overhead_s(run, gpus) + state.costs.elapsed_s(run.remaining_s(state.now), gpus))

    def started(self, run: JobRun, state: State) -> None:
        """Note the believed end of the job, for reservations."""
        self._alike[run.demand, line_of(run, state)].remove(run)
        insort(self._ends, (run.believed_end_s, run.order))

    def stopped(self, run: JobRun, state: State) -> None:
        """Forget the believed end of the job."""
        del self._ends[bisect_left(self._ends, (run.believed_end_s, run.order))]

    def decide(self, state: State) -> None:
        """Start heads, then reserve for those that find no room, then backfill."""
        if not state.waiting or state.free.is_full():
            return
        while self._ends and self._ends[0][0] <= state.now:
            run = state.running[self._ends.pop(0)[1]]
            insort(self._ends, (state.believed_end_s(run), run.order))
        by_line: dict[str, list[_Alike]] = {}
        for alike in self._alike.values():
            if alike.first() is not None:
                by_line.setdefault(alike.line, []).append(alike)
        for line in by_line.values():
            head = self._start_heads(line, state)
            if head is not None and not state.free.is_full():
                self._backfill(line, head, state)

    @staticmethod
    def _start_heads(line: list[_Alike], state: State) -> JobRun | None:
        """Start jobs in order until one finds no room; return that one."""
        over_quota: set[JobDemand] = set()
        while True:
            best: int | None = None
            for alike in line:
                first = alike.first()
                if first is not None and (best is None or first < best) and alike.demand not in over_quota:
                    best = first
            if best is None:
                return None
            head = state.waiting[best]
            if state.start(head):
                continue
            if state.free.in_quota(head.demand):
                return head
            over_quota.add(head.demand)

    def _backfill(self, line: list[_Alike], head: JobRun, state: State) -> None:
        shadow_s, then = self._reserve(head, state)
        window = shadow_s - state.now
        candidates = list(line)
        passed: list[JobRun] = []
        while candidates and not state.free.is_full():
            best: tuple[int, bool, Allocation, _Alike] | None = None
            for alike in tuple(candidates):
                found = self._candidate(alike, head, window, then, state)
                if found is None:
                    candidates.remove(alike)  # free space only shrinks within a decision, so this stays true
                elif best is None or found[0] < best[0]:
                    best = (*found, alike)
            if best is None:
                break
            order, leaves_room, allocation, alike = best
            run = state.waiting[order]
            if leaves_room or state.would_end_s(run, allocation) <= shadow_s:
                state.start(run, at=allocation)
                if state.believed_end_s(run) > shadow_s:
                    then.take(allocation)
            else:  # slower here than on its reference placement, it would end too late
                passed.append(run)
                alike.remove(run)
        for run in passed:
            self.queued(run, state)

    @staticmethod
    def _candidate(
        alike: _Alike, head: JobRun, window_s: float, then: Space, state: State
    ) -> tuple[int, bool, Allocation] | None:
        """Return the first of these jobs that may overtake the head, whether the head still fits, and its GPUs."""
        allocation = state.placement.find(alike.demand, state.free)
        if allocation is None:
            return None
        leaves_room = False
        if then.fits(allocation):
            then.take(allocation)
            leaves_room = then.find(head.demand) is not None
            then.give(allocation)
        first = alike.first() if leaves_room else alike.first(window_s)
        return None if first is None else (first, leaves_room, allocation)

    def _reserve(self, head: JobRun, state: State) -> tuple[float, Space]:
        """Return when the head finds room if jobs end as believed, and what is free then."""
        then = state.space()
        at = 0
        shadow_s = math.inf
        while at < len(self._ends):
            shadow_s = self._ends[at][0]
            while at < len(self._ends) and self._ends[at][0] == shadow_s:
                allocation = state.running[self._ends[at][1]].allocation
                assert allocation is not None
                then.give(allocation)
                at += 1
            if then.find(head.demand) is not None:
                return shadow_s, then
        return math.inf, then
