"""The operator set: distinct operators of many networks, published and sampled around, ready to be profiled.

After swPredictor's operator set: the operators of thirteen families of convolutional networks, with channel
widths, kernels and resolutions varied around the published ones, and those of transformers, forward and
backward. It is drawn with a seed, so that two machines measure the same operators.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from traincast.errors import FileFormatError, RequestError
from traincast.files import write_json
from traincast.graph import DType, Operator, OpKind, Phase, Scalar, TensorSpec, zoo
from traincast.graph.files import read_json
from traincast.graph.load import load_model
from traincast.graph.operator import NO_ATTRIBUTES
from traincast.profile.rows import PHASES, canonical, key_of, operator_of, params_of
from traincast.profile.windows import pool_window

CNN_MODELS: Final[Mapping[str, str]] = {
    "alexnet": "alexnet",
    "vgg": "vgg16",
    "googlenet": "googlenet",
    "resnet": "resnet50",
    "squeezenet": "squeezenet",
    "densenet": "densenet121",
    "mobilenet-v1": "mobilenet-v1",
    "mobilenet-v2": "mobilenet-v2",
    "mobilenet-v3": "mobilenet-v3-large",
    "mnasnet": "mnasnet",
    "proxylessnas": "proxylessnas",
    "shufflenet-v2": "shufflenet-v2",
    "nasbench": "nasbench",
}
"""The thirteen families, and the model of the zoo that stands for each."""

_MOST_SAMPLES: Final = 10**4
_MOST_BATCH: Final = 10**9
TRANSFORMER_FAMILIES: Final = frozenset({"gpt", "llama", "bert", "moe", "mpt", "vit"})
FORMAT: Final = "traincast-opset"
VERSION: Final = 1

_WIDTHS: Final = (0.5, 0.625, 0.75, 0.875, 1.0, 1.125, 1.25, 1.5, 1.75, 2.0)
_ATTEMPTS: Final = 60
_MAX_HIDDEN: Final = 8192

Operators: TypeAlias = tuple[Operator, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """The published dims that a type of operator is drawn around; what a type does not use is zero."""

    width: int = 0
    out_width: int = 0
    height: int = 0
    kernel: int = 0
    stride: int = 0
    groups: int = 1
    bias: bool = False
    parts: tuple[int, ...] = ()
    heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    seq: int = 0
    vocab: int = 0
    experts: int = 0
    top_k: int = 0
    causal: bool = True


def operator_set(*, samples: int = 40, seed: int = 0, batch: int = 1) -> Operators:
    """Distinct operators of all types: of each, ``samples`` drawn with ``seed``, forward and backward."""
    return tuple(
        op for operators in operator_set_by_type(samples=samples, seed=seed, batch=batch).values() for op in operators
    )


def operator_set_by_type(*, samples: int = 40, seed: int = 0, batch: int = 1) -> dict[str, Operators]:
    """The operator set by type (``Conv``, ``ReLU6``, ``Attention`` …); an operator is under the first type it is of."""
    if not 1 <= samples <= _MOST_SAMPLES or not 1 <= batch <= _MOST_BATCH:
        raise RequestError(
            f"operator set of {samples} samples at batch {batch}: expected 1 to {_MOST_SAMPLES} and 1 to {_MOST_BATCH}"
        )
    published = _published()
    seen: set[str] = set()
    drawn: dict[str, Operators] = {}
    for name, kind in TYPES.items():
        rng = random.Random(f"{name}/{seed}")  # noqa: S311  (a reproducible draw, no secret)
        chosen: list[Operator] = []
        count = 0
        for shape in _drawn(published[kind.templates], rng, samples):
            fresh = {key_of(op): canonical(op) for op in kind.build(shape, batch)}
            fresh = {key: op for key, op in fresh.items() if key not in seen}
            seen.update(fresh)
            chosen += fresh.values()
            count += bool(fresh)
            if count == samples:
                break
        drawn[name] = tuple(chosen)
    return drawn


def _drawn(published: Sequence[_Shape], rng: random.Random, samples: int) -> Iterator[_Shape]:
    """Published shapes for the first half, in a random order, and shapes around them from then on."""
    order = list(published)
    rng.shuffle(order)
    yield from order[: -(-samples // 2)]
    for _ in range(_ATTEMPTS * samples):
        yield _around(rng.choice(published), rng)


def _around(shape: _Shape, rng: random.Random) -> _Shape:
    """Widths, kernels, resolutions and lengths near those of ``shape``."""
    scale = rng.choice(_WIDTHS)
    height = max(1, round(shape.height * rng.uniform(0.5, 1.5))) if shape.height else 0
    kernel = shape.kernel
    if kernel > 1 and shape.stride:
        kernel = max(2 if kernel == 2 else 3, kernel + rng.choice((-2, 0, 2, 4)))
        height = max(height, kernel)
    width = _width(shape.width, scale)
    depthwise = shape.groups > 1 and shape.groups == shape.width
    heads = max(1, round(shape.heads * rng.choice(_WIDTHS))) if shape.heads else 0
    return replace(
        shape,
        width=min(width, _MAX_HIDDEN) if shape.seq else width,
        out_width=width if depthwise else _width(shape.out_width, rng.choice(_WIDTHS)),
        groups=width if depthwise else 1 if shape.groups > 1 else shape.groups,
        height=height,
        kernel=kernel,
        parts=tuple(_width(part, scale) for part in shape.parts),
        heads=heads,
        head_dim=rng.choice((32, 64, 80, 96, 128)) if shape.head_dim else 0,
        ffn=_width(shape.ffn, rng.choice(_WIDTHS)),
        seq=rng.choice((64, 128, 192, 256, 384, 512, 1024, 2048)) if shape.seq else 0,
        vocab=max(1000, round(shape.vocab * rng.uniform(0.25, 1.0))) if shape.vocab else 0,
        experts=max(2, round(shape.experts * rng.choice(_WIDTHS))) if shape.experts else 0,
    )


def _width(width: int, scale: float) -> int:
    """A width scaled to a multiple of eight, as networks have them; narrow ones stay as they are."""
    return max(8, round(width * scale / 8) * 8) if width >= 8 else width


# The published shapes


@cache
def _published() -> dict[str, list[_Shape]]:
    """The shapes that each template is drawn around, from the zoo."""
    found: dict[str, dict[_Shape, None]] = {}

    def add(template: str, shape: _Shape | None) -> None:
        if shape is not None:
            found.setdefault(template, {})[shape] = None

    for model in CNN_MODELS.values():
        for operator in load_model(model, use_cache=True).operators:
            if operator.phase is Phase.FORWARD:
                for template, shape in _templates(operator):
                    add(template, shape)
    for name in zoo.names():
        known = zoo.card(name)
        if known.family in TRANSFORMER_FAMILIES:
            add("experts" if known.family == "moe" else "layer", _layer(known.parameters))
    return {template: list(shapes) for template, shapes in found.items()}


def _layer(parameters: Mapping[str, Any]) -> _Shape | None:
    """A transformer's layer by the dimensions on its card; the largest are left to those who shard them."""
    hidden, heads = int(parameters["hidden"]), int(parameters["heads"])
    if hidden > _MAX_HIDDEN:
        return None
    seq = int(parameters.get("seq", 512))
    return _Shape(
        width=hidden,
        heads=heads,
        head_dim=int(parameters.get("head_dim", hidden // heads)),
        ffn=int(parameters.get("expert_ffn", parameters.get("ffn", 4 * hidden))),
        seq=min(seq, 2048),
        vocab=min(int(parameters.get("vocab", 32000)), 65536),
        experts=int(parameters.get("experts", 0)),
        top_k=int(parameters.get("top_k", 0)),
        causal="image" not in parameters,
    )


def _templates(operator: Operator) -> Iterator[tuple[str, _Shape | None]]:
    """Which types a captured operator of an image network is a published example of."""
    shapes = [t.shape for t in operator.inputs]
    images = bool(shapes) and len(shapes[0]) == 4
    match operator.kind:
        case OpKind.CONV | OpKind.DEPTHWISE_CONV if images:
            weight = shapes[1]
            shape = _Shape(
                width=shapes[0][1],
                out_width=weight[0],
                height=shapes[0][2],
                kernel=weight[2],
                stride=int(operator.attributes["stride"]),
                groups=int(operator.attributes["groups"]),
                bias=len(shapes) > 2,
            )
            yield ("depthwise" if operator.kind is OpKind.DEPTHWISE_CONV else "conv"), shape
        case OpKind.POOL if images:
            window = pool_window(data=shapes[0][2:], out=operator.outputs[0].shape[2:])
            if window is not None and "adaptive" not in operator.name and window.kernel[0] > 1:
                name = "max_pool" if "max" in operator.name else "avg_pool"
                yield (
                    name,
                    _Shape(width=shapes[0][1], height=shapes[0][2], kernel=window.kernel[0], stride=window.stride[0]),
                )
        case OpKind.GEMM if operator.name == "addmm":
            yield "dense", _Shape(width=shapes[0][1], out_width=shapes[1][1])
        case OpKind.COPY if operator.name == "cat" and images and operator.outputs[0].shape[1] > shapes[0][1]:
            yield "concat", _Shape(parts=tuple(s[1] for s in shapes)[:4], height=shapes[0][2])
        case OpKind.COPY if operator.name == "clone" and shapes and len(shapes[0]) == 5:
            yield "shuffle", _Shape(width=shapes[0][1] * shapes[0][2], height=shapes[0][3])
        case OpKind.BATCH_NORM | OpKind.ACTIVATION | OpKind.ELEMENTWISE | OpKind.REDUCTION if images:
            yield "image", _Shape(width=shapes[0][1], height=shapes[0][2])
        case _:
            return


# Builders: from a shape to the operators of one layer


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


def _image(shape: _Shape, batch: int) -> TensorSpec:
    return _t(batch, shape.width, shape.height, shape.height)


def _conv(shape: _Shape, batch: int) -> Operators:
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


def _pointwise(name: str, derivative: str, spec: Callable[[_Shape, int], TensorSpec]) -> _Build:
    def build(shape: _Shape, batch: int) -> Operators:
        x = spec(shape, batch)
        return (
            _op(name, OpKind.ACTIVATION, (x,), (x,)),
            _op(derivative, OpKind.ACTIVATION, (x, x), (x,), backward=True),
        )

    return build


def _mul(shape: _Shape, batch: int) -> Operators:
    """A gate per channel, and its gradients, as squeeze-and-excitation has them."""
    x, gate = _image(shape, batch), _t(batch, shape.width, 1, 1)
    return (
        _op("mul", OpKind.ELEMENTWISE, (x, gate), (x,)),
        _op("mul", OpKind.ELEMENTWISE, (x, gate), (x,), backward=True),
        _op("mul", OpKind.ELEMENTWISE, (x, x), (x,), backward=True),
    )


def _add(shape: _Shape, batch: int) -> Operators:
    x = _image(shape, batch)
    return tuple(_op("add", OpKind.ELEMENTWISE, (x, x), (x,), backward=backward) for backward in (False, True))


def _dense(shape: _Shape, batch: int) -> Operators:
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


def _max_pool(shape: _Shape, batch: int) -> Operators:
    x, y = _pooled(shape, batch)
    places = TensorSpec(y.shape, DType.INT64)
    window: dict[str, Scalar] = {"kernel": shape.kernel, "stride": shape.stride}
    return (
        _op("max_pool2d_with_indices", OpKind.POOL, (x,), (y, places), attributes=window),
        _op("max_pool2d_with_indices_backward", OpKind.POOL, (y, x, places), (x,), backward=True, attributes=window),
    )


def _avg_pool(shape: _Shape, batch: int) -> Operators:
    x, y = _pooled(shape, batch)
    window: dict[str, Scalar] = {"kernel": shape.kernel, "stride": shape.stride}
    return (
        _op("avg_pool2d", OpKind.POOL, (x,), (y,), attributes=window),
        _op("avg_pool2d_backward", OpKind.POOL, (y, x), (x,), backward=True, attributes=window),
    )


def _pooled(shape: _Shape, batch: int) -> tuple[TensorSpec, TensorSpec]:
    padding = shape.kernel // 2 if shape.stride == 1 else 0
    size = (shape.height + 2 * padding - shape.kernel) // shape.stride + 1
    return _image(shape, batch), _t(batch, shape.width, size, size)


def _batch_norm(shape: _Shape, batch: int) -> Operators:
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


def _mean(shape: _Shape, batch: int) -> Operators:
    x = _image(shape, batch)
    return (
        _op("mean", OpKind.REDUCTION, (x,), (_t(batch, shape.width, 1, 1),)),
        _op("div", OpKind.ELEMENTWISE, (x,), (x,), backward=True),
    )


def _concat(shape: _Shape, batch: int) -> Operators:
    return _joined(shape, batch, backward=False)


def _split(shape: _Shape, batch: int) -> Operators:
    return _joined(shape, batch, backward=True)


def _joined(shape: _Shape, batch: int, *, backward: bool) -> Operators:
    """Parts put together and taken apart; one is the gradient of the other."""
    parts = [_t(batch, part, shape.height, shape.height) for part in shape.parts]
    whole = _t(batch, sum(shape.parts), shape.height, shape.height)
    return (
        _op("cat", OpKind.COPY, parts, (whole,), backward=backward),
        _op("split_with_sizes_copy", OpKind.COPY, (whole,), parts, backward=not backward),
    )


def _transpose(shape: _Shape, batch: int) -> Operators:
    """Two groups of channels interleaved, as a channel shuffle does it."""
    x = _t(batch, max(1, shape.width // 2), 2, shape.height, shape.height)
    return tuple(_op("clone", OpKind.COPY, (x,), (x,), backward=backward) for backward in (False, True))


def _gemm(shape: _Shape, batch: int) -> Operators:
    return _linear(batch * shape.seq, shape.ffn, shape.width, bias=False)


def _batched_gemm(shape: _Shape, batch: int) -> Operators:
    """Scores of unfused attention, and the gradients of both sides."""
    b, s, d = batch * shape.heads, shape.seq, shape.head_dim
    q, k, scores = _t(b, s, d), _t(b, d, s), _t(b, s, s)
    return (
        _op("bmm", OpKind.BATCHED_GEMM, (q, k), (scores,)),
        _op("bmm", OpKind.BATCHED_GEMM, (scores, q), (q,), backward=True),
        _op("bmm", OpKind.BATCHED_GEMM, (k, scores), (k,), backward=True),
    )


def _attention(shape: _Shape, batch: int) -> Operators:
    q = _t(batch, shape.heads, shape.seq, shape.head_dim)
    sums = _t(batch, shape.heads, shape.seq)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    return (
        _op(name, OpKind.ATTENTION, (q, q, q), (q, sums), attributes={"causal": shape.causal}),
        _op(f"{name}_backward", OpKind.ATTENTION, [q] * 5, [q] * 3, backward=True, attributes={"causal": shape.causal}),
    )


def _tokens(shape: _Shape, batch: int) -> TensorSpec:
    return _t(batch, shape.seq, shape.width)


def _inner(shape: _Shape, batch: int) -> TensorSpec:
    return _t(batch, shape.seq, shape.ffn)


def _layer_norm(shape: _Shape, batch: int) -> Operators:
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


def _rms_norm(shape: _Shape, batch: int) -> Operators:
    x, weight, row = _tokens(shape, batch), _t(shape.width), _t(batch, shape.seq, 1)
    return (
        _op("rms_norm", OpKind.LAYER_NORM, (x, weight), (x, row), parameters=[weight]),
        _op("rms_norm_backward", OpKind.LAYER_NORM, (x, x, weight), (x, weight), backward=True, parameters=[weight]),
    )


def _softmax(shape: _Shape, batch: int) -> Operators:
    x = _t(batch, shape.heads, shape.seq, shape.seq)
    return (
        _op("_softmax", OpKind.SOFTMAX, (x,), (x,)),
        _op("_softmax_backward_data", OpKind.SOFTMAX, (x, x), (x,), backward=True),
    )


def _embedding(shape: _Shape, batch: int) -> Operators:
    table, ids, x = _t(shape.vocab, shape.width), _t(batch, shape.seq, dtype=DType.INT64), _tokens(shape, batch)
    return (
        _op("embedding", OpKind.EMBEDDING, (table, ids), (x,), parameters=[table]),
        _op("embedding_dense_backward", OpKind.EMBEDDING, (x, ids), (table,), backward=True),
    )


def _cross_entropy(shape: _Shape, batch: int) -> Operators:
    rows = batch * shape.seq
    logits, labels, one = _t(rows, shape.vocab), _t(rows, dtype=DType.INT64), _t()
    return (
        _op("_log_softmax", OpKind.SOFTMAX, (logits,), (logits,)),
        _op("nll_loss_forward", OpKind.LOSS, (logits, labels), (one, one)),
        _op("nll_loss_backward", OpKind.LOSS, (one, logits, labels, one), (logits,), backward=True),
        _op("_log_softmax_backward_data", OpKind.SOFTMAX, (logits, logits), (logits,), backward=True),
    )


def _optimizer(shape: _Shape, batch: int) -> Operators:
    """AdamW on a projection, and momentum SGD on the same."""
    weight = _t(shape.ffn, shape.width)
    return tuple(
        Operator(
            name=name,
            kind=OpKind.OPTIMIZER,
            phase=Phase.OPTIMIZER,
            inputs=(weight,) * (2 + states),
            outputs=(weight,) * (1 + states),
            parameters=(weight,),
        )
        for name, states in (("adamw", 2), ("sgd", 1))
    )


def _grouped_gemm(shape: _Shape, batch: int) -> Operators:
    rows, experts = batch * shape.seq * shape.top_k, shape.experts
    x, y, ends = _t(rows, shape.width), _t(rows, shape.ffn), _t(experts, dtype=DType.INT64)
    weight, stored = _t(experts, shape.width, shape.ffn), _t(experts, shape.ffn, shape.width)
    return (
        _op("grouped_mm", OpKind.GROUPED_GEMM, (x, weight, ends), (y,), parameters=[weight]),
        _op("grouped_mm", OpKind.GROUPED_GEMM, (y, stored, ends), (x,), backward=True, parameters=[stored]),
        _op("grouped_mm_backward", OpKind.GROUPED_GEMM, (x, y, ends), (weight,), backward=True),
    )


_Build: TypeAlias = Callable[[_Shape, int], Operators]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Type:
    """A type of operator: the published shapes it is drawn around, and how it is built from one."""

    templates: str
    build: _Build


TYPES: Final[Mapping[str, _Type]] = {
    "Conv": _Type(templates="conv", build=_conv),
    "DepthConv": _Type(templates="depthwise", build=_conv),
    "FC": _Type(templates="dense", build=_dense),
    "ReLU": _Type(templates="image", build=_pointwise("relu_", "threshold_backward", _image)),
    "ReLU6": _Type(templates="image", build=_pointwise("hardtanh_", "hardtanh_backward", _image)),
    "Mul": _Type(templates="image", build=_mul),
    "Add": _Type(templates="image", build=_add),
    "Mean": _Type(templates="image", build=_mean),
    "BatchNorm": _Type(templates="image", build=_batch_norm),
    "MaxPool": _Type(templates="max_pool", build=_max_pool),
    "AvgPool": _Type(templates="avg_pool", build=_avg_pool),
    "Concat": _Type(templates="concat", build=_concat),
    "Split": _Type(templates="concat", build=_split),
    "Transpose": _Type(templates="shuffle", build=_transpose),
    "GEMM": _Type(templates="layer", build=_gemm),
    "BatchedGEMM": _Type(templates="layer", build=_batched_gemm),
    "Attention": _Type(templates="layer", build=_attention),
    "LayerNorm": _Type(templates="layer", build=_layer_norm),
    "RMSNorm": _Type(templates="layer", build=_rms_norm),
    "GELU": _Type(templates="layer", build=_pointwise("gelu", "gelu_backward", _inner)),
    "SiLU": _Type(templates="layer", build=_pointwise("silu", "silu_backward", _inner)),
    "Softmax": _Type(templates="layer", build=_softmax),
    "Embedding": _Type(templates="layer", build=_embedding),
    "CrossEntropy": _Type(templates="layer", build=_cross_entropy),
    "Optimizer": _Type(templates="layer", build=_optimizer),
    "GroupedGEMM": _Type(templates="experts", build=_grouped_gemm),
}
"""Every type of the operator set; the first fourteen are those of convolutional networks."""


# Files


def save_operator_set(by_type: Mapping[str, Operators], path: Path, *, settings: Mapping[str, int]) -> None:
    """Write an operator set as JSON, whole or not at all."""
    operators = [
        [name, op.kind.value, PHASES[op.phase], op.dtype.value, json.loads(params_of(op))]
        for name, chosen in by_type.items()
        for op in chosen
    ]
    data = {"format": FORMAT, "version": VERSION, "settings": dict(settings), "operators": operators}
    write_json(path, data)


def is_operator_set(path: Path) -> bool:
    """Whether a JSON file says that it is an operator set."""
    data = read_json(path)
    return isinstance(data, dict) and data.get("format") == FORMAT


def load_operator_set(path: Path) -> Operators:
    """Read an operator set that :func:`save_operator_set` wrote."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        raise FileFormatError(f'{path} is no operator set of version {VERSION}: it lacks "format": "{FORMAT}"')
    try:
        return tuple(
            operator_of(op, phase, dtype, json.dumps(params)) for _, op, phase, dtype, params in data["operators"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is a damaged operator set: {error}") from error
