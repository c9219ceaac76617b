"""Templates: the tasks of one kind of slot, laid out once and run for every slot of that kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TypeAlias

from traincast.strategy.mesh import Group
from traincast.strategy.plan import Category, Stream
from traincast.strategy.program import Item
from traincast.strategy.runtime import Runtime
from traincast.work import Launch, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRun:
    """Works in line on the compute stream; the first waits for gather number ``wait`` of its slot, if that is given.

    ``parts`` are the programs of blocks, one after the other; a repeated block is the same object each time.
    """

    parts: list[tuple[Item, ...]]
    wait: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """A collective on the data stream while compute goes on; if it is a ``gather``, a later run waits for it."""

    work: Work
    label: str
    group: Group = Group.DATA
    gather: bool = False


Piece: TypeAlias = WorkRun | Issue


@dataclass(slots=True)
class Template:
    """Columns of the tasks of a slot; an edge (target, source) says that task ``target`` waits for task ``source``.

    ``first`` is the task that waits for the result of another slot, ``last`` the task whose end is the slot's own
    result. The optimizer waits for the tasks in ``issued``.
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


class TemplateMaker(ABC):
    """Lays out the tasks of slots and messages: which lanes each task holds, and which tasks it waits for.

    A plan and a search both make their templates here. They differ in how they number costs and labels, which is what
    a subclass says.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.templates: list[Template] = []

    @abstractmethod
    def work(self, work: Work) -> int:
        """The number of the cost of a work that stands alone."""

    @abstractmethod
    def segment(self, run: WorkRun) -> tuple[int, int, int]:
        """The numbers of the three costs of a run: the host's lead, the device's work, the host's tail."""

    @abstractmethod
    def label(self, text: str) -> int:
        """The number of a label."""

    def template(self, pieces: list[Piece], kind: Category, name: str) -> int:
        """Lay out the pieces of a slot, whose runs are labelled ``name``; returns the number of the template."""
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

    def send(self, work: Work, *, backward: bool) -> int:
        """Lay out a transfer to the neighbouring stage; returns the number of the template."""
        template = Template()
        handshake = self._runtime.send_launches
        host = self._host(template, Launch(collectives=self._runtime.collective_launches, sends=handshake))
        side = Stream.SEND_BACKWARD if backward else Stream.SEND_FORWARD
        task = template.add(
            cost=self.work(work),
            streams=(side,) if self._runtime.overlap_sends else (Stream.COMPUTE, side),
            category=Category.COMMUNICATION,
            group=Group.RANK,
            label=self.label("pp send gradients" if backward else "pp send activations"),
        )
        template.edges.append((task, host))
        template.first, template.last = host if handshake else task, task
        return self._keep(template)

    def _keep(self, template: Template) -> int:
        self.templates.append(template)
        return len(self.templates) - 1

    def _issue(self, template: Template, issue: Issue) -> int:
        host = self._host(template, Launch(collectives=self._runtime.collective_launches))
        task = template.add(
            cost=self.work(issue.work),
            streams=(Stream.DATA,),
            category=Category.COMMUNICATION,
            group=issue.group,
            label=self.label(issue.label),
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
            label=self.label("launch"),
        )

    def _run(self, template: Template, run: WorkRun, kind: int, name: str) -> int:
        """Append a run as one segment; returns its task on the device."""
        before, cost, after = self.segment(run)
        launch = self.label("launch")
        lead = template.add(cost=before, streams=(Stream.HOST,), category=Category.HOST, group=Group.RANK, label=launch)
        data = any(item.group.between_replicas for part in run.parts for item in part)
        task = template.add(
            cost=cost,
            streams=(Stream.COMPUTE, Stream.DATA) if data else (Stream.COMPUTE,),
            category=kind,
            group=Group.RANK,
            label=self.label(name),
        )
        template.add(cost=after, streams=(Stream.HOST,), category=Category.HOST, group=Group.RANK, label=launch)
        template.edges.append((task, lead))
        template.last = task
        if template.first < 0:
            template.first = task
        return task
