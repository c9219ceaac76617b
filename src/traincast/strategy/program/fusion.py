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
from traincast.graph.vocabulary import POINTWISE, Scalar
from traincast.strategy.runtime import Fusion

_CHAIN: Final = 3
"""Operators after a batch norm that may still read its result: a copy, an addition, an activation."""
_LOSS: Final = frozenset({OpKind.SOFTMAX, OpKind.LOSS})

_Joins = Callable[[Operator, Operator, bool], bool]
"""``joins(last, op, reads)``: whether ``op`` joins the group that ends with ``last``, whose output it may read."""


def _norm(last: Operator, op: Operator, reads: bool) -> bool:
    return last.scope == op.scope and "Norm" in str(op.attributes.get("module", "")) and op.scope != ""


def _batch_norm(last: Operator, op: Operator, reads: bool) -> bool:
    """A batch norm joins with the operators that read its result; in backward, with those that made its gradient."""
    if op.phase is Phase.BACKWARD:
        return reads and _beside_norm(last) and (_beside_norm(op) or op.kind is OpKind.BATCH_NORM)
    return reads and _beside_norm(op) and (_beside_norm(last) or last.kind is OpKind.BATCH_NORM)


def _beside_norm(op: Operator) -> bool:
    """Whether a kernel can do ``op`` while it normalises; it need not copy a tensor that is overwritten later."""
    return op.kind in POINTWISE or op.name == "clone"


def _elementwise(last: Operator, op: Operator, reads: bool) -> bool:
    return last.kind in POINTWISE and op.kind in POINTWISE and reads


def _loss(last: Operator, op: Operator, reads: bool) -> bool:
    return last.kind in _LOSS and op.kind in _LOSS and reads


_RULES: Final[dict[Fusion, tuple[_Joins, OpKind]]] = {
    "norm": (_norm, OpKind.LAYER_NORM),
    "loss": (_loss, OpKind.LOSS),
    "batch_norm": (_batch_norm, OpKind.BATCH_NORM),
    "elementwise": (_elementwise, OpKind.ELEMENTWISE),
}


def fuse(graph: OperatorGraph, fusions: Iterable[Fusion]) -> OperatorGraph:
    """``graph`` with every group of operators that ``fusions`` allow merged into one operator."""
    for fusion in _RULES:
        if fusion in fusions:
            gathered = _gathered(graph) if fusion == "batch_norm" else graph
            graph = _fuse_one(gathered, *_RULES[fusion])
    return graph


def _gathered(graph: OperatorGraph) -> OperatorGraph:
    """``graph`` with all operators that one batch norm joins in one block; else such layers are single blocks."""
    if not any(op.kind is OpKind.BATCH_NORM for op in graph.operators):
        return graph
    edges, ops = set(graph.edges), graph.operators
    forward, backward = ([list(getattr(b, name)) for b in graph.blocks] for name in ("forward", "backward"))
    for now, passes in ((forward, range(len(forward))), (backward, range(len(backward) - 1, -1, -1))):
        before: int | None = None  # the block whose pass runs before
        for n in passes:
            if graph.blocks[n].count > 1:
                before = None
            if not now[n] or graph.blocks[n].count > 1:
                continue
            while before is not None and now[n] and now[before]:
                last, first = now[before][-1], now[n][0]
                reads = any((source, first) in edges for source in now[before][-_CHAIN:])
                if not _batch_norm(ops[last], ops[first], reads):
                    break
                if now is forward:
                    now[before].append(now[n].pop(0))
                else:
                    now[n].insert(0, now[before].pop())
                    if ops[now[n][0]].kind is OpKind.BATCH_NORM:
                        break
            before = n if now[n] else before
    blocks = tuple(
        replace(block, forward=tuple(f), backward=tuple(b))
        for block, f, b in zip(graph.blocks, forward, backward, strict=True)
    )
    return replace(graph, blocks=blocks)


def _fuse_one(graph: OperatorGraph, joins: _Joins, kind: OpKind) -> OperatorGraph:
    if kind is OpKind.BATCH_NORM and not any(op.kind is kind for op in graph.operators):
        return graph  # pointwise operators alone are no part of a norm
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
    if kind is OpKind.BATCH_NORM:
        return _merge_norm(operators, members, consumers)
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
        attributes={**_shared(first), "fused": len(members)},
    )


def _merge_norm(operators: Sequence[Operator], members: list[int], consumers: dict[int, list[int]]) -> Operator:
    """A batch norm and the pointwise operators beside it: each member reads the result of the one before it.

    Written are the last result, results that others read in the same pass, statistics and gradients of weights.
    """
    first, last = operators[members[0]], operators[members[-1]]
    whole = max(t.numel for i in members for t in operators[i].inputs)
    inputs = [t for i in members for t in operators[i].inputs]
    wide = [t for t in inputs if t.numel == whole]
    outputs = [t for i in members[:-1] for t in operators[i].outputs if t.numel < whole]
    for i in members[:-1]:
        if any(c not in members and operators[c].phase is first.phase for c in consumers[i]):
            outputs += [t for t in operators[i].outputs if t.numel == whole]
    return Operator(
        name="fused_batch_norm" + ("_backward" if first.phase is Phase.BACKWARD else ""),
        kind=OpKind.BATCH_NORM,
        phase=first.phase,
        scope=last.scope,
        inputs=(*wide[: max(1, len(wide) - len(members) + 1)], *(t for t in inputs if t.numel < whole)),
        outputs=(*last.outputs, *outputs),
        parameters=tuple(dict.fromkeys(p for i in members for p in operators[i].parameters)),
        saved=tuple(t for i in members for t in operators[i].saved),
        attributes={**_shared(first), "fused": len(members)},
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


def _shared(first: Operator) -> dict[str, Scalar]:
    """The attributes of a group: those of its first member, except the share that it reads of its own inputs."""
    return {name: value for name, value in first.attributes.items() if name != "distinct"}
