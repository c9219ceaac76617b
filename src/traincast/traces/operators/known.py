"""Operators of a trace as operators of a graph, where the profiler recorded their shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from traincast.graph.capture.aten import describe
from traincast.graph.operator import Operator
from traincast.graph.tensor import DType, TensorSpec
from traincast.graph.vocabulary import OpKind, Phase, Scalar, kind_of
from traincast.traces.files.trace import RecordedShape

_DTYPES: Final[dict[str, DType]] = {
    "float": DType.FP32,
    "double": DType.FP64,
    "c10::Half": DType.FP16,
    "c10::BFloat16": DType.BF16,
    "c10::Float8_e4m3fn": DType.FP8,
    "c10::Float8_e5m2": DType.FP8,
    "long int": DType.INT64,
    "long": DType.INT64,
    "int": DType.INT32,
    "short": DType.INT16,
    "signed char": DType.INT8,
    "unsigned char": DType.INT8,
    "bool": DType.BOOL,
}
_ALL: Final = 99
_OPERANDS: Final[dict[str, int]] = {
    **dict.fromkeys(
        "native_layer_norm _fused_rms_norm cudnn_batch_norm native_batch_norm miopen_batch_norm copy_".split(), _ALL
    ),
    **dict.fromkeys(
        "_softmax _log_softmax gelu silu relu relu_ tanh sigmoid native_dropout mean sum neg rsqrt sqrt exp".split(), 1
    ),
    **dict.fromkeys("clamp_min clamp_min_ add add_ mul mul_ sub div div_ pow".split(), 2),
    **dict.fromkeys("addcmul_ addcdiv_".split(), 3),
}
"""The leading arguments that an operator of a trace reads; a tensor behind them is its ``out=``."""

Tensors = tuple[TensorSpec, ...]

_COLORS: Final = 4
"""Most channels of an image."""


@lru_cache(maxsize=65536)
def known_operator(name: str, shape: RecordedShape) -> Operator | None:
    """Return the operator of an event, or ``None`` if its name or its shapes are not known."""
    tensors = _tensors(shape)
    if not tensors:
        return None
    read = _PRODUCTS.get(name)
    if read is not None:
        try:
            return read(name, tensors, shape)
        except (IndexError, ValueError, TypeError):
            return None
    bare = name.removeprefix("aten::")
    kind = kind_of(bare, source="trace")
    if kind is None or bare == name or bare not in _OPERANDS:
        return None
    inputs, outputs = _moved(kind, _OPERANDS[bare], shape)
    return _operator(name, kind, inputs, outputs)


def _moved(kind: OpKind, count: int, shape: RecordedShape) -> tuple[Tensors, Tensors]:
    """Return the tensors that an operator reads, which are its first ``count`` arguments, and those that it writes.

    A dim of stride 0 is read once, however often it is repeated (``expand``). A scalar is part of the launch.
    """
    placed = _placed(shape)
    if kind is OpKind.COPY:  # the first argument is only written
        return tuple(once for _, _, once in placed[1:2] or placed), (placed[0][1],)
    read = [(whole, once) for at, whole, once in placed if at < count]
    written = [whole for at, whole, _ in placed if at >= count]
    if not written:
        written = [_broadcast([whole for whole, _ in read]) if kind is OpKind.ELEMENTWISE else read[0][0]]
    if kind is OpKind.REDUCTION:
        written = [TensorSpec((1,), written[0].dtype)]
    elif kind is OpKind.DROPOUT:
        written.append(written[0].with_dtype(DType.BOOL))  # the mask
    return tuple(once for _, once in read), tuple(written)


def _broadcast(tensors: Sequence[TensorSpec]) -> TensorSpec:
    """Return the result of a point-wise operator: the sizes of all, in the widest floating-point dtype."""
    rank = max(len(t.shape) for t in tensors)
    sizes = [(1,) * (rank - len(t.shape)) + t.shape for t in tensors]
    widest = max((t.dtype for t in tensors), key=lambda dtype: (dtype.is_floating, dtype.nbytes))
    return TensorSpec(tuple(max(each) for each in zip(*sizes, strict=True)), widest)


@lru_cache(maxsize=65536)
def host_operator(name: str, shape: RecordedShape, phase: Phase) -> Operator | None:
    """Return the operator of an event of a processor as a captured model describes it, or ``None`` without shapes.

    Outputs are not recorded: the largest input stands for them.
    """
    tensors = _tensors(shape, scalars=True) or _listed(shape)
    if not tensors:
        return None
    try:
        kind, inputs, attributes = describe(name, _arguments(shape), list(tensors), [])
    except (IndexError, ValueError, TypeError):
        return None
    ordered = cast(list[TensorSpec], inputs) or list(tensors)
    return Operator(
        name=name, kind=kind, phase=phase, inputs=tuple(ordered), attributes=attributes,
        outputs=(max(ordered, key=lambda t: t.numel),),
    )  # fmt: skip


def _listed(shape: RecordedShape) -> Tensors:
    """Return the tensors of a list among an operator's inputs, whose types are not recorded: taken as fp32."""
    try:
        dims, types = json.loads(shape.dims), json.loads(shape.types)
    except ValueError:
        return ()
    lists = [sizes for sizes, dtype in zip(dims, types, strict=False) if dtype == "TensorList"]
    return tuple(
        TensorSpec(tuple(sizes), DType.FP32)
        for found in lists
        for sizes in found
        if isinstance(sizes, list) and sizes and all(isinstance(n, int) and n > 0 for n in sizes)
    )


