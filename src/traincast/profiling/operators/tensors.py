"""Make tensors for a captured operator: random numbers, and indices within bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch

from traincast.graph import DType, Operator, TensorSpec

Call: TypeAlias = Callable[[], Any]

_TORCH: Final = {
    DType.FP64: torch.float64,
    DType.FP32: torch.float32,
    DType.TF32: torch.float32,
    DType.FP16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.INT64: torch.int64,
    DType.INT32: torch.int32,
    DType.INT16: torch.int16,
    DType.INT8: torch.int8,
    DType.BOOL: torch.bool,
}


class CannotRunError(Exception):
    """The operator cannot be run alone; the message is the reason."""


class Make:
    """Makes tensors on one device: random numbers, and indices within bounds."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, spec: TensorSpec) -> torch.Tensor:
        """A tensor of that shape and dtype."""
        dtype = self.dtype(spec.dtype)
        if dtype is torch.bool:
            return torch.rand(spec.shape, device=self.device) < 0.5
        if not spec.dtype.is_floating:
            return torch.zeros(spec.shape, dtype=dtype, device=self.device)
        return torch.randn(spec.shape, dtype=dtype, device=self.device)

    def dtype(self, dtype: DType) -> torch.dtype:
        """PyTorch's dtype; refuses one that tensors cannot be made in."""
        if dtype not in _TORCH:
            raise CannotRunError(f"PyTorch makes no random tensors in {dtype.value}")
        return _TORCH[dtype]

    def all(self, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
        """Tensors of those shapes and dtypes."""
        return [self(spec) for spec in specs]

    def index(self, spec: TensorSpec, high: int) -> torch.Tensor:
        """Whole numbers below ``high``."""
        return torch.randint(0, max(1, high), spec.shape, dtype=self.dtype(spec.dtype), device=self.device)

    def share(self, spec: TensorSpec) -> torch.Tensor:
        """Numbers between 0 and 1, as probabilities are."""
        return torch.rand(spec.shape, dtype=self.dtype(spec.dtype), device=self.device) * 0.98 + 0.01

    def transposed(self, spec: TensorSpec, one: int = -2, other: int = -1) -> torch.Tensor:
        """A matrix that lies transposed in memory."""
        shape = list(spec.shape)
        shape[one], shape[other] = shape[other], shape[one]
        return self(TensorSpec(tuple(shape), spec.dtype)).transpose(one, other)


Builder: TypeAlias = Callable[[Operator, Make], Call]


def bound(function: Any, arguments: Sequence[Any]) -> Call:
    """A call of ``function`` with those arguments."""
    return lambda: function(*arguments)


def named(builder: Builder, names: str) -> dict[str, Builder]:
    """Map each of several operator names to one builder."""
    return dict.fromkeys(names.split(), builder)
