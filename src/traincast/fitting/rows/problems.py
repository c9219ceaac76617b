"""Rows of a table that are not used, with the reason of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Texts: TypeAlias = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """A row that is not used, and the reason; rows are numbered from 0."""

    row: int
    reason: str
    source: str = "unknown"


def summarize_problems(problems: Iterable[RowProblem], *, shown: int = 4) -> list[str]:
    """Return one line for each reason, the most frequent first, with the first ``shown`` ranges of rows."""
    by_reason: dict[str, list[int]] = defaultdict(list)
    for problem in problems:
        by_reason[problem.reason].append(problem.row)
    ordered = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"{_ranges(sorted(found), shown)}: {reason}" for reason, found in ordered]


def _ranges(rows: Sequence[int], shown: int) -> str:
    spans: list[list[int]] = []
    for row in rows:
        if spans and row == spans[-1][1] + 1:
            spans[-1][1] = row
        else:
            spans.append([row, row])
    texts = [str(a) if a == b else f"{a}–{b}" for a, b in spans[:shown]]
    left = len(rows) - sum(b - a + 1 for a, b in spans[:shown])
    text = ", ".join(texts) + (f" and {left} more" if left else "")
    return f"{'row' if len(rows) == 1 else 'rows'} {text}"


class RowChecks:
    """The rows that have passed all checks so far, and for every other row the first check that it failed."""

    def __init__(self, count: int) -> None:
        self.passed = np.ones(count, dtype=bool)
        self._found: list[tuple[Ints, str, Ints | None, Sequence[str | None]]] = []

    def add(
        self,
        failed: npt.NDArray[np.bool_],
        reason: str,
        code: Ints | None = None,
        reasons: Sequence[str | None] = (),
    ) -> None:
        """Record the rows where ``failed`` is true.

        The reason of a row is ``reason``, or with ``code`` its own: ``reasons[code[row]]``, if that is not ``None``.
        """
        rows = np.flatnonzero(failed & self.passed)
        self.passed[rows] = False
        self._found.append((rows, reason, code, reasons))

    def problems(self, index: Ints, source: Texts) -> tuple[RowProblem, ...]:
        """Return the problems, sorted by row; ``index`` and ``source`` give the number and the source of each row."""
        found = []
        for rows, reason, code, reasons in self._found:
            for row in rows.tolist():
                said = reason if code is None else reasons[code[row]]
                found.append(RowProblem(row=int(index[row]), reason=said or reason, source=source[row]))
        return tuple(sorted(found, key=lambda problem: problem.row))
