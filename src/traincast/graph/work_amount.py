"""FLOPs and bytes of an operator, from its shapes alone.

A multiply-add counts two FLOPs. Bytes are the compulsory traffic of a kernel that reads every input
once and writes every output once. Cost models account for what a real kernel moves beyond that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from traincast.graph.optimizers import optimizer_called
from traincast.graph.scan_amount import scan_flops, scan_inner_bytes, scan_model_flops
from traincast.graph.vocabulary import MATRIX_KINDS, WRITES_ONLY, OpKind, Phase, Sized


def gemm_dims(op: Sized) -> tuple[int, int, int, int]:
    """``(b, m, n, k)`` of a GEMM kind: ``b`` products of [m, k] by [k, n]."""
    a, b = op.inputs[0].shape, op.inputs[1].shape
    if len(b) == 1:  # a matrix times a vector
        return 1, a[-2], 1, a[-1]
    return math.prod(a[:-2]), a[-2], b[-1], a[-1]


def grouped_gemm_dims(op: Sized) -> tuple[int, int, int, int]:
    """``(experts, rows, n, k)`` of a grouped GEMM: ``rows`` in all, shared out among the experts.

    Forward has inputs [rows, k] and [experts, k, n]; the gradient of the weights has [rows, k] and
    [rows, n] and writes [experts, k, n].
    """
    a, b = op.inputs[0].shape, op.inputs[1].shape
    if len(b) == 3:
        return b[0], a[-2], b[-1], a[-1]
    experts = op.outputs[0].shape[0]
    return experts, a[-2], b[-1], a[-1]


def attention_dims(op: Sized) -> tuple[int, int, int, int, int, int]:
    """``(batch, heads, queries, keys, head dim of q and k, head dim of v)`` of an attention."""
    q, k, v = (t.shape for t in op.inputs[-3:])
    return q[0], q[1], q[2], k[2], q[3], v[3]


def attention_fraction(op: Sized) -> float:
    """Share of the score matrix that is computed; causal and sliding-window masks skip the rest.

    Without a causal mask, half of a window lies on either side of a query.
    """
    _, _, queries, keys, _, _ = attention_dims(op)
    window = float(op.attributes.get("window", 0)) or float(keys)
    if not op.attributes.get("causal", False):
        side = window // 2
        return min(1.0, (queries * (2 * side + 1) - side * (side + 1)) / (queries * keys)) if window < keys else 1.0
    if window >= keys:
        return (keys - queries / 2 + 0.5) / keys if keys >= queries else 0.5
    return (window * queries - window * (window - 1) / 2) / (queries * keys)


def conv_macs(op: Sized) -> float:
    """Multiply-adds of a convolution's forward, from the shapes of its input, weight and output."""
    transposed = bool(op.attributes.get("transposed", False))
    if op.is_gradient:
        grad, data, weight = op.inputs[0].shape, op.inputs[1].shape, op.inputs[2].shape
    else:
        data, weight = op.inputs[0].shape, op.inputs[1].shape
        grad = op.outputs[0].shape
    spatial = math.prod((data if transposed else grad)[2:])
    return float(grad[0]) * spatial * math.prod(weight)


def _gemm(op: Sized) -> float:
    b, m, n, k = gemm_dims(op)
    return 2.0 * b * m * n * k


def _grouped_gemm(op: Sized) -> float:
    _, rows, n, k = grouped_gemm_dims(op)
    return 2.0 * rows * n * k


def _attention(op: Sized) -> float:
    b, h, sq, sk, dq, dv = attention_dims(op)
    forward = 2.0 * b * h * sq * sk * (dq + dv) * attention_fraction(op)
    # Backward recomputes the scores and makes four more products: 2.5 times the forward.
    return 2.5 * forward if op.is_gradient else forward


def _conv(op: Sized) -> float:
    per_product = 2.0 * conv_macs(op)
    return per_product * float(op.attributes.get("products", 1))


def _rnn(op: Sized) -> float:
    """Every step of every sequence multiplies by the input and the recurrent weights; backward does so twice."""
    data, input_weights, recurrent_weights = op.inputs[:3]
    steps = data.numel / data.shape[-1]
    forward = 2.0 * steps * (input_weights.numel + recurrent_weights.numel)
    return 2.0 * forward if op.is_gradient else forward


