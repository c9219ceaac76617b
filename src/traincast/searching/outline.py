"""Outlines: what every kind of slot runs and sends, laid out once for all strategies that differ in shapes alone.

A layout asks what blocks hold and how they are sharded, not what their works are. So it is made from stand-ins:
programs whose passes are one mark each. What comes out, works in line and collectives handed to another stream, is
written down in columns, in which a mark stands for a row of a table of blocks (:mod:`traincast.searching.blocks`). The
layout itself is :class:`traincast.strategy.lower.Layout`, the one that single forecasts are made with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.graph import Operator, OpKind, Phase
from traincast.searching.blocks import PASSES
from traincast.searching.works import Works
from traincast.strategy.lower import Layout
from traincast.strategy.program import BlockProgram, Item
from traincast.strategy.runtime import Runtime
from traincast.strategy.schedules import Pass
from traincast.strategy.strategy import Offload
from traincast.strategy.template import Issue, Piece
from traincast.work import Launch

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RUN, ISSUE, GATHER = range(3)
"""Kinds of operations: works in line, a collective on the stream of replicas, one that a run waits for."""
_BLOCK, _ITEM, _BESIDE = range(3)
"""What a run is made of: a pass of a block, a work of its own, what traffic beside it slows it down."""
_MARK: Final = "pass"
_Atom: TypeAlias = tuple[int, int, int, float]
"""What it is, two numbers (a row of the blocks' table; launches and work) and a factor."""


def stand_ins(programs: Sequence[BlockProgram]) -> tuple[BlockProgram, ...]:
    """The same programs with one mark for all that a pass runs."""
    return tuple(_stand_in(number, program) for number, program in enumerate(programs))


def _stand_in(number: int, program: BlockProgram) -> BlockProgram:
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
class SlotOutline:
    """Operations of one kind of slot in order, and what each is made of: ``size`` atoms."""

    kind: Ints
    wait: Ints
    data: npt.NDArray[np.bool_]
    size: Ints
    atoms: Floats


def template(pieces: list[Piece], works: Works, runtime: Runtime) -> SlotOutline:
    """Write a slot's pieces down; a slot that runs nothing is one empty run."""
    launches = works.number(Launch(collectives=runtime.collective_launches))
    operations: list[tuple[int, int, bool, int]] = []
    atoms: list[_Atom] = []
    for piece in pieces:
        if isinstance(piece, Issue):
            atoms.append((_ITEM, launches, works.number(piece.work), 0.0))
            operations.append((GATHER if piece.gather else ISSUE, -1, False, 1))
        elif any(piece.parts):
            before = len(atoms)
            items = [item for part in piece.parts for item in part]
            for item in items:
                atoms.extend(_atoms(item, works))
            data = any(item.group.between_replicas for item in items)
            operations.append((RUN, -1 if piece.wait is None else piece.wait, data, len(atoms) - before))
    if not any(kind == RUN for kind, *_ in operations):
        operations.append((RUN, -1, False, 0))
    kind, wait, data_too, size = np.array(operations, dtype=np.int64).T
    return SlotOutline(
        kind=kind,
        wait=wait,
        data=data_too.astype(bool),
        size=size,
        atoms=np.array(atoms, dtype=np.float64).reshape(-1, 4),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Templates of the slots of a layout, as columns.

    ``template`` has the number of each slot's template by its code, ((piece · PASSES + pass) · 2 + sync) · 2 + first;
    ``finishing`` that of each stage's end (−1: none), for each way to end a step. ``always`` says whether every
    microbatch's gradients are exchanged. ``link`` says, by way and piece, which of the ``links`` crosses after that
    piece (−1: it stays on its stage); a link is the block whose output crosses, whether it crosses nodes, and how many
    pairs share their NICs.
    """

    template: Ints
    finishing: Ints
    always: bool
    link: Ints
    links: list[tuple[int, bool, int]]
    template_start: Ints
    kind: Ints
    wait: Ints
    data: npt.NDArray[np.bool_]
    atom_start: Ints
    atoms: Ints
    factors: Floats

    def costs(self, table: Floats, seconds: Floats) -> Floats:
        """Lead on the host, seconds on the device and what follows on the host, of every operation."""
        costs = np.empty((len(self.kind), 3))
        _compiled()(self.kind, self.atom_start, self.atoms, self.factors, table, seconds, costs)
        return costs


class Outliner:
    """Makes outlines; templates of pieces that were seen before are used again."""

    def __init__(self, works: Works) -> None:
        self._works = works
        self._known: dict[tuple[object, ...], SlotOutline | None] = {}

    def outline(self, layout: Layout, key: tuple[object, ...], hosts: Sequence[bool], *, split: bool) -> Outline:
        """The templates of ``layout``, whose programs are stand-ins; ``split`` for schedules with split backwards.

        ``key`` tells layouts apart that make other templates of the same blocks; ``hosts`` are ways to end a step: with
        the optimizer on the device, or on the host.
        """
        pieces = layout.prepared.pieces
        strategy = layout.request.strategy
        keeps = strategy.zero == 3 and not strategy.reshard
        chosen: dict[tuple[object, ...], int] = {}
        templates: list[SlotOutline] = []

        def number(kind: tuple[object, ...], make: Callable[[], list[Piece]]) -> int:
            """The number of a kind of template in this outline; −1 for one that runs nothing at a stage's end."""
            if kind not in chosen:
                whole = (*key, *kind)
                if whole not in self._known:
                    found = make()
                    empty = not found and kind[0] == "end"
                    self._known[whole] = None if empty else template(found, self._works, layout.request.runtime)
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
                    make = partial(layout.slot, n, what, sync=sync, first=first)
                    table[n, what, int(sync), int(first)] = number(kind, make)
        routes = len(layout.prepared.slots.routes)
        held = [layout.prepared.held_blocks(stage) for stage in range(strategy.pp)]
        finishing = np.empty((len(hosts), strategy.pp), dtype=np.int64)
        for row, host in enumerate(hosts):
            offload: tuple[Offload, ...] = ("optimizer",) if host else ()
            request = replace(layout.request, strategy=replace(strategy, offload=offload))
            ending = replace(layout, request=request)
            for stage in range(strategy.pp):
                finishing[row, stage] = number(("end", held[stage], host, routes), partial(ending.finish, stage))
        link, links = _links(layout)
        size = np.concatenate([t.size for t in templates])
        atoms = np.concatenate([t.atoms for t in templates])
        return Outline(
            template=table.ravel(),
            finishing=finishing,
            always=layout.syncs_always,
            link=link,
            links=links,
            template_start=_starts(np.array([len(t.kind) for t in templates])),
            kind=np.concatenate([t.kind for t in templates]),
            wait=np.concatenate([t.wait for t in templates]),
            data=np.concatenate([t.data for t in templates]),
            atom_start=_starts(size),
            atoms=atoms[:, :3].astype(np.int64),
            factors=atoms[:, 3].copy(),
        )


def _starts(sizes: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)])


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


@cache
def _compiled() -> Any:
    import numba

    return numba.njit(cache=True, boundscheck=False)(_costs)


def _costs(  # noqa: PLR0917  (Numba takes positional arguments)
    kind: Any, atom_start: Any, atoms: Any, factors: Any, table: Any, seconds: Any, costs: Any
) -> None:
    """Put operations together from blocks and works, as :mod:`traincast.searching.blocks` says."""
    for operation in range(len(kind)):
        lead, device, host, computing = 0.0, 0.0, 0.0, 0.0
        for i in range(atom_start[operation], atom_start[operation + 1]):
            what, first, second = atoms[i, 0], atoms[i, 1], atoms[i, 2]
            if what == 0:
                lead = max(lead, host - device + table[first, 0])
                device += table[first, 1]
                host += table[first, 2]
                computing += table[first, 3]
            elif what == 1:
                host += seconds[first]
                if second >= 0:
                    lead = max(lead, host - device)
                    device += seconds[second]
                    computing += factors[i] * seconds[second]
            else:
                device += factors[i] * min(seconds[second], computing)
        costs[operation, 0], costs[operation, 1] = lead, device
        costs[operation, 2] = max(0.0, host - lead)
