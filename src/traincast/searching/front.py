"""The Pareto front of strategies, and the influence of each axis on the objective."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traincast.searching.bulk.columns import StrategyColumns
from traincast.searching.space import AXES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


def pareto_rows(values: Floats) -> Ints:
    """Return the Pareto-optimal rows of ``values``: one column per objective, less is better.

    A row is left out if another is at least as good in all columns. Of equal rows, the first is kept. The result is
    sorted by the first objective.
    """
    left = np.lexsort(values.T[::-1])
    kept: list[int] = []
    while len(left):
        first, left = left[0], left[1:]
        kept.append(int(first))
        left = left[(values[left] < values[first]).any(axis=1)]
    return np.array(kept, dtype=np.intp)


def influence(columns: StrategyColumns, objective: Floats) -> dict[str, dict[str, float]]:
    """Return, for each axis with more than one value, the least objective with each value."""
    found: dict[str, dict[str, float]] = {}
    for name in AXES:
        values = columns.cut > 0 if name == "cut" else getattr(columns, name)
        each, where = np.unique(values, return_index=True)
        if len(each) < 2:
            continue
        best = [float(objective[values == value].min(initial=np.inf)) for value in each]
        found[name] = {
            str(columns.value(name, int(at))): least
            for at, least in zip(where, best, strict=True)
            if np.isfinite(least)
        }
    return found
