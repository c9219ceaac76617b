"""One steady step of parameter-server training as a timeline, with rows for workers and for servers.

In the simulation of servers, a pass through a piece of the model is one task. Here it stays one task or becomes the
works that it consists of, on the lanes of a plan together with pushes, pulls, updates and waits. Traces, pages and
critical paths can then be made from it as from any other plan.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.simulate.server_waits import Cause, device_shares, waits_within
from traincast.simulate.servers import ServerTimeline, ends_of_steps
from traincast.simulate.timeline import Timeline
from traincast.strategy.mesh import Group, Mesh
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Segment, Stream
from traincast.strategy.plan_builder import Grain
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.item import Item
from traincast.strategy.servers.tasks import Piece, ServerRole, ServerSetup, ServerTasks
from traincast.work import HostUpdate, Transfer, Work

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerJob:
    """A run with parameter servers and its inputs.

    ``programs`` has the works of every piece for one microbatch, for each kind of worker. ``seconds`` has the times of
    the distinct ``works`` (and launches) on each kind of worker: [kinds, works].
    """

    setup: ServerSetup
    pieces: tuple[Piece, ...]
    programs: tuple[tuple[BlockProgram, ...], ...]
    num_microbatches: int
    works: tuple[Work, ...]
    seconds: Floats
    mesh: Mesh
    run: ServerTimeline

    @property
    def slowest(self) -> int:
        """The number of the worker that computes longest."""
        tasks = self.run.tasks
        passes = tasks.role <= ServerRole.BACKWARD
        return int(np.argmax(np.bincount(tasks.worker[passes], weights=tasks.duration[passes])))

    def timeline(self, *, grain: Grain = "segment", most: int | None = None) -> Timeline:
        """The last steady step of the slowest worker, with the tasks of all other workers in that time.

        There are rows for all servers and all workers, or with ``most`` only for the first ``most`` workers and the
        slowest. A pass is one task or, with grain ``operator``, all of its works. The simulation has only the sum of
        the works: each is placed at the end of its share of the pass, and its launch as early in the pass as possible.
        """
        workers = range(self.setup.workers if most is None else min(most, self.setup.workers))
        return _Drawing(self, grain, sorted({*workers, self.slowest})).timeline()


def shown_window(setup: ServerSetup, timeline: ServerTimeline, slowest: int) -> tuple[float, float]:
    """Start and end of the last whole step of the ``slowest`` worker, from forward to forward.

    If it completes no step before the fastest worker has finished, the window is the last step of the fastest worker.
    """
    tasks = timeline.tasks
    first = (tasks.role == ServerRole.FORWARD) & (tasks.piece == 0)
    starts = np.zeros((setup.workers, int(tasks.step[-1]) + 1))
    starts[tasks.worker[first], tasks.step[first]] = timeline.start[first]
    ends = ends_of_steps(setup, timeline)
    done = ends[:, -1].min()
    for worker in (slowest, int(np.argmin(ends[:, -1]))):
        whole = np.flatnonzero(starts[worker, 1:] <= done)
        if len(whole):
            return float(starts[worker, whole[-1]]), float(starts[worker, whole[-1] + 1])
    raise AssertionError("the worker that finishes first must have more than one step")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tasks:
    """Tasks of the timeline as columns.

    ``of`` is the simulated task that each belongs to, or −1. A message has a second lane, other tasks −1. Works of
    passes have a ``launch`` (the number of its cost) and its seconds ``host_s``. The cost of segment n is −1 − n.
    """

    start: Floats
    end: Floats
    cost: Ints
    label: Ints
    category: Ints
    microbatch: Ints
    lane: Ints
    second_lane: Ints
    of: Ints
    launch: Ints
    host_s: Floats

    def taken(self, chosen: Ints) -> _Tasks:
        """The ``chosen`` tasks, in this order."""
        return _Tasks(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


_NONE: Final = -1
_NO_WORK: Final = HostUpdate(nbytes=0.0)
"""The work of a wait, which takes no time itself."""


def _columns(start: Floats, end: Floats, **others: Ints | Floats | int) -> _Tasks:
    """Tasks from columns of equal shape; a number fills a whole column, and a missing column is −1."""
    values: dict[str, Any] = {f.name: _NONE for f in fields(_Tasks)} | {"host_s": 0.0} | others
    values |= {"start": start, "end": end}
    return _Tasks(**{name: np.broadcast_to(np.asarray(value), start.shape).ravel() for name, value in values.items()})


class _Drawing:
    """A timeline under construction, with the distinct works, labels and segments so far."""

    def __init__(self, job: ServerJob, grain: Grain, workers: Sequence[int]) -> None:
        self.job, self.grain = job, grain
        self.tasks, self.window = job.run.tasks, shown_window(job.setup, job.run, job.slowest)
        self.shown = np.array(workers, dtype=np.int64)
        self.row_of = np.full(job.setup.workers, _NONE, dtype=np.int64)
        self.row_of[self.shown] = np.arange(len(self.shown))
        self.works: dict[Work, int] = {work: number for number, work in enumerate(job.works)}
        self.labels: dict[str, int] = {}
        self.segments: list[Segment] = []
        self.names = _names(job.programs[0])

    def label(self, text: str) -> int:
        """The number of a label, which is new if the text is."""
        return self.labels.setdefault(text, len(self.labels))

    def work(self, work: Work) -> int:
        """The number of a work; equal works have the same number."""
        return self.works.setdefault(work, len(self.works))

    def timeline(self) -> Timeline:
        """Puts all tasks on their lanes in the order of their ends, cut at the window."""
        parts = [*self._passes(), *self._messages(), *self._updates(), *self._waits()]
        every = _Tasks(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(_Tasks)})
        since, until = self.window
        seen = np.flatnonzero((every.end > since) & (every.start < until))
        every = every.taken(seen)
        launches, launched = self._launches(every)
        both = _Tasks(
            **{f.name: np.concatenate([getattr(p, f.name) for p in (every, launches)]) for f in fields(_Tasks)}
        )
        # The critical path ends with the first task that reaches the end of the window. Waits come after other tasks
        # with the same end, so a wait is never that task.
        order = np.lexsort((both.start, both.category == Category.WAIT, both.end))
        place = np.argsort(order)
        plan = self._plan(both.taken(order), self._edges(every, launches, launched, place))
        start, end = (np.clip(column[order], since, until) - since for column in (both.start, both.end))
        return Timeline(plan=plan, start=start, end=end, whole_s=(both.end - both.start)[order])

    def _seen(self, role: ServerRole) -> Ints:
        """The numbers of the simulated tasks of a role that overlap the window."""
        start, end = self.job.run.start, self.job.run.end
        return np.flatnonzero((self.tasks.role == role) & (end > self.window[0]) & (start < self.window[1]))

    def _passes(self) -> Iterator[_Tasks]:
        """Forward and backward passes of the shown workers, one result per program and kind of device."""
        job, tasks = self.job, self.tasks
        shares = device_shares(job.setup, job.pieces)
        kinds = np.array([job.setup.kind(worker) for worker in range(job.setup.workers)])
        alike: dict[int, list[int]] = {}
        for number, program in enumerate(job.programs[0]):
            alike.setdefault(id(program), []).append(number)
        for role, category in ((ServerRole.FORWARD, Category.FORWARD), (ServerRole.BACKWARD, Category.BACKWARD)):
            seen = self._seen(role)
            seen = seen[self.row_of[tasks.worker[seen]] >= 0]
            for numbers in alike.values():
                for kind in range(len(job.seconds)):
                    program = job.programs[kind][numbers[0]]
                    items = program.forward if role is ServerRole.FORWARD else program.backward
                    own = seen[np.isin(tasks.piece[seen], numbers) & (kinds[tasks.worker[seen]] == kind)]
                    if items and len(own):
                        share = shares[tasks.worker[own], tasks.piece[own], int(role)]
                        yield self._written_out(own, items, job.seconds[kind], share, category)

    def _written_out(
        self, own: Ints, items: tuple[Item, ...], seconds: Floats, share: Floats, category: Category
    ) -> _Tasks:
        """The works of ``items`` for every task of ``own`` and every microbatch; devices compute ``share`` of it."""
        work = np.array([self.works[item.work] for item in items], dtype=np.int64)
        launch = np.array([self.works[item.launches] for item in items], dtype=np.int64)
        label = np.array([self.label(item.label) for item in items], dtype=np.int64)
        device, host = seconds[work], seconds[launch]
        if self.grain == "segment":
            at = 3 * len(self.segments)
            self.segments.append(Segment(launches=launch, works=work, labels=label))
            work, launch, label = (
                np.array([-2 - at]),
                np.array([-1 - at]),
                np.array([self.label(category.name.lower())]),
            )
            device, host = device.sum(keepdims=True), host.sum(keepdims=True)
        total = float(device.sum())
        reach = np.cumsum(device) / total if total > 0.0 else np.arange(1, len(device) + 1) / len(device)
        # [tasks, microbatches, works]
        run, microbatch = self.job.run, np.arange(self.job.num_microbatches)[:, None]
        start, each = run.start[own][:, None, None], (run.end - run.start)[own][:, None, None] / len(microbatch)
        end = start + each * (microbatch + reach)
        return _columns(
            end - each * share[:, None, None] * np.diff(reach, prepend=0.0),
            end,
            cost=work,
            label=label,
            category=int(category),
            microbatch=microbatch,
            lane=(self.row_of[self.tasks.worker[own]] * NUM_STREAMS + int(Stream.COMPUTE))[:, None, None],
            of=own[:, None, None],
            launch=launch,
            host_s=host,
        )

    def _messages(self) -> Iterator[_Tasks]:
        """Pushes and pulls, on the rows of both ends."""
        tasks, setup = self.tasks, self.job.setup
        node_of_worker = np.array([setup.node_of_worker(worker) for worker in range(setup.workers)])
        node_of_server = np.array([setup.node_of_server(server) for server in range(setup.servers)])
        for role, stream in ((ServerRole.PUSH, Stream.PUSH), (ServerRole.PULL, Stream.PULL)):
            seen = self._seen(role)
            worker, server = tasks.worker[seen], tasks.server[seen]
            crosses = (node_of_worker[worker] != node_of_server[server]).tolist()
            works = [
                self.work(Transfer(nbytes=nbytes, crosses_nodes=far))
                for nbytes, far in zip(tasks.nbytes[seen].tolist(), crosses, strict=True)
            ]
            row = self.row_of[worker]
            yield self._exchanged(
                seen,
                f"{role.name.lower()}",
                works,
                category=int(Category.COMMUNICATION),
                lane=(len(self.shown) + server) * NUM_STREAMS + int(stream),
                second_lane=np.where(row >= 0, row * NUM_STREAMS + int(stream), _NONE),
            )

    def _updates(self) -> Iterator[_Tasks]:
        """The updates that servers apply."""
        seen = self._seen(ServerRole.UPDATE)
        works = [self.work(HostUpdate(nbytes=nbytes)) for nbytes in self.tasks.nbytes[seen].tolist()]
        lane = (len(self.shown) + self.tasks.server[seen]) * NUM_STREAMS + int(Stream.UPDATE)
        yield self._exchanged(seen, "update", works, category=int(Category.OPTIMIZER), lane=lane)

    def _exchanged(self, seen: Ints, what: str, works: list[int], **columns: Ints | int) -> _Tasks:
        run = self.job.run
        label = [self.label(f"{what} {self.names[piece]}") for piece in self.tasks.piece[seen].tolist()]
        cost, of_label = (np.array(column, dtype=np.int64) for column in (works, label))
        return _columns(run.start[seen], run.end[seen], cost=cost, label=of_label, of=seen, **columns)

    def _waits(self) -> Iterator[_Tasks]:
        """The waits of each worker, with their causes."""
        found = waits_within(self.job.setup, self.job.run, self.window)
        seen = np.flatnonzero(self.row_of[found.worker] >= 0)
        texts = []
        for number in seen.tolist():
            name = self.names[found.piece[number]]
            match Cause(int(found.cause[number])):
                case Cause.WORKER:
                    texts.append(f"waits for rank {found.whom[number]} to compute {name}")
                case Cause.THEIR_PUSH:
                    texts.append(f"waits for the push of {name} by rank {found.whom[number]}")
                case Cause.SERVER:
                    texts.append(f"waits for server {found.whom[number]} to update {name}")
                case cause:
                    texts.append(f"waits for its {cause.name.lower()} of {name}")
        yield _columns(
            found.since[seen],
            found.until[seen],
            cost=self.work(_NO_WORK),
            label=np.array([self.label(text) for text in texts], dtype=np.int64),
            category=int(Category.WAIT),
            lane=self.row_of[found.worker[seen]] * NUM_STREAMS + int(Stream.WAIT),
        )

    def _launches(self, every: _Tasks) -> tuple[_Tasks, Ints]:
        """The launches of all works on devices, and the numbers of these works.

        Launches begin with their pass and run ahead of the device; each ends before its work starts. The first launch
        waits for the predecessors of the pass (``of``).
        """
        row, stream = np.divmod(every.lane, NUM_STREAMS)
        device = np.flatnonzero(stream == int(Stream.COMPUTE))
        device = device[np.lexsort((every.start[device], self.job.run.start[every.of[device]], row[device]))]
        start, end = np.zeros(len(device)), np.zeros(len(device))
        opens = np.flatnonzero(np.diff(every.of[device], prepend=-1))
        for first, after in pairwise([*opens.tolist(), len(device)]):
            own = device[first:after]
            begins = max(self.window[0], float(self.job.run.start[every.of[own[0]]]))
            ready, spent = np.maximum(every.start[own], self.window[0]), np.cumsum(every.host_s[own])
            latest = np.minimum(begins, np.minimum.accumulate(ready - spent))
            end[first:after] = np.minimum(spent + latest, ready)
            before = np.concatenate([[begins], end[first : after - 1]])
            start[first:after] = np.maximum(before, end[first:after] - every.host_s[own])
        of = np.full(len(device), _NONE, dtype=np.int64)
        of[opens] = every.of[device[opens]]
        launches = _columns(
            np.maximum(start, self.window[0]),
            np.maximum(end, self.window[0]),
            cost=every.launch[device],
            label=self.label("launch"),
            category=int(Category.HOST),
            microbatch=every.microbatch[device],
            lane=row[device] * NUM_STREAMS + int(Stream.HOST),
            of=of,
        )
        return launches, device

    def _edges(self, every: _Tasks, launches: _Tasks, launched: Ints, place: Ints) -> Ints:
        """Pairs of (task, predecessor), by their place in the plan."""
        tasks = self.tasks
        first, last, begins = (np.full(len(tasks.role), _NONE, dtype=np.int64) for _ in range(3))
        written = np.flatnonzero(every.of >= 0)
        written = written[np.argsort(place[written])]
        last[every.of[written]] = place[written]
        first[every.of[written[::-1]]] = place[written[::-1]]
        at = place[len(every.start) :]
        opens = np.flatnonzero(launches.of >= 0)
        begins[launches.of[opens]] = at[opens]
        waiter = np.repeat(np.arange(len(first)), np.diff(tasks.predecessor_start))
        before = tasks.predecessors
        late = tasks.role[before] == ServerRole.LATENCY  # not drawn; its only predecessor replaces it
        before = np.where(late, tasks.predecessors[tasks.predecessor_start[before]], before)
        again = opens[1:][launches.lane[opens[1:]] == launches.lane[opens[1:] - 1]]  # passes with an earlier one
        pairs = [
            np.stack([first[waiter], last[before]], axis=1),
            np.stack([begins[waiter], last[before]], axis=1),
            np.stack([at[again], place[launched[again - 1]]], axis=1),
            np.stack([place[launched], at], axis=1),
            place[_one_after_another(tasks, every)],
        ]
        whole = np.concatenate(pairs)
        return np.asarray(whole[(whole >= 0).all(axis=1)])

    def _plan(self, tasks: _Tasks, edges: Ints) -> Plan:
        """The plan of all ``tasks``, in their order."""
        size, setup = len(tasks.start), self.job.setup
        edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
        pairs = np.stack([tasks.lane, tasks.second_lane], axis=1)
        return Plan(
            mesh=self.job.mesh,
            works=tuple(self.works),
            overlaps=(),
            segments=tuple(self.segments),
            ranks=np.concatenate([self.shown, setup.workers + np.arange(setup.servers)]),
            cost=np.where(tasks.cost < 0, len(self.works) - 1 - tasks.cost, tasks.cost).astype(np.int32),
            lane_start=np.concatenate([[0], np.cumsum((pairs >= 0).sum(axis=1))]),
            lanes=pairs[pairs >= 0],
            predecessor_start=np.concatenate([[0], np.cumsum(np.bincount(edges[:, 0], minlength=size))]),
            predecessors=edges[:, 1],
            category=tasks.category.astype(np.int8),
            group=np.full(size, int(Group.RANK), dtype=np.int8),
            label=tasks.label.astype(np.int32),
            microbatch=tasks.microbatch.astype(np.int32),
            labels=tuple(self.labels),
        )


def _one_after_another(tasks: ServerTasks, every: _Tasks) -> Ints:
    """Pairs of (message, previous message) between a worker and a server in one direction: they go one at a time."""
    message = np.flatnonzero((every.category == Category.COMMUNICATION) & (every.of >= 0))
    of = every.of[message]
    keys = np.stack([tasks.role[of].astype(np.int64), tasks.worker[of], tasks.server[of]])
    order = np.lexsort((every.start[message], *keys))
    same = (keys[:, order][:, 1:] == keys[:, order][:, :-1]).all(axis=0)
    return np.stack([message[order[1:][same]], message[order[:-1][same]]], axis=1)


def _names(programs: Sequence[BlockProgram]) -> list[str]:
    """A name for every piece: its module's, with a running number if one program stands for several layers."""
    names, seen = [], Counter[int]()
    for number, program in enumerate(programs):
        times, scope = seen[id(program)], program.scope
        seen[id(program)] += 1
        found = list(re.finditer(r"\d+", scope))
        if not scope:
            name = program.forward[0].label if program.forward else f"piece {number}"
        elif times and found:
            at = found[-1]
            name = f"{scope[: at.start()]}{int(at[0]) + times}{scope[at.end() :]}"
        else:
            name = f"{scope} {times + 1}" if times else scope
        names.append(name)
    return names
