"""Memory of one rank: what it holds when it holds most.

Weights, gradients and optimizer states follow ZeRO's shares (Rajbhandari et al. 2020); activations
are the tensors that autograd keeps, as captured, for every microbatch in flight (Korthikanti et al.
2022 give the closed form for transformers).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from traincast.strategy.precision import Precision
from traincast.strategy.program import BlockProgram
from traincast.strategy.runtime import Runtime
from traincast.strategy.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank at its peak, by component."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    other: float

    @property
    def tensors(self) -> float:
        """What the framework's own counters see: all but context, communicators and fragmentation."""
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def total(self) -> float:
        """All of it."""
        return self.tensors + self.other

    def as_dict(self) -> dict[str, float]:
        """Components by name."""
        return asdict(self)


def memory_of(
    programs: list[BlockProgram],
    *,
    in_flight: float,
    strategy: Strategy,
    runtime: Runtime,
    precision: Precision,
) -> Memory:
    """Peak memory of a rank that runs ``programs`` with ``in_flight`` microbatches between their passes.

    With virtual stages a slot is one chunk, so ``in_flight`` chunks are in flight out of all that the
    rank holds.
    """
    replicas = strategy.dp * strategy.cp
    parameters = sum(p.num_parameters for p in programs)
    states = max((p.optimizer_states for p in programs), default=0)
    weights = precision.weight_bytes(parameters)
    gradients = precision.gradient_bytes(parameters)
    optimizer = precision.optimizer_bytes(parameters, states)
    if strategy.zero >= 1:
        optimizer /= replicas
    if strategy.zero >= 2:
        gradients /= replicas
    if strategy.zero == 3 and replicas > 1:
        blocks = sorted((p.num_parameters for p in programs), reverse=True)
        gathered = sum(blocks[: 1 + runtime.prefetch_blocks]) * precision.activations.nbytes
        weights = weights / replicas + gathered
    saved = sum(p.saved_bytes for p in programs) * in_flight / strategy.virtual_stages
    working = max((p.working_bytes for p in programs), default=0.0)
    tensors = weights + gradients + optimizer + saved + working
    communicators = sum(1 for degree in (strategy.dp, strategy.tp, strategy.pp, strategy.cp) if degree > 1)
    other = runtime.context_bytes + runtime.allocator_overhead * tensors + communicators * runtime.buffer_bytes
    return Memory(weights=weights, gradients=gradients, optimizer=optimizer, activations=saved + working, other=other)
