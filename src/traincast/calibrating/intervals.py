"""Intervals that cover: conformal prediction from errors on runs that a fit had not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

COVERAGE: Final = 0.9
FEWEST: Final = 20
"""Errors below which an interval is held by what other clusters showed."""


def bounds(errors: Sequence[float] | Floats, *, otherwise: tuple[float, float] | None = None) -> tuple[float, float]:
    """Between what and what times its forecast a run ends in 90 % of cases.

    ``errors`` are logarithms of measured over forecast on runs not seen. Each end leaves out one in twenty, counted so
    that the next error is covered as well (split conformal prediction: the ⌈(n + 1)(1 − α)⌉-th smallest). Where
    there are too few for that, the widest error counts, and ``otherwise`` beside it, the more the fewer there are.
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
    """For every error, the bounds that the errors of all other folds give: one row of (low, high) each."""
    result = np.empty((len(errors), 2))
    for number in np.unique(fold).tolist():
        inside = fold == number
        result[inside] = bounds(errors[~inside], otherwise=otherwise)
    return result
