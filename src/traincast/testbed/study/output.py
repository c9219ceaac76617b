"""Files of a study: ``study.json``, a table in Markdown, and two plots."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from traincast.files import finite, write_text
from traincast.testbed.study.outcome import CellOutcome, Study
from traincast.units import format_seconds

_COLOURS: Final = ("#3b82c4", "#e08214", "#2ca25f", "#d6455d", "#8e6bbf")
_STYLE: Final = """<style>
svg { font: 12px system-ui, sans-serif; --back: #ffffff; --ink: #24292f; --line: #d0d7de }
@media (prefers-color-scheme: dark) { svg { --back: #0d1117; --ink: #e6edf3; --line: #3d444d } }
text { fill: var(--ink) } .back { fill: var(--back) } .grid { stroke: var(--line); fill: none }
.ink { stroke: var(--ink); fill: none } .title { font-weight: 600; font-size: 13px }
</style>"""
_SIDE: Final = 400
_LEFT: Final = 64
_TOP: Final = 34
_ROW: Final = 22
_NAMES: Final = 420


def scatter(title: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Plot forecast (upwards) against measured seconds on logarithmic axes, one colour for each series.

    The diagonal is a perfect forecast; dashed lines are 5 % off.
    """
    values = [value for points in series.values() for point in points for value in point if value > 0.0]
    low, high = (min(values), max(values)) if values else (0.1, 1.0)
    first, last = math.log10(low) - 0.1, math.log10(high) + 0.1

    def at(value: float) -> float:
        return (math.log10(value) - first) / (last - first) * _SIDE

    parts = [f'<rect class="grid" x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}"/>']
    for value in _ticks(10.0**first, 10.0**last):
        x, y, name = _LEFT + at(value), _TOP + _SIDE - at(value), _seconds(value)
        parts += [
            f'<path class="grid" d="M{x:.1f} {_TOP}v{_SIDE}M{_LEFT} {y:.1f}h{_SIDE}"/>',
            f'<text x="{x:.1f}" y="{_TOP + _SIDE + 18}" text-anchor="middle">{name}</text>',
            f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{name}</text>',
        ]
    for factor, dashes in ((1.0, ""), (1.05, ' stroke-dasharray="4 4"'), (1 / 1.05, ' stroke-dasharray="4 4"')):
        start, end = (10.0 ** max(first, first - math.log10(factor)), 10.0 ** min(last, last - math.log10(factor)))
        (x1, y1), (x2, y2) = ((_LEFT + at(x), _TOP + _SIDE - at(x * factor)) for x in (start, end))
        parts.append(f'<path class="ink" stroke-opacity=".6"{dashes} d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>')
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts += [
            f'<circle cx="{_LEFT + at(x):.1f}" cy="{_TOP + _SIDE - at(y):.1f}" r="3.4" fill="{colour}" '
            f'fill-opacity=".75"/>'
            for x, y in points
        ]
        parts += _entry(_LEFT + _SIDE + 16, _TOP + 12 + 20 * number, colour, f"{name} ({len(points)})")
    middle = _TOP + _SIDE / 2
    parts += [
        f'<text x="{_LEFT + _SIDE / 2}" y="{_TOP + _SIDE + 38}" text-anchor="middle">measured</text>',
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">forecast (dashed: ± 5 %)</text>',
    ]
    return _svg(title, parts, width=_LEFT + _SIDE + 210, height=_TOP + _SIDE + 46)


def bars(title: str, rows: Sequence[tuple[str, Mapping[str, float], float]]) -> str:
    """Plot the errors of cells as bars; a row is the name of a cell, its errors by name, and the noise of its steps."""
    names = list(dict.fromkeys(name for _, errors, _ in rows for name in errors))
    most = max([0.05, *(value for _, errors, noise in rows for value in (*errors.values(), noise))])
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1e9) if most / s <= 8)
    top = step * math.ceil(most / step)
    height = _ROW * len(rows)
    parts = []
    for number, name in enumerate(names):
        parts += _entry(_NAMES + 140 * number, _TOP + 4, _COLOURS[number], f"{name} error")
    parts.append(f'<text x="{_NAMES + 140 * len(names)}" y="{_TOP + 4}">│ noise of steps</text>')
    under = _TOP + 18
    for tick in range(round(top / step) + 1):
        x = _NAMES + tick * step / top * _SIDE
        parts.append(f'<path class="grid" d="M{x:.1f} {under}v{height}"/>')
        parts.append(f'<text x="{x:.1f}" y="{under + height + 16}" text-anchor="middle">{tick * step:.0%}</text>')
    for number, (name, errors, noise) in enumerate(rows):
        y = under + _ROW * number
        parts.append(f'<text x="{_NAMES - 8}" y="{y + 15}" text-anchor="end">{escape(_short(name))}</text>')
        tall = (_ROW - 6) / max(1, len(names))
        for place, (kind, value) in enumerate(errors.items()):
            colour = _COLOURS[names.index(kind)]
            wide = max(0.5, value / top * _SIDE)
            parts.append(
                f'<rect x="{_NAMES}" y="{y + 3 + place * tall:.1f}" width="{wide:.1f}" height="{tall - 1:.1f}" '
                f'fill="{colour}"><title>{escape(name)}: {kind} error {value:.1%}</title></rect>'
            )
        x = _NAMES + noise / top * _SIDE
        parts.append(f'<path class="ink" stroke-width="2" d="M{x:.1f} {y + 2}v{_ROW - 4}"/>')
    return _svg(title, parts, width=_NAMES + _SIDE + 40, height=under + height + 30)


def _entry(x: float, y: float, colour: str, label: str) -> list[str]:
    return [
        f'<circle cx="{x}" cy="{y - 4}" r="4.5" fill="{colour}"/>',
        f'<text x="{x + 11}" y="{y}">{escape(label)}</text>',
    ]


def _svg(title: str, parts: Sequence[str], *, width: int, height: int) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>'
    back = f'<rect class="back" width="{width}" height="{height}"/>'
    named = f'<title>{escape(title)}</title><text class="title" x="12" y="20">{escape(title)}</text>'
    return "\n".join([head, _STYLE, back, named, *parts, "</svg>", ""])


def _ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [10.0**power * digit for power in powers for digit in (1, 2, 5)]
    return [value for value in found if low <= value <= high]


def _seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1.0 else f"{value * 1e3:g} ms"


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:59] + "…"


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
