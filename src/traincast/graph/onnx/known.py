"""Values that the file determines: sizes, indices and scalars, which are computed instead of traced.

A PyTorch program computes these on the host. A large table (a mask for a whole batch) is not a known value: it is
made on the device, and traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from traincast.graph.onnx.network import OnnxNode

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
