"""The spans of a timeline as levels of use: for each resource and row, a function of time that changes in steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.resources.draws import WatchedLinks, draws_of
from traincast.simulate import Timeline
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Stream
from traincast.strategy.servers.setup import ServerSetup

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Levels = tuple[Floats, Floats]
"""Times in seconds, and the level from each of them on; the first time is 0."""

_DEVICE: Final = {"compute": "kernel", "flops": "flops", "memory": "memory", "host": "host"}
_DIRECTION: Final = {"send": Stream.PUSH, "receive": Stream.PULL}
"""The messages of a worker of parameter servers in each direction."""
_ROUNDING: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRows:
    """The rows of a timeline: the node and its figures behind each, and the ranks on every node.

    ``clusters`` has the distinct kinds of nodes and ``kind`` the number of each row's; ``on_node`` is as in
    :class:`traincast.resources.curves.Curves`.
    """

    clusters: tuple[Cluster, ...]
    kind: Ints
    on_node: Floats
    is_server: npt.NDArray[np.bool_]


def rows_of(plan: Plan, cluster: Cluster, servers: ServerSetup | None = None) -> PlacedRows:
    """Returns the rows of ``plan`` on ``cluster``; ``servers`` is the setup of a plan with parameter servers."""
    world = plan.mesh.num_ranks
    if servers is None:
        node = plan.mesh.nodes()
        rank = np.arange(world)
    else:
        workers, hosts = range(servers.workers), range(servers.servers)
        node = np.array([*map(servers.node_of_worker, workers), *map(servers.node_of_server, hosts)], dtype=np.int64)
        rank = np.arange(servers.workers + servers.servers)
    row = np.searchsorted(plan.ranks, rank, side="right") - 1
    on_node = np.zeros((int(node.max()) + 1, len(plan.ranks)))
    np.add.at(on_node, (node, row), 1.0)
    parts = (*(cluster.parts or (cluster,)), *cluster.hosts)
    nodes = np.repeat(np.arange(len(parts)), [part.num_nodes for part in parts])
    own = node[plan.ranks]
    kind = nodes[own] if len(parts) > 1 else np.zeros(len(own), dtype=np.int64)
    return PlacedRows(clusters=parts, kind=kind, on_node=on_node, is_server=plan.ranks >= world)


class SpanDraws:
    """What the spans of a timeline draw, as entries: a task, the row of a rank that takes part, and its times."""

    def __init__(self, timeline: Timeline, rows: PlacedRows, network: WatchedLinks, *, on_device: bool) -> None:
        plan = timeline.plan
        spans = timeline.spans()
        entry = np.unique(spans.task * len(plan.ranks) + spans.row)
        self._task, self._row = np.divmod(entry, len(plan.ranks))
        whole = timeline.end - timeline.start if timeline.whole_s is None else timeline.whole_s
        start, whole = _hidden(timeline, whole)
        self._start, self._end, self._whole = start[self._task], timeline.end[self._task], whole[self._task]
        self._plan, self._rows, self._num_rows = plan, rows, len(plan.ranks)
        tables = [draws_of(plan, kind, network, on_device=on_device) for kind in rows.clusters]
        cost, kind = plan.cost[self._task], rows.kind[self._row]
        self._amounts = {name: np.stack([table[name] for table in tables])[kind, cost] for name in tables[0]}
        self._shown = timeline.start[self._task], timeline.end[self._task]

    def levels(self, name: str) -> list[Levels]:
        """The use of a resource, by row, as a share of its peak."""
        amount, row, task = self._amounts[_DEVICE.get(name, "exchanged")], self._row, np.arange(len(self._row))
        if name == "compute":  # a kernel runs for the whole of a task
            return self._added(row, *self._shown, amount)
        if name == "host":
            amount = np.where(self._rows.is_server[row], 0.0, amount)
        if name in _DIRECTION:
            which, ends = self._messages(name)
            task, row = np.concatenate([task, which]), np.concatenate([row, ends])
            amount = np.concatenate([amount, self._amounts["transferred"][which]])
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(amount > 0.0, amount / self._whole[task], 0.0)
        return self._added(row, self._start[task], self._end[task], np.where(np.isfinite(rate), rate, 0.0))

    def messages(self, row: int) -> dict[int, tuple[float, float]]:
        """Return what ``row`` sends and receives in each task, in seconds of the network's peak."""
        own = np.flatnonzero((self._row == row) & (self._amounts["exchanged"] > 0.0))
        found = {int(self._task[n]): [float(self._amounts["exchanged"][n])] * 2 for n in own.tolist()}
        for side, name in enumerate(("send", "receive")):
            which, ends = self._messages(name)
            for n in which[ends == row].tolist():
                found.setdefault(int(self._task[n]), [0.0, 0.0])[side] += float(self._amounts["transferred"][n])
        return {task: (send, receive) for task, (send, receive) in found.items()}

    def _added(self, row: Ints, start: Floats, end: Floats, rate: Floats) -> list[Levels]:
        """The sum of rates from ``start`` to ``end``, by row, at most 1."""
        drawn = np.flatnonzero((rate > 0.0) & (end > start))
        drawn = drawn[np.argsort(row[drawn], kind="stable")]
        bounds = np.searchsorted(row[drawn], np.arange(self._num_rows + 1))
        found: list[Levels] = []
        for first, after in pairwise(bounds.tolist()):
            own = drawn[first:after]
            times = np.concatenate([[0.0], start[own], end[own]])
            change = np.concatenate([[0.0], rate[own], -rate[own]])
            order = np.argsort(times, kind="stable")
            times, level = times[order], np.cumsum(change[order])
            last = np.append(np.diff(times) > 0.0, True)  # of changes at the same time, the level after all of them
            level = np.where(level < _ROUNDING * max(1.0, float(rate[own].max(initial=0.0))), 0.0, level)
            found.append((times[last], np.minimum(1.0, level[last])))
        return found

    def _messages(self, name: str) -> tuple[Ints, Ints]:
        """Entries of messages between two rows and, for each, the row that sends or receives it."""
        plan, moves = self._plan, self._amounts["transferred"] > 0.0
        which = np.flatnonzero(moves)
        if not self._rows.is_server.any():
            if name == "send":
                return which, self._row[which]
            receiver = receivers(plan)[self._task[which]]
            known = receiver >= 0
            return which[known], receiver[known]
        stream = plan.lanes[plan.lane_start[self._task[which]]] % NUM_STREAMS
        as_worker = (stream == _DIRECTION[name]) != self._rows.is_server[self._row[which]]
        return which[as_worker], self._row[which[as_worker]]


