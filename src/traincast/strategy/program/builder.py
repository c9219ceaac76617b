"""Makes the program of a block: turns operators of the graph into the works of one rank.

Collectives that compute waits for are part of the program (:mod:`traincast.strategy.program.traffic`); ``lower`` adds
the traffic of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from traincast.graph import Block, DType, Operator, OperatorGraph, OpKind, Phase, TensorSpec
from traincast.graph.optimizers import OPTIMIZERS
from traincast.graph.vocabulary import LINEAR
from traincast.strategy.memory.activations import footprint
from traincast.strategy.memory.holdings import Holdings, holdings_of, share_of
from traincast.strategy.mesh import Axis, Span
from traincast.strategy.program.attention import kernels_of, sink_scopes, without_window
from traincast.strategy.program.block import Behind, BlockProgram, Item, Share
from traincast.strategy.program.cut import cut_operator
from traincast.strategy.program.embedding_tables import TableSharing, find_tables
from traincast.strategy.program.experts import BatchOverlap, Region, cut_expert, kernel_marks
from traincast.strategy.program.host_work import beside_operators
from traincast.strategy.program.precision import Precision
from traincast.strategy.program.recompute import RECOMPUTATIONS, Recomputation
from traincast.strategy.program.sharding import Sharding
from traincast.strategy.program.traffic import (
    after_lookup,
    before_rows,
    enter_backward,
    enter_forward,
    from_experts,
    gathered_context,
    hidden_by_experts,
    leave_backward,
    leave_forward,
    product_of,
    region_ends,
    routing,
    to_experts,
)
from traincast.strategy.runtime import Runtime
from traincast.strategy.strategy import Strategy
from traincast.work import HostCopy, Launch

T = TypeVar("T")

_NONE: Final[Mapping[int, tuple[Share, ...]]] = {}
_NOT_OF_WORKS: Final = frozenset({"module", "fused", "adapts", "part", "bits", "reads", "writes", "as_is"})
"""Attributes of operators that do not change their time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBuilder:
    """Makes programs of blocks; its fields are all that a program depends on.

    ``spans`` has the groups that compute waits for. ``experts`` maps each operator of experts that are divided among
    ranks to its region. ``tables`` says how replicas share embedding tables. Hosts are ``crowded`` if the messages of
    a pipeline cross nodes. ``made`` is a cache shared by builders that differ only in recomputation, offloading or the
    number of microbatches.
    """

    graph: OperatorGraph
    sharding: Sharding
    strategy: Strategy
    runtime: Runtime
    precision: Precision
    spans: Mapping[Axis, Span]
    micro_batch: int
    experts: Mapping[int, Region] = field(default_factory=dict)
    tables: TableSharing = field(default_factory=TableSharing)
    crowded: bool = False
    interference: float = 0.0
    between_batches: BatchOverlap | None = None
    made: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """The result of ``make``, computed once per ``key`` for all builders that share the cache."""
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found

    @property
    def gradient_sources(self) -> Mapping[int, list[int]]:
        """Maps each backward operator to the backward operators whose results it reads."""

        def find() -> dict[int, list[int]]:
            backward = {i for block in self.graph.blocks for i in block.backward}
            found: dict[int, list[int]] = {}
            for source, target in self.graph.edges:
                if source in backward and target in backward:
                    found.setdefault(target, []).append(source)
            return found

        return self.once(("gradient sources",), find)

    @property
    def gradient_readers(self) -> Mapping[int, list[int]]:
        """Maps each backward operator to the backward operators that read its result."""

        def find() -> dict[int, list[int]]:
            found: dict[int, list[int]] = {}
            for target, sources in self.gradient_sources.items():
                for source in sources:
                    found.setdefault(source, []).append(target)
            return found

        return self.once(("gradient readers",), find)

    def build(self, block: Block) -> BlockProgram:
        """The program of ``block``."""
        forward = self.once(("forward", block.forward), lambda: list(self._forward(block)))
        backward = self.once(("backward", block.forward, block.backward), lambda: list(self._backward(block)))
        recompute = self._recomputes(block)
        boundary = float(sum(t.with_batch(self.micro_batch).numel for t in block.boundary))
        boundary *= self.precision.activations.nbytes / self.strategy.cp
        if self.strategy.sequence_parallel:
            boundary /= self.strategy.tp
        held = footprint(
            self,
            block,
            forward=forward,
            backward=backward,
            labels=[self._label(i, block) for i in block.forward],
            recompute=recompute,
            boundary=boundary,
        )
        again = recompute.again(forward, lean=self.runtime.kernels.lean_recompute)
        backward = [replace(item, label=f"{item.label} (again)") for item in again] + backward
        holdings = self.once(
            ("holdings", block.forward, self.strategy.pp > 1),
            lambda: holdings_of(self, block, regions=self._regions(block)),
        )
        parameters = holdings.dense + holdings.experts
        if "activations" in self.strategy.offload and held.kept:
            forward, backward = (
                [*items, self._offloaded(held.saved, items, way)]
                for items, way in ((forward, "out"), (backward, "back"))
            )
        if self.strategy.num_microbatches > 1 and parameters:
            backward = backward + self._accumulate(parameters)
        wide = self._wide_weights(holdings)
        wide -= min(wide, self.tables.elements(find_tables(self.graph, block)))
        if wide and self.precision.activations is not DType.FP32:
            forward = [self._cast_weights(wide), *forward]
        if self.runtime.launches.cuda_graphs:
            forward, backward = _graphed(forward), _graphed(backward)
        first = next((self.graph.operators[i] for i in block.optimizer), None)
        return BlockProgram(
            scope=block.scope,
            forward=tuple(forward),
            backward=tuple(backward),
            backward_inputs=tuple(item for item in backward if not item.weight),
            backward_weights=tuple(item for item in backward if item.weight),
            num_parameters=parameters,
            expert_parameters=holdings.experts,
            largest_parameter=holdings.largest,
            tied_parameters=holdings.tied,
            frozen=holdings.frozen,
            frozen_experts=holdings.frozen_experts,
            fixed=holdings.fixed,
            optimizer_states=OPTIMIZERS[first.name].states if first else 0,
            optimizer_name=first.name if first else "adamw",
            footprint=held,
            boundary_bytes=boundary,
            flops=sum(i.work.flops for i in (*forward, *backward) if isinstance(i.work, Operator)),
        )

    def _wide_weights(self, holdings: Holdings) -> float:
        """The number of weights that a block stores in fp32: trained ones, and frozen ones that are not quantised."""
        trained = holdings.dense + holdings.experts if self.precision.weights is DType.FP32 else 0.0
        wide = self.precision.frozen_weights is DType.FP32
        return trained + (holdings.frozen_parameters - holdings.packed_parameters if wide else 0.0)

    def _offloaded(self, nbytes: float, items: list[Item], way: str) -> Item:
        """The copy of saved tensors to the host or back, while the block's works run."""
        taken = max((i.behind.share for i in items if i.behind), default=0.0)  # other traffic overlaps with this share
        works = tuple(i.work for i in items if isinstance(i.work, Operator))
        behind = Behind(works=works, share=1.0 - taken, interference=self.interference)
        launches = Launch(kernels=self.runtime.launches.operator)
        return Item(work=HostCopy(nbytes=nbytes), launches=launches, label=f"offload activations {way}", behind=behind)

    def _recomputes(self, block: Block) -> Recomputation:
        """The recomputation of ``block``: "none" if it has no backward, or if only other blocks are repeated."""
        recomputed = block.backward and (block.repeated or not any(b.repeated for b in self.graph.blocks))
        return RECOMPUTATIONS[self.strategy.recompute if recomputed else "none"]

    def cut(self, index: int) -> Operator:
        """One operator as a rank runs it, with microbatch, dtype and share applied, and without its scope."""
        return self.once(("cut", index), lambda: self._cut(index))

    def _cut(self, index: int) -> Operator:
        source = self.graph.forward_of[index]
        # The projection to the vocabulary has the dtype of ordinary products even if linear layers use a narrower one.
        wide = (index if source < 0 else source) in self.sharding.vocabulary
        precision = replace(self.precision, linear=self.precision.products) if wide else self.precision
        op = precision.apply(self.tables.cut(self.graph, index, self.micro_batch))
        region = self.experts.get(index)
        if region is not None:
            op = self.cut_expert(op, region)
        else:
            op = cut_operator(
                op,
                self.sharding.roles[index],
                self.graph.operators[source] if source >= 0 else None,
                tp=self.strategy.tp,
                cp=self.strategy.cp,
                sequence_parallel=self.strategy.sequence_parallel,
            )
        kept = {k: v for k, v in op.attributes.items() if k not in _NOT_OF_WORKS}
        if op.kind is OpKind.GROUPED_GEMM:
            kept |= kernel_marks(self.runtime, self.precision.gradients if self.makes_weight_gradients(index) else None)
        if self.runtime.kernels.sorts_ids and op.name == "embedding_dense_backward":
            kept["ids"] = "sorted"
        return replace(op, scope="", saved=(), parameters=(), attributes=kept)

    def cut_expert(self, op: Operator, region: Region) -> Operator:
        """An operator of the experts as the busiest rank runs it."""
        strategy = self.strategy
        rows = strategy.load * strategy.expert_tp / (strategy.tp * strategy.cp)
        return cut_expert(op, region, ep=strategy.ep, etp=strategy.expert_tp, rows=rows)

    def _items(self, index: int, launches: Launch, block: Block) -> Iterator[Item]:
        scope = self.place(index, block)
        behind = self._hidden(index, block)
        for work in self.works(index):
            if self.graph.operators[index].kind is OpKind.ATTENTION:
                label = f"attention {scope}:{_short(work.name)}"
                yield Item(work=work, launches=launches, label=label, core=True)
            else:
                yield Item(
                    work=work,
                    launches=launches,
                    label=self._label(index, block),
                    weight=self.makes_weight_gradients(index),
                    behind=behind,
                    completes=self._completed(block).get(index, ()),
                )

    def _hidden(self, index: int, block: Block) -> Behind | None:
        """What hides an operator of a layer's experts, if kernels are fused."""
        if not self.experts or (
            self.runtime.experts.dispatcher == "all_to_all" and self.runtime.experts.grouped != "fused"
        ):
            return None
        scope = self.graph.operators[index].scope
        region = next((r for r in self._regions(block) if r.scope == scope), None)
        return hidden_by_experts(self, index, region, block) if region else None

    def _completed(self, block: Block) -> Mapping[int, tuple[Share, ...]]:
        """Maps each backward operator to the parameters whose gradients it completes: the last one of their module."""
        if self.runtime.exchange.bucket_cut != "parameter":
            return _NONE

        def find() -> dict[int, tuple[Share, ...]]:
            share = share_of(self, block, regions=self._regions(block))
            last = {self.graph.operators[i].scope: i for i in block.backward}
            found: dict[int, tuple[Share, ...]] = {}
            for op in (self.graph.operators[i] for i in block.optimizer):
                if op.scope in last:
                    numel, of_experts = share(op.parameters[0], op.scope)
                    part = Share(0.0, numel) if of_experts else Share(numel, 0.0)
                    found[last[op.scope]] = (*found.get(last[op.scope], ()), part)
            return found

        return self.once(("completed", block.forward, block.backward), find)

    def place(self, index: int, block: Block) -> str:
        """The scope of an operator, with a star for the number of a repeated block: ``layers.*.mlp.up``."""
        scope = self.graph.operators[index].scope
        if block.count > 1 and "," not in block.scope and scope.startswith(block.scope):
            parent = block.scope.rpartition(".")[0]
            return f"{parent}.*{scope[len(block.scope) :]}" if parent else f"*{scope[len(block.scope) :]}"
        return scope

    def _label(self, index: int, block: Block) -> str:
        """The scope and the short name of an operator: ``layers.*.mlp.up:mm``."""
        op = self.graph.operators[index]
        scope = self.place(index, block)
        return f"{scope}:{_short(op.name)}" if scope else _short(op.name)

    def makes_weight_gradients(self, index: int) -> bool:
        """Whether a backward operator makes only gradients of weights, which nothing in the block waits for."""
        source = self.graph.forward_of[index]
        op = self.graph.operators[index]
        if op.phase is not Phase.BACKWARD or source < 0 or op.parameters:
            return False
        of = self.graph.operators[source]
        return op.kind in (*LINEAR, OpKind.EMBEDDING) and of.kind is op.kind and bool(of.parameters)

    def _forward(self, block: Block) -> Iterator[Item]:
        launches = Launch(kernels=self.runtime.launches.operator + beside_operators(self.graph, self.micro_batch))
        first = launches + Launch(blocks=self.runtime.launches.block)
        ends = {r.forward[0]: r for r in self._regions(block)}, {r.forward[-1]: r for r in self._regions(block)}
        tables = find_tables(self.graph, block)
        for n, i in enumerate(block.forward):
            if i in ends[0]:
                yield from routing(self, ends[0][i])
                yield from to_experts(self, ends[0][i], ends[0][i].forward, block)
            elif i in self.sharding.enters and i not in self.experts:
                yield from enter_forward(self, i, block)
            if self.strategy.cp > 1 and self.graph.operators[i].kind is OpKind.ATTENTION:
                yield gathered_context(self, "all_gather", i, "keys and values")
            yield from self._items(i, launches if n else first, block)
            if i in ends[1]:
                yield from from_experts(self, ends[1][i], ends[1][i].forward, block)
            elif i in self.sharding.leaves and i not in self.experts:
                yield from leave_forward(self, i, block)
            yield from after_lookup(self, tables, i)

    def _backward(self, block: Block) -> Iterator[Item]:
        launches = Launch(kernels=self.runtime.launches.backward + beside_operators(self.graph, self.micro_batch))
        first = launches + Launch(blocks=self.runtime.launches.block)
        last = {self.graph.forward_of[i]: i for i in block.backward}
        after_enter = region_ends(self, block, last)
        regions = [r for r in self._regions(block) if r.backward]
        ends = {r.backward[0]: r for r in regions}, {r.backward[-1]: r for r in regions}
        started: set[int] = set()
        tables = find_tables(self.graph, block)
        for n, i in enumerate(block.backward):
            source = self.graph.forward_of[i]
            yield from before_rows(self, tables, i)
            if i in ends[0]:
                yield from to_experts(self, ends[0][i], ends[0][i].backward, block)
            if source in self.sharding.leaves and source not in started and source not in self.experts:
                started.add(source)
                yield from leave_backward(self, source, block, beside=product_of(self, block.backward[n:]))
            context = self.strategy.cp > 1 and self.graph.operators[i].kind is OpKind.ATTENTION
            if context:
                yield gathered_context(self, "all_gather", i, "keys and values")
            yield from self._items(i, launches if n else first, block)
            if context:
                yield gathered_context(self, "reduce_scatter", i, "gradients of keys and values")
            if i in ends[1]:
                yield from from_experts(self, ends[1][i], ends[1][i].backward, block)
            for enter in after_enter.get(i, ()):
                yield from enter_backward(self, enter, block, beside=product_of(self, block.backward[n::-1]))

    def _regions(self, block: Block) -> list[Region]:
        """The expert regions of the block that are divided among ranks."""
        inside = set(block.forward)
        found = {r.scope: r for i, r in self.experts.items() if i in inside}
        return list(found.values())

    def works(self, index: int) -> list[Operator]:
        """The works that a rank runs for an operator: several if attention is not fused, else one."""
        op = self.cut(index)
        if op.kind is not OpKind.ATTENTION:
            return [op]
        if (
            self.runtime.kernels.attention == "flash"
            and self.runtime.kernels.sinks != "flash"
            and self._has_sinks(index)
        ):
            return kernels_of(without_window(op), self.runtime.kernels.sinks)
        return kernels_of(op, self.runtime.kernels.attention)

    def _has_sinks(self, index: int) -> bool:
        """Whether an attention has sinks: its module has one parameter per head."""
        found = self.once(("sinks",), lambda: sink_scopes(self.graph))
        return self.graph.operators[index].scope in found

    def _accumulate(self, parameters: float) -> list[Item]:
        """Adds a microbatch's gradients to their sum; nothing if the weight products do it themselves."""
        if "gradients" in self.runtime.kernels.fusions:
            return []
        gradient = TensorSpec((int(parameters),), self.precision.gradients)
        work = Operator(
            name="accumulate_gradients",
            kind=OpKind.ELEMENTWISE,
            phase=Phase.BACKWARD,
            inputs=(gradient, gradient.with_dtype(self.precision.activations)),
            outputs=(gradient,),
        )
        return [
            Item(
                work=work,
                launches=Launch(kernels=self.runtime.launches.backward),
                label="accumulate gradients",
                weight=True,
            )
        ]

    def _cast_weights(self, parameters: float) -> Item:
        """The cast of a layer's fp32 weights, which mixed precision runs whenever the layer is used."""
        weights = TensorSpec((int(parameters),), self.precision.weights)
        work = Operator(
            name="cast_weights",
            kind=OpKind.COPY,
            phase=Phase.FORWARD,
            inputs=(weights,),
            outputs=(weights.with_dtype(self.precision.activations),),
        )
        return Item(work=work, launches=Launch(kernels=self.runtime.launches.operator), label="cast weights")


def _graphed(items: list[Item]) -> list[Item]:
    """``items`` with one launch for all of them, as a recorded CUDA graph has."""
    return [item if n == 0 else replace(item, launches=Launch()) for n, item in enumerate(items)]


def _short(name: str) -> str:
    """A readable name: without the prefix and suffix of PyTorch's attention kernels."""
    if name.startswith("_scaled_dot_product"):
        return "attention_backward" if name.endswith("backward") else "attention"
    return name.removeprefix("_")
