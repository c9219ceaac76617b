"""Traffic of tensor, context and expert parallelism inside a block, which compute waits for.

The functions return the works of one rank for one microbatch in order, each with the computation that it overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from traincast.graph import Block, OpKind, Phase, TensorSpec
from traincast.graph.vocabulary import LINEAR
from traincast.strategy.mesh import Group
from traincast.strategy.program.block import Behind, Item
from traincast.strategy.program.embedding_tables import INDEX_BYTES, Tables
from traincast.strategy.program.experts import Region, distinct
from traincast.strategy.program.sharding import Role
from traincast.work import CollectiveKind, Launch

if TYPE_CHECKING:
    from traincast.strategy.program.builder import ProgramBuilder


def to_experts(builder: ProgramBuilder, region: Region, beside: tuple[int, ...], block: Block) -> Iterator[Item]:
    """Dispatch: sends tokens to the ranks of their experts, which then gather them for all parts of an expert.

    It overlaps with the experts' own operators ``beside`` it, or with whole passes of the ``block``.
    """
    sent, held = _routed(builder, region)
    if beside == region.forward:
        sent, held = sent * _narrowed(builder), held * _narrowed(builder)
    if builder.strategy.ep > 1:
        yield _collective(
            builder,
            Group.EXPERT,
            "all_to_all",
            sent,
            what="dispatch",
            behind=_behind_experts(builder, region, beside, block),
        )
    if builder.strategy.expert_tp > 1:
        yield _collective(builder, Group.EXPERT_TENSOR, "all_gather", held, what="dispatch")


def from_experts(builder: ProgramBuilder, region: Region, beside: tuple[int, ...], block: Block) -> Iterator[Item]:
    """Combine: adds up the partial sums of an expert's parts, and sends results back to the ranks of their tokens."""
    sent, held = _routed(builder, region)
    if builder.strategy.expert_tp > 1:
        yield _collective(builder, Group.EXPERT_TENSOR, "reduce_scatter", held, what="combine")
    if builder.strategy.ep > 1:
        yield _collective(
            builder,
            Group.EXPERT,
            "all_to_all",
            sent,
            what="combine",
            behind=_behind_experts(builder, region, beside, block),
        )


def _routed(builder: ProgramBuilder, region: Region) -> tuple[float, float]:
    """Bytes that a rank sends to experts, and bytes that the ranks of one expert gather."""
    strategy = builder.strategy
    rows = region.tokens.with_batch(builder.micro_batch).numel * builder.precision.activations.nbytes
    held = rows / (strategy.cp * strategy.tp) * strategy.load
    return held * _sent_share(builder, region), held * strategy.expert_tp


def _narrowed(builder: ProgramBuilder) -> float:
    """The bytes of dispatched tokens over those of activations. In fp8, 32 elements have one scale of a byte."""
    narrow = builder.runtime.experts.dispatch_dtype == "fp8"
    return (1.0 + 1.0 / 32.0) / builder.precision.activations.nbytes if narrow else 1.0


def _sent_share(builder: ProgramBuilder, region: Region) -> float:
    """The share of routed rows that is sent.

    A fused dispatcher sends a token once to each rank that holds any of its experts and, between nodes, once to each
    node, where it is passed on over fast links. An all-to-all sends it once for each expert.
    """
    if builder.runtime.experts.dispatcher == "all_to_all":
        return 1.0
    span = builder.spans["ep"]
    places = span.num_nodes if span.num_nodes > 1 else span.num_ranks
    return min(1.0, distinct(places, region.copies) / region.copies)


def routing(builder: ProgramBuilder, region: Region) -> Iterator[Item]:
    """The wait of the device while the host reads how many tokens each expert has got, and launches what follows.

    With a capacity, or with recorded graphs, shapes are known in advance and nobody waits.
    """
    launches = builder.runtime.experts.routing_launches
    if launches and not builder.strategy.capacity and not builder.runtime.launches.cuda_graphs:
        yield Item(work=Launch(blocks=launches), launches=Launch(), label=f"routing {region.scope.rpartition('.')[2]}")


