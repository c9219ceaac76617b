"""Files of a study: ``study.json``, a table in Markdown, and two plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from traincast.files import finite, write_text
from traincast.testbed.study.plots import bars, scatter
from traincast.testbed.study.study import CellOutcome, Study
from traincast.units import format_seconds

_KINDS: Final = {
    "emulated": "Emulated compute",
    "mixed": "Mixed workers and links",
    "servers": "Parameter servers",
    "real": "Real compute",
    "job": "Long jobs",
}


def write_study(study: Study, folder: Path) -> list[Path]:
    """Write the files of a study into ``folder``; return their paths."""
    files = {
        "study.json": json.dumps(finite(study.to_dict()), indent=1, ensure_ascii=False) + "\n",
        "study.md": markdown(study),
        "study-steps.svg": scatter(
            "Step time: forecast against measured",
            {
                _KINDS[kind]: [(c.measured_s, c.predicted_s) for c in study.carried if c.kind == kind]
                for kind in study.summaries()
            },
        ),
        "study-errors.svg": bars(
            "Errors of each cell",
            [(c.name, {"batch": abs(c.batch_error), "activity": c.activity_error}, c.noise) for c in study.carried],
        ),
    }
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]


def markdown(study: Study) -> str:
    """Return the tables of a study as Markdown: summary, cost of events, all cells, and failures."""
    parts = ["# Study of the testbed", "", *_summary(study), "", *_costs(study)]
    for kind, title in _KINDS.items():
        cells = [cell for cell in study.carried if cell.kind == kind]
        if cells:
            parts += ["", f"## {title}", "", *_cells(cells)]
    unable = [f"- {cell.name}: {cell.cannot_carry}" for cell in study.done if cell.cannot_carry]
    if unable:
        parts += ["", "## Not carried by this machine", "", *unable]
    if study.failed:
        parts += ["", "## Failed", "", *(f"- {name}: {reason}" for name, reason in study.failed.items())]
    return "\n".join([*parts, ""])


def _summary(study: Study) -> list[str]:
    rows = [
        (
            _KINDS[kind], str(found.cells), _percent(found.batch_error), _percent(found.worst_batch_error),
            str(found.beyond_noise), _percent(found.activity_error), _percent(found.job_error), _percent(found.noise),
            _percent(found.activity_noise),
        )
        for kind, found in study.summaries().items()
    ]  # fmt: skip
    columns = ("cells of", "cells", "batch error, mean", "worst", "beyond twice the noise", "activity error",
               "job time", "noise", "noise of activities")  # fmt: skip
    return table(columns, rows)


def _costs(study: Study) -> list[str]:
    rows = [
        (
            cost.model, cost.network, str(cost.strategies), format_seconds(cost.events), format_seconds(cost.runs),
            _percent(cost.share),
        )
        for cost in study.costs()
    ]  # fmt: skip
    columns = ("model", "network", "strategies", "events (process time)", "full runs (process time)", "share")
    return table(columns, rows)


def _cells(cells: list[CellOutcome]) -> list[str]:
    rows = [
        (
            cell.name, str(cell.ranks), format_seconds(cell.measured_s), format_seconds(cell.predicted_s),
            f"{cell.batch_error:+.1%}".replace("%", " %").replace("-", "−"), _percent(cell.activity_error),
            _percent(cell.span_shift), _percent(cell.noise),
        )
        for cell in cells
    ]  # fmt: skip
    columns = ("cell", "ranks", "measured", "forecast", "batch error", "activity error", "shift of spans", "noise")
    return table(columns, rows)


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}".replace("%", " %")
