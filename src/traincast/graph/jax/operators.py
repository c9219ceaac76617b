"""Kernels of a JAX step as operators, with the names, shapes and orders of inputs that a capture gives them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from traincast.graph.capture.recorder import BATCH
from traincast.graph.jax.flat import JaxArray
from traincast.graph.jax.kernels import Kernel, kind_of_kernel
from traincast.graph.operator import Operator
from traincast.graph.tensor import DType, TensorSpec
from traincast.graph.vocabulary import OpKind, Phase, Scalar, kind_of

_DTYPES: Final = {
    "bool": DType.BOOL,
    "int8": DType.INT8,
    "uint8": DType.INT8,
    "int16": DType.INT16,
    "int32": DType.INT32,
    "uint32": DType.INT32,
    "int64": DType.INT64,
}
_NAMES: Final = {
    OpKind.LAYER_NORM: "native_layer_norm",
    OpKind.BATCH_NORM: "native_batch_norm",
    OpKind.SOFTMAX: "_softmax",
    OpKind.REDUCTION: "sum",
    OpKind.ACTIVATION: "gelu",
    OpKind.ELEMENTWISE: "add",
}


def spec_of(shape: Iterable[int], dtype: str) -> TensorSpec:
    """A tensor of one sample; floating-point numbers are captured as fp32."""
    sizes = tuple(shape)
    kind = _DTYPES.get(dtype, DType.FP32)
    for dim, size in enumerate(sizes):
        if size and size % BATCH == 0:
            return TensorSpec((*sizes[:dim], size // BATCH, *sizes[dim + 1 :]), kind, dim)
    return TensorSpec(sizes, kind)


def spec(cell: JaxArray) -> TensorSpec:
    """The tensor of a cell."""
    return spec_of(cell.shape, cell.dtype)


def operators_of(kernel: Kernel, trained: Mapping[int, JaxArray], forward_kind: OpKind | None) -> list[Operator]:
    """The operators that a kernel is; ``forward_kind`` is the kind of the forward kernel that it differentiates."""
    scope = _scope(kernel)
    parameters = tuple(spec(c) for c in _weights(kernel, trained))
    attributes: dict[str, Scalar] = {"module": str(kernel.equations[0].place[1])}
    backward = kernel.phase is Phase.BACKWARD
    if kernel.single == "dot_general":
        kind, inputs, outputs = _product(kernel)
        name = {OpKind.GEMM: "addmm" if kernel.bias else "mm", OpKind.BATCHED_GEMM: "bmm"}[kind]
    elif single := kind_of(kernel.single, source="jax"):
        kind = single
        inputs, outputs = tuple(spec(c) for c in kernel.reads), tuple(spec(c) for c in kernel.writes)
        name = kernel.single
        table = next((c for c in kernel.reads if id(c.root()) in trained), None)
        if kernel.single == "gather" and table is not None:
            kind, name = OpKind.EMBEDDING, "embedding"
            inputs = (spec(table), *(spec_of(c.shape, "int64") for c in kernel.reads if c is not table))
        elif kernel.single == "gather" and kernel.equations[0].call == "take_along_axis" and not backward:
            kind, name = OpKind.LOSS, "nll_loss_forward"
        elif kernel.single.startswith("scatter") and forward_kind is OpKind.LOSS:
            kind, name = OpKind.LOSS, "nll_loss_backward"
            inputs = (*outputs, *inputs)
        elif kernel.single.startswith("scatter") and backward and len(kernel.writes[0].shape) == 2:
            kind, name = OpKind.EMBEDDING, "embedding_dense_backward"
            inputs = inputs[::-1]
    else:
        kind = kind_of_kernel(kernel)
        if backward and forward_kind is not None and forward_kind in _NORMAL and kind is not OpKind.REDUCTION:
            kind = forward_kind
        if kind is OpKind.LAYER_NORM and not backward and _over_batch(kernel):
            kind = OpKind.BATCH_NORM
        name = _NAMES[kind] + ("_backward" if backward and kind in _NORMAL else "")
        inputs, outputs = tuple(spec(c) for c in kernel.reads if c not in kernel.added), _written(kernel)
    made = Operator(
        name=name,
        kind=kind,
        phase=kernel.phase,
        scope=scope,
        inputs=inputs,
        outputs=outputs,
        parameters=parameters,
        attributes=attributes,
    )
    more = []
    for cell in kernel.added:
        whole = max(outputs, key=lambda t: t.numel)
        more.append(
            Operator(
                name="add",
                kind=OpKind.ELEMENTWISE,
                phase=kernel.phase,
                scope=scope,
                inputs=(whole, spec(cell)),
                outputs=(whole,),
                attributes=attributes,
            )
        )
    return [made, *more]


_NORMAL: Final = frozenset({OpKind.LAYER_NORM, OpKind.BATCH_NORM, OpKind.SOFTMAX, OpKind.ACTIVATION})


def _written(kernel: Kernel) -> tuple[TensorSpec, ...]:
    return tuple(spec(c) for c in kernel.writes)


def _scope(kernel: Kernel) -> str:
    """The function of the user's code, inside the layers that it runs in."""
    function = str(kernel.equations[0].place[1]).replace("<locals>.", "").replace("<lambda>", "lambda")
    return f"layers{kernel.loop}.0.{function}" if kernel.loop >= 0 else function


