"""What a run shows of its memory: bytes that a framework's log or the device's driver counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from traincast.strategy.memory.peak import Memory
from traincast.strategy.runtime import Runtime


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
