"""Lowering: the only place where graph, strategy, runtime and cluster meet.

Every slot of the pipeline schedule (one pass of one microbatch through one chunk of layers) is laid
out from a template made once per kind of slot; the templates are copied side by side and shifted,
so lowering a million tasks is a handful of array operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from traincast.cluster import Cluster
from traincast.errors import StrategyError
from traincast.graph import DType, Operator, OperatorGraph, OpKind, Phase, TensorSpec
from traincast.strategy.fusion import fuse
from traincast.strategy.memory import Memory, memory_of
from traincast.strategy.mesh import Mesh
from traincast.strategy.plan import Category, Group, Plan
from traincast.strategy.precision import Precision
from traincast.strategy.program import BlockProgram, Item, ProgramBuilder
from traincast.strategy.runtime import Runtime
from traincast.strategy.schedules import Slot, load_schedule, merge
from traincast.strategy.sharding import Sharding, check_shardable, find_sharding
from traincast.strategy.stages import Stage, cut_stages
from traincast.strategy.strategy import ShardRule, Strategy
from traincast.strategy.template import Grain, Issue, Piece, PlanBuilder, Run, Template
from traincast.work import Collective, CollectiveKind, Transfer

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A plan, and what each stage holds in memory and computes."""

    plan: Plan
    memory: tuple[Memory, ...]
    stages: tuple[Stage, ...]
    micro_batch: int


