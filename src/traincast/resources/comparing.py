"""Compares what a run drew from its machines with what its forecast says: the twelve figures, and the curves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.estimate.resource_use import FIGURES, RESOURCES, ResourceUse
from traincast.resources.curves import Curves, uses_of

Floats = npt.NDArray[np.float64]

_SHIFTS: Final = 4
"""Phases that are tried in each sampling period."""
_FLAT: Final = 0.1
"""A curve whose standard deviation is below this share of its mean has no shape to compare: it is even."""
_UNUSED: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCurves:
    """One mean measured step, and the forecast step laid over it; amounts are shares of the peak.

    ``edges_s`` has the ends of all periods of the measured step, from 0. The forecast step is stretched to the same
    length, so that equal phases meet, and begins ``phase_s`` later.
    """

    edges_s: Floats
    measured: Mapping[str, Floats] = field(hash=False)
    predicted: Mapping[str, Floats] = field(hash=False)
    phase_s: float

    def correlation(self, name: str) -> float | None:
        """Pearson's correlation of the two curves of a resource, or ``None`` if one of them has no shape."""
        return _correlation(self.measured[name], self.predicted[name]) if name in self.measured else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceComparison:
    """The use of each resource as measured and as predicted, seen on the node of one rank.

    Without curves of the forecast there is no ``step``.
    """

    measured: dict[str, ResourceUse] = field(hash=False)
    predicted: dict[str, ResourceUse] = field(hash=False)
    step: StepCurves | None
    hz: float
    observed_s: float
    measured_step_s: float
    predicted_step_s: float

    def errors(self) -> dict[str, dict[str, float | None]]:
        """The relative error of each figure; ``None`` where it was refused, or the measured one is 0 or not read."""
        refused = self.refused()
        return {
            name: {
                figure: _relative(self.measured[name].figure(figure), self.predicted[name].figure(figure))
                if name in self.measured and figure not in refused[name]
                else None
                for figure in FIGURES
            }
            for name in RESOURCES
        }

    def refused(self) -> dict[str, dict[str, str]]:
        """Why figures are not compared, by resource and figure: a side refuses them, or only one side has bursts."""
        return {
            name: _reasons(self.measured[name], self.predicted[name]) if name in self.measured else {}
            for name in RESOURCES
        }

    def correlations(self) -> dict[str, float | None]:
        """The correlation of each resource's curves."""
        return {name: None if self.step is None else self.step.correlation(name) for name in RESOURCES}

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain values, for JSON."""
        return {
            "measured": {name: asdict(use) for name, use in self.measured.items()},
            "predicted": {name: asdict(use) for name, use in self.predicted.items()},
            "errors": self.errors(),
            "refused": self.refused(),
            "correlation": self.correlations(),
            "phase_s": None if self.step is None else self.step.phase_s,
            "hz": self.hz,
            "observed_s": self.observed_s,
            "measured_step_s": self.measured_step_s,
            "predicted_step_s": self.predicted_step_s,
        }


def compared_figures(
    measured: Curves, predicted: Mapping[str, ResourceUse], *, known: Collection[str], predicted_step_s: float
) -> ResourceComparison:
    """Compare the ``known`` resources of an observation with figures of a forecast, whose curves nobody has."""
    uses = uses_of(measured)
    return ResourceComparison(
        measured={name: use for name, use in uses.items() if name in known},
        predicted=dict(predicted),
        step=None,
        hz=1.0 / measured.period_s,
        observed_s=len(measured.values["compute"][0]) * measured.period_s,
        measured_step_s=measured.step_s,
        predicted_step_s=predicted_step_s,
    )


def compared(
    measured: Curves,
    predicted: Curves,
    *,
    exact: Curves,
    step: Mapping[str, Floats],
    edges_s: Floats,
    rank: int = 0,
) -> ResourceComparison:
    """Compare the use seen on the node of ``rank``.

    ``measured`` and ``predicted`` are observations with equal periods, of which the longer one is cut. ``exact`` is
    one step of the forecast, sampled finely. ``step`` is the mean measured step in the periods between ``edges_s``;
    it lacks a resource that was not read.
    """
    length = min(len(curves.values["compute"][0]) for curves in (measured, predicted))
    shown = [_cut(curves, length) for curves in (measured, predicted)]
    uses = [uses_of(curves, rank=rank) for curves in shown]
    return ResourceComparison(
        measured={name: use for name, use in uses[0].items() if name in step},
        predicted=uses[1],
        step=aligned(step, exact, edges_s=edges_s, rank=rank),
        hz=1.0 / measured.period_s,
        observed_s=length * measured.period_s,
        measured_step_s=measured.step_s,
        predicted_step_s=predicted.step_s,
    )


def aligned(step: Mapping[str, Floats], exact: Curves, *, edges_s: Floats, rank: int = 0) -> StepCurves:
    """Lay the forecast step over the measured one, in the phase in which their curves correlate best on average.

    How much the two steps differ in length is an error of its own, and no part of the correlation.
    """
    seen, edges = exact.of_node_of(rank), edges_s * (exact.step_s / edges_s[-1])
    count = max(1, _SHIFTS * (len(edges) - 1))
    best: StepCurves | None = None
    most = -np.inf
    for phase_s in sorted((np.arange(count) / count - 0.5) * exact.step_s, key=abs):
        predicted = {name: _sampled(seen[name], exact, edges - phase_s) for name in step}
        found = [_correlation(step[name], predicted[name]) for name in step]
        mean = float(np.mean([each for each in found if each is not None] or [0.0]))
        if mean > most + 1e-9:
            most = mean
            best = StepCurves(edges_s=edges_s, measured=step, predicted=predicted, phase_s=float(phase_s))
    assert best is not None, "at least one phase is tried"
    return best


def _sampled(levels: Floats, exact: Curves, edges: Floats) -> Floats:
    """Means between ``edges`` of a step that repeats."""
    ends = exact.period_s * np.arange(len(levels) + 1.0)
    total = np.concatenate([[0.0], np.cumsum(levels) * exact.period_s])
    steps = np.floor(edges / ends[-1])
    drawn = steps * total[-1] + np.interp(edges - steps * ends[-1], ends, total)
    means: Floats = np.diff(drawn) / np.diff(edges)
    return means


def _cut(curves: Curves, length: int) -> Curves:
    return replace(curves, values={name: value[:, :length] for name, value in curves.values.items()})


def _correlation(one: Floats, other: Floats) -> float | None:
    if len(one) < 3 or any(curve.std() < max(_UNUSED, _FLAT * curve.mean()) for curve in (one, other)):
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _relative(measured: float | None, predicted: float | None) -> float | None:
    if measured is None or predicted is None:
        return None
    if measured == predicted:
        return 0.0
    return (predicted - measured) / measured if measured else None


def _reasons(measured: ResourceUse, predicted: ResourceUse) -> dict[str, str]:
    """Why figures of a resource cannot be compared."""
    found: dict[str, str] = {}
    for figure in FIGURES:
        for side, use in (("measured", measured), ("forecast", predicted)):
            if figure in use.refused:
                found.setdefault(figure, f"{side}: {use.refused[figure]}")
        if figure != "burst_amount" and measured.pattern != predicted.pattern:
            patterns = f"measured {measured.pattern}, forecast {predicted.pattern}"
            found.setdefault(figure, f"{patterns}: there are no lengths to compare")
    return found
