"""The operators that a layer of a given shape runs, forward and backward, for every type of the operator set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from traincast.graph import DType, Operator, OpKind, Phase, Scalar, TensorSpec
from traincast.graph.operator import NO_ATTRIBUTES
from traincast.graph.optimizers import OPTIMIZERS
from traincast.profiling.operators.opset_shapes import LayerShape

Operators: TypeAlias = tuple[Operator, ...]


def _op(
    name: str,
    kind: OpKind,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    backward: bool = False,
    parameters: Sequence[TensorSpec] = (),
    attributes: Mapping[str, Scalar] = NO_ATTRIBUTES,
) -> Operator:
    return Operator(
        name=name,
        kind=kind,
        phase=Phase.BACKWARD if backward else Phase.FORWARD,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        parameters=tuple(parameters),
        attributes=dict(attributes),
    )


def _t(*shape: int, dtype: DType = DType.FP32) -> TensorSpec:
    return TensorSpec(shape, dtype)


def _image(shape: LayerShape, batch: int) -> TensorSpec:
    return _t(batch, shape.width, shape.height, shape.height)


def _conv(shape: LayerShape, batch: int) -> Operators:
    groups = shape.groups if shape.width % shape.groups == 0 and shape.out_width % shape.groups == 0 else 1
    kind = OpKind.DEPTHWISE_CONV if groups > 1 and groups == shape.width == shape.out_width else OpKind.CONV
    x = _image(shape, batch)
    weight = _t(shape.out_width, shape.width // groups, shape.kernel, shape.kernel)
    size = (shape.height + 2 * (shape.kernel // 2) - shape.kernel) // shape.stride + 1
    y = _t(batch, shape.out_width, size, size)
    bias = [_t(shape.out_width)] if shape.bias else []
    attributes: dict[str, Scalar] = {
        "stride": shape.stride,
        "kernel": shape.kernel,
        "groups": groups,
        "transposed": False,
    }
    forward = _op("convolution", kind, (x, weight, *bias), (y,), parameters=(weight, *bias), attributes=attributes)
    backward = _op(
        "convolution_backward",
        kind,
        (y, x, weight),
        (x, weight, *bias),
        backward=True,
        parameters=(weight,),
        attributes={**attributes, "products": 2},
    )
    return forward, backward


def _conv_gradients(shape: LayerShape, batch: int) -> Operators:
    """The gradients of a convolution by its inputs and by its weights, apart. Both have the shapes of the forward."""
    forward, _ = _conv(shape, batch)
    return tuple(
        _op(name, forward.kind, forward.inputs[:2], forward.outputs, backward=True, attributes=forward.attributes)
        for name in ("conv2d.bwd_data", "conv2d.bwd_weight")
    )


def _pointwise(name: str, derivative: str, spec: Callable[[LayerShape, int], TensorSpec]) -> _Build:
    def build(shape: LayerShape, batch: int) -> Operators:
        x = spec(shape, batch)
        return (
            _op(name, OpKind.ACTIVATION, (x,), (x,)),
            _op(derivative, OpKind.ACTIVATION, (x, x), (x,), backward=True),
        )

    return build


def _mul(shape: LayerShape, batch: int) -> Operators:
    """A gate per channel, as in squeeze-and-excitation, and its gradients."""
    x, gate = _image(shape, batch), _t(batch, shape.width, 1, 1)
    return (
        _op("mul", OpKind.ELEMENTWISE, (x, gate), (x,)),
        _op("mul", OpKind.ELEMENTWISE, (x, gate), (x,), backward=True),
        _op("mul", OpKind.ELEMENTWISE, (x, x), (x,), backward=True),
    )


def _add(shape: LayerShape, batch: int) -> Operators:
    x = _image(shape, batch)
    return tuple(_op("add", OpKind.ELEMENTWISE, (x, x), (x,), backward=backward) for backward in (False, True))


def _dense(shape: LayerShape, batch: int) -> Operators:
    return _linear(batch, shape.out_width, shape.width, bias=True)


def _linear(rows: int, n: int, k: int, *, bias: bool) -> Operators:
    """``x[rows, k] · Wᵀ[k, n]``, and the gradients of both."""
    x, weight, y = _t(rows, k), _t(k, n), _t(rows, n)
    extra = [_t(n)] if bias else []
    stored = _t(n, k)
    operators = [
        _op("addmm" if bias else "mm", OpKind.GEMM, (x, weight, *extra), (y,), parameters=(*extra, weight)),
        _op("mm", OpKind.GEMM, (y, stored), (x,), backward=True, parameters=(stored,)),
        _op("mm", OpKind.GEMM, (_t(n, rows), x), (stored,), backward=True),
    ]
    if bias:
        operators.append(_op("sum", OpKind.REDUCTION, (y,), (_t(1, n),), backward=True))
    return tuple(operators)


def _max_pool(shape: LayerShape, batch: int) -> Operators:
    x, y = _pooled(shape, batch)
    places = TensorSpec(y.shape, DType.INT64)
    window: dict[str, Scalar] = {"kernel": shape.kernel, "stride": shape.stride}
    return (
        _op("max_pool2d_with_indices", OpKind.POOL, (x,), (y, places), attributes=window),
        _op("max_pool2d_with_indices_backward", OpKind.POOL, (y, x, places), (x,), backward=True, attributes=window),
    )


def _avg_pool(shape: LayerShape, batch: int) -> Operators:
    x, y = _pooled(shape, batch)
    window: dict[str, Scalar] = {"kernel": shape.kernel, "stride": shape.stride}
    return (
        _op("avg_pool2d", OpKind.POOL, (x,), (y,), attributes=window),
        _op("avg_pool2d_backward", OpKind.POOL, (y, x), (x,), backward=True, attributes=window),
    )


def _pooled(shape: LayerShape, batch: int) -> tuple[TensorSpec, TensorSpec]:
    padding = shape.kernel // 2 if shape.stride == 1 else 0
    size = (shape.height + 2 * padding - shape.kernel) // shape.stride + 1
    return _image(shape, batch), _t(batch, shape.width, size, size)


def _batch_norm(shape: LayerShape, batch: int) -> Operators:
    x, channel = _image(shape, batch), _t(shape.width)
    return (
        _op(
            "native_batch_norm", OpKind.BATCH_NORM, (x, *[channel] * 4), (x, channel, channel), parameters=[channel] * 2
        ),
        _op(
            "native_batch_norm_backward",
            OpKind.BATCH_NORM,
            (x, x, channel),
            (x, channel, channel),
            backward=True,
            parameters=[channel],
        ),
    )


def _mean(shape: LayerShape, batch: int) -> Operators:
    x = _image(shape, batch)
    return (
        _op("mean", OpKind.REDUCTION, (x,), (_t(batch, shape.width, 1, 1),)),
        _op("div", OpKind.ELEMENTWISE, (x,), (x,), backward=True),
    )


def _concat(shape: LayerShape, batch: int) -> Operators:
    return _joined(shape, batch, backward=False)


def _split(shape: LayerShape, batch: int) -> Operators:
    return _joined(shape, batch, backward=True)


def _joined(shape: LayerShape, batch: int, *, backward: bool) -> Operators:
    """Concatenation and split; each is the gradient of the other."""
    parts = [_t(batch, part, shape.height, shape.height) for part in shape.parts]
    whole = _t(batch, sum(shape.parts), shape.height, shape.height)
    return (
        _op("cat", OpKind.COPY, parts, (whole,), backward=backward),
        _op("split_with_sizes_copy", OpKind.COPY, (whole,), parts, backward=not backward),
    )


def _transpose(shape: LayerShape, batch: int) -> Operators:
    """A channel shuffle: two groups of channels interleaved."""
    x = _t(batch, max(1, shape.width // 2), 2, shape.height, shape.height)
    return tuple(_op("clone", OpKind.COPY, (x,), (x,), backward=backward) for backward in (False, True))


def _gemm(shape: LayerShape, batch: int) -> Operators:
    return _linear(batch * shape.seq, shape.ffn, shape.width, bias=False)


def _batched_gemm(shape: LayerShape, batch: int) -> Operators:
    """Scores of unfused attention, and the gradients of both operands."""
    b, s, d = batch * shape.heads, shape.seq, shape.head_dim
    q, k, scores = _t(b, s, d), _t(b, d, s), _t(b, s, s)
    return (
        _op("bmm", OpKind.BATCHED_GEMM, (q, k), (scores,)),
        _op("bmm", OpKind.BATCHED_GEMM, (scores, q), (q,), backward=True),
        _op("bmm", OpKind.BATCHED_GEMM, (k, scores), (k,), backward=True),
    )


def _attention(shape: LayerShape, batch: int) -> Operators:
    q = _t(batch, shape.heads, shape.seq, shape.head_dim)
    sums = _t(batch, shape.heads, shape.seq)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    return (
        _op(name, OpKind.ATTENTION, (q, q, q), (q, sums), attributes={"causal": shape.causal}),
        _op(f"{name}_backward", OpKind.ATTENTION, [q] * 5, [q] * 3, backward=True, attributes={"causal": shape.causal}),
    )


def _tokens(shape: LayerShape, batch: int) -> TensorSpec:
    return _t(batch, shape.seq, shape.width)


def _inner(shape: LayerShape, batch: int) -> TensorSpec:
    return _t(batch, shape.seq, shape.ffn)


def _layer_norm(shape: LayerShape, batch: int) -> Operators:
    x, weight, row = _tokens(shape, batch), _t(shape.width), _t(batch, shape.seq, 1)
    return (
        _op("native_layer_norm", OpKind.LAYER_NORM, (x, weight, weight), (x, row, row), parameters=[weight] * 2),
        _op(
            "native_layer_norm_backward",
            OpKind.LAYER_NORM,
            (x, x, row),
            (x, weight, weight),
            backward=True,
            parameters=[weight] * 2,
        ),
    )


def _rms_norm(shape: LayerShape, batch: int) -> Operators:
    x, weight, row = _tokens(shape, batch), _t(shape.width), _t(batch, shape.seq, 1)
    return (
        _op("rms_norm", OpKind.LAYER_NORM, (x, weight), (x, row), parameters=[weight]),
        _op("rms_norm_backward", OpKind.LAYER_NORM, (x, x, weight), (x, weight), backward=True, parameters=[weight]),
    )


def _softmax(shape: LayerShape, batch: int) -> Operators:
    x = _t(batch, shape.heads, shape.seq, shape.seq)
    return (
        _op("_softmax", OpKind.SOFTMAX, (x,), (x,)),
        _op("_softmax_backward_data", OpKind.SOFTMAX, (x, x), (x,), backward=True),
    )


def _embedding(shape: LayerShape, batch: int) -> Operators:
    table, ids, x = _t(shape.vocab, shape.width), _t(batch, shape.seq, dtype=DType.INT64), _tokens(shape, batch)
    return (
        _op("embedding", OpKind.EMBEDDING, (table, ids), (x,), parameters=[table]),
        _op("embedding_dense_backward", OpKind.EMBEDDING, (x, ids), (table,), backward=True),
    )


def _cross_entropy(shape: LayerShape, batch: int) -> Operators:
    rows = batch * shape.seq
    logits, labels, one = _t(rows, shape.vocab), _t(rows, dtype=DType.INT64), _t()
    return (
        _op("_log_softmax", OpKind.SOFTMAX, (logits,), (logits,)),
        _op("nll_loss_forward", OpKind.LOSS, (logits, labels), (one, one)),
        _op("nll_loss_backward", OpKind.LOSS, (one, logits, labels, one), (logits,), backward=True),
        _op("_log_softmax_backward_data", OpKind.SOFTMAX, (logits, logits), (logits,), backward=True),
    )


def _optimizer(shape: LayerShape, batch: int) -> Operators:
    """AdamW and momentum SGD on one projection."""
    weight = _t(shape.ffn, shape.width)
    return tuple(
        Operator(
            name=name,
            kind=OpKind.OPTIMIZER,
            phase=Phase.OPTIMIZER,
            inputs=(weight,) * (2 + OPTIMIZERS[name].states),
            outputs=(weight,) * (1 + OPTIMIZERS[name].states),
            parameters=(weight,),
        )
        for name in ("adamw", "sgd")
    )


def _grouped_gemm(shape: LayerShape, batch: int) -> Operators:
    rows, experts = batch * shape.seq * shape.top_k, shape.experts
    x, y, ends = _t(rows, shape.width), _t(rows, shape.ffn), _t(experts, dtype=DType.INT64)
    weight, stored = _t(experts, shape.width, shape.ffn), _t(experts, shape.ffn, shape.width)
    return (
        _op("grouped_mm", OpKind.GROUPED_GEMM, (x, weight, ends), (y,), parameters=[weight]),
        _op("grouped_mm", OpKind.GROUPED_GEMM, (y, stored, ends), (x,), backward=True, parameters=[stored]),
        _op("grouped_mm_backward", OpKind.GROUPED_GEMM, (x, y, ends), (weight,), backward=True),
    )


def _lstm(shape: LayerShape, batch: int) -> Operators:
    """One layer of an LSTM in one direction, as PyTorch runs it on a CPU."""
    x, y, weights, state = _recurrent_tensors(shape, batch, gates=4)
    tensors = (x, *weights, state, state)
    return (
        _op("mkldnn_rnn_layer", OpKind.RNN, tensors, (y, state, state), parameters=weights),
        _op(
            "mkldnn_rnn_layer_backward",
            OpKind.RNN,
            (*tensors, y, state, state, y),
            tensors,
            backward=True,
            parameters=weights,
        ),
    )


def _plain_recurrence(name: str, gates: int) -> _Build:
    """One layer of a GRU or of a plain RNN in one direction."""

    def build(shape: LayerShape, batch: int) -> Operators:
        x, y, weights, state = _recurrent_tensors(shape, batch, gates=gates)
        tensors = (x, *weights, state)
        return (
            _op(name, OpKind.RNN, tensors, (y, state), parameters=weights),
            _op(f"{name}_backward", OpKind.RNN, (*tensors, y, y), tensors, backward=True, parameters=weights),
        )

    return build


def _recurrent_tensors(
    shape: LayerShape, batch: int, *, gates: int
) -> tuple[TensorSpec, TensorSpec, tuple[TensorSpec, ...], TensorSpec]:
    """Inputs and outputs [steps, batch, width], weights and biases of all gates, and a state."""
    hidden = shape.out_width
    bias = _t(gates * hidden)
    return (
        _t(shape.steps, batch, shape.width),
        _t(shape.steps, batch, hidden),
        (_t(gates * hidden, shape.width), _t(gates * hidden, hidden), bias, bias),
        _t(batch, hidden),
    )


_Build: TypeAlias = Callable[[LayerShape, int], Operators]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorType:
    """A type of operator: which published shapes it is drawn around, and how to build it from a shape."""

    templates: str
    build: _Build


TYPES: Final[Mapping[str, OperatorType]] = {
    "Conv": OperatorType(templates="conv", build=_conv),
    "DepthConv": OperatorType(templates="depthwise", build=_conv),
    "FC": OperatorType(templates="dense", build=_dense),
    "ReLU": OperatorType(templates="image", build=_pointwise("relu_", "threshold_backward", _image)),
    "ReLU6": OperatorType(templates="image", build=_pointwise("hardtanh_", "hardtanh_backward", _image)),
    "Mul": OperatorType(templates="image", build=_mul),
    "Add": OperatorType(templates="image", build=_add),
    "Mean": OperatorType(templates="image", build=_mean),
    "BatchNorm": OperatorType(templates="image", build=_batch_norm),
    "MaxPool": OperatorType(templates="max_pool", build=_max_pool),
    "AvgPool": OperatorType(templates="avg_pool", build=_avg_pool),
    "Concat": OperatorType(templates="concat", build=_concat),
    "Split": OperatorType(templates="concat", build=_split),
    "Transpose": OperatorType(templates="shuffle", build=_transpose),
    "GEMM": OperatorType(templates="layer", build=_gemm),
    "BatchedGEMM": OperatorType(templates="layer", build=_batched_gemm),
    "Attention": OperatorType(templates="layer", build=_attention),
    "LayerNorm": OperatorType(templates="layer", build=_layer_norm),
    "RMSNorm": OperatorType(templates="layer", build=_rms_norm),
    "GELU": OperatorType(templates="layer", build=_pointwise("gelu", "gelu_backward", _inner)),
    "SiLU": OperatorType(templates="layer", build=_pointwise("silu", "silu_backward", _inner)),
    "Softmax": OperatorType(templates="layer", build=_softmax),
    "Embedding": OperatorType(templates="layer", build=_embedding),
    "CrossEntropy": OperatorType(templates="layer", build=_cross_entropy),
    "Optimizer": OperatorType(templates="layer", build=_optimizer),
    "GroupedGEMM": OperatorType(templates="experts", build=_grouped_gemm),
    "ConvGradients": OperatorType(templates="conv", build=_conv_gradients),
    "DepthConvGradients": OperatorType(templates="depthwise", build=_conv_gradients),
    "LSTM": OperatorType(templates="recurrent", build=_lstm),
    "GRU": OperatorType(templates="recurrent", build=_plain_recurrence("gru_layer", 3)),
    "RNN": OperatorType(templates="recurrent", build=_plain_recurrence("rnn_layer", 1)),
}
"""All types of the operator set: fourteen of convolutional networks, twelve of transformers, the gradients of
convolutions by inputs and by weights, and recurrent layers."""
