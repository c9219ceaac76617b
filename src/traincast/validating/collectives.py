"""``validate collectives``: estimates of measured collectives, each on the cluster that its row describes."""

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
from traincast.validating.outcome import RowOutcome, RowValidation


def validate_collectives(
    path: Path,
    model: CollectiveModel | None = None,
    *,
    bundles: Sequence[Path] = (),
    progress: Callable[[int, int], None] | None = None,
) -> RowValidation:
    """Estimate every row of a table of measured collectives and compare the times.

    Each row is estimated by the first of ``bundles``, and then of the shipped bundles, that was fitted to its route;
    ``model`` replaces them all. A route that none was fitted to is estimated analytically, and the row's reason says
    so. A bundle that covers no row is refused. Rows with a problem are skipped with the reason.
    """
    table = read_collectives(path)
    learned = learned_cost_model(bundles)
    models = learned.collectives if model is None else (model,)
    used: set[str] = set()
    outcomes = [RowOutcome.skipped(p.row, source=p.source, reason=p.reason) for p in table.problems]
    for number in range(len(table.clusters)):
        outcomes += _on_one_cluster(table, np.flatnonzero(table.cluster == number), number, models, used)
        if progress is not None:
            progress(min(len(outcomes), len(table) + len(table.problems)), len(table) + len(table.problems))
    if model is None:
        check_used(learned, used, table.works(range(len(table))), table.clusters)
    return RowValidation(rows=tuple(sorted(outcomes, key=lambda row: row.index)), with_memory=False)


def _on_one_cluster(
    table: CollectiveTable,
    rows: npt.NDArray[np.intp],
    number: int,
    models: Sequence[CollectiveModel],
    used: set[str],
) -> list[RowOutcome]:
    """Estimate the rows of one cluster, each by the first of ``models`` that knows its route.

    The paths of the models that estimated any row are added to ``used``.
    """
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
