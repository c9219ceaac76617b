"""Memory of a block on one rank: the tensors kept for backward, and the extra memory of each pass while it runs.

The captured graph lists the tensors that autograd keeps, by storage: a view keeps the whole tensor that it is a view
of. A runtime differs if it has kernels of its own, and in its copies of the logits, by far the largest tensors of a
language model (the closed form of Korthikanti et al. 2022, arXiv:2205.05198, leaves them out).

Autograd frees the tensors that a forward operator kept as soon as its backward has run, and a gradient as soon as all
its readers have run. So memory need not peak at the largest operator: much of the block may be freed by then.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from traincast.graph import Block, DType, Operator, OpKind
from traincast.graph.vocabulary import LINEAR
from traincast.strategy.program.attention import unfused_saved
from traincast.strategy.program.cut import saved_fraction
from traincast.strategy.program.recompute import Recomputation
from traincast.strategy.program.sharded_model import ShardedModel
from traincast.strategy.program.sharding import Role
from traincast.strategy.program.works import label_of, makes_weight_gradients, rank_expert, rank_operator

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
    collectives carry: the whole tensor, not a rank's share. ``stays``: its tensors are not offloaded, because it
    computes the loss, and its backward follows at once.
    """

    kept: tuple[Kept, ...]
    forward: float
    backward: float
    deferred: float
    products: float
    gathered: float
    stays: bool = False

    @property
    def saved(self) -> float:
        """Bytes kept for backward."""
        return sum(k.nbytes for k in self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardBytes:
    """The memory of one backward operator, in bytes.

    ``reads`` are the numbers of the operators whose results it reads. ``given`` is true if it reads a gradient that the
    next block made. Other operators read the ``writes`` bytes; only this one needs the ``needs`` bytes, while it runs.
    ``frees`` bytes kept for backward are free when it has run. At least ``least`` bytes are held while it runs.
    """

    reads: tuple[int, ...]
    given: bool
    writes: float
    needs: float
    frees: float
    least: float = 0.0


def most_beside(operators: Sequence[BackwardBytes], *, arrives: float) -> float:
    """Returns the largest number of bytes that ``operators``, run in order, hold in addition to the kept tensors.

    ``arrives`` are the bytes of the gradients that the next block made.
    """
    last: dict[int, int] = {}
    for number, operator in enumerate(operators):
        last.update(dict.fromkeys(operator.reads, number))
    given = max((n for n, operator in enumerate(operators) if operator.given), default=-1)
    gone: defaultdict[int, float] = defaultdict(float)
    for number, reader in last.items():
        gone[reader] += operators[number].writes
    gone[given] += arrives
    alive = most = arrives if given >= 0 else 0.0
    for number, operator in enumerate(operators):
        alive += operator.writes
        most = max(most, alive + operator.needs, operator.least)
        alive -= operator.frees + gone[number]
    return most


def footprint(
    model: ShardedModel, block: Block, *, recompute: Recomputation, boundary: float, gathered: float
) -> Footprint:
    """The memory of ``block``, of which ``boundary`` bytes cross to the next block.

    ``gathered`` are the bytes of the largest tensor that its tensor-parallel collectives carry. A block that is
    recomputed in full keeps only its input, and holds all other tensors while its own backward runs.
    """
    selective, dropped = recompute.attention, recompute.kinds

    def all_kept() -> tuple[Kept, ...]:
        each = [
            (label_of(model.graph, i, block), kept_by(model, i, selective=selective))
            for i in block.forward
            if model.graph.operators[i].kind not in dropped
        ]
        return tuple(Kept(label=label, nbytes=nbytes) for label, nbytes in each if nbytes)

    kept = model.once(("kept", block.forward, selective, dropped), all_kept)
    own = sum(k.nbytes for k in kept)
    before, deferred, products = model.once(
        ("needs", block.forward, block.backward),
        lambda: (
            max((_forward(model, i) for i in block.forward), default=0.0),
            _deferred(model, block),
            _products(model, block),
        ),
    )
    chunks = loss_chunks_of(model, block.forward[-1]) if block.forward else 1  # of the gradient that arrives
    working = model.once(
        ("working", block.forward, block.backward, selective, model.strategy.pp > 1),
        lambda: (
            most_beside(_needs(model, block, selective=selective), arrives=boundary / chunks) + _carried(model, block)
        ),
    )
    around = _TENSOR_BUFFERS * gathered
    past = boundary if block.repeated else 0.0  # the residual, which is added to the output of the branch
    if dropped:
        kinds = ((i, model.graph.operators[i].kind) for i in block.forward)
        working += sum(kept_by(model, i, selective=selective) for i, kind in kinds if kind in dropped)
    if recompute.whole_block:
        label = (
            f"{label_of(model.graph, block.forward[0], block).partition(':')[0]} input" if block.forward else "input"
        )
        kept = (Kept(label=label, nbytes=boundary * model.runtime.memory.kept_inputs),)
        working += own - (boundary if _keeps_input(model, block) else 0.0)
    return Footprint(
        kept=kept,
        forward=before + around + past,
        backward=working + around,
        deferred=deferred,
        products=products,
        gathered=gathered,
        stays=any(is_loss(model.graph.operators[i]) for i in block.forward),
    )


def kept_by(model: ShardedModel, index: int, *, selective: bool) -> float:
    """Bytes that one rank keeps of the tensors that operator ``index`` is the first to save."""
    strategy, runtime = model.strategy, model.runtime
    narrow = runtime.memory.half_logits
    if loss_chunks_of(model, index) > 1 and not narrow:
        op = rank_operator(model, index)  # the gradient of the hidden states, as large as these, is made at once
        return op.inputs[0].nbytes if op.kind in LINEAR else 0.0
    if narrow and "log_softmax" in model.graph.operators[index].name:
        op = rank_operator(model, index)
        return float(max(t.numel for t in op.inputs) * model.precision.activations.nbytes)
    op = model.precision.apply(model.graph.operators[index].with_batch(model.micro_batch))
    lean = runtime.memory.lean_kernels and op.kind is OpKind.GATHER  # backward of moved rows needs only their indices
    region = model.experts.get(index)
    if region is not None:
        return float(sum(t.nbytes for t in rank_expert(model, op, region).saved))
    nbytes = float(sum(t.nbytes for t in op.saved if not (lean and t.dtype.is_floating)))
    if op.kind is OpKind.ATTENTION and op.saved:
        if runtime.memory.lean_kernels:
            nbytes = float(sum(t.nbytes for t in (*op.inputs[:3], *op.outputs)))
        if not runtime.kernels.attention.startswith("flash") and not selective:
            casts = runtime.kernels.attention == "eager" and runtime.kernels.autocast and model.precision.autocast
            nbytes += unfused_saved(op, softmax=DType.FP32 if casts else op.inputs[0].dtype)
    return nbytes * saved_fraction(
        op,
        model.sharding.roles[index],
        tp=strategy.tp,
        cp=strategy.cp,
        sequence_parallel=strategy.sequence_parallel,
    )


def _forward(model: ShardedModel, index: int) -> float:
    """Bytes that one forward operator writes and does not keep."""
    op = rank_operator(model, index)
    chunks = loss_chunks_of(model, index)
    if is_loss(op):
        return _logits(model, op) / chunks
    if chunks > 1:
        return sum(t.nbytes for t in op.outputs) / chunks
    kept = kept_by(model, index, selective=False)
    quantised = "bits" in model.graph.operators[index].attributes  # the dequantised weight exists while it runs
    return max(0.0, sum(t.nbytes for t in op.outputs) - kept) + (op.inputs[1].nbytes if quantised else 0.0)


def _keeps_input(model: ShardedModel, block: Block) -> bool:
    """Whether the block keeps its input for backward even without recomputation."""
    first = model.graph.operators[block.forward[0]]
    return any(t.numel == own.numel for t in first.saved for own in first.inputs[:1] if t.batch_dim is not None)


def _needs(model: ShardedModel, block: Block, *, selective: bool) -> list[BackwardBytes]:
    """The bytes that each backward operator of ``block`` reads, writes, needs and frees.

    Gradients of weights count only if they are freed because they are added to a sum. This happens at once or, for
    tied weights, as soon as their other gradient exists.
    """
    graph = model.graph
    position = {i: n for n, i in enumerate(block.backward)}
    last = {graph.forward_of[i]: i for i in block.backward}
    frees = {i: kept_by(model, source, selective=selective) for source, i in last.items() if source in block.forward}
    stays = {"none": False, "shapes": block.repeated, "all": True}[model.runtime.memory.gradient_copies]
    found = []
    for i, n in position.items():
        op = rank_operator(model, i)
        chunks = loss_chunks_of(model, i)
        sources = [p for p in _gradient_sources(model).get(i, ()) if p != i]
        reads = tuple(position[p] for p in sources if position.get(p, n) < n)
        writes = sum(t.nbytes for t in op.outputs if t.batch_dim is not None)
        needs = 0.0 if stays else sum(t.nbytes for t in op.outputs if t.batch_dim is None)
        least = 0.0
        if op.name == "dequantize":
            writes, needs = sum(t.nbytes for t in op.outputs), 0.0
        elif i in _gradient_readers(model):
            writes, needs = writes + needs, 0.0
        if is_loss(op):  # runtimes differ in how many copies of the logits they hold
            writes, needs, least = 0.0, 0.0, _logits(model, op) / chunks
        elif chunks > 1 and op.kind not in LINEAR:
            writes /= chunks
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


def _gradient_sources(model: ShardedModel) -> Mapping[int, list[int]]:
    """Maps each backward operator to the backward operators whose results it reads."""

    def find() -> dict[int, list[int]]:
        backward = {i for block in model.graph.blocks for i in block.backward}
        found: dict[int, list[int]] = {}
        for source, target in model.graph.edges:
            if source in backward and target in backward:
                found.setdefault(target, []).append(source)
        return found

    return model.once(("gradient sources",), find)


def _gradient_readers(model: ShardedModel) -> Mapping[int, list[int]]:
    """Maps each backward operator to the backward operators that read its result."""

    def find() -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for target, sources in _gradient_sources(model).items():
            for source in sources:
                found.setdefault(source, []).append(target)
        return found

    return model.once(("gradient readers",), find)


def _carried(model: ShardedModel, block: Block) -> float:
    """Bytes of gradients of tied weights that a later block made and that wait for their other half.

    The other half comes from this or an earlier block. In a pipeline, both are added up at the end of the step.
    """
    if model.strategy.pp > 1 or model.runtime.memory.gradient_copies != "none":
        return 0.0
    blocks = model.graph.blocks
    home = {i: n for n, each in enumerate(blocks) for i in each.backward}
    here = blocks.index(block)
    return sum(
        sum(t.nbytes for t in rank_operator(model, i).outputs if t.batch_dim is None)
        for i, readers in _gradient_readers(model).items()
        if blocks[home[i]].count == 1 and home[i] > here >= min(home[reader] for reader in readers)
    )


def is_loss(op: Operator) -> bool:
    """Whether an operator computes the loss from logits, or the gradient of them."""
    return op.kind is OpKind.LOSS or "log_softmax" in op.name


def _logits(model: ShardedModel, op: Operator) -> float:
    """Bytes of the logits while the loss is computed: its input (or the gradient of it), and copies in fp32."""
    numel = max((t.numel for t in (*op.inputs, *op.outputs)), default=0)
    kept = op.name.startswith("nll_loss") or (model.runtime.memory.half_logits and not model.runtime.memory.loss_chunks)
    half = 0 if kept else model.precision.activations.nbytes
    return numel * (half + model.runtime.memory.logits_copies * DType.FP32.nbytes)


def loss_chunks_of(model: ShardedModel, index: int) -> int:
    """The number of parts that an operator runs one after the other: several for logits and loss in some runtimes."""
    chunks = model.runtime.memory.loss_chunks
    if chunks < 2:
        return 1
    source = model.graph.forward_of[index]
    of = index if source < 0 else source
    return chunks if of in model.sharding.vocabulary and model.graph.operators[of].kind is not OpKind.EMBEDDING else 1


def _linear(model: ShardedModel, block: Block) -> list[int]:
    """The linear layers of ``block`` that are trained, by their forward operators."""
    operators, forward_of = model.graph.operators, model.graph.forward_of
    trained = {forward_of[i] for i in block.backward if makes_weight_gradients(model.graph, i)}
    return [i for i in block.forward if operators[i].kind in LINEAR and i in trained]


def _deferred(model: ShardedModel, block: Block) -> float:
    """Bytes of the inputs of linear layers, each distinct tensor once, and of the gradients of their outputs."""
    strategy = model.strategy
    enters, roles = model.sharding.enters, model.sharding.roles
    total = 0.0
    for i in _linear(model, block):
        op = rank_operator(model, i)
        split = strategy.tp if strategy.sequence_parallel and i in enters else 1
        shared = roles[i] in (Role.COLUMN, Role.VOCAB) and i not in enters
        total += op.outputs[0].nbytes + (0.0 if shared else op.inputs[0].nbytes / split)
    return total


def _products(model: ShardedModel, block: Block) -> float:
    """Bytes of one gradient of each distinct shape of weights, in the dtype of the products; of experts, only one."""
    if block.count == 1:  # the first block of a run stands for those that follow
        return 0.0
    shapes = {
        weight.shape[1:] if op.kind is OpKind.GROUPED_GEMM else weight.shape
        for op in (rank_operator(model, i) for i in _linear(model, block))
        for weight in op.inputs[1:2]
    }
    return float(sum(math.prod(shape) for shape in shapes)) * model.precision.activations.nbytes
