"""Split a measured operator into leaf operators, which a model of single kernels can estimate.

A measured operator has the shapes of its forward, whichever phase was run (see :mod:`traincast.fitting.rows.operator`).
The backward of a product is two products. A training step of a layer is its forward, its gradients and its update. A
mixture of experts is two grouped products with an activation between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from traincast.graph import Operator, OpKind, Phase, Scalar, TensorSpec

Parts: TypeAlias = tuple[Operator, ...]


def parts_of(op: Operator) -> Parts:
    """The leaf operators of ``op`` in the order in which they run; ``op`` itself if it is a leaf."""
    name, _, phase = op.name.rpartition(".")
    make = _PARTS.get(name)
    return make(op, phase) if make else (op,)


def _leaf(
    kind: OpKind,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    phase: Phase = Phase.FORWARD,
    **attributes: Scalar,
) -> Operator:
    name = f"{kind.value}_backward" if phase is Phase.BACKWARD else kind.value
    return Operator(
        name=name, kind=kind, phase=phase, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes
    )


def _transposed(t: TensorSpec) -> TensorSpec:
    return TensorSpec((*t.shape[:-2], t.shape[-1], t.shape[-2]), t.dtype)


def _as_parameter_update(weight: TensorSpec) -> Operator:
    return _leaf(OpKind.OPTIMIZER, [weight] * 3, [weight] * 2, phase=Phase.OPTIMIZER)


def _product(op: Operator, phase: str) -> Parts:
    """A product; its backward multiplies the gradient by either operand."""
    if phase not in ("bwd", "fwd+bwd+update"):
        return (op,)
    a, b = op.inputs
    gradient = TensorSpec(op.outputs[0].shape, a.dtype)
    gradients = (
        _leaf(op.kind, [gradient, _transposed(b)], [a]),
        _leaf(op.kind, [_transposed(a), gradient], [b]),
    )
    if phase == "bwd":
        return gradients
    return (_leaf(op.kind, [a, b], op.outputs), *gradients, _as_parameter_update(b))


def _grouped(op: Operator, phase: str) -> Parts:
    """The gradient of the weights sums over each expert's rows; other phases state their own product."""
    if phase != "bwd_grad_w":
        return (op,)
    x, weight = op.inputs
    gradient = TensorSpec(op.outputs[0].shape, x.dtype)
    return (_leaf(OpKind.GROUPED_GEMM, [x, gradient], [weight]),)


