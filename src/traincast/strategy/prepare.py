"""The first half of lowering: programs of blocks, pieces of the model, slots of the schedule; and the memory they need.

Programs depend on few settings of a strategy. They are cached and shared by strategies with equal settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from traincast.cluster import Cluster
from traincast.errors import StrategyError
from traincast.graph import DType, OperatorGraph
from traincast.strategy.memory.fits import MemoryNeed, need_of
from traincast.strategy.memory.host import host_of
from traincast.strategy.memory.peak import Memory, memory_of, runs_ahead
from traincast.strategy.memory.timeline import Holder, Moment, holders, memory_timeline
from traincast.strategy.mesh import Axis, Group, Mesh, Span, workers_of
from traincast.strategy.program.autocast import autocast
from traincast.strategy.program.block import BlockProgram, block_program
from traincast.strategy.program.embedding_tables import TableSharing, check_tables, table_spans
from traincast.strategy.program.experts import BatchOverlap, Region, check_experts, find_regions, overlap_of_batches
from traincast.strategy.program.fusion import fuse
from traincast.strategy.program.precision import Precision
from traincast.strategy.program.sharded_model import ShardedModel
from traincast.strategy.program.sharding import Sharding, check_shardable, find_sharding
from traincast.strategy.program.written_out import write_out
from traincast.strategy.runtime import Runtime
from traincast.strategy.schedules import load_schedule
from traincast.strategy.schedules.skeleton import Skeleton, skeleton
from traincast.strategy.stages import Stage, cut_stages, rough_seconds
from traincast.strategy.strategy import ShardRule, Strategy

_MAX_PASSES: Final = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything that a plan depends on."""

    graph: OperatorGraph
    cluster: Cluster
    strategy: Strategy
    runtime: Runtime
    precision: Precision
    global_batch: int
    optimizer: bool = True


def for_workers(request: Request) -> Request:
    """``request`` on the nodes that run ranks, without nodes that hold only parameter servers."""
    if not request.strategy.server_nodes and not request.cluster.hosts:
        return request
    Mesh.of(request.strategy, request.cluster)  # if this refuses, its message counts all nodes
    cluster = workers_of(request.cluster, request.strategy)
    return replace(request, cluster=cluster, strategy=replace(request.strategy, server_nodes=0, placement=()))


