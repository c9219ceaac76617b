"""The twelve figures as targets of a network: their order, their scale, and the uses that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from traincast.estimate.inspector.amounts import Floats
from traincast.estimate.inspector.communities import Ints
from traincast.estimate.resource_use import FIGURES, RESOURCES, Pattern, ResourceUse

TARGETS: Final = tuple((resource, figure) for resource in RESOURCES for figure in FIGURES)
PATTERNS: Final = get_args(Pattern)
Scaling = Literal["log", "maximum"]
SMALLEST: Final = 1e-6
"""Smaller values count as this: logarithms are taken of them."""


def use_from(values: Floats, pattern: Ints, *, seen_s: float) -> dict[str, ResourceUse]:
    """Return the uses of one run from its row of values and patterns; ``seen_s`` is how long it is observed."""
    found = {}
    for at, resource in enumerate(RESOURCES):
        name: Pattern = PATTERNS[int(pattern[at])]
        amount, burst_s, idle_s = (float(value) for value in values[3 * at : 3 * at + 3])
        if name == "idle":
            amount, burst_s, idle_s = 0.0, 0.0, seen_s
        elif name == "busy":
            burst_s, idle_s = seen_s, 0.0
        found[resource] = ResourceUse(burst_amount=amount, burst_s=burst_s, idle_s=idle_s, pattern=name)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetScale:
    """How values become targets of about unit size.

    ``log``: the logarithm of a value over its ``reference`` [runs, 12], which
    :func:`traincast.estimate.inspector.features.inputs_of` computes; then minus ``shift`` and over ``size`` [12].
    ``maximum``: the value over the largest one in training, as Driple has it.
    """

    method: Scaling
    shift: Floats
    size: Floats

    @classmethod
    def of(cls, values: Floats, reference: Floats, method: Scaling = "log") -> TargetScale:
        """The scale of training values."""
        raw = _raw(values, reference, method)
        known = np.isfinite(raw)
        some = known.any(axis=0)
        filled = np.where(some, raw, 0.0)
        if method == "maximum":
            return cls(method=method, shift=np.zeros(len(TARGETS)), size=np.maximum(np.nanmax(filled, axis=0), 1e-9))
        shift = np.nanmean(filled, axis=0)
        return cls(method=method, shift=shift, size=np.maximum(np.nanstd(filled, axis=0), 0.05))

    def targets(self, values: Floats, reference: Floats) -> Floats:
        """Targets of values; NaN stays NaN."""
        return (_raw(values, reference, self.method) - self.shift) / self.size

    def values(self, targets: npt.NDArray[np.floating], reference: Floats) -> Floats:
        """Values of targets, the inverse of :meth:`targets`; amounts are at most 1."""
        raw = np.asarray(targets, dtype=np.float64) * self.size + self.shift
        if self.method == "log":
            raw = reference * 10.0 ** np.clip(raw, -12.0, 12.0)
        raw = np.maximum(raw, SMALLEST)
        return np.where(_DURATION, raw, np.minimum(raw, 1.0))


_DURATION: Final = np.array([figure != "burst_amount" for _, figure in TARGETS])


def _raw(values: Floats, reference: Floats, method: Scaling) -> Floats:
    if method == "maximum":
        return values
    return np.log10(values / reference)
