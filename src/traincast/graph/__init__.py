"""What is computed: tensors, operators, graphs, and where they come from."""

from traincast.graph.operator import Block, FixedTensor, Operator, OperatorGraph, OpKind, Phase, Scalar
from traincast.graph.tensor import DType, TensorSpec

__all__ = ["Block", "DType", "FixedTensor", "OpKind", "Operator", "OperatorGraph", "Phase", "Scalar", "TensorSpec"]
