"""Editing a graph: adding and removing operators, and splitting a repeated block into runs that differ.

A :class:`Draft` is a graph with stable numbers and mutable lists. :meth:`Draft.finish` renumbers the operators in the
order in which they run, as a capture does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from traincast.graph.operator import Block, FixedTensor, Operator, OperatorGraph
from traincast.graph.tensor import TensorSpec
from traincast.graph.vocabulary import Phase


@dataclass(slots=True)
class DraftBlock:
    """A block whose lists may change."""

    scope: str
    count: int
    forward: list[int]
    backward: list[int]
    optimizer: list[int]
    boundary: tuple[TensorSpec, ...]
    fixed: list[FixedTensor]
    first: bool

    @property
    def repeated(self) -> bool:
        """Whether it is a layer; see :attr:`traincast.graph.operator.Block.repeated`."""
        return self.count > 1 or self.first


class Draft:
    """A graph under change: operators by number, the numbers that each reads, and blocks."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.graph = graph
        self.operators: dict[int, Operator] = dict(enumerate(graph.operators))
        self._next = len(graph.operators)
        self.forward_of: dict[int, int] = dict(enumerate(graph.forward_of))
        self.producers: dict[int, set[int]] = {i: set() for i in self.operators}
        self.consumers: dict[int, set[int]] = {i: set() for i in self.operators}
        for source, target in graph.edges:
            self.connect(source, target)
        self.blocks = [
            DraftBlock(
                b.scope,
                b.count,
                list(b.forward),
                list(b.backward),
                list(b.optimizer),
                b.boundary,
                list(b.fixed),
                b.first,
            )
            for b in graph.blocks
        ]

    def add(self, operator: Operator, producers: Iterable[int] = (), *, forward_of: int = -1) -> int:
        """Add an operator that reads the results of ``producers``; returns its number. No block runs it yet."""
        number = self._next
        self._next += 1
        self.operators[number] = operator
        self.forward_of[number] = forward_of
        self.producers[number], self.consumers[number] = set(), set()
        for producer in producers:
            self.connect(producer, number)
        return number

    def connect(self, source: int, target: int) -> None:
        """Let ``target`` read the result of ``source``."""
        self.consumers[source].add(target)
        self.producers[target].add(source)

    def disconnect(self, source: int, target: int) -> None:
        """Remove an edge."""
        self.consumers[source].discard(target)
        self.producers[target].discard(source)

    def phase_of(self, number: int) -> Phase:
        """When an operator runs."""
        return self.operators[number].phase

    def gradients_of(self, number: int, backward: Sequence[int]) -> list[int]:
        """The operators of ``backward`` that differentiate forward operator ``number``, in order."""
        return [b for b in backward if self.forward_of[b] == number]

    def split(self, index: int, counts: Sequence[int]) -> None:
        """Replace repeated block ``index`` by runs of ``counts`` repetitions, each with operators of its own."""
        if len(counts) == 1:
            return
        block = self.blocks[index]
        edges = _EdgesOf(self, block)
        runs, maps, start = [], [], 0
        for count in counts:
            copied = self._copies(block, start) if start else {i: i for i in edges.inside}
            maps.append(copied)
            runs.append(
                DraftBlock(
                    renamed(block.scope, block.scope, start),
                    count,
                    [copied[i] for i in block.forward],
                    [copied[i] for i in block.backward],
                    [copied[i] for i in block.optimizer],
                    block.boundary,
                    [replace(t, scope=renamed(t.scope, block.scope, start)) for t in block.fixed],
                    block.first or count == 1,
                )
            )
            start += count
        edges.rewire(maps, counts)
        self.blocks[index : index + 1] = runs

    def _copies(self, block: DraftBlock, start: int) -> dict[int, int]:
        """Copies of the operators of ``block`` for the repetition number ``start``, by the number of their original."""
        number = self._next
        copied = {i: number + n for n, i in enumerate((*block.forward, *block.backward, *block.optimizer))}
        for i, new in copied.items():
            op = self.operators[i]
            self.operators[new] = replace(op, scope=renamed(op.scope, block.scope, start))
            self.producers[new], self.consumers[new] = set(), set()
            source = self.forward_of[i]
            self.forward_of[new] = copied.get(source, source)
        self._next += len(copied)
        return copied

    def finish(self, **changes: object) -> OperatorGraph:
        """The graph with its operators in the order in which they run; operators that no block runs are left out."""
        order = [i for b in self.blocks for i in b.forward]
        order += [i for b in reversed(self.blocks) for i in b.backward]
        order += [i for b in self.blocks for i in b.optimizer]
        dense = {number: position for position, number in enumerate(order)}
        edges = sorted(
            (dense[source], dense[target])
            for target, sources in self.producers.items()
            if target in dense
            for source in sources
            if source in dense
        )
        blocks = tuple(
            Block(
                scope=b.scope,
                count=b.count,
                forward=tuple(dense[i] for i in b.forward),
                backward=tuple(dense[i] for i in b.backward),
                optimizer=tuple(dense[i] for i in b.optimizer),
                boundary=b.boundary,
                fixed=tuple(b.fixed),
                first=b.first,
            )
            for b in self.blocks
        )
        made = replace(
            self.graph,
            operators=tuple(self.operators[i] for i in order),
            edges=tuple(edges),
            forward_of=tuple(dense.get(self.forward_of[i], -1) for i in order),
            blocks=blocks,
        )
        return replace(made, **changes) if changes else made  # type: ignore[arg-type]


