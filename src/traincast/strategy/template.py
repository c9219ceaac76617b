"""Templates: the tasks of one kind of slot, laid out once and copied for every slot of that kind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.strategy.mesh import Group, Mesh
from traincast.strategy.plan import NUM_STREAMS, Category, Ints, Overlap, Plan, Segment, Stream
from traincast.strategy.program import Item
from traincast.strategy.runtime import Runtime
from traincast.work import Collective, HostCopy, Launch, Work

Grain: TypeAlias = Literal["operator", "segment"]

_OVERLAPS: Final = 1 << 28
"""Numbers of overlaps begin here until that of the works is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRun:
    """Works in line on the compute stream; ``wait`` is the gather (by number) its first work needs.

    ``parts`` are the programs of blocks, one after the other; a repeated block is the same object each time.
    """

    parts: list[tuple[Item, ...]]
    wait: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """A collective handed to the data stream while compute goes on; a gather is waited for by a run."""

    work: Work
    label: str
    group: Group = Group.DATA
    gather: bool = False


Piece: TypeAlias = WorkRun | Issue


@dataclass(slots=True)
class Template:
    """Columns of the tasks of a slot; edges are (target, source) within the slot.

    ``first`` is the first task on the device (it waits for what arrives), ``last`` the last one,
    ``issued`` the tasks whose end the optimizer must wait for.
    """

    cost: list[int] = field(default_factory=list)
    streams: list[tuple[int, ...]] = field(default_factory=list)
    category: list[int] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    first: int = -1
    last: int = -1
    issued: list[int] = field(default_factory=list)

    def add(self, *, cost: int, streams: tuple[int, ...], category: int, group: int, label: int) -> int:
        """Append a task and return its number."""
        self.cost.append(cost)
        self.streams.append(streams)
        self.category.append(category)
        self.group.append(group)
        self.label.append(label)
        return len(self.cost) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTemplates:
    """Templates copied to rows, in program order: which, where, for which microbatch, and after which placement.

    The first task of a placement waits for the last of ``wait`` (−1: for none); what comes from ``collects`` on waits
    for everything that was issued on its row as well.
    """

    template: Ints
    row: Ints
    microbatch: Ints
    wait: Ints
    collects: int


