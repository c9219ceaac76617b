"""What one rank does in each block of the model: its works in order, and what it holds in memory.

A block's program is the same for every repetition of the block and every microbatch, so it is made once, by
:class:`traincast.strategy.program_builder.ProgramBuilder`.
"""

from __future__ import annotations

from dataclasses import dataclass

from traincast.strategy.activations import Footprint
from traincast.strategy.holdings import Fixed, Frozen
from traincast.strategy.mesh import Group
from traincast.strategy.schedules.slots import Pass
from traincast.work import Launch, Work


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
        """Bytes of all its parameters once ZeRO-3 has gathered them; trained ones take the given bytes each."""
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
