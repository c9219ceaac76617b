"""Outlines: the tasks of every kind of slot, laid out once for all strategies that differ only in shapes.

A layout asks what blocks hold and how they are sharded, not what their works are. So an outline is made from
placeholders: programs whose passes are one mark each. The layout (:class:`traincast.strategy.lower.Layout`) and the
tasks (:class:`traincast.strategy.template.TemplateMaker`) are those of single forecasts. Only costs are numbered
otherwise: a mark stands for a row of a table of blocks (:mod:`traincast.searching.bulk.blocks`), which is filled in
later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled
from traincast.graph import Operator, OpKind, Phase
from traincast.searching.bulk.blocks import PASSES
from traincast.searching.bulk.works import Works
from traincast.strategy.costs import in_line, overlap_seconds, starts_of, tail_seconds
from traincast.strategy.lower import Layout
from traincast.strategy.plan import Category, Stream
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.item import Item
from traincast.strategy.runtime import Runtime
from traincast.strategy.schedules import Pass
from traincast.strategy.strategy import Offload
from traincast.strategy.template import Issue, SlotPart, TemplateMaker, WorkRun, running, shape_of
from traincast.work import Launch, Transfer, Work

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LANES: Final[dict[int, int]] = {
    stream: n
    for n, stream in enumerate(
        (Stream.HOST, Stream.COMPUTE, Stream.DATA, Stream.SEND_FORWARD, Stream.SEND_BACKWARD)
    )
}  # fmt: skip
"""Lanes of a stage in an outline: the streams that tasks of segments use."""
ARRIVAL, RESULT, ISSUED = range(len(_LANES), len(_LANES) + 3)
"""Gates: lanes beside those of a stage, which carry times from one slot to another.

