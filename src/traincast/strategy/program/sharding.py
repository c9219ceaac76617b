"""Tensor parallelism: which linear layers are cut by column, which by row, and which operators are between them.

The pairs are found in the captured graph, so this works for any model whose blocks have the form
linear → point-wise or attention → linear. If the output of a linear layer reaches another linear layer only through
operators that do not mix its last dim, the first is cut by column and the second by row (Shoeybi et al. 2019,
Megatron-LM). A user's rules override what is found. Adapters follow their layer: beside a column layer, the second
product is cut by column and the first is whole; beside a row layer, the first is cut by row and the second is whole.
"""

from __future__ import annotations

import enum
import fnmatch
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from traincast.errors import StrategyError
from traincast.graph import Operator, OperatorGraph, OpKind, Phase
from traincast.graph.vocabulary import LINEAR
from traincast.strategy.strategy import ShardRule

_KEEPS_SHARDS: Final = frozenset(
    {
        OpKind.ACTIVATION,
        OpKind.ELEMENTWISE,
        OpKind.DROPOUT,
        OpKind.ATTENTION,
        OpKind.SCAN,
        OpKind.COPY,
        OpKind.SOFTMAX,
        OpKind.BATCHED_GEMM,
        OpKind.LAYER_NORM,
    }
)


