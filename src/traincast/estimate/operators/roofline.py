"""Seconds of one kernel on one device: a roofline with tiles, waves and memory that needs time to fill.

Every function works on columns (arrays of equal length, or numbers) and is pure. Dims are counts, rates
FLOP/s, bandwidths bytes/s. All of them grow, or stay, when a dim or a byte count grows.

The roofline is Williams et al., "Roofline: an insightful visual performance model" (CACM 2009); tile and
wave quantisation follow NVIDIA's "Matrix Multiplication Background User's Guide" and Yu et al.,
"Habitat" (ATC 2021); the choice of the fastest tile stands for the heuristics of cuBLAS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Column: TypeAlias = npt.NDArray[np.float64]

TILES: Final = np.array(
    [(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (128, 32), (16, 128), (128, 16)],
    dtype=np.float64,
)
"""Output tiles (rows, columns) that GEMM kernels come in."""
SPLITS: Final = np.array([1, 2, 4, 8, 16, 64], dtype=np.float64)
"""Ways to share out ``k`` among thread blocks when there are too few tiles."""

OPERAND_COST: Final = 33.0
"""Elements of a tile's edge whose operand traffic takes as long as its arithmetic."""
EPILOGUE_COST: Final = 0.55
"""Time to fill and drain a tile, over the time to write it at the SM's share of the bandwidth."""
QUANTISATION: Final = 0.17
"""Share of a partly filled last wave that is lost; persistent and stream-K kernels hide the rest."""
SPLIT_S: Final = 2.9e-6
"""Seconds to add up what a split ``k`` left."""
SHARPNESS: Final = 3.2
"""Exponent that joins compute and memory: 1 adds them, infinity takes the larger."""
RAMP_S: Final = 0.65e-6
"""Seconds of traffic that are lost while memory fills its queues."""
HOT_SHARE: Final = 0.5
"""Time saved on traffic that is still in the L2 cache."""
HOT_PART: Final = 5.0
"""A working set below this part of the L2 cache is found there again."""
QUERY_BLOCK: Final = 128.0
"""Queries that one thread block of a fused attention handles."""
DIAGONAL_KEYS: Final = 64.0
"""Keys that a causal mask's diagonal blocks compute in vain, and the start of the loop over keys."""
ATTENTION_QUANTISATION: Final = 0.45
"""As :data:`QUANTISATION`, for fused attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a kernel meets: ``bandwidth`` is achievable, ``floor_s`` the shortest kernel."""

    num_sms: float
    bandwidth: float
    l2_bytes: float
    floor_s: float


def join(compute_s: Column, memory_s: Column, sharpness: float = SHARPNESS) -> Column:
    """Seconds of work whose compute and memory overlap: (compute^p + memory^p)^(1/p), without overflow."""
    larger, smaller = np.maximum(compute_s, memory_s), np.minimum(compute_s, memory_s)
    ratio = np.divide(smaller, larger, out=np.zeros_like(larger), where=larger > 0)
    joined: Column = larger * (1.0 + ratio**sharpness) ** (1.0 / sharpness)
    return joined


def memory_seconds(nbytes: Column, machine: Machine, share: Column | float = 1.0) -> Column:
    """Seconds to move ``nbytes``, at ``share`` of the achievable bandwidth B.

    (x + √(x · B · RAMP_S)) / B for x = nbytes / share: small tensors do not fill the pipe; a working set
    that fits a part of the L2 cache is found there again and costs half.
    """
    amount = nbytes / share
    cold = (amount + np.sqrt(amount * machine.bandwidth * RAMP_S)) / machine.bandwidth
    hot = 1.0 / (1.0 + np.minimum(nbytes * HOT_PART / machine.l2_bytes, 1e6) ** 4)
    seconds: Column = cold * (1.0 - HOT_SHARE * hot)
    return seconds


def gemm_compute_seconds(
    b: Column, m: Column, n: Column, k: Column, *, rate: Column, out_bytes: Column, machine: Machine
) -> Column:
    """Seconds that the SMs need for ``b`` products [m, k]·[k, n], with the best tile and split of k.

    waves · tm · tn · (2 ⌈k/s⌉ / r · (1 + c/tm + c/tn) / (1 + c/256 + c/128) + e · out_bytes / B) for tiles
    tm × tn, splits s, r = ``rate`` per SM (what the largest tile reaches) and B the bandwidth per SM;
    waves = tiles / SMs, rounded up in part.
    """
    fastest = np.full(np.shape(m), np.inf)
    r, write = rate / machine.num_sms, EPILOGUE_COST * out_bytes * machine.num_sms / machine.bandwidth
    largest = 1.0 + OPERAND_COST * (1.0 / TILES[0, 0] + 1.0 / TILES[0, 1])
    for tm, tn in TILES:
        tiles = b * np.ceil(m / tm) * np.ceil(n / tn)
        per_k = 2.0 / r * (1.0 + OPERAND_COST * (1.0 / tm + 1.0 / tn)) / largest
        for split in SPLITS:
            depth = tiles * split / machine.num_sms
            waves = QUANTISATION * np.ceil(depth) + (1.0 - QUANTISATION) * np.maximum(depth, 1.0)
            seconds = waves * (tm * tn) * (np.ceil(k / split) * per_k + write)
            np.minimum(fastest, seconds + (SPLIT_S if split > 1 else 0.0), out=fastest)
    return fastest


def attention_compute_seconds(
    batch_heads: Column,
    queries: Column,
    keys: Column,
    dims: Column,
    *,
    rate: Column,
    extra_dims: float,
    machine: Machine,
) -> Column:
    """Seconds that the SMs need for a fused attention (Dao, "FlashAttention-2", 2023).

    Blocks of 128 queries each meet ``keys`` keys (those that the mask leaves, on average): 2 (dims +
    2 · extra_dims) FLOP per score, where ``dims`` adds the head dims of both products and ``extra_dims``
    stands for the exponentials; ``rate`` is what head dim 128 reaches over long sequences.
    """
    blocks = batch_heads * np.ceil(queries / QUERY_BLOCK) / machine.num_sms
    waves = ATTENTION_QUANTISATION * np.ceil(blocks) + (1.0 - ATTENTION_QUANTISATION) * np.maximum(blocks, 1.0)
    per_score = 2.0 * (dims + 2.0 * extra_dims) * (128.0 / (128.0 + extra_dims))
    seconds: Column = waves * machine.num_sms * QUERY_BLOCK * (keys + DIAGONAL_KEYS) * per_score / rate
    return seconds