def hidden_by_experts(builder: ProgramBuilder, index: int, region: Region, block: Block) -> Behind | None:
    """What hides an operator around the experts' products where kernels are fused.

    A fused dispatcher reorders and weights tokens as it sends them; products that are fused with what lies between
    them hide its traffic.
    """
    runtime, op = builder.runtime, builder.graph.operators[index]
    inside = region.forward if index in region.forward else region.backward if index in region.backward else ()
    if inside and runtime.experts.grouped == "fused" and op.kind is not OpKind.GROUPED_GEMM:
        products = [i for i in inside if builder.graph.operators[i].kind is OpKind.GROUPED_GEMM]
        return _behind(builder, products, 1.0 / (len(inside) - len(products)), interference=0.0)
    if runtime.experts.dispatcher == "fused" and builder.strategy.ep > 1 and region.moves_tokens(op, index):
        sent, _ = _routed(builder, region)
        work = builder.spans["ep"].collective("all_to_all", sent)
        return Behind(works=(work, work), share=1.0 / len(region.moving(builder.graph, block, op.phase)))
    return None


def _behind_experts(builder: ProgramBuilder, region: Region, beside: tuple[int, ...], block: Block) -> Behind | None:
    """Dispatch and combine each overlap with half of the experts' operators, or of those of another microbatch.

    Of a forward and a backward that run as one, each of their four messages overlaps with a quarter.
    """
    between = builder.between_batches
    if between is None:
        return _behind(builder, beside, builder.runtime.experts.overlap / 2.0)
    if between.paired:
        return _behind(builder, (*block.forward, *block.backward), between.share / 4.0)
    own = block.forward if beside == region.forward else block.backward
    return _behind(builder, own, between.share / 2.0)


def _behind(
    builder: ProgramBuilder, operators: Iterable[int], share: float, *, interference: float | None = None
) -> Behind | None:
    """Lets traffic overlap with ``share`` of the works of ``operators``; None if ``share`` is 0."""
    if not share:
        return None
    works = tuple(work for i in operators for work in builder.works(i))
    slowed = builder.interference if interference is None else interference
    return Behind(works=works, share=share, interference=slowed)


def region_ends(builder: ProgramBuilder, block: Block, last: dict[int, int]) -> dict[int, list[int]]:
    """Maps a backward operator to the sharded regions whose input gradient is complete after it."""
    ends: dict[int, list[int]] = {}
    regions = [i for i in block.forward if i in builder.sharding.enters and i not in builder.experts]
    for enter in regions:
        members = [
            i
            for i in block.forward
            if i >= enter
            and i not in builder.experts
            and builder.sharding.roles[i] in (Role.COLUMN, Role.VOCAB)
            and builder.graph.operators[i].kind in LINEAR
            and not any(enter < other <= i for other in regions)
        ]
        finals = [last[i] for i in members if i in last]
        if finals:
            ends.setdefault(max(finals), []).append(enter)
    return ends


def _collective(
    builder: ProgramBuilder,
    group: Group,
    kind: CollectiveKind,
    nbytes: float,
    *,
    what: str,
    behind: Behind | None = None,
) -> Item:
    axis = group.axes[0]
    span, runtime = builder.spans[axis], builder.runtime
    waits = runtime.launches.wait * span.num_ranks
    return Item(
        work=span.collective(kind, nbytes),
        launches=Launch(collectives=runtime.launches.collective, waits=waits, crowded=builder.crowded),
        label=f"{axis} {kind} {what}",
        group=group,
        behind=behind,
    )


def after_lookup(builder: ProgramBuilder, tables: Tables, i: int) -> Iterator[Item]:
    """After forward operator ``i``: if it is the last lookup in sharded tables, sends vectors to their samples."""
    if builder.tables.ways > 1 and i == tables.last_lookup:
        yield _vectors(builder, tables, "embeddings")


def _vectors(builder: ProgramBuilder, tables: Tables, what: str) -> Item:
    """Exchanges the vectors that were looked up in sharded tables, or their gradients, which have the same size."""
    nbytes = float(sum(builder.cut(lookup).outputs[0].nbytes for lookup in tables.lookups))
    return _collective(builder, Group.TABLE, "all_to_all", nbytes, what=what)


