"""The program of a block: the works that one rank runs in order, and the memory that it holds.

A program is the same for every repetition of the block and every microbatch. It puts together what
:mod:`traincast.strategy.program.works`, :mod:`traincast.strategy.program.traffic` and
:mod:`traincast.strategy.memory.footprint` say of the block. Collectives that compute waits for are part of the program;
``lower`` adds the traffic of gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from traincast.graph import Block, DType, Operator, OpKind
from traincast.graph.vocabulary import LINEAR
from traincast.strategy.memory.footprint import Footprint, footprint
from traincast.strategy.memory.holdings import Fixed, Frozen, Holdings, Updated, holdings_of
from traincast.strategy.mesh import Group
from traincast.strategy.program.embedding_tables import find_tables
from traincast.strategy.program.host_work import beside_operators
from traincast.strategy.program.item import Item
from traincast.strategy.program.recompute import RECOMPUTATIONS, Recomputation
from traincast.strategy.program.sharded_model import ShardedModel
from traincast.strategy.program.traffic import Traffic, backward_traffic, forward_traffic
from traincast.strategy.program.works import accumulation, offloaded, operator_items, weight_cast
from traincast.strategy.schedules.slots import Pass
from traincast.work import Collective, Launch

_PREPARED: Final = frozenset({OpKind.CONV, OpKind.DEPTHWISE_CONV, OpKind.BATCH_NORM})
"""Operators for which the host prepares a library's call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgram:
    """The works and the memory of one rank in one block, for one microbatch.

    The rank trains ``num_parameters`` parameters, of which ``expert_parameters`` belong to experts; the largest one has
    ``largest_parameter`` elements, and ``tied_parameters`` are a copy of another block's. ``frozen`` and
    ``frozen_experts`` are the parameters that it holds without training them. ``fixed`` are its buffers, and frozen
    parameters that it holds once for several blocks. ``updated`` divides the trained parameters by their optimizers.
    ``footprint`` is the memory of its passes. ``boundary_bytes`` bytes go to the next block.
    """

    scope: str
    forward: tuple[Item, ...]
    backward: tuple[Item, ...]
    backward_inputs: tuple[Item, ...]
    backward_weights: tuple[Item, ...]
    num_parameters: float
    expert_parameters: float
    largest_parameter: float
    tied_parameters: float
    frozen: Frozen
    frozen_experts: Frozen
    fixed: tuple[Fixed, ...]
    updated: tuple[Updated, ...]
    footprint: Footprint
    boundary_bytes: float
    flops: float

    @property
    def dense_parameters(self) -> float:
        """Trained parameters that every replica holds."""
        return self.num_parameters - self.expert_parameters

    def gathered_bytes(self, per_element: float) -> float:
        """Bytes of all its parameters when ZeRO-3 has gathered them; a trained one takes ``per_element`` bytes."""
        return self.num_parameters * per_element + self.frozen.gathered + self.frozen_experts.gathered

    def items(self, what: Pass) -> tuple[Item, ...]:
        """The works of one pass, in order."""
        match what:
            case Pass.FORWARD:
                return self.forward
            case Pass.BACKWARD:
                return self.backward
            case Pass.INPUT:
                return self.backward_inputs
            case Pass.WEIGHT:
                return self.backward_weights


