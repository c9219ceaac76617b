"""Traffic of tensor, context and expert parallelism inside a block, which compute waits for.

:func:`forward_traffic` and :func:`backward_traffic` say which messages one rank exchanges before and after each
operator of a pass, for one microbatch, and with which computation each of them overlaps. ``lower`` adds the traffic of
gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from traincast.graph import Block, OpKind, Phase, TensorSpec
from traincast.graph.vocabulary import LINEAR
from traincast.strategy.mesh import Group
from traincast.strategy.program.embedding_tables import INDEX_BYTES, Tables, find_tables
from traincast.strategy.program.experts import Region, distinct
from traincast.strategy.program.item import Behind, Item
from traincast.strategy.program.sharded_model import ShardedModel
from traincast.strategy.program.sharding import Role
from traincast.strategy.program.works import place, rank_operator, rank_works
from traincast.work import CollectiveKind, Launch


class Traffic(NamedTuple):
    """The messages of one pass of a block: those before and those after each operator, by the operator's number.

    ``hidden`` has the operators that run while traffic or products of the experts run, because kernels are fused.
    """

    before: dict[int, list[Item]]
    after: dict[int, list[Item]]
    hidden: dict[int, Behind | None]


def forward_traffic(model: ShardedModel, block: Block) -> Traffic:
    """The messages of the forward pass of ``block``."""
    regions = model.regions(block)
    firsts, lasts = {r.forward[0]: r for r in regions}, {r.forward[-1]: r for r in regions}
    tables = find_tables(model.graph, block)

    def before(i: int) -> Iterator[Item]:
        if i in firsts:
            yield from _routing(model, firsts[i])
            yield from _to_experts(model, firsts[i], firsts[i].forward, block)
        elif i in model.sharding.enters and i not in model.experts:
            yield from _enter_forward(model, i, block)
        if _divides_context(model, i):
            yield _gathered_context(model, "all_gather", i, "keys and values")

    def after(i: int) -> Iterator[Item]:
        if i in lasts:
            yield from _from_experts(model, lasts[i], lasts[i].forward, block)
        elif i in model.sharding.leaves and i not in model.experts:
            yield from _leave_forward(model, i, block)
        yield from _after_lookup(model, tables, i)

    return Traffic(
        before={i: list(before(i)) for i in block.forward},
        after={i: list(after(i)) for i in block.forward},
        hidden=_hidden(model, block, block.forward),
    )


def backward_traffic(model: ShardedModel, block: Block) -> Traffic:
    """The messages of the backward pass of ``block``."""
    regions = [r for r in model.regions(block) if r.backward]
    firsts, lasts = {r.backward[0]: r for r in regions}, {r.backward[-1]: r for r in regions}
    tables = find_tables(model.graph, block)
    leaves = _first_gradients(model, block)
    enters = _region_ends(model, block)

    def before(n: int, i: int) -> Iterator[Item]:
        yield from _before_rows(model, tables, i)
        if i in firsts:
            yield from _to_experts(model, firsts[i], firsts[i].backward, block)
        if i in leaves:
            yield from _leave_backward(model, leaves[i], block, beside=_product_of(model, block.backward[n:]))
        if _divides_context(model, i):
            yield _gathered_context(model, "all_gather", i, "keys and values")

    def after(n: int, i: int) -> Iterator[Item]:
        if _divides_context(model, i):
            yield _gathered_context(model, "reduce_scatter", i, "gradients of keys and values")
        if i in lasts:
            yield from _from_experts(model, lasts[i], lasts[i].backward, block)
        for enter in enters.get(i, ()):
            yield from _enter_backward(model, enter, block, beside=_product_of(model, block.backward[n::-1]))

    return Traffic(
        before={i: list(before(n, i)) for n, i in enumerate(block.backward)},
        after={i: list(after(n, i)) for n, i in enumerate(block.backward)},
        hidden=_hidden(model, block, block.backward),
    )


def _divides_context(model: ShardedModel, i: int) -> bool:
    """Whether an operator is attention over a sequence that is divided among ranks."""
    return model.strategy.cp > 1 and model.graph.operators[i].kind is OpKind.ATTENTION


def _first_gradients(model: ShardedModel, block: Block) -> dict[int, int]:
    """Maps the first backward operator of each forward operator that ends a sharded region to that operator."""
    first: dict[int, int] = {}
    for i in block.backward:
        source = model.graph.forward_of[i]
        if source in model.sharding.leaves and source not in model.experts:
            first.setdefault(source, i)
    return {i: source for source, i in first.items()}


def _hidden(model: ShardedModel, block: Block, indices: Iterable[int]) -> dict[int, Behind | None]:
    """What hides the operators around a layer's experts; empty unless kernels are fused."""
    if not model.experts or (
        model.runtime.experts.dispatcher == "all_to_all" and model.runtime.experts.grouped != "fused"
    ):
        return {}
    regions = {r.scope: r for r in model.regions(block)}
    scopes = {i: model.graph.operators[i].scope for i in indices}
    return {i: _hidden_by_experts(model, i, regions[scope], block) for i, scope in scopes.items() if scope in regions}