def receivers(plan: Plan) -> Ints:
    """The row that receives the message of each task; −1 for tasks that send nothing from one stage to another.

    The message is held by the lanes of its sender. Its receiver is the row of the work that waits for it.
    """
    stream, row = plan.lanes % NUM_STREAMS, plan.lanes // NUM_STREAMS
    of_task = np.repeat(np.arange(plan.num_tasks), np.diff(plan.lane_start))
    sends, computes = np.zeros(plan.num_tasks, dtype=bool), np.zeros(plan.num_tasks, dtype=bool)
    sends[of_task[np.isin(stream, (Stream.SEND_FORWARD, Stream.SEND_BACKWARD))]] = True
    computes[of_task[stream == Stream.COMPUTE]] = True
    first = row[plan.lane_start[:-1]]
    waiter = np.repeat(np.arange(plan.num_tasks), np.diff(plan.predecessor_start))
    source = plan.predecessors
    found = np.full(plan.num_tasks, -1, dtype=np.int64)
    meant = sends[source] & computes[waiter] & ~sends[waiter] & (first[waiter] != first[source])
    found[source[meant]] = first[waiter[meant]]
    return found


def _hidden(timeline: Timeline, whole: Floats) -> tuple[Floats, Floats]:
    """Start and seconds of every task, where a message that runs behind works begins with the first of these.

    The task of such a message takes only the time that these works do not hide. They stand before it on its lane.
    """
    plan, start = timeline.plan, timeline.start
    if not plan.overlaps:
        return start, whole
    lane = plan.lanes[plan.lane_start[:-1]]
    order = np.lexsort((np.arange(plan.num_tasks), lane))
    place = np.argsort(order)
    begins = np.searchsorted(lane[order], lane)  # the first place of each task's lane
    number = plan.cost - len(plan.works)
    overlapped = np.flatnonzero((number >= 0) & (number < len(plan.overlaps)))
    behind = np.array([len(overlap.behind) for overlap in plan.overlaps], dtype=np.int64)
    first = np.maximum(begins[overlapped], place[overlapped] - behind[number[overlapped]])
    start, whole = start.copy(), whole.copy()
    start[overlapped] = np.minimum(start[overlapped], start[order[first]])
    whole[overlapped] = timeline.end[overlapped] - start[overlapped]
    return start, whole


def held_levels(timeline: Timeline, rows: PlacedRows, held: Sequence[Floats]) -> list[Levels]:
    """The share of its memory that a rank holds, by row; ``held`` has the bytes in each slot of every stage.

    A slot lasts from the first of its works to the first of the next slot. Servers hold nothing on a device.
    """
    plan, spans = timeline.plan, timeline.spans()
    found: list[Levels] = []
    for row, rank in enumerate(plan.ranks.tolist()):
        if not held or rows.is_server[row]:
            found.append((np.zeros(1), np.zeros(1)))
            continue
        level = held[plan.mesh.coordinate(rank, "pp")] / rows.clusters[rows.kind[row]].device.memory_bytes
        lane = spans.on(row, Stream.COMPUTE)
        passes = np.isin(plan.category[lane.task], (Category.FORWARD, Category.BACKWARD))
        task, start = lane.task[passes], lane.start[passes]
        slot = plan.microbatch[task].astype(np.int64) * len(Category) + plan.category[task]
        opens = np.flatnonzero(np.diff(slot, prepend=-1))
        times = start[opens]
        if not len(times) or not len(level):
            found.append((np.zeros(1), np.full(1, float(level.max(initial=0.0)))))
            continue
        of_run = np.minimum(np.arange(len(times)) * len(level) // len(times), len(level) - 1)
        times = np.concatenate([[0.0], times[1:]])
        found.append((times, level[of_run]))
    return found