@lru_cache(maxsize=64)
def _fused(
    graph: OperatorGraph, fusions: tuple[str, ...], rules: tuple[ShardRule, ...]
) -> tuple[OperatorGraph, Sharding]:
    fused = fuse(graph, fusions)  # type: ignore[arg-type]
    return fused, find_sharding(fused, rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What a plan and its memory are made from."""

    mesh: Mesh
    precision: Precision
    programs: list[BlockProgram]
    stages: list[Stage]
    schedule: list[list[Slot]]
    micro_batch: int


def _prepare(request: Request) -> _Prepared:
    strategy, runtime, cluster = request.strategy, request.runtime, request.cluster
    _check(request)
    mesh = Mesh.of(strategy, cluster)
    graph, sharding = _fused(request.graph, runtime.fusions, strategy.shard_rules)
    check_shardable(graph, sharding, strategy.tp)
    precision = request.precision
    if runtime.gradient_dtype and precision.master is not None:
        precision = replace(precision, gradients=DType(runtime.gradient_dtype))
    builder = ProgramBuilder(
        graph=graph,
        sharding=sharding,
        strategy=strategy,
        runtime=runtime,
        precision=precision,
        mesh=mesh,
        micro_batch=strategy.micro_batch(request.global_batch),
    )
    programs = [builder.build(block) for block in graph.blocks]
    stages = cut_stages(
        graph,
        strategy.pp * strategy.virtual_stages,
        costs=[_rough_seconds(p, cluster) for p in programs],
        sends=[p.boundary_bytes / cluster.nic_bandwidth_per_device for p in programs],
    )
    schedule = load_schedule(strategy.schedule)(strategy.pp, strategy.num_microbatches, strategy.virtual_stages)
    return _Prepared(
        mesh=mesh,
        precision=precision,
        programs=programs,
        stages=stages,
        schedule=schedule,
        micro_batch=builder.micro_batch,
    )


def lower(request: Request, *, grain: Grain = "segment") -> Lowered:
    """Lay out one training step as a folded plan: one row per pipeline stage."""
    prepared = _prepare(request)
    layout = _Layout(
        request=request,
        mesh=prepared.mesh,
        precision=prepared.precision,
        programs=prepared.programs,
        stages=prepared.stages,
        grain=grain,
    )
    plan = layout.plan(merge(prepared.schedule, request.strategy.virtual_stages))
    return Lowered(
        plan=plan, memory=_memory(request, prepared), stages=tuple(prepared.stages), micro_batch=prepared.micro_batch
    )


def memory_only(request: Request) -> float:
    """Peak memory of the fullest rank, in bytes, without laying out a plan."""
    return max(m.total for m in _memory(request, _prepare(request)))


def _memory(request: Request, prepared: _Prepared) -> tuple[Memory, ...]:
    strategy = request.strategy
    chunks = len(prepared.stages)
    return tuple(
        memory_of(
            [prepared.programs[b] for c in range(stage, chunks, strategy.pp) for b in prepared.stages[c].blocks],
            in_flight=_in_flight(prepared.schedule[stage]),
            strategy=strategy,
            runtime=request.runtime,
            precision=prepared.precision,
        )
        for stage in range(strategy.pp)
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
    if request.strategy.ep > 1:
        raise StrategyError(
            f"ep={request.strategy.ep}: expert parallelism is not modelled yet; use ep=1 with tp or zero instead"
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


def _in_flight(slots: list[Slot]) -> float:
    """Most microbatches of this stage between forward and backward at once, in chunks."""
    alive = most = 0
    for slot in slots:
        alive += -1 if slot.backward else 1
        most = max(most, alive)
    return float(most)


def _rough_seconds(program: BlockProgram, cluster: Cluster) -> float:
    """A block's weight for cutting stages: a bare roofline, all that is needed to compare blocks."""
    total = 0.0
    for item in (*program.forward, *program.backward):
        if isinstance(item.work, Operator):
            dtype = item.work.dtype.value if item.work.kind in _PRODUCT_KINDS else "fp32"
            rate = cluster.device.peak(dtype)
            total += max(item.work.flops / rate, item.work.nbytes / cluster.device.memory_bandwidth)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Turns slots into tasks; holds what all slots share."""

    request: Request
    mesh: Mesh
    precision: Precision
    programs: list[BlockProgram]
    stages: list[Stage]
    grain: Grain

    def plan(self, slots: list[tuple[int, Slot]]) -> Plan:
        """Lay out all slots, then each stage's gradient exchange and optimizer."""
        strategy = self.request.strategy
        out = PlanBuilder(self.mesh, self.grain, self.request.runtime)
        last = strategy.num_microbatches - 1
        chunks = len(self.stages)
        templates: dict[tuple[int, bool, bool], Template] = {}
        sends = [self._send(out, chunk) for chunk in range(chunks)]
        arrived: dict[tuple[bool, int, int], int] = {}
        synced: dict[int, list[int]] = {}
        final_backward: dict[int, int] = {}
        for stage, slot in slots:
            chunk = slot.chunk * strategy.pp + stage
            syncs = slot.backward and slot.microbatch == last
            key = (chunk, slot.backward, syncs)
            if key not in templates:
                templates[key] = out.template(self._pieces(chunk, backward=slot.backward, sync=syncs), slot.backward)
            wait = arrived.pop((slot.backward, slot.microbatch, chunk), -1)
            end, issued = out.place(templates[key], row=stage, microbatch=slot.microbatch, wait=wait)
            if syncs:
                synced.setdefault(stage, []).extend(issued)
                final_backward[stage] = end
            target = chunk - 1 if slot.backward else chunk + 1
            if 0 <= target < chunks:
                source = target if slot.backward else chunk
                arrived[slot.backward, slot.microbatch, target] = out.send(
                    sends[source], row=stage, microbatch=slot.microbatch, backward=slot.backward, after=end
                )
        for stage in range(strategy.pp):
            pieces = self._finish(stage)
            if pieces:
                template = out.template(pieces, True, category=Category.OPTIMIZER)
                out.place(
                    template,
                    row=stage,
                    microbatch=-1,
                    wait=final_backward.get(stage, -1),
                    waits=synced.get(stage, []),
                )
        return out.finish()

    def _send(self, out: PlanBuilder, chunk: int) -> int:
        """The transfer from ``chunk`` to the next; boundary activations and their gradients are of one size."""
        mesh = self.mesh
        here, there = (mesh.rank(pp=c % mesh.pp) // mesh.devices_per_node for c in (chunk, chunk + 1))
        sharing = min(mesh.devices_per_node, mesh.num_ranks // mesh.pp) if here != there else 1
        nbytes = self.programs[self.stages[chunk].blocks[-1]].boundary_bytes
        return out.work(Transfer(nbytes=nbytes, crosses_nodes=here != there, sharing=sharing))

    def _pieces(self, chunk: int, *, backward: bool, sync: bool) -> list[Piece]:
        blocks = self.stages[chunk].blocks
        if self.request.strategy.zero == 3:
            return self._sharded_pieces(blocks, backward=backward)
        sync_overlapped = sync and self._replicas > 1 and self.request.runtime.overlap_gradients
        if not backward or not sync_overlapped:
            order = reversed(blocks) if backward else iter(blocks)
            parts = [self.programs[b].backward if backward else self.programs[b].forward for b in order]
            return [Run(parts=self._with_slot_launches(parts))]
        pieces: list[Piece] = []
        pending: list[tuple[Item, ...]] = []
        held = 0.0
        for number, b in enumerate(reversed(blocks)):
            pending.append(self.programs[b].backward)
            held += self.programs[b].num_parameters
            full = self.precision.gradient_bytes(held) >= self.request.runtime.bucket_bytes
            if held and (full or number == len(blocks) - 1):
                pieces += [Run(parts=pending), Issue(work=self._gradients(held), label="dp gradients")]
                pending, held = [], 0.0
        if pending:
            pieces.append(Run(parts=pending))
        return pieces

    def _with_slot_launches(self, parts: list[tuple[Item, ...]]) -> list[tuple[Item, ...]]:
        extra = self.request.runtime.microbatch_launches
        if not extra or not parts or not parts[0]:
            return parts
        first, *rest = parts[0]
        return [(replace(first, launches=first.launches + extra), *rest), *parts[1:]]

    def _sharded_pieces(self, blocks: tuple[int, ...], *, backward: bool) -> list[Piece]:
        """ZeRO-3 / FSDP: gather a block's parameters ahead of its use, reduce its gradients after."""
        # FSDP gathers and reduces in the dtype it computes in.
        per_element = self.precision.activations.nbytes
        order = list(reversed(blocks) if backward else blocks)
        gathers = [
            Issue(
                work=self._collective("all_gather", self.programs[b].num_parameters * per_element),
                label="dp all_gather",
                gather=True,
            )
            for b in order
        ]
        ahead = 1 + self.request.runtime.prefetch_blocks
        pieces: list[Piece] = list(gathers[:ahead])
        for n, b in enumerate(order):
            program = self.programs[b]
            pieces.append(Run(parts=[program.backward if backward else program.forward], wait=n))
            if n + ahead < len(order):
                pieces.append(gathers[n + ahead])
            if backward and program.num_parameters:
                work = self._collective("reduce_scatter", program.num_parameters * per_element)
                pieces.append(Issue(work=work, label="dp reduce_scatter"))
        return pieces

    @property
    def _replicas(self) -> int:
        return self.mesh.dp * self.mesh.cp

    def _collective(self, kind: CollectiveKind, nbytes: float) -> Collective:
        return self.mesh.span("dp", "cp").collective(kind, nbytes)

    def _gradients(self, parameters: float) -> Collective:
        kind: CollectiveKind = "reduce_scatter" if self.request.strategy.zero else "all_reduce"
        return self._collective(kind, self.precision.gradient_bytes(parameters))

    def _exchange(self, work: Collective, label: str) -> Item:
        return Item(work=work, launches=self.request.runtime.collective_launches, label=label, group=Group.DATA)

    def _finish(self, stage: int) -> list[Piece]:
        """Whatever of the gradient exchange did not overlap, then the optimizer, then ZeRO's parameter gather."""
        strategy, runtime = self.request.strategy, self.request.runtime
        blocks = [b for chunk in range(stage, len(self.stages), strategy.pp) for b in self.stages[chunk].blocks]
        parameters = sum(self.programs[b].num_parameters for b in blocks)
        if not parameters:
            return []
        items: list[Item] = []
        if self._replicas > 1 and strategy.zero < 3 and not runtime.overlap_gradients:
            rest = parameters
            per_bucket = max(1.0, runtime.bucket_bytes / self.precision.gradients.nbytes)
            while rest > 0:
                part = min(rest, per_bucket)
                items.append(self._exchange(self._gradients(part), "dp gradients"))
                rest -= part
        if self.request.optimizer:
            items += self._update(blocks, parameters)
        return [Run(parts=[tuple(items)])] if items else []

    def _update(self, blocks: list[int], parameters: float) -> list[Item]:
        strategy = self.request.strategy
        first = self.programs[next(b for b in blocks if self.programs[b].num_parameters)]
        owned = parameters / self._replicas if strategy.zero else parameters
        spec = TensorSpec((max(1, int(owned)),), DType.FP32)
        update = Operator(
            name=first.optimizer_name,
            kind=OpKind.OPTIMIZER,
            phase=Phase.OPTIMIZER,
            inputs=(spec,) * (2 + first.optimizer_states),
            outputs=(spec,) * (1 + first.optimizer_states),
            parameters=(spec,),
        )
        update = replace(self.precision.apply(update), parameters=())
        items = [Item(work=update, launches=float(len(blocks)), label=f"optimizer {first.optimizer_name}")]
        if self._replicas > 1 and strategy.zero in (1, 2):
            gather = self._collective("all_gather", self.precision.weight_bytes(parameters))
            items.append(self._exchange(gather, "dp parameters"))
        return items
