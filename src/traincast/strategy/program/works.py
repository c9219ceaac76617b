"""Works: what one rank runs of each operator of a block, and the works that a block runs beside its operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from traincast.graph import Block, Operator, OperatorGraph, OpKind, Phase, TensorSpec
from traincast.graph.vocabulary import LINEAR
from traincast.strategy.memory.holdings import share_of
from traincast.strategy.program.attention import kernels_of, sink_scopes, without_window
from traincast.strategy.program.cut import cut_operator
from traincast.strategy.program.experts import Region, cut_expert, kernel_marks
from traincast.strategy.program.item import Behind, Item, Share
from traincast.strategy.program.sharded_model import ShardedModel
from traincast.work import HostCopy, Launch

_NONE: Final[Mapping[int, tuple[Share, ...]]] = {}
_NOT_OF_WORKS: Final = frozenset({"module", "fused", "adapts", "part", "bits", "reads", "writes", "as_is"})
"""Attributes of operators that do not change their time."""


def rank_operator(model: ShardedModel, index: int) -> Operator:
    """One operator as a rank runs it, with microbatch, dtype and share applied, and without its scope."""
    return model.once(("cut", index), lambda: _rank_operator(model, index))


def _rank_operator(model: ShardedModel, index: int) -> Operator:
    source = model.graph.forward_of[index]
    # The projection to the vocabulary has the dtype of ordinary products even if linear layers use a narrower one.
    wide = (index if source < 0 else source) in model.sharding.vocabulary
    precision = replace(model.precision, linear=model.precision.products) if wide else model.precision
    op = precision.apply(model.tables.cut(model.graph, index, model.micro_batch))
    region = model.experts.get(index)
    if region is not None:
        op = rank_expert(model, op, region)
    else:
        op = cut_operator(
            op,
            model.sharding.roles[index],
            model.graph.operators[source] if source >= 0 else None,
            tp=model.strategy.tp,
            cp=model.strategy.cp,
            sequence_parallel=model.strategy.sequence_parallel,
        )
    kept = {k: v for k, v in op.attributes.items() if k not in _NOT_OF_WORKS}
    if op.kind is OpKind.GROUPED_GEMM:
        gradients = model.precision.gradients if makes_weight_gradients(model.graph, index) else None
        kept |= kernel_marks(model.runtime, gradients)
    if op.kind is OpKind.CONV and model.runtime.kernels.layout != "channels_last":
        kept["layout"] = model.runtime.kernels.layout
    if model.runtime.kernels.sorts_ids and op.name == "embedding_dense_backward":
        kept["ids"] = "sorted"
    return replace(op, scope="", saved=(), parameters=(), attributes=kept)


def rank_expert(model: ShardedModel, op: Operator, region: Region) -> Operator:
    """An operator of the experts as the busiest rank runs it."""
    strategy = model.strategy
    rows = strategy.load * strategy.expert_tp / (strategy.tp * strategy.cp)
    return cut_expert(op, region, ep=strategy.ep, etp=strategy.expert_tp, rows=rows)


def rank_works(model: ShardedModel, index: int) -> list[Operator]:
    """The works that a rank runs for an operator: several if attention is not fused, none for an empty conversion."""
    op = rank_operator(model, index)
    if _converts_nothing(model, index, op):
        return []
    if op.kind is not OpKind.ATTENTION:
        return [op]
    runtime = model.runtime
    if runtime.kernels.attention == "flash" and runtime.kernels.sinks != "flash" and _has_sinks(model, index):
        return kernels_of(without_window(op), runtime.kernels.sinks)
    return kernels_of(op, runtime.kernels.attention)


def _converts_nothing(model: ShardedModel, index: int, op: Operator) -> bool:
    """Whether an operator converts a tensor of an adapter to the dtype that it has already: the step is in fp32."""
    if op.name != "_to_copy" or "adapts" not in model.graph.operators[index].attributes:
        return False
    return op.inputs[0].dtype is op.outputs[0].dtype


def _has_sinks(model: ShardedModel, index: int) -> bool:
    """Whether an attention has sinks: its module has one parameter per head."""
    found = model.once(("sinks",), lambda: sink_scopes(model.graph))
    return model.graph.operators[index].scope in found


def makes_weight_gradients(graph: OperatorGraph, index: int) -> bool:
    """Whether a backward operator makes only gradients of weights, which nothing in the block waits for."""
    source = graph.forward_of[index]
    op = graph.operators[index]
    if op.phase is not Phase.BACKWARD or source < 0 or op.parameters:
        return False
    of = graph.operators[source]
    return op.kind in (*LINEAR, OpKind.EMBEDDING) and of.kind is op.kind and bool(of.parameters)


def operator_items(
    model: ShardedModel, index: int, block: Block, launches: Launch, behind: Behind | None
) -> Iterator[Item]:
    """The works of one operator, each with ``launches``; they overlap with ``behind``, except those of attention."""
    attention = model.graph.operators[index].kind is OpKind.ATTENTION
    for work in rank_works(model, index):
        if attention:
            label = f"attention {place(model.graph, index, block)}:{_short(work.name)}"
            yield Item(work=work, launches=launches, label=label, core=True)
        else:
            yield Item(
                work=work,
                launches=launches,
                label=label_of(model.graph, index, block),
                weight=makes_weight_gradients(model.graph, index),
                behind=behind,
                completes=_completed(model, block).get(index, ()),
            )


def _completed(model: ShardedModel, block: Block) -> Mapping[int, tuple[Share, ...]]:
    """Maps each backward operator to the parameters whose gradients it completes: the last one of their module."""
    if model.runtime.exchange.bucket_cut != "parameter":
        return _NONE

    def find() -> dict[int, tuple[Share, ...]]:
        operators = model.graph.operators
        share = share_of(model, block)
        last = {operators[i].scope: i for i in block.backward}
        found: dict[int, tuple[Share, ...]] = {}
        for op in (operators[i] for i in block.optimizer):
            if op.scope in last:
                numel, of_experts = share(op.parameters[0], op.scope)
                part = Share(0.0, numel) if of_experts else Share(numel, 0.0)
                found[last[op.scope]] = (*found.get(last[op.scope], ()), part)
        return found

    return model.once(("completed", block.forward, block.backward), find)


def place(graph: OperatorGraph, index: int, block: Block) -> str:
    """The scope of an operator, with a star for the number of a repeated block: ``layers.*.mlp.up``."""
    scope = graph.operators[index].scope
    if block.count > 1 and "," not in block.scope and scope.startswith(block.scope):
        parent = block.scope.rpartition(".")[0]
        return f"{parent}.*{scope[len(block.scope) :]}" if parent else f"*{scope[len(block.scope) :]}"
    return scope


def label_of(graph: OperatorGraph, index: int, block: Block) -> str:
    """The scope and the short name of an operator: ``layers.*.mlp.up:mm``."""
    name, scope = _short(graph.operators[index].name), place(graph, index, block)
    return f"{scope}:{name}" if scope else name


def _short(name: str) -> str:
    """A readable name: without the prefix and suffix of PyTorch's attention kernels."""
    if name.startswith("_scaled_dot_product"):
        return "attention_backward" if name.endswith("backward") else "attention"
    return name.removeprefix("_")