def block_program(model: ShardedModel, block: Block) -> BlockProgram:
    """The program of ``block``: its works and traffic in order, and the memory of a rank that runs them."""
    forward = model.once(("forward", block.forward), lambda: _forward(model, block))
    backward = model.once(("backward", block.forward, block.backward), lambda: _backward(model, block))
    recompute = _recomputation(model, block)
    boundary = float(sum(t.with_batch(model.micro_batch).numel for t in block.boundary))
    boundary *= model.precision.activations.nbytes / model.strategy.cp
    if model.strategy.sequence_parallel:
        boundary /= model.strategy.tp
    carried = (i.work.nbytes for i in forward if isinstance(i.work, Collective) and i.group is Group.TENSOR)
    held = footprint(
        model,
        block,
        recompute=recompute,
        boundary=boundary,
        gathered=max(carried, default=0.0),
    )
    again = repeated_works(recompute, forward, lean=model.runtime.kernels.lean_recompute)
    backward = [replace(item, label=f"{item.label} (again)") for item in again] + backward
    holdings = model.once(
        ("holdings", block.forward, model.strategy.pp > 1),
        lambda: holdings_of(model, block),
    )
    parameters = holdings.dense + holdings.experts
    if "activations" in model.strategy.offload and held.kept and not held.stays:
        forward, backward = (
            [*items, offloaded(model, held.saved, items, way)] for items, way in ((forward, "out"), (backward, "back"))
        )
    if model.strategy.num_microbatches > 1 and parameters:
        backward = backward + accumulation(model, parameters)
    wide = _wide_weights(model, holdings)
    wide -= min(wide, model.tables.elements(find_tables(model.graph, block)))
    if wide and model.precision.activations is not DType.FP32:
        forward = [weight_cast(model, wide), *forward]
    if model.runtime.launches.cuda_graphs:
        forward, backward = _graphed(forward), _graphed(backward)
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
        updated=holdings.updated,
        footprint=held,
        boundary_bytes=boundary,
        flops=sum(i.work.flops for i in (*forward, *backward) if isinstance(i.work, Operator)),
    )


def _forward(model: ShardedModel, block: Block) -> list[Item]:
    launches = model.runtime.launches
    return _pass(model, block, block.forward, forward_traffic(model, block), launches.operator, launches.prepared)


def _backward(model: ShardedModel, block: Block) -> list[Item]:
    launches, traffic = model.runtime.launches, backward_traffic(model, block)
    return _pass(model, block, block.backward, traffic, launches.backward, launches.prepared_backward)


def _pass(  # noqa: PLR0917
    model: ShardedModel, block: Block, indices: Sequence[int], traffic: Traffic, kernel_launches: float, prepared: float
) -> list[Item]:
    """The works of the operators ``indices`` in order, with the traffic around them.

    Each needs ``kernel_launches``, and ``prepared`` more if it is one that a library prepares.
    """
    usual = kernel_launches + beside_operators(model.graph, model.micro_batch)
    found: list[Item] = []
    for n, i in enumerate(indices):
        more = prepared if model.graph.operators[i].kind in _PREPARED else 0.0
        launches = Launch(kernels=usual, prepared=more, blocks=0.0 if n else model.runtime.launches.block)
        found += traffic.before[i]
        found += operator_items(model, i, block, launches, traffic.hidden.get(i))
        found += traffic.after[i]
    return found


def _recomputation(model: ShardedModel, block: Block) -> Recomputation:
    """The recomputation of ``block``: "none" if it has no backward, or if only other blocks are repeated."""
    recomputed = block.backward and (block.repeated or not any(b.repeated for b in model.graph.blocks))
    return RECOMPUTATIONS[model.strategy.recompute if recomputed else "none"]


def repeated_works(recompute: Recomputation, forward: Sequence[Item], *, lean: bool) -> list[Item]:
    """The works of a block's ``forward`` that run again before its backward.

    If ``lean``, a whole block runs again only up to its last product, because no backward reads its result.
    """
    if recompute.whole_block and lean:
        return list(forward[: max((n for n, item in enumerate(forward) if _is_product(item)), default=0)])
    return [item for item in forward if recompute.whole_block or _runs_again(recompute, item)]


def _runs_again(recompute: Recomputation, item: Item) -> bool:
    if recompute.attention and item.core:
        return True
    return isinstance(item.work, Operator) and item.work.kind in recompute.kinds


def _is_product(item: Item) -> bool:
    return isinstance(item.work, Operator) and item.work.kind in LINEAR


def _wide_weights(model: ShardedModel, holdings: Holdings) -> float:
    """The number of weights that a block stores in fp32: trained ones, and frozen ones that are not quantised."""
    trained = holdings.dense + holdings.experts if model.precision.weights is DType.FP32 else 0.0
    wide = model.precision.frozen_weights is DType.FP32
    return trained + (holdings.frozen_parameters - holdings.packed_parameters if wide else 0.0)


def _graphed(items: list[Item]) -> list[Item]:
    """``items`` with one launch for all of them, as a recorded CUDA graph has."""
    return [item if n == 0 else replace(item, launches=Launch()) for n, item in enumerate(items)]
