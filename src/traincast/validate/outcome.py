"""What comes of a table of measured runs: one outcome per row, and a summary per source."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from traincast.errors import TraincastError
from traincast.validate.metrics import f1, summarize
from traincast.validate.tables import Row, RowError


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One measured run and its forecast; times in seconds, memory in bytes.

    A run that was measured not to fit has no measured time; ``fits`` is the forecast's word on it.
    """

    index: int
    source: str
    measured: float | None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    status: Literal["ok", "skipped"] = "ok"
    reason: str = ""
    fits: bool | None = None
    ran: bool | None = None
    measured_memory: float | None = None
    predicted_memory: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """All outcomes of a table, in order."""

    rows: tuple[Outcome, ...]
    with_memory: bool

    def summary(self) -> dict[str, dict[str, Any]]:
        """Error figures per source and overall (``all``)."""
        groups: dict[str, list[Outcome]] = defaultdict(list)
        for row in self.rows:
            groups[row.source].append(row)
        result = {source: self._figures(rows) for source, rows in sorted(groups.items())}
        return {**result, "all": self._figures(self.rows)}

    def _figures(self, rows: Sequence[Outcome]) -> dict[str, Any]:
        judged = [
            (r.measured, r.predicted, r.low or 0.0, r.high or 0.0)
            for r in rows
            if r.status == "ok" and r.measured is not None and r.predicted is not None
        ]
        columns = list(zip(*judged, strict=True)) if judged else [(), (), (), ()]
        figures: dict[str, Any] = asdict(summarize(*columns))
        figures["rows"] = len(rows)
        figures["forecast"] = sum(r.status == "ok" for r in rows)
        if self.with_memory:
            known = [r for r in rows if r.status == "ok" and r.ran is not None and r.fits is not None]
            figures["oom_f1"] = f1([not r.ran for r in known], [not r.fits for r in known])
            memory = [
                abs(r.predicted_memory / r.measured_memory - 1) * 100
                for r in rows
                if r.status == "ok" and r.measured_memory and r.predicted_memory
            ]
            figures["memory_mape"] = sum(memory) / len(memory) if memory else math.nan
        return figures

    def as_dict(self) -> dict[str, Any]:
        """Rows and summary as plain values, for JSON."""
        return {"rows": [asdict(row) for row in self.rows], "summary": self.summary()}


def judge(
    rows: Sequence[Row],
    forecast: Callable[[int, Row], Outcome],
    *,
    source: Callable[[Row], str],
    with_memory: bool,
    progress: Callable[[int], None] | None = None,
) -> Validation:
    """Forecast every row; one that cannot be is skipped with its reason, never dropped."""
    outcomes = []
    for index, row in enumerate(rows):
        try:
            outcomes.append(forecast(index, row))
        except (RowError, TraincastError) as error:
            outcomes.append(
                Outcome(index=index, source=source(row), measured=None, status="skipped", reason=str(error))
            )
        if progress is not None:
            progress(index + 1)
    return Validation(rows=tuple(outcomes), with_memory=with_memory)
