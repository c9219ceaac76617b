"""The allocations of a training step in order, and what PyTorch's allocator reserves for them.

Tensors are those of the memory model (:mod:`traincast.strategy.memory.footprint`): each forward operator allocates
its results and keeps what backward needs; each backward operator allocates gradients and frees what was kept for it. If
batches differ in length, the same sequence is run with other sizes: blocks freed by one batch may be too short for the
next, and stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from traincast.graph import Block, DType, Operator, OpKind, Phase
from traincast.strategy.memory.allocator import CachingAllocator
from traincast.strategy.memory.footprint import is_loss, kept_by, loss_chunks_of
from traincast.strategy.memory.peak import sum_of_states
from traincast.strategy.prepare import Prepared, Request, programs_of
from traincast.strategy.program.recompute import RECOMPUTATIONS
from traincast.strategy.program.sharded_model import ShardedModel
from traincast.strategy.program.works import rank_operator

_WHOLE: Final = 2
"""Layers at each end of a run of equal layers that are simulated operator by operator; others only keep tensors."""


@dataclass(slots=True)
class StepAllocations:
    """The allocations of one microbatch: changes of the memory in order, each with the number of a tensor.

    ``changes`` are ``(n, how)``: ``+1`` allocates tensor ``n``, ``-1`` frees it, ``0`` makes a gradient that stays
    until the update. ``sizes`` are bytes; they grow with the length of the batch to the power in ``powers``.
    ``updates`` are the tensors that the update makes.
    """

    sizes: list[float] = field(default_factory=list)
    powers: list[int] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)

    def allocate(self, nbytes: float, *, power: int = 1) -> int:
        """Add a tensor and its allocation; return its number."""
        self.sizes.append(nbytes)
        self.powers.append(power)
        self.changes.append((len(self.sizes) - 1, 1))
        return len(self.sizes) - 1

    def free(self, numbers: Iterable[int]) -> None:
        """Add the end of tensors."""
        self.changes += [(n, -1) for n in numbers]

    def gradient(self, nbytes: float, *, updated: float) -> None:
        """Add a gradient that stays until the update, which needs ``updated`` bytes for it."""
        self.sizes.append(nbytes)
        self.powers.append(0)
        self.changes.append((len(self.sizes) - 1, 0))
        if updated:
            self.updates.append(updated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Peaks of a simulated run, in bytes: what tensors take, and what the allocator reserves for them."""

    allocated: float
    reserved: float

    @property
    def ratio(self) -> float:
        """Bytes reserved per byte of the fullest moment."""
        return self.reserved / self.allocated if self.allocated else 1.0


def simulate(
    step: StepAllocations,
    lengths: Sequence[float],
    *,
    accumulated: int = 1,
    capacity: float = float("inf"),
    expandable: bool = False,
) -> Reservation:
    """Run microbatches of ``lengths`` (relative to the length of ``step``) through the allocator.

    Weights are updated after every ``accumulated`` microbatches. ``capacity`` is what the device has for these tensors.
    """
    allocator = CachingAllocator(capacity=capacity, expandable=expandable)
    gradients: dict[int, int] = {}
    for number, length in enumerate(lengths):
        sizes = [size * length**power for size, power in zip(step.sizes, step.powers, strict=True)]
        where: dict[int, int] = {}
        for n, how in step.changes:
            if how > 0:
                where[n] = allocator.allocate(sizes[n])
            elif how < 0:
                allocator.release(where.pop(n))
            elif n in gradients:  # added to the sum of earlier microbatches
                allocator.release(allocator.allocate(sizes[n]))
            else:
                gradients[n] = allocator.allocate(sizes[n])
        if (number + 1) % accumulated == 0 or number + 1 == len(lengths):
            for at in [allocator.allocate(size) for size in step.updates]:
                allocator.release(at)
            for at in gradients.values():
                allocator.release(at)
            gradients = {}
    return Reservation(allocated=allocator.most_allocated, reserved=allocator.most_reserved)


def allocations_of(request: Request, prepared: Prepared, *, stage: int = 0) -> StepAllocations:
    """The allocations of one microbatch of ``request`` on a rank of ``stage``."""
    model, programs = programs_of(request, prepared.mesh)
    blocks = model.graph.blocks
    numbers = [b for chunk in prepared.held_blocks(stage) for b in chunk]
    states = sum_of_states(programs, prepared.precision) * request.runtime.memory.update_share
    writer = _StepWriter(
        model,
        recompute=request.strategy.recompute,
        stays=request.runtime.memory.frees_gradients and (request.strategy.zero < 2 or request.strategy.dp == 1),
        gradient_bytes=prepared.precision.gradients.nbytes,
        updated=states,
    )
    held = [(blocks[b % len(blocks)], b < len(blocks)) for b in numbers]
    for place, (block, again) in enumerate(held):
        same = [held[p][0] is block for p in (place - _WHOLE, place + _WHOLE) if 0 <= p < len(held)]
        writer.forward(place, block, again=again, whole=not (block.repeated and len(same) == 2 and all(same)))
    for place in reversed(range(len(held))):
        writer.backward(place, held[place][0])
    return writer.finish()


