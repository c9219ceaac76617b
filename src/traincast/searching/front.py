"""Which strategies no other one beats, and what each axis decides."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traincast.searching.columns import StrategyColumns
from traincast.searching.space import AXES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


def pareto_rows(values: Floats) -> Ints:
    """Rows of ``values`` (one column per objective, less is better) that no other row beats in one and equals in all.

    Of equal rows the first stands for all. Rows come back in the order of the first objective.
    """
    order = np.lexsort(values.T[::-1])
    kept: list[int] = []
    for row in order.tolist():
        if not kept or not (values[kept] <= values[row]).all(axis=1).any():
            kept.append(row)
    return np.array(kept, dtype=np.intp)


def influence(columns: StrategyColumns, objective: Floats) -> dict[str, dict[str, float]]:
    """For each axis that takes more than one value, the least of the objective with each of them."""
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
