"""``validate operators``: estimates of measured operators, each on the device that its row names."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.brief import Brief, BriefTable
from traincast.cluster import Cluster, Device, Link
from traincast.estimate import CostModel, LearnedCostModel, learned_cost_model
from traincast.estimate.coverage import check_used
from traincast.files import finite
from traincast.fitting.rows.dataset import OperatorTable, filters, read_operators
from traincast.fitting.rows.parts import parts_of
from traincast.fitting.rows.problems import RowProblem
from traincast.graph import Operator
from traincast.validating.metrics import summarize
from traincast.validating.outcome import RowOutcome, brief_of

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_BATCH: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OperatorValidation(Brief):
    """A :class:`~traincast.validating.outcome.Validation` of operators that holds millions of rows, as columns.

    Times are in seconds. ``low`` to ``high`` is the 90 % interval of ``predicted``.
    """

    table: OperatorTable
    predicted: Floats
    low: Floats
    high: Floats
    with_memory: bool = False

    def brief(self) -> BriefTable:
        """Return the errors of each source."""
        return brief_of(self.summary())

    @property
    def rows(self) -> Iterator[RowOutcome]:
        """One outcome for each row, in the order of the file; a row with a problem is skipped with the reason."""
        skipped = iter(self.table.problems)
        problem = next(skipped, None)
        columns = (self.table.index, self.table.source, self.table.seconds, self.predicted, self.low, self.high)
        for index, source, measured, predicted, low, high in zip(*(c.tolist() for c in columns), strict=True):
            while problem is not None and problem.row < index:
                yield _skipped(problem)
                problem = next(skipped, None)
            yield RowOutcome(index=index, source=source, measured=measured, predicted=predicted, low=low, high=high)
        if problem is not None:
            yield _skipped(problem)
            yield from map(_skipped, skipped)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return the error figures of each source, and of all rows under ``all``."""
        left_out: dict[str, int] = {}
        for problem in self.table.problems:
            left_out[problem.source] = left_out.get(problem.source, 0) + 1
        sources = sorted({*self.table.source.tolist(), *left_out})
        figures = {
            source: self._figures(np.flatnonzero(self.table.source == source), left_out.get(source, 0))
            for source in sources
        }
        return {**figures, "all": self._figures(np.arange(len(self.table)), len(self.table.problems))}

    def warnings(self) -> tuple[str, ...]:
        """Return nothing: rows of operators in another unit are skipped one by one, with the reason."""
        return ()

    def cells(self) -> list[dict[str, Any]]:
        """Return the error figures of each source, operation and phase, of the rows that were estimated."""
        names, number = np.unique([op.name for op in self.table.configurations], return_inverse=True)
        name = number[self.table.configuration]
        sources, source = np.unique(self.table.source, return_inverse=True)
        cell = source * len(names) + name
        order = np.argsort(cell, kind="stable")
        edges = np.flatnonzero(np.diff(cell[order], prepend=-1, append=-1))
        result = []
        for begin, end in pairwise(edges.tolist()):
            rows = order[begin:end]
            op, _, phase = str(names[name[rows[0]]]).rpartition(".")
            where = {"source": str(sources[source[rows[0]]]), "op": op or phase, "phase": phase if op else ""}
            result.append({**where, **self._figures(rows, 0)})
        return result

    def _figures(self, rows: Ints, skipped: int) -> dict[str, Any]:
        columns = (self.table.seconds, self.predicted, self.low, self.high)
        figures = asdict(summarize(*(c[rows].tolist() for c in columns)))
        return {**figures, "rows": len(rows) + skipped, "forecast": len(rows)}

    def to_dict(self) -> dict[str, Any]:
        """Return rows, summary and cells as plain values, for JSON."""
        return {"rows": [_entry_of(row) for row in self.rows], "summary": self.summary(), "cells": self.cells()}

    def json_lines(self) -> Iterator[str]:
        """Yield the lines of one JSON document with the same content, without holding all of it in memory."""
        yield '{"rows": ['
        last = ""
        for row in self.rows:
            if last:
                yield f"{last},"
            last = json.dumps(_entry_of(row), ensure_ascii=False)
        yield last
        yield f'], "summary": {json.dumps(finite(self.summary()), ensure_ascii=False)},'
        yield f'"cells": {json.dumps(finite(self.cells()), ensure_ascii=False)}}}'