class _StepWriter:
    """Writes down the allocations of a step, block by block."""

    def __init__(
        self, model: ShardedModel, *, recompute: str, stays: bool, gradient_bytes: float, updated: float
    ) -> None:
        self._model = model
        self._recompute = RECOMPUTATIONS[recompute]
        self._stays = stays
        self._fused = model.runtime.kernels.attention.startswith("flash")
        self._gradient_bytes, self._updated = gradient_bytes, updated
        self._step = StepAllocations()
        self._kept: dict[int, dict[int, list[int]]] = {}
        self._whole: dict[int, bool] = {}
        self._input: list[int] = []
        self._inputs: dict[int, list[int]] = {}
        self._gradient: list[int] = []
        edges = model.graph.edges
        self._readers: dict[int, list[int]] = {}
        for source, target in edges:
            self._readers.setdefault(source, []).append(target)

    def forward(self, place: int, block: Block, *, again: bool, whole: bool) -> None:
        """Write the forward pass of a block; ``again``: it is recomputed if the strategy says so."""
        recomputed = self._recompute.whole_block and again and block.repeated and bool(block.backward)
        self._whole[place] = whole
        made = self._run(block, keeps=not recomputed, results=whole)
        if recomputed:
            copies = round(self._model.runtime.memory.kept_inputs) - 1
            extra = [self._boundary(block) for _ in range(copies)]
            self._inputs[place] = [*self._input, *extra]
        else:
            self._kept[place] = made
            self._step.free(self._input)
        self._input = [self._boundary(block)]

    def backward(self, place: int, block: Block) -> None:
        """Write the backward pass of a block, with the forward that it runs again."""
        kept = self._kept.pop(place, None)
        if kept is None:
            kept = self._run(block, keeps=True, results=self._whole[place]) if self._whole[place] else {}
        if self._whole[place] or not block.repeated:
            self._backward(block, kept)
        else:
            self._gradients(block)
            self._step.free([n for numbers in kept.values() for n in numbers])
        self._step.free(self._inputs.pop(place, ()))

    def finish(self) -> StepAllocations:
        """Free what is left and return the step."""
        self._step.free([*self._gradient, *self._input])
        return self._step

    def _boundary(self, block: Block) -> int:
        elements = sum(t.with_batch(self._model.micro_batch).numel for t in block.boundary)
        return self._step.allocate(elements * self._model.precision.activations.nbytes)

    def _run(self, block: Block, *, keeps: bool, results: bool) -> dict[int, list[int]]:
        """Write the forward operators; return the tensors kept by each. Without ``results``, only kept ones exist."""
        step, last = self._step, self._last_readers(block.forward)
        alive: dict[int, list[int]] = {}
        kept: dict[int, list[int]] = {}
        for position, i in enumerate(block.forward):
            op = rank_operator(self._model, i)
            passing = []
            if results:
                passing = self._passing(i, op)
                alive[i] = [] if op.name.endswith("_") else self._outputs(i, op)
            if keeps:
                kept[i] = self._keep(i, alive)
            step.free(passing)
            gone = [source for source in alive if last.get(source, position) <= position]
            for source in gone:
                step.free(alive.pop(source))
        step.free([n for numbers in alive.values() for n in numbers])
        return kept

    def _keep(self, i: int, alive: dict[int, list[int]]) -> list[int]:
        """Keep what operator ``i`` saves: results that exist already if their size is right, else new tensors."""
        scores = self._model.graph.operators[i].kind is OpKind.ATTENTION and not self._fused
        power = 2 if scores else 1
        found = []
        for nbytes in self._saved(i):
            owner = next((o for o, ns in alive.items() for n in ns if abs(self._step.sizes[n] - nbytes) < 1.0), None)
            if owner is None:
                found.append(self._step.allocate(nbytes, power=power))
            else:
                number = next(n for n in alive[owner] if abs(self._step.sizes[n] - nbytes) < 1.0)
                alive[owner].remove(number)
                found.append(number)
        return found

    def _saved(self, i: int) -> list[float]:
        """Bytes of each tensor that operator ``i`` keeps on this rank."""
        model = self._model
        total = kept_by(model, i, selective=self._recompute.attention)
        if not total:
            return []
        op = model.precision.apply(model.graph.operators[i].with_batch(model.micro_batch))
        whole = [float(t.nbytes) for t in op.saved if t.nbytes]
        scale = total / sum(whole) if whole else 0.0
        return [nbytes * scale for nbytes in whole] if 0.0 < scale <= 1.0 else [total]

    def _passing(self, i: int, op: Operator) -> list[int]:
        """Tensors that exist only while an operator runs: shifted logits, a dequantised weight."""
        model = self._model
        found = []
        if is_loss(op) and op.phase is Phase.FORWARD and not op.name.startswith("nll_loss"):
            copies = self._logits(i, op)
            found += [self._step.allocate(nbytes) for nbytes in copies[1:]]
        if "bits" in model.graph.operators[i].attributes and len(op.inputs) > 1:
            found.append(self._step.allocate(op.inputs[1].nbytes, power=0))
        return found

    def _logits(self, i: int, op: Operator) -> list[float]:
        """Bytes of each copy of the logits in fp32 that the runtime makes; the last may be a share of one."""
        numel = max((t.numel for t in (*op.inputs, *op.outputs)), default=0) / loss_chunks_of(self._model, i)
        copies = self._model.runtime.memory.logits_copies
        shares = [*([1.0] * int(copies)), copies % 1.0]
        return [numel * share * DType.FP32.nbytes for share in shares if share]

    def _loss_backward(self, i: int, op: Operator, freed: Sequence[int]) -> list[int]:
        """Gradients of the logits: of the loss, of the softmax, of the shift, and the one in 16 bits that remains.

        Each is made beside the one before. ``freed`` tensors were kept for the softmax.
        """
        step, copies = self._step, self._logits(i, op)
        before: list[int] = []
        for number, nbytes in enumerate([*copies, *copies[:1]]):
            made = [step.allocate(nbytes)]
            step.free(before)
            if number == 1 or len(copies) < 2:  # the second is that of the softmax
                step.free(freed)
                freed = ()
            before = made
        numel = max((t.numel for t in (*op.inputs, *op.outputs)), default=0) / loss_chunks_of(self._model, i)
        made = [step.allocate(numel * self._model.precision.activations.nbytes)]
        step.free([*before, *freed])
        return made

    def _outputs(self, i: int, op: Operator) -> list[int]:
        if is_loss(op):
            return []
        chunks = loss_chunks_of(self._model, i)
        return [self._step.allocate(t.nbytes / chunks) for t in op.outputs if t.nbytes]

    def _last_readers(self, indices: Sequence[int]) -> dict[int, int]:
        """The position of the last operator of a pass that reads each result; that of the next if none does."""
        position = {i: n for n, i in enumerate(indices)}
        found = {}
        for n, i in enumerate(indices):
            inside = [position[r] for r in self._readers.get(i, ()) if position.get(r, -1) > n]
            small_step = bool(self._model.graph.operators[i].attributes.get("as_is"))
            found[i] = n + 1 if small_step or not inside else max(inside)
        return found

    def _backward(self, block: Block, kept: dict[int, list[int]]) -> None:
        step, model = self._step, self._model
        last, forward_of = self._last_readers(block.backward), model.graph.forward_of
        ends = {forward_of[i]: n for n, i in enumerate(block.backward)}
        alive: dict[int, list[int]] = {}
        for position, i in enumerate(block.backward):
            op = rank_operator(model, i)
            passing = self._passing(i, op)
            fixed = [t for t in op.outputs if t.batch_dim is None]
            made = [t for t in op.outputs if t.batch_dim is not None]
            if is_loss(op):
                if not op.name.startswith("nll_loss"):
                    alive[i] = self._loss_backward(i, op, kept.pop(forward_of[i], ()))
            elif op.name == "dequantize":
                alive[i] = [step.allocate(t.nbytes, power=0) for t in op.outputs]
            elif not op.name.endswith("_"):
                chunks = loss_chunks_of(model, i) if op.kind is not OpKind.GEMM else 1
                alive[i] = [step.allocate(t.nbytes / chunks) for t in made if t.nbytes]
                self._weights([t.numel for t in fixed], written=op)
            step.free(passing)
            for source in [s for s, end in ends.items() if end == position and s in kept]:
                step.free(kept.pop(source))
            if position == 0:
                step.free(self._gradient)
                self._gradient = []
            for source in [s for s in alive if last.get(s, position) <= position]:
                step.free(alive.pop(source))
        step.free([n for numbers in (*alive.values(), *kept.values()) for n in numbers])
        step.free(self._gradient)
        self._gradient = [self._boundary(block)] if block.backward else []

    def _gradients(self, block: Block) -> None:
        for i in block.backward:
            op = rank_operator(self._model, i)
            if op.name != "dequantize" and not is_loss(op):
                self._weights([t.numel for t in op.outputs if t.batch_dim is None], written=op)

    def _weights(self, elements: Sequence[int], *, written: Operator) -> None:
        """Gradients of weights: until the update, or only until they are added to a sum or sharded."""
        for numel in elements:
            if self._stays:
                self._step.gradient(numel * self._gradient_bytes, updated=numel * self._updated)
            else:
                width = written.outputs[0].dtype.nbytes
                self._step.free([self._step.allocate(numel * width, power=0)])
