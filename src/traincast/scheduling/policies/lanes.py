"""Waiting jobs in order, grouped into lanes so that a decision looks at few of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias

from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.state import State

Key: TypeAlias = tuple[Any, ...]
"""Numbers that are compared one after the other. Where keys must differ, the last one is the order of submission."""
Lane: TypeAlias = list[tuple[Key, int, int]]
"""A heap of (key, order, token). An entry is void if its job has started since, which changes its token."""


class Lanes:
    """Waiting jobs by key, the smallest first; ties go to the earlier submission.

    Jobs of a lane have equal demands, so if the first finds no room, none of them does.
    """

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane] = {}

    def clear(self) -> None:
        """Remove all jobs."""
        self._lanes.clear()

    def push(self, run: JobRun, key: Key, lane: Hashable) -> None:
        """Add a job that begins to wait."""
        found = self._lanes.get(lane)
        if found is None:
            found = self._lanes[lane] = []
        heapq.heappush(found, (key, run.order, run.token))

    def heads(self, state: State) -> Iterator[tuple[Key, JobRun]]:
        """Yield the first job of each lane, with its key; the order of submission is the key's last number."""
        for lane in self._lanes.values():
            entry = _head(lane, state)
            if entry is not None:
                yield (*entry[0], entry[1]), state.waiting[entry[1]]

    def walk(self, state: State, attempt: Callable[[JobRun, Key], bool]) -> None:
        """Offer jobs in order, with keys as in `heads`; after an attempt that fails, skip the rest of its lane."""
        open_lanes: list[tuple[Key, int, Lane]] = []
        for lane in self._lanes.values():
            entry = _head(lane, state)
            if entry is not None:
                open_lanes.append((entry[0], entry[1], lane))
        heapq.heapify(open_lanes)
        while open_lanes:
            key, order, lane = open_lanes[0]
            if attempt(state.waiting[order], (*key, order)):
                heapq.heappop(lane)
                entry = _head(lane, state)
                if entry is not None:
                    heapq.heapreplace(open_lanes, (entry[0], entry[1], lane))
                    continue
            heapq.heappop(open_lanes)


def _head(lane: Lane, state: State) -> tuple[Key, int, int] | None:
    """Return the first entry of a lane whose job still waits."""
    waiting = state.waiting
    while lane:
        _, order, token = lane[0]
        run = waiting.get(order)
        if run is not None and run.token == token:
            return lane[0]
        heapq.heappop(lane)
    return None
