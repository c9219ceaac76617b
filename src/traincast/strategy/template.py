"""Templates: the tasks of one kind of slot, laid out once and copied for every slot of that kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.strategy.mesh import Mesh
from traincast.strategy.plan import NUM_STREAMS, Category, Group, Ints, Plan, Segment, Stream
from traincast.strategy.program import Item
from traincast.strategy.runtime import Runtime
from traincast.work import Collective, Launch, Work

Grain: TypeAlias = Literal["operator", "segment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
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
    gather: bool = False


Piece: TypeAlias = Run | Issue


@dataclass(frozen=True, slots=True)
class _Columns:
    """A template as arrays, ready to be copied."""

    cost: npt.NDArray[np.int32]
    lane_count: Ints
    lane_stream: Ints
    category: npt.NDArray[np.int8]
    group: npt.NDArray[np.int8]
    label: npt.NDArray[np.int32]
    target: Ints
    source: Ints


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
    _columns: _Columns | None = None

    def add(self, *, cost: int, streams: tuple[int, ...], category: int, group: int, label: int) -> int:
        """Append a task and return its number."""
        self.cost.append(cost)
        self.streams.append(streams)
        self.category.append(category)
        self.group.append(group)
        self.label.append(label)
        return len(self.cost) - 1

    def columns(self) -> _Columns:
        """The template as arrays; made when it is first placed, after which it does not change."""
        if self._columns is None:
            edges = np.array(self.edges, dtype=np.int64).reshape(-1, 2)
            self._columns = _Columns(
                cost=np.array(self.cost, dtype=np.int32),
                lane_count=np.array([len(s) for s in self.streams], dtype=np.int64),
                lane_stream=np.array([s for streams in self.streams for s in streams], dtype=np.int64),
                category=np.array(self.category, dtype=np.int8),
                group=np.array(self.group, dtype=np.int8),
                label=np.array(self.label, dtype=np.int32),
                target=edges[:, 0],
                source=edges[:, 1],
            )
        return self._columns


class PlanBuilder:
    """Collects distinct works, templates and their placements, and joins them into one plan."""

    def __init__(self, mesh: Mesh, grain: Grain, runtime: Runtime) -> None:
        self._mesh = mesh
        self._grain = grain
        self._runtime = runtime
        self._works: dict[Work, int] = {}
        self._segments: list[Segment] = []
        self._labels: dict[str, int] = {}
        self._parts: dict[int, tuple[Ints, Ints, Ints]] = {}
        self._kept: list[tuple[Item, ...]] = []  # so that no id is used twice
        self._placed: list[tuple[_Columns, int, int]] = []  # columns, row, microbatch
        self._external: list[tuple[int, int]] = []
        self._size = 0
        self._send_templates: dict[tuple[int, bool], Template] = {}

    def work(self, work: Work) -> int:
        """The number of a distinct work."""
        return self._works.setdefault(work, len(self._works))

    def _label(self, text: str) -> int:
        return self._labels.setdefault(text, len(self._labels))

    def template(self, pieces: list[Piece], backward: bool, *, category: Category | None = None) -> Template:
        """Lay out the pieces of a slot."""
        kind = category if category is not None else Category.BACKWARD if backward else Category.FORWARD
        template = Template()
        gathers: list[int] = []
        for piece in pieces:
            if isinstance(piece, Issue):
                (gathers if piece.gather else template.issued).append(self._issue(template, piece))
            elif any(piece.parts):
                start = self._run(template, piece, int(kind), backward)
                if piece.wait is not None:
                    template.edges.append((start, gathers[piece.wait]))
        assert template.first >= 0, "a slot runs something on the device"
        return template

    def _issue(self, template: Template, issue: Issue) -> int:
        host = self._host(template, self._runtime.collective_launches)
        task = template.add(
            cost=self.work(issue.work),
            streams=(Stream.DATA,),
            category=Category.COMMUNICATION,
            group=Group.DATA,
            label=self._label(issue.label),
        )
        template.edges.append((task, host))
        if template.last >= 0:
            template.edges.append((task, template.last))
        return task

    def _host(self, template: Template, launches: float) -> int:
        return template.add(
            cost=self.work(Launch(kernels=launches)),
            streams=(Stream.HOST,),
            category=Category.HOST,
            group=Group.RANK,
            label=self._label("launch"),
        )

    def _run(self, template: Template, run: Run, kind: int, backward: bool) -> int:
        """Append a run's tasks; returns the first one on the device."""
        if self._grain == "segment":
            return self._run_as_segment(template, run, kind, backward)
        start = -1
        for item in (item for part in run.parts for item in part):
            host = self._host(template, item.launches)
            communicates = isinstance(item.work, Collective)
            side = Stream.DATA if item.group is Group.DATA else Stream.COMMUNICATION
            task = template.add(
                cost=self.work(item.work),
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
            numbers = [
                (self.work(Launch(kernels=item.launches)), self.work(item.work), self._label(item.label))
                for item in part
            ]
            launches, works, labels = np.array(numbers, dtype=np.int64).T
            self._parts[id(part)] = (launches, works, labels)
            self._kept.append(part)
        return self._parts[id(part)]

    def _run_as_segment(self, template: Template, run: Run, kind: int, backward: bool) -> int:
        number = len(self._segments)
        columns = [self._part(part) for part in run.parts if part]
        self._segments.append(
            Segment(
                launches=np.concatenate([c[0] for c in columns]),
                works=np.concatenate([c[1] for c in columns]),
                labels=np.concatenate([c[2] for c in columns]),
            )
        )
        name = "optimizer" if kind == Category.OPTIMIZER else "backward" if backward else "forward"
        # Costs of segments come after those of the works, whose number is not known yet: store them negative.
        base = -1 - 3 * number
        launch = self._label("launch")
        lead = template.add(cost=base, streams=(Stream.HOST,), category=Category.HOST, group=Group.RANK, label=launch)
        data = any(item.group is Group.DATA for item in run.parts[0])
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

    def place(
        self, template: Template, *, row: int, microbatch: int, wait: int, waits: list[int] | None = None
    ) -> tuple[int, list[int]]:
        """Copy a template to a row; returns its last device task and the issued ones, in the plan's numbers."""
        columns = template.columns()
        offset = self._size
        self._placed.append((columns, row, microbatch))
        self._size += len(columns.cost)
        if wait >= 0:
            self._external.append((offset + template.first, wait))
        self._external.extend((offset + template.first, w) for w in waits or [])
        return offset + template.last, [offset + t for t in template.issued]

    def send(self, work: int, *, row: int, microbatch: int, backward: bool, after: int) -> int:
        """A transfer to the neighbouring stage after task ``after``; returns its task."""
        key = (work, backward)
        if key not in self._send_templates:
            template = Template()
            host = self._host(template, self._runtime.collective_launches)
            side = Stream.SEND_BACKWARD if backward else Stream.SEND_FORWARD
            task = template.add(
                cost=work,
                streams=(side,) if self._runtime.overlap_sends else (Stream.COMPUTE, side),
                category=Category.COMMUNICATION,
                group=Group.RANK,
                label=self._label("pp send gradients" if backward else "pp send activations"),
            )
            template.edges.append((task, host))
            template.first = template.last = task
            self._send_templates[key] = template
        end, _ = self.place(self._send_templates[key], row=row, microbatch=microbatch, wait=after)
        return end

    def finish(self) -> Plan:
        """Join everything that was placed."""
        placed = self._placed
        offsets = np.cumsum([0, *(len(c.cost) for c, _, _ in placed)])[:-1]
        rows = np.array([row for _, row, _ in placed], dtype=np.int64)
        sizes = np.array([len(c.cost) for c, _, _ in placed])
        cost = np.concatenate([c.cost for c, _, _ in placed])
        negative = cost < 0
        cost[negative] = len(self._works) - 1 - cost[negative]
        lanes = np.concatenate([c.lane_stream for c, _, _ in placed])
        lanes += np.repeat(rows, [len(c.lane_stream) for c, _, _ in placed]) * NUM_STREAMS
        lane_start = _starts(np.concatenate([c.lane_count for c, _, _ in placed]))
        shift = np.repeat(offsets, [len(c.target) for c, _, _ in placed])
        external = np.array(self._external, dtype=np.int64).reshape(-1, 2)
        target = np.concatenate([*(c.target for c, _, _ in placed), external[:, 0]])
        source = np.concatenate([*(c.source for c, _, _ in placed), external[:, 1]])
        target[: len(shift)] += shift
        source[: len(shift)] += shift
        order = np.argsort(target, kind="stable")
        counts = np.bincount(target, minlength=len(cost))
        mesh = self._mesh
        return Plan(
            mesh=mesh,
            works=tuple(self._works),
            segments=tuple(self._segments),
            ranks=np.array([mesh.rank(pp=stage) for stage in range(mesh.pp)], dtype=np.int64),
            cost=cost,
            lane_start=lane_start,
            lanes=lanes,
            predecessor_start=_starts(counts),
            predecessors=source[order],
            category=np.concatenate([c.category for c, _, _ in placed]),
            group=np.concatenate([c.group for c, _, _ in placed]),
            label=np.concatenate([c.label for c, _, _ in placed]),
            microbatch=np.repeat(np.array([m for _, _, m in placed], dtype=np.int32), sizes),
            labels=tuple(self._labels),
        )


def _starts(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
