"""What one rank does in each block of the model: its works in order, and what it holds in memory.

A block's program is the same for every repetition of the block and every microbatch, so it is made
once. Collectives that compute waits for stand in line; gradient traffic is added by ``lower``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from traincast.graph import Block, DType, Operator, OperatorGraph, OpKind, Phase, TensorSpec
from traincast.strategy.attention import unfused, unfused_saved
from traincast.strategy.cut import cut_operator, saved_fraction
from traincast.strategy.mesh import Axis, Mesh
from traincast.strategy.plan import Group
from traincast.strategy.precision import Precision
from traincast.strategy.runtime import Runtime
from traincast.strategy.sharding import Role, Sharding
from traincast.strategy.strategy import Strategy
from traincast.work import CollectiveKind, Work

_LINEAR: Final = frozenset({OpKind.GEMM, OpKind.GROUPED_GEMM})
_STATES: Final = {"adamw": 2, "adam": 2, "lamb": 2, "sgd": 1, "sgd-plain": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One work in line, the launches it needs on the host, and what to call it.

    ``core`` marks the core of attention, which selective recomputation runs again.
    """

    work: Work
    launches: float
    label: str
    group: Group = Group.RANK
    core: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgram:
    """What one rank does in one block, for one microbatch.

    Bytes: ``saved`` is kept from forward to backward, ``working`` is needed on top while the block's
    backward runs, ``boundary`` goes to the next block.
    """

    scope: str
    forward: tuple[Item, ...]
    backward: tuple[Item, ...]
    num_parameters: float
    optimizer_states: int
    optimizer_name: str
    saved_bytes: float
    working_bytes: float
    boundary_bytes: float
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBuilder:
    """Everything a block's program depends on."""

    graph: OperatorGraph
    sharding: Sharding
    strategy: Strategy
    runtime: Runtime
    precision: Precision
    mesh: Mesh
    micro_batch: int

    def build(self, block: Block) -> BlockProgram:
        """The program of ``block``."""
        forward = list(self._forward(block))
        backward = list(self._backward(block))
        recompute = self._recomputes(block)
        boundary = float(sum(t.with_batch(self.micro_batch).numel for t in block.boundary))
        boundary *= self.precision.activations.nbytes / self.strategy.cp
        if self.strategy.sequence_parallel:
            boundary /= self.strategy.tp
        saved = self._saved(block)
        working = self._working(backward)
        if recompute == "full":
            again = [replace(item, label=f"{item.label} (again)") for item in forward]
            backward = again + backward
            working, saved = working + saved, boundary
        elif recompute == "selective":
            again = [replace(i, label=f"{i.label} (again)") for i in forward if i.core]
            backward = again + backward
        parameters = self._parameters(block)
        if self.strategy.num_microbatches > 1 and parameters:
            backward += self._accumulate(parameters)
        if self.precision.weights is DType.FP32 and self.precision.activations is not DType.FP32 and parameters:
            forward = [self._cast_weights(parameters), *forward]
        first = next((self.graph.operators[i] for i in block.optimizer), None)
        return BlockProgram(
            scope=block.scope,
            forward=tuple(forward),
            backward=tuple(backward),
            num_parameters=parameters,
            optimizer_states=_STATES[first.name] if first else 0,
            optimizer_name=first.name if first else "adamw",
            saved_bytes=saved,
            working_bytes=working,
            boundary_bytes=boundary,
            flops=sum(i.work.flops for i in (*forward, *backward) if isinstance(i.work, Operator)),
        )

    def _recomputes(self, block: Block) -> str:
        """Only repeated blocks are recomputed (or all, in a model without any)."""
        repeated = any(b.count > 1 for b in self.graph.blocks)
        return self.strategy.recompute if block.count > 1 or not repeated else "none"

    def _cut(self, index: int) -> Operator:
        """One operator as a rank runs it: microbatch, dtype and share applied; names of places dropped."""
        op = self.graph.operators[index]
        source = self.graph.forward_of[index]
        op = cut_operator(
            self.precision.apply(op.with_batch(self.micro_batch)),
            self.sharding.roles[index],
            self.graph.operators[source] if source >= 0 else None,
            tp=self.strategy.tp,
            cp=self.strategy.cp,
            sequence_parallel=self.strategy.sequence_parallel,
        )
        kept = {k: v for k, v in op.attributes.items() if k not in ("module", "fused")}
        return replace(op, scope="", saved=(), parameters=(), attributes=kept)

    def _items(self, index: int, launches: float, block: Block) -> Iterator[Item]:
        op = self._cut(index)
        scope = _place(self.graph.operators[index].scope, block)
        if op.kind is OpKind.ATTENTION:
            parts = unfused(op) if self.runtime.attention == "unfused" else [op]
            for part in parts:
                label = f"attention {scope}:{_short(part.name)}"
                yield Item(work=part, launches=launches, label=label, core=True)
        else:
            yield Item(work=op, launches=launches, label=f"{scope}:{_short(op.name)}" if scope else _short(op.name))

    def _forward(self, block: Block) -> Iterator[Item]:
        launches = self.runtime.operator_launches
        for n, i in enumerate(block.forward):
            if i in self.sharding.enters:
                yield from self._enter_forward(i, block)
            if self.strategy.cp > 1 and self.graph.operators[i].kind is OpKind.ATTENTION:
                yield self._context("all_gather", i, "keys and values")
            yield from self._items(i, launches + (self.runtime.block_launches if n == 0 else 0.0), block)
            if i in self.sharding.leaves:
                yield from self._leave_forward(i, block)

    def _backward(self, block: Block) -> Iterator[Item]:
        launches = self.runtime.backward_launches
        last = {self.graph.forward_of[i]: i for i in block.backward}
        after_enter = self._region_ends(block, last)
        started: set[int] = set()
        for n, i in enumerate(block.backward):
            source = self.graph.forward_of[i]
            if source in self.sharding.leaves and source not in started:
                started.add(source)
                yield from self._leave_backward(source, block)
            context = self.strategy.cp > 1 and self.graph.operators[i].kind is OpKind.ATTENTION
            if context:
                yield self._context("all_gather", i, "keys and values")
            yield from self._items(i, launches + (self.runtime.block_launches if n == 0 else 0.0), block)
            if context:
                yield self._context("reduce_scatter", i, "gradients of keys and values")
            for enter in after_enter.get(i, ()):
                yield from self._enter_backward(enter, block)

    def _region_ends(self, block: Block, last: dict[int, int]) -> dict[int, list[int]]:
        """After which backward operator the input gradient of each sharded region is complete."""
        ends: dict[int, list[int]] = {}
        regions = [i for i in block.forward if i in self.sharding.enters]
        for enter in regions:
            members = [
                i
                for i in block.forward
                if i >= enter
                and self.sharding.roles[i] in (Role.COLUMN, Role.VOCAB)
                and self.graph.operators[i].kind in _LINEAR
                and not any(enter < other <= i for other in regions)
            ]
            finals = [last[i] for i in members if i in last]
            if finals:
                ends.setdefault(max(finals), []).append(enter)
        return ends

    def _collective(self, group: Group, kind: CollectiveKind, nbytes: float, what: str) -> Item:
        axis: Axis = "tp" if group is Group.TENSOR else "cp"
        return Item(
            work=self.mesh.span(axis).collective(kind, nbytes),
            launches=self.runtime.collective_launches,
            label=f"{axis} {kind} {what}",
            group=group,
        )

    def _activation_bytes(self, spec: TensorSpec) -> float:
        return spec.with_batch(self.micro_batch).numel * self.precision.activations.nbytes / self.strategy.cp

    def _enter_forward(self, i: int, block: Block) -> Iterator[Item]:
        if self.strategy.tp > 1 and self.strategy.sequence_parallel:
            nbytes = self._activation_bytes(self.graph.operators[i].inputs[0])
            yield self._collective(Group.TENSOR, "all_gather", nbytes, self._scope(i, block))

    def _leave_forward(self, i: int, block: Block) -> Iterator[Item]:
        if self.strategy.tp > 1:
            nbytes = self._activation_bytes(self.graph.operators[i].outputs[0])
            kind: CollectiveKind = "reduce_scatter" if self.strategy.sequence_parallel else "all_reduce"
            yield self._collective(Group.TENSOR, kind, nbytes, self._scope(i, block))

    def _leave_backward(self, i: int, block: Block) -> Iterator[Item]:
        if self.strategy.tp > 1 and self.strategy.sequence_parallel:
            nbytes = self._activation_bytes(self.graph.operators[i].outputs[0])
            yield self._collective(Group.TENSOR, "all_gather", nbytes, self._scope(i, block))

    def _enter_backward(self, i: int, block: Block) -> Iterator[Item]:
        if self.strategy.tp > 1:
            nbytes = self._activation_bytes(self.graph.operators[i].inputs[0])
            kind: CollectiveKind = "reduce_scatter" if self.strategy.sequence_parallel else "all_reduce"
            yield self._collective(Group.TENSOR, kind, nbytes, self._scope(i, block))

    def _context(self, kind: CollectiveKind, i: int, what: str) -> Item:
        """Context parallelism: every rank sees the whole sequence's keys and values of its heads."""
        _, keys, values = self.graph.operators[i].inputs[-3:]
        nbytes = float(sum(t.with_batch(self.micro_batch).numel for t in (keys, values))) / self.strategy.tp
        nbytes *= self.precision.activations.nbytes
        return self._collective(Group.CONTEXT, kind, nbytes, what)

    def _scope(self, i: int, block: Block) -> str:
        return _place(self.graph.operators[i].scope, block)

    def _saved(self, block: Block) -> float:
        total = 0.0
        for i in block.forward:
            op = self.precision.apply(self.graph.operators[i].with_batch(self.micro_batch))
            nbytes = sum(t.nbytes for t in op.saved)
            if op.kind is OpKind.ATTENTION and self.runtime.attention == "unfused":
                nbytes += 0.0 if self._recomputes(block) == "selective" else unfused_saved(op)
            total += nbytes * saved_fraction(
                op,
                self.sharding.roles[i],
                tp=self.strategy.tp,
                cp=self.strategy.cp,
                sequence_parallel=self.strategy.sequence_parallel,
            )
        return total

    def _working(self, backward: list[Item]) -> float:
        """The most that one backward operator needs beside what is saved: the gradient it gets and its results.

        A loss turns the one into the other in place.
        """
        works = [i.work for i in backward if isinstance(i.work, Operator) and i.work.inputs]
        in_place = (OpKind.LOSS, OpKind.SOFTMAX)
        return max((w.bytes_written + (0.0 if w.kind in in_place else w.inputs[0].nbytes) for w in works), default=0.0)

    def _parameters(self, block: Block) -> float:
        """Parameters one rank holds of the block."""
        sharded = {
            self.graph.operators[i].scope
            for i in block.forward
            if self.sharding.roles[i] in (Role.COLUMN, Role.ROW, Role.VOCAB)
        }
        total = 0.0
        for i in block.optimizer:
            op = self.graph.operators[i]
            ways = self.strategy.tp if op.scope in sharded and len(op.parameters[0].shape) > 1 else 1
            total += op.parameters[0].numel / ways
        return total + (self._borrowed(block) if self.strategy.pp > 1 else 0.0)

    def _borrowed(self, block: Block) -> float:
        """Parameters that another block owns: tied logits, of which a pipeline's last stage keeps a copy."""
        own = Counter(self.graph.operators[i].parameters[0].numel for i in block.optimizer)
        total = 0.0
        for i in block.forward:
            op = self.graph.operators[i]
            for spec in op.parameters:
                if own[spec.numel] > 0:
                    own[spec.numel] -= 1
                elif op.kind in _LINEAR and self.sharding.roles[i] is Role.VOCAB:
                    total += spec.numel / self.strategy.tp
        return total

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
        return [Item(work=work, launches=self.runtime.backward_launches, label="accumulate gradients")]

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
        return Item(work=work, launches=self.runtime.operator_launches, label="cast weights")


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
