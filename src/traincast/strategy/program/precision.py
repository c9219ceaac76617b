"""Numeric precision: the dtype of each tensor of an operator, which was captured in fp32."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from traincast.errors import UnknownNameError, expect
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec
from traincast.graph.optimizers import optimizer_called
from traincast.graph.vocabulary import LINEAR, PRODUCTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The dtype of each kind of tensor.

    Matrix products compute in ``products``, those of linear layers with their weights in ``linear``. ``activations``
    and ``weights`` are stored in these dtypes during the step. ``master`` is the dtype of the optimizer's extra copy of
    the weights (None: no copy), ``states`` that of its states. Frozen weights are stored in ``frozen`` (None: as
    weights). ``autocast`` marks automatic mixed precision, where some operators stay in fp32 (see the runtime).
    """

    name: str
    products: DType
    linear: DType
    activations: DType
    weights: DType
    gradients: DType
    master: DType | None
    states: DType = DType.FP32
    frozen: DType | None = None
    autocast: bool = False

    @property
    def frozen_weights(self) -> DType:
        """The dtype of frozen weights that are not quantised."""
        return self.frozen or self.weights

    def with_wide_weights(self) -> Precision:
        """The precision of fp32 adapters beside frozen weights in this precision: fp32 weights and no master copy."""
        fp32 = DType.FP32
        return replace(self, weights=fp32, gradients=fp32, master=None, states=fp32, frozen=self.frozen_weights)

    def apply(self, op: Operator) -> Operator:
        """``op`` with its floating-point tensors in the dtypes of this precision."""
        if op.phase is Phase.OPTIMIZER:
            return self._optimizer(op)
        if op.kind is OpKind.LOSS or "log_softmax" in op.name:
            return op  # the loss is always computed in fp32
        if op.attributes.get("as_is"):  # kernels that mix dtypes, described for 16-bit training
            return op if self.activations.nbytes <= 2 else _cast_all(op, self.activations)
        compute = self.linear if op.kind in LINEAR else self.products
        inside = compute if op.kind in PRODUCTS else self.activations
        if inside.nbytes < 2 and op.kind is OpKind.ATTENTION:
            inside = self.activations
        wide = "reads" in op.attributes, "writes" in op.attributes  # products of adapters in fp32, and conversions
        return replace(
            op,
            inputs=tuple(_cast(t, DType.FP32 if wide[0] else inside) for t in op.inputs),
            outputs=tuple(_cast(t, DType.FP32 if wide[1] else self.activations) for t in op.outputs),
            saved=tuple(_cast(t, DType.FP32 if wide[0] else self.activations) for t in op.saved),
        )

    def _optimizer(self, op: Operator) -> Operator:
        """The update: reads the gradient, reads and writes master weights and states, writes the weights."""
        shape = op.parameters[0]
        states = len(op.inputs) - 2
        state = DType.INT8 if optimizer_called(op.name).state_bytes else self.states
        kept = [
            _cast(shape, self.master or self.weights),
            *(_cast(shape, state) for _ in range(states)),
        ]
        written = [*kept, _cast(shape, self.weights)] if self.master else kept
        return replace(op, inputs=(_cast(shape, self.gradients), *kept), outputs=tuple(written))

    def weight_bytes(self, numel: float) -> float:
        """Bytes of ``numel`` weights during the step."""
        return numel * self.weights.nbytes

    def gradient_bytes(self, numel: float) -> float:
        """Bytes of the gradients of ``numel`` weights."""
        return numel * self.gradients.nbytes

    def state_bytes(self, optimizer: str) -> float:
        """Bytes of one state of one weight, with the constants of 8-bit optimizers (one fp32 per block)."""
        return optimizer_called(optimizer).state_bytes or self.states.nbytes

    def optimizer_bytes(self, numel: float, states: int, optimizer: str = "") -> float:
        """Bytes of the optimizer's ``states`` per weight, and of master weights, for ``numel`` weights."""
        return numel * (states * self.state_bytes(optimizer) + (self.master.nbytes if self.master else 0.0))


def _cast_all(op: Operator, dtype: DType) -> Operator:
    """``op`` with all floating-point tensors in ``dtype``."""
    inputs, outputs, saved = (tuple(_cast(t, dtype) for t in part) for part in (op.inputs, op.outputs, op.saved))
    return replace(op, inputs=inputs, outputs=outputs, saved=saved)


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


def _pure(name: str, half: DType) -> Precision:
    """Everything in ``half``: weights, gradients and optimizer states, without master weights."""
    return replace(_full(name, half), activations=half, weights=half, gradients=half, states=half)


def _amp(name: str, half: DType) -> Precision:
    """Automatic mixed precision: weights and gradients in fp32, products and activations in ``half``."""
    return replace(_full(name, half), activations=half, autocast=True)


PRECISIONS: Final[dict[str, Precision]] = {
    "fp32": _full("fp32", DType.FP32),
    "tf32": _full("tf32", DType.TF32),
    "amp": _amp("amp", DType.FP16),
    "amp-bf16": _amp("amp-bf16", DType.BF16),
    "fp16": _half("fp16", DType.FP16, gradients=DType.FP16),
    "bf16": _half("bf16", DType.BF16, gradients=DType.FP32),
    "pure-bf16": _pure("pure-bf16", DType.BF16),
    "fp8": _half("fp8", DType.BF16, gradients=DType.FP32, linear=DType.FP8),
    "nvfp4": _half("nvfp4", DType.BF16, gradients=DType.FP32, linear=DType.NVFP4),
}


def load_precision(name: str) -> Precision:
    """The precision called ``name``; raises :class:`UnknownNameError` if there is none."""
    expect("precision", name, str, "a name such as bf16")
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS)
    return PRECISIONS[name]
