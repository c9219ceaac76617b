"""Prose, tables and figures in Markdown, as docs/accuracy.md shows them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence

from benchmarks.figures import Errors


def pair(made: Errors, runs: int) -> list[str]:
    """Return mean and median as text, with the number of forecasts if not all ``runs`` have one."""
    count = f" ({made.n:,})" if 0 < made.n < runs else ""
    return [f"{percent(made.mean)}{count}", percent(made.median)]


def prose(said: str) -> str:
    """Return a paragraph broken into lines of at most 120 characters."""
    return textwrap.fill(said, 120, break_long_words=False, break_on_hyphens=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] | None = None) -> str:
    """Return a Markdown table; rows that begin with ``all`` are bold.

    ``numbers`` are the columns aligned to the right: by default, all but the first.
    """
    right: Callable[[int], bool] = (lambda i: i > 0) if numbers is None else lambda i: i in numbers
    lines = [_line(columns), _line(["---:" if right(i) else "---" for i in range(len(columns))])]
    for row in rows:
        total = row[0] == "all" or row[0].startswith("all ")
        lines.append(_line([f"**{cell}**" for cell in row] if total else row))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def percent(value: float, *, signed: bool = False) -> str:
    return "–" if math.isnan(value) else f"{value:{'+' if signed else ''}.1f} %"


def share(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.0f} %"


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1.0 else f"{1000 * value:.3g} ms"