def _to_experts(model: ShardedModel, region: Region, beside: tuple[int, ...], block: Block) -> Iterator[Item]:
    """Dispatch: sends tokens to the ranks of their experts, which then gather them for all parts of an expert.

    It overlaps with the experts' own operators ``beside`` it, or with whole passes of the ``block``.
    """
    sent, held = _routed(model, region)
    if beside == region.forward:
        sent, held = sent * _narrowed(model), held * _narrowed(model)
    if model.strategy.ep > 1:
        behind = _behind_experts(model, region, beside, block)
        yield _collective(model, Group.EXPERT, "all_to_all", sent, what="dispatch", behind=behind)
    if model.strategy.expert_tp > 1:
        yield _collective(model, Group.EXPERT_TENSOR, "all_gather", held, what="dispatch")


def _from_experts(model: ShardedModel, region: Region, beside: tuple[int, ...], block: Block) -> Iterator[Item]:
    """Combine: adds up the partial sums of an expert's parts, and sends results back to the ranks of their tokens."""
    sent, held = _routed(model, region)
    if model.strategy.expert_tp > 1:
        yield _collective(model, Group.EXPERT_TENSOR, "reduce_scatter", held, what="combine")
    if model.strategy.ep > 1:
        behind = _behind_experts(model, region, beside, block)
        yield _collective(model, Group.EXPERT, "all_to_all", sent, what="combine", behind=behind)


def _routed(model: ShardedModel, region: Region) -> tuple[float, float]:
    """Bytes that a rank sends to experts, and bytes that the ranks of one expert gather."""
    strategy = model.strategy
    rows = region.tokens.with_batch(model.micro_batch).numel * model.precision.activations.nbytes
    held = rows / (strategy.cp * strategy.tp) * strategy.load
    return held * _sent_share(model, region), held * strategy.expert_tp


def _narrowed(model: ShardedModel) -> float:
    """The bytes of dispatched tokens over those of activations. In fp8, 32 elements have one scale of a byte."""
    narrow = model.runtime.experts.dispatch_dtype == "fp8"
    return (1.0 + 1.0 / 32.0) / model.precision.activations.nbytes if narrow else 1.0


def _sent_share(model: ShardedModel, region: Region) -> float:
    """The share of routed rows that is sent.

    A fused dispatcher sends a token once to each rank that holds any of its experts and, between nodes, once to each
    node, where it is passed on over fast links. An all-to-all sends it once for each expert.
    """
    if model.runtime.experts.dispatcher == "all_to_all":
        return 1.0
    span = model.spans["ep"]
    places = span.num_nodes if span.num_nodes > 1 else span.num_ranks
    return min(1.0, distinct(places, region.copies) / region.copies)


def _routing(model: ShardedModel, region: Region) -> Iterator[Item]:
    """The wait of the device while the host reads how many tokens each expert has got, and launches what follows.

    With a capacity, or with recorded graphs, shapes are known in advance and nobody waits.
    """
    launches = model.runtime.experts.routing_launches
    if launches and not model.strategy.capacity and not model.runtime.launches.cuda_graphs:
        yield Item(work=Launch(blocks=launches), launches=Launch(), label=f"routing {region.scope.rpartition('.')[2]}")


