"""Attention without a fused kernel: the products, softmax and dropout that older runtimes launch instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from traincast.graph import DType, Operator, OpKind, TensorSpec
from traincast.graph.work_amount import attention_dims

_SOFTMAX_ROWS: Final = 4


def kernels_of(op: Operator, attention: str) -> list[Operator]:
    """The kernels that a runtime launches for attention operator ``op``; ``attention`` is the runtime's setting."""
    if attention == "flash":
        return [op]
    if attention == "flash-2":
        return [replace(op, attributes={**op.attributes, "kernel": attention})]
    batch, heads, *_ = attention_dims(op)
    # Megatron's fused softmax needs batch · heads to be a multiple of four; otherwise PyTorch's kernels run.
    return unfused(op, eager=attention == "eager" or batch * heads % _SOFTMAX_ROWS != 0)


def unfused(op: Operator, *, eager: bool = False) -> list[Operator]:
    """The kernels of one attention operator (forward or backward) that materialises its score matrix.

    Forward: scores = q·kᵀ, softmax with scale and mask, dropout, out = p·v. Backward: dp and dv, dropout,
    softmax, dq and dk. A causal mask saves no work. With ``eager``, scale and mask are separate kernels.
    """
    b, h, sq, sk, dq, dv = attention_dims(op)
    dtype = op.inputs[0].dtype

    def make(name: str, kind: OpKind, inputs: list[TensorSpec], outputs: list[TensorSpec]) -> Operator:
        return Operator(
            name=name, kind=kind, phase=op.phase, scope=op.scope, inputs=tuple(inputs), outputs=tuple(outputs)
        )

    def flat(rows: int, columns: int) -> TensorSpec:
        return TensorSpec((b * h, rows, columns), dtype, 0)

    scores = flat(sq, sk)
    mask = TensorSpec((b * h, sq, sk), DType.BOOL, 0)
    gemm = OpKind.BATCHED_GEMM
    apart = ["scale", "mask"] if eager else []
    if op.name.endswith("backward"):
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


def unfused_saved(op: Operator) -> float:
    """Bytes that unfused attention keeps beyond those of a fused kernel: softmax and dropout outputs, and the mask."""
    b, h, sq, sk, _, _ = attention_dims(op)
    return b * h * sq * sk * (2 * op.inputs[0].dtype.nbytes + 1.0)