@lru_cache(maxsize=64)
def _fused(
    graph: OperatorGraph,
    fusions: tuple[str, ...],
    rules: tuple[ShardRule, ...],
    split_vocabulary: bool,
    written: tuple[bool, bool, bool],
) -> tuple[OperatorGraph, Sharding]:
    written_out, repeats_keys, casts = written
    if written_out:
        graph = write_out(graph, repeats_keys=repeats_keys, fused_loss="loss" in fusions)
    if casts:
        graph = autocast(graph)
    fused = fuse(graph, fusions)  # type: ignore[arg-type]
    return fused, find_sharding(fused, rules, split_vocabulary=split_vocabulary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The inputs of a plan and of its memory.

    ``pieces`` are the parts of the model in order; each is one chunk of a stage. The routes of ``slots`` assign pieces
    to stages.
    """

    mesh: Mesh
    precision: Precision
    programs: tuple[BlockProgram, ...]
    pieces: list[Stage]
    slots: Skeleton
    micro_batch: int

    def held_blocks(self, stage: int) -> tuple[tuple[int, ...], ...]:
        """The blocks of every chunk that ``stage`` holds, by chunk."""
        found = {chunk: piece for route in self.slots.routes for piece, (at, chunk) in enumerate(route) if at == stage}
        return tuple(self.pieces[found[chunk]].blocks for chunk in sorted(found))

    def held(self, stage: int) -> list[list[BlockProgram]]:
        """The programs of every chunk that ``stage`` holds, by chunk."""
        return [[self.programs[b] for b in blocks] for blocks in self.held_blocks(stage)]


def prepare(request: Request) -> Prepared:
    """Checks ``request`` and makes the inputs of its plan and its memory; raises :class:`StrategyError`."""
    strategy = request.strategy
    check_request(request)
    mesh = Mesh.of(strategy, request.cluster)
    precision = kept_precision(request)
    micro_batch = strategy.micro_batch(request.global_batch)
    model, programs = programs_of(request, mesh)
    slots = skeleton(strategy.schedule, strategy.pp, strategy.num_microbatches, chunks_of(strategy))
    weights = rough_seconds(request.cluster.device, programs[: len(model.graph.blocks)])
    pieces = cut_pieces(request, model, programs, len(slots.routes[0]), weights)
    return Prepared(
        mesh=mesh,
        precision=precision,
        programs=programs,
        pieces=pieces,
        slots=slots,
        micro_batch=micro_batch,
    )


def kept_precision(request: Request) -> Precision:
    """The precision of a request, with the runtime's dtype of gradients if it sets one, and with fp32 adapters."""
    precision, runtime = request.precision, request.runtime
    if request.graph.attributes.get("adapter_dtype") == "fp32":
        return precision.with_wide_weights()
    if runtime.defaults.gradient_dtype and precision.master is not None:
        return replace(precision, gradients=DType(runtime.defaults.gradient_dtype))
    return precision


def programs_of(request: Request, mesh: Mesh) -> tuple[ShardedModel, tuple[BlockProgram, ...]]:
    """The program of each block, and the sharded model that they are made from; cached.

    If only every n-th layer is recomputed, the programs of all blocks are followed by those of the repeated blocks
    without recomputation.
    """
    model, programs = _programs(
        request.graph,
        _of_programs(request.strategy),
        request.runtime,
        kept_precision(request),
        (*((axis, mesh.span(axis)) for axis in _WAITED), *table_spans(request.graph, request.strategy, mesh)),
        mesh.pp > 1 and mesh.span("pp").num_nodes > 1 and request.runtime.launches.wait > 0,
        request.strategy.micro_batch(request.global_batch),
        request.cluster.interference,
        overlap_of_batches(request.strategy, request.runtime, near=mesh.span("ep").num_nodes == 1),
    )
    if request.strategy.recompute_every > 1:
        kept = replace(request, strategy=replace(request.strategy, recompute="none", recompute_every=1))
        _, others = programs_of(kept, mesh)
        return model, (*programs, *(others[number] for number in _repeated(model)))
    return model, programs


def layers_of(graph: OperatorGraph) -> int:
    """The number of blocks to divide among pipeline stages: repeated ones if they have most of the work, else all."""
    work = [sum(graph.operators[i].flops for i in block.forward) * block.count for block in graph.blocks]
    repeated = [block.repeated for block in graph.blocks]
    mostly = sum(w for w, r in zip(work, repeated, strict=True) if r) > 0.5 * sum(work)
    return sum(block.count for block, r in zip(graph.blocks, repeated, strict=True) if r or not mostly)


def _repeated(model: ShardedModel) -> list[int]:
    return [number for number, block in enumerate(model.graph.blocks) if block.repeated]


def chunks_of(strategy: Strategy) -> int:
    """The number of chunks of layers of a stage; raises :class:`StrategyError` if the schedule has another number."""
    chunks = load_schedule(strategy.schedule).chunks or strategy.virtual_stages
    if strategy.virtual_stages not in (1, chunks):
        raise StrategyError(
            f"virtual_stages={strategy.virtual_stages}: {strategy.schedule} always has {chunks}; leave out "
            "virtual_stages"
        )
    return chunks


def cut_pieces(
    request: Request,
    model: ShardedModel,
    programs: tuple[BlockProgram, ...],
    num_pieces: int,
    costs: Sequence[float],
) -> list[Stage]:
    """The pieces of the model, as indices into ``programs``; ``costs`` are relative times of its blocks."""
    cluster, strategy = request.cluster, request.strategy
    blocks = len(model.graph.blocks)
    pieces = cut_stages(
        model.graph,
        num_pieces,
        costs=costs,
        sends=[p.boundary_bytes / cluster.nic_bandwidth_per_device for p in programs[:blocks]],
        layers=strategy.layers,
        by_weights=request.runtime.defaults.stage_cut == "weights",
    )
    return _some_kept(model, pieces, strategy.recompute_every) if strategy.recompute_every > 1 else pieces


_WAITED: Final[tuple[Axis, ...]] = tuple(
    axis for group in Group if not group.between_replicas and group is not Group.TABLE for axis in group.axes
)
"""Axes whose traffic compute waits for, block by block; that of embedding tables comes in addition."""


def _of_programs(strategy: Strategy) -> Strategy:
    """The key of the cache of programs: the strategy, with settings that do not affect programs at their defaults."""
    group = strategy.ep * strategy.expert_tp
    spread = strategy.ep > 1 or strategy.expert_tp != strategy.tp
    return replace(
        strategy,
        dp=group // math.gcd(group, strategy.tp * strategy.cp) if spread else 1,  # the smallest that fits a group
        cp=strategy.cp,
        pp=min(strategy.pp, 2),
        virtual_stages=1,
        layers=(),
        num_microbatches=min(strategy.num_microbatches, 2),
        schedule="1f1b",
        zero=0,
        shard=0,
        reshard=True,
        prefetch=-1,
        recompute_every=1,
        compression=1.0,
        sync_each=False,
        servers=0,
        server_nodes=0,
        placement=(),
        asynchronous=False,
        shares=(),
    )


def fusions_of(runtime: Runtime, precision: Precision) -> tuple[str, ...]:
    """The fusions of ``runtime`` in ``precision``; some kernels exist only for 16 bits."""
    half = precision.activations.nbytes == 2
    fusions = (f.removeprefix("half_") if half else f for f in runtime.kernels.fusions)
    return tuple(f for f in fusions if not f.startswith("half_"))


@lru_cache(maxsize=1024)
def _programs(  # noqa: PLR0917  (a cache's key)
    graph: OperatorGraph,
    strategy: Strategy,
    runtime: Runtime,
    precision: Precision,
    spans: tuple[tuple[Axis, Span], ...],
    crowded: bool,
    micro_batch: int,
    interference: float,
    between_batches: BatchOverlap | None,
) -> tuple[ShardedModel, tuple[BlockProgram, ...]]:
    """The program of each block, and the sharded model that they are made from."""
    fused, sharding = _fused(
        graph,
        fusions_of(runtime, precision),
        strategy.shard_rules,
        runtime.defaults.split_vocabulary,
        (runtime.kernels.written_out, runtime.kernels.repeats_keys, precision.autocast and runtime.kernels.autocast),
    )
    check_shardable(fused, sharding, strategy.tp)
    check_tables(fused, strategy)
    model = ShardedModel(
        graph=fused,
        sharding=sharding,
        strategy=strategy,
        runtime=runtime,
        precision=precision,
        spans=dict(spans),
        crowded=crowded,
        micro_batch=micro_batch,
        experts=_shared_out(fused, strategy),
        tables=TableSharing.of(strategy, dict(spans).get("dp")),
        interference=interference,
        between_batches=between_batches,
        made=_made(
            graph, _of_made(strategy), runtime, precision, spans, crowded, micro_batch, interference, between_batches
        ),
    )
    return model, tuple(block_program(model, block) for block in fused.blocks)


def _of_made(strategy: Strategy) -> Strategy:
    """The strategy, with settings that do not affect works at their defaults."""
    return replace(strategy, pp=1, num_microbatches=1, recompute="none", offload=())


@lru_cache(maxsize=256)
def _made(*key: object) -> dict[tuple[Any, ...], Any]:
    """Cache shared by all sharded models that produce identical works."""
    return {}


def _shared_out(graph: OperatorGraph, strategy: Strategy) -> dict[int, Region]:
    """The expert region of each operator if the strategy spreads experts differently from other layers; else empty."""
    if strategy.ep == 1 and strategy.expert_tp == strategy.tp:
        return {}
    check_experts(graph, ep=strategy.ep, etp=strategy.expert_tp)
    regions = [region for block in graph.blocks for region in find_regions(graph, block)]
    return {i: region for region in regions for i in (*region.forward, *region.backward)}


def _some_kept(model: ShardedModel, pieces: list[Stage], every: int) -> list[Stage]:
    """Gives every repeated block the program without recomputation, except each n-th."""
    kept = {number: len(model.graph.blocks) + n for n, number in enumerate(_repeated(model))}
    result, layer = [], 0
    for piece in pieces:
        blocks = []
        for b in piece.blocks:
            blocks.append(kept[b] if b in kept and layer % every else b)
            layer += b in kept
        result.append(Stage(blocks=tuple(blocks)))
    return result


def exchanged_parts(request: Request, prepared: Prepared) -> list[tuple[BlockProgram, float]]:
    """The programs of all blocks in forward order, each with the bytes of gradients that it exchanges."""
    programs = [prepared.programs[b] for piece in prepared.pieces for b in piece.blocks]
    return [(p, prepared.precision.gradient_bytes(p.num_parameters) * request.strategy.compression) for p in programs]


def need_only(request: Request) -> MemoryNeed:
    """The memory that ``request`` needs on devices and hosts, without laying out a plan."""
    memories = memory_by_stage(request, prepare(request))
    return need_of(memories, strategy=request.strategy, runtime=request.runtime, cluster=request.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDetail:
    """The fullest stage, its memory in each of its slots, and the tensors alive at its peak."""

    stage: int
    moments: list[Moment]
    tensors: list[Holder]


def memory_in_detail(request: Request, prepared: Prepared, memory: Sequence[Memory]) -> MemoryDetail:
    """Memory of the fullest stage over its schedule; ``memory`` has the peak of each stage."""
    stage = max(range(len(memory)), key=lambda s: memory[s].total)
    held, slots = prepared.held(stage), prepared.slots.order[stage]
    return MemoryDetail(
        stage=stage,
        moments=memory_timeline(held, slots, memory=memory[stage], strategy=request.strategy),
        tensors=holders(held, slots, strategy=request.strategy),
    )


def memory_by_stage(request: Request, prepared: Prepared) -> tuple[Memory, ...]:
    """Peak memory of a rank of every stage."""
    held = [prepared.held(stage) for stage in range(len(prepared.slots.order))]
    ahead = runs_ahead(held, inside_node=prepared.mesh.span("tp").num_nodes == 1)
    calibration = request.cluster.calibration
    share = calibration.memory_share if calibration else 1.0
    found = []
    for stage, codes in enumerate(prepared.slots.codes):
        memory = memory_of(
            held[stage],
            codes,
            strategy=request.strategy,
            runtime=request.runtime,
            precision=prepared.precision,
            ahead=ahead[stage],
            optimizer=request.optimizer,
        ).measured(share)
        host = host_of(
            held[stage],
            codes,
            strategy=request.strategy,
            runtime=request.runtime,
            precision=prepared.precision,
            optimizer=request.optimizer,
        )
        found.append(replace(memory, host=host))
    return tuple(found)


def check_request(request: Request) -> None:
    """Raises :class:`StrategyError` for a request that its schedule or its mesh cannot run."""
    strategy = request.strategy
    passes = 2 * strategy.num_microbatches * strategy.pp * strategy.virtual_stages
    if passes > _MAX_PASSES:
        raise StrategyError(
            f"{strategy.num_microbatches} microbatches over pp·virtual_stages = "
            f"{strategy.pp * strategy.virtual_stages} stages make {passes:,} passes; at most {_MAX_PASSES:,} are "
            f"simulated: use a larger micro_batch or a smaller global batch"
        )
    if request.runtime.memory.updates_in_backward and strategy.num_microbatches > 1:
        raise StrategyError(
            f"{strategy.num_microbatches} microbatches with updates in backward, which leave no gradients to sum: use "
            "a larger micro_batch, or leave out optimizer_in_backward"
        )
    if request.runtime.defaults.fills_pipeline and strategy.num_microbatches < strategy.pp - 1:
        raise StrategyError(
            f"{strategy.num_microbatches} microbatches with pp={strategy.pp}: {request.runtime.name} needs at least "
            f"pp − 1 = {strategy.pp - 1} to fill the pipeline; use a smaller micro_batch or pp"
        )
    if request.strategy.cp > 1 and request.graph.tokens_per_sample % request.strategy.cp:
        raise StrategyError(
            f"cp={request.strategy.cp} does not divide the sequence of {request.graph.tokens_per_sample} tokens; "
            "choose a divisor"
        )
    if request.strategy.sequence_parallel and request.graph.tokens_per_sample % request.strategy.tp:
        raise StrategyError(
            f"sequence_parallel: tp={request.strategy.tp} does not divide the sequence of "
            f"{request.graph.tokens_per_sample} tokens; choose a divisor, or leave out sequence_parallel"
        )
