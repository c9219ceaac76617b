"""``validate collectives``: estimates of measured collectives, each on the cluster that its row describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.estimate import AnalyticalCostModel, learned_cost_model
from traincast.estimate.collectives.features import KINDS
from traincast.estimate.collectives.learned import CollectiveModel
from traincast.estimate.coverage import check_used
from traincast.fitting.collectives.adapt import adapted_system
from traincast.fitting.collectives.prior import choose_points
from traincast.fitting.collectives.table import CollectiveTable, read_collectives
from traincast.validating.outcome import RowOutcome, RowValidation

Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.intp]

USED: Final = "used to adapt"
"""The reason of a row that is not judged, because it is one of its system's own points."""
_ANALYTICAL: Final = "estimated analytically: this route was not learned"
_UNMEASURED: Final = "estimated from other systems: this one was not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forecasts:
    """Estimates of all rows of a table, filled in step by step; ``settled`` rows are not estimated again."""

    seconds: Floats
    low: Floats
    high: Floats
    reason: list[str]
    settled: npt.NDArray[np.bool_]

    def fill(self, rows: Rows, seconds: Floats, low: Floats, high: Floats, reason: str) -> None:
        self.seconds[rows], self.low[rows], self.high[rows] = seconds, low, high
        for i in rows.tolist():
            self.reason[i] = reason


def validate_collectives(
    path: Path,
    model: CollectiveModel | None = None,
    *,
    bundles: Sequence[Path] = (),
    own_points: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> RowValidation:
    """Estimate every row of a table of measured collectives and compare the times.

    Each row is estimated by the first of ``bundles``, and then of the shipped bundles, that was fitted to its route;
    ``model`` replaces them all. A system that no bundle was fitted to is estimated from what is known of other systems,
    and its row's reason says so. Of each of these systems, ``own_points`` rows are chosen evenly over sizes and ranks,
    whatever their times; the estimates are adapted to them, and they are skipped. Without a bundle that knows other
    systems, the estimate is analytical. A bundle that covers no row is refused. Rows with a problem are skipped with
    the reason.
    """
    if own_points < 0:
        raise RequestError(f"own_points is {own_points}: expected 0 or more")
    table = read_collectives(path)
    learned = learned_cost_model(bundles)
    models = learned.collectives if model is None else (model,)
    count, total = len(table), len(table) + len(table.problems)
    found = _Forecasts(
        seconds=np.zeros(count),
        low=np.zeros(count),
        high=np.zeros(count),
        reason=[""] * count,
        settled=np.zeros(count, dtype=bool),
    )
    used: set[str] = set()
    done = len(table.problems)
    for number in range(len(table.clusters)):
        rows = np.flatnonzero(table.cluster == number)
        _by_curves(table, rows, models, found, used)
        done += len(rows)
        if progress is not None:
            progress(done, total)
    mine = _by_other_systems(table, models, found, own_points, used)
    if model is None:
        check_used(learned, used, table.works(range(count)), table.clusters)
    outcomes = [RowOutcome.skipped(p.row, source=p.source, reason=p.reason) for p in table.problems]
    outcomes += [_outcome(table, i, found, used_to_adapt=i in mine) for i in range(count)]
    return RowValidation(rows=tuple(sorted(outcomes, key=lambda row: row.index)), with_memory=False)


def _by_curves(
    table: CollectiveTable,
    rows: Rows,
    models: Sequence[CollectiveModel],
    found: _Forecasts,
    used: set[str],
) -> None:
    """Estimate the rows of one cluster, each by the first of ``models`` that knows its route.

    A row is settled if the user named this model, or if it was fitted to the row's own system. The paths of the models
    that estimated any row are added to ``used``.
    """
    if not len(rows):
        return
    cluster, works = table.clusters[table.cluster[rows[0]]], table.works(rows)
    analytical = AnalyticalCostModel().estimate(works, cluster)
    found.fill(rows, analytical.seconds, analytical.low, analytical.high, _ANALYTICAL if models else "")
    learned = np.zeros(len(rows), dtype=bool)
    conditions = [table.conditions[i] for i in table.condition[rows]]
    for model in models:
        estimate = model.estimate(works, cluster, conditions=conditions)
        new = estimate.learned & ~learned
        found.fill(rows[new], estimate.seconds[new], estimate.low[new], estimate.high[new], "")
        learned |= new
        if new.any():
            used.add(str(model.path))
        found.settled[rows] |= new & (model.given or model.prior is None or _has_systems(model, table, rows))


def _has_systems(model: CollectiveModel, table: CollectiveTable, rows: Rows) -> npt.NDArray[np.bool_]:
    """Whether the curves of ``model`` were fitted to the system of each row, on its route."""
    pairs = list(zip(table.system[rows].tolist(), table.route[rows].tolist(), strict=True))
    known = {pair: model.has_system(pair[0], table.routes[pair[1]]) for pair in set(pairs)}
    return np.array([known[pair] for pair in pairs], dtype=bool)


def _by_other_systems(
    table: CollectiveTable, models: Sequence[CollectiveModel], found: _Forecasts, own_points: int, used: set[str]
) -> set[int]:
    """Estimate the systems without a fit of their own, adapted to some of their rows; return these rows."""
    model = next((m for m in models if m.prior is not None and m.adapted is None), None)
    mine: set[int] = set()
    if model is None or model.prior is None:
        return mine
    library = np.array([table.conditions[i].is_library for i in table.condition.tolist()], dtype=bool)
    foreign = ~found.settled & library
    for system in sorted(set(table.system[foreign].tolist())):
        rows = np.flatnonzero(foreign & (table.system == system))
        named = [_curve_name(table, i) for i in rows.tolist()]
        chosen = rows[choose_points(named, np.log2(table.nbytes[rows]), own_points)] if own_points else rows[:0]
        mine |= set(chosen.tolist())
        adapted = adapted_system(table.take(chosen), model.prior, covers_all=True)
        reason = f"adapted to {len(chosen)} points of its system" if len(chosen) else _UNMEASURED
        for number in sorted(set(table.cluster[rows].tolist())):
            here = rows[table.cluster[rows] == number]
            conditions = [table.conditions[i] for i in table.condition[here].tolist()]
            estimate = adapted.estimate(table.works(here), table.clusters[number], conditions=conditions)
            found.fill(here, estimate.seconds, estimate.low, estimate.high, reason)
        used.add(str(model.path))
    return mine


def _curve_name(table: CollectiveTable, i: int) -> tuple[str, str, int, int, str]:
    """What the rows of one curve have in common."""
    condition = table.conditions[table.condition[i]]
    return (
        KINDS[table.kind[i]],
        table.routes[table.route[i]].key,
        int(table.ranks[i]),
        int(table.nodes[i]),
        f"{condition.family} {condition.pattern}",
    )


def _outcome(table: CollectiveTable, i: int, found: _Forecasts, *, used_to_adapt: bool) -> RowOutcome:
    index, source = int(table.index[i]), str(table.source[i])
    if used_to_adapt:
        return RowOutcome.skipped(index, source=source, reason=USED)
    return RowOutcome(
        index=index,
        source=source,
        measured=float(table.seconds[i]),
        predicted=float(found.seconds[i]),
        low=float(found.low[i]),
        high=float(found.high[i]),
        reason=found.reason[i],
    )