The first task of a slot waits for the result that arrives. With runtimes that run passes in turn, its very first task
waits for the result of the slot before. The optimizer waits for the collective that was issued last.
"""
NUM_LANES: Final = len(_LANES) + 3
_BLOCK, _ITEM, _BESIDE, _MESSAGE = range(4)
"""What costs are made of: a pass of a block, a work with its launch, what traffic beside a run adds to it, a message
between stages with its launch."""
_MARK: Final = "pass"
_Atom: TypeAlias = tuple[int, int, int, float]
"""What it is, two numbers (a row of the table of blocks; launch and work; launch and link) and a factor."""
_COUNTED: Final = 3
"""Lanes whose busy seconds are counted: host, compute, data."""


def placeholders(programs: Sequence[BlockProgram]) -> tuple[BlockProgram, ...]:
    """Return the programs with one mark in place of the works of each pass."""
    return tuple(_placeholder(number, program) for number, program in enumerate(programs))


def _placeholder(number: int, program: BlockProgram) -> BlockProgram:
    def mark(what: Pass) -> tuple[Item, ...]:
        if not program.items(what):
            return ()
        row = number * PASSES + what
        work = Operator(
            name=_MARK, kind=OpKind.COPY, phase=Phase.FORWARD, inputs=(), outputs=(), attributes={"row": row}
        )
        return (Item(work=work, launches=Launch(), label=_MARK),)

    return replace(
        program,
        forward=mark(Pass.FORWARD),
        backward=mark(Pass.BACKWARD),
        backward_inputs=mark(Pass.INPUT),
        backward_weights=mark(Pass.WEIGHT),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tasks:
    """Tasks of a template as columns, without their seconds. Entries of a ragged column are counted per task."""

    last: int
    cost: Ints
    lane_count: Ints
    lanes: Ints
    wait_count: Ints
    waits: Ints
    counted: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sketch:
    """A template: its tasks, and the atoms of its costs; ``sizes`` counts the atoms of every three costs."""

    tasks: _Tasks
    sizes: list[int]
    atoms: list[_Atom]


class _Sketcher(TemplateMaker):
    """Makes the templates of outlines: three costs for each run, and for each work that stands alone.

    Slots whose pieces have the same shapes have the same tasks: only their atoms are made anew.
    """

    def __init__(self, works: Works, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._works = works
        self._known: dict[tuple[object, ...], _Tasks] = {}
        self._sizes: list[int] = []
        self._atoms: list[_Atom] = []

    def launched(self, launches: Launch, work: Work) -> tuple[int, int]:
        """The costs of a work that stands alone; a transfer stands for a message, its bytes for a link."""
        launch = self._works.number(launches)
        if isinstance(work, Transfer):
            self._atoms.append((_MESSAGE, launch, int(work.nbytes), 0.0))
        else:
            self._atoms.append((_ITEM, launch, self._works.number(work), 0.0))
        base = self._added(1)
        return base, base + 1

    def segment(self, run: WorkRun) -> tuple[int, int, int]:
        """The three costs of a run."""
        before = len(self._atoms)
        for part in run.parts:
            for item in part:
                self._atoms.extend(_atoms(item, self._works))
        base = self._added(len(self._atoms) - before)
        return base, base + 1, base + 2

    def label(self, text: str) -> int:
        """Return 0: outlines have no labels."""
        return 0

    def _added(self, atoms: int) -> int:
        self._sizes.append(atoms)
        return 3 * len(self._sizes) - 3

    def slot(self, parts: Sequence[SlotPart]) -> _Sketch:
        """The sketch of a slot."""
        found = running(parts, _MARK)
        shape = tuple(map(shape_of, found))
        tasks = self._known.get(shape)
        if tasks is None:
            tasks = self._known[shape] = self._tasks(self.template(found, Category.FORWARD, _MARK))
        else:
            for part in found:
                _ = self.issued(part) if isinstance(part, Issue) else self.segment(part)
        return self._sketch(tasks)

    def message(self, link: int, *, backward: bool, paired: bool) -> _Sketch:
        """The sketch of a message on a link; only what the host does for it is counted as busy."""
        placeholder = Transfer(nbytes=float(link), crosses_nodes=False)
        tasks = self._tasks(self.send(placeholder, backward=backward, paired=paired))
        counted = np.where(tasks.counted == _LANES[Stream.HOST], tasks.counted, _COUNTED)
        return self._sketch(replace(tasks, counted=counted))

    def _sketch(self, tasks: _Tasks) -> _Sketch:
        """Return a sketch of all atoms added since the last sketch."""
        sketch = _Sketch(tasks=tasks, sizes=self._sizes, atoms=self._atoms)
        self._sizes, self._atoms = [], []
        return sketch

    def _tasks(self, number: int) -> _Tasks:
        """The tasks of a template."""
        template = self.templates[number]
        lanes = [[_LANES[stream] for stream in streams] for streams in template.streams]
        counted = [min(held[0], _COUNTED) for held in lanes]
        lanes[template.first].append(ARRIVAL)
        if self._runtime.launches.sync_passes:
            lanes[0].append(RESULT)
        for task in template.issued:
            lanes[task].append(ISSUED)
        waits: list[list[int]] = [[] for _ in lanes]
        for target, source in template.edges:
            waits[target].append(source)
        self.templates.clear()
        return _Tasks(
            last=template.last,
            cost=np.array(template.cost, dtype=np.int64),
            lane_count=np.array([len(held) for held in lanes]),
            lanes=np.array([lane for held in lanes for lane in held]),
            wait_count=np.array([len(sources) for sources in waits]),
            waits=np.array([source for sources in waits for source in sources], dtype=np.int64),
            counted=np.array(counted),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Templates of the slots of a layout, as columns.

    ``template`` has the number of each slot's template by its code, ((piece · PASSES + pass) · 2 + sync) · 2 + first.
    ``finishing`` has, for each way to end a step, the number of each stage's last template (−1: the stage ends without
    one). ``always`` says whether every microbatch's gradients are exchanged. ``link`` says, by way and piece, which of
    the ``links`` the output of that piece crosses (−1: it stays on its stage); a link is the block whose output
    crosses, whether it crosses nodes, and how many pairs share their NICs. ``message`` has the templates of messages,
    by 2 · link + backward.

    Template i has the tasks from ``task_start[i]`` to ``task_start[i+1]``; its result is the end of task ``last[i]``.
    Tasks hold ``lanes`` and wait for other tasks as in a plan. ``cost`` is an index into costs, three for each entry of
    ``atom_start``. ``counted`` says which busy seconds a task adds to: host, device, data stream or none.
    """

    template: Ints
    finishing: Ints
    always: bool
    link: Ints
    links: list[tuple[int, bool, int]]
    message: Ints
    task_start: Ints
    last: Ints
    cost: Ints
    lane_start: Ints
    lanes: Ints
    wait_start: Ints
    waits: Ints
    counted: Ints
    atom_start: Ints
    atoms: Ints
    factors: Floats

    def durations(self, table: Floats, seconds: Floats, messages: Floats) -> Floats:
        """Seconds of every task, from those of blocks, works, and messages on each link."""
        costs = np.empty((len(self.atom_start) - 1, 3))
        _costs_compiled(self.atom_start, self.atoms, self.factors, table, seconds, messages, costs)
        durations: Floats = costs.ravel()[self.cost]
        return durations

    def busy(self, durations: Floats) -> Floats:
        """Seconds in which each template keeps host, device and data stream busy."""
        busy: Floats = np.bincount(self.counted, weights=durations, minlength=len(self.last) * 4).astype(np.float64)
        return busy.reshape(-1, 4)[:, :3]


