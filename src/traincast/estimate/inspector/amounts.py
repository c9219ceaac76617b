"""What the operators of a graph compute and move, as columns: the part of the input that no setting changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.estimate.inspector.communities import Ints
from traincast.graph import Operator, OperatorGraph, OpKind, Phase

Floats = npt.NDArray[np.float64]

PHASES: tuple[Phase, ...] = tuple(Phase)
_NUMBER: Final = {phase: number for number, phase in enumerate(PHASES)}
_KIND: Final = {(phase, kind): f"{phase.value} {kind.value}" for phase in PHASES for kind in OpKind}
_EVEN: Final = frozenset({OpKind.CONV, OpKind.DEPTHWISE_CONV, OpKind.GEMM, OpKind.BATCH_NORM, OpKind.LAYER_NORM})
"""Kinds that compute twice as much for twice the samples, although some of their tensors do not grow."""
_Measure: TypeAlias = tuple[float, float, float]
"""FLOPs, bytes moved, and bytes of the outputs of an operator."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Amounts:
    """Columns with one entry per stored operator; a repeated block is stored once, and ``count`` is its repeats.

    ``flops``, ``nbytes`` and ``output_bytes`` [2, operators] are in fp32: what does not depend on the batch, and what
    each sample adds. ``parameter_bytes`` are those that the operator updates. ``kind`` is the type as text, such as
    ``backward gemm``. ``edges`` [edges, 2] go from producers to consumers; an update follows the operator that
    computes its gradient.
    """

    count: Floats
    flops: Floats
    nbytes: Floats
    output_bytes: Floats
    parameter_bytes: Floats
    phase: Ints
    kind: tuple[str, ...]
    edges: Ints

    @property
    def operators(self) -> int:
        """Operators that are stored."""
        return len(self.count)


@lru_cache(maxsize=512)
def amounts_of(graph: OperatorGraph) -> Amounts:
    """Return the amounts of a captured graph."""
    count = np.ones(len(graph.operators))
    for block in graph.blocks:
        count[[*block.forward, *block.backward, *block.optimizer]] = block.count
    one, two = np.array(_measures(graph.operators)).reshape(-1, 2, 3).swapaxes(0, 1)
    linear = np.stack([2 * one - two, two - one]).clip(min=0.0)
    updates = [op.phase is Phase.OPTIMIZER and bool(op.parameters) for op in graph.operators]
    return Amounts(
        count=count,
        flops=linear[:, :, 0],
        nbytes=linear[:, :, 1],
        output_bytes=linear[:, :, 2],
        parameter_bytes=np.array(
            [op.parameters[0].nbytes if own else 0.0 for op, own in zip(graph.operators, updates, strict=True)]
        ),
        phase=np.array([_NUMBER[op.phase] for op in graph.operators], dtype=np.int64),
        kind=tuple(_KIND[op.phase, op.kind] for op in graph.operators),
        edges=np.array([*graph.edges, *_updates(graph)], dtype=np.int64).reshape(-1, 2),
    )


def _measures(operators: Sequence[Operator]) -> list[tuple[_Measure, _Measure]]:
    """The measures of every operator with one sample and with two; equal operators are measured once."""
    found: dict[Any, tuple[_Measure, _Measure]] = {}
    measured = []
    for op in operators:
        tensors = (*op.inputs, None, *op.outputs, None, *op.parameters)
        key = (op.name, op.kind, op.phase, *map(id, tensors), *op.attributes.items())
        if key not in found:
            found[key] = _measured(op)
        measured.append(found[key])
    return measured


def _measured(op: Operator) -> tuple[_Measure, _Measure]:
    """The measures of an operator with one sample and with two.

    If all tensors of an operator grow with the samples, its measures double. Products and norms compute twice as much;
    they move tensors that grow twice, and all others once. Any other operator is measured with two samples.
    """
    one = _measure(op)
    fixed = [tensor.nbytes for tensor in op.inputs if tensor.batch_dim is None]
    made = [tensor.nbytes for tensor in op.outputs if tensor.batch_dim is None]
    still = len(fixed) + len(made)
    if op.phase is Phase.OPTIMIZER or still == len(op.inputs) + len(op.outputs):
        return one, one
    if not still or op.kind in _EVEN:
        return one, (2.0 * one[0], 2.0 * one[1] - sum(fixed) - sum(made), 2.0 * one[2] - sum(made))
    return one, _measure(_doubled(op))


def _doubled(op: Operator) -> Operator:
    """The operator on two samples; what it saves for backward is left out."""
    return Operator(
        name=op.name,
        kind=op.kind,
        phase=op.phase,
        inputs=tuple(tensor.with_batch(2) for tensor in op.inputs),
        outputs=tuple(tensor.with_batch(2) for tensor in op.outputs),
        parameters=op.parameters,
        attributes=op.attributes,
    )


def _measure(op: Operator) -> _Measure:
    return op.flops, op.nbytes, sum(tensor.nbytes for tensor in op.outputs)


def _updates(graph: OperatorGraph) -> Iterable[tuple[int, int]]:
    """Edges from the operator that computes a gradient to the operator that updates the parameter with it.

    A capture has no such edges. The gradient is the last output of that shape in the backward of the same module.
    """
    backward = [index for block in graph.blocks for index in block.backward]
    made = {
        (graph.operators[index].scope, output.shape): index
        for index in sorted(backward)
        for output in graph.operators[index].outputs
    }
    for block in graph.blocks:
        last = max(block.backward or backward, default=None)
        for index in block.optimizer:
            op = graph.operators[index]
            source = made.get((op.scope, op.parameters[0].shape), last) if op.parameters else last
            if source is not None:
                yield source, index


def weights_of(kinds: Iterable[str], weights: Mapping[str, float]) -> Floats:
    """Return the weight of each of ``kinds``; an unknown type counts as rarer than all that are known."""
    rarest = max(weights.values(), default=0.0) + 1.0
    return np.array([weights.get(kind, rarest) for kind in kinds])
