"""Measured collectives (``validate collectives``): each row runs on the cluster that its own columns describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from traincast.estimate import AnalyticalCostModel, learned_cost_model
from traincast.estimate.collective_features import Condition
from traincast.estimate.coverage import check_used
from traincast.estimate.learned_collectives import CollectiveModel
from traincast.fitting.collective_table import CollectiveTable, read_collectives
from traincast.validating.outcome import RowOutcome, Validation


def validate_collectives(
    path: Path,
    model: CollectiveModel | None = None,
    *,
    bundles: Sequence[Path] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Estimate every row of a table of measured collectives and compare.

    Without ``model``, the ``bundles`` and then the shipped one are asked in this order; a bundle that covers no row is
    refused. What none has learned is estimated analytically, and the row's reason says so. Rows with a problem are
    skipped for it.
    """
    table = read_collectives(path)
    learned = learned_cost_model(bundles)
    models = learned.collectives if model is None else (model,)
    used: set[str] = set()
    outcomes = [
        RowOutcome(index=p.row, source=p.source, measured=None, status="skipped", reason=p.reason)
        for p in table.problems
    ]
    for number in range(len(table.clusters)):
        outcomes += _on_one_cluster(table, np.flatnonzero(table.cluster == number), number, models, used)
        if progress is not None:
            progress(min(len(outcomes), len(table) + len(table.problems)), len(table) + len(table.problems))
    if model is None:
        check_used(learned, used, table.works(range(len(table))), table.clusters)
    return Validation(rows=tuple(sorted(outcomes, key=lambda row: row.index)), with_memory=False)


def _on_one_cluster(
    table: CollectiveTable,
    rows: npt.NDArray[np.intp],
    number: int,
    models: Sequence[CollectiveModel],
    used: set[str],
) -> list[RowOutcome]:
    """The rows of one cluster, each by the first of ``models`` that has learned it; those that speak are ``used``."""
    if not len(rows):
        return []
    cluster, works = table.clusters[number], table.works(rows)
    analytical = AnalyticalCostModel().estimate(works, cluster)
    seconds, low, high = analytical.seconds, analytical.low, analytical.high
    learned = np.zeros(len(rows), dtype=bool)
    conditions: list[Condition] = [table.conditions[i] for i in table.condition[rows]]
    for model in models:
        found = model.estimate(works, cluster, conditions=conditions)
        new = found.learned & ~learned
        seconds = np.where(new, found.seconds, seconds)
        low, high = np.where(new, found.low, low), np.where(new, found.high, high)
        learned |= new
        if new.any():
            used.add(str(model.path))
    columns = (table.index[rows], table.source[rows], table.seconds[rows], seconds, low, high, learned)
    return [
        RowOutcome(
            index=index,
            source=source,
            measured=measured,
            predicted=predicted,
            low=least,
            high=most,
            reason="" if known else "estimated analytically: this route was not learned" if models else "",
        )
        for index, source, measured, predicted, least, most, known in zip(*(c.tolist() for c in columns), strict=True)
    ]