def _hidden_by_experts(model: ShardedModel, index: int, region: Region, block: Block) -> Behind | None:
    """What hides an operator around the experts' products where kernels are fused.

    A fused dispatcher reorders and weights tokens as it sends them; products that are fused with what lies between
    them hide its traffic.
    """
    runtime, op = model.runtime, model.graph.operators[index]
    inside = region.forward if index in region.forward else region.backward if index in region.backward else ()
    if inside and runtime.experts.grouped == "fused" and op.kind is not OpKind.GROUPED_GEMM:
        products = [i for i in inside if model.graph.operators[i].kind is OpKind.GROUPED_GEMM]
        return _behind(model, products, 1.0 / (len(inside) - len(products)), interference=0.0)
    if runtime.experts.dispatcher == "fused" and model.strategy.ep > 1 and region.moves_tokens(op, index):
        sent, _ = _routed(model, region)
        work = model.spans["ep"].collective("all_to_all", sent)
        return Behind(works=(work, work), share=1.0 / len(region.moving(model.graph, block, op.phase)))
    return None


def _behind_experts(model: ShardedModel, region: Region, beside: tuple[int, ...], block: Block) -> Behind | None:
    """Dispatch and combine each overlap with half of the experts' operators, or of those of another microbatch.

    A forward and a backward that run as one have four messages; each overlaps with a quarter of their operators.
    """
    between = model.between_batches
    if between is None:
        return _behind(model, beside, model.runtime.experts.overlap / 2.0)
    if between.paired:
        return _behind(model, (*block.forward, *block.backward), between.share / 4.0)
    own = block.forward if beside == region.forward else block.backward
    return _behind(model, own, between.share / 2.0)


def _behind(
    model: ShardedModel, operators: Iterable[int], share: float, *, interference: float | None = None
) -> Behind | None:
    """Lets traffic overlap with ``share`` of the works of ``operators``; None if ``share`` is 0."""
    if not share:
        return None
    works = tuple(work for i in operators for work in rank_works(model, i))
    slowed = model.interference if interference is None else interference
    return Behind(works=works, share=share, interference=slowed)


def _region_ends(model: ShardedModel, block: Block) -> dict[int, list[int]]:
    """Maps a backward operator to the sharded regions whose input gradient is complete after it."""
    last = {model.graph.forward_of[i]: i for i in block.backward}
    ends: dict[int, list[int]] = {}
    regions = [i for i in block.forward if i in model.sharding.enters and i not in model.experts]
    for enter in regions:
        members = [
            i
            for i in block.forward
            if i >= enter
            and i not in model.experts
            and model.sharding.roles[i] in (Role.COLUMN, Role.VOCAB)
            and model.graph.operators[i].kind in LINEAR
            and not any(enter < other <= i for other in regions)
        ]
        finals = [last[i] for i in members if i in last]
        if finals:
            ends.setdefault(max(finals), []).append(enter)
    return ends


def _collective(
    model: ShardedModel,
    group: Group,
    kind: CollectiveKind,
    nbytes: float,
    *,
    what: str,
    behind: Behind | None = None,
) -> Item:
    axis = group.axes[0]
    span, runtime = model.spans[axis], model.runtime
    waits = runtime.launches.wait * span.num_ranks
    return Item(
        work=span.collective(kind, nbytes),
        launches=Launch(collectives=runtime.launches.collective, waits=waits, crowded=model.crowded),
        label=f"{axis} {kind} {what}",
        group=group,
        behind=behind,
    )


def _after_lookup(model: ShardedModel, tables: Tables, i: int) -> Iterator[Item]:
    """After forward operator ``i``: if it is the last lookup in sharded tables, sends vectors to their samples."""
    if model.tables.ways > 1 and i == tables.last_lookup:
        yield _vectors(model, tables, "embeddings")


def _vectors(model: ShardedModel, tables: Tables, what: str) -> Item:
    """Exchanges the vectors that were looked up in sharded tables, or their gradients, which have the same size."""
    nbytes = float(sum(rank_operator(model, lookup).outputs[0].nbytes for lookup in tables.lookups))
    return _collective(model, Group.TABLE, "all_to_all", nbytes, what=what)


