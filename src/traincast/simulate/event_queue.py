"""The event engine: start and end of tasks that affect one another. It has no domain words.

Tasks hold lanes and wait for predecessors exactly as in the executor. Three things are added, each optional:

- **Resources are shared.** While a task runs, it puts a weight on some resources. A resource whose load exceeds its
  capacity slows every task on it by load / capacity (processor sharing). A resource may also be shared *fairly*: it
  serves each weight up to one level, the highest at which the capacity suffices, so that tasks with weights below the
  level are not slowed (max-min fairness). For equal weights both rules are the same. A task that uses several
  resources runs at the pace of the slowest.
- **A task may be released late**: it does not start before its release time.
- **A lane may serve by arrival**: its tasks run in the order in which they become ready, not in program order. A task
  arrives there when its predecessors have ended, it is released, and it is its turn on all its other lanes.

One rule orders all events: (time, kind, task number), where ends and releases come before arrivals. So arrivals at one
instant are served by task number, after all ends at that instant. Paces change only after all events of an instant.
The cost is that of a heap: O((tasks + changes of pace) · log(tasks running)).

The same functions run as plain Python on small inputs and compiled by Numba on large ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled
from traincast.errors import SimulationError

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


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def _settle(heap: Any, size: Any, at: Any, time: Any, order: Any) -> None:
    """Puts (time, order) into the hole at ``at`` and restores the order of the heap."""
    times, orders, where = heap.time, heap.order, heap.where
    tasks = len(where)
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] < time or (times[parent] == time and orders[parent] < order):
            break
        times[at], orders[at] = times[parent], orders[parent]
        where[orders[at] if orders[at] < tasks else orders[at] - tasks] = at
        at = parent
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            times[right] < times[child] or (times[right] == times[child] and orders[right] < orders[child])
        ):
            child = right
        if time < times[child] or (time == times[child] and order < orders[child]):
            break
        times[at], orders[at] = times[child], orders[child]
        where[orders[at] if orders[at] < tasks else orders[at] - tasks] = at
        at = child
    times[at], orders[at] = time, order
    where[order if order < tasks else order - tasks] = at


def _link(given: Any, state: Any) -> None:
    """Counts the waits of every task and lists its successors; a lane in program order adds a wait for each task."""
    tasks = len(given.duration)
    starts, successors, waits = state.successor_start, state.successors, state.waits
    predecessor_start, predecessors = given.predecessor_start, given.predecessors
    for at in range(predecessor_start[0], predecessor_start[tasks]):
        starts[predecessors[at]] += 1
    for task in range(tasks):
        starts[task + 1] += starts[task]  # for now the end of a task's successors
    for back in range(tasks):
        task = tasks - 1 - back
        for at in range(predecessor_start[task], predecessor_start[task + 1]):
            source = predecessors[at]
            starts[source] -= 1  # when all are placed, their beginning
            successors[starts[source]] = task
            waits[task] += 1
    lane_start, lanes, by_arrival = given.lane_start, given.lanes, given.by_arrival
    follower, tail = state.follower, state.tail
    for task in range(tasks):
        for at in range(lane_start[task], lane_start[task + 1]):
            last = tail[lanes[at]]
            if by_arrival[lanes[at]] or last >= lane_start[task]:
                continue  # the task joins this lane's queue when it arrives
            if last >= 0:
                follower[last] = task
                waits[task] += 1
            tail[lanes[at]] = at


def _note(is_noted: Any, noted: Any, count: Any, number: Any) -> Any:
    """Adds ``number`` to a list unless the list has it; returns the length of the list."""
    if is_noted[number]:
        return count
    is_noted[number] = 1
    noted[count] = number
    return count + 1


def _let_go(waits: Any, ready: Any, num_ready: Any, task: Any) -> Any:
    """Removes one wait of ``task``; returns the number of tasks that are ready."""
    waits[task] -= 1
    if waits[task] > 0:
        return num_ready
    ready[num_ready] = task
    return num_ready + 1


def _attach(head: Any, before: Any, after: Any, resource: Any, at: Any) -> None:
    """Puts a use at the head of the list of its resource."""
    first = head[resource]
    before[at], after[at], head[resource] = -1, first, at
    if first >= 0:
        before[first] = at


def _detach(head: Any, before: Any, after: Any, resource: Any, at: Any) -> None:
    """Removes a use from the list of its resource."""
    if before[at] >= 0:
        after[before[at]] = after[at]
    else:
        head[resource] = after[at]
    if after[at] >= 0:
        before[after[at]] = before[at]


def _crowding(weight: Any, after: Any, first: Any, capacity: Any) -> Any:
    """1 / the level up to which a full resource serves the weights of its uses, the first of which is ``first``."""
    level = 0.0
    while True:  # weights below the level leave the rest to the others, which raises the level
        rest, above, at = capacity, 0, first
        while at >= 0:
            if weight[at] <= level:
                rest -= weight[at]
            else:
                above += 1
            at = after[at]
        raised = rest / above if above else level
        if raised <= level:
            return 1.0 / level
        level = raised


def _change_paces(  # noqa: PLR0917  (Numba takes positional arguments)
    given: Any, heap: Any, size: Any, state: Any, num_changed: Any, num_touched: Any, now: Any
) -> Any:
    """Updates loads, paces and expected ends at the end of an instant; returns the size of the heap."""
    use_start, use_resource, after = given.use_start, given.use_resource, state.after
    slowness, stretch, remaining, since = state.slowness, state.stretch, state.remaining, state.since
    changed, is_changed = state.changed, state.is_changed
    for number in range(num_touched):
        resource = state.touched[number]
        state.is_touched[resource] = 0
        load = least = most = 0.0
        at = state.head[resource]
        if at >= 0:
            least = most = given.use_weight[at]
        while at >= 0:
            load += given.use_weight[at]
            least, most = min(least, given.use_weight[at]), max(most, given.use_weight[at])
            at = after[at]
        before, new = stretch[resource], max(1.0, load / given.capacity[resource])
        crowding = 0.0
        if given.fair[resource] and new > 1.0 and least < most:
            crowding = _crowding(given.use_weight, after, state.head[resource], given.capacity[resource])
        if crowding + state.crowding[resource] > 0.0:  # weights differ, or did: slowness is that of each use
            state.crowding[resource], stretch[resource] = crowding, new
            at = state.head[resource]
            while at >= 0:
                num_changed = _note(is_changed, changed, num_changed, given.use_task[at])
                at = after[at]
            continue
        if new == before:
            continue
        stretch[resource] = new
        at = state.head[resource]
        while at >= 0:
            task = given.use_task[at]
            if new > slowness[task] or before == slowness[task]:
                num_changed = _note(is_changed, changed, num_changed, task)
            at = after[at]
    for number in range(num_changed):
        task = changed[number]
        is_changed[task] = 0
        before, new = slowness[task], 1.0
        for at in range(use_start[task], use_start[task + 1]):
            crowding = state.crowding[use_resource[at]]
            new = max(new, stretch[use_resource[at]] if crowding == 0.0 else crowding * given.use_weight[at])
        if new == before:
            continue
        slowness[task] = new
        if before > 0.0:
            remaining[task] = max(0.0, remaining[task] - (now - since[task]) / before)
            since[task] = now
            _settle(heap, size, heap.where[task], now + remaining[task] * new, task)
        else:  # it has just started
            size += 1
            _settle(heap, size, size - 1, now + remaining[task] * new, task)
    return size


def _run(given: Any, heap: Any, state: Any) -> int:
    """Runs all events and fills ``start`` and ``end`` of the state; returns the number of tasks that have ended."""
    duration, release, by_arrival = given.duration, given.release, given.by_arrival
    lane_start, lanes, use_start, use_resource = given.lane_start, given.lanes, given.use_start, given.use_resource
    phase, waits, ready, follower, tail = state.phase, state.waits, state.ready, state.follower, state.tail
    head, before, after, touched, is_touched = state.head, state.before, state.after, state.touched, state.is_touched
    tasks = len(duration)
    _link(given, state)
    size = num_ready = num_changed = num_touched = num_ended = 0
    for task in range(tasks):
        if waits[task] == 0:
            ready[num_ready] = task
            num_ready += 1
    now = 0.0
    while True:
        while num_ready:  # tasks that wait for nothing: their release, their arrival or their start is next
            num_ready -= 1
            task = ready[num_ready]
            time, order = now, task
            if phase[task] == WAITING:
                phase[task] = RELEASED
                time = max(now, release[task])
            if phase[task] == RELEASED and time == now:
                phase[task] = ARRIVED
                for at in range(lane_start[task], lane_start[task + 1]):
                    if by_arrival[lanes[at]]:
                        order = tasks + task
            if phase[task] == ARRIVED and order == task:
                phase[task] = RUNNING
                state.start[task] = now
                time = now + duration[task]
                if duration[task] > 0.0 and use_start[task] < use_start[task + 1]:
                    order = -1
                    state.remaining[task], state.since[task] = duration[task], now
                    num_changed = _note(state.is_changed, state.changed, num_changed, task)
                    for at in range(use_start[task], use_start[task + 1]):
                        _attach(head, before, after, use_resource[at], at)
                        num_touched = _note(is_touched, touched, num_touched, use_resource[at])
            if order >= 0:
                size += 1
                _settle(heap, size, size - 1, time, order)
        if num_changed + num_touched > 0 and (size == 0 or heap.time[0] > now):
            size = _change_paces(given, heap, size, state, num_changed, num_touched, now)
            num_changed = num_touched = 0
        if size == 0:
            return num_ended
        now, order = heap.time[0], heap.order[0]
        size -= 1
        if size:
            _settle(heap, size, 0, heap.time[size], heap.order[size])
        if order >= tasks:  # an arrival: join the queue of every lane that serves by arrival
            task = order - tasks
            for at in range(lane_start[task], lane_start[task + 1]):
                last = tail[lanes[at]]
                if by_arrival[lanes[at]] and not lane_start[task] <= last < lane_start[task + 1]:
                    if last >= 0:
                        follower[last] = task
                        waits[task] += 1
                    tail[lanes[at]] = at
            if waits[task] == 0:
                ready[num_ready] = task
                num_ready += 1
        elif phase[order] == RUNNING:  # an end: leave resources and lanes, and release waiting tasks
            num_ended += 1
            state.end[order] = now
            if state.slowness[order] > 0.0:
                for at in range(use_start[order], use_start[order + 1]):
                    _detach(head, before, after, use_resource[at], at)
                    num_touched = _note(is_touched, touched, num_touched, use_resource[at])
            for at in range(lane_start[order], lane_start[order + 1]):
                if tail[lanes[at]] == at:
                    tail[lanes[at]] = -1
                if follower[at] >= 0:
                    num_ready = _let_go(waits, ready, num_ready, follower[at])
            for at in range(state.successor_start[order], state.successor_start[order + 1]):
                num_ready = _let_go(waits, ready, num_ready, state.successors[at])
        else:  # a release
            ready[num_ready] = order
            num_ready += 1


run_compiled: Final = Compiled(_run, pays_from=60_000)
"""The loop in machine code, used from this number of tasks on."""


def execute_queue(
    duration: Floats,
    *,
    lane_start: Ints,
    lanes: Ints,
    predecessor_start: Ints,
    predecessors: Ints,
    num_lanes: int,
    uses: Uses | None = None,
    release: Floats | None = None,
    by_arrival: Bools | None = None,
) -> tuple[Floats, Floats]:
    """Start and end of every task, in the unit of ``duration``; a task's number may be below its predecessors'.

    ``release`` is the earliest start of each task. ``by_arrival`` marks the lanes that serve in order of arrival.
    Raises :class:`SimulationError` if tasks wait for one another in a circle.
    """
    size = len(duration)
    shared = uses or Uses(
        start=np.zeros(size + 1, dtype=np.int64),
        resource=np.zeros(0, dtype=np.int64),
        weight=np.zeros(0),
        capacity=np.zeros(0),
    )
    given = EventInput(
        duration=duration,
        lane_start=lane_start,
        lanes=lanes,
        predecessor_start=predecessor_start,
        predecessors=predecessors,
        release=np.zeros(size) if release is None else release,
        by_arrival=np.zeros(num_lanes, dtype=np.bool_) if by_arrival is None else by_arrival,
        use_start=shared.start,
        use_resource=shared.resource,
        use_weight=shared.weight,
        use_task=np.repeat(np.arange(size), np.diff(shared.start)),
        capacity=shared.capacity,
        fair=np.zeros(len(shared.capacity), dtype=np.bool_) if shared.fair is None else shared.fair,
    )
    check_input(given)
    heap, state = scratch(given)
    if run_compiled.pays(size):
        ended = run_compiled(given, heap, state)
    else:
        state = EventState(*(column.tolist() for column in state))
        ended = _run(EventInput(*(c.tolist() for c in given)), EventHeap(*(c.tolist() for c in heap)), state)
    if ended < size:
        raise SimulationError(why_stuck(given, state.phase))
    return np.asarray(state.start, dtype=np.float64), np.asarray(state.end, dtype=np.float64)
