"""Small plots as SVG: forecast against measured on logarithmic axes, and curves; readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

Points = Sequence[tuple[float, float]]

_COLOURS: Final = ("#3b82c4", "#e08214", "#2ca25f", "#d6455d", "#8e6bbf", "#17a2b8", "#a0704a", "#888888")
_LEFT, _TOP, _SIDE, _LEGEND, _BELOW = 66, 34, 440, 178, 46
_BAND: Final = 1.2
"""Ratio of forecast to measured time at the dashed lines beside the diagonal."""
_STYLE: Final = """<style>
svg { font: 12px system-ui, sans-serif; --back: #ffffff; --ink: #24292f; --line: #d0d7de }
@media (prefers-color-scheme: dark) { svg { --back: #0d1117; --ink: #e6edf3; --line: #3d444d } }
text { fill: var(--ink) } .back { fill: var(--back) } .grid { stroke: var(--line); fill: none }
.ink { stroke: var(--ink); fill: none } .title { font-weight: 600; font-size: 13px }
.dots { stroke-width: 4.4; stroke-linecap: round; stroke-opacity: .65; fill: none }
</style>"""


def scatter(title: str, series: Mapping[str, Points]) -> str:
    """Plot forecast (vertical) against measured (horizontal) seconds on logarithmic axes, one colour for each series.

    The diagonal is a perfect forecast; dashed lines are 20 % off.
    """
    values = [value for points in series.values() for point in points for value in point]
    low, high = (min(values), max(values)) if values else (0.1, 10.0)
    first, last = math.log10(low) - 0.08, math.log10(high) + 0.08

    def at(value: float) -> float:
        return (math.log10(value) - first) / (last - first) * _SIDE

    parts = [*_frame(title, "measured", "forecast")]
    for power in range(math.ceil(first), math.floor(last) + 1):
        place, label = at(10.0**power), _seconds(power)
        parts += [*_vertical(_LEFT + place, label), *_horizontal(_TOP + _SIDE - place, label)]
    for factor, dashes in ((1.0, ""), (_BAND, ' stroke-dasharray="4 4"'), (1.0 / _BAND, ' stroke-dasharray="4 4"')):
        start, end = max(first, first - math.log10(factor)), min(last, last - math.log10(factor))
        ends = [(at(10.0**x), at(10.0**x * factor)) for x in (start, end)]
        (x1, y1), (x2, y2) = [(_LEFT + x, _TOP + _SIDE - y) for x, y in ends]
        parts.append(f'<path class="ink" stroke-opacity=".7"{dashes} d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>')
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(series)}
    for name, points in sorted(series.items(), key=lambda item: -len(item[1])):  # the few on top of the many
        dots = "".join(f"M{_LEFT + at(x):.1f} {_TOP + _SIDE - at(y):.1f}h0" for x, y in points)
        parts.append(f'<path class="dots" stroke="{colours[name]}" d="{dots}"/>')
    labels = [f"{name} ({len(points)})" for name, points in series.items()]
    return _svg([*parts, *_legend(zip(labels, colours.values(), strict=True)), *_note("dashed: ± 20 %", len(labels))])


def curve(title: str, series: Mapping[str, Mapping[int, float]]) -> str:
    """Plot errors in per cent against the number of runs that a calibration has seen, on a logarithmic axis."""
    most = max((x for points in series.values() for x in points), default=1)
    top = max((y for points in series.values() for y in points.values()), default=1.0)
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if top / s <= 8 or s == 500)
    ceiling = step * math.ceil(top / step)

    def at(runs: float) -> float:
        return math.log2(1.0 + runs) / math.log2(1.0 + most) * _SIDE

    parts = [*_frame(title, "runs of the cluster that the calibration has seen", "mean error on others")]
    for size in sorted({x for points in series.values() for x in points}):
        parts += _vertical(_LEFT + at(size), str(size))
    for value in range(0, ceiling + 1, step):
        parts += _horizontal(_TOP + _SIDE * (1.0 - value / ceiling), f"{value} %")
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(series)}
    for name, points in series.items():
        places = [(_LEFT + at(x), _TOP + _SIDE * (1.0 - y / ceiling)) for x, y in sorted(points.items())]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
        parts.append(f'<path fill="none" stroke-width="1.8" stroke="{colours[name]}" d="M{line}"/>')
        parts.append(f'<path class="dots" stroke="{colours[name]}" d="{dots}"/>')
    return _svg([*parts, *_legend(colours.items())])


def _svg(parts: Iterable[str]) -> str:
    width, height = _LEFT + _SIDE + _LEGEND, _TOP + _SIDE + _BELOW
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>'
    return "\n".join([head, _STYLE, f'<rect class="back" width="{width}" height="{height}"/>', *parts, "</svg>", ""])


def _frame(title: str, across: str, upwards: str) -> list[str]:
    middle, bottom = _LEFT + _SIDE / 2, _TOP + _SIDE
    return [
        f"<title>{escape(title)}</title>",
        f'<text class="title" x="{_LEFT}" y="20">{escape(title)}</text>',
        f'<rect class="grid" x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}"/>',
        f'<text x="{middle}" y="{bottom + 38}" text-anchor="middle">{escape(across)}</text>',
        f'<text transform="translate(14 {_TOP + _SIDE / 2}) rotate(-90)" text-anchor="middle">{escape(upwards)}</text>',
    ]


def _vertical(x: float, label: str) -> list[str]:
    return [
        f'<path class="grid" d="M{x:.1f} {_TOP}v{_SIDE}"/>',
        f'<text x="{x:.1f}" y="{_TOP + _SIDE + 18}" text-anchor="middle">{escape(label)}</text>',
    ]


def _horizontal(y: float, label: str) -> list[str]:
    return [
        f'<path class="grid" d="M{_LEFT} {y:.1f}h{_SIDE}"/>',
        f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>',
    ]


def _legend(entries: Iterable[tuple[str, str]]) -> list[str]:
    x, parts = _LEFT + _SIDE + 16, []
    for i, (label, colour) in enumerate(entries):
        y = _TOP + 12 + 20 * i
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="4.5" fill="{colour}"/>')
        parts.append(f'<text x="{x + 11}" y="{y}">{escape(label)}</text>')
    return parts


def _note(words: str, below: int) -> list[str]:
    return [f'<text x="{_LEFT + _SIDE + 12}" y="{_TOP + 20 + 20 * below}" opacity=".75">{escape(words)}</text>']


def _seconds(power: int) -> str:
    return f"{10**power:g} s" if power >= 0 else f"{10 ** (power + 3):g} ms"