class Role(enum.Enum):
    """The share of an operator that a rank of a tensor group runs."""

    WHOLE = "whole"  # all of it (or, with sequence parallelism, its share of the tokens)
    COLUMN = "column"  # its share of the outputs of a linear layer
    ROW = "row"  # its share of the inputs of a linear layer: the results must be summed
    INSIDE = "inside"  # its share of an operator between a column and a row layer
    VOCAB = "vocab"  # its share of the vocabulary: embedding, output projection and loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Roles of all operators, and the points where the group communicates.

    ``enters``: forward operators with which a sharded region begins; the gradient of their input is summed in backward.
    ``leaves``: forward operators whose output is a partial sum.
    ``vocabulary``: the token embedding, the projection to the logits and the loss, whether or not they are split.
    """

    roles: tuple[Role, ...]
    enters: frozenset[int]
    leaves: frozenset[int]
    vocabulary: frozenset[int]


def find_sharding(
    graph: OperatorGraph, rules: tuple[ShardRule, ...] = (), *, split_vocabulary: bool = True
) -> Sharding:
    """Roles of the operators of ``graph``, found from its edges and overridden by ``rules``.

    Without ``split_vocabulary``, every rank runs embedding, logits and loss whole.
    """
    producers: dict[int, list[int]] = defaultdict(list)
    for source, target in graph.edges:
        producers[target].append(source)
    given = _given(graph, rules)
    roles = [Role.WHOLE] * len(graph.operators)
    fresh: dict[int, set[int]] = {}  # operator -> linear layers whose sharded output its output is
    columns: set[int] = set()
    led: set[int] = set()  # columns that lead to a row: whatever their width, they are no logits
    rows: set[int] = set()
    bases: dict[str, int] = {}  # module -> its linear layer, which adapters follow
    second: dict[int, int] = {}  # second product of an adapter -> its linear layer
    forward = [i for block in graph.blocks for i in block.forward]
    position = {i: p for p, i in enumerate(forward)}
    for i in forward:
        op = graph.operators[i]
        before = [p for p in producers[i] if position.get(p, 1 << 60) < position[i]]
        reached = set().union(*(fresh.get(p, set()) for p in before)) if before else set()
        if op.kind in LINEAR and "adapts" in op.attributes:
            base = bases[str(op.attributes["adapts"])]
            if op.attributes["part"] == "A" and base in rows:
                rows.add(i)
            elif op.attributes["part"] == "B" and base in fresh:
                fresh[i] = {base}
                second[i] = base
        elif op.kind in LINEAR and op.parameters:
            bases[op.scope] = i
            if given.get(i) is Role.ROW or (reached and given.get(i) is None and _last_dim_flows(op)):
                rows.add(i)
                columns |= reached
                led |= reached
            elif given.get(i) is not Role.WHOLE:
                fresh[i] = {i}
                if given.get(i) is Role.COLUMN:
                    columns.add(i)
        elif op.kind in _KEEPS_SHARDS and reached and _all_fresh(graph, op, before, fresh):
            fresh[i] = reached
    for i in rows:
        roles[i] = Role.ROW
    for i in (*columns, *(i for i, base in second.items() if base in columns)):
        roles[i] = Role.COLUMN
    cut = {graph.operators[i].scope for i in (*columns, *rows)}
    for i in forward:
        if graph.operators[i].name == "dequantize" and graph.operators[i].scope in cut:
            roles[i] = Role.INSIDE
    for i, sources in fresh.items():
        if graph.operators[i].kind not in LINEAR and sources <= columns:
            roles[i] = Role.INSIDE
    inside = rows | led | {i for i, role in enumerate(roles) if role is Role.INSIDE}
    vocabulary = _vocabulary(graph, [i for i in forward if i not in inside], given)
    for i in vocabulary:
        roles[i] = Role.VOCAB if split_vocabulary else Role.WHOLE
    _backward(graph, roles)
    enters = _first_of_each_input(graph, roles, forward, producers)
    leaves = frozenset(
        i for i in forward if roles[i] is Role.ROW or (roles[i] is Role.VOCAB and _is_embedding(graph.operators[i]))
    )
    return Sharding(roles=tuple(roles), enters=enters, leaves=leaves, vocabulary=vocabulary)


def check_shardable(graph: OperatorGraph, sharding: Sharding, tp: int) -> None:
    """Raises :class:`StrategyError` for a tensor degree that does not divide the model's sharded dims."""
    if tp == 1:
        return
    if Role.COLUMN not in sharding.roles:
        raise StrategyError(
            f"tp={tp}, but no pair of column and row shards was found in {graph.name}: "
            f"give rules with --shard-rule 'MODULE=column' and --shard-rule 'MODULE=row', or set tp=1"
        )
    for op, role in zip(graph.operators, sharding.roles, strict=True):
        if op.phase is not Phase.FORWARD:
            continue
        if op.kind is OpKind.ATTENTION and role is Role.INSIDE and op.inputs[0].shape[1] % tp:
            raise StrategyError(
                f"tp={tp} does not divide the {op.inputs[0].shape[1]} attention heads of {op.scope or graph.name}; "
                f"choose a divisor of {op.inputs[0].shape[1]}"
            )
        if role is Role.COLUMN and op.inputs[1].shape[-1] % tp:
            raise StrategyError(
                f"tp={tp} does not divide the {op.inputs[1].shape[-1]} outputs of {op.scope}; "
                f"choose a divisor of {op.inputs[1].shape[-1]}"
            )


def _given(graph: OperatorGraph, rules: tuple[ShardRule, ...]) -> dict[int, Role]:
    given: dict[int, Role] = {}
    names = {"column": Role.COLUMN, "row": Role.ROW, "replicate": Role.WHOLE}
    for pattern, what in rules:
        matched = [
            i
            for i, op in enumerate(graph.operators)
            if op.phase is Phase.FORWARD and _has_role(op) and fnmatch.fnmatchcase(op.scope, pattern)
        ]
        if not matched:
            linear = sorted({op.scope for op in graph.operators if _has_role(op) and op.phase is Phase.FORWARD})
            raise StrategyError(
                f"shard rule {pattern}={what} matches no linear layer of {graph.name}; its linear layers are "
                f"{', '.join(linear[:8])}{', …' if len(linear) > 8 else ''}"
            )
        given |= dict.fromkeys(matched, names[what])
    return given


def _has_role(op: Operator) -> bool:
    """Whether a rule can give the operator a role: it is a linear layer and not part of an adapter."""
    return op.kind in LINEAR and "adapts" not in op.attributes


