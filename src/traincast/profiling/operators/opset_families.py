"""Which operators the thirteen families of convolutional networks have: distinct forward operators by type."""

from __future__ import annotations

from typing import Final

from traincast.graph import Operator, OpKind, Phase
from traincast.graph.load import load_model
from traincast.profiling.operators.opset_shapes import CNN_MODELS
from traincast.profiling.rows import key_of

_TYPE_OF_KIND: Final = {OpKind.CONV: "Conv", OpKind.DEPTHWISE_CONV: "DepthConv", OpKind.BATCH_NORM: "BatchNorm"}
_TYPE_OF_NAME: Final = {
    "addmm": "FC",
    "relu": "ReLU",
    "hardtanh": "ReLU6",
    "mul": "Mul",
    "add": "Add",
    "mean": "Mean",
    "cat": "Concat",
    "split_with_sizes": "Split",
    "split_with_sizes_copy": "Split",
    "split": "Split",
    "clone": "Transpose",
    "max_pool2d_with_indices": "MaxPool",
    "avg_pool2d": "AvgPool",
}
OTHER: Final = "other"
"""The type of operators that the operator set has no type for, such as dropout and other activations."""
COLUMNS: Final = tuple(dict.fromkeys((*_TYPE_OF_KIND.values(), *_TYPE_OF_NAME.values(), OTHER)))
"""All types, in the order of a table."""


def operators_by_family() -> dict[str, dict[str, int]]:
    """The number of distinct forward operators of each type, by family of convolutional networks."""
    counts: dict[str, dict[str, int]] = {}
    for family, model in CNN_MODELS.items():
        found = {
            key_of(operator): operator
            for operator in load_model(model, use_cache=True).operators
            if operator.phase is Phase.FORWARD and operator.kind is not OpKind.LOSS
        }
        counts[family] = {}
        for operator in found.values():
            name = type_of(operator)
            counts[family][name] = counts[family].get(name, 0) + 1
    return counts


def type_of(operator: Operator) -> str:
    """The type of the operator set that a captured operator of an image network belongs to, or :data:`OTHER`."""
    if operator.name == "clone" and len(operator.inputs[0].shape) != 5:
        return OTHER  # a plain copy, not a shuffle of channels
    return _TYPE_OF_KIND.get(operator.kind) or _TYPE_OF_NAME.get(operator.name.removesuffix("_"), OTHER)
