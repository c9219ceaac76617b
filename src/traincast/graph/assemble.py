"""Turns traced records into a graph: finds blocks, merges repetitions, and renumbers operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from traincast.graph.operator import Block, FixedTensor, Operator, OperatorGraph, Phase
from traincast.graph.repeats import Repeat
from traincast.graph.tensor import TensorSpec

_NONE: Final = -1
_Place: TypeAlias = tuple[int, int] | None
"""A run, and which of its two traced repetitions."""


class NotRepeatableError(Exception):
    """Two traced repetitions of a block differ, so that one cannot stand for all."""


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
    """Group ``records`` into blocks, and merge the two traced repetitions of each run if they are equal."""
    crossing = _crossing(records)
    places = _places(records, repeats, list(crossing))
    _drop_given(records, places, crossing)
    drafts, block_of = _forward_blocks(records, repeats, places, crossing)
    _place_backward(records, drafts, block_of)
    home = _homes(records, drafts, block_of)
    _place_optimizer(records, drafts, home)
    _place_fixed(fixed, drafts, repeats, home)
    same_as = _merge_repeats(records, drafts, repeats)

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
        first, second = ([n for n, i in enumerate(forward) if places[i] == (run, which)] for which in (0, 1))
        if not first or not second or first[-1] > second[0]:
            continue
        between = forward[first[-1] + 1 : second[0]]
        after = forward[second[-1] + 1 :][: len(between)]
        if [_alike(records[i], places[i]) for i in between] != [_alike(records[i], places[i]) for i in after]:
            raise NotRepeatableError
        places |= dict.fromkeys(between, (run, 0)) | dict.fromkeys(after, (run, 1))
    return places


def _alike(record: Record, place: _Place) -> object:
    """The properties in which operators between repetitions must agree."""
    op = record.operator
    return op.name, op.inputs, op.outputs, place


def _drop_given(records: Sequence[Record], where: dict[int, _Place], crossing: dict[int, set[int]]) -> None:
    """Remove from ``crossing`` what all repetitions receive from before the first one and send no gradient to.

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
    """``(run, 0 or 1)`` of the traced repetition that ``scope`` lies in, if any."""
    for run, repeat in enumerate(repeats):
        for which in (0, 1):
            if any(scope == root or scope.startswith(root + ".") for root in repeat.scopes[which]):
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


def _merge_repeats(records: Sequence[Record], drafts: list[_Draft], repeats: Sequence[Repeat]) -> dict[int, int]:
    """Give each run's blocks their counts; records of an equal second repetition map to the first's.

    A repetition whose operators differ from the first's (as the first layer may from the rest) stays,
    and stands for all but one.
    """
    same_as: dict[int, int] = {}
    for repeat in repeats:
        first, second = ([d for d in drafts if d.scope == ",".join(repeat.scopes[which])] for which in (0, 1))
        if repeat.count == 1:
            for draft in first[:1]:
                draft.first = True
            continue
        if len(first) != 1 or len(second) != 1:
            # The block's operators do not stand together: keep both, and count the second for the rest.
            for draft in second:
                draft.count = repeat.count - 1
            continue
        pairs = list(zip(_records_of(first[0]), _records_of(second[0]), strict=False))
        equal = len(_records_of(first[0])) == len(_records_of(second[0])) and all(
            _without_scope(records[a].operator) == _without_scope(records[b].operator) for a, b in pairs
        )
        if equal and _own(first[0]) == _own(second[0]):
            first[0].count, second[0].count = repeat.count, 0
            known = {t.shared for t in first[0].fixed}
            first[0].fixed += [t for t in second[0].fixed if t.shared and t.shared not in known]
            same_as |= {b: a for a, b in pairs}
        else:
            first[0].first, second[0].count = True, repeat.count - 1
    return same_as


def _records_of(draft: _Draft) -> list[int]:
    return [*draft.forward, *draft.backward, *draft.optimizer]


def _own(draft: _Draft) -> list[FixedTensor]:
    """Fixed tensors that each repetition has for itself."""
    return [replace(t, scope="") for t in draft.fixed if not t.shared]


def _without_scope(operator: Operator) -> Operator:
    return replace(operator, scope="")
