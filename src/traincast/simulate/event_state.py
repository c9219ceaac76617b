"""Input and state of the event engine: columns of tasks, lanes and resources; checks before and after a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.errors import SimulationError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

WAITING: Final = 0  # phases of a task
RELEASED: Final = 1
ARRIVED: Final = 2
RUNNING: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """The resources that tasks use while they run: task i has entries ``start[i]:start[i+1]``.

    Each entry puts ``weight`` on ``resource``; ``capacity`` has one value per resource, in the unit of weights.
    ``fair`` marks resources that are shared max-min fairly, as a link shares its bandwidth; by default none is.
    """

    start: Ints
    resource: Ints
    weight: Floats
    capacity: Floats
    fair: Bools | None = None


class EventInput(NamedTuple):
    """Columns that do not change: int64 and float64 arrays for the compiled loop, lists for plain Python."""

    duration: Any
    lane_start: Any
    lanes: Any
    predecessor_start: Any
    predecessors: Any
    release: Any
    by_arrival: Any
    use_start: Any
    use_resource: Any
    use_weight: Any
    use_task: Any
    capacity: Any
    fair: Any


class EventHeap(NamedTuple):
    """Coming events: a binary heap of (time, order), and each task's place in it or -1."""

    time: Any
    order: Any  # the task's number; for an arrival, the task's number + the number of tasks
    where: Any


class EventState(NamedTuple):
    """Columns that change during a run: one entry per task unless stated otherwise."""

    start: Any
    end: Any
    phase: Any
    waits: Any  # number of predecessors and lanes that a task still waits for
    ready: Any  # tasks that wait for nothing
    successor_start: Any
    successors: Any
    follower: Any  # per lane entry: the task that is next on the lane, or -1
    tail: Any  # per lane: the last entry in line, or -1
    remaining: Any  # seconds of work left at full pace
    since: Any  # the time at which ``remaining`` was computed
    slowness: Any  # its current slowdown by shared resources; 1 if none
    is_changed: Any
    changed: Any
    head: Any  # per resource: first use that is running, or -1
    before: Any  # per use: its neighbours in the list of its resource
    after: Any
    stretch: Any  # per resource: max(1, load / capacity)
    crowding: Any  # per resource that is shared fairly by unequal weights: 1 / the largest weight it serves; else 0
    is_touched: Any
    touched: Any


def check_input(given: EventInput) -> None:
    """Refuses input with which a run would never end, or would silently give a wrong order."""
    for name, values in (("duration", given.duration), ("release", given.release), ("weight", given.use_weight)):
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0.0)))
        if len(wrong):
            raise SimulationError(f"{name} {wrong[0]} is {values[wrong[0]]}: expected a number from 0")
    wrong = np.flatnonzero(~(given.capacity > 0.0))
    if len(wrong):
        raise SimulationError(f"capacity of resource {wrong[0]} is {given.capacity[wrong[0]]}: expected more than 0")
    for what, numbers, size in (
        ("predecessor", given.predecessors, len(given.duration)),
        ("lane", given.lanes, len(given.by_arrival)),
        ("resource", given.use_resource, len(given.capacity)),
    ):
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < size:
            raise SimulationError(
                f"{what} numbers go from {numbers.min()} to {numbers.max()}: expected numbers from 0 to below {size}"
            )


def scratch(given: EventInput) -> tuple[EventHeap, EventState]:
    """The heap and the state before the first event."""
    tasks, uses, resources = len(given.duration), len(given.use_resource), len(given.capacity)

    def zeros(size: int) -> Ints:
        return np.zeros(size, dtype=np.int64)

    def none(size: int) -> Ints:
        return np.full(size, -1, dtype=np.int64)

    state = EventState(
        start=np.zeros(tasks),
        end=np.zeros(tasks),
        phase=np.zeros(tasks, dtype=np.int8),
        waits=zeros(tasks),
        ready=zeros(tasks),
        successor_start=zeros(tasks + 1),
        successors=zeros(len(given.predecessors)),
        follower=none(len(given.lanes)),
        tail=none(len(given.by_arrival)),
        remaining=np.zeros(tasks),
        since=np.zeros(tasks),
        slowness=np.zeros(tasks),
        is_changed=np.zeros(tasks, dtype=np.int8),
        changed=zeros(tasks),
        head=none(resources),
        before=none(uses),
        after=none(uses),
        stretch=np.ones(resources),
        crowding=np.zeros(resources),
        is_touched=np.zeros(resources, dtype=np.int8),
        touched=zeros(resources),
    )
    return EventHeap(time=np.zeros(tasks), order=zeros(tasks), where=none(tasks)), state


def why_stuck(given: EventInput, phase: Any) -> str:
    """An error message that names one circle of tasks that wait for one another."""
    stuck = np.asarray(phase) != RUNNING
    waiting = np.repeat(np.arange(len(stuck)), np.diff(given.predecessor_start))
    blocker = np.full(len(stuck), -1, dtype=np.int64)
    open_waits = stuck[given.predecessors]
    blocker[waiting[open_waits]] = given.predecessors[open_waits]
    last: dict[int, int] = {}
    for task in np.flatnonzero(stuck).tolist():
        for lane in given.lanes[given.lane_start[task] : given.lane_start[task + 1]].tolist():
            if blocker[task] < 0 and not given.by_arrival[lane]:
                blocker[task] = last.get(lane, -1)
            last[lane] = task
    task = int(np.flatnonzero(stuck)[0])
    seen: dict[int, int] = {}
    while task not in seen:
        seen[task] = len(seen)
        task = int(blocker[task])
    circle = [*list(seen)[seen[task] :], task]
    named = circle if len(circle) <= 9 else [*circle[:8], circle[-1]]
    path = " waits for ".join(str(number) for number in named)
    return f"{stuck.sum()} of {len(stuck)} tasks never start, because they wait in a circle: task {path}"
