"""Numeric precision: the dtype of each tensor of an operator, which was captured in fp32."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from traincast.errors import UnknownNameError
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec

_PRODUCTS: Final = frozenset(
    {OpKind.GEMM, OpKind.BATCHED_GEMM, OpKind.GROUPED_GEMM, OpKind.CONV, OpKind.DEPTHWISE_CONV, OpKind.RNN}
)
_LINEAR: Final = frozenset({OpKind.GEMM, OpKind.GROUPED_GEMM})


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The dtype of each kind of tensor.

    Matrix products compute in ``products``, those of linear layers with their weights in ``linear``. ``activations``
    and ``weights`` are stored in these dtypes during the step. ``master`` is the dtype of the optimizer's extra copy of
    the weights (None: no copy), ``states`` that of its states.
    """

    name: str
    products: DType
    linear: DType
    activations: DType
    weights: DType
    gradients: DType
    master: DType | None
    states: DType = DType.FP32

    def apply(self, op: Operator) -> Operator:
        """``op`` with its floating-point tensors in the dtypes of this precision."""
        if op.phase is Phase.OPTIMIZER:
            return self._optimizer(op)
        if op.kind is OpKind.LOSS or "log_softmax" in op.name:
            return op  # the loss is always computed in fp32
        compute = self.linear if op.kind in _LINEAR else self.products
        inside = compute if op.kind in _PRODUCTS or op.kind is OpKind.ATTENTION else self.activations
        if inside.nbytes < 2 and op.kind is OpKind.ATTENTION:
            inside = self.activations
        return replace(
            op,
            inputs=tuple(_cast(t, inside) for t in op.inputs),
            outputs=tuple(_cast(t, self.activations) for t in op.outputs),
            saved=tuple(_cast(t, self.activations) for t in op.saved),
        )

    def _optimizer(self, op: Operator) -> Operator:
        """The update: reads the gradient, reads and writes master weights and states, writes the weights."""
        shape = op.parameters[0]
        states = len(op.inputs) - 2
        kept = [
            _cast(shape, self.master or self.weights),
            *(_cast(shape, self.states) for _ in range(states)),
        ]
        written = [*kept, _cast(shape, self.weights)] if self.master else kept
        return replace(op, inputs=(_cast(shape, self.gradients), *kept), outputs=tuple(written))

    def weight_bytes(self, numel: float) -> float:
        """Bytes of ``numel`` weights during the step."""
        return numel * self.weights.nbytes

    def gradient_bytes(self, numel: float) -> float:
        """Bytes of the gradients of ``numel`` weights."""
        return numel * self.gradients.nbytes

    def optimizer_bytes(self, numel: float, states: int) -> float:
        """Bytes of the optimizer's ``states`` per weight, and of master weights, for ``numel`` weights."""
        return numel * (states * self.states.nbytes + (self.master.nbytes if self.master else 0.0))


def _cast(spec: TensorSpec, dtype: DType) -> TensorSpec:
    return spec.with_dtype(dtype) if spec.dtype.is_floating else spec


def _half(name: str, half: DType, *, gradients: DType, linear: DType | None = None) -> Precision:
    return Precision(
        name=name,
        products=half,
        linear=linear or half,
        activations=half,
        weights=half,
        gradients=gradients,
        master=DType.FP32,
    )


def _full(name: str, products: DType) -> Precision:
    fp32 = DType.FP32
    return Precision(
        name=name,
        products=products,
        linear=products,
        activations=fp32,
        weights=fp32,
        gradients=fp32,
        master=None,
    )


def _amp(name: str, half: DType) -> Precision:
    """Automatic mixed precision: weights and gradients in fp32, products and activations in ``half``."""
    return replace(_full(name, half), activations=half)


PRECISIONS: Final[dict[str, Precision]] = {
    "fp32": _full("fp32", DType.FP32),
    "tf32": _full("tf32", DType.TF32),
    "amp": _amp("amp", DType.FP16),
    "amp-bf16": _amp("amp-bf16", DType.BF16),
    "fp16": _half("fp16", DType.FP16, gradients=DType.FP16),
    "bf16": _half("bf16", DType.BF16, gradients=DType.FP32),
    "fp8": _half("fp8", DType.BF16, gradients=DType.FP32, linear=DType.FP8),
    "nvfp4": _half("nvfp4", DType.BF16, gradients=DType.FP32, linear=DType.NVFP4),
}


def load_precision(name: str) -> Precision:
    """The precision called ``name``; raises :class:`UnknownNameError` if there is none."""
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS)
    return PRECISIONS[name]
