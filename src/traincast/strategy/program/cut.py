"""Cutting one operator: the share of it that one rank of a tensor or context group runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from traincast.graph import Operator, OpKind, Phase, TensorSpec
from traincast.graph.vocabulary import LINEAR
from traincast.graph.work_amount import gemm_dims
from traincast.strategy.program.sharding import Role

_BY_HEAD: Final = frozenset({OpKind.ATTENTION, OpKind.SCAN})
"""Operators whose second dim is heads, each of which stands alone."""


def cut_operator(
    op: Operator, role: Role, forward: Operator | None, *, tp: int, cp: int, sequence_parallel: bool
) -> Operator:
    """The share of ``op`` (whose forward operator is ``forward``) that one rank runs."""
    if cp > 1:
        op = _attention_heads(op, cp) if op.kind in _BY_HEAD else _each(op, lambda t: tokens(t, cp))
    if tp == 1:
        return op
    match role:
        case Role.WHOLE:
            return _each(op, lambda t: tokens(t, tp)) if sequence_parallel else op
        case Role.INSIDE if op.name == "dequantize":
            return _each(op, lambda t: _divide(t, -1, tp))
        case Role.INSIDE:
            if op.kind in _BY_HEAD:
                return _attention_heads(op, tp)
            return _each(op, lambda t: width(t, tp))
        case Role.COLUMN | Role.ROW | Role.VOCAB if op.kind in LINEAR:
            source = forward if forward is not None and forward.kind in LINEAR else op
            return _linear(op, source, column=role is not Role.ROW, tp=tp)
        case Role.VOCAB if op.kind is OpKind.EMBEDDING:
            if op.phase is Phase.FORWARD:
                return replace(op, inputs=(_divide(op.inputs[0], 0, tp), *op.inputs[1:]))
            return replace(op, outputs=(_divide(op.outputs[0], 0, tp),))
        case Role.VOCAB if all(t.batch_dim is None for t in op.inputs):  # gradients of a tied table, added up
            return _each(op, lambda t: _divide(t, 0, tp))
        case _:
            return _each(op, lambda t: width(t, tp))


def saved_fraction(op: Operator, role: Role, *, tp: int, cp: int, sequence_parallel: bool) -> float:
    """The fraction of the tensors saved by ``op`` that one rank holds.

    Each rank holds its share of the tensors inside a sharded region. It holds whole inputs of column layers and whole
    tensors outside sharded regions, unless sequence parallelism splits them by tokens.
    """
    inside = role in (Role.INSIDE, Role.ROW) or (role is Role.VOCAB and op.kind not in LINEAR)
    return (1.0 / tp if inside or sequence_parallel else 1.0) / cp


def tokens(spec: TensorSpec, ways: int) -> TensorSpec:
    """``spec`` with its tokens split ``ways`` ways, along the last divisible dim before the features."""
    if spec.batch_dim is None or len(spec.shape) < 2:
        return _divide(spec, 0, ways) if spec.batch_dim == 0 else spec
    dims = [d for d in range(len(spec.shape) - 1) if spec.shape[d] % ways == 0]
    return _divide(spec, dims[-1] if dims else spec.batch_dim, ways)


def width(spec: TensorSpec, ways: int) -> TensorSpec:
    """``spec`` with its features or heads split ``ways`` ways; tensors without a batch dim stay whole."""
    if spec.batch_dim is None or len(spec.shape) < 2:
        return spec
    dims = [d for d in range(len(spec.shape)) if d != spec.batch_dim and spec.shape[d] % ways == 0]
    if len(spec.shape) == 4 and 1 in dims:
        return _divide(spec, 1, ways)
    return _divide(spec, dims[-1] if dims else len(spec.shape) - 1, ways)


def _divide(spec: TensorSpec, dim: int, ways: int) -> TensorSpec:
    return spec.scaled(dim % len(spec.shape), 1.0 / ways)


def _each(op: Operator, change: Callable[[TensorSpec], TensorSpec]) -> Operator:
    return replace(op, inputs=tuple(map(change, op.inputs)), outputs=tuple(map(change, op.outputs)))


def _attention_heads(op: Operator, ways: int) -> Operator:
    return _each(op, lambda t: _divide(t, 1, ways) if len(t.shape) >= 3 else t)


def _linear(op: Operator, source: Operator, *, column: bool, tp: int) -> Operator:
    """One rank's share of a linear layer's product; the product determines which of m, n and k shrinks.

    Forward is y[m,n] = x[m,k]·w[k,n]: a column layer cuts n, a row layer cuts k. The gradient of the input (dy·wᵀ)
    contracts over n; the gradient of the weights has n and k as its outer dims.
    """
    if op.phase is Phase.FORWARD:
        return _cut_product(op, "n" if column else "k", tp)
    if op.parameters:
        return _cut_product(op, "k" if column else "n", tp)
    _, m, n, _ = gemm_dims(op)
    size = source.inputs[1].shape[-1 if column else -2]
    if column:
        return _cut_product(op, "m" if m == size else "n", tp)
    return _cut_product(op, "n" if n == size else "m", tp)


def _cut_product(op: Operator, dim: str, tp: int) -> Operator:
    a, b, *rest = op.inputs
    out, *more = op.outputs
    match dim:
        case "m":
            a, out = _divide(a, -2, tp), _divide(out, -2, tp)
        case "n":
            b, out = _divide(b, -1, tp), _divide(out, -1, tp)
            rest = [_divide(t, -1, tp) for t in rest]
        case _:
            a, b = _divide(a, -1, tp), _divide(b, -2, tp)
    return replace(op, inputs=(a, b, *rest), outputs=(out, *more))
