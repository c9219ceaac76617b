"""What a plan is made from: programs of blocks, pieces of the model, slots of the schedule; and the memory it takes.

The first half of lowering. Programs depend on few of a strategy's settings and are kept, so that many strategies share
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from traincast.cluster import Cluster
from traincast.errors import StrategyError
from traincast.graph import DType, Operator, OperatorGraph, OpKind
from traincast.strategy.experts import Region, check_experts, find_regions
from traincast.strategy.fusion import fuse
from traincast.strategy.memory import Memory, memory_of, runs_ahead
from traincast.strategy.memory_timeline import Holder, Moment, holders, memory_timeline
from traincast.strategy.mesh import Axis, Mesh, Span
from traincast.strategy.precision import Precision
from traincast.strategy.program import BlockProgram, ProgramBuilder
from traincast.strategy.runtime import Runtime
from traincast.strategy.schedules import load_schedule
from traincast.strategy.schedules.skeleton import Skeleton, skeleton
from traincast.strategy.sharding import Sharding, check_shardable, find_sharding
from traincast.strategy.stages import Stage, cut_stages
from traincast.strategy.strategy import ShardRule, Strategy

_MAX_PASSES: Final = 500_000
_PRODUCT_KINDS: Final = frozenset(
    {OpKind.GEMM, OpKind.BATCHED_GEMM, OpKind.GROUPED_GEMM, OpKind.CONV, OpKind.ATTENTION}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All that a plan depends on."""

    graph: OperatorGraph
    cluster: Cluster
    strategy: Strategy
    runtime: Runtime
    precision: Precision
    global_batch: int
    optimizer: bool = True