class Outliner:
    """Makes outlines; the templates of pieces that were seen before are used again."""

    def __init__(self, works: Works, runtime: Runtime) -> None:
        self._sketcher = _Sketcher(works, runtime)
        self._keys: dict[tuple[object, ...], int] = {}
        self._known: dict[tuple[object, ...], _Sketch | None] = {}

    def outline(self, layout: Layout, key: tuple[object, ...], hosts: Sequence[bool], *, split: bool) -> Outline:
        """The templates of ``layout``, whose programs are placeholders; ``split`` for schedules with split backwards.

        Layouts with the same ``key`` make the same templates of the same blocks. ``hosts`` are the ways to end a step:
        with the optimizer on the device, or on the host.
        """
        pieces = layout.prepared.pieces
        strategy = layout.request.strategy
        keeps = strategy.zero == 3 and not strategy.reshard
        same_key = self._keys.setdefault(key, len(self._keys))  # long to hash: once is enough
        chosen: dict[tuple[object, ...], int] = {}
        templates: list[_Sketch] = []

        def number(kind: tuple[object, ...], make: Callable[[], _Sketch | None]) -> int:
            """The number of a kind of template in this outline; −1 where a stage ends without one."""
            if kind not in chosen:
                whole = (same_key, *kind)
                if whole not in self._known:
                    self._known[whole] = make()
                known = self._known[whole]
                chosen[kind] = -1 if known is None else len(templates)
                templates.extend([] if known is None else [known])
            return chosen[kind]

        table = np.full((len(pieces), PASSES, 2, 2), -1, dtype=np.int64)
        passes = (Pass.FORWARD, Pass.INPUT, Pass.WEIGHT, Pass.BACKWARD) if split else (Pass.FORWARD, Pass.BACKWARD)
        same: dict[tuple[int, ...], int] = {}
        for n, piece in enumerate(pieces):
            if piece.blocks in same:
                table[n] = table[same[piece.blocks]]
                continue
            same[piece.blocks] = n
            for what, sync, first in product(passes, (False, True), (False, True)):
                if not sync or what in (Pass.BACKWARD, Pass.WEIGHT):
                    kind = piece.blocks, what, sync, first and keeps
                    make = partial(self._slot, layout, n, what, sync=sync, first=first)
                    table[n, what, int(sync), int(first)] = number(kind, make)
        routes = len(layout.prepared.slots.routes)
        held = [layout.prepared.held_blocks(stage) for stage in range(strategy.pp)]
        finishing = np.empty((len(hosts), strategy.pp), dtype=np.int64)
        for row, host in enumerate(hosts):
            offload: tuple[Offload, ...] = ("optimizer",) if host else ()
            request = replace(layout.request, strategy=replace(strategy, offload=offload))
            ending = replace(layout, request=request)
            for stage in range(strategy.pp):
                finishing[row, stage] = number(("end", held[stage], host, routes), partial(self._end, ending, stage))
        link, links = _links(layout)
        message = [
            number(
                ("message", n, backward, layout.pairs_passes),
                partial(self._sketcher.message, n, backward=backward, paired=layout.pairs_passes),
            )
            for n, backward in product(range(len(links)), (False, True))
        ]
        return _joined(
            templates,
            template=table.ravel(),
            finishing=finishing,
            always=layout.syncs_always,
            link=link,
            links=links,
            message=np.array(message, dtype=np.int64),
        )

    def _slot(self, layout: Layout, piece: int, what: Pass, *, sync: bool, first: bool) -> _Sketch:
        return self._sketcher.slot(layout.slot(piece, what, sync=sync, first=first))

    def _end(self, layout: Layout, stage: int) -> _Sketch | None:
        pieces = layout.finish(stage)
        return self._sketcher.slot(pieces) if pieces else None