def numel_of(shape: RecordedShape) -> int:
    """Return the elements of all tensors among an operator's inputs."""
    return sum(t.numel for t in _tensors(shape))


def _arguments(shape: RecordedShape) -> tuple[Any, ...]:
    """Return the arguments of a call, as far as they are recorded; a tensor or an absent one is ``None``."""
    if not shape.concrete:
        return ()
    return tuple(_argument(text) for text in json.loads(shape.concrete))


def _argument(text: Any) -> Any:
    words = str(text).replace("True", "true").replace("False", "false")
    try:
        return json.loads(words) if words else None
    except ValueError:
        return None


def dtype_of(shape: RecordedShape) -> DType | None:
    """Return the first floating-point dtype among an operator's inputs, or ``None`` if none is recorded."""
    return next((t.dtype for t in _tensors(shape) if t.dtype.is_floating), None)


def _operator(name: str, kind: OpKind, inputs: Tensors, outputs: Tensors) -> Operator:
    return Operator(name=name, kind=kind, phase=Phase.FORWARD, inputs=inputs, outputs=outputs)


def _tensors(shape: RecordedShape, *, scalars: bool = False) -> Tensors:
    """Return the tensors among an operator's inputs; those without dimensions only with ``scalars``."""
    return tuple(whole for _, whole, _ in _placed(shape, scalars=scalars))


def _placed(shape: RecordedShape, *, scalars: bool = False) -> list[tuple[int, TensorSpec, TensorSpec]]:
    """Return for each tensor its place among the arguments, itself, and the part of it that memory holds.

    The two differ in dims of stride 0, where the trace has strides.
    """
    if not shape.dims or not shape.types:
        return []
    try:
        dims, types = json.loads(shape.dims), json.loads(shape.types)
        steps = json.loads(shape.strides) if shape.strides else []
    except ValueError:
        return []
    found = []
    for at, (sizes, dtype) in enumerate(zip(dims, types, strict=False)):
        if (
            dtype in _DTYPES
            and isinstance(sizes, list)
            and (sizes or scalars)
            and all(isinstance(n, int) and n > 0 for n in sizes)
        ):
            stride = steps[at] if at < len(steps) and isinstance(steps[at], list) else ()
            held = [1 if step == 0 else n for n, step in zip(sizes, stride, strict=False)]
            whole = TensorSpec(tuple(sizes), _DTYPES[dtype])
            found.append((at, whole, TensorSpec(tuple(held), whole.dtype) if len(held) == len(sizes) else whole))
    return found


def _product(name: str, tensors: Tensors, _: RecordedShape) -> Operator | None:
    a, b = tensors[-2:]
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        return None
    kind = OpKind.GEMM if len(a.shape) == 2 else OpKind.BATCHED_GEMM
    out = TensorSpec((*a.shape[:-1], b.shape[-1]), a.dtype)
    bias = tensors[:1] if name == "aten::addmm" and len(tensors) == 3 and len(tensors[0].shape) == 1 else ()
    return _operator(name, kind, (a, b, *bias), (out,))


def _linear(name: str, tensors: Tensors, _: RecordedShape) -> Operator | None:
    a, weight = tensors[:2]
    rows = math.prod(a.shape[:-1])
    if a.shape[-1] != weight.shape[-1] or len(weight.shape) != 2:
        return None
    product = TensorSpec((rows, a.shape[-1]), a.dtype), TensorSpec(weight.shape[::-1], weight.dtype)
    return _operator(name, OpKind.GEMM, product, (TensorSpec((rows, weight.shape[0]), a.dtype),))