@lru_cache(maxsize=64)
def _fused(
    graph: OperatorGraph, fusions: tuple[str, ...], rules: tuple[ShardRule, ...]
) -> tuple[OperatorGraph, Sharding]:
    fused = fuse(graph, fusions)  # type: ignore[arg-type]
    return fused, find_sharding(fused, rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a plan and its memory are made from.

    ``pieces`` are the parts of the model in order, each a stage's chunk; the routes of ``slots`` say where they stand.
    """

    mesh: Mesh
    precision: Precision
    programs: tuple[BlockProgram, ...]
    pieces: list[Stage]
    slots: Skeleton
    micro_batch: int

    def held(self, stage: int) -> list[list[BlockProgram]]:
        """The programs of every chunk that ``stage`` holds, by chunk."""
        found = {chunk: piece for route in self.slots.routes for piece, (at, chunk) in enumerate(route) if at == stage}
        return [[self.programs[b] for b in self.pieces[found[chunk]].blocks] for chunk in sorted(found)]


def prepare(request: Request) -> Prepared:
    """Check ``request`` and make what its plan and its memory are made from."""
    strategy, runtime, cluster = request.strategy, request.runtime, request.cluster
    _check(request)
    mesh = Mesh.of(strategy, cluster)
    precision = request.precision
    if runtime.gradient_dtype and precision.master is not None:
        precision = replace(precision, gradients=DType(runtime.gradient_dtype))
    micro_batch = strategy.micro_batch(request.global_batch)
    builder, programs = _programs(
        request.graph,
        _of_programs(strategy),
        runtime,
        precision,
        tuple((axis, mesh.span(axis)) for axis in _WAITED),
        mesh.pp > 1 and mesh.span("pp").num_nodes > 1 and runtime.wait_launches > 0,
        micro_batch,
        cluster.interference,
    )
    schedule = load_schedule(strategy.schedule)
    chunks = schedule.chunks or strategy.virtual_stages
    if strategy.virtual_stages not in (1, chunks):
        raise StrategyError(
            f"virtual_stages={strategy.virtual_stages}: {strategy.schedule} always has {chunks}; leave it out"
        )
    slots = skeleton(strategy.schedule, strategy.pp, strategy.num_microbatches, chunks)
    pieces = cut_stages(
        builder.graph,
        len(slots.routes[0]),
        costs=[_rough_seconds(p, cluster) for p in programs],
        sends=[p.boundary_bytes / cluster.nic_bandwidth_per_device for p in programs],
        layers=strategy.layers,
        by_weights=runtime.stage_cut == "weights",
    )
    if strategy.recompute_every > 1:
        programs, pieces = _some_kept(builder, programs, pieces, strategy.recompute_every)
    return Prepared(
        mesh=mesh,
        precision=precision,
        programs=programs,
        pieces=pieces,
        slots=slots,
        micro_batch=micro_batch,
    )


_WAITED: Final[tuple[Axis, ...]] = ("tp", "cp", "ep", "etp")
"""Axes whose traffic compute waits for, block by block."""


def _of_programs(strategy: Strategy) -> Strategy:
    """A strategy without what the programs of its blocks do not depend on, so that many share them."""
    spread = strategy.ep > 1 or strategy.expert_tp != strategy.tp
    return replace(
        strategy,
        dp=strategy.expert_replicas * strategy.ep * strategy.expert_tp if spread else 1,
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
        asynchronous=False,
    )


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
) -> tuple[ProgramBuilder, tuple[BlockProgram, ...]]:
    """What a rank does in each block, and what made it."""
    fused, sharding = _fused(graph, runtime.fusions, strategy.shard_rules)
    check_shardable(fused, sharding, strategy.tp)
    builder = ProgramBuilder(
        graph=fused,
        sharding=sharding,
        strategy=strategy,
        runtime=runtime,
        precision=precision,
        spans=dict(spans),
        crowded=crowded,
        micro_batch=micro_batch,
        experts=_shared_out(fused, strategy),
        interference=interference,
    )
    return builder, tuple(builder.build(block) for block in fused.blocks)


def _shared_out(graph: OperatorGraph, strategy: Strategy) -> dict[int, Region]:
    """The region of every operator of experts, if a strategy spreads them otherwise than everything else."""
    if strategy.ep == 1 and strategy.expert_tp == strategy.tp:
        return {}
    check_experts(graph, ep=strategy.ep, etp=strategy.expert_tp)
    regions = [region for block in graph.blocks for region in find_regions(graph, block)]
    return {i: region for region in regions for i in (*region.forward, *region.backward)}


def _some_kept(
    builder: ProgramBuilder, programs: tuple[BlockProgram, ...], pieces: list[Stage], every: int
) -> tuple[tuple[BlockProgram, ...], list[Stage]]:
    """Only every n-th repeated block is recomputed; the others get programs that keep their activations."""
    repeated = [number for number, block in enumerate(builder.graph.blocks) if block.count > 1]
    kept = {number: len(programs) + n for n, number in enumerate(repeated)}
    more = tuple(builder.build(builder.graph.blocks[number], recompute="none") for number in repeated)
    result, layer = [], 0
    for piece in pieces:
        blocks = []
        for b in piece.blocks:
            blocks.append(kept[b] if b in kept and layer % every else b)
            layer += b in kept
        result.append(Stage(blocks=tuple(blocks)))
    return (*programs, *more), result


def exchanged_parts(request: Request) -> list[tuple[BlockProgram, float]]:
    """Blocks in the order of forward, with the bytes of gradients that each has to exchange."""
    prepared = prepare(request)
    programs = [prepared.programs[b] for piece in prepared.pieces for b in piece.blocks]
    return [(p, prepared.precision.gradient_bytes(p.num_parameters) * request.strategy.compression) for p in programs]


def memory_only(request: Request) -> float:
    """Peak memory of the fullest rank, in bytes, without laying out a plan."""
    return max(m.total for m in memory_by_stage(request, prepare(request)))


def memory_in_detail(request: Request) -> tuple[int, list[Moment], list[Holder]]:
    """The fullest stage, what it holds while each of its slots runs, and the tensors that make its peak."""
    prepared = prepare(request)
    memory = memory_by_stage(request, prepared)
    stage = max(range(len(memory)), key=lambda s: memory[s].total)
    held, slots = prepared.held(stage), prepared.slots.order[stage]
    moments = memory_timeline(held, slots, memory=memory[stage], strategy=request.strategy)
    return stage, moments, holders(held, slots, strategy=request.strategy)


def memory_by_stage(request: Request, prepared: Prepared) -> tuple[Memory, ...]:
    """Peak memory of a rank of every stage."""
    held = [prepared.held(stage) for stage in range(len(prepared.slots.order))]
    ahead = runs_ahead(held, inside_node=prepared.mesh.span("tp").num_nodes == 1)
    calibration = request.cluster.calibration
    share = calibration.memory_share if calibration else 1.0
    return tuple(
        memory_of(
            held[stage],
            codes,
            strategy=request.strategy,
            runtime=request.runtime,
            precision=prepared.precision,
            ahead=ahead[stage],
            optimizer=request.optimizer,
        ).measured(share)
        for stage, codes in enumerate(prepared.slots.codes)
    )


def _check(request: Request) -> None:
    strategy = request.strategy
    passes = 2 * strategy.num_microbatches * strategy.pp * strategy.virtual_stages
    if passes > _MAX_PASSES:
        raise StrategyError(
            f"{strategy.num_microbatches} microbatches over pp·virtual_stages = "
            f"{strategy.pp * strategy.virtual_stages} stages make {passes:,} passes; at most {_MAX_PASSES:,} are "
            f"simulated: use a larger micro_batch or a smaller global batch"
        )
    if request.runtime.fills_pipeline and strategy.num_microbatches < strategy.pp - 1:
        raise StrategyError(
            f"{strategy.num_microbatches} microbatches with pp={strategy.pp}: {request.runtime.name} needs at least "
            f"pp − 1 = {strategy.pp - 1} to fill the pipeline; use a smaller micro_batch or pp"
        )
    if request.strategy.cp > 1 and request.graph.tokens_per_sample % request.strategy.cp:
        raise StrategyError(
            f"cp={request.strategy.cp} does not divide the sequence of {request.graph.tokens_per_sample} tokens"
        )
    if request.strategy.sequence_parallel and request.graph.tokens_per_sample % request.strategy.tp:
        raise StrategyError(
            f"sequence_parallel with tp={request.strategy.tp} does not divide the sequence of "
            f"{request.graph.tokens_per_sample} tokens"
        )


def _rough_seconds(program: BlockProgram, cluster: Cluster) -> float:
    """A block's weight for cutting stages: a bare roofline, all that is needed to compare blocks."""
    total = 0.0
    for item in (*program.forward, *program.backward):
        if isinstance(item.work, Operator):
            dtype = item.work.dtype.value if item.work.kind in _PRODUCT_KINDS else "fp32"
            rate = cluster.device.peak(dtype)
            total += max(item.work.flops / rate, item.work.nbytes / cluster.device.memory_bandwidth)
    return total