class PlanBuilder:
    """Collects distinct works, templates and their placements, and joins them into one plan."""

    def __init__(self, mesh: Mesh, grain: Grain, runtime: Runtime) -> None:
        self._mesh = mesh
        self._grain = grain
        self._runtime = runtime
        self._works: dict[Work, int] = {}
        self._overlaps: dict[Overlap, int] = {}
        self._segments: list[Segment] = []
        self._same: dict[tuple[int, ...], int] = {}
        self._labels: dict[str, int] = {}
        self._parts: dict[int, tuple[Ints, Ints, Ints]] = {}
        self._kept: list[tuple[Item, ...]] = []  # so that no id is used twice
        self._templates: list[Template] = []

    def work(self, work: Work) -> int:
        """The number of a distinct work."""
        return self._works.setdefault(work, len(self._works))

    def _cost(self, item: Item) -> int:
        """The number of an item's cost: its work's, or that of what is not hidden of it."""
        behind = item.behind
        if behind is None:
            return self.work(item.work)
        overlap = Overlap(
            work=self.work(item.work),
            behind=tuple(self.work(w) for w in behind.works),
            share=behind.share,
            interference=behind.interference,
            waited=behind.waited,
        )
        return _OVERLAPS + self._overlaps.setdefault(overlap, len(self._overlaps))

    def _label(self, text: str) -> int:
        return self._labels.setdefault(text, len(self._labels))

    def template(self, pieces: list[Piece], kind: Category, name: str) -> int:
        """Lay out the pieces of a slot that a segment calls ``name``; returns the template's number."""
        template = Template()
        gathers: list[int] = []
        for piece in pieces:
            if isinstance(piece, Issue):
                (gathers if piece.gather else template.issued).append(self._issue(template, piece))
            elif any(piece.parts):
                start = self._run(template, piece, int(kind), name)
                if piece.wait is not None:
                    template.edges.append((start, gathers[piece.wait]))
        if template.first < 0:  # a stage may have nothing to run in one half of a backward
            nothing = WorkRun(parts=[(Item(work=Launch(), launches=Launch(), label=name),)])
            self._run(template, nothing, int(kind), name)
        return self._keep(template)

    def _keep(self, template: Template) -> int:
        self._templates.append(template)
        return len(self._templates) - 1

    def _issue(self, template: Template, issue: Issue) -> int:
        host = self._host(template, Launch(collectives=self._runtime.collective_launches))
        task = template.add(
            cost=self.work(issue.work),
            streams=(Stream.DATA,),
            category=Category.COMMUNICATION,
            group=issue.group,
            label=self._label(issue.label),
        )
        template.edges.append((task, host))
        if template.last >= 0:
            template.edges.append((task, template.last))
        return task

    def _host(self, template: Template, launches: Launch) -> int:
        return template.add(
            cost=self.work(launches),
            streams=(Stream.HOST,),
            category=Category.HOST,
            group=Group.RANK,
            label=self._label("launch"),
        )

    def _run(self, template: Template, run: WorkRun, kind: int, name: str) -> int:
        """Append a run's tasks; returns the first one on the device."""
        if self._grain == "segment":
            return self._run_as_segment(template, run, kind, name)
        start = -1
        for item in (item for part in run.parts for item in part):
            host = self._host(template, item.launches)
            communicates = isinstance(item.work, Collective | HostCopy) and (not item.behind or item.behind.waited)
            side = Stream.DATA if item.group.between_replicas else Stream.COMMUNICATION
            task = template.add(
                cost=self._cost(item),
                streams=(Stream.COMPUTE, side) if communicates else (Stream.COMPUTE,),
                category=Category.COMMUNICATION if communicates else kind,
                group=item.group,
                label=self._label(item.label),
            )
            template.edges.append((task, host))
            start = task if start < 0 else start
            template.last = task
        if template.first < 0:
            template.first = start
        return start

    def _part(self, part: tuple[Item, ...]) -> tuple[Ints, Ints, Ints]:
        """Numbers of the launches, works and labels of a block's program; made once for all its repetitions."""
        if id(part) not in self._parts:
            numbers = [(self.work(item.launches), self._cost(item), self._label(item.label)) for item in part]
            launches, works, labels = np.array(numbers, dtype=np.int64).T
            self._parts[id(part)] = (launches, works, labels)
            self._kept.append(part)
        return self._parts[id(part)]

    def _run_as_segment(self, template: Template, run: WorkRun, kind: int, name: str) -> int:
        columns = [self._part(part) for part in run.parts if part]
        number = self._same.setdefault(tuple(id(part) for part in run.parts if part), len(self._segments))
        if number == len(self._segments):
            self._segments.append(
                Segment(
                    launches=np.concatenate([c[0] for c in columns]),
                    works=np.concatenate([c[1] for c in columns]),
                    labels=np.concatenate([c[2] for c in columns]),
                )
            )
        # Costs of segments come after those of the works, whose number is not known yet: store them negative.
        base = -1 - 3 * number
        launch = self._label("launch")
        lead = template.add(cost=base, streams=(Stream.HOST,), category=Category.HOST, group=Group.RANK, label=launch)
        data = any(item.group.between_replicas for part in run.parts for item in part)
        task = template.add(
            cost=base - 1,
            streams=(Stream.COMPUTE, Stream.DATA) if data else (Stream.COMPUTE,),
            category=kind,
            group=Group.RANK,
            label=self._label(name),
        )
        template.add(cost=base - 2, streams=(Stream.HOST,), category=Category.HOST, group=Group.RANK, label=launch)
        template.edges.append((task, lead))
        template.last = task
        if template.first < 0:
            template.first = task
        return task

    def send(self, work: Work, *, backward: bool) -> int:
        """A transfer to the neighbouring stage, as a template; returns its number."""
        template = Template()
        handshake = self._runtime.send_launches
        host = self._host(template, Launch(collectives=self._runtime.collective_launches, sends=handshake))
        side = Stream.SEND_BACKWARD if backward else Stream.SEND_FORWARD
        task = template.add(
            cost=self.work(work),
            streams=(side,) if self._runtime.overlap_sends else (Stream.COMPUTE, side),
            category=Category.COMMUNICATION,
            group=Group.RANK,
            label=self._label("pp send gradients" if backward else "pp send activations"),
        )
        template.edges.append((task, host))
        template.first, template.last = host if handshake else task, task
        return self._keep(template)

    def _numbered(self, costs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Costs with overlaps counted from the last work on."""
        return np.where(costs >= _OVERLAPS, costs - _OVERLAPS + len(self._works), costs).astype(costs.dtype)

    def finish(self, placed: PlacedTemplates) -> Plan:
        """Join the templates as they are placed: every column is that of the templates, copied and shifted."""
        templates = self._templates
        tasks = _Copies(placed.template, [len(t.cost) for t in templates])
        lanes = _Copies(placed.template, [sum(map(len, t.streams)) for t in templates])
        edges = _Copies(placed.template, [len(t.edges) for t in templates])
        issued = _Copies(placed.template, [len(t.issued) for t in templates])
        offset = tasks.starts[:-1]
        first, last = (np.array([getattr(t, end) for t in templates])[placed.template] for end in ("first", "last"))
        within = edges.copied([edge for t in templates for edge in t.edges], 2) + edges.each(offset)[:, None]
        waits = np.flatnonzero(placed.wait >= 0)
        before = placed.wait[waits]
        joins = np.stack([offset[waits] + first[waits], offset[before] + last[before]], axis=1)
        done = issued.copied([task for t in templates for task in t.issued]) + issued.each(offset)
        ends = np.arange(placed.collects, len(placed.row))
        joined = np.zeros(len(self._mesh_rows), dtype=np.int64)
        joined[placed.row[ends]] = offset[ends] + first[ends]
        collecting = np.zeros(len(joined), dtype=bool)
        collecting[placed.row[ends]] = True
        row = issued.each(placed.row)
        collected = np.stack([joined[row], done], axis=1)[collecting[row]]
        waited = _in_turn(placed.row) if self._runtime.sync_passes else np.zeros((0, 2), dtype=np.int64)
        turns = np.stack([offset[waited[:, 1]], (offset + last)[waited[:, 0]]], axis=1)
        target, source = np.concatenate([within, joins, turns, collected]).T
        order = np.argsort(target, kind="stable")
        cost = tasks.copied([cost for t in templates for cost in t.cost])
        negative = cost < 0
        cost[negative] = len(self._works) + len(self._overlaps) - 1 - cost[negative]
        streams = [stream for t in templates for streams in t.streams for stream in streams]

        def column(name: str, dtype: type) -> npt.NDArray[Any]:
            return tasks.copied([value for t in templates for value in getattr(t, name)]).astype(dtype)

        return Plan(
            mesh=self._mesh,
            works=tuple(self._works),
            overlaps=tuple(self._overlaps),
            segments=tuple(replace(s, works=self._numbered(s.works)) for s in self._segments),
            ranks=self._mesh_rows,
            cost=self._numbered(cost).astype(np.int32),
            lane_start=_starts(tasks.copied([len(streams) for t in templates for streams in t.streams])),
            lanes=lanes.copied(streams) + lanes.each(placed.row) * NUM_STREAMS,
            predecessor_start=_starts(np.bincount(target, minlength=len(cost))),
            predecessors=source[order],
            category=column("category", np.int8),
            group=column("group", np.int8),
            label=column("label", np.int32),
            microbatch=tasks.each(placed.microbatch).astype(np.int32),
            labels=tuple(self._labels),
        )

    @property
    def _mesh_rows(self) -> Ints:
        return np.array([self._mesh.rank(pp=stage) for stage in range(self._mesh.pp)], dtype=np.int64)


def _in_turn(row: Ints) -> Ints:
    """Pairs of placements that follow one another on a row."""
    order = np.argsort(row, kind="stable")
    pairs = np.stack([order[:-1], order[1:]], axis=1)
    together: Ints = pairs[row[pairs[:, 0]] == row[pairs[:, 1]]]
    return together


class _Copies:
    """Where the entries of templates go when they are copied: entry ``index[i]`` of all templates to place i."""

    def __init__(self, template: Ints, sizes: list[int]) -> None:
        size = np.array(sizes, dtype=np.int64)
        self._counts = size[template]
        self.starts = _starts(self._counts)
        begin = _starts(size)[:-1][template]
        self._index = np.arange(self.starts[-1]) + np.repeat(begin - self.starts[:-1], self._counts)

    def copied(self, values: list[Any], width: int = 1) -> Ints:
        """A column of the templates, copied."""
        column = np.array(values, dtype=np.int64)
        copied: Ints = (column.reshape(-1, width) if width > 1 else column)[self._index]
        return copied

    def each(self, values: Ints) -> Ints:
        """One value of each placement, repeated for its entries."""
        return np.repeat(values, self._counts)


def _starts(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