def _last_dim_flows(op: Operator) -> bool:
    return op.inputs[0].batch_dim is not None


def _all_fresh(graph: OperatorGraph, op: Operator, before: list[int], fresh: dict[int, set[int]]) -> bool:
    """Whether every operand with a batch dim comes from the sharded region; a residual does not."""
    if op.kind is OpKind.LAYER_NORM:
        # A norm over the last dim mixes shards, unless it is per head (q and k norms): narrower than its input layer.
        widths = [graph.operators[p].outputs[0].shape[-1] for p in before if p in fresh]
        return bool(widths) and op.inputs[0].shape[-1] < max(widths) and len(op.inputs[0].shape) == 4
    for p in before:
        if p in fresh:
            continue
        if any(t.batch_dim is not None for t in graph.operators[p].outputs):
            return False
    return True


def _is_embedding(op: Operator) -> bool:
    return op.kind is OpKind.EMBEDDING


def _vocabulary(graph: OperatorGraph, forward: list[int], given: dict[int, Role]) -> frozenset[int]:
    """The token embedding, the projection to the logits, and the loss: what can be cut by vocabulary."""
    tables = [i for i in forward if _is_embedding(graph.operators[i])]
    if not tables:
        return frozenset()
    width = max(graph.operators[i].inputs[0].shape[0] for i in tables)
    found = {i for i in tables if graph.operators[i].inputs[0].shape[0] == width}
    losses = {OpKind.LOSS, OpKind.SOFTMAX}
    for i in forward:
        op = graph.operators[i]
        if (
            (op.kind is OpKind.GEMM and op.inputs[1].shape[-1] == width and given.get(i) is not Role.WHOLE)
            or (op.kind in losses and op.inputs[0].shape[-1] == width)
            or (op.kind in (OpKind.COPY, OpKind.ELEMENTWISE) and op.outputs[0].shape[-1:] == (width,))
        ):
            found.add(i)
    return frozenset(found)


def _backward(graph: OperatorGraph, roles: list[Role]) -> None:
    """Gives each backward operator the role of its forward operator or, if it has none, of its predecessor."""
    for block in graph.blocks:
        role = Role.WHOLE
        for i in block.backward:
            source = graph.forward_of[i]
            op = graph.operators[i]
            if source >= 0:
                role = roles[source]
                if role in (Role.ROW, Role.COLUMN) and op.kind not in LINEAR:
                    role = _side_role(op, graph.operators[source], role)
            roles[i] = role


def _side_role(op: Operator, source: Operator, role: Role) -> Role:
    """The role of a point-wise operator in a linear layer's backward: sharded if its operand is on the sharded side."""
    inner = source.inputs[1].shape[-1] if role is Role.COLUMN else source.inputs[1].shape[-2]
    outer = source.inputs[1].shape[-2] if role is Role.COLUMN else source.inputs[1].shape[-1]
    tokens = max(1, source.inputs[0].numel // max(1, source.inputs[0].shape[-1]))
    width = max((t.numel for t in (*op.inputs, *op.outputs)), default=1) // tokens
    return Role.WHOLE if width == outer and width != inner else Role.INSIDE


def _first_of_each_input(
    graph: OperatorGraph, roles: list[Role], forward: list[int], producers: dict[int, list[int]]
) -> frozenset[int]:
    """The first of all column layers that read the same tensor (q, k, v): one all-reduce serves them all."""
    seen: set[tuple[int, ...]] = set()
    enters = set()
    for i in forward:
        op = graph.operators[i]
        if roles[i] is Role.COLUMN or (roles[i] is Role.VOCAB and op.kind is OpKind.GEMM):
            key = tuple(sorted(p for p in producers[i] if graph.operators[p].phase is Phase.FORWARD))
            if key not in seen:
                seen.add(key)
                enters.add(i)
    return frozenset(enters)
