"""The twelve figures as targets of a network, and how predictions of them are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from traincast.resources.bursts import FIGURES, RESOURCES, Pattern, ResourceUse
from traincast.resources.inspector.amounts import Floats
from traincast.resources.inspector.communities import Ints

TARGETS: Final = tuple((resource, figure) for resource in RESOURCES for figure in FIGURES)
PATTERNS: Final = get_args(Pattern)
Scaling = Literal["log", "maximum"]
_SMALLEST: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UseColumns:
    """The uses of many runs as columns.

    ``values`` [runs, 12] in the order of :data:`TARGETS`; an amount of an idle resource, and a duration of a resource
    without bursts, says nothing about the run and is NaN, as is a figure that samples cannot carry. ``pattern``
    [runs, 4] numbers :data:`PATTERNS`.
    """

    values: Floats
    pattern: Ints

    def take(self, rows: Ints) -> UseColumns:
        """Some of the runs."""
        return UseColumns(values=self.values[rows], pattern=self.pattern[rows])


def uses_of_runs(runs: Sequence[Mapping[str, ResourceUse]]) -> UseColumns:
    """Return the columns of the uses of many runs."""
    values = np.full((len(runs), len(TARGETS)), np.nan)
    pattern = np.zeros((len(runs), len(RESOURCES)), dtype=np.int64)
    for number, run in enumerate(runs):
        for at, resource in enumerate(RESOURCES):
            use = run[resource]
            pattern[number, at] = PATTERNS.index(use.pattern)
            for place, figure in enumerate(FIGURES):
                value = use.figure(figure)
                told = use.pattern == "bursts" or (figure == "burst_amount" and use.pattern == "busy")
                if told and value is not None:
                    values[number, 3 * at + place] = max(_SMALLEST, value)
    return UseColumns(values=values, pattern=pattern)


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
    :func:`traincast.resources.inspector.features.inputs_of` computes; then minus ``shift`` and over ``size`` [12].
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
        raw = np.maximum(raw, _SMALLEST)
        return np.where(_DURATION, raw, np.minimum(raw, 1.0))


_DURATION: Final = np.array([figure != "burst_amount" for _, figure in TARGETS])


def _raw(values: Floats, reference: Floats, method: Scaling) -> Floats:
    if method == "maximum":
        return values
    return np.log10(values / reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureScore:
    """Errors of one figure of one resource: over how many runs, mean and median |error| in %, and the NRMSE.

    The NRMSE is the root of the mean squared error over the range of the measured values (maximum − minimum).
    """

    n: int
    mape: float
    median_ape: float
    nrmse: float


def score(predicted: Floats, measured: Floats) -> dict[tuple[str, str], FigureScore]:
    """Return the errors of each target over the runs that have it."""
    found = {}
    for at, name in enumerate(TARGETS):
        known = np.isfinite(measured[:, at])
        if not known.any():
            continue
        real = measured[known, at]
        said = np.nan_to_num(predicted[known, at])
        error = np.abs(said / real - 1.0)
        spread = float(real.max() - real.min()) or float(real.max())
        found[name] = FigureScore(
            n=int(known.sum()),
            mape=100.0 * float(error.mean()),
            median_ape=100.0 * float(np.median(error)),
            nrmse=float(np.sqrt(np.mean((said - real) ** 2))) / spread,
        )
    return found


def spread(predicted: Floats, measured: Floats, *, share: float = 0.9) -> Floats:
    """Return a factor for each target: the ``share`` of the measured values are within it of their predictions."""
    factors = np.full(len(TARGETS), 10.0)
    for at in range(len(TARGETS)):
        known = np.isfinite(measured[:, at])
        if known.any():
            off = np.abs(np.log(np.maximum(predicted[known, at], _SMALLEST) / measured[known, at]))
            factors[at] = np.exp(np.quantile(off, share))
    return factors


def by_resource(scores: Mapping[tuple[str, str], FigureScore]) -> dict[str, float]:
    """Return the mean percentage error of each resource over its three figures."""
    return {
        resource: float(np.mean([scores[resource, f].mape for f in FIGURES if (resource, f) in scores]))
        for resource in RESOURCES
        if any((resource, f) in scores for f in FIGURES)
    }