def _experts(op: Operator, phase: str) -> Parts:
    """Gate and up, activation, down."""
    x, gate_and_up = op.inputs
    experts, hidden, both = gate_and_up.shape
    wide = TensorSpec((x.shape[0], both), x.dtype)
    middle = TensorSpec((x.shape[0], both // 2), x.dtype)
    down = TensorSpec((experts, both // 2, hidden), x.dtype)
    return (
        _leaf(OpKind.GROUPED_GEMM, [x, gate_and_up], [wide]),
        _leaf(OpKind.ACTIVATION, [wide], [middle]),
        _leaf(OpKind.GROUPED_GEMM, [middle, down], [x]),
    )


def _attention(op: Operator, phase: str) -> Parts:
    if phase != "bwd":
        return (op,)
    q, k, v = op.inputs
    causal = bool(op.attributes.get("causal", False))
    return (_leaf(OpKind.ATTENTION, [q, q, q, k, v], [q, k, v], phase=Phase.BACKWARD, causal=causal),)


def _conv(op: Operator, phase: str) -> Parts:
    """Convolutions by phase; a framework that keeps channels last transposes images before and after."""
    x, weight = op.inputs
    (y,) = op.outputs
    stride = op.attributes.get("stride", 1)
    forward = _leaf(OpKind.CONV, [x, weight], [y], stride=stride)
    around: list[Operator] = []
    if op.attributes.get("data_format") == "nhwc":
        around += [_leaf(OpKind.COPY, [t], [t]) for t in (x, y)]
    if op.attributes.get("act", "none") != "none":
        around.append(_leaf(OpKind.ACTIVATION, [y], [y]))
    match phase:
        case "fwd":
            return (forward, *around)
        case "bwd_data":
            return (_leaf(OpKind.CONV, [y, weight], [x], stride=stride, transposed=True),)
        case "bwd_weight":
            of_weight = _leaf(OpKind.CONV, [y, x, weight], [weight], phase=Phase.BACKWARD, stride=stride, products=1)
            return (of_weight,)
    both = _leaf(OpKind.CONV, [y, x, weight], [x, weight], phase=Phase.BACKWARD, stride=stride, products=2)
    if phase == "bwd":
        return (both, *around)
    return (forward, both, *around, *around, _as_parameter_update(weight))


def _rnn(op: Operator, phase: str) -> Parts:
    """The gradient of the data goes through time as the forward does; that of the weights is one product."""
    x, weight, recurrent = op.inputs
    match phase:
        case "fwd" | "bwd_data":
            return (_leaf(OpKind.RNN, op.inputs, op.outputs),)
        case "bwd":
            return (_leaf(OpKind.RNN, op.inputs, op.outputs, phase=Phase.BACKWARD),)
    steps, width = x.shape[0] * x.shape[1], weight.shape[0]
    inner = weight.shape[1] + recurrent.shape[1]
    gradient, seen = TensorSpec((width, steps), x.dtype), TensorSpec((steps, inner), x.dtype)
    return (_leaf(OpKind.GEMM, [gradient, seen], [TensorSpec((width, inner), x.dtype)]),)


def _each(op: Operator, phase: str) -> Parts:
    """Row-wise and point-wise operators: backward reads the gradient and what forward saw."""
    if phase != "bwd":
        return (op,)
    x = op.outputs[0]
    reads = op.inputs if op.kind is OpKind.ELEMENTWISE else (x, x)
    return (_leaf(op.kind, reads, [x], phase=Phase.BACKWARD),)


def _rope(op: Operator, phase: str) -> Parts:
    """Queries and keys, each turned in halves, multiplied by cosine and sine, and added."""
    (x,) = op.inputs
    passes = (
        _leaf(OpKind.COPY, [x], [x]),
        _leaf(OpKind.ELEMENTWISE, [x], [x]),
        _leaf(OpKind.ELEMENTWISE, [x], [x]),
        _leaf(OpKind.ELEMENTWISE, [x, x], [x]),
    )
    return passes * 2 if phase == "fwd" else passes * 4


def _embedding(op: Operator, phase: str) -> Parts:
    """Backward adds the gradient's rows into the table's."""
    if phase != "bwd":
        return (op,)
    gradient = op.outputs[0]
    table = op.inputs[0] if len(op.inputs) > 1 else gradient
    return (_leaf(OpKind.EMBEDDING, [gradient, op.inputs[-1]], [table], phase=Phase.BACKWARD),)


def _cross_entropy(op: Operator, phase: str) -> Parts:
    """Forward finds the largest logit, then exponentiates and sums; backward scales the softmax that forward kept."""
    logits = op.inputs[0]
    if phase == "bwd":
        return (_leaf(OpKind.LOSS, [logits], [logits], phase=Phase.BACKWARD),)
    return (_leaf(OpKind.LOSS, [logits], op.outputs), _leaf(OpKind.LOSS, [logits], [logits]))


_PARTS: Final[dict[str, Callable[[Operator, str], Parts]]] = {
    **dict.fromkeys(("gemm", "gemm_bias", "gemm_bias_act", "bmm", "baddbmm"), _product),
    "grouped_gemm": _grouped,
    "moe_mlp": _experts,
    "attention": _attention,
    "conv2d": _conv,
    "rnn": _rnn,
    **dict.fromkeys(("add", "sub", "mul", "div", "pow", "where", "masked_fill"), _each),
    **dict.fromkeys(("relu", "gelu", "tanh", "dropout", "layernorm", "rmsnorm", "softmax", "masked_softmax"), _each),
    "rope": _rope,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
}
"""How to take a measured operator apart, by its name without the phase; others are leaves."""
