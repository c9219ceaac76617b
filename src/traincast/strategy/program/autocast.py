"""Automatic mixed precision as PyTorch's ``autocast`` applies it to a graph: what stays in fp32, and the casts.

``torch.autocast("cuda")`` runs matrix products and convolutions in 16 bits and a list of operators in fp32: softmax,
norms, exponentials, powers and sums. All others take the widest dtype of their inputs. Weights are stored in fp32, so
an embedding is fp32, and so is the residual stream that starts with it.

Two things cost memory and time. A tensor in fp32 is twice as large, and each product that reads one makes a 16-bit copy
of its own, which it keeps for backward (autocast reuses only the copies of weights). The 16-bit copies of the model's
inputs and of its weights are not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from traincast.graph import DType, Operator, OperatorGraph, OpKind, Phase, TensorSpec
from traincast.graph.vocabulary import PRODUCTS

_FP32: Final = frozenset(
    "_softmax _safe_softmax native_layer_norm native_group_norm acos asin cosh sinh tan erfinv exp exp_ expm1 expm1_ "
    "log log_ log10 log2 log1p log1p_ reciprocal reciprocal_ rsqrt rsqrt_ pow pow_ cumsum cumprod sum prod norm "
    "linalg_vector_norm softplus".split()
)
"""Operators that autocast runs in fp32 on GPUs (PyTorch's documentation, "CUDA Ops that can autocast to float32")."""
_WIDE: Final = {"reads": "fp32", "writes": "fp32"}


def autocast(graph: OperatorGraph) -> OperatorGraph:
    """Return ``graph`` with its fp32 operators marked, and with the casts between them and those in 16 bits."""
    return _Caster(graph).cast()


class _Caster:
    """Marks the operators of a graph and collects the casts beside them."""

    def __init__(self, graph: OperatorGraph) -> None:
        self._graph = graph
        self._operators = list(graph.operators)
        self._edges = set(graph.edges)
        self._forward_of = list(graph.forward_of)
        self._makers: dict[int, list[int]] = defaultdict(list)
        for source, target in graph.edges:
            self._makers[target].append(source)
        self._gradients: dict[int, list[int]] = defaultdict(list)
        for i, source in enumerate(graph.forward_of):
            if source >= 0:
                self._gradients[source].append(i)
        self._wide: dict[int, bool] = {}

    def cast(self) -> OperatorGraph:
        """Return the graph with all casts."""
        before: dict[int, list[int]] = {}
        after: dict[int, list[int]] = {}
        for block in self._graph.blocks:
            for index in block.forward:
                casts = self._mark(index)
                if casts:
                    before[index] = [self._append(index, *cast) for cast in casts]
                    gradients = self._gradients[index]
                    if gradients:
                        last = gradients[-1]
                        after[last] = [self._append(last, spec, there, here) for spec, here, there in casts]
        blocks = tuple(
            replace(
                block,
                forward=tuple(n for i in block.forward for n in (*before.get(i, ()), i)),
                backward=tuple(n for i in block.backward for n in (i, *after.get(i, ()))),
            )
            for block in self._graph.blocks
        )
        return replace(
            self._graph,
            operators=tuple(self._operators),
            edges=tuple(sorted(self._edges)),
            forward_of=tuple(self._forward_of),
            blocks=blocks,
        )

    def _mark(self, index: int) -> list[tuple[TensorSpec, DType, DType]]:
        """Decide the dtype of one forward operator, and return the casts that it needs: a tensor, from, to."""
        op = self._operators[index]
        if op.attributes.get("as_is") or op.kind is OpKind.LOSS or "log_softmax" in op.name:
            return []  # described with its dtypes
        sources = [(self._wide.get(i, False), self._graph.operators[i]) for i in self._makers[index] if i in self._wide]
        if op.kind in PRODUCTS:
            self._wide[index] = False
            return self._narrowed(index, op, [source for wide, source in sources if wide])
        listed = op.name in _FP32
        self._wide[index] = listed or op.kind is OpKind.EMBEDDING or any(wide for wide, _ in sources)
        if not self._wide[index] or op.kind is OpKind.EMBEDDING:
            self._set(index, {"writes": "fp32"} if self._wide[index] else {})
            return []
        narrow = [source for wide, source in sources if not wide]
        mixed = bool(narrow) and not listed
        for i in (index, *self._gradients[index]):
            self._set(i, {"writes": "fp32"} if mixed and i == index else _WIDE)
        return [(spec, DType.BF16, DType.FP32) for spec in _read(op, narrow)] if listed else []

    def _narrowed(self, index: int, op: Operator, wide: Sequence[Operator]) -> list[tuple[TensorSpec, DType, DType]]:
        """Return the 16-bit copies that a product makes of ``wide`` results; it keeps each of them for backward."""
        copies = _read(op, wide)
        trained = [self._graph.operators[i] for i in self._gradients[index] if self._graph.operators[i].kind is op.kind]
        if op.kind is not OpKind.BATCHED_GEMM:
            trained = [each for each in trained if any(t.batch_dim is None for t in each.outputs)]
        listed = [t.numel for t in op.saved]
        if trained:
            more = []
            for spec in copies:
                if spec.numel in listed:
                    listed.remove(spec.numel)
                else:
                    more.append(spec)
            self._operators[index] = replace(op, saved=(*op.saved, *more))
        return [(spec, DType.FP32, DType.BF16) for spec in copies]

    def _set(self, index: int, marks: dict[str, str]) -> None:
        op = self._operators[index]
        if marks and not op.attributes.get("as_is"):
            self._operators[index] = replace(op, attributes={**op.attributes, **marks})

    def _append(self, index: int, spec: TensorSpec, here: DType, there: DType) -> int:
        """Add a cast of ``spec`` beside operator ``index`` and return its number."""
        op, number = self._operators[index], len(self._operators)
        self._operators.append(
            Operator(
                name="to_fp32" if there is DType.FP32 else "to_half",
                kind=OpKind.COPY,
                phase=op.phase,
                scope=op.scope,
                inputs=(spec.with_dtype(here),),
                outputs=(spec.with_dtype(there),),
                attributes={"as_is": True},
            )
        )
        self._forward_of.append(self._forward_of[index])
        self._edges.add((number, index) if op.phase is Phase.FORWARD else (index, number))
        return number


def _read(op: Operator, sources: Sequence[Operator]) -> list[TensorSpec]:
    """Return the inputs of ``op`` that ``sources`` made, by their sizes."""
    left = [t for t in op.inputs if t.dtype.is_floating and t.batch_dim is not None]
    found = []
    for source in sources:
        sizes = {t.numel for t in source.outputs}
        match = next((t for t in left if t.numel in sizes), None)
        if match is not None:
            left.remove(match)
            found.append(match)
    return found
