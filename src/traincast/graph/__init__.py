"""What is computed: tensors, operators and graphs, and the ways to obtain a graph."""

from traincast.graph.operator import Block, FixedTensor, Operator, OperatorGraph
from traincast.graph.tensor import DType, TensorSpec
from traincast.graph.vocabulary import OpKind, Phase, Scalar

__all__ = ["Block", "DType", "FixedTensor", "OpKind", "Operator", "OperatorGraph", "Phase", "Scalar", "TensorSpec"]