def offloaded(model: ShardedModel, nbytes: float, items: Sequence[Item], way: str) -> Item:
    """The copy of a block's saved tensors to the host or back, while its works ``items`` run."""
    taken = max((i.behind.share for i in items if i.behind), default=0.0)  # other traffic overlaps with this share
    works = tuple(i.work for i in items if isinstance(i.work, Operator))
    behind = Behind(works=works, share=1.0 - taken, interference=model.interference)
    launches = Launch(kernels=model.runtime.launches.operator)
    return Item(work=HostCopy(nbytes=nbytes), launches=launches, label=f"offload activations {way}", behind=behind)


def accumulation(model: ShardedModel, parameters: float) -> list[Item]:
    """Adds a microbatch's gradients to their sum; nothing if the weight products do it themselves."""
    if "gradients" in model.runtime.kernels.fusions:
        return []
    gradient = TensorSpec((int(parameters),), model.precision.gradients)
    work = Operator(
        name="accumulate_gradients",
        kind=OpKind.ELEMENTWISE,
        phase=Phase.BACKWARD,
        inputs=(gradient, gradient.with_dtype(model.precision.activations)),
        outputs=(gradient,),
    )
    launches = Launch(kernels=model.runtime.launches.backward)
    return [Item(work=work, launches=launches, label="accumulate gradients", weight=True)]


def weight_cast(model: ShardedModel, parameters: float) -> Item:
    """The cast of a layer's fp32 weights, which mixed precision runs whenever the layer is used."""
    weights = TensorSpec((int(parameters),), model.precision.weights)
    work = Operator(
        name="cast_weights",
        kind=OpKind.COPY,
        phase=Phase.FORWARD,
        inputs=(weights,),
        outputs=(weights.with_dtype(model.precision.activations),),
    )
    return Item(work=work, launches=Launch(kernels=model.runtime.launches.operator), label="cast weights")
