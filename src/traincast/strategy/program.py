"""What one rank does in each block of the model: its works in order, and what it holds in memory.

A block's program is the same for every repetition of the block and every microbatch, so it is made
once. Collectives that compute waits for stand in line; gradient traffic is added by ``lower``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from traincast.graph import Block, DType, Operator, OperatorGraph, OpKind, Phase, TensorSpec
from traincast.strategy.activations import Footprint, footprint
from traincast.strategy.attention import kernels_of
from traincast.strategy.cut import cut_operator
from traincast.strategy.experts import Region, cut_expert
from traincast.strategy.holdings import Fixed, Frozen, holdings_of
from traincast.strategy.mesh import Axis, Span
from traincast.strategy.plan import Group
from traincast.strategy.precision import Precision
from traincast.strategy.runtime import Runtime
from traincast.strategy.schedules.slots import Pass
from traincast.strategy.sharding import Role, Sharding
from traincast.strategy.strategy import Recompute, Strategy
from traincast.work import CollectiveKind, HostCopy, Launch, Work

T = TypeVar("T")

_LINEAR: Final = frozenset({OpKind.GEMM, OpKind.GROUPED_GEMM})
_AXIS: Final[dict[Group, Axis]] = {
    Group.TENSOR: "tp",
    Group.CONTEXT: "cp",
    Group.EXPERT: "ep",
    Group.EXPERT_TENSOR: "etp",
}
_STATES: Final = {"adamw": 2, "adam": 2, "lamb": 2, "sgd": 1, "sgd-plain": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """Works that a communication runs behind, and how: see :class:`traincast.strategy.plan.Overlap`."""

    works: tuple[Work, ...]
    share: float = 1.0
    interference: float = 0.0
    waited: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One work in line, the launches it needs on the host, and what to call it.

    ``core`` marks the core of attention, which selective recomputation runs again; ``weight`` what makes gradients of
    weights only, which may run later than the rest of backward. With ``behind``, only what others do not hide counts.
    """

    work: Work
    launches: Launch
    label: str
    group: Group = Group.RANK
    core: bool = False
    weight: bool = False
    behind: Behind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgram:
    """What one rank does in one block, for one microbatch.

    ``num_parameters`` are those it trains, ``expert_parameters`` those of them that are shared out with the experts;
    ``frozen`` and ``frozen_experts`` are those it holds and does not train, ``fixed`` its buffers and whatever else a
    rank holds once for several blocks. ``footprint`` is what its passes hold, ``boundary_bytes`` go to the next block.
    """

    scope: str
    forward: tuple[Item, ...]
    backward: tuple[Item, ...]
    backward_inputs: tuple[Item, ...]
    backward_weights: tuple[Item, ...]
    num_parameters: float
    expert_parameters: float
    frozen: Frozen
    frozen_experts: Frozen
    fixed: tuple[Fixed, ...]
    optimizer_states: int
    optimizer_name: str
    footprint: Footprint
    boundary_bytes: float
    flops: float

    @property
    def dense_parameters(self) -> float:
        """Trained parameters that every replica holds."""
        return self.num_parameters - self.expert_parameters

    def gathered_bytes(self, per_element: float) -> float:
        """Bytes of all its parameters when ZeRO 3 has gathered them, trained ones with so many bytes each."""
        return self.num_parameters * per_element + self.frozen.gathered + self.frozen_experts.gathered

    def items(self, what: Pass) -> tuple[Item, ...]:
        """What one pass runs."""
        match what:
            case Pass.FORWARD:
                return self.forward
            case Pass.BACKWARD:
                return self.backward
            case Pass.INPUT:
                return self.backward_inputs
            case Pass.WEIGHT:
                return self.backward_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBuilder:
    """Everything a block's program depends on.

    ``spans`` are those of the groups that compute waits for, ``experts`` has the region of every operator of experts
    that are shared out over ranks. Hosts are ``crowded`` where a pipeline's messages cross nodes. ``made`` keeps what
    builders have in common that differ in recomputation, offloading or the number of microbatches alone.
    """

    graph: OperatorGraph
    sharding: Sharding
    strategy: Strategy
    runtime: Runtime
    precision: Precision
    spans: Mapping[Axis, Span]
    micro_batch: int
    experts: Mapping[int, Region] = field(default_factory=dict)
    crowded: bool = False
    interference: float = 0.0
    made: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What ``make`` returns, made once for all builders that share it."""
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found

    @property
    def gradient_sources(self) -> Mapping[int, list[int]]:
        """Of every backward operator the backward operators whose results it reads."""

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
        """Of every backward operator whose result others read, the backward operators that do."""

        def find() -> dict[int, list[int]]:
            found: dict[int, list[int]] = {}
            for target, sources in self.gradient_sources.items():
                for source in sources:
                    found.setdefault(source, []).append(target)
            return found

        return self.once(("gradient readers",), find)

    def build(self, block: Block, *, recompute: Recompute | None = None) -> BlockProgram:
        """The program of ``block``, recomputed as the strategy says or as ``recompute`` does."""
        forward = self.once(("forward", block.forward), lambda: list(self._forward(block)))
        backward = self.once(("backward", block.forward, block.backward), lambda: list(self._backward(block)))
        recompute = recompute or self._recomputes(block)
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
        if recompute == "full":
            again = [replace(item, label=f"{item.label} (again)") for item in forward]
            backward = again + backward
        elif recompute == "selective":
            again = [replace(i, label=f"{i.label} (again)") for i in forward if i.core]
            backward = again + backward
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
        whole = parameters + holdings.frozen_parameters
        if self.precision.weights is DType.FP32 and self.precision.activations is not DType.FP32 and whole:
            forward = [self._cast_weights(whole), *forward]
        if self.runtime.cuda_graphs:
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
            frozen=holdings.frozen,
            frozen_experts=holdings.frozen_experts,
            fixed=holdings.fixed,
            optimizer_states=_STATES[first.name] if first else 0,
            optimizer_name=first.name if first else "adamw",
            footprint=held,
            boundary_bytes=boundary,
            flops=sum(i.work.flops for i in (*forward, *backward) if isinstance(i.work, Operator)),
        )

    def _offloaded(self, nbytes: float, items: list[Item], way: str) -> Item:
        """Saved tensors on their way to the host or back, while the block's works run."""
        taken = max((i.behind.share for i in items if i.behind), default=0.0)  # what hides other traffic hides no more
        works = tuple(i.work for i in items if isinstance(i.work, Operator))
        behind = Behind(works=works, share=1.0 - taken, interference=self.interference)
        label = f"offload activations {way}"
        return Item(
            work=HostCopy(nbytes=nbytes),
            launches=Launch(kernels=self.runtime.operator_launches),
            label=label,
            behind=behind,
        )

    def _recomputes(self, block: Block) -> Recompute:
        """Only repeated blocks are recomputed (or all, in a model without any); what has no backward never is."""
        if not block.backward:
            return "none"
        repeated = any(b.repeated for b in self.graph.blocks)
        return self.strategy.recompute if block.repeated or not repeated else "none"

    def cut(self, index: int) -> Operator:
        """One operator as a rank runs it: microbatch, dtype and share applied; names of places dropped."""
        return self.once(("cut", index), lambda: self._cut(index))

    def _cut(self, index: int) -> Operator:
        source = self.graph.forward_of[index]
        role = self.sharding.roles[index if source < 0 else source]
        # The projection to the vocabulary stays in the dtype of other products where the rest are narrower.
        precision = replace(self.precision, linear=self.precision.products) if role is Role.VOCAB else self.precision
        op = precision.apply(self.graph.operators[index].with_batch(self.micro_batch))
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
        kept = {k: v for k, v in op.attributes.items() if k not in ("module", "fused")}
        return replace(op, scope="", saved=(), parameters=(), attributes=kept)

    def cut_expert(self, op: Operator, region: Region) -> Operator:
        """An operator of the experts as the busiest rank runs it."""
        strategy = self.strategy
        rows = strategy.load * strategy.expert_tp / (strategy.tp * strategy.cp)
        return cut_expert(op, region, ep=strategy.ep, etp=strategy.expert_tp, rows=rows)

    def _items(self, index: int, launches: Launch, block: Block) -> Iterator[Item]:
        scope = _place(self.graph.operators[index].scope, block)
        for work in self._works(index):
            if self.graph.operators[index].kind is OpKind.ATTENTION:
                label = f"attention {scope}:{_short(work.name)}"
                yield Item(work=work, launches=launches, label=label, core=True)
            else:
                weight = self.makes_weight_gradients(index)
                yield Item(work=work, launches=launches, label=self._label(index, block), weight=weight)

    def _label(self, index: int, block: Block) -> str:
        """Where an operator stands and what it is called."""
        op = self.graph.operators[index]
        scope = _place(op.scope, block)
        return f"{scope}:{_short(op.name)}" if scope else _short(op.name)

    def makes_weight_gradients(self, index: int) -> bool:
        """Whether a backward operator makes gradients of weights alone: nothing in the block waits for it."""
        source = self.graph.forward_of[index]
        op = self.graph.operators[index]
        if op.phase is not Phase.BACKWARD or source < 0 or op.parameters:
            return False
        of = self.graph.operators[source]
        return op.kind in (*_LINEAR, OpKind.EMBEDDING) and of.kind is op.kind and bool(of.parameters)

    def _forward(self, block: Block) -> Iterator[Item]:
        launches = Launch(kernels=self.runtime.operator_launches)
        first = launches + Launch(blocks=self.runtime.block_launches)
        ends = {r.forward[0]: r for r in self._regions(block)}, {r.forward[-1]: r for r in self._regions(block)}
        for n, i in enumerate(block.forward):
            if i in ends[0]:
                yield from self._to_experts(ends[0][i], ends[0][i].forward)
            elif i in self.sharding.enters and i not in self.experts:
                yield from self._enter_forward(i, block)
            if self.strategy.cp > 1 and self.graph.operators[i].kind is OpKind.ATTENTION:
                yield self._context("all_gather", i, "keys and values")
            yield from self._items(i, launches if n else first, block)
            if i in ends[1]:
                yield from self._from_experts(ends[1][i], ends[1][i].forward)
            elif i in self.sharding.leaves and i not in self.experts:
                yield from self._leave_forward(i, block)

    def _backward(self, block: Block) -> Iterator[Item]:
        launches = Launch(kernels=self.runtime.backward_launches)
        first = launches + Launch(blocks=self.runtime.block_launches)
        last = {self.graph.forward_of[i]: i for i in block.backward}
        after_enter = self._region_ends(block, last)
        regions = [r for r in self._regions(block) if r.backward]
        ends = {r.backward[0]: r for r in regions}, {r.backward[-1]: r for r in regions}
        started: set[int] = set()
        for n, i in enumerate(block.backward):
            source = self.graph.forward_of[i]
            if i in ends[0]:
                yield from self._to_experts(ends[0][i], ends[0][i].backward)
            if source in self.sharding.leaves and source not in started and source not in self.experts:
                started.add(source)
                yield from self._leave_backward(source, block, beside=self._product(block.backward[n:]))
            context = self.strategy.cp > 1 and self.graph.operators[i].kind is OpKind.ATTENTION
            if context:
                yield self._context("all_gather", i, "keys and values")
            yield from self._items(i, launches if n else first, block)
            if context:
                yield self._context("reduce_scatter", i, "gradients of keys and values")
            if i in ends[1]:
                yield from self._from_experts(ends[1][i], ends[1][i].backward)
            for enter in after_enter.get(i, ()):
                yield from self._enter_backward(enter, block, beside=self._product(block.backward[n::-1]))

    def _regions(self, block: Block) -> list[Region]:
        """Experts of the block that are shared out over ranks."""
        inside = set(block.forward)
        found = {r.scope: r for i, r in self.experts.items() if i in inside}
        return list(found.values())

    def _to_experts(self, region: Region, beside: tuple[int, ...]) -> Iterator[Item]:
        """Tokens go to the ranks of their experts, which share them among the parts of each expert."""
        sent, held = self._routed(region)
        if self.strategy.ep > 1:
            yield self._collective(Group.EXPERT, "all_to_all", sent, "dispatch", self._behind_experts(beside))
        if self.strategy.expert_tp > 1:
            yield self._collective(Group.EXPERT_TENSOR, "all_gather", held, "dispatch")

    def _from_experts(self, region: Region, beside: tuple[int, ...]) -> Iterator[Item]:
        """Partial sums are added up, and results go back to where their tokens came from."""
        sent, held = self._routed(region)
        if self.strategy.expert_tp > 1:
            yield self._collective(Group.EXPERT_TENSOR, "reduce_scatter", held, "combine")
        if self.strategy.ep > 1:
            yield self._collective(Group.EXPERT, "all_to_all", sent, "combine", self._behind_experts(beside))

    def _routed(self, region: Region) -> tuple[float, float]:
        """Bytes that a rank sends to experts, and that the ranks of one expert gather among them."""
        strategy = self.strategy
        rows = region.tokens.with_batch(self.micro_batch).numel * self.precision.activations.nbytes
        sent = rows / (strategy.cp * strategy.tp) * strategy.load
        return sent, sent * strategy.expert_tp

    def _behind_experts(self, beside: tuple[int, ...]) -> Behind | None:
        """Dispatch and combine hide behind the same operators, half of them each."""
        return self._behind(beside, self.runtime.overlap_experts / 2.0)

    def _behind(self, operators: Iterable[int], share: float) -> Behind | None:
        """Behind that part of the works that ``operators`` really run."""
        if not share:
            return None
        works = tuple(work for i in operators for work in self._works(i))
        return Behind(works=works, share=share, interference=self.interference)

    def _works(self, index: int) -> list[Operator]:
        """What a rank runs of an operator: several works where attention is not fused."""
        op = self.cut(index)
        return kernels_of(op, self.runtime.attention) if op.kind is OpKind.ATTENTION else [op]

    def _region_ends(self, block: Block, last: dict[int, int]) -> dict[int, list[int]]:
        """After which backward operator the input gradient of each sharded region is complete."""
        ends: dict[int, list[int]] = {}
        regions = [i for i in block.forward if i in self.sharding.enters and i not in self.experts]
        for enter in regions:
            members = [
                i
                for i in block.forward
                if i >= enter
                and i not in self.experts
                and self.sharding.roles[i] in (Role.COLUMN, Role.VOCAB)
                and self.graph.operators[i].kind in _LINEAR
                and not any(enter < other <= i for other in regions)
            ]
            finals = [last[i] for i in members if i in last]
            if finals:
                ends.setdefault(max(finals), []).append(enter)
        return ends

    def _collective(
        self, group: Group, kind: CollectiveKind, nbytes: float, what: str, behind: Behind | None = None
    ) -> Item:
        axis = _AXIS[group]
        span, runtime = self.spans[axis], self.runtime
        waits = runtime.wait_launches * span.num_ranks
        return Item(
            work=span.collective(kind, nbytes),
            launches=Launch(collectives=runtime.collective_launches, waits=waits, crowded=self.crowded),
            label=f"{axis} {kind} {what}",
            group=group,
            behind=behind,
        )

    def _product(self, operators: tuple[int, ...]) -> int:
        """The first of ``operators`` that is a product, or the first of them."""
        return next((i for i in operators if self.graph.operators[i].kind in _LINEAR), operators[0])

    def _behind_product(self, beside: int) -> Behind | None:
        """Tensor-parallel traffic that is cut into pieces and sent while the product next to it runs."""
        return self._behind([beside], self.runtime.overlap_tensor) if self.strategy.sequence_parallel else None

    def _activation_bytes(self, spec: TensorSpec) -> float:
        return spec.with_batch(self.micro_batch).numel * self.precision.activations.nbytes / self.strategy.cp

    def _enter_forward(self, i: int, block: Block) -> Iterator[Item]:
        if self.strategy.tp > 1 and self.strategy.sequence_parallel:
            nbytes = self._activation_bytes(self.graph.operators[i].inputs[0])
            yield self._collective(Group.TENSOR, "all_gather", nbytes, self._scope(i, block), self._behind_product(i))

    def _leave_forward(self, i: int, block: Block) -> Iterator[Item]:
        if self.strategy.tp > 1:
            nbytes = self._activation_bytes(self.graph.operators[i].outputs[0])
            kind: CollectiveKind = "reduce_scatter" if self.strategy.sequence_parallel else "all_reduce"
            yield self._collective(Group.TENSOR, kind, nbytes, self._scope(i, block), self._behind_product(i))

    def _leave_backward(self, i: int, block: Block, *, beside: int) -> Iterator[Item]:
        if self.strategy.tp > 1 and self.strategy.sequence_parallel:
            nbytes = self._activation_bytes(self.graph.operators[i].outputs[0])
            yield self._collective(
                Group.TENSOR, "all_gather", nbytes, self._scope(i, block), self._behind_product(beside)
            )

    def _enter_backward(self, i: int, block: Block, *, beside: int) -> Iterator[Item]:
        if self.strategy.tp > 1:
            nbytes = self._activation_bytes(self.graph.operators[i].inputs[0])
            kind: CollectiveKind = "reduce_scatter" if self.strategy.sequence_parallel else "all_reduce"
            yield self._collective(Group.TENSOR, kind, nbytes, self._scope(i, block), self._behind_product(beside))

    def _context(self, kind: CollectiveKind, i: int, what: str) -> Item:
        """Context parallelism: every rank sees the whole sequence's keys and values of its heads."""
        _, keys, values = self.graph.operators[i].inputs[-3:]
        nbytes = float(sum(t.with_batch(self.micro_batch).numel for t in (keys, values))) / self.strategy.tp
        nbytes *= self.precision.activations.nbytes
        behind = None
        if self.strategy.context == "ring":  # pieces go round while attention runs on those that are here
            both = (
                1.0 if self.graph.operators[i].phase is Phase.FORWARD else 2.0
            )  # backward: keys, then their gradients
            behind = self._behind([i], (1.0 - 1.0 / self.strategy.cp) / both)
        return self._collective(Group.CONTEXT, kind, nbytes, what, behind)

    def _scope(self, i: int, block: Block) -> str:
        return _place(self.graph.operators[i].scope, block)

    def _accumulate(self, parameters: float) -> list[Item]:
        """Adding a microbatch's gradients to the sum, unless the weight products do it themselves."""
        if "gradients" in self.runtime.fusions:
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
                launches=Launch(kernels=self.runtime.backward_launches),
                label="accumulate gradients",
                weight=True,
            )
        ]

    def _cast_weights(self, parameters: float) -> Item:
        """Mixed precision casts the fp32 weights of a layer when it is used."""
        weights = TensorSpec((int(parameters),), self.precision.weights)
        work = Operator(
            name="cast_weights",
            kind=OpKind.COPY,
            phase=Phase.FORWARD,
            inputs=(weights,),
            outputs=(weights.with_dtype(self.precision.activations),),
        )
        return Item(work=work, launches=Launch(kernels=self.runtime.operator_launches), label="cast weights")


def _graphed(items: list[Item]) -> list[Item]:
    """Works that one launch of a recorded graph starts."""
    return [item if n == 0 else replace(item, launches=Launch()) for n, item in enumerate(items)]


def _place(scope: str, block: Block) -> str:
    """Where an operator stands, with a star for the number of a repeated block: ``layers.*.mlp.up``."""
    if block.count > 1 and "," not in block.scope and scope.startswith(block.scope):
        parent = block.scope.rpartition(".")[0]
        return f"{parent}.*{scope[len(block.scope) :]}" if parent else f"*{scope[len(block.scope) :]}"
    return scope


def _short(name: str) -> str:
    """A name a person reads: without the prefix and suffix of PyTorch's attention kernels."""
    if name.startswith("_scaled_dot_product"):
        return "attention_backward" if name.endswith("backward") else "attention"
    return name.removeprefix("_")