def _attention(name: str, tensors: Tensors, shape: RecordedShape) -> Operator | None:
    q, k, v = tensors[:3]
    if len(q.shape) != 4 or len(v.shape) != 4:
        return None
    out = TensorSpec((*q.shape[:3], v.shape[3]), q.dtype)
    causal = '"True"' in shape.concrete
    return Operator(
        name=name, kind=OpKind.ATTENTION, phase=Phase.FORWARD, inputs=(q, k, v), outputs=(out,),
        attributes={"causal": causal},
    )  # fmt: skip


def _flash(name: str, tensors: Tensors, shape: RecordedShape) -> Operator | None:
    """The inner operator of attention: its tensors have the sequence before the heads."""
    turned = tuple(TensorSpec((t.shape[0], t.shape[2], t.shape[1], t.shape[3]), t.dtype) for t in tensors[:3])
    return _attention(name, turned, shape)


def _convolution(name: str, tensors: Tensors, shape: RecordedShape) -> Operator | None:
    """A convolution; its output follows from stride, padding and dilation, which only some releases record."""
    x, weight = tensors[:2]
    if not shape.concrete or len(x.shape) != len(weight.shape):
        return None
    lists = [json.loads(text) for text in json.loads(shape.concrete) if text.startswith("[")]
    if len(lists) < 3:
        return None
    stride, padding, dilation = lists[:3]
    if name not in ("aten::convolution", "aten::conv2d"):
        stride, padding = padding, stride  # cuDNN's and MIOpen's operators name the padding first
    size = [
        (x.shape[2 + i] + 2 * _at(padding, i) - _at(dilation, i) * (weight.shape[2 + i] - 1) - 1) // _at(stride, i) + 1
        for i in range(len(x.shape) - 2)
    ]
    if min(size) < 1:
        return None
    return convolution(tensors, (x.shape[0], weight.shape[0], *size))


def convolution(tensors: Tensors, output: tuple[int, ...]) -> Operator:
    """Return the operator of a convolution from its inputs and the shape of its output."""
    x, weight = tensors[:2]
    groups = max(1, x.shape[1] // weight.shape[1])
    kind = OpKind.DEPTHWISE_CONV if groups > 1 and groups == x.shape[1] else OpKind.CONV
    return Operator(
        name="convolution", kind=kind, phase=Phase.FORWARD, inputs=(x, weight), outputs=(TensorSpec(output, x.dtype),),
        attributes=_convolved(x, weight, output, groups),
    )  # fmt: skip


def _convolved(x: TensorSpec, weight: TensorSpec, output: tuple[int, ...], groups: int) -> dict[str, Scalar]:
    stride = max(1, round(x.shape[-1] / output[-1]))
    return {"stride": stride, "kernel": weight.shape[-1], "groups": groups, "transposed": False}


def _convolution_backward(name: str, tensors: Tensors, _: RecordedShape) -> Operator | None:
    """The gradients of a convolution by its input and by its weight; those of an image are not computed."""
    if len(tensors) < 3:
        return None
    grad, x, weight = tensors[:3]
    if name != "aten::convolution_backward":
        grad, x = x, grad
    if len(weight.shape) != len(x.shape) or grad.shape[1] != weight.shape[0]:
        return None
    groups = max(1, x.shape[1] // weight.shape[1])
    kind = OpKind.DEPTHWISE_CONV if groups > 1 and groups == x.shape[1] else OpKind.CONV
    products = 1 if x.shape[1] <= _COLORS else 2
    return Operator(
        name="convolution_backward", kind=kind, phase=Phase.BACKWARD, inputs=(grad, x, weight),
        outputs=(weight,) if products == 1 else (x, weight),
        attributes={**_convolved(x, weight, grad.shape, groups), "products": products},
    )  # fmt: skip


def tensors_of(shape: RecordedShape) -> Tensors:
    """Return the tensors among an operator's inputs, as far as they are recorded."""
    return _tensors(shape)


def _at(values: list[int], i: int) -> int:
    return values[min(i, len(values) - 1)]


_PRODUCTS: Final[dict[str, Callable[[str, Tensors, RecordedShape], Operator | None]]] = {
    "aten::mm": _product,
    "aten::addmm": _product,
    "aten::bmm": _product,
    "aten::baddbmm": _product,
    "aten::linear": _linear,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_flash_attention_forward": _flash,
    "aten::_efficient_attention_forward": _flash,
    "aten::convolution_backward": _convolution_backward,
    "aten::cudnn_convolution_backward": _convolution_backward,
    "aten::miopen_convolution_backward": _convolution_backward,
    "aten::convolution": _convolution,
    "aten::cudnn_convolution": _convolution,
    "aten::miopen_convolution": _convolution,
}
