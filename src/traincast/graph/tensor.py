"""Tensors as a forecast sees them: a shape, a dtype, and which dim grows with the batch."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class DType(enum.Enum):
    """How an element is stored and computed with; ``TF32`` is stored as four bytes."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    NVFP4 = "nvfp4"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    BOOL = "bool"

    __hash__ = object.__hash__  # members are unique: no need to hash their names

    @property
    def nbytes(self) -> float:
        """Bytes per element; ``NVFP4`` counts its block scales (one fp8 per 16 elements)."""
        return _NBYTES[self]

    @property
    def is_floating(self) -> bool:
        """Whether arithmetic in this dtype counts as FLOPs."""
        return self in _FLOATING


_NBYTES = {
    DType.FP64: 8.0,
    DType.FP32: 4.0,
    DType.TF32: 4.0,
    DType.FP16: 2.0,
    DType.BF16: 2.0,
    DType.FP8: 1.0,
    DType.NVFP4: 0.5625,
    DType.INT64: 8.0,
    DType.INT32: 4.0,
    DType.INT16: 2.0,
    DType.INT8: 1.0,
    DType.BOOL: 1.0,
}
_FLOATING = {DType.FP64, DType.FP32, DType.TF32, DType.FP16, DType.BF16, DType.FP8, DType.NVFP4}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a tensor.

    ``batch_dim`` names the dim whose size is proportional to the number of samples (``None`` for
    parameters and other tensors that do not grow). A captured graph holds one sample; see
    :meth:`with_batch`.
    """

    shape: tuple[int, ...]
    dtype: DType = DType.FP32
    batch_dim: int | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> float:
        """Bytes the tensor occupies."""
        return self.numel * self.dtype.nbytes

    def with_batch(self, batch: int) -> TensorSpec:
        """The same tensor for ``batch`` samples instead of one."""
        if self.batch_dim is None or batch == 1:
            return self
        return self.scaled(self.batch_dim, batch)

    def scaled(self, dim: int, factor: float) -> TensorSpec:
        """The same tensor with one dim multiplied; rounded up, never below one."""
        size = max(1, math.ceil(self.shape[dim] * factor - 1e-9))
        return TensorSpec((*self.shape[:dim], size, *self.shape[dim + 1 :]), self.dtype, self.batch_dim)

    def with_dtype(self, dtype: DType) -> TensorSpec:
        """The same tensor stored in another dtype."""
        return self if dtype is self.dtype else TensorSpec(self.shape, dtype, self.batch_dim)
