"""Conditions of a real cluster: slow ranks, jitter, a busy network, computation and messages that slow each other down.

Ranks that differ cannot be folded, so the plan is first expanded to all ranks. Conditions that lengthen a task
independently of other tasks change its seconds, and the executor runs the plan. Conditions that depend on other tasks
that run at the same time need the event engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from traincast.ask import Conditions
from traincast.errors import RequestError
from traincast.graph import Operator
from traincast.simulate.expand import expand
from traincast.simulate.timeline import PlanEngine, Timeline, executed
from traincast.strategy.mesh import Axis, Group, Mesh
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Stream
from traincast.work import Collective, Transfer, Work

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def compute_factors(conditions: Conditions, num_ranks: int) -> Floats:
    """The factor on the computing time of each rank; 1 is the usual time. Refuses slow ranks that do not exist."""
    beyond = [rank for rank, _ in conditions.slow if rank >= num_ranks]
    if beyond:
        raise RequestError(f"rank {beyond[0]} is slow, but ranks go from 0 to {num_ranks - 1}")
    factors = np.ones(num_ranks)
    for rank, factor in conditions.slow:
        factors[rank] = factor
    if conditions.jitter:
        normal = np.random.default_rng(conditions.seed).standard_normal(num_ranks)
        factors *= np.exp(conditions.jitter * normal - conditions.jitter**2 / 2)
    return factors


def under(
    plan: Plan,
    seconds: Floats,
    conditions: Conditions,
    *,
    kind_of_rank: Ints | None = None,
    crossing: Bools | None = None,
) -> Timeline:
    """Executes a folded ``plan`` for every rank of its mesh, under ``conditions``.

    ``seconds`` are the times of the works or, if ranks differ, [kinds of ranks, works] with ``kind_of_rank``. A task
    of one rank takes the seconds of its own kind, a collective those of its slowest member. ``crossing`` has the shape
    of ``seconds`` and says which works leave their node; by default, the works themselves say so.
    """
    num_ranks = plan.mesh.num_ranks
    by_kind = np.atleast_2d(seconds)
    kinds = np.zeros(num_ranks, dtype=np.int64) if kind_of_rank is None else np.asarray(kind_of_rank, dtype=np.int64)
    _check(plan, by_kind, kinds)
    crossing = crossing_nodes(plan.works) if crossing is None else crossing
    by_kind = np.where(crossing, by_kind / (1.0 - conditions.busy_network), by_kind)
    factors = compute_factors(conditions, num_ranks)
    unlike = bool((factors != factors[0]).any() or (kinds != kinds[0]).any())
    meetings = _meetings(plan) if unlike else np.full(len(plan.segments), Group.RANK, dtype=np.int64)
    full = expand(_joined(plan, meetings))
    duration = _durations(full, by_kind, kinds=kinds, factors=factors, meetings=meetings)
    dynamic = conditions.interference > 0.0 or conditions.share_links
    return executed(full, duration, _event_engine(full, conditions)) if dynamic else executed(full, duration)


def _check(plan: Plan, by_kind: Floats, kinds: Ints) -> None:
    works, ranks = len(plan.works), plan.mesh.num_ranks
    if by_kind.shape[1:] != (works,) or kinds.shape != (ranks,):
        raise RequestError(
            f"seconds have shape {by_kind.shape} and kinds {kinds.shape}; the plan has {works} works and {ranks} "
            f"ranks: give seconds of shape (kinds, {works}) and kinds of shape ({ranks},)"
        )
    if not 0 <= kinds.min() <= kinds.max() < len(by_kind):
        raise RequestError(
            f"kind_of_rank has kinds {kinds.min()} to {kinds.max()}, but there are seconds for {len(by_kind)} kinds"
        )


def crossing_nodes(works: Sequence[Work]) -> Bools:
    """Whether each of ``works`` leaves its node."""
    return np.array([_crosses_nodes(work) for work in works], dtype=bool)


def _crosses_nodes(work: Work | None) -> bool:
    match work:
        case Collective():
            return work.num_nodes > 1
        case Transfer():
            return work.crosses_nodes
        case _:
            return False


def _meetings(plan: Plan) -> Ints:
    """For every segment, the kind of group whose collectives it contains; the largest if there are several."""
    ranks = np.array([_num_ranks(plan.work_of(cost)) for cost in range(plan.num_leaves)])
    size = np.array([ranks[segment.works].max() for segment in plan.segments], dtype=np.int64)
    number = (plan.cost - plan.num_leaves) // 3
    over_data = np.zeros(len(size), dtype=bool)
    over_data[number[(number >= 0) & _holds(plan, Stream.DATA)]] = True
    groups = np.full(len(size), Group.RANK, dtype=np.int64)
    for group in Group:  # if two kinds have equally many ranks, the first counts
        degree = math.prod(plan.mesh.degree(axis) for axis in group.axes)
        alike = (size > 1) & (size == degree) & (over_data == group.between_replicas)
        groups[(groups == Group.RANK) & alike] = group
    return groups


def _num_ranks(work: Work | None) -> int:
    return work.num_ranks if isinstance(work, Collective) else 1


def _holds(plan: Plan, stream: Stream) -> Bools:
    """Which tasks hold a lane of ``stream``."""
    task = np.repeat(np.arange(plan.num_tasks), np.diff(plan.lane_start))
    holds = np.zeros(plan.num_tasks, dtype=bool)
    holds[task[plan.lanes % NUM_STREAMS == stream]] = True
    return holds


def _joined(plan: Plan, meetings: Ints) -> Plan:
    """``plan`` with every segment that contains collectives of a group as one task of that group.

    Members that differ wait for one another at each collective inside, and the same member is always last. So the
    segment starts and ends for all of them together and takes the slowest member's seconds, also on the host. If a
    segment contains several kinds of groups, only the members of the largest wait for one another; a plan of operators
    has the waits of all kinds.
    """
    if (meetings == Group.RANK).all():
        return plan
    number, part = np.divmod(plan.cost - plan.num_leaves, 3)
    group = np.where((number >= 0) & (part == 1), meetings[np.maximum(number, 0)], plan.group)
    return replace(plan, group=group.astype(plan.group.dtype))


def _durations(full: Plan, by_kind: Floats, *, kinds: Ints, factors: Floats, meetings: Ints) -> Floats:
    """Seconds of every task, on its rank or on the slowest member of its group."""
    computes = np.array([isinstance(work, Operator) for work in full.works], dtype=bool)
    pairs, of_rank = np.unique(np.stack([kinds, factors]), axis=1, return_inverse=True)
    of_rank = of_rank.reshape(-1)
    seconds = [by_kind[int(kind)] * np.where(computes, factor, 1.0) for kind, factor in pairs.T.tolist()]
    tables = np.stack([full.costs(one) for one in seconds])
    if len(tables) == 1:
        return np.asarray(tables[0][full.cost])
    held = np.diff(full.lane_start)
    assert held.all(), "every task of a plan holds a lane"
    rank, cost = full.lanes // NUM_STREAMS, np.repeat(full.cost, held)
    chosen = of_rank[rank]
    counts = full.work_counts()
    total = np.array([counts @ one for one in seconds])
    for group in np.unique(meetings[meetings != Group.RANK]).tolist():
        meets = np.repeat(meetings == group, 3)
        inside = (cost >= full.num_leaves) & meets[np.maximum(cost - full.num_leaves, 0)]
        slowest = _slowest_member(full.mesh, Group(group).axes, total[of_rank])
        chosen[inside] = of_rank[slowest[rank[inside]]]
    return np.maximum.reduceat(tables[chosen, cost], full.lane_start[:-1])


def _slowest_member(mesh: Mesh, axes: tuple[Axis, ...], seconds: Floats) -> Ints:
    """For every rank, the slowest member of its group along ``axes``."""
    leader = mesh.groups(axes)
    slowest = np.zeros(mesh.num_ranks, dtype=np.int64)
    order = np.argsort(seconds, kind="stable")
    slowest[leader[order]] = order  # the slowest is written last, and stays
    return slowest[leader]


def _event_engine(full: Plan, conditions: Conditions) -> PlanEngine:
    """Return the engine for tasks that slow each other down."""
    from traincast.simulate.event_queue import Uses, execute_queue

    start, resource, weight = _loads(full, conditions)
    capacity = np.ones(3 * len(full.ranks))
    return partial(execute_queue, uses=Uses(start=start, resource=resource, weight=weight, capacity=capacity))


def _loads(full: Plan, conditions: Conditions) -> tuple[Ints, Ints, Floats]:
    """The load of tasks on each rank's device, its link to the node and its link to the network, in this order.

    For each task the place of its first load, then the resource and the weight of each load.
    """
    num_ranks = len(full.ranks)
    task, rank = _task_rows(full)
    communicates = full.category == Category.COMMUNICATION
    computes = _holds(full, Stream.COMPUTE) & ~communicates
    parts: list[tuple[Ints, Ints, Floats]] = []
    if conditions.interference:
        on_device = (communicates | computes)[task]
        weight = np.where(communicates[task[on_device]], conditions.interference, 1.0)
        parts.append((task[on_device], rank[on_device], weight))
    if conditions.share_links:
        on_link = communicates[task]
        crossing = np.array([_crosses_nodes(full.work_of(cost)) for cost in range(full.num_costs)], dtype=bool)
        link = np.where(crossing[full.cost[task[on_link]]], 2, 1) * num_ranks + rank[on_link]
        parts.append((task[on_link], link, np.ones(len(link))))
    user, resource, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(user, kind="stable")
    start = np.zeros(full.num_tasks + 1, dtype=np.int64)
    np.cumsum(np.bincount(user, minlength=full.num_tasks), out=start[1:])
    return start, resource[order], weights[order]


def _task_rows(plan: Plan) -> tuple[Ints, Ints]:
    """Every pair of a task and a row on which it holds a lane, once, in order of tasks."""
    held = np.diff(plan.lane_start)
    task, row = np.repeat(np.arange(plan.num_tasks), held), plan.lanes // NUM_STREAMS
    several = held[task] > 1  # these are few, so sorting only them is quick
    once = np.zeros(len(task), dtype=bool)
    once[~several] = True
    found = np.flatnonzero(several)
    once[found[np.unique(task[found] * len(plan.ranks) + row[found], return_index=True)[1]]] = True
    return task[once], row[once]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitColumns:
    """For each rank: seconds in which its compute stream is busy and idle, and the rank that it waits for most.

    ``for_rank`` is -1 if it waits for no other rank; ``for_rank_s`` are the seconds in which it waits for that rank.
    The rest of ``waiting_s`` is spent on messages, on its own host, and on other ranks.
    """

    ranks: Ints
    busy_s: Floats
    waiting_s: Floats
    for_rank: Ints
    for_rank_s: Floats


def who_waits(timeline: Timeline) -> WaitColumns:
    """How long each rank waits on its compute stream, and for which rank most.

    The cause of a gap before a task is the task that released it: of its predecessors and the previous tasks on its
    lanes, the one that ended last. If that task belongs to several ranks (a collective), the cause is the task that
    released the collective, and so on until a task of one rank is found. A rank that was equally late waits for no
    other. The gap counts as waiting for the rank of the cause until the cause ended, not while bytes travelled after
    it. The cause of the gap after a rank's last task is the task that ends the step. Waits inside a segment are
    visible only in plans of operators.
    """
    plan, start, end = timeline.plan, timeline.start, timeline.end
    rows = len(plan.ranks)
    task, row = _task_rows(plan)
    members = np.bincount(task, minlength=plan.num_tasks)
    row_of = row[np.searchsorted(task, np.arange(plan.num_tasks))]
    source, tied = _released_by(timeline, row_of, members)
    held, on, since = _compute_gaps(timeline)
    busy, last = np.zeros(rows), np.zeros(rows)
    np.add.at(busy, on, (end - start)[held])
    np.maximum.at(last, on, end[held])
    waits = source[held] >= 0
    final = int(np.argmax(end))
    gap_row = np.concatenate([on[waits], np.arange(rows)])
    gap_since = np.concatenate([since[waits], last])
    gap_until = np.concatenate([start[held[waits]], np.full(rows, timeline.step_s)])
    released = np.where(members[held] > 1, held, source[held])
    released = np.concatenate([released[waits], np.full(rows, final)])
    # Go back through tasks of several rows to the first of them, and from there to the task that released it.
    hop = np.where((members > 1) & (source >= 0) & (members[source] > 1), source, np.arange(plan.num_tasks))
    while (hop != hop[hop]).any():
        hop = hop[hop]
    met = hop[released]
    cause = np.where((members[met] > 1) & (source[met] >= 0), source[met], met)
    waited = np.maximum(0.0, np.minimum(end[cause], gap_until) - gap_since)
    counts = (members[cause] == 1) & (row_of[cause] != gap_row) & ~np.isin(met * rows + gap_row, tied) & (waited > 0.0)
    pair, where = np.unique(gap_row[counts] * rows + row_of[cause[counts]], return_inverse=True)
    total = np.bincount(where, weights=waited[counts], minlength=len(pair))
    for_rank, for_rank_s = np.full(rows, -1, dtype=np.int64), np.zeros(rows)
    order = np.argsort(total, kind="stable")  # the largest of each row is written last, and stays
    for_rank[pair[order] // rows] = plan.ranks[pair[order] % rows]
    for_rank_s[pair[order] // rows] = total[order]
    return WaitColumns(
        ranks=plan.ranks,
        busy_s=busy,
        waiting_s=np.maximum(0.0, timeline.step_s - busy),
        for_rank=for_rank,
        for_rank_s=for_rank_s,
    )


def _released_by(timeline: Timeline, row_of: Ints, members: Ints) -> tuple[Ints, Ints]:
    """For every task, the task that released it (the last to end) or -1; and the rows of all that ended at that time.

    These rows are encoded as task · rows + row.
    """
    plan, end = timeline.plan, timeline.end
    holder = np.repeat(np.arange(plan.num_tasks), np.diff(plan.lane_start))
    order = np.argsort(plan.lanes, kind="stable")
    same = plan.lanes[order][1:] == plan.lanes[order][:-1]
    waiter = np.repeat(np.arange(plan.num_tasks), np.diff(plan.predecessor_start))
    later = np.concatenate([waiter, holder[order[1:][same]]])
    earlier = np.concatenate([plan.predecessors, holder[order[:-1][same]]])
    latest = np.full(plan.num_tasks, -1.0)
    np.maximum.at(latest, later, end[earlier])
    binding = np.flatnonzero(end[earlier] == latest[later])[::-1]  # of equals, the first is written last and stays
    later, earlier = later[binding], earlier[binding]
    source = np.full(plan.num_tasks, -1, dtype=np.int64)
    source[later] = earlier
    alone = (members[later] > 1) & (members[earlier] == 1)
    return source, later[alone] * len(plan.ranks) + row_of[earlier[alone]]


def _compute_gaps(timeline: Timeline) -> tuple[Ints, Ints, Floats]:
    """Tasks on compute streams, their rows, and the time at which the stream became free before each."""
    plan = timeline.plan
    holder = np.repeat(np.arange(plan.num_tasks), np.diff(plan.lane_start))
    on_compute = np.flatnonzero(plan.lanes % NUM_STREAMS == Stream.COMPUTE)
    order = on_compute[np.argsort(plan.lanes[on_compute], kind="stable")]  # by row, then in program order
    task, row = holder[order], plan.lanes[order] // NUM_STREAMS
    since = np.zeros(len(task))
    same = row[1:] == row[:-1]
    since[1:][same] = timeline.end[task[:-1][same]]
    return task, row, since
