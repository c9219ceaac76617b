"""Memory of a block on one rank: the tensors kept for backward, and the extra memory of each pass while it runs.

The captured graph lists the tensors that autograd keeps, by storage: a view keeps the whole tensor that it is a view
of. A runtime differs if it has kernels of its own, and in its copies of the logits, by far the largest tensors of a
language model (the closed form of Korthikanti et al. 2022, arXiv:2205.05198, leaves them out).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traincast.graph import Block, DType, Operator, OpKind
from traincast.graph.vocabulary import LINEAR
from traincast.strategy.memory.liveness import BackwardBytes, most_beside
from traincast.strategy.mesh import Group
from traincast.strategy.program.attention import unfused_saved
from traincast.strategy.program.cut import saved_fraction
from traincast.strategy.program.recompute import Recomputation
from traincast.strategy.program.sharding import Role
from traincast.work import Collective

if TYPE_CHECKING:
    from traincast.strategy.program.block import Item
    from traincast.strategy.program.builder import ProgramBuilder

_TENSOR_BUFFERS: Final = 4.0
"""Whole tensors in use around tensor-parallel collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes that one operator keeps for backward, on one rank for one microbatch."""

    label: str
    nbytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory of one block on one rank for one microbatch, in bytes.

    ``kept`` stays from forward to backward; ``forward`` and ``backward`` are needed in addition while that pass runs.
    ``deferred`` is still needed for the gradients of the weights when the gradients of the inputs are done: the inputs
    of linear layers and the gradients of their outputs. ``products`` is one gradient of each distinct shape of weights
    (0 for a block that is not repeated). ``gathered`` is the largest tensor that the block's tensor-parallel
    collectives carry: the whole tensor, not a rank's share.
    """

    kept: tuple[Kept, ...]
    forward: float
    backward: float
    deferred: float
    products: float
    gathered: float

    @property
    def saved(self) -> float:
        """Bytes kept for backward."""
        return sum(k.nbytes for k in self.kept)


def footprint(
    builder: ProgramBuilder,
    block: Block,
    *,
    forward: Sequence[Item],
    backward: Sequence[Item],
    labels: Sequence[str],
    recompute: Recomputation,
    boundary: float,
) -> Footprint:
    """The memory of ``block``; ``labels`` name its forward operators, ``boundary`` bytes cross to the next block.

    A block that is recomputed in full keeps only its input, and holds all other tensors while its own backward runs.
    """
    selective, dropped = recompute.attention, recompute.kinds

    def all_kept() -> tuple[Kept, ...]:
        each = [
            (label, kept_by(builder, i, selective=selective))
            for label, i in zip(labels, block.forward, strict=True)
            if builder.graph.operators[i].kind not in dropped
        ]
        return tuple(Kept(label=label, nbytes=nbytes) for label, nbytes in each if nbytes)

    kept = builder.once(("kept", block.forward, selective, dropped), all_kept)
    own = sum(k.nbytes for k in kept)
    before, deferred, products = builder.once(
        ("needs", block.forward, block.backward),
        lambda: (
            max((_forward(builder, i) for i in block.forward), default=0.0),
            _deferred(builder, block),
            _products(builder, block),
        ),
    )
    working = builder.once(
        ("working", block.forward, block.backward, selective, builder.strategy.pp > 1),
        lambda: (
            most_beside(_needs(builder, block, selective=selective), arrives=boundary / _whole_pieces(builder, block))
            + _carried(builder, block)
        ),
    )
    carried = (i.work.nbytes for i in forward if isinstance(i.work, Collective) and i.group is Group.TENSOR)
    gathered = max(carried, default=0.0)
    around = _TENSOR_BUFFERS * gathered
    past = boundary if block.repeated else 0.0  # the residual, which is added to the output of the branch
    if dropped:
        kinds = ((i, builder.graph.operators[i].kind) for i in block.forward)
        working += sum(kept_by(builder, i, selective=selective) for i, kind in kinds if kind in dropped)
    if recompute.whole_block:
        kept = (
            Kept(
                label=f"{labels[0].partition(':')[0]} input" if labels else "input",
                nbytes=boundary * builder.runtime.memory.kept_inputs,
            ),
        )
        working += own - (boundary if _keeps_input(builder, block) else 0.0)
    return Footprint(
        kept=kept,
        forward=before + around + past,
        backward=working + around,
        deferred=deferred,
        products=products,
        gathered=gathered,
    )


