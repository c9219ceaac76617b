"""Turns traced records into a graph: finds blocks, merges repetitions, and renumbers operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from traincast.graph.capture.repeats import Repeat
from traincast.graph.operator import Block, FixedTensor, Operator, OperatorGraph
from traincast.graph.tensor import TensorSpec
from traincast.graph.vocabulary import Phase

_NONE: Final = -1
_Place: TypeAlias = tuple[int, int] | None
"""A run, and which of its traced repetitions."""


class NotRepeatableError(Exception):
    """Two traced repetitions of a block differ, so that one cannot stand for all."""


class AddsUpError(Exception):
    """The first repetition of a block adds up gradients that the second does not, so a third must be traced."""

    def __init__(self, containers: set[str]) -> None:
        super().__init__(f"gradients of what the modules in {', '.join(sorted(containers))} share add up")
        self.containers = containers


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One traced operator, the records that made its inputs, and the forward record that it differentiates."""

    operator: Operator
    producers: tuple[int, ...]
    forward: int


@dataclass(slots=True)
class _Draft:
    """A block under construction: the numbers of its records, by phase."""

    scope: str
    count: int
    forward: list[int]
    backward: list[int]
    optimizer: list[int]
    fixed: list[FixedTensor] = field(default_factory=list)
    first: bool = False


def assemble(
    *,
    name: str,
    records: Sequence[Record],
    repeats: Sequence[Repeat],
    tokens_per_sample: int,
    fixed: Sequence[FixedTensor] = (),
) -> OperatorGraph:
    """Group ``records`` into blocks, and merge the traced repetitions of each run that are equal.

    Raises ``AddsUpError`` if a third repetition of some runs must be traced.
    """
    crossing = _crossing(records)
    places = _places(records, repeats, list(crossing))
    _drop_given(records, places, crossing)
    drafts, block_of = _forward_blocks(records, repeats, places, crossing)
    _place_backward(records, drafts, block_of)
    home = _homes(records, drafts, block_of)
    _place_optimizer(records, drafts, home)
    _place_fixed(fixed, drafts, repeats, home)
    same_as = _merge_repeats(records, drafts, repeats, _sharing(records, places))

    kept = [d for d in drafts if d.count]
    order = [i for d in kept for i in d.forward]
    order += [i for d in reversed(kept) for i in d.backward]
    order += [i for d in kept for i in d.optimizer]
    dense = {record: position for position, record in enumerate(order)}
    index = {i: dense[same_as.get(i, i)] for i in range(len(records))}
    edges = {(index[p], index[i]) for i, record in enumerate(records) for p in record.producers}
    blocks = tuple(
        Block(
            scope=d.scope,
            count=d.count,
            forward=tuple(index[i] for i in d.forward),
            backward=tuple(index[i] for i in d.backward),
            optimizer=tuple(index[i] for i in d.optimizer),
            boundary=_boundary(records, crossing, d.forward[-1]),
            fixed=tuple(d.fixed),
            first=d.first,
        )
        for d in kept
    )
    return OperatorGraph(
        name=name,
        operators=tuple(records[i].operator for i in order),
        edges=tuple(sorted(edges)),
        forward_of=tuple(index[records[i].forward] if records[i].forward >= 0 else _NONE for i in order),
        blocks=blocks,
        tokens_per_sample=tokens_per_sample,
    )


def _crossing(records: Sequence[Record]) -> dict[int, set[int]]:
    """For each forward position, the producers whose batch-sized output is still needed after it."""
    last_use: dict[int, int] = {}
    forward = [i for i, r in enumerate(records) if r.operator.phase is Phase.FORWARD]
    for i in forward:
        for producer in records[i].producers:
            last_use[producer] = i
    alive: set[int] = set()
    crossing: dict[int, set[int]] = {}
    for i in forward:
        if any(t.batch_dim is not None for t in records[i].operator.outputs):
            alive.add(i)
        alive = {p for p in alive if last_use.get(p, -1) > i}
        crossing[i] = set(alive)
    return crossing


def _places(records: Sequence[Record], repeats: Sequence[Repeat], forward: list[int]) -> dict[int, _Place]:
    """The traced repetition that each forward record lies in, if any.

    Operators that the parent runs between two repetitions (``for layer in layers: x = relu(layer(x))``) belong to the
    repetition before them, if they also run after the second one. Otherwise one repetition cannot stand for all.
    """
    places = {i: _repetition(records[i].operator.scope, repeats) for i in forward}
    for run in range(len(repeats)):
        for which in range(len(repeats[run].scopes) - 1):
            _place_between(records, forward, places, (run, which))
    return places


