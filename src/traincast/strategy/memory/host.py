"""Host memory that a rank uses for offloading.

With ``offload=optimizer``, the host holds everything that the update needs (ZeRO-Offload, Ren et al. 2021,
arXiv:2101.06840): master weights, optimizer states and gradients of the parameters that the rank updates. With
``offload=activations``, it holds the activations of every microbatch that is between forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traincast.strategy.memory.peak import Ints, footprints_of, kept_in_slots, passes_of, states_of
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.precision import Precision
from traincast.strategy.runtime import Runtime
from traincast.strategy.schedules.slots import Pass
from traincast.strategy.strategy import Strategy


def host_of(
    chunks: Sequence[Sequence[BlockProgram]],
    codes: Ints,
    *,
    strategy: Strategy,
    runtime: Runtime,
    precision: Precision,
    optimizer: bool = True,
) -> dict[str, float]:
    """Bytes that a rank keeps on its host, by part; empty if nothing is offloaded. ``codes`` are the rank's slots."""
    found: dict[str, float] = {}
    if "optimizer" in strategy.offload and optimizer:
        found |= updates_of(chunks, strategy=strategy, runtime=runtime, precision=precision)
    if "activations" in strategy.offload and len(codes):
        leaves = np.array([kept_by(chunk) for chunk in chunks]).reshape(-1)
        moved = leaves[codes]
        found["activations"] = float(kept_in_slots(np.maximum(moved, 0.0), moved).max(initial=0.0))
    return found


def updates_of(
    chunks: Sequence[Sequence[BlockProgram]], *, strategy: Strategy, runtime: Runtime, precision: Precision
) -> dict[str, float]:
    """Bytes that updates on the host need there, by part: what the device would hold, and copies of the gradients.

    ZeRO-1 shards the update but not the gradients on the device; only the rank's own share is sent to its host.
    """
    zero = 2 if strategy.zero == 1 else strategy.zero
    here = replace(strategy, offload=(), zero=zero)
    states = states_of(chunks, strategy=here, runtime=runtime, precision=precision)
    gradients = states["gradients"]["gradients"]
    found = {**states["optimizer"], "gradients": gradients}
    if precision.master is None:  # the update needs its own copy of the weights
        found["master weights"] = gradients / precision.gradients.nbytes * precision.weights.nbytes
    return found


def kept_by(chunk: Sequence[BlockProgram]) -> list[float]:
    """Bytes that each pass of a chunk adds to the activations that wait on the host; negative if it frees more."""
    footprints = footprints_of(chunk)
    here, all_of_them = (passes_of(footprints, offloaded=offloaded) for offloaded in (True, False))
    return [all_of_them[what].leaves - here[what].leaves for what in Pass]
