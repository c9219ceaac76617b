"""Templates: the tasks of one kind of slot, laid out once and run for every slot of that kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from traincast.strategy.mesh import Group
from traincast.strategy.plan import Category, Stream
from traincast.strategy.program.item import Item
from traincast.strategy.runtime import Runtime
from traincast.work import Launch, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRun:
    """Works in line on the compute stream; the first waits for gather number ``wait`` of its slot, if that is given.

    ``parts`` are the programs of blocks, one after the other; a repeated block is the same object each time.
    """

    parts: list[tuple[Item, ...]]
    wait: int | None = None

    @property
    def between_replicas(self) -> bool:
        """Whether one of the works is traffic between replicas; the run then holds the data stream as well."""
        return any(item.group.between_replicas for part in self.parts for item in part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """A collective on the data stream while compute goes on; if it is a ``gather``, a later run waits for it."""

    work: Work
    label: str
    group: Group = Group.DATA
    gather: bool = False


SlotPart: TypeAlias = WorkRun | Issue
"""A slot is a list of these, in the order in which the host launches them."""


def running(slot: Sequence[SlotPart], name: str) -> list[SlotPart]:
    """The parts of a slot that run anything; a slot without works gets an idle run, labelled ``name``."""
    found = [each for each in slot if isinstance(each, Issue) or any(each.parts)]
    if all(isinstance(each, Issue) for each in found):  # a stage may have nothing to run in one half of a backward
        found.append(WorkRun(parts=[(Item(work=Launch(), launches=Launch(), label=name),)]))
    return found


def shape_of(part: SlotPart) -> bool | tuple[int | None, bool]:
    """What the tasks of a slot's part depend on: parts of the same shape have the same lanes and edges."""
    return part.gather if isinstance(part, Issue) else (part.wait, part.between_replicas)


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
        self._launch = Launch(collectives=runtime.launches.collective)
        self.templates: list[Template] = []

    @abstractmethod
    def launched(self, launches: Launch, work: Work) -> tuple[int, int]:
        """The numbers of the two costs of a work that stands alone: the host's launches, and the work."""

    @abstractmethod
    def segment(self, run: WorkRun) -> tuple[int, int, int]:
        """The numbers of the three costs of a run: the host's lead, the device's work, the host's tail."""

    def issued(self, issue: Issue) -> tuple[int, int]:
        """The numbers of the two costs of a collective that is issued: the host's launches, and the collective."""
        return self.launched(self._launch, issue.work)

    @abstractmethod
    def label(self, text: str) -> int:
        """The number of a label."""

    def template(self, slot: Sequence[SlotPart], kind: Category, name: str) -> int:
        """Lay out the parts of a slot, whose runs are labelled ``name``; returns the number of the template."""
        template = Template()
        gathers: list[int] = []
        for each in running(slot, name):
            if isinstance(each, Issue):
                (gathers if each.gather else template.issued).append(self._issue(template, each))
                continue
            start = self._run(template, each, int(kind), name)
            if each.wait is not None:
                template.edges.append((start, gathers[each.wait]))
        return self._keep(template)

    def send(self, work: Work, *, backward: bool, paired: bool) -> int:
        """Lay out a transfer to the neighbouring stage; returns the number of the template.

        Compute goes on beside it if the runtime overlaps sends, or if the schedule runs passes that are ``paired``.
        """
        template = Template()
        handshake = self._runtime.launches.send
        launches, cost = self.launched(replace(self._launch, sends=handshake), work)
        host = self._host(template, launches)
        side, other = Stream.SEND_FORWARD, Stream.SEND_BACKWARD
        if backward:
            side, other = other, side
        streams = (side,) if self._runtime.exchange.overlap_sends or paired else (Stream.COMPUTE, side)
        task = template.add(
            cost=cost,
            streams=(side, other) if self._runtime.exchange.rendezvous else streams,
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
        launches, cost = self.issued(issue)
        host = self._host(template, launches)
        task = template.add(
            cost=cost,
            streams=(Stream.DATA,),
            category=Category.COMMUNICATION,
            group=issue.group,
            label=self.label(issue.label),
        )
        template.edges.append((task, host))
        if template.last >= 0:
            template.edges.append((task, template.last))
        return task

    def _host(self, template: Template, cost: int) -> int:
        return template.add(
            cost=cost,
            streams=(Stream.HOST,),
            category=Category.HOST,
            group=Group.RANK,
            label=self.label("launch"),
        )

    def _run(self, template: Template, run: WorkRun, kind: int, name: str) -> int:
        """Append a run as one segment; returns its task on the device."""
        before, cost, after = self.segment(run)
        lead = self._host(template, before)
        task = template.add(
            cost=cost,
            streams=(Stream.COMPUTE, Stream.DATA) if run.between_replicas else (Stream.COMPUTE,),
            category=kind,
            group=Group.RANK,
            label=self.label(name),
        )
        self._host(template, after)
        template.edges.append((task, lead))
        template.last = task
        if template.first < 0:
            template.first = task
        return task