def _joined(templates: Sequence[_Sketch], **columns: Any) -> Outline:
    """An outline whose templates are these, in order; ``columns`` are all that say where they run."""

    tasks = [t.tasks for t in templates]

    def every(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(t, name) for t in tasks])

    sizes = [len(t.cost) for t in tasks]
    of = np.repeat(np.arange(len(templates)), sizes)
    task_start, waits = starts_of(sizes), every("wait_count")
    atoms = np.array([atom for t in templates for atom in t.atoms], dtype=np.float64).reshape(-1, 4)
    return Outline(
        **columns,
        task_start=task_start,
        last=np.array([t.last for t in tasks]) + task_start[:-1],
        cost=every("cost") + 3 * starts_of([len(t.sizes) for t in templates])[of],
        lane_start=starts_of(every("lane_count")),
        lanes=every("lanes"),
        wait_start=starts_of(waits),
        waits=every("waits") + np.repeat(task_start[of], waits),
        counted=every("counted") + 4 * of,
        atom_start=starts_of([size for t in templates for size in t.sizes]),
        atoms=atoms[:, :3].astype(np.int64),
        factors=atoms[:, 3].copy(),
    )


def _links(layout: Layout) -> tuple[Ints, list[tuple[int, bool, int]]]:
    routes, pieces = layout.prepared.slots.routes, layout.prepared.pieces
    link = np.full((len(routes), len(pieces)), -1, dtype=np.int64)
    found: dict[tuple[int, bool, int], int] = {}
    for way, route in enumerate(routes):
        for piece in range(len(pieces) - 1):
            if route[piece][0] != route[piece + 1][0]:
                transfer = layout.transfer(way, piece)
                key = pieces[piece].blocks[-1], transfer.crosses_nodes, transfer.sharing
                link[way, piece] = found.setdefault(key, len(found))
    return link.ravel(), list(found)


def _atoms(item: Item, works: Works) -> Iterator[_Atom]:
    if item.behind is not None:
        assert not item.behind.waited
        yield _BESIDE, -1, works.number(item.work), item.behind.interference
    elif isinstance(item.work, Operator) and item.work.name == _MARK:
        if item.launches != Launch():  # what a slot's first work waits for on the host
            yield _ITEM, works.number(item.launches), -1, 0.0
        yield _BLOCK, int(item.work.attributes["row"]), -1, 0.0
    else:
        yield _ITEM, works.number(item.launches), works.number(item.work), float(isinstance(item.work, Operator))


def _costs(  # noqa: PLR0917  (Numba takes positional arguments)
    atom_start: Any, atoms: Any, factors: Any, table: Any, seconds: Any, messages: Any, costs: Any
) -> None:
    """Fill lead, device and tail of every cost, from the blocks, works and messages it is made of."""
    for number in range(len(costs)):
        lead, device, host, computing = 0.0, 0.0, 0.0, 0.0
        for i in range(atom_start[number], atom_start[number + 1]):
            what, first, second = atoms[i, 0], atoms[i, 1], atoms[i, 2]
            if what == _BLOCK:
                row = table[first]
                lead, device, host = in_line(lead, device, host, row[0], row[1], row[2])
                computing += row[3]
            elif what == _ITEM and second < 0:
                host += seconds[first]
            elif what == _ITEM:
                lead, device, host = in_line(lead, device, host, seconds[first], seconds[second], seconds[first])
                computing += factors[i] * seconds[second]
            elif what == _BESIDE:
                device += overlap_seconds(seconds[second], computing, factors[i], False)
            else:
                lead, device, host = in_line(lead, device, host, seconds[first], messages[second], seconds[first])
        costs[number, 0], costs[number, 1], costs[number, 2] = lead, device, tail_seconds(lead, host)


_costs_compiled = Compiled(_costs)
