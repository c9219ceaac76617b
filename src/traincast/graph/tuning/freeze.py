"""Frozen parameters: which operators and which saved tensors a step no longer needs, and how frozen weights are stored.

The gradient of a frozen weight is not computed. Neither is any gradient that only leads to such gradients: below the
first trained parameter, backward ends. A tensor is kept for backward only if a gradient that is still computed reads
it, so a frozen linear layer keeps nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from traincast.graph.operator import FixedTensor, Operator
from traincast.graph.tensor import DType, TensorSpec
from traincast.graph.tuning.edit import Draft, DraftBlock
from traincast.graph.tuning.storage import Storage
from traincast.graph.vocabulary import CONVOLUTIONS, LINEAR, OpKind, Phase

Trained: TypeAlias = Callable[[Operator], bool]
"""Whether the parameter of an update stays trained."""
_BOTH: Final = CONVOLUTIONS
"""Operators whose backward makes the gradients of input and weight in one."""


def freeze(draft: Draft, trained: Trained) -> None:
    """Freeze all parameters but those that ``trained`` accepts, and remove everything that only their updates need."""
    owners = _Owners(draft, trained)
    live = _live(draft, owners)
    saved = _Saved(draft, live)
    for block in draft.blocks:
        kept = [_without_frozen(draft, i, owners, live) for i in block.backward if i in live]
        block.backward = kept
        for i in block.forward:
            op = draft.operators[i]
            if op.saved:
                draft.operators[i] = replace(op, saved=saved.kept(i))
        frozen = [i for i in block.optimizer if not trained(draft.operators[i])]
        block.fixed += [
            FixedTensor(scope=draft.operators[i].scope, spec=draft.operators[i].parameters[0]) for i in frozen
        ]
        block.optimizer = [i for i in block.optimizer if i not in set(frozen)]


class _Owners:
    """Finds out whether the parameters that an operator reads are trained."""

    def __init__(self, draft: Draft, trained: Trained) -> None:
        self._by_size: dict[int, list[tuple[str, bool]]] = {}
        for block in draft.blocks:
            for i in block.optimizer:
                op = draft.operators[i]
                self._by_size.setdefault(op.parameters[0].numel, []).append((op.scope, trained(op)))
        self._draft = draft
        self._found: dict[int, set[int]] = {}

    def trained(self, forward: int) -> set[int]:
        """Sizes of the trained parameters that a forward operator reads."""
        if forward not in self._found:
            op = self._draft.operators[forward]
            self._found[forward] = {t.numel for t in op.parameters if self._is_trained(op.scope, t.numel)}
        return self._found[forward]

    def _is_trained(self, scope: str, numel: int) -> bool:
        """Whether the parameter of this size is trained: the module's own, a child's, or one that it borrows."""
        known = self._by_size.get(numel, [])
        own = [state for at, state in known if at == scope]
        inner = [state for at, state in known if at.startswith(scope + ".")]
        return any(own or inner or [state for _, state in known])


def _live(draft: Draft, owners: _Owners) -> set[int]:
    """The backward operators that make gradients of trained parameters, and those whose results these read."""
    backward = [i for block in reversed(draft.blocks) for i in block.backward]
    wanted = [i for i in backward if _makes(draft, i, owners)]
    live = set(wanted)
    while wanted:
        i = wanted.pop()
        for producer in draft.producers[i]:
            if producer not in live and draft.phase_of(producer) is Phase.BACKWARD:
                live.add(producer)
                wanted.append(producer)
    gradients = {i for i in backward if _makes(draft, i, owners)}
    for i in backward:  # sums of the gradients of a weight that two layers share
        sources = [p for p in draft.producers[i] if draft.phase_of(p) is Phase.BACKWARD]
        if len(sources) > 1 and gradients.issuperset(sources):
            live.add(i)
    return live


def _makes(draft: Draft, index: int, owners: _Owners) -> bool:
    """Whether a backward operator makes the gradient of a trained parameter."""
    source = draft.forward_of[index]
    if source < 0:
        return False
    sizes = owners.trained(source)
    return bool(sizes) and any(t.batch_dim is None and t.numel in sizes for t in draft.operators[index].outputs)


def _without_frozen(draft: Draft, index: int, owners: _Owners, live: set[int]) -> int:
    """Drop the results that nothing needs from an operator that makes several gradients; returns ``index``."""
    op, source = draft.operators[index], draft.forward_of[index]
    if source < 0 or len(op.outputs) < 2 or not draft.operators[source].parameters:
        return index
    sizes = owners.trained(source)
    own = {t.numel for t in draft.operators[source].parameters}
    read = any(c in live for c in draft.consumers[index])
    outputs = tuple(
        t for t in op.outputs if (read if t.batch_dim is not None else t.numel in sizes or t.numel not in own)
    )
    if outputs and outputs != op.outputs:
        op = replace(op, outputs=outputs)
        if op.kind in _BOTH:
            weights = any(t.batch_dim is None and len(t.shape) > 1 for t in outputs)
            products = int(any(t.batch_dim is not None for t in outputs)) + int(weights)
            op = replace(op, attributes={**op.attributes, "products": max(1, products)})
        draft.operators[index] = op
    return index


class _Saved:
    """Finds the tensors that forward operators still keep for backward.

    A captured operator lists what it is the first to keep, by size: inputs that its own gradient reads, and its own
    results. An input is still kept if a gradient that is still computed reads it. The operator that made the input did
    not keep it, so the gradient of that operator does not count.
    """

    def __init__(self, draft: Draft, live: set[int]) -> None:
        self._draft, self._live = draft, live
        self._gradients: dict[int, list[int]] = {}
        for block in draft.blocks:
            for i in block.backward:
                self._gradients.setdefault(draft.forward_of[i], []).append(i)

    def kept(self, index: int) -> tuple[TensorSpec, ...]:
        """The tensors that operator ``index`` still keeps, in their order."""
        op = self._draft.operators[index]
        left = {numel: self._number(index, numel) for numel in {t.numel for t in op.saved}}
        found = []
        for spec in op.saved:
            if left[spec.numel] > 0:
                left[spec.numel] -= 1
                found.append(spec)
        return tuple(found)

    def _number(self, index: int, numel: int) -> int:
        """How many of the saved tensors of one size are still kept."""
        draft, live = self._draft, self._live
        op = draft.operators[index]
        count = sum(t.numel == numel for t in op.saved)
        own = self._gradients.get(index, [])
        read = {p for b in own for p in draft.producers[b]}
        sources = [
            p
            for p in draft.producers[index]
            if p in read
            and draft.phase_of(p) is Phase.FORWARD
            and any(t.numel == numel for t in draft.operators[p].outputs)
        ]
        inputs = min(count, max(1, sum(t.numel == numel for t in op.inputs))) if sources else 0
        needed = sum(any(c in live and draft.forward_of[c] != p for c in draft.consumers[p]) for p in sources)
        kept = inputs if needed == len(sources) else min(inputs, needed)
        # Others read the first result. Statistics and masks are read by the operator's own gradient only.
        first = any(t.numel == numel and t.dtype is op.outputs[0].dtype for t in op.saved)
        shared = first and op.outputs[0].numel == numel
        used = any(c in live for c in (draft.consumers[index] if shared else own))
        return kept + (count - inputs if used else 0)


def quantize(draft: Draft, storage: Storage, skipped: set[int]) -> None:
    """Store the frozen weights of linear layers as ``storage`` and dequantise them for every product.

    ``skipped`` are forward operators whose weights stay as they are: the projection to the vocabulary.
    """
    for block in draft.blocks:
        before: dict[int, int] = {}
        after: dict[int, int] = {}
        packed: set[int] = set()
        grouped: set[str] = set()
        for i in block.forward:
            op = draft.operators[i]
            at = _weight_of(block, op, packed) if op.kind in LINEAR and op.parameters and i not in skipped else -1
            if at < 0:
                continue
            packed.add(at)
            tensor = block.fixed[at]
            nbytes = storage.nbytes(tensor.spec)
            block.fixed[at] = replace(tensor, bits=storage.bits, stored=nbytes)
            opened = draft.add(_dequantize(op, nbytes, Phase.FORWARD))
            # Operators of experts are those from their first product to their last.
            first = op.kind is OpKind.GROUPED_GEMM and op.scope not in grouped
            grouped.add(op.scope)
            (after if first else before)[i] = opened
            draft.operators[i] = replace(op, attributes={**op.attributes, "bits": storage.bits})
            for b in draft.gradients_of(i, block.backward):
                product = draft.operators[b]
                if product.kind in LINEAR and product.parameters:
                    before[b] = draft.add(_dequantize(product, nbytes, Phase.BACKWARD), forward_of=opened)
                    draft.connect(before[b], b)
        block.forward = _with(block.forward, before, after)
        block.backward = _with(block.backward, before, {})


def _with(order: list[int], before: dict[int, int], after: dict[int, int]) -> list[int]:
    """``order`` with operators added before and after others."""
    return [n for i in order for n in (before.get(i, -1), i, after.get(i, -1)) if n >= 0]


def _weight_of(block: DraftBlock, op: Operator, packed: set[int]) -> int:
    """The position of the frozen weight of a linear layer among the fixed tensors of its block, or -1."""
    sizes = {t.numel for t in op.parameters if len(t.shape) > 1}
    for at, tensor in enumerate(block.fixed):
        fits = tensor.spec.numel in sizes and len(tensor.spec.shape) > 1 and tensor.spec.dtype.nbytes > 1
        if fits and not tensor.buffer and not tensor.shared and at not in packed and tensor.scope == op.scope:
            return at
    return -1


def _dequantize(product: Operator, nbytes: float, phase: Phase) -> Operator:
    experts = product.inputs[1].shape[:1] if product.kind is OpKind.GROUPED_GEMM else ()
    return Operator(
        name="dequantize",
        kind=OpKind.COPY,
        phase=phase,
        scope=product.scope,
        inputs=(TensorSpec((*experts, math.ceil(nbytes / math.prod(experts))), DType.INT8),),
        outputs=(product.inputs[1],),
        attributes={"adapts": product.scope},
    )
