"""Operators that move memory as a measured one does: batch norm, pooling and activations of convolutional networks.

Their own kernels are in no table of measurements, but they wait for memory, and so does the addition of two tensors,
which was measured on many devices. Its equivalent is an addition that moves as many bytes. Kernels that read a tensor
twice, or write to scattered places, move more bytes than their tensors have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec

NAME: Final = "add.fwd"
"""The measured operator that stands in."""

_TRAFFIC: Final = {
    "native_batch_norm": 1.5,  # reads its input for the statistics, reads it again, writes
    "native_batch_norm_backward": 5.0 / 3.0,  # reads input and gradient twice, writes
    "fused_batch_norm": 1.5,
    "fused_batch_norm_backward": 5.0 / 3.0,
    "relu": 1.0,
    "relu_": 1.0,
    "threshold_backward": 1.0,
    "hardtanh": 1.0,
    "hardtanh_": 1.0,
    "hardtanh_backward": 1.0,
    "silu": 1.0,
    "silu_": 1.0,
    "silu_backward": 1.0,
    "leaky_relu": 1.0,
    "leaky_relu_": 1.0,
    "leaky_relu_backward": 1.0,
    "max_pool2d_with_indices": 1.0,
    "max_pool2d_with_indices_backward": 1.8,  # fills the result with zeros, then adds to scattered places
    "avg_pool2d": 1.0,
    "avg_pool2d_backward": 1.0,
}
"""Bytes that a kernel moves, in units of those of its tensors."""


def equivalent_of(op: Operator) -> Operator | None:
    """Returns the addition that moves as many bytes as ``op``, or ``None`` if there is none."""
    factor = _TRAFFIC.get(op.name)
    if factor is None or op.dtype is not DType.FP32:
        return None
    elements = max(1, round(op.nbytes * factor / (3 * op.dtype.nbytes)))
    tensor = TensorSpec((elements,), op.dtype)
    return Operator(name=NAME, kind=OpKind.ELEMENTWISE, phase=Phase.FORWARD, inputs=(tensor, tensor), outputs=(tensor,))


def equivalents(operators: Sequence[Operator]) -> dict[int, Operator]:
    """The equivalents of ``operators``, by position."""
    found = {i: equivalent_of(op) for i, op in enumerate(operators)}
    return {i: op for i, op in found.items() if op is not None}
