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

    A run that was measured not to fit has no measured time; ``fits`` is the forecast's word on it, with
    ``fits_probability``. ``failed_otherwise`` marks a run that failed although another one with no less memory to hold
    ran. ``memory_low`` to ``memory_high`` is the 90 % interval of ``predicted_memory``.
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
    memory_low: float | None = None
    memory_high: float | None = None
    fits_probability: float | None = None
    failed_otherwise: bool = False


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
            figures |= _fitting(known)
            figures["failed_otherwise"] = sum(r.failed_otherwise for r in known)
            figures["memory_failures"] = _fitting([r for r in known if not r.failed_otherwise])
            memory = [
                abs(r.predicted_memory / r.measured_memory - 1) * 100
                for r in rows
                if r.status == "ok" and r.measured_memory and r.predicted_memory
            ]
            figures["memory_mape"] = sum(memory) / len(memory) if memory else math.nan
            inside = [
                r.memory_low <= r.measured_memory <= r.memory_high
                for r in rows
                if r.status == "ok" and r.measured_memory and r.memory_low is not None and r.memory_high is not None
            ]
            figures["memory_coverage_90"] = sum(inside) / len(inside) if inside else math.nan
        return figures

    def as_dict(self) -> dict[str, Any]:
        """Rows and summary as plain values, for JSON."""
        return {"rows": [asdict(row) for row in self.rows], "summary": self.summary()}


def _fitting(rows: Sequence[Outcome]) -> dict[str, float]:
    """How right "fits" is: F1 of those that do not fit and of those that do, and the share of "fits" that failed."""
    said = [r for r in rows if r.fits]
    return {
        "oom_f1": f1([not r.ran for r in rows], [not r.fits for r in rows]),
        "fits_f1": f1([bool(r.ran) for r in rows], [bool(r.fits) for r in rows]),
        "fits_failed": sum(not r.ran for r in said) / len(said) if said else math.nan,
    }


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
