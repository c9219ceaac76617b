"""The figures of many runs as columns, and how predictions of them are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.estimate.inspector.amounts import Floats
from traincast.estimate.inspector.communities import Ints
from traincast.estimate.inspector.targets import PATTERNS, SMALLEST, TARGETS
from traincast.estimate.resource_use import FIGURES, RESOURCES, ResourceUse


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
                    values[number, 3 * at + place] = max(SMALLEST, value)
    return UseColumns(values=values, pattern=pattern)


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
            off = np.abs(np.log(np.maximum(predicted[known, at], SMALLEST) / measured[known, at]))
            factors[at] = np.exp(np.quantile(off, share))
    return factors


def by_resource(scores: Mapping[tuple[str, str], FigureScore]) -> dict[str, float]:
    """Return the mean percentage error of each resource over its three figures."""
    return {
        resource: float(np.mean([scores[resource, f].mape for f in FIGURES if (resource, f) in scores]))
        for resource in RESOURCES
        if any((resource, f) in scores for f in FIGURES)
    }
