"""Breadth-first pipelines: a chunk finishes all its microbatches before the next chunk starts."""

from __future__ import annotations

from traincast.strategy.schedules.phases import check_counts
from traincast.strategy.schedules.slots import Order, Pass, Slot


def breadth_first(stages: int, microbatches: int, virtual: int = 1) -> Order:
    """All microbatches forward chunk by chunk, then backward from the last chunk (Lamy-Poirier 2022).

    Bubble fraction (p−1)/(m·v+p−1) from m = p on. All m·v chunks of a stage are in flight at once; in exchange, a
    chunk's gradients are complete while the chunks before it still run backward, and its weights are gathered once
    each way. With one chunk it is GPipe.
    """
    check_counts("breadth-first", stages, microbatches, virtual, chunks=0)
    forward = [Slot(Pass.FORWARD, m, chunk) for chunk in range(virtual) for m in range(microbatches)]
    backward = [Slot(Pass.BACKWARD, m, chunk) for chunk in reversed(range(virtual)) for m in range(microbatches)]
    return [forward + backward for _ in range(stages)]
