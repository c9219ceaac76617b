"""Sections of docs/accuracy.md on memory and on single rows: the worst, what they leave open, those skipped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from benchmarks import figures, words
from benchmarks.figures import TABLES, Row, by_source
from benchmarks.markdown import number, percent, prose, seconds, share, table
from benchmarks.worst import Reasons, worst
from traincast.measured import assumption_kind, count_assumptions

_WORST: Final = 15
_LONGEST: Final = 100
_UNSTATED: Final = " not stated"
_OPTIMIZER: Final = f"optimizer{_UNSTATED}"


def memory(rows: Sequence[Row], fits: Mapping[str, Mapping[str, Any]]) -> str:
    lines, told = [], []
    for source, members in by_source(rows):
        known = [row for row in members if row.get("measured_memory") and row.get("predicted_memory")]
        off = [100.0 * (row["predicted_memory"] / row["measured_memory"] - 1.0) for row in known]
        found = fits.get(source, {})
        if known:
            size = np.abs(off)
            bias = percent(float(np.median(off)), signed=True)
            errors = [percent(float(size.mean())), percent(float(np.median(size))), bias]
            lines.append([source, f"{len(known):,}", *errors, share(found.get("memory_coverage_90", math.nan))])
        for what, score in (("all", found), ("that memory may have caused", found.get("memory_failures", {}))):
            if not math.isnan(score.get("oom_f1", math.nan)):
                figures = [number(score["oom_f1"]), number(score["fits_f1"]), percent(100.0 * score["fits_failed"])]
                told.append([source, what, *figures])
    if not lines and not told:
        return ""
    parts = ["## Memory", words.MEMORY.strip()]
    if lines:
        columns = ["source", "measured", "memory error", "median", "bias", "in interval"]
        parts.append(table(columns, lines))
    if told:
        columns = ["source", "failures counted", "does-not-fit F1", "fits F1", "of *fits*, failed"]
        parts += [words.FITS.strip(), table(columns, told)]
    return "\n\n".join(parts)


def misses(study: Mapping[str, Any], steps: Sequence[Row], other: Sequence[Row]) -> str:
    reasons = Reasons(study)
    foreseen = [row for row in steps if figures.stalled(row) in (None, figures.stall_forecast(row))]
    missed = len(steps) - len(foreseen)
    said = (
        f"The {_WORST} runs of each table with the largest ratio between calibrated forecast and measurement, and what "
        "the other rows suggest as the reason. Rows are numbered from 0. *In interval* says whether the measurement is "
        "inside the forecast's 90 % interval."
    )
    if missed:
        said += (
            f" Of the language models, {missed:,} runs were in another mode than forecast; the second table leaves "
            "them out."
        )
    groups = [
        (TABLES["steps"], steps),
        ("Language models, mode forecast correctly", foreseen),
        (TABLES["dp-steps"], other),
    ]
    parts = ["## The worst cases", prose(said)]
    for title, rows in groups if missed else groups[::2]:
        lines = [_miss(row, reasons) for row in worst(rows, _WORST)]
        columns = ["source", "row", "run", "measured", "calibrated", "error", "in interval", "why"]
        parts += [f"### Worst: {title}", table(columns, lines, numbers=(1, 3, 4, 5))]
    return "\n\n".join(parts)


def _miss(row: Row, reasons: Reasons) -> list[str]:
    gpus = int(row["n_gpus"])
    run = f"{row['model']}, {gpus} × {row['device']}, {row['runtime']}: `{row['strategy']}`"
    error = percent(100.0 * (row["calibrated"] / row["measured"] - 1.0), signed=True)
    inside = "–" if row.get("low") is None else "yes" if row["low"] <= row["measured"] <= row["high"] else "no"
    times = [seconds(row[name]) for name in ("measured", "calibrated")]
    return [row["source"], str(row["index"]), run, *times, error, inside, "; ".join(reasons.of(row)) or "not known"]


def assumed(rows: Sequence[Row]) -> str:
    """List what the rows of each source do not state, the most frequent first."""
    parts = ["## What rows do not state", words.ASSUMED.strip()]
    for name, title in TABLES.items():
        lines = []
        for source, group in by_source(row for row in rows if row["table"] == name and "assumed" in row):
            kinds = count_assumptions(row["assumed"] for row in group)
            some = sum(any(assumption_kind(text) != _OPTIMIZER for text in row["assumed"]) for row in group)
            said = ", ".join(f"{what.removesuffix(_UNSTATED)} ({count:,})" for what, count in kinds.items())
            lines.append([source, f"{len(group):,}", f"{some:,}", said.replace("|", "/")])
        if lines:
            columns = [
                "source" if name == "steps" else "family",
                "runs",
                "with more than the optimizer not stated",
                "not stated",
            ]
            parts += [f"{title}:", table(columns, lines, numbers=(1, 2))]
    return "\n\n".join(parts) if len(parts) > 2 else ""


def skipped(study: Mapping[str, Any]) -> str:
    parts = ["## Skipped rows"]
    for name, title in TABLES.items():
        reasons = Counter(_kind(entry["reason"]) for entry in study["skipped"] if entry["table"] == name)
        if reasons:
            rows = [[reason, f"{count:,}"] for reason, count in sorted(reasons.items(), key=lambda r: (-r[1], r[0]))]
            parts += [f"{title}, {sum(reasons.values()):,} rows:", table(["why", "rows"], rows)]
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _kind(reason: str) -> str:
    """Return a reason without its remedy, cut to a length that fits the table."""
    kind = " ".join(reason.split(";", maxsplit=1)[0].split())
    return kind if len(kind) <= _LONGEST else f"{kind[:_LONGEST].rsplit(' ', maxsplit=1)[0]} …"
