"""What comes of a table of measured runs: one outcome per row, and a summary per source."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from traincast.errors import TraincastError
from traincast.tables import RowError
from traincast.validating.metrics import f1, summarize
from traincast.validating.tables import Row
from traincast.validating.wrong_units import wrong_memory_unit, wrong_time_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """One measured run and its forecast; times in seconds, memory in bytes.

    A run that was measured not to fit has no measured time; ``fits`` is the forecast's word on it, with
    ``fits_probability``. ``failed_otherwise`` marks a run that failed although another one with no less memory to hold
    ran. ``memory_low`` to ``memory_high`` is the 90 % interval of ``predicted_memory``. ``assumed`` has a sentence for
    everything that the row left open. ``calibrated_by`` names the calibrated cluster whose parameters the forecast used
    ("": none), ``maybe_seen`` says whether that may have been fitted to this very run.
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
    assumed: tuple[str, ...] = ()
    calibrated_by: str = ""
    maybe_seen: bool = False


def kind(sentence: str) -> str:
    """What an assumption is about: its sentence without the value that was taken."""
    return sentence.partition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """All outcomes of a table, in order."""

    rows: tuple[RowOutcome, ...]
    with_memory: bool

    def summary(self) -> dict[str, dict[str, Any]]:
        """Error figures per source and overall (``all``)."""
        groups: dict[str, list[RowOutcome]] = defaultdict(list)
        for row in self.rows:
            groups[row.source].append(row)
        result = {source: self._figures(rows) for source, rows in sorted(groups.items())}
        return {**result, "all": self._figures(self.rows)}

    def _figures(self, rows: Sequence[RowOutcome]) -> dict[str, Any]:
        judged = [
            (r.measured, r.predicted, r.low or 0.0, r.high or 0.0)
            for r in rows
            if r.status == "ok" and r.measured is not None and r.predicted is not None
        ]
        columns = list(zip(*judged, strict=True)) if judged else [(), (), (), ()]
        figures: dict[str, Any] = asdict(summarize(*columns))
        figures["rows"] = len(rows)
        figures["forecast"] = sum(r.status == "ok" for r in rows)
        figures["assumed"] = sum(r.status == "ok" and bool(r.assumed) for r in rows)
        figures["assumptions"] = assumptions(rows)
        figures["maybe_seen"] = sum(r.status == "ok" and r.maybe_seen for r in rows)
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
        return {
            "rows": [asdict(row) for row in self.rows],
            "summary": self.summary(),
            "calibration": self.calibration(),
            "warnings": list(self.warnings()),
        }

    def calibration(self) -> dict[str, Any]:
        """How many forecasts used which calibrated cluster, and how many of those runs it may have been fitted to."""
        used = [row for row in self.rows if row.status == "ok" and row.calibrated_by]
        names = sorted({row.calibrated_by for row in used})
        clusters = [
            {
                "cluster": name,
                "rows": sum(row.calibrated_by == name for row in used),
                "rows_maybe_seen": sum(row.calibrated_by == name and row.maybe_seen for row in used),
            }
            for name in names
        ]
        return {"clusters": clusters, "rows_maybe_seen": sum(row.maybe_seen for row in used)}

    def warnings(self) -> tuple[str, ...]:
        """Sources whose figures look as if they were in another unit, with the guess."""
        groups: dict[str, list[RowOutcome]] = defaultdict(list)
        for row in self.rows:
            groups[row.source].append(row)
        found = []
        for source, rows in sorted(groups.items()):
            pairs = [(r.measured, r.predicted) for r in rows if r.measured and r.predicted]
            memory = [(r.measured_memory, r.predicted_memory) for r in rows if r.measured_memory and r.predicted_memory]
            for guess in (wrong_time_unit(pairs), wrong_memory_unit(memory)):
                found += [f"{source}: {guess}"] if guess else []
        return tuple(found)


def assumptions(rows: Sequence[RowOutcome]) -> dict[str, int]:
    """How many forecast rows had to assume what, the most frequent first."""
    counts = Counter(name for row in rows if row.status == "ok" for name in dict.fromkeys(map(kind, row.assumed)))
    return dict(counts.most_common())


def _fitting(rows: Sequence[RowOutcome]) -> dict[str, float]:
    """How right "fits" is: F1 of those that do not fit and of those that do, and the share of "fits" that failed."""
    said = [r for r in rows if r.fits]
    return {
        "oom_f1": f1([not r.ran for r in rows], [not r.fits for r in rows]),
        "fits_f1": f1([bool(r.ran) for r in rows], [bool(r.fits) for r in rows]),
        "fits_failed": sum(not r.ran for r in said) / len(said) if said else math.nan,
    }


def judge(
    rows: Sequence[Row],
    forecast: Callable[[int, Row], RowOutcome],
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
                RowOutcome(index=index, source=source(row), measured=None, status="skipped", reason=str(error))
            )
        if progress is not None:
            progress(index + 1)
    return Validation(rows=tuple(outcomes), with_memory=with_memory)