class _EdgesOf:
    """The edges at a repeated block, by where they lead: inside a repetition, to the next one, in, or out."""

    def __init__(self, draft: Draft, block: DraftBlock) -> None:
        self.draft = draft
        self.inside = [*block.forward, *block.backward, *block.optimizer]
        own = set(self.inside)
        self._at = {i: n for n, i in enumerate(block.forward)} | {i: n for n, i in enumerate(block.backward)}
        self.within: list[tuple[int, int]] = []
        self.across: list[tuple[int, int]] = []
        self.entering: list[tuple[int, int]] = []
        self.leaving: list[tuple[int, int]] = []
        for i in self.inside:
            for source in draft.producers[i]:
                if source not in own:
                    self.entering.append((source, i))
                elif self._crosses(source, i):
                    self.across.append((source, i))
                else:
                    self.within.append((source, i))
            self.leaving += [(i, target) for target in draft.consumers[i] if target not in own]

    def _crosses(self, source: int, target: int) -> bool:
        """Whether a repetition reads ``source`` of its neighbour: an operator that runs later in its own repetition."""
        if self.draft.phase_of(source) is self.draft.phase_of(target):
            return self._at[source] >= self._at[target]
        reader = self.draft.forward_of[target]  # a gradient reads what its forward operator read, or its result
        return source != reader and reader in self._at and self._at[source] >= self._at[reader]

    def rewire(self, maps: Sequence[dict[int, int]], counts: Sequence[int]) -> None:
        """Connect the copies: ``maps`` has the copy of each operator in each run, ``counts`` the repetitions."""
        draft = self.draft
        for source, target in (*self.within, *self.across, *self.entering, *self.leaving):
            draft.disconnect(source, target)
        crossed = {(target, draft.phase_of(source)) for source, target in self.across}
        for source, target in self.within:
            for run in maps:
                draft.connect(run[source], run[target])
        for source, target in self.across:
            for n, run in enumerate(maps):
                if counts[n] > 1:
                    draft.connect(run[source], run[target])
                # Results of forward come from the run before; gradients come from the run after.
                neighbour = n - 1 if draft.phase_of(source) is Phase.FORWARD else n + 1
                if 0 <= neighbour < len(maps):
                    draft.connect(maps[neighbour][source], run[target])
        for source, target in self.entering:
            for run in self._receiving(maps, (target, draft.phase_of(source)) in crossed, draft.phase_of(source)):
                draft.connect(source, run[target])
        for source, target in self.leaving:
            last = maps[-1] if draft.phase_of(source) is Phase.FORWARD else maps[0]
            draft.connect(last[source], target)

    @staticmethod
    def _receiving(maps: Sequence[dict[int, int]], crossed: bool, phase: Phase) -> Iterator[dict[int, int]]:
        """The runs that read a tensor from outside: all, or only the first to run if others read their neighbour."""
        if not crossed:
            yield from maps
        else:
            yield maps[0] if phase is Phase.FORWARD else maps[-1]


def renamed(scope: str, block: str, repetition: int) -> str:
    """``scope`` in another repetition of the block whose first repetition has the scope ``block``.

    >>> renamed("layers.0.mlp", "layers.0", 3)
    'layers.3.mlp'
    """
    if not repetition:
        return scope
    roots = block.split(",")
    if scope == block and len(roots) > 1:
        return ",".join(renamed(root, block, repetition) for root in roots)
    for root in roots:
        if scope == root or scope.startswith(root + "."):
            parent, _, number = root.rpartition(".")
            if not number.isdigit():
                return scope
            moved = str(int(number) + repetition * len(roots))
            return f"{parent}.{moved}{scope[len(root) :]}" if parent else f"{moved}{scope[len(root) :]}"
    return scope
