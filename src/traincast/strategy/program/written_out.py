"""Layers as libraries of plain PyTorch modules write them: one kernel for each small step.

The zoo's layers use fused kernels for normalisation and rotary positions, as training frameworks do. Hugging Face's
modules compute the same in five to ten kernels each, keep the input of a norm in fp32, and repeat keys and values for
the heads that share them. This file turns the first form into the second; it is the opposite of ``fusion``.

A kernel is described by the bytes that it reads and writes per element: ``(2, 4)`` casts a 16-bit tensor to fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from traincast.graph import DType, Operator, OperatorGraph, OpKind, Phase, TensorSpec

Kernel: TypeAlias = tuple[str, OpKind, tuple[float, ...], tuple[float, ...]]
"""Name, kind, and bytes per element of each input and each output; 0 stands for a tensor too small to count."""

_WIDTH: Final = {1.0: DType.INT8, 2.0: DType.BF16, 4.0: DType.FP32}
_COPY, _MUL, _SUM = OpKind.COPY, OpKind.ELEMENTWISE, OpKind.REDUCTION

NORM_FORWARD: Final[tuple[Kernel, ...]] = (
    ("to_fp32", _COPY, (2.0,), (4.0,)),
    ("pow", _MUL, (4.0,), (4.0,)),
    ("mean", _SUM, (4.0,), ()),
    ("mul", _MUL, (4.0,), (4.0,)),
    ("to_half", _COPY, (4.0,), (2.0,)),
)
"""Kernels of an RMS norm before the product with its weight: the variance is computed in fp32."""
NORM_BACKWARD: Final[tuple[Kernel, ...]] = (
    ("mul", _MUL, (2.0,), (2.0,)),
    ("to_fp32", _COPY, (2.0,), (4.0,)),
    ("mul", _MUL, (4.0,), (4.0,)),
    ("mul", _MUL, (4.0, 4.0), (4.0,)),
    ("sum", _SUM, (4.0,), ()),
    ("pow_backward", _MUL, (4.0, 4.0), (4.0,)),
    ("add", _MUL, (4.0, 4.0), (4.0,)),
)
ROTARY_FORWARD: Final[tuple[Kernel, ...]] = (
    ("mul", _MUL, (2.0,), (2.0,)),
    ("neg", _MUL, (1.0,), (1.0,)),
    ("cat", _COPY, (2.0,), (2.0,)),
    ("mul", _MUL, (2.0,), (2.0,)),
)
"""``q · cos + rotate(q) · sin``: half of the elements are negated (1 byte on average), then both halves are joined."""
ROTARY_BACKWARD: Final[tuple[Kernel, ...]] = (
    ("mul", _MUL, (2.0,), (2.0,)),
    ("mul", _MUL, (2.0,), (2.0,)),
    ("neg", _MUL, (1.0,), (1.0,)),
    ("slice_backward", _COPY, (1.0,), (2.0,)),
    ("slice_backward", _COPY, (1.0,), (2.0,)),
    ("add", _MUL, (2.0, 2.0), (2.0,)),
)
LOGITS_FORWARD: Final[tuple[Kernel, ...]] = (("to_fp32", _COPY, (2.0,), (4.0,)),)
LOGITS_BACKWARD: Final[tuple[Kernel, ...]] = (("to_half", _COPY, (4.0,), (2.0,)),)


def write_out(graph: OperatorGraph, *, repeats_keys: bool = False, fused_loss: bool = False) -> OperatorGraph:
    """Return ``graph`` with RMS norms, rotary positions and the cast of the logits as single kernels.

    With ``repeats_keys``, keys and values are copied for all heads that share them. With ``fused_loss``, the loss reads
    the logits in 16 bits.
    """
    writer = _Writer(graph, repeats_keys=repeats_keys, fused_loss=fused_loss)
    blocks = tuple(
        replace(block, forward=writer.phase(block.forward), backward=writer.phase(block.backward))
        for block in graph.blocks
    )
    return replace(
        graph,
        operators=tuple(writer.operators),
        edges=tuple(sorted(writer.edges)),
        forward_of=tuple(writer.forward_of),
        blocks=blocks,
    )


class _Writer:
    """Collects the operators of a graph and those that stand beside them."""

    def __init__(self, graph: OperatorGraph, *, repeats_keys: bool, fused_loss: bool) -> None:
        self.operators = list(graph.operators)
        self.edges = set(graph.edges)
        self.forward_of = list(graph.forward_of)
        self._repeats_keys = repeats_keys
        self._fused_loss = fused_loss
        self._trained = {
            graph.forward_of[i]
            for block in graph.blocks
            for i in block.backward
            if any(t.batch_dim is None for t in graph.operators[i].outputs)
        }

    def phase(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Return the operators of a phase with the added kernels in front of those that they belong to."""
        found: list[int] = []
        for index in indices:
            found += [*self._beside(index), index]
        return tuple(found)

    def _beside(self, index: int) -> list[int]:
        """Add the kernels of one operator, change what it saves, and return the numbers of the new operators."""
        op = self.operators[index]
        if "rms_norm" in op.name:
            if op.phase is Phase.FORWARD:
                self.operators[index] = _half(op, saved=_norm_saved(op, trained=index in self._trained))
            return self._add(index, op, NORM_FORWARD if op.phase is Phase.FORWARD else NORM_BACKWARD)
        if op.name.startswith("rotary"):
            return self._add(index, op, ROTARY_FORWARD if op.phase is Phase.FORWARD else ROTARY_BACKWARD)
        if "log_softmax" in op.name and not self._fused_loss:
            return self._add(index, op, LOGITS_FORWARD if op.phase is Phase.FORWARD else LOGITS_BACKWARD)
        if op.kind is OpKind.ATTENTION and self._repeats_keys:
            return self._repeat(index, op)
        return []

    def _add(self, index: int, op: Operator, kernels: Sequence[Kernel]) -> list[int]:
        shape = max((*op.outputs, *op.inputs), key=lambda t: t.numel if t.batch_dim is not None else 0)
        return [self._append(index, op, kernel, shape, shape) for kernel in kernels]

    def _append(self, index: int, op: Operator, kernel: Kernel, read: TensorSpec, written: TensorSpec) -> int:
        name, kind, reads, writes = kernel
        number = len(self.operators)
        self.operators.append(
            Operator(
                name=name,
                kind=kind,
                phase=op.phase,
                scope=op.scope,
                inputs=tuple(read.with_dtype(_WIDTH[w]) for w in reads),
                outputs=tuple(written.with_dtype(_WIDTH[w]) for w in writes),
                attributes={"as_is": True},
            )
        )
        self.forward_of.append(self.forward_of[index])
        self.edges.add((number, index))
        return number

    def _repeat(self, index: int, op: Operator) -> list[int]:
        """Copies of keys and values for every query head, which attention keeps instead of the originals."""
        query, *others = [t for t in op.inputs if len(t.shape) == 4][-3:]
        narrow = [t for t in others if t.numel < query.numel]
        if not narrow:
            return []
        whole = replace(narrow[0], shape=(*narrow[0].shape[:1], query.shape[1], *narrow[0].shape[2:]))
        if op.phase is Phase.FORWARD:
            kept = tuple(whole if t.numel == narrow[0].numel else t for t in op.saved)
            self.operators[index] = replace(op, saved=(*kept, whole))
        kernel: Kernel = ("repeat", _COPY, (2.0,), (2.0,))
        if op.phase is Phase.BACKWARD:
            kernel = ("repeat_backward", _SUM, (2.0,), (2.0,))
            return [self._append(index, op, kernel, whole, narrow[0]) for _ in narrow]
        return [self._append(index, op, kernel, narrow[0], whole) for _ in narrow]


def _half(op: Operator, *, saved: tuple[TensorSpec, ...]) -> Operator:
    """``op`` on 16-bit tensors, which keeps ``saved`` in the dtypes that they have."""
    inputs, outputs = (tuple(t.with_dtype(DType.BF16) for t in part) for part in (op.inputs, op.outputs))
    return replace(op, inputs=inputs, outputs=outputs, saved=saved, attributes={**op.attributes, "as_is": True})


def _norm_saved(op: Operator, *, trained: bool) -> tuple[TensorSpec, ...]:
    """What a written-out RMS norm keeps: its input in fp32 and, if its weight is ``trained``, the normalised values."""
    if not op.saved:
        return ()
    largest = max(op.saved, key=lambda t: t.numel)
    small = tuple(t for t in op.saved if t.numel < largest.numel)
    normalised = (largest.with_dtype(DType.BF16),) if trained else ()
    return (largest.with_dtype(DType.FP32), *normalised, *small)
