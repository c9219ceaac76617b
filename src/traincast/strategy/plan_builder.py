"""The plan of a step, put together from templates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.strategy.costs import starts_of
from traincast.strategy.mesh import Mesh
from traincast.strategy.plan import NUM_STREAMS, Category, Ints, Overlap, Plan, Segment, Stream
from traincast.strategy.program.item import Item
from traincast.strategy.runtime import Runtime
from traincast.strategy.template import Template, TemplateMaker, WorkRun
from traincast.work import Collective, HostCopy, Launch, Work

Grain: TypeAlias = Literal["operator", "segment"]

_OVERLAPS: Final = 1 << 28
"""Numbers of overlaps begin here until the number of works is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTemplates:
    """Where templates run, in program order: each placement's template, row and microbatch.

    The first task of a placement waits for the last task of placement ``wait`` (−1: for none). Placements from number
    ``collects`` on also wait for everything issued on their row. Each row (a, b) of ``joins`` says that placement a
    waits for the last task of placement b, and for the last task that b has issued.
    """

    template: Ints
    row: Ints
    microbatch: Ints
    wait: Ints
    collects: int
    joins: Ints = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))


class PlanBuilder(TemplateMaker):
    """Collects distinct works, templates and their placements, and joins them into one plan."""

    def __init__(self, mesh: Mesh, grain: Grain, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._mesh = mesh
        self._grain = grain
        self._works: dict[Work, int] = {}
        self._overlaps: dict[Overlap, int] = {}
        self._segments: list[Segment] = []
        self._same: dict[tuple[int, ...], int] = {}
        self._labels: dict[str, int] = {}
        self._parts: dict[int, tuple[Ints, Ints, Ints]] = {}
        self._kept: list[tuple[Item, ...]] = []  # so that no id is used twice

    def work(self, work: Work) -> int:
        """The number of a distinct work."""
        return self._works.setdefault(work, len(self._works))

    def launched(self, launches: Launch, work: Work) -> tuple[int, int]:
        """The numbers of launches and of a work that stands alone."""
        return self.work(launches), self.work(work)

    def label(self, text: str) -> int:
        """The number of a distinct label."""
        return self._labels.setdefault(text, len(self._labels))

    def segment(self, run: WorkRun) -> tuple[int, int, int]:
        """The costs of a run; runs of the same parts are one segment.

        Costs of segments come after those of works and overlaps, whose number is not known yet: they are negative here.
        """
        parts = [part for part in run.parts if part]
        columns = [self._part(part) for part in parts]
        number = self._same.setdefault(tuple(id(part) for part in parts), len(self._segments))
        if number == len(self._segments):
            self._segments.append(
                Segment(
                    launches=np.concatenate([c[0] for c in columns]),
                    works=np.concatenate([c[1] for c in columns]),
                    labels=np.concatenate([c[2] for c in columns]),
                )
            )
        base = -1 - 3 * number
        return base, base - 1, base - 2

    def _cost(self, item: Item) -> int:
        """The number of an item's cost: that of its work, or of an overlap where it runs behind other works."""
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

    def _part(self, part: tuple[Item, ...]) -> tuple[Ints, Ints, Ints]:
        """Numbers of the launches, works and labels of a block's program; made once for all its repetitions."""
        if id(part) not in self._parts:
            numbers = [(self.work(item.launches), self._cost(item), self.label(item.label)) for item in part]
            launches, works, labels = np.array(numbers, dtype=np.int64).T
            self._parts[id(part)] = (launches, works, labels)
            self._kept.append(part)
        return self._parts[id(part)]

    def _run(self, template: Template, run: WorkRun, kind: int, name: str) -> int:
        """Append a run as one segment, or work by work at the grain of operators; returns its first device task."""
        if self._grain == "segment":
            return super()._run(template, run, kind, name)
        start = -1
        for item in (item for part in run.parts for item in part):
            host = self._host(template, self.work(item.launches))
            communicates = isinstance(item.work, Collective | HostCopy) and (not item.behind or item.behind.waited)
            side = Stream.DATA if item.group.between_replicas else Stream.COMMUNICATION
            task = template.add(
                cost=self._cost(item),
                streams=(Stream.COMPUTE, side) if communicates else (Stream.COMPUTE,),
                category=Category.COMMUNICATION if communicates else kind,
                group=item.group,
                label=self.label(item.label),
            )
            template.edges.append((task, host))
            start = task if start < 0 else start
            template.last = task
        if template.first < 0:
            template.first = start
        return start

    def _numbered(self, costs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Costs with the numbers of overlaps counted from the last work on."""
        return np.where(costs >= _OVERLAPS, costs - _OVERLAPS + len(self._works), costs).astype(costs.dtype)

    def finish(self, placed: PlacedTemplates) -> Plan:
        """Join the templates as they are placed: every column is that of the templates, copied and shifted."""
        templates = self.templates
        tasks = _Copies(placed.template, [len(t.cost) for t in templates])
        lanes = _Copies(placed.template, [sum(map(len, t.streams)) for t in templates])
        edges = _Copies(placed.template, [len(t.edges) for t in templates])
        issued = _Copies(placed.template, [len(t.issued) for t in templates])
        offset = tasks.starts[:-1]
        first, last = (np.array([getattr(t, end) for t in templates])[placed.template] for end in ("first", "last"))
        within = edges.copied([edge for t in templates for edge in t.edges], 2) + edges.each(offset)[:, None]
        waits = np.flatnonzero(placed.wait >= 0)
        joins = self._joins(
            placed, np.concatenate([np.stack([waits, placed.wait[waits]], axis=1), placed.joins]), offset
        )
        done = issued.copied([task for t in templates for task in t.issued]) + issued.each(offset)
        ends = np.arange(placed.collects, len(placed.row))
        joined = np.zeros(len(self._mesh_rows), dtype=np.int64)
        joined[placed.row[ends]] = offset[ends] + first[ends]
        collecting = np.zeros(len(joined), dtype=bool)
        collecting[placed.row[ends]] = True
        row = issued.each(placed.row)
        collected = np.stack([joined[row], done], axis=1)[collecting[row]]
        waited = _in_turn(placed.row) if self._runtime.launches.sync_passes else np.zeros((0, 2), dtype=np.int64)
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
            lane_start=starts_of(tasks.copied([len(streams) for t in templates for streams in t.streams])),
            lanes=lanes.copied(streams) + lanes.each(placed.row) * NUM_STREAMS,
            predecessor_start=starts_of(np.bincount(target, minlength=len(cost))),
            predecessors=source[order],
            category=column("category", np.int8),
            group=column("group", np.int8),
            label=column("label", np.int32),
            microbatch=tasks.each(placed.microbatch).astype(np.int32),
            labels=tuple(self._labels),
        )

    def _joins(self, placed: PlacedTemplates, pairs: Ints, offset: Ints) -> Ints:
        """Edges between tasks from ``pairs`` of placements; those of ``placed.joins`` also wait for what was issued."""
        templates, (target, source) = self.templates, pairs.T
        first, last = (np.array([getattr(t, end) for t in templates])[placed.template] for end in ("first", "last"))
        edges = np.stack([(offset + first)[target], (offset + last)[source]], axis=1)
        if not len(placed.joins):
            return edges
        issued = np.array([t.issued[-1] if t.issued else -1 for t in templates])[placed.template]
        target, source = placed.joins[issued[placed.joins[:, 1]] >= 0].T
        return np.concatenate([edges, np.stack([(offset + first)[target], (offset + issued)[source]], axis=1)])

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
        self.starts = starts_of(self._counts)
        begin = starts_of(size)[:-1][template]
        self._index = np.arange(self.starts[-1]) + np.repeat(begin - self.starts[:-1], self._counts)

    def copied(self, values: list[Any], width: int = 1) -> Ints:
        """A column of the templates, copied."""
        column = np.array(values, dtype=np.int64)
        copied: Ints = (column.reshape(-1, width) if width > 1 else column)[self._index]
        return copied

    def each(self, values: Ints) -> Ints:
        """One value of each placement, repeated for its entries."""
        return np.repeat(values, self._counts)
