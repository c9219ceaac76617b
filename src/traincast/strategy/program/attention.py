"""Attention without a fused kernel: the products, softmax and dropout that older runtimes launch instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from traincast.graph import DType, Operator, OperatorGraph, OpKind, TensorSpec
from traincast.graph.work_amount import attention_dims

_SOFTMAX_ROWS: Final = 4
_ALIGNED_BYTES: Final = 16
"""Heads lie side by side in memory; matrix units read them only if each begins at a multiple of these bytes."""


def kernels_of(op: Operator, attention: str) -> list[Operator]:
    """The kernels that a runtime launches for attention operator ``op``; ``attention`` is the runtime's setting."""
    if attention == "flash":
        return [op]
    if attention in ("flash-1", "flash-2", "cudnn-8"):
        return [replace(op, attributes={**op.attributes, "kernel": attention})]
    batch, heads, *_ = attention_dims(op)
    # Megatron's fused softmax needs batch · heads to be a multiple of four; otherwise PyTorch's kernels run.
    return unfused(op, eager=attention == "eager" or batch * heads % _SOFTMAX_ROWS != 0)


def sink_scopes(graph: OperatorGraph) -> frozenset[str]:
    """The scopes of attention whose softmax has sinks: modules that hold one trained number per head."""
    heads = {op.scope: op.inputs[-3].shape[1] for op in graph.operators if op.kind is OpKind.ATTENTION}
    return frozenset(
        op.scope
        for op in graph.operators
        if op.scope in heads and any(p.shape == (heads[op.scope],) for p in op.parameters)
    )


def without_window(op: Operator) -> Operator:
    """Attention by kernels that compute all scores of a causal mask even if a window hides most of them."""
    return replace(op, attributes={k: v for k, v in op.attributes.items() if k != "window"})


def unfused(op: Operator, *, eager: bool = False) -> list[Operator]:
    """The kernels of one attention operator (forward or backward) that materialises its score matrix.

    Forward: scores = q·kᵀ, softmax with scale and mask, dropout, out = p·v. Backward: dp and dv, dropout,
    softmax, dq and dk. A causal mask saves no work. With ``eager``, scale and mask are separate kernels. If the heads
    are not aligned in memory, products have the attribute ``kernel`` = ``unaligned``: matrix units cannot run them.
    """
    b, h, sq, sk, dq, dv = attention_dims(op)
    dtype = op.inputs[0].dtype
    unaligned = dtype.nbytes == 2 and any(dim * dtype.nbytes % _ALIGNED_BYTES for dim in (dq, dv))

    def make(name: str, kind: OpKind, inputs: list[TensorSpec], outputs: list[TensorSpec]) -> Operator:
        made = Operator(
            name=name, kind=kind, phase=op.phase, scope=op.scope, inputs=tuple(inputs), outputs=tuple(outputs)
        )
        return replace(made, attributes={"kernel": "unaligned"}) if unaligned and kind is gemm else made

    gemm = OpKind.BATCHED_GEMM

    def flat(rows: int, columns: int) -> TensorSpec:
        return TensorSpec((b * h, rows, columns), dtype, 0)

    scores = flat(sq, sk)
    mask = TensorSpec((b * h, sq, sk), DType.BOOL, 0)
    apart = ["scale", "mask"] if eager else []
    if op.is_gradient:
        return [
            make("grad_probabilities", gemm, [flat(sq, dv), flat(dv, sk)], [scores]),
            make("grad_values", gemm, [flat(sk, sq), flat(sq, dv)], [flat(sk, dv)]),
            make("dropout_backward", OpKind.DROPOUT, [scores, mask], [scores]),
            make("softmax_backward", OpKind.SOFTMAX, [scores, scores], [scores]),
            *(make(f"{name}_backward", OpKind.ELEMENTWISE, [scores], [scores]) for name in reversed(apart)),
            make("grad_queries", gemm, [flat(sq, sk), flat(sk, dq)], [flat(sq, dq)]),
            make("grad_keys", gemm, [flat(sk, sq), flat(sq, dq)], [flat(sk, dq)]),
        ]
    return [
        make("scores", gemm, [flat(sq, dq), flat(dq, sk)], [scores]),
        *(make(name, OpKind.ELEMENTWISE, [scores], [scores]) for name in apart),
        make("softmax", OpKind.SOFTMAX, [scores], [scores]),
        make("dropout", OpKind.DROPOUT, [scores], [scores, mask]),
        make("attention_output", gemm, [flat(sq, sk), flat(sk, dv)], [flat(sq, dv)]),
    ]


def unfused_saved(op: Operator, *, softmax: DType) -> float:
    """Bytes that unfused attention keeps beyond those of a fused kernel: softmax and dropout outputs, and the mask."""
    b, h, sq, sk, _, _ = attention_dims(op)
    return b * h * sq * sk * (softmax.nbytes + op.inputs[0].dtype.nbytes + 1.0)
