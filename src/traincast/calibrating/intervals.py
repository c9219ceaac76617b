"""Intervals with known coverage: conformal prediction from errors on runs that a fit had not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

COVERAGE: Final = 0.9
FEWEST: Final = 20
"""With fewer errors than this, an interval is also based on the errors of other clusters."""


def bounds(errors: Sequence[float] | Floats, *, otherwise: tuple[float, float] | None = None) -> tuple[float, float]:
    """Return two factors: in 90 % of cases a run takes between ``low`` and ``high`` times its forecast.

    ``errors`` are logarithms of measured over forecast time on runs that the fit had not seen. Each end leaves out one
    run in twenty, with the correction for a finite sample (split conformal prediction: the ⌈(n + 1)(1 − α)⌉-th
    smallest error). With too few errors for that, the largest error counts. Below :data:`FEWEST` errors, ``otherwise``
    is mixed in; the fewer errors, the larger its share.
    """
    found = np.sort(np.asarray(errors, dtype=np.float64))
    tail = (1.0 - COVERAGE) / 2.0
    if not len(found):
        return otherwise or (1.0, 1.0)
    rank = math.ceil((len(found) + 1) * (1.0 - tail))
    high = found[min(rank, len(found)) - 1]
    low = found[max(len(found) - rank, 0)]
    low, high = min(low, 0.0), max(high, 0.0)
    if otherwise is not None and len(found) < FEWEST:
        share = 1.0 - len(found) / FEWEST
        low = min(low, low + share * (math.log(otherwise[0]) - low))
        high = max(high, high + share * (math.log(otherwise[1]) - high))
    return math.exp(low), math.exp(high)


def crossed(errors: Floats, fold: npt.NDArray[np.int64], *, otherwise: tuple[float, float] | None = None) -> Floats:
    """For each error, :func:`bounds` of the errors in all other folds: one row (low, high) per error."""
    result = np.empty((len(errors), 2))
    for number in np.unique(fold).tolist():
        inside = fold == number
        result[inside] = bounds(errors[~inside], otherwise=otherwise)
    return result
