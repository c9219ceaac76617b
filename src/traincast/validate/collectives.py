"""Measured collectives (``validate collectives``): each row runs on the cluster that its own columns describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from traincast.estimate import AnalyticalCostModel, learned_cost_model
from traincast.estimate.collective_features import Condition
from traincast.estimate.learned_collectives import CollectiveModel
from traincast.fit.collective_table import CollectiveTable, read_collectives
from traincast.validate.outcome import Outcome, Validation


def validate_collectives(
    path: Path,
    model: CollectiveModel | None = None,
    *,
    bundles: Sequence[Path] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Estimate every row of a table of measured collectives and compare.

    Without ``model``, the first of ``bundles`` or the shipped one is asked. What it has not learned is estimated
    analytically, and the row's reason says so.
    Rows with a problem are skipped for it.
    """
    table = read_collectives(path)
    if model is None:
        model = next(iter(learned_cost_model(bundles).collectives), None)
    outcomes = [
        Outcome(index=p.row, source=p.source, measured=None, status="skipped", reason=p.reason) for p in table.problems
    ]
    for number in range(len(table.clusters)):
        outcomes += _on_one_cluster(table, np.flatnonzero(table.cluster == number), number, model)
        if progress is not None:
            progress(min(len(outcomes), len(table) + len(table.problems)), len(table) + len(table.problems))
    return Validation(rows=tuple(sorted(outcomes, key=lambda row: row.index)), with_memory=False)


def _on_one_cluster(
    table: CollectiveTable, rows: np.ndarray[tuple[int], np.dtype[np.intp]], number: int, model: CollectiveModel | None
) -> list[Outcome]:
    if not len(rows):
        return []
    cluster, works = table.clusters[number], table.works(rows)
    analytical = AnalyticalCostModel().estimate(works, cluster)
    seconds, low, high = analytical.seconds, analytical.low, analytical.high
    learned = np.zeros(len(rows), dtype=bool)
    if model is not None:
        conditions: list[Condition] = [table.conditions[i] for i in table.condition[rows]]
        found = model.estimate(works, cluster, conditions=conditions)
        learned = found.learned
        seconds = np.where(learned, found.seconds, seconds)
        low, high = np.where(learned, found.low, low), np.where(learned, found.high, high)
    columns = (table.index[rows], table.source[rows], table.seconds[rows], seconds, low, high, learned)
    return [
        Outcome(
            index=index,
            source=source,
            measured=measured,
            predicted=predicted,
            low=least,
            high=most,
            reason="" if known else "estimated analytically: this route was not learned" if model is not None else "",
        )
        for index, source, measured, predicted, least, most, known in zip(*(c.tolist() for c in columns), strict=True)
    ]