def _per_element(factor: float) -> Callable[[Sized], float]:
    def amount(op: Sized) -> float:
        tensors = (*op.outputs, *op.inputs)
        return factor * max((t.numel for t in tensors if t.dtype.is_floating), default=0)

    return amount


_one_each = _per_element(1.0)


def _elementwise(op: Sized) -> float:
    """One FLOP per element; a short convolution over the past has a multiply-add per tap."""
    if op.name.startswith("causal_conv1d"):
        taps = op.inputs[-2].shape[-1]
        return 2.0 * taps * op.inputs[0].numel * (2.0 if op.is_gradient else 1.0)
    return _one_each(op)


def _update(op: Sized) -> float:
    """FLOPs per weight by the optimizer; the weights are the largest tensor."""
    return optimizer_called(op.name).flops * _one_each(op)


def _none(op: Sized) -> float:
    return 0.0


_FLOPS: Final[dict[OpKind, Callable[[Sized], float]]] = {
    OpKind.GEMM: _gemm,
    OpKind.BATCHED_GEMM: _gemm,
    OpKind.GROUPED_GEMM: _grouped_gemm,
    OpKind.ATTENTION: _attention,
    OpKind.CONV: _conv,
    OpKind.DEPTHWISE_CONV: _conv,
    OpKind.RNN: _rnn,
    OpKind.BATCH_NORM: _per_element(5.0),
    OpKind.LAYER_NORM: _per_element(5.0),
    OpKind.SOFTMAX: _per_element(5.0),
    OpKind.LOSS: _per_element(5.0),
    OpKind.ACTIVATION: _per_element(1.0),
    OpKind.ELEMENTWISE: _elementwise,
    OpKind.SCAN: scan_flops,
    OpKind.DROPOUT: _per_element(2.0),
    OpKind.POOL: _per_element(1.0),
    OpKind.REDUCTION: _per_element(1.0),
    OpKind.EMBEDDING: _none,
    OpKind.GATHER: _none,
    OpKind.COPY: _none,
    OpKind.RESIZE: _per_element(4.0),
    OpKind.OPTIMIZER: _update,
}


def flops(op: Sized) -> float:
    """Floating-point operations of ``op``."""
    return _FLOPS[op.kind](op)


def model_flops(op: Sized) -> float:
    """FLOPs of ``op`` that count towards MFU: those of the model's products, without recomputation.

    A fused attention computes its scores a second time in backward: five products for the four that the gradients are.
    """
    if op.kind not in MATRIX_KINDS or op.phase is Phase.OPTIMIZER:
        return 0.0
    if op.kind is OpKind.ATTENTION and op.is_gradient:
        return flops(op) * 4 / 5
    if op.kind is OpKind.SCAN:
        return scan_model_flops(op)
    return flops(op)


def bytes_read(op: Sized) -> float:
    """Bytes ``op`` must read; ``distinct`` is the share of its inputs that is neither expanded nor given twice."""
    if op.kind is OpKind.EMBEDDING and op.phase is Phase.FORWARD:
        # A look-up reads the rows it returns, not the whole table; a bag reads all rows that it sums up.
        if op.name == "_embedding_bag":
            return sum(t.nbytes for t in op.inputs[1:]) + op.inputs[1].numel * op.outputs[0].shape[-1] * (
                op.inputs[0].dtype.nbytes
            )
        return op.inputs[-1].nbytes + op.outputs[0].nbytes
    if op.kind is OpKind.SCAN:
        return sum(t.nbytes for t in op.inputs) + scan_inner_bytes(op)
    if op.name in WRITES_ONLY:
        return 0.0
    return sum(t.nbytes for t in op.inputs) * float(op.attributes.get("distinct", 1.0))


def bytes_written(op: Sized) -> float:
    """Bytes ``op`` must write."""
    if op.kind is OpKind.SCAN:
        return sum(t.nbytes for t in op.outputs) + scan_inner_bytes(op)
    return sum(t.nbytes for t in op.outputs)