def kept_by(builder: ProgramBuilder, index: int, *, selective: bool) -> float:
    """Bytes that one rank keeps of the tensors that operator ``index`` is the first to save."""
    strategy, runtime = builder.strategy, builder.runtime
    if pieces_of(builder, index) > 1:  # the gradient of the hidden states, as large as these, is made at once
        op = builder.cut(index)
        return op.inputs[0].nbytes if op.kind in LINEAR else 0.0
    op = builder.precision.apply(builder.graph.operators[index].with_batch(builder.micro_batch))
    lean = runtime.memory.lean_kernels and op.kind is OpKind.GATHER  # backward of moved rows needs only their indices
    region = builder.experts.get(index)
    if region is not None:
        return float(sum(t.nbytes for t in builder.cut_expert(op, region).saved))
    nbytes = float(sum(t.nbytes for t in op.saved if not (lean and t.dtype.is_floating)))
    if op.kind is OpKind.ATTENTION and op.saved:
        if runtime.memory.lean_kernels:
            nbytes = float(sum(t.nbytes for t in (*op.inputs[:3], *op.outputs)))
        if not runtime.kernels.attention.startswith("flash") and not selective:
            casts = runtime.kernels.attention == "eager" and runtime.kernels.autocast and builder.precision.autocast
            nbytes += unfused_saved(op, softmax=DType.FP32 if casts else op.inputs[0].dtype)
    return nbytes * saved_fraction(
        op,
        builder.sharding.roles[index],
        tp=strategy.tp,
        cp=strategy.cp,
        sequence_parallel=strategy.sequence_parallel,
    )


def _forward(builder: ProgramBuilder, index: int) -> float:
    """Bytes that one forward operator writes and does not keep."""
    op = builder.cut(index)
    pieces = pieces_of(builder, index)
    if is_loss(op):
        return _logits(builder, op) / pieces
    if pieces > 1:
        return sum(t.nbytes for t in op.outputs) / pieces
    kept = kept_by(builder, index, selective=False)
    quantised = "bits" in builder.graph.operators[index].attributes  # the dequantised weight exists while it runs
    return max(0.0, sum(t.nbytes for t in op.outputs) - kept) + (op.inputs[1].nbytes if quantised else 0.0)


def _keeps_input(builder: ProgramBuilder, block: Block) -> bool:
    """Whether the block keeps its input for backward even without recomputation."""
    first = builder.graph.operators[block.forward[0]]
    return any(t.numel == own.numel for t in first.saved for own in first.inputs[:1] if t.batch_dim is not None)


def _needs(builder: ProgramBuilder, block: Block, *, selective: bool) -> list[BackwardBytes]:
    """The bytes that each backward operator of ``block`` reads, writes, needs and frees.

    Gradients of weights count only if they are freed because they are added to a sum. This happens at once or, for
    tied weights, as soon as their other gradient exists.
    """
    graph = builder.graph
    position = {i: n for n, i in enumerate(block.backward)}
    last = {graph.forward_of[i]: i for i in block.backward}
    frees = {i: kept_by(builder, source, selective=selective) for source, i in last.items() if source in block.forward}
    stays = {"none": False, "shapes": block.repeated, "all": True}[builder.runtime.memory.gradient_copies]
    found = []
    for i, n in position.items():
        op = builder.cut(i)
        pieces = pieces_of(builder, i)
        sources = [p for p in builder.gradient_sources.get(i, ()) if p != i]
        reads = tuple(position[p] for p in sources if position.get(p, n) < n)
        writes = sum(t.nbytes for t in op.outputs if t.batch_dim is not None)
        needs = 0.0 if stays else sum(t.nbytes for t in op.outputs if t.batch_dim is None)
        least = 0.0
        if op.name == "dequantize":
            writes, needs = sum(t.nbytes for t in op.outputs), 0.0
        elif i in builder.gradient_readers:
            writes, needs = writes + needs, 0.0
        if is_loss(op):  # runtimes differ in how many copies of the logits they hold
            writes, needs, least = 0.0, 0.0, _logits(builder, op) / pieces
        elif pieces > 1 and op.kind not in LINEAR:
            writes /= pieces
        elif op.name.endswith("_"):  # in place
            writes = 0.0
        found.append(
            BackwardBytes(
                reads=reads,
                given=len(reads) < len(sources),
                writes=writes,
                needs=needs,
                frees=frees.get(i, 0.0),
                least=least,
            )
        )
    return found


