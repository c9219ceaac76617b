"""The shape of a graph inspector: the same for the network that is trained and for its evaluation in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from traincast.errors import RequestError

Layer = Literal["gru", "gcn"]
ReadOut = Literal["set2set", "mean"]
OUTPUTS: Final = 24
"""Twelve targets, and for each of four resources the scores of three patterns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectorShape:
    """Sizes of an inspector.

    ``hidden`` channels per group. φ_r is applied ``depth`` · m times to a graph of m groups, but at most ``most_steps``
    times. ``layer`` ``gru`` has a GRU after each convolution, ``gcn`` only an activation. ``read_out`` ``set2set``
    looks at the groups ``looks`` times, ``mean`` takes their mean. The last ``late`` (a share) of the steps have
    weights of their own, which transfer trains.
    """

    features: int
    setting: int
    hidden: int = 32
    depth: float = 0.5
    most_steps: int = 32
    layer: Layer = "gru"
    read_out: ReadOut = "set2set"
    looks: int = 3
    late: float = 0.0

    def __post_init__(self) -> None:
        for name, low, high in (("hidden", 1, 1024), ("most_steps", 0, 1000), ("looks", 1, 100)):
            if not low <= getattr(self, name) <= high:
                raise RequestError(f"{name} of an inspector is {getattr(self, name)}: expected from {low} to {high}")
        for name, low_share, high_share in (("depth", 0.0, 10.0), ("late", 0.0, 1.0)):
            if not low_share <= getattr(self, name) <= high_share:
                raise RequestError(
                    f"{name} of an inspector is {getattr(self, name):g}: expected from {low_share:g} to {high_share:g}"
                )

    def steps(self, groups: int) -> int:
        """How often φ_r is applied to a graph of ``groups`` groups: Driple's K."""
        return min(self.most_steps, round(self.depth * groups))

    def early(self, groups: int) -> int:
        """How many of these steps keep the shared weights; the others have the late ones."""
        steps = self.steps(groups)
        return steps - round(self.late * steps)
