"""The program of a block: the works that one rank runs in order, and the memory that it holds.

A program is the same for every repetition of the block and every microbatch, so
:class:`traincast.strategy.program.builder.ProgramBuilder` makes it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from traincast.strategy.memory.activations import Footprint
from traincast.strategy.memory.holdings import Fixed, Frozen
from traincast.strategy.mesh import Group
from traincast.strategy.schedules.slots import Pass
from traincast.work import Launch, Work


class Share(NamedTuple):
    """The elements of one or more parameters that a rank trains, outside and inside experts."""

    dense: float
    experts: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """The works that a communication overlaps with; see :class:`traincast.strategy.plan.Overlap`."""

    works: tuple[Work, ...]
    share: float = 1.0
    interference: float = 0.0
    waited: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One work of a program, its launches on the host, and its label.

    ``core`` marks the core of attention, which selective recomputation runs again. ``weight`` marks works that only
    make gradients of weights; they may run later than the rest of backward. With ``behind``, only the part of the work
    that does not overlap counts. ``completes`` has the parameters whose gradients are complete after the work, in
    order; it is filled only for runtimes that cut buckets between parameters.
    """

    work: Work
    launches: Launch
    label: str
    group: Group = Group.RANK
    core: bool = False
    weight: bool = False
    behind: Behind | None = None
    completes: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgram:
    """The works and the memory of one rank in one block, for one microbatch.

    The rank trains ``num_parameters`` parameters, of which ``expert_parameters`` belong to experts; the largest one has
    ``largest_parameter`` elements, and ``tied_parameters`` are a copy of another block's. ``frozen`` and
    ``frozen_experts`` are the parameters that it holds without training them. ``fixed`` are its buffers, and frozen
    parameters that it holds once for several blocks. ``footprint`` is the memory of its passes. ``boundary_bytes``
    bytes go to the next block.
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
