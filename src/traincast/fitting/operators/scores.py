"""Errors of a fitted cell on rows that it was not trained on, and the intervals that follow from them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.estimate.operators.cells import ANY, Cell
from traincast.fitting.operators.examples import Rows

Floats = npt.NDArray[np.float64]

FEWEST_OF_A_NAME: Final = 40
"""Validation rows that an operator needs for an interval of its own."""


MOST_ERROR: Final = 1e6
"""Larger errors, in per cent, count as this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors on rows that were not trained on, in per cent."""

    n: int
    mape: float
    median: float
    p90: float
    coverage: float

    @staticmethod
    def of(measured: Floats, said: Floats, interval: Floats) -> Score:
        """Errors of predicted log times ``said`` against ``measured``, and the share inside ``interval`` [row, 2]."""
        if not len(measured):
            return Score(n=0, mape=0.0, median=0.0, p90=0.0, coverage=0.0)
        error = np.minimum(np.abs(np.exp(np.minimum(said - measured, 50.0)) - 1.0) * 100, MOST_ERROR)
        inside = (measured - said >= interval[:, 0]) & (measured - said <= interval[:, 1])
        return Score(
            n=len(measured),
            mape=float(error.mean()),
            median=float(np.median(error)),
            p90=float(np.quantile(error, 0.9)),
            coverage=float(inside.mean()),
        )


def said_of(cell: Cell, rows: Rows) -> Floats:
    """Log of time over roofline that ``cell`` predicts for ``rows``."""
    return cell.says(rows.shapes, rows.found, rows.setting, rows.dtype)


def scores_of(cell: Cell, rows: Rows) -> dict[str, Score]:
    """Errors per operator and over all; rows whose name the cell does not know are left out."""
    if not len(rows):
        return {"all": Score.of(np.zeros(0), np.zeros(0), np.zeros((0, 2)))}
    rows = rows.take(np.flatnonzero(cell.knows(rows.shapes)))
    said = said_of(cell, rows)
    names = np.array(rows.names, dtype=object)
    bounds = np.array([cell.interval.get(n, cell.interval[ANY]) for n in names]).reshape(-1, 2)
    result = {"all": Score.of(rows.target, said, bounds)}
    for name in sorted(set(names)):
        own = names == name
        result[name] = Score.of(rows.target[own], said[own], bounds[own])
    return result


def residual_of(cell: Cell, rows: Rows) -> Floats:
    """Log of measured over predicted time, for each row."""
    return rows.target - said_of(cell, rows)


def mape_of(cell: Cell, rows: Rows) -> float:
    """Mean absolute error of ``cell`` as a share of the measured time; 0 without rows."""
    return float(np.abs(np.expm1(-residual_of(cell, rows))).mean()) if len(rows) else 0.0


def conformal(residual: Floats, names: Collection[str]) -> dict[str, tuple[float, float]]:
    """Intervals that cover 90 % of new rows: quantiles of log(measured / predicted) on held-out rows, by operator.

    Split conformal prediction (Vovk et al.): the level is raised by (n + 1) / n for the n rows it is taken from.
    """

    def bounds(values: Floats) -> tuple[float, float]:
        if not len(values):
            return -0.5, 0.5
        raised = min(1.0, 0.95 * (len(values) + 1) / len(values))
        low, high = np.quantile(np.clip(np.nan_to_num(values), -3.0, 3.0), [1.0 - raised, raised])
        return float(min(low, 0.0)), float(max(high, 0.0))

    labels = np.array(list(names), dtype=object)
    result = {ANY: bounds(residual)}
    for name in sorted(set(labels)):
        own = residual[labels == name]
        if len(own) >= FEWEST_OF_A_NAME:
            result[name] = bounds(own)
    return result
