"""Kernel fusion: neighbouring operators that a runtime runs as one kernel, merged in the graph.

A fused kernel reads each tensor from outside once and writes only the tensors that are used outside. Tensors that
only its members use never reach memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from traincast.graph import Operator, OperatorGraph, OpKind, Phase, TensorSpec
from traincast.strategy.runtime import Fusion

_POINTWISE: Final = frozenset({OpKind.ACTIVATION, OpKind.ELEMENTWISE, OpKind.DROPOUT})
_LOSS: Final = frozenset({OpKind.SOFTMAX, OpKind.LOSS})

_Joins = Callable[[Operator, Operator, bool], bool]
"""``joins(last, op, reads)``: whether ``op`` joins the group that ends with ``last``, whose output it may read."""


def _norm(last: Operator, op: Operator, reads: bool) -> bool:
    return last.scope == op.scope and "Norm" in str(op.attributes.get("module", "")) and op.scope != ""


def _elementwise(last: Operator, op: Operator, reads: bool) -> bool:
    return last.kind in _POINTWISE and op.kind in _POINTWISE and reads


def _loss(last: Operator, op: Operator, reads: bool) -> bool:
    return last.kind in _LOSS and op.kind in _LOSS and reads


_RULES: Final[dict[Fusion, tuple[_Joins, OpKind]]] = {
    "norm": (_norm, OpKind.LAYER_NORM),
    "loss": (_loss, OpKind.LOSS),
    "elementwise": (_elementwise, OpKind.ELEMENTWISE),
}


def fuse(graph: OperatorGraph, fusions: Iterable[Fusion]) -> OperatorGraph:
    """``graph`` with every group of operators that ``fusions`` allow merged into one operator."""
    for fusion in _RULES:
        if fusion in fusions:
            graph = _fuse_one(graph, *_RULES[fusion])
    return graph


def _fuse_one(graph: OperatorGraph, joins: _Joins, kind: OpKind) -> OperatorGraph:
    producers: dict[int, list[int]] = defaultdict(list)
    consumers: dict[int, list[int]] = defaultdict(list)
    for source, target in graph.edges:
        producers[target].append(source)
        consumers[source].append(target)

    groups: list[list[int]] = []
    new_blocks = []
    for block in graph.blocks:
        phases = []
        for indices in (block.forward, block.backward, block.optimizer):
            start = len(groups)
            for i in indices:
                op = graph.operators[i]
                if (
                    len(groups) > start
                    and op.phase is not Phase.OPTIMIZER
                    and joins(graph.operators[groups[-1][-1]], op, any(p in groups[-1] for p in producers[i]))
                ):
                    groups[-1].append(i)
                else:
                    groups.append([i])
            phases.append(tuple(range(start, len(groups))))
        new_blocks.append(replace(block, forward=phases[0], backward=phases[1], optimizer=phases[2]))

    home = {i: g for g, members in enumerate(groups) for i in members}
    operators = tuple(
        graph.operators[members[0]]
        if len(members) == 1
        else _merge(graph.operators, members, producers, consumers, kind)
        for members in groups
    )
    edges = {(home[a], home[b]) for a, b in graph.edges if home[a] != home[b]}
    forward_of = tuple(
        next((home[graph.forward_of[i]] for i in members if graph.forward_of[i] >= 0), -1) for members in groups
    )
    return replace(
        graph,
        operators=operators,
        edges=tuple(sorted(edges)),
        forward_of=forward_of,
        blocks=tuple(new_blocks),
    )


def _merge(
    operators: Sequence[Operator],
    members: list[int],
    producers: dict[int, list[int]],
    consumers: dict[int, list[int]],
    kind: OpKind,
) -> Operator:
    inside = set(members)
    external: dict[object, TensorSpec] = {}
    for i in members:
        remaining = list(operators[i].inputs)
        for producer in producers[i]:
            sizes = {t.numel for t in operators[producer].outputs}
            match = next((t for t in remaining if t.numel in sizes), None)
            if match is not None:
                remaining.remove(match)
                if producer not in inside:
                    external[producer] = match
        for position, spec in enumerate(remaining):
            external[("given", spec, position)] = spec
    used = [i for i in members if not consumers[i] or any(c not in inside for c in consumers[i])]
    if kind is OpKind.LAYER_NORM:
        used = [members[-1]]
    outputs = [t for i in used or members[-1:] for t in operators[i].outputs]
    saved = [t for i in members for t in operators[i].saved if not _computed_again(t, i, operators, producers, inside)]
    if kind is OpKind.LAYER_NORM and saved:
        # The kernel keeps its input and the statistics, and recomputes the normalised values.
        largest = max(t.numel for t in saved)
        saved = [next(t for t in saved if t.numel == largest), *(t for t in saved if t.numel < largest)]
    first, last = operators[members[0]], operators[members[-1]]
    return Operator(
        name=f"fused_{kind.value}" + ("_backward" if first.phase is Phase.BACKWARD else ""),
        kind=kind,
        phase=first.phase,
        scope=last.scope,
        inputs=tuple(external.values()),
        outputs=tuple(outputs),
        parameters=tuple(dict.fromkeys(p for i in members for p in operators[i].parameters)),
        saved=tuple(saved),
        attributes={**first.attributes, "fused": len(members)},
    )


def _computed_again(
    spec: TensorSpec, index: int, operators: Sequence[Operator], producers: dict[int, list[int]], inside: set[int]
) -> bool:
    """Whether a fused backward recomputes tensor ``spec`` of operator ``index``, from inputs that the group keeps."""
    return any(
        operators[p].saved and any(t.numel == spec.numel for t in operators[p].outputs)
        for p in producers[index]
        if p in inside
    )
