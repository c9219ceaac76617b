"""Memory that an update takes for copies of gradients, in runtimes with ``flat_gradients`` (DeepSpeed's ZeRO).

The copies are larger than the activations' tensors, so the allocator makes blocks of their own for them and keeps
these until it would fail otherwise. They come one after the other, and a later one may reuse earlier blocks:

1. The gradient of the largest parameter exists twice while it is added to the sum of earlier microbatches.
2. The exchange copies gradients into a bucket; if they are not sharded, a bucket ends with the parameter that fills it.
3. The norm is computed from one gradient at a time, in fp64.
4. If master weights are wider than gradients, the gradients that the rank updates are joined into one tensor, which is
   then converted. Without ZeRO, each is converted first, and all are joined afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.precision import Precision
from traincast.strategy.runtime import Runtime
from traincast.strategy.strategy import Strategy

_FP64: Final = 8


class _Copy(NamedTuple):
    """Bytes of a copy, and whether it is still there when the later ones are made."""

    nbytes: float
    stays: bool = False


def updates_here(strategy: Strategy, *, optimizer: bool) -> bool:
    """Whether a step updates weights, and devices do so: not hosts or parameter servers."""
    return optimizer and strategy.servers == 0 and "optimizer" not in strategy.offload


def update_copies(
    programs: Sequence[BlockProgram],
    *,
    strategy: Strategy,
    runtime: Runtime,
    precision: Precision,
    optimizer: bool = True,
) -> float:
    """Bytes of the blocks that copies of gradients take on a rank; often 0."""
    if not runtime.memory.flat_gradients or not updates_here(strategy, optimizer=optimizer):
        return 0.0
    dense, experts = sum(p.dense_parameters for p in programs), sum(p.expert_parameters for p in programs)
    shards = strategy.shard or strategy.dp * strategy.cp
    updated = dense / shards + experts / strategy.expert_replicas if strategy.zero else dense + experts
    largest = max((p.largest_parameter for p in programs), default=0.0)
    owned = min(largest, updated)
    gradient, master = precision.gradients.nbytes, precision.master.nbytes if precision.master else 0
    elements = runtime.exchange.bucket_bytes / precision.activations.nbytes
    whole = strategy.zero == 0 or gradient > precision.activations.nbytes
    exchanged = (elements + largest if whole else elements) if strategy.dp * strategy.cp > 1 else 0.0
    copies = [
        _Copy(largest * precision.activations.nbytes),
        _Copy(min(exchanged, dense + experts) * gradient),
        _Copy(owned * _FP64),
    ]
    if master > gradient:
        joined = master if strategy.zero == 0 else gradient
        copies += [_Copy(updated * joined, stays=True), _Copy(updated * master, stays=True)]
    return _blocks(copies)


def _blocks(copies: Sequence[_Copy]) -> float:
    """Bytes of all blocks if each copy takes the smallest free part that holds it, or a new block."""
    total, free = 0.0, list[float]()
    for copy in copies:
        fitting = [part for part in free if part >= copy.nbytes]
        part = min(fitting, default=0.0)
        if part:
            free.remove(part)
        else:
            total += copy.nbytes
        free.append((part or copy.nbytes) - copy.nbytes if copy.stays else part or copy.nbytes)
    return total
