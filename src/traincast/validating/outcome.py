"""The result of a validation: one outcome for each row, and error figures for each source."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from traincast.brief import Brief, BriefTable
from traincast.measured import count_assumptions
from traincast.measured.wrong_units import wrong_memory_unit, wrong_time_unit
from traincast.tables import to_frame
from traincast.validating.metrics import f1, summarize

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """One measured run and its forecast; times in seconds, memory in bytes.

    ``measured`` and ``predicted`` are times; a run that failed has no measured time. ``low`` to ``high`` is the 90 %
    interval of ``predicted``, ``memory_low`` to ``memory_high`` that of ``predicted_memory``. ``memory_kind`` says how
    memory was counted: ``allocated``, ``reserved`` or ``nvidia-smi`` ("": as the runtime reports). ``fits`` says if
    the forecast fits into memory, with ``fits_probability``; ``ran`` says whether the run did.
    ``failed_otherwise`` marks a run that failed although another run that needs at least as much memory succeeded.
    ``assumed`` has one sentence for each thing that the row did not state. ``calibrated_by`` names the calibrated
    cluster whose parameters the forecast used ("": none), and ``maybe_seen`` says whether these may have been fitted
    to this very run. ``reason`` says why a row was skipped, or what limits its forecast.
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
    memory_kind: str = ""
    fits_probability: float | None = None
    failed_otherwise: bool = False
    assumed: tuple[str, ...] = ()
    calibrated_by: str = ""
    maybe_seen: bool = False

    @classmethod
    def skipped(cls, index: int, *, source: str, reason: str) -> RowOutcome:
        """Return the outcome of a row that could not be forecast."""
        return cls(index=index, source=source, measured=None, status="skipped", reason=reason)


_SOURCES_SHOWN: Final = 20


def brief_of(summary: Mapping[str, Mapping[str, Any]]) -> BriefTable:
    """Return the errors of all rows and of the first sources."""
    shown = ["all", *(source for source in summary if source != "all")][: _SOURCES_SHOWN + 1]
    rows = [
        (source, f"{found['n']:,}", *(_percent(found[name]) for name in ("median_ape", "mape", "bias")))
        for source, found in ((source, summary[source]) for source in shown)
    ]
    more = f", the first {_SOURCES_SHOWN}" if len(summary) > _SOURCES_SHOWN + 1 else ""
    columns = ("source", "rows", "median error", "mean error", "bias")
    return BriefTable(f"forecasts against measurements of {len(summary) - 1} sources{more}", rows, columns)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


class Validation(Protocol):
    """Forecasts compared with a table of measurements: what :func:`traincast.validating.validate.validate` returns."""

    @property
    def rows(self) -> Iterable[RowOutcome]:
        """One outcome for each row of the table, in its order."""

    @property
    def with_memory(self) -> bool:
        """Whether memory was compared as well as time."""

    def summary(self) -> dict[str, dict[str, Any]]:
        """Error figures of each source, and of all rows under ``all``."""

    def warnings(self) -> tuple[str, ...]:
        """One sentence for each source whose figures look as if they were in another unit."""

    def to_dict(self) -> dict[str, Any]:
        """Rows and figures as plain values, for JSON."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RowValidation(Brief):
    """A :class:`Validation` that holds all outcomes of a table, in its order."""

    rows: tuple[RowOutcome, ...]
    with_memory: bool

    def brief(self) -> BriefTable:
        """Return the errors of each source."""
        return brief_of(self.summary())

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return the error figures of each source, and of all rows under ``all``."""
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
        figures["assumptions"] = count_assumptions(r.assumed for r in rows if r.status == "ok")
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
            figures["memory_median_ape"] = statistics.median(memory) if memory else math.nan
            inside = [
                r.memory_low <= r.measured_memory <= r.memory_high
                for r in rows
                if r.status == "ok" and r.measured_memory and r.memory_low is not None and r.memory_high is not None
            ]
            figures["memory_coverage_90"] = sum(inside) / len(inside) if inside else math.nan
        return figures

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas table."""
        return to_frame(map(asdict, self.rows))

    def to_dict(self) -> dict[str, Any]:
        """Return rows and figures as plain values, for JSON."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "summary": self.summary(),
            "calibration": self.calibration(),
            "warnings": list(self.warnings()),
        }

    def calibration(self) -> dict[str, Any]:
        """Count the forecasts that used each calibrated cluster, and those of runs that it may have been fitted to."""
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
        """Return one sentence for each source whose figures look as if they were in another unit."""
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


def _fitting(rows: Sequence[RowOutcome]) -> dict[str, float]:
    """Judge the forecast of "fits".

    Returns the F1 score of "does not fit", the F1 score of "fits", and the share of runs forecast to fit that failed.
    """
    said = [r for r in rows if r.fits]
    return {
        "oom_f1": f1([not r.ran for r in rows], [not r.fits for r in rows]),
        "fits_f1": f1([bool(r.ran) for r in rows], [bool(r.fits) for r in rows]),
        "fits_failed": sum(not r.ran for r in said) / len(said) if said else math.nan,
    }