def before_rows(builder: ProgramBuilder, tables: Tables, i: int) -> Iterator[Item]:
    """Before backward operator ``i``: the exchange that it needs to make gradients of rows, or to update rows.

    Replicas with whole tables gather the gradients of the rows of all samples, with the numbers of the rows.
    """
    if builder.tables.ways > 1 and i == tables.first_gradient:
        yield _vectors(builder, tables, "gradients of embeddings")
    if i == tables.first_update and builder.tables.gathers:
        rows = [builder.cut(update).inputs[0] for update in tables.updates]  # of all replicas
        nbytes = sum(spec.nbytes + spec.numel / spec.shape[-1] * INDEX_BYTES for spec in rows)
        nbytes /= builder.strategy.tp if builder.sharding.roles[tables.last_lookup] is Role.VOCAB else 1
        yield _collective(builder, Group.TABLE, "all_gather", nbytes, what="rows of tables")


def product_of(builder: ProgramBuilder, operators: tuple[int, ...]) -> int:
    """The first product among ``operators``, or the first operator if none is a product."""
    return next((i for i in operators if builder.graph.operators[i].kind in LINEAR), operators[0])


def _behind_product(builder: ProgramBuilder, beside: int) -> Behind | None:
    """Lets tensor-parallel traffic, sent in pieces, overlap with the product next to it."""
    return (
        _behind(builder, [beside], builder.runtime.exchange.overlap_tensor)
        if builder.strategy.sequence_parallel
        else None
    )


def enter_forward(builder: ProgramBuilder, i: int, block: Block) -> Iterator[Item]:
    """Before operator ``i``, the first of a sharded region: gathers its input if it is split by tokens."""
    if builder.strategy.sequence_parallel:
        yield from _tensor_traffic(builder, i, block, builder.graph.operators[i].inputs[0], gathers=True, beside=i)


def leave_forward(builder: ProgramBuilder, i: int, block: Block) -> Iterator[Item]:
    """After operator ``i``, the last of a sharded region: sums its outputs over ranks."""
    yield from _tensor_traffic(builder, i, block, builder.graph.operators[i].outputs[0], gathers=False, beside=i)


def leave_backward(builder: ProgramBuilder, i: int, block: Block, *, beside: int) -> Iterator[Item]:
    """The backward of :func:`leave_forward`; it overlaps with the product ``beside``."""
    if builder.strategy.sequence_parallel:
        spec = builder.graph.operators[i].outputs[0]
        yield from _tensor_traffic(builder, i, block, spec, gathers=True, beside=beside)


def enter_backward(builder: ProgramBuilder, i: int, block: Block, *, beside: int) -> Iterator[Item]:
    """The backward of :func:`enter_forward`: sums the gradients of the input over ranks."""
    yield from _tensor_traffic(builder, i, block, builder.graph.operators[i].inputs[0], gathers=False, beside=beside)


def _tensor_traffic(
    builder: ProgramBuilder, i: int, block: Block, spec: TensorSpec, *, gathers: bool, beside: int
) -> Iterator[Item]:
    """Gathers or sums activations in the tensor group, overlapped with product ``beside``; nothing for one rank."""
    if builder.strategy.tp > 1:
        summed: CollectiveKind = "reduce_scatter" if builder.strategy.sequence_parallel else "all_reduce"
        nbytes = spec.with_batch(builder.micro_batch).numel * builder.precision.activations.nbytes / builder.strategy.cp
        yield _collective(
            builder,
            Group.TENSOR,
            "all_gather" if gathers else summed,
            nbytes,
            what=builder.place(i, block),
            behind=_behind_product(builder, beside),
        )


def gathered_context(builder: ProgramBuilder, kind: CollectiveKind, i: int, what: str) -> Item:
    """Context parallelism: gives every rank the keys and values of the whole sequence for its heads."""
    _, keys, values = builder.graph.operators[i].inputs[-3:]
    nbytes = float(sum(t.with_batch(builder.micro_batch).numel for t in (keys, values))) / builder.strategy.tp
    nbytes *= builder.precision.activations.nbytes
    behind = None
    if builder.strategy.context == "ring":  # pieces travel while attention runs on those that have arrived
        # backward: keys, then their gradients
        both = 1.0 if builder.graph.operators[i].phase is Phase.FORWARD else 2.0
        behind = _behind(builder, [i], (1.0 - 1.0 / builder.strategy.cp) / both)
    return _collective(builder, Group.CONTEXT, kind, nbytes, what=what, behind=behind)