def _place_between(
    records: Sequence[Record], forward: list[int], places: dict[int, _Place], place: tuple[int, int]
) -> None:
    """Assign operators between two repetitions to the first of them, and those after the second one to the second.

    ``place`` is the first repetition. Raises ``NotRepeatableError`` if the two groups of operators differ.
    """
    run, which = place
    first, second = ([n for n, i in enumerate(forward) if places[i] == (run, w)] for w in (which, which + 1))
    if not first or not second or first[-1] > second[0]:
        return
    between = forward[first[-1] + 1 : second[0]]
    after = forward[second[-1] + 1 :][: len(between)]
    if [_alike(records[i], places[i]) for i in between] != [_alike(records[i], places[i]) for i in after]:
        raise NotRepeatableError
    places |= dict.fromkeys(between, place) | dict.fromkeys(after, (run, which + 1))


def _alike(record: Record, place: _Place) -> object:
    """The properties in which operators between repetitions must agree."""
    op = record.operator
    return op.name, op.inputs, op.outputs, place


def _drop_given(records: Sequence[Record], where: dict[int, _Place], crossing: dict[int, set[int]]) -> None:
    """Remove tensors from ``crossing`` that are made before a run, are read by all repetitions, and get no gradient.

    Masks and rotary tables do not travel from stage to stage of a pipeline: each makes its own.
    """
    users: dict[int, set[tuple[int, int]]] = {}
    for i in crossing:
        run = where[i]
        if run is not None:
            for producer in records[i].producers:
                users.setdefault(producer, set()).add(run)
    differentiated = {record.forward for record in records}
    for i, alive in crossing.items():
        run = where[i]
        if run is not None:
            both = {(run[0], 0), (run[0], 1)}
            given = {p for p in alive if (at := where[p]) is None or at[0] != run[0]}
            given = {p for p in given if both <= users.get(p, set())}
            alive.difference_update(given - differentiated)


def _boundary(records: Sequence[Record], crossing: dict[int, set[int]], last: int) -> tuple[TensorSpec, ...]:
    return tuple(
        next(t for t in records[p].operator.outputs if t.batch_dim is not None) for p in sorted(crossing[last])
    )


def _repetition(scope: str, repeats: Sequence[Repeat]) -> _Place:
    """The run and the number of the traced repetition that ``scope`` lies in, if any."""
    for run, repeat in enumerate(repeats):
        for which, roots in enumerate(repeat.scopes):
            if any(scope == root or scope.startswith(root + ".") for root in roots):
                return run, which
    return None


def _forward_blocks(
    records: Sequence[Record],
    repeats: Sequence[Repeat],
    places: dict[int, _Place],
    crossing: dict[int, set[int]],
) -> tuple[list[_Draft], dict[int, int]]:
    """Cut the forward pass at repetitions and, between them, wherever a single tensor crosses."""
    drafts: list[_Draft] = []
    block_of: dict[int, int] = {}
    current: _Place = None
    open_block = False
    for i, alive in crossing.items():
        where = places[i]
        if not open_block or where != current:
            scope = records[i].operator.scope
            if where is not None:
                scope = ",".join(repeats[where[0]].scopes[where[1]])
            drafts.append(_Draft(scope, 1, [], [], []))
            current, open_block = where, True
        drafts[-1].forward.append(i)
        block_of[i] = len(drafts) - 1
        if where is None and len(alive) <= 1:
            open_block = False
    return drafts, block_of


def _place_backward(records: Sequence[Record], drafts: list[_Draft], block_of: dict[int, int]) -> None:
    """A backward operator belongs to its forward's block; one without a forward follows its neighbour."""
    block = len(drafts) - 1
    for i, record in enumerate(records):
        if record.operator.phase is Phase.BACKWARD:
            block = block_of[record.forward] if record.forward >= 0 else block
            drafts[block].backward.append(i)


def _homes(records: Sequence[Record], drafts: list[_Draft], block_of: dict[int, int]) -> Callable[[str], _Draft | None]:
    """The block of each module's tensors: that of the first forward operator that runs in the module or its parent."""
    home: dict[str, int] = {}
    for i, block in block_of.items():
        scope = records[i].operator.scope
        while scope and scope not in home:
            home[scope] = block
            scope = scope.rpartition(".")[0]

    def find(scope: str) -> _Draft | None:
        while scope and scope not in home:
            scope = scope.rpartition(".")[0]
        return drafts[home[scope]] if scope else None

    return find


def _place_optimizer(records: Sequence[Record], drafts: list[_Draft], home: Callable[[str], _Draft | None]) -> None:
    """An update belongs to the block of the parameter's module."""
    for i, record in enumerate(records):
        if record.operator.phase is Phase.OPTIMIZER:
            (home(record.operator.scope) or drafts[-1]).optimizer.append(i)


