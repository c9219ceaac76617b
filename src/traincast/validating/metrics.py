"""Error figures of forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of ``n`` forecasts.

    ``mape`` and ``median_ape`` are the mean and the median of the absolute error relative to the measurement, in per
    cent. ``bias`` is the median of predicted/measured minus one, in per cent. ``spearman`` is the rank correlation.
    ``coverage_90`` is the share of measurements inside the 90 % interval, from 0 to 1. Without forecasts, all figures
    are NaN.
    """

    n: int
    mape: float
    median_ape: float
    bias: float
    spearman: float
    coverage_90: float


def summarize(
    measured: Sequence[float], predicted: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> Summary:
    """Return the error figures of forecasts, given measurements, forecasts and their 90 % intervals in seconds."""
    truth, guess = np.asarray(measured, dtype=float), np.asarray(predicted, dtype=float)
    if not len(truth):
        return Summary(n=0, mape=np.nan, median_ape=np.nan, bias=np.nan, spearman=np.nan, coverage_90=np.nan)
    error = np.abs(guess / truth - 1) * 100
    return Summary(
        n=len(truth),
        mape=float(error.mean()),
        median_ape=float(np.median(error)),
        bias=float((np.median(guess / truth) - 1) * 100),
        spearman=spearman(truth, guess),
        coverage_90=float(((np.asarray(low) <= truth) & (truth <= np.asarray(high))).mean()),
    )


def spearman(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """Return Spearman's rank correlation; NaN for fewer than two rows or a constant column."""
    if len(a) < 2:
        return float("nan")
    ranks_a, ranks_b = _ranks(a), _ranks(b)
    if ranks_a.std() == 0 or ranks_b.std() == 0:
        return float("nan")
    return float(np.corrcoef(ranks_a, ranks_b)[0, 1])


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the rank of each value; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: npt.NDArray[np.float64] = (ends - (counts - 1) / 2)[inverse]
    return ranks


def f1(actual: Sequence[bool], predicted: Sequence[bool]) -> float:
    """Return the F1 score of a yes/no forecast; NaN if nothing was actually true."""
    both = sum(a and p for a, p in zip(actual, predicted, strict=True))
    said, was = sum(predicted), sum(actual)
    return 2 * both / (said + was) if was else float("nan")
