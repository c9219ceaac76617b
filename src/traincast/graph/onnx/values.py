"""Values that nodes pass on: traced tensors and known arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from traincast.graph.onnx.network import OnnxNode

if TYPE_CHECKING:
    import torch

Value: TypeAlias = Any
"""A traced tensor, a known array, or ``None`` for an input that is left out."""


class UnsupportedError(Exception):
    """A node that asks for something that cannot be traced."""


@dataclass(frozen=True, slots=True)
class Call:
    """A node with the values of its inputs.

    ``batch`` is the traced number of samples, and ``fixed`` the number that the file is made for, if it is not open.
    """

    node: OnnxNode
    values: Sequence[Value]
    batch: int
    fixed: int | None

    def __len__(self) -> int:
        return len(self.values)

    def has(self, position: int) -> bool:
        """Whether the input at ``position`` is given."""
        return position < len(self.values) and self.values[position] is not None

    def tensor(self, position: int) -> torch.Tensor:
        """The input at ``position`` as a tensor."""
        return as_tensor(self.values[position])

    def optional(self, position: int) -> torch.Tensor | None:
        """The input at ``position`` as a tensor, if it is given."""
        return self.tensor(position) if self.has(position) else None

    def operand(self, position: int) -> Any:
        """The input at ``position`` as a tensor, or as a plain number if it is a known scalar."""
        value = self.values[position]
        return value.ravel()[0].item() if isinstance(value, np.ndarray) and value.size == 1 else as_tensor(value)

    def known(self, position: int) -> np.ndarray:
        """The input at ``position``, whose value must be known."""
        value = self.values[position]
        if not isinstance(value, np.ndarray):
            raise UnsupportedError(f"its input {self.node.inputs[position]!r} depends on data")
        return value

    def numbers(self, position: int) -> list[int]:
        """The whole numbers in the input at ``position``."""
        return [int(v) for v in self.known(position).ravel()]

    def number(self, position: int) -> float:
        """The number in the input at ``position``."""
        return float(self.known(position).ravel()[0])

    def get(self, name: str, default: Any) -> Any:
        """The attribute ``name``; text as ``str``."""
        value = self.node.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def axes(self, position: int = 1) -> list[int] | None:
        """Axes, which are an input or, in older files, an attribute; ``None`` if neither is given."""
        if self.has(position):
            return self.numbers(position)
        axes = self.get("axes", None)
        return None if axes is None else [int(a) for a in axes]


def as_tensor(value: Value) -> torch.Tensor:
    """A value as a tensor; a known array becomes a tensor of its shape, without a kernel."""
    import torch

    if not isinstance(value, np.ndarray):
        tensor: torch.Tensor = value
        return tensor
    dtype = {"i": torch.int64, "u": torch.int64, "b": torch.bool}.get(value.dtype.kind, torch.float32)
    return torch.empty(value.shape, dtype=dtype)