def _place_fixed(
    fixed: Sequence[FixedTensor],
    drafts: list[_Draft],
    repeats: Sequence[Repeat],
    home: Callable[[str], _Draft | None],
) -> None:
    """Frozen parameters and buffers belong to the block of their module; what the whole model owns, to the first."""
    for tensor in fixed:
        draft = home(tensor.scope) or drafts[0]
        outside = _repetition(tensor.scope, repeats) is None and any(
            draft.scope == ",".join(scopes) for repeat in repeats for scopes in repeat.scopes
        )
        # What stands in a repeated block without being part of each repetition is there once.
        name = tensor.shared or f"{tensor.scope}#{len(draft.fixed)}"
        draft.fixed.append(replace(tensor, shared=name) if outside else tensor)


def _sharing(records: Sequence[Record], places: dict[int, _Place]) -> set[int]:
    """The runs whose repetitions read one tensor from outside that has a gradient, as from an encoder."""
    readers: dict[tuple[int, int], set[int]] = {}
    differentiated = {record.forward for record in records}
    for i, place in places.items():
        for producer in records[i].producers if place is not None else ():
            at = places.get(producer)
            if producer in differentiated and place is not None and (at is None or at[0] != place[0]):
                readers.setdefault((place[0], producer), set()).add(place[1])
    return {run for (run, _), found in readers.items() if len(found) > 1}


def _merge_repeats(
    records: Sequence[Record], drafts: list[_Draft], repeats: Sequence[Repeat], sharing: set[int]
) -> dict[int, int]:
    """Merge equal repetitions of each run, and set the count of each block that remains.

    Returns the records of merged repetitions, each with the equal record that replaces it. The second traced repetition
    also stands for those that were not traced; it stays a block of its own if its operators differ from the first
    one's. If a third is traced, it is the last of its run, which may differ from those before it: in the runs
    ``sharing`` a tensor, all but the last add to its gradient.
    """
    same_as: dict[int, int] = {}
    adding: set[str] = set()
    for run, repeat in enumerate(repeats):
        traced = [[d for d in drafts if d.scope == ",".join(scopes)] for scopes in repeat.scopes]
        if repeat.count == 1:
            for draft in traced[0][:1]:
                draft.first = True
            continue
        rest = repeat.count - len(traced) + 1
        if any(len(found) != 1 for found in traced):
            # The block's operators do not stand together: keep them, and count the second for the rest.
            for draft in traced[1]:
                draft.count = rest
            continue
        blocks = [found[0] for found in traced]
        if len(blocks) == 2 and _adds_more(records, blocks[0], blocks[1], shares=run in sharing):
            adding.add(repeat.container)
        blocks[1].count = rest
        kept = [blocks[0]]
        for block in blocks[1:]:
            pairs = list(zip(_records_of(kept[-1]), _records_of(block), strict=False))
            if not _are_equal(records, kept[-1], block):
                kept.append(block)
                continue
            known = {t.shared for t in kept[-1].fixed}
            kept[-1].fixed += [t for t in block.fixed if t.shared and t.shared not in known]
            kept[-1].count, block.count = kept[-1].count + block.count, 0
            same_as |= {b: a for a, b in pairs}
        for block in kept:
            block.first = block.count == 1
    if adding:
        raise AddsUpError(adding)
    return same_as


def _adds_more(records: Sequence[Record], first: _Draft, second: _Draft, *, shares: bool) -> bool:
    """Whether the first repetition adds up more gradients than the second, which is the last one traced.

    They are those of activations that the repetitions share (``shares``), or of parameters, which have no batch.
    """

    def counted(draft: _Draft) -> int:
        made = (records[i].operator for i in draft.backward)
        adds = (op for op in made if op.name in ("add", "add_"))
        return sum(shares or all(t.batch_dim is None for t in op.outputs) for op in adds)

    return counted(first) > counted(second)


def _are_equal(records: Sequence[Record], a: _Draft, b: _Draft) -> bool:
    """Whether two repetitions have the same operators and hold the same tensors."""
    left, right = ([replace(records[i].operator, scope="") for i in _records_of(d)] for d in (a, b))
    return left == right and _own(a) == _own(b)


def _records_of(draft: _Draft) -> list[int]:
    return [*draft.forward, *draft.backward, *draft.optimizer]


def _own(draft: _Draft) -> list[FixedTensor]:
    """Fixed tensors that each repetition has for itself."""
    return [replace(t, scope="") for t in draft.fixed if not t.shared]
