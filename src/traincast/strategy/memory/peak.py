"""Peak memory of one rank.

Weights, gradients and optimizer states follow ZeRO's shares (Rajbhandari et al. 2020, arXiv:1910.02054). Activations
are the tensors that autograd keeps in the captured graph, for every microbatch in flight (Korthikanti et al. 2022,
arXiv:2205.05198, give the closed form for transformers). The schedule is walked slot by slot: the tensors that a
forward keeps stay until its backward, and the running pass needs working memory in addition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.graph.optimizers import optimizer_called
from traincast.strategy.memory.update import update_copies, updates_here
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.precision import Precision
from traincast.strategy.runtime import Runtime
from traincast.strategy.schedules.slots import Pass, Slot
from traincast.strategy.strategy import Strategy

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_Number: TypeAlias = float | Floats

COMPONENTS: Final = ("weights", "gradients", "optimizer", "activations", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank at its peak, by component; ``parts`` divides each component further.

    ``host`` has the bytes that the rank keeps in the memory of its host, by part. ``cached`` bytes, beside the total,
    are blocks of the allocator that are unused at the peak; it gives them back rather than fail.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    other: float
    parts: Mapping[str, float] = field(default_factory=dict, hash=False)
    host: Mapping[str, float] = field(default_factory=dict, hash=False)
    cached: float = 0.0

    @property
    def states(self) -> float:
        """Bytes that do not depend on the batch: weights, gradients, optimizer states."""
        return self.weights + self.gradients + self.optimizer

    @property
    def tensors(self) -> float:
        """Bytes that the framework's own allocator counts: all but context, communicators and fragmentation."""
        return self.states + self.activations

    @property
    def total(self) -> float:
        """Bytes of all components."""
        return self.tensors + self.other

    def measured(self, share: float) -> Memory:
        """The memory of a run that holds ``share`` times the forecast; the difference counts as ``other``."""
        if share == 1.0:
            return self
        other = float(measured_other(self.other, self.total, share))
        parts = {**self.parts, "other: beyond the forecast, as measured": other - self.other}
        return replace(self, other=other, parts=parts)

    def to_dict(self) -> dict[str, float]:
        """Components by name."""
        return {name: getattr(self, name) for name in COMPONENTS}