def _before_rows(model: ShardedModel, tables: Tables, i: int) -> Iterator[Item]:
    """Before backward operator ``i``: the exchange that it needs to make gradients of rows, or to update rows.

    Replicas with whole tables gather the gradients of the rows of all samples, with the numbers of the rows.
    """
    if model.tables.ways > 1 and i == tables.first_gradient:
        yield _vectors(model, tables, "gradients of embeddings")
    if i == tables.first_update and model.tables.gathers:
        rows = [rank_operator(model, update).inputs[0] for update in tables.updates]  # of all replicas
        nbytes = sum(spec.nbytes + spec.numel / spec.shape[-1] * INDEX_BYTES for spec in rows)
        nbytes /= model.strategy.tp if model.sharding.roles[tables.last_lookup] is Role.VOCAB else 1
        yield _collective(model, Group.TABLE, "all_gather", nbytes, what="rows of tables")


def _product_of(model: ShardedModel, operators: tuple[int, ...]) -> int:
    """The first product among ``operators``, or the first operator if none is a product."""
    return next((i for i in operators if model.graph.operators[i].kind in LINEAR), operators[0])


def _behind_product(model: ShardedModel, beside: int) -> Behind | None:
    """Lets tensor-parallel traffic, sent in pieces, overlap with the product next to it."""
    return _behind(model, [beside], model.runtime.exchange.overlap_tensor) if model.strategy.sequence_parallel else None


def _enter_forward(model: ShardedModel, i: int, block: Block) -> Iterator[Item]:
    """Before operator ``i``, the first of a sharded region: gathers its input if it is split by tokens."""
    if model.strategy.sequence_parallel:
        yield from _tensor_traffic(model, i, block, model.graph.operators[i].inputs[0], gathers=True, beside=i)


def _leave_forward(model: ShardedModel, i: int, block: Block) -> Iterator[Item]:
    """After operator ``i``, the last of a sharded region: sums its outputs over ranks."""
    yield from _tensor_traffic(model, i, block, model.graph.operators[i].outputs[0], gathers=False, beside=i)


def _leave_backward(model: ShardedModel, i: int, block: Block, *, beside: int) -> Iterator[Item]:
    """The backward of :func:`_leave_forward`; it overlaps with the product ``beside``."""
    if model.strategy.sequence_parallel:
        spec = model.graph.operators[i].outputs[0]
        yield from _tensor_traffic(model, i, block, spec, gathers=True, beside=beside)


def _enter_backward(model: ShardedModel, i: int, block: Block, *, beside: int) -> Iterator[Item]:
    """The backward of :func:`_enter_forward`: sums the gradients of the input over ranks."""
    yield from _tensor_traffic(model, i, block, model.graph.operators[i].inputs[0], gathers=False, beside=beside)


def _tensor_traffic(
    model: ShardedModel, i: int, block: Block, spec: TensorSpec, *, gathers: bool, beside: int
) -> Iterator[Item]:
    """Gathers or sums activations in the tensor group, overlapped with product ``beside``; nothing for one rank."""
    if model.strategy.tp > 1:
        summed: CollectiveKind = "reduce_scatter" if model.strategy.sequence_parallel else "all_reduce"
        nbytes = spec.with_batch(model.micro_batch).numel * model.precision.activations.nbytes / model.strategy.cp
        yield _collective(
            model,
            Group.TENSOR,
            "all_gather" if gathers else summed,
            nbytes,
            what=place(model.graph, i, block),
            behind=_behind_product(model, beside),
        )


def _gathered_context(model: ShardedModel, kind: CollectiveKind, i: int, what: str) -> Item:
    """Context parallelism: gives every rank the keys and values of the whole sequence for its heads."""
    _, keys, values = model.graph.operators[i].inputs[-3:]
    nbytes = float(sum(t.with_batch(model.micro_batch).numel for t in (keys, values))) / model.strategy.tp
    nbytes *= model.precision.activations.nbytes
    behind = None
    if model.strategy.context == "ring":  # pieces travel while attention runs on those that have arrived
        # backward: keys, then their gradients
        both = 1.0 if model.graph.operators[i].phase is Phase.FORWARD else 2.0
        behind = _behind(model, [i], (1.0 - 1.0 / model.strategy.cp) / both)
    return _collective(model, Group.CONTEXT, kind, nbytes, what=what, behind=behind)
