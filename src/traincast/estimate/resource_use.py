"""How a job uses each resource: the twelve figures that an inspector predicts, a timeline shows and a monitor sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

RESOURCES: Final = ("compute", "memory", "receive", "send")
"""Use of the device, use of its memory's bandwidth, network received, network sent."""
FIGURES: Final = ("burst_amount", "burst_s", "idle_s")
"""The figures of each resource: share of the peak in a burst, its mean duration, and the mean pause after it."""
Pattern = Literal["idle", "bursts", "busy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """How one resource is used: amounts as a share of its peak, durations as means over all bursts in seconds.

    An idle resource has no burst: ``burst_s`` is 0, ``idle_s`` the whole time seen. A busy one has no pause:
    ``idle_s`` is 0, ``burst_s`` the whole time seen, ``burst_amount`` the mean over it. A figure that the samples
    cannot carry is ``None``, and ``refused`` says why, by the name of the figure.
    """

    burst_amount: float | None
    burst_s: float | None
    idle_s: float | None
    pattern: Pattern
    refused: dict[str, str] = field(default_factory=dict, hash=False)

    def figure(self, name: str) -> float | None:
        """One of :data:`FIGURES`."""
        value: float | None = getattr(self, name)
        return value