def validate_operators(
    path: Path,
    *,
    model_for: Callable[[str], CostModel] | None = None,
    bundles: Sequence[Path] = (),
    rows: int | None = None,
    where: Mapping[str, Collection[str]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> OperatorValidation:
    """Estimate every row of a table of measured operators and compare the times.

    ``model_for`` returns the cost model for a framework. Without it, each row is estimated by the first of ``bundles``,
    and then of the shipped bundles, that knows it; models fitted to the row's own framework come first. A cost model
    may have a method ``knows(operators, cluster)`` that says which operators it estimates as a whole; the others are
    estimated as the sum of their parts.

    ``rows`` takes an even sample of this many rows. ``where`` takes the rows with one of the given values in each
    column, which is ``op``, ``phase``, ``dtype``, ``source``, ``device`` or ``framework``.
    """
    chosen = filters(where or {})
    learned = learned_cost_model(bundles)
    table = read_operators(path, rows=rows, known=learned.devices, **chosen)
    _check_bundles(learned, table)
    predicted = _predictions(table, model_for or (lambda framework: replace(learned, framework=framework)), progress)
    return OperatorValidation(table=table, predicted=predicted[0], low=predicted[1], high=predicted[2])


def _check_bundles(learned: LearnedCostModel, table: OperatorTable) -> None:
    """Refuse a bundle that knows no operator of the table on any of its devices."""
    places = [one_device(device) for device in table.devices.values()]
    used = set()
    for bundle in learned.bundles:
        alone = replace(learned, bundles=(bundle,))
        settings = sorted(set(table.framework.tolist()))
        models = [replace(alone, framework=framework) for framework in settings]
        if any(model.knows(table.configurations, place).any() for place in places for model in models):
            used.add(str(bundle.path))
    check_used(learned, used, table.configurations, places)


def _predictions(
    table: OperatorTable, model_for: Callable[[str], CostModel], progress: Callable[[int, int], None] | None
) -> Floats:
    """Return seconds, low and high of every row, estimated in batches of configurations on one device each."""
    models = {framework: model_for(framework) for framework in sorted(set(table.framework.tolist()))}
    distinct = list({id(model): model for model in models.values()}.values())
    number = {framework: distinct.index(model) for framework, model in models.items()}
    devices = list(table.devices.values())
    place = {device.name: i for i, device in enumerate(devices)}
    setting = np.array([place[device.name] for device in table.device], dtype=np.int64) * len(distinct)
    setting += np.array([number[framework] for framework in table.framework], dtype=np.int64)

    result = np.zeros((3, len(table)))
    order = np.lexsort((setting, table.configuration // _BATCH))
    batch = table.configuration[order] // _BATCH
    edges = np.flatnonzero(np.diff(batch, prepend=-1) | np.diff(setting[order], prepend=-1))
    parts: dict[int, tuple[Operator, ...]] = {}
    for begin, end in pairwise([*edges.tolist(), len(order)]):
        rows = order[begin:end]
        if begin == 0 or batch[begin] != batch[begin - 1]:
            parts = {}
        device, model = divmod(int(setting[rows[0]]), len(distinct))
        numbers, back = np.unique(table.configuration[rows], return_inverse=True)
        operators = [table.configurations[i] for i in numbers.tolist()]
        for i, op in zip(numbers.tolist(), operators, strict=True):
            if i not in parts:
                parts[i] = parts_of(op)
        cluster = one_device(devices[device])
        leaves = [parts[i] for i in numbers.tolist()]
        result[:, rows] = _estimated(operators, leaves, distinct[model], cluster)[:, back]
        if progress is not None:
            progress(end, len(order))
    return result


def _estimated(
    operators: Sequence[Operator], parts: Sequence[tuple[Operator, ...]], model: CostModel, cluster: Cluster
) -> Floats:
    """Return seconds, low and high of each operator: as a whole if the model knows it, else as the sum of its parts."""
    knows = getattr(model, "knows", None)
    whole = [False] * len(operators) if knows is None else knows(operators, cluster)
    works = [(op,) if known else leaves for op, leaves, known in zip(operators, parts, whole, strict=True)]
    owner = np.repeat(np.arange(len(works)), [len(w) for w in works])
    estimates = model.estimate([work for each in works for work in each], cluster)
    columns = (estimates.seconds, estimates.low, estimates.high)
    return np.stack([np.bincount(owner, weights=column, minlength=len(works)) for column in columns])


@lru_cache(maxsize=256)
def one_device(device: Device) -> Cluster:
    """Return a cluster that consists of one ``device``."""
    link = Link(name="none", bandwidth=1e9, latency_s=1e-6)
    return Cluster(
        name=device.name,
        device=device,
        num_nodes=1,
        devices_per_node=1,
        intra_node=link,
        inter_node=link,
        nics_per_node=1,
        intra_topology="none",
        inter_topology="none",
    )


def _skipped(problem: RowProblem) -> RowOutcome:
    return RowOutcome.skipped(problem.row, source=problem.source, reason=problem.reason)


def _entry_of(row: RowOutcome) -> dict[str, Any]:
    return {
        "index": row.index,
        "source": row.source,
        "measured": row.measured,
        "predicted": row.predicted,
        "low": row.low,
        "high": row.high,
        "status": row.status,
        "reason": row.reason,
    }
