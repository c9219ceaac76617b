"""Operators: the tensor operations of a model, and the graph that they form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from traincast.errors import UnknownNameError
from traincast.graph.optimizers import OPTIMIZERS
from traincast.graph.tensor import DType, TensorSpec
from traincast.graph.vocabulary import OpKind, Phase, Scalar, is_backward
from traincast.graph.work_amount import bytes_read, bytes_written, flops

NO_ATTRIBUTES: Mapping[str, Scalar] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One tensor operation, with everything that its cost depends on.

    ``inputs`` are in canonical order for its kind (GEMM: a, b; convolution: input, weight;
    attention: q, k, v; their backwards put the incoming gradient first). ``parameters`` are the
    model's weights among the inputs, ``saved`` the tensors that this operator is the first to keep for backward.
    """

    name: str
    kind: OpKind
    phase: Phase
    scope: str = ""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: tuple[TensorSpec, ...] = ()
    saved: tuple[TensorSpec, ...] = ()
    attributes: Mapping[str, Scalar] = field(default_factory=lambda: NO_ATTRIBUTES, hash=False)

    @property
    def is_gradient(self) -> bool:
        """Whether it is the gradient of another operator, by its name."""
        return is_backward(self.name)

    @property
    def flops(self) -> float:
        """Floating-point operations (a multiply-add counts two)."""
        return flops(self)

    @property
    def bytes_read(self) -> float:
        """Bytes that must be read from device memory."""
        return bytes_read(self)

    @property
    def bytes_written(self) -> float:
        """Bytes that must be written to device memory."""
        return bytes_written(self)

    @property
    def nbytes(self) -> float:
        """Bytes moved to and from device memory."""
        return self.bytes_read + self.bytes_written

    @property
    def dtype(self) -> DType:
        """What it computes in: the dtype of its first input (or output, where it has no input)."""
        return (self.inputs or self.outputs)[0].dtype

    def with_batch(self, batch: int) -> Operator:
        """The same operator on ``batch`` samples."""
        if batch == 1:
            return self
        return replace(
            self,
            inputs=tuple(t.with_batch(batch) for t in self.inputs),
            outputs=tuple(t.with_batch(batch) for t in self.outputs),
            saved=tuple(t.with_batch(batch) for t in self.saved),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedTensor:
    """A tensor of a module that no update changes: a buffer, or a parameter without a gradient.

    ``scope`` is the module that owns it. If several modules own the same tensor, ``shared`` is its name, and a rank
    holds it once. A quantised parameter has ``bits`` per element and takes ``stored`` bytes in all, with the constants
    of its format; 0 means that it is stored in the precision of the step.
    """

    scope: str
    spec: TensorSpec
    buffer: bool = False
    shared: str = ""
    bits: int = 0
    stored: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A group of operators that the model repeats ``count`` times in a row.

    Indices point into :attr:`OperatorGraph.operators`; each phase in its own execution order.
    ``boundary`` are the activations that cross to the next block, ``fixed`` the frozen parameters and buffers of its
    modules. ``first`` marks a layer that stands alone: the first of a run of equal modules where its operators differ
    from the others', or one whose neighbours are of other kinds.
    """

    scope: str
    count: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    optimizer: tuple[int, ...]
    boundary: tuple[TensorSpec, ...]
    fixed: tuple[FixedTensor, ...] = ()
    first: bool = False

    @property
    def repeated(self) -> bool:
        """Whether it is a layer: one of a run of equal modules, which pipelines share out and recomputation covers."""
        return self.count > 1 or self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorGraph:
    """The operators of one training step on one sample, repeated blocks stored once.

    ``edges`` are (producer, consumer) pairs of operator indices; ``forward_of[i]`` is the forward
    operator that backward operator ``i`` differentiates, or -1. ``tokens_per_sample`` is the
    sequence length for language models and 0 otherwise.
    """

    name: str
    operators: tuple[Operator, ...]
    edges: tuple[tuple[int, int], ...]
    forward_of: tuple[int, ...]
    blocks: tuple[Block, ...]
    tokens_per_sample: int = 0
    attributes: Mapping[str, Scalar] = field(default_factory=lambda: NO_ATTRIBUTES, hash=False)

    def __hash__(self) -> int:
        """A hash of a few properties. Hashing every operator would cost more than most lookups save."""
        return hash((self.name, len(self.operators), len(self.edges), self.tokens_per_sample))

    def __iter__(self) -> Iterator[tuple[Operator, int]]:
        """Every distinct operator with the number of times the model runs it."""
        for block in self.blocks:
            for index in (*block.forward, *block.backward, *block.optimizer):
                yield self.operators[index], block.count

    @property
    def num_operators(self) -> int:
        """Operators of a step, repeats counted."""
        return sum((len(b.forward) + len(b.backward) + len(b.optimizer)) * b.count for b in self.blocks)

    @property
    def num_trainable_parameters(self) -> int:
        """Parameters that the optimizer updates."""
        return sum(
            op.parameters[0].numel * count if op.parameters else 0 for op, count in self if op.phase is Phase.OPTIMIZER
        )

    @property
    def num_parameters(self) -> int:
        """All parameters: those that the optimizer updates, and frozen ones."""
        frozen = [(t, b.count) for b in self.blocks for t in b.fixed if not t.buffer]
        alone = sum(t.spec.numel * count for t, count in frozen if not t.shared)
        shared = {t.shared: t.spec.numel for t, _ in frozen if t.shared}
        return self.num_trainable_parameters + alone + sum(shared.values())

    def flops(self, phase: Phase | None = None) -> float:
        """FLOPs for one sample, of one phase or of all."""
        return sum(op.flops * count for op, count in self if phase is None or op.phase is phase)

    def with_optimizer(self, name: str) -> OperatorGraph:
        """The same graph, its weights updated by the optimizer ``name``; raises :class:`UnknownNameError`.

        An optimizer of matrices updates those of the layers (of all blocks if none is repeated), and leaves the other
        weights to the optimizer beside it.
        """
        if name not in OPTIMIZERS:
            raise UnknownNameError("optimizer", name, OPTIMIZERS)
        beside = OPTIMIZERS[name].beside
        layers = {i for block in self.blocks if block.repeated for i in block.optimizer}

        def changed(number: int, op: Operator) -> Operator:
            if op.phase is not Phase.OPTIMIZER:
                return op
            weight = op.parameters[0]
            own = name if not beside or (len(weight.shape) > 1 and (number in layers or not layers)) else beside
            states = OPTIMIZERS[own].states
            return replace(op, name=own, inputs=(weight,) * (2 + states), outputs=(weight,) * (1 + states))

        return replace(self, operators=tuple(changed(i, op) for i, op in enumerate(self.operators)))
