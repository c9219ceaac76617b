"""Plots of a study as SVG, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

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