def _carried(builder: ProgramBuilder, block: Block) -> float:
    """Bytes of gradients of tied weights that a later block made and that wait for their other half.

    The other half comes from this or an earlier block. In a pipeline, both are added up at the end of the step.
    """
    if builder.strategy.pp > 1 or builder.runtime.memory.gradient_copies != "none":
        return 0.0
    blocks = builder.graph.blocks
    home = {i: n for n, each in enumerate(blocks) for i in each.backward}
    here = blocks.index(block)
    return sum(
        sum(t.nbytes for t in builder.cut(i).outputs if t.batch_dim is None)
        for i, readers in builder.gradient_readers.items()
        if blocks[home[i]].count == 1 and home[i] > here >= min(home[reader] for reader in readers)
    )


def is_loss(op: Operator) -> bool:
    """Whether an operator computes the loss from logits, or the gradient of them."""
    return op.kind is OpKind.LOSS or "log_softmax" in op.name


def _logits(builder: ProgramBuilder, op: Operator) -> float:
    """Bytes of the logits while the loss is computed: its input (or the gradient of it), and copies in fp32."""
    numel = max((t.numel for t in (*op.inputs, *op.outputs)), default=0)
    half = 0 if op.name.startswith("nll_loss") else builder.precision.activations.nbytes
    return numel * (half + builder.runtime.memory.logits_copies * DType.FP32.nbytes)


def pieces_of(builder: ProgramBuilder, index: int) -> int:
    """The number of pieces in which an operator runs: several for the logits and the loss if the runtime cuts them."""
    chunks = builder.runtime.memory.loss_chunks
    if chunks < 2:
        return 1
    source = builder.graph.forward_of[index]
    of = index if source < 0 else source
    return chunks if of in builder.sharding.vocabulary and not _looks_up(builder, of) else 1


def _looks_up(builder: ProgramBuilder, index: int) -> bool:
    return builder.graph.operators[index].kind is OpKind.EMBEDDING


def _whole_pieces(builder: ProgramBuilder, block: Block) -> int:
    """The number of pieces in which the results of ``block`` reach the next one."""
    return pieces_of(builder, block.forward[-1]) if block.forward else 1


def _linear(builder: ProgramBuilder, block: Block) -> list[int]:
    """The linear layers of ``block`` that are trained, by their forward operators."""
    operators, forward_of = builder.graph.operators, builder.graph.forward_of
    trained = {forward_of[i] for i in block.backward if builder.makes_weight_gradients(i)}
    return [i for i in block.forward if operators[i].kind in LINEAR and i in trained]


def _deferred(builder: ProgramBuilder, block: Block) -> float:
    """Bytes of the inputs of linear layers, each distinct tensor once, and of the gradients of their outputs."""
    strategy = builder.strategy
    enters, roles = builder.sharding.enters, builder.sharding.roles
    total = 0.0
    for i in _linear(builder, block):
        op = builder.cut(i)
        split = strategy.tp if strategy.sequence_parallel and i in enters else 1
        shared = roles[i] in (Role.COLUMN, Role.VOCAB) and i not in enters
        total += op.outputs[0].nbytes + (0.0 if shared else op.inputs[0].nbytes / split)
    return total


def _products(builder: ProgramBuilder, block: Block) -> float:
    """Bytes of one gradient of each distinct shape of weights, in the dtype of the products; of experts, only one."""
    if block.count == 1:  # the first block of a run stands for those that follow
        return 0.0
    shapes = {
        weight.shape[1:] if op.kind is OpKind.GROUPED_GEMM else weight.shape
        for op in map(builder.cut, _linear(builder, block))
        for weight in op.inputs[1:2]
    }
    return float(sum(math.prod(shape) for shape in shapes)) * builder.precision.activations.nbytes
