"""Values that nodes pass on: traced tensors and known arrays.

Known values are those that the file determines: sizes, indices and scalars. They are computed instead of traced, as a
PyTorch program computes them on the host. A large table (a mask for a whole batch) is made on the device, and traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from traincast.graph.onnx.network import OnnxNode

if TYPE_CHECKING:
    import torch


_LARGEST: Final = 4_194_304
_COMPUTED: Final = frozenset(
    """
    Abs Add And ArgMax ArgMin Cast CastLike Ceil Concat ConstantOfShape Cos CumSum Div Equal Exp Expand EyeLike Flatten
    Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Log Max Min Mod
    Mul Neg NonZero Not OneHot Or Pad Pow Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Reshape
    Round ScatterElements ScatterND Shape Sign Sin Size Slice Split Sqrt Squeeze Sub Sum Tile Transpose Trilu Unsqueeze
    Where Xor
    """.split()
)


def computed(node: OnnxNode, values: Sequence[Any], opset: int) -> list[np.ndarray] | None:
    """Returns the outputs of ``node`` if all its inputs are known and the result is small, else ``None``."""
    if node.op == "CastLike" and isinstance(values[0], np.ndarray):
        return [values[0].astype(_dtype_of(values[1]))]
    if node.op not in _COMPUTED or not all(v is None or isinstance(v, np.ndarray) for v in values):
        return None
    if _elements(node, values) > _LARGEST:
        return None
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    proto = helper.make_node(node.op, list(node.inputs), list(node.outputs), **node.attributes)
    evaluator = ReferenceEvaluator(proto, opsets={"": opset})
    given = {name: value for name, value in zip(node.inputs, values, strict=True) if name}
    return [np.asarray(value) for value in evaluator.run(None, given)]


def _dtype_of(value: Any) -> Any:
    """The dtype of a value as numpy has it."""
    return value.dtype if isinstance(value, np.ndarray) else str(value.dtype).removeprefix("torch.")


def _elements(node: OnnxNode, values: Sequence[Any]) -> int:
    """About how many elements the result has."""
    arrays = [v for v in values if v is not None]
    if node.op in ("ConstantOfShape", "Expand", "Tile"):
        shape = arrays[-1].astype(np.int64).ravel()
        size = int(np.prod([max(1, int(s)) for s in shape], dtype=object))
        return size * (arrays[0].size if node.op == "Tile" else 1)
    if node.op == "Range":
        start, limit, step = (float(a) for a in arrays)
        return int(max(0.0, (limit - start) / step))
    if node.op in ("Gather", "GatherND"):
        return int(arrays[1].size * max(1, int(np.prod(arrays[0].shape[1:]))))
    try:
        return int(np.prod(np.broadcast_shapes(*(a.shape for a in arrays)), dtype=object))
    except ValueError:
        return sum(int(a.size) for a in arrays)


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