def _weights(kernel: Kernel, trained: Mapping[int, JaxArray]) -> list[JaxArray]:
    cells = [*kernel.reads, *([kernel.bias] if kernel.bias else [])]
    return [c for c in cells if id(c.root()) in trained]


def _over_batch(kernel: Kernel) -> bool:
    """Whether a norm takes its mean over the batch."""
    first = next(e for e in kernel.equations if e.name.startswith("reduce_"))
    axes = first.params.get("axes", ())
    return any(first.inputs[0].shape[a] % BATCH == 0 for a in axes)


def _product(kernel: Kernel) -> tuple[OpKind, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """A product as one or several of [m, k] by [k, n]."""
    equation = kernel.equations[0]
    (left_k, right_k), (left_b, right_b) = equation.params["dimension_numbers"]
    left, right = equation.inputs[0].shape, equation.inputs[1].shape
    b = math.prod(left[d] for d in left_b)
    k = math.prod(left[d] for d in left_k)
    m = math.prod(s for d, s in enumerate(left) if d not in (*left_k, *left_b))
    n = math.prod(s for d, s in enumerate(right) if d not in (*right_k, *right_b))
    bias = (spec_of(kernel.bias.shape[-1:], "float32"),) if kernel.bias else ()
    if left_b:
        shapes = ((b, m, k), (b, k, n), (b, m, n))
        kind = OpKind.BATCHED_GEMM
    else:
        shapes = ((m, k), (k, n), (m, n))  # type: ignore[assignment]
        kind = OpKind.GEMM
    a, w, out = (spec_of(shape, "float32") for shape in shapes)
    return kind, (a, w, *bias), (out,)


def convolution(kernel: Kernel) -> tuple[TensorSpec, TensorSpec, TensorSpec, dict[str, Scalar]]:
    """Input, weight and output of a forward convolution as PyTorch orders their dims, and its attributes."""
    equation = kernel.equations[0]
    numbers = equation.params["dimension_numbers"]
    data, weight, out = (
        spec_of([cell.shape[d] for d in order], cell.dtype)
        for cell, order in (
            (equation.inputs[0], numbers.lhs_spec),
            (equation.inputs[1], numbers.rhs_spec),
            (equation.outputs[0], numbers.out_spec),
        )
    )
    groups = int(equation.params["feature_group_count"])
    stride = equation.params["window_strides"]
    return (
        data,
        weight,
        out,
        {
            "stride": int(stride[0]) if stride else 1,
            "kernel": int(weight.shape[-1]),
            "groups": groups,
            "transposed": any(d != 1 for d in equation.params["lhs_dilation"]),
        },
    )