def reported(memories: Sequence[Memory], runtime: Runtime, *, capacity: float = math.inf) -> float:
    """Bytes that a run shows: what the runtime counts, on the rank that it reports; ``capacity`` is the device's.

    A device that shows all its memory shows at most ``capacity``: allocators give unused blocks back before they fail.
    """
    paged = [m.parts.get("paged optimizer states", 0.0) for m in memories]
    match runtime.memory.counter:
        case "allocated":
            beside = [0.0 for _ in memories]
        case "reserved":
            beside = [m.parts.get("fragmentation", 0.0) for m in memories]
        case "device":
            beside = [min(m.other + m.cached, capacity - m.tensors) for m in memories]
    counts = [m.tensors - away + more for m, away, more in zip(memories, paged, beside, strict=True)]
    return counts[0] if runtime.memory.reports == "first" else max(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The fullest moment of one slot of a stage's schedule: bytes of activations.

    ``kept`` bytes wait for backward; block number ``block`` of the chunk needs ``working`` bytes in addition.
    ``in_flight`` counts the microbatches of each chunk that are between forward and backward, with the slot's own.
    ``waiting`` counts those that lack only the gradients of their weights.
    """

    index: int
    slot: Slot
    kept: float
    working: float
    block: int
    in_flight: tuple[int, ...]
    waiting: tuple[int, ...]

    @property
    def peak(self) -> float:
        """All activations."""
        return self.kept + self.working


def memory_of(
    chunks: Sequence[Sequence[BlockProgram]],
    codes: Ints,
    *,
    strategy: Strategy,
    runtime: Runtime,
    precision: Precision,
    ahead: bool = False,
    optimizer: bool = True,
) -> Memory:
    """Peak memory of a rank that holds ``chunks`` of blocks and runs their slots in order.

    ``codes`` are its slots, encoded as in :class:`traincast.strategy.schedules.skeleton.Skeleton`.
    ``ahead``: its host runs ahead of the device (see :func:`runs_ahead`). ``optimizer``: the step updates weights.
    """
    states = states_of(chunks, strategy=strategy, runtime=runtime, precision=precision, optimizer=optimizer)
    kept, working = _most(chunks, codes, strategy=strategy)
    activations = {
        "kept for backward": kept,
        "working": working,
        **buffers_of(_largest(chunks), ahead=ahead, runtime=runtime),
    }
    programs = [program for chunk in chunks for program in chunk]
    copies = update_copies(programs, strategy=strategy, runtime=runtime, precision=precision, optimizer=optimizer)
    waiting = sum(activations.values())
    activations |= _at_fullest(waiting, states, copies, runtime=runtime, strategy=strategy)
    tensors = sum(sum(part.values()) for part in (*states.values(), activations))
    other = other_of(tensors, strategy=strategy, runtime=runtime)
    every = {**states, "activations": activations, "other": other}
    return Memory(
        **{name: sum(every[name].values()) for name in COMPONENTS},
        parts={name: nbytes for part in every.values() for name, nbytes in part.items() if nbytes},
        host={},
        cached=max(0.0, waiting + copies - sum(activations.values())) if copies else 0.0,
    )


def _at_fullest(
    activations: float,
    states: Mapping[str, Mapping[str, float]],
    copies: float,
    *,
    runtime: Runtime,
    strategy: Strategy,
) -> dict[str, float]:
    """The bytes at the fullest moment of a step, beyond states and ``activations``, as a named part; often none.

    The part is negative if the step has fewer bytes at that moment than ``activations`` says.
    """
    most = float(
        beyond_states(
            activations,
            gradients=sum(states["gradients"].values()),
            updated=states["optimizer"].get("optimizer states", 0.0),  # paged ones are not copied
            copies=copies,
            runtime=runtime,
            microbatches=strategy.num_microbatches,
        )
    )
    if most == activations:
        return {}
    name = "gradients made while activations are freed" if most < activations else "copies for the update"
    return {name: most - activations}


def beyond_states(
    activations: _Number, *, gradients: _Number, updated: _Number, copies: _Number, runtime: Runtime, microbatches: int
) -> Any:
    """Bytes beyond the states at the fullest moment of a step: in the loss, or in the update.

    A runtime that frees its gradients has none of the bytes ``gradients`` in the loss, unless earlier microbatches
    left them there. The update needs a share of the ``updated`` bytes of the optimizer's states, and ``copies`` of
    gradients. Takes numbers or arrays.
    """
    if not runtime.memory.frees_gradients and not runtime.memory.update_share and not runtime.memory.flat_gradients:
        return activations
    missing = gradients if runtime.memory.frees_gradients and microbatches == 1 else 0.0
    return np.maximum(activations - missing, runtime.memory.update_share * updated + copies)


def states_of(
    chunks: Sequence[Sequence[BlockProgram]],
    *,
    strategy: Strategy,
    runtime: Runtime,
    precision: Precision,
    optimizer: bool = True,
) -> dict[str, dict[str, float]]:
    """Weights, gradients and optimizer states of a rank, by part."""
    programs = [program for chunk in chunks for program in chunk]
    dense, experts = sum(p.dense_parameters for p in programs), sum(p.expert_parameters for p in programs)
    shards = strategy.shard or strategy.dp * strategy.cp
    owned = dense / shards + experts / strategy.expert_replicas
    held = [owned if strategy.zero >= stage else dense + experts for stage in range(4)]
    updates = held[1] if updates_here(strategy, optimizer=optimizer) else 0.0
    states = sum_of_states(programs, precision)
    paged = any(optimizer_called(u.optimizer).paged for p in programs for u in p.updated)
    gradients = held[2]
    if runtime.memory.updates_in_backward and updates_here(strategy, optimizer=optimizer):
        gradients = min(gradients, max((p.largest_parameter for p in programs), default=0.0))
    residual = precision.gradient_bytes(dense + experts) if strategy.compression < 1.0 else 0.0
    frozen, buffers = _fixed(programs, strategy=strategy)
    return {
        "weights": {
            "weights": precision.weight_bytes(held[3]),
            "frozen weights": frozen,
            "buffers": buffers,
            "gathered parameters": _gathered(programs, strategy=strategy, runtime=runtime, precision=precision),
        },
        "gradients": {
            "gradients": precision.gradient_bytes(gradients),
            "gradients before their sum": _copies(programs, strategy=strategy, runtime=runtime, precision=precision),
            "gradients not sent yet": residual,
        },
        "optimizer": {
            "master weights": updates * (precision.master.nbytes if precision.master else 0.0),
            ("paged optimizer states" if paged else "optimizer states"): updates * states,
        },
    }


def sum_of_states(programs: Sequence[BlockProgram], precision: Precision) -> float:
    """Bytes of all states that optimizers keep for one weight: the mean over the weights."""
    each = [(u.parameters, u.states * precision.state_bytes(u.optimizer)) for p in programs for u in p.updated]
    rates = {nbytes / parameters for parameters, nbytes in each if parameters}
    if len(rates) < 2:
        return max(rates, default=0.0)
    return sum(nbytes for _, nbytes in each) / sum(parameters for parameters, _ in each)


def _fixed(programs: Sequence[BlockProgram], *, strategy: Strategy) -> tuple[float, float]:
    """Bytes of frozen weights, which ZeRO-3 shards like all parameters, and of buffers, which it does not shard."""
    named = {fixed.name: fixed for p in programs for fixed in p.fixed if fixed.name}
    beside = [*named.values(), *(fixed for p in programs for fixed in p.fixed if not fixed.name)]
    dense = sum(p.frozen.stored for p in programs) + sum(f.nbytes for f in beside if not f.buffer)
    experts = sum(p.frozen_experts.stored for p in programs)
    if strategy.zero == 3:
        dense /= strategy.shard or strategy.dp * strategy.cp
        experts /= strategy.expert_replicas
    return dense + experts, sum(f.nbytes for f in beside if f.buffer)


def _gathered(programs: Sequence[BlockProgram], *, strategy: Strategy, runtime: Runtime, precision: Precision) -> float:
    """Bytes of gathered weights, in the dtype of the products: running and prefetched blocks, or all if they stay."""
    if strategy.zero < 3 or (strategy.shard or strategy.dp * strategy.cp) == 1:
        return 0.0
    ahead = runtime.defaults.prefetch_blocks if strategy.prefetch < 0 else strategy.prefetch
    blocks = sorted((p.gathered_bytes(precision.activations.nbytes) for p in programs), reverse=True)
    return sum(blocks[: 1 + ahead] if strategy.reshard else blocks)


def _copies(programs: Sequence[BlockProgram], *, strategy: Strategy, runtime: Runtime, precision: Precision) -> float:
    """Bytes of gradients that backward writes before they are summed in a wider dtype or sharded; else 0."""
    written = precision.activations.nbytes
    if strategy.zero == 3:
        return max((p.num_parameters for p in programs), default=0.0) * written
    if precision.gradients.nbytes <= written:
        return 0.0
    match runtime.memory.gradient_copies:
        case "all":
            return sum(p.num_parameters for p in programs) * written
        case "shapes":
            return sum({p.scope: p.footprint.products for p in programs}.values())
        case "none":
            return 0.0


def runs_ahead(stages: Sequence[Sequence[Sequence[BlockProgram]]], *, inside_node: bool) -> list[bool]:
    """For each stage, whether its host runs ahead of its device.

    In a pipeline, every host does except that of the stage with the most layers, which sets the pace; if several
    stages have the most layers, none sets it. If tensor groups cross nodes (not ``inside_node``), all stages wait for
    the network and no host runs ahead.
    """
    if len(stages) == 1:
        return [True]
    layers = [sum(p.footprint.products > 0 for chunk in chunks for p in chunk) for chunks in stages]
    most = max(layers)
    return [inside_node and (n < most or layers.count(most) > 1) for n in layers]


def _largest(chunks: Sequence[Sequence[BlockProgram]]) -> float:
    """Bytes of the largest tensor that a tensor-parallel collective of ``chunks`` carries."""
    return max((p.footprint.gathered for chunk in chunks for p in chunk), default=0.0)


def buffers_of(largest: _Number, *, ahead: Any, runtime: Runtime) -> dict[str, Any]:
    """Bytes that a framework's allocator counts beyond the tensors of the graph, for one stage or an array of stages.

    A host that is ``ahead`` of its device fills the queue of launches. The tensors of the collectives in that queue,
    up to ``largest`` bytes each, cannot be reused before the collectives have run.
    """
    return {
        "held for collectives": runtime.memory.held_collectives * largest * ahead,
        "workspace": runtime.memory.workspace_bytes,
    }


def measured_other(other: _Number, total: _Number, share: float) -> Any:
    """The ``other`` bytes of a run that holds ``share`` times the ``total`` forecast, never below zero."""
    return np.maximum(0.0, other + (share - 1.0) * total)


def other_of(tensors: _Number, *, strategy: Strategy, runtime: Runtime) -> dict[str, Any]:
    """Bytes that the device holds but the framework's allocator does not count or cannot use, by part.

    ``tensors`` are the bytes that the allocator counts: a number or an array.
    """
    axes = (strategy.dp, strategy.tp, strategy.pp, strategy.cp, strategy.ep)
    return {
        "context": runtime.memory.context_bytes,
        "communicators": sum(degree > 1 for degree in axes) * runtime.memory.buffer_bytes,
        "fragmentation": runtime.memory.allocator_overhead * tensors,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PassMemory:
    """One pass of a chunk: the block at its fullest moment, bytes kept and working by then, and bytes left afterwards.

    Kept and left bytes are relative to those at the beginning of the pass.
    """

    kept: float
    working: float
    block: int
    leaves: float


def _most(chunks: Sequence[Sequence[BlockProgram]], codes: Ints, *, strategy: Strategy) -> tuple[float, float]:
    """Bytes of activations kept, and of working memory, in the fullest slot of a stage."""
    if not len(codes):
        return 0.0, 0.0
    nothing = PassMemory(kept=0.0, working=0.0, block=0, leaves=0.0)
    passes = [passes_of(footprints_of(chunk), offloaded="activations" in strategy.offload) for chunk in chunks]
    rows = [found.get(what, nothing) for found in passes for what in Pass]
    kept, working, leaves = np.array([(row.kept, row.working, row.leaves) for row in rows]).T[:, codes]
    kept = kept_in_slots(kept, leaves)
    fullest = int(np.argmax(kept + working))
    return float(kept[fullest]), float(working[fullest])


def kept_in_slots(kept: Any, leaves: Any) -> Any:
    """Bytes kept at the fullest moment of each slot of a stage: those left by earlier slots, and the slot's own.

    ``kept`` are the bytes that each slot's pass keeps by then, ``leaves`` those that it leaves (negative if it frees
    more). Plain Python and Numba both run this.
    """
    before = np.zeros(len(kept))
    before[1:] = np.cumsum(leaves)[:-1]
    return before + kept


def walk(chunks: Sequence[Sequence[BlockProgram]], slots: Sequence[Slot], *, strategy: Strategy) -> Iterator[Step]:
    """The activations in each slot of a stage, in order."""
    passes = [passes_of(footprints_of(chunk), offloaded="activations" in strategy.offload) for chunk in chunks]
    every = [passes[slot.chunk][slot.what] for slot in slots]
    kept = kept_in_slots(np.array([now.kept for now in every]), np.array([now.leaves for now in every]))
    in_flight, waiting = [0] * len(chunks), [0] * len(chunks)
    for index, (slot, now) in enumerate(zip(slots, every, strict=True)):
        in_flight[slot.chunk] += slot.what is Pass.FORWARD
        yield Step(
            index=index,
            slot=slot,
            kept=float(kept[index]),
            working=now.working,
            block=now.block,
            in_flight=tuple(in_flight),
            waiting=tuple(waiting),
        )
        in_flight[slot.chunk] -= slot.what in (Pass.BACKWARD, Pass.INPUT)
        waiting[slot.chunk] += (slot.what is Pass.INPUT) - (slot.what is Pass.WEIGHT)


def footprints_of(programs: Sequence[BlockProgram]) -> Floats:
    """One row per block: bytes kept, working in forward, working in backward, deferred for gradients of weights.

    The last column is 1 if the block's tensors may be offloaded, else 0.
    """
    distinct = {id(p): p.footprint for p in programs}
    rows = {key: (f.saved, f.forward, f.backward, f.deferred, not f.stays) for key, f in distinct.items()}
    return np.array([rows[id(p)] for p in programs], dtype=np.float64).reshape(-1, 5)


def passes_of(footprints: Floats, *, offloaded: bool) -> dict[Pass, PassMemory]:
    """The memory of each pass of a chunk: forward keeps more with each block, backward frees block by block.

    If activations are ``offloaded``, the device holds those of a block only while the block runs, and while backward
    fetches those of the next block.
    """
    kept, forward, backward, later, movable = footprints.T
    saved, deferred = (kept * (1.0 - movable), later * (1.0 - movable)) if offloaded else (kept, later)
    moving = kept - saved
    so_far = np.cumsum(saved)
    total, weights = float(saved.sum()), float(deferred.sum())
    below = so_far - total  # kept by the block that runs backward and by the blocks before it
    after = weights - np.cumsum(deferred)
    return {
        Pass.FORWARD: _fullest(so_far, forward + moving, leaves=total),
        Pass.BACKWARD: _fullest(below, backward + 2 * moving, leaves=-total),
        Pass.INPUT: _fullest(below + after, backward + 2 * moving, leaves=weights - total),
        Pass.WEIGHT: PassMemory(kept=0.0, working=0.0, block=0, leaves=-weights),
    }


def _fullest(kept: Floats, working: Floats, *, leaves: float) -> PassMemory:
    """The fullest moment of a pass; ``kept`` and ``working`` have one entry per block."""
    if not len(kept):
        return PassMemory(kept=0.0, working=0.0, block=0, leaves=leaves)
    block = int(np.argmax(kept + working))
    return PassMemory(kept=float(kept[block]), working=float(working[block]), block=block, leaves=leaves)
