"""Rows of a table completed by what other rows of the same source state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from traincast.tables import Row, figure, text

FROM_OTHERS: Final = "from_other_rows"
"""Column that names the columns whose values come from other rows."""


def completed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return ``rows`` with heads where a row lacks them and all others of its source and width have the same number.

    Tables often state the dimensions of a model once. Heads decide how well attention runs, and cannot be told from
    the number of parameters.
    """
    stated: dict[tuple[str, float], set[float]] = defaultdict(set)
    for row in rows:
        hidden, heads = figure(row, "hidden"), figure(row, "heads")
        if hidden and heads:
            stated[text(row, "source"), hidden].add(heads)
    made = []
    for row in rows:
        known = stated.get((text(row, "source"), figure(row, "hidden") or 0.0), set())
        lacks = "heads" in row and not figure(row, "heads")
        made.append({**row, "heads": min(known), FROM_OTHERS: "heads"} if lacks and len(known) == 1 else dict(row))
    return made
