"""What takes a whole table: its dialect, cells that other rows tell, and failures that memory cannot have caused.

A table says that a run failed, but seldom why: nodes break, jobs time out, launchers fail. A forecast of memory can
only be judged by failures that memory may have caused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.measured.dialect import Dialect, shipped_dialect
from traincast.tables import Row, check_columns, figure, number, read_arrow, text

Flags = npt.NDArray[np.bool_]

_SAME: Final = ("source", "framework", "gpu", "precision", "recompute", "pp", "vp", "cp", "ep", "sp")
"""Columns in which two runs must agree to be compared."""
_NO_SMALLER: Final = ("n_layers", "hidden", "ffn", "vocab", "seq", "micro_batch")
_NO_LARGER: Final = ("tp", "zero")
FROM_OTHERS: Final = "from_other_rows"
"""Column that names the columns whose values come from other rows."""


def rows_of(path: Path, *, needs: Sequence[str], dialect: Dialect | None = None) -> list[dict[str, Any]]:
    """Read the rows of a table in our columns and words: by its ``dialect`` if it is given, and by all shipped ones.

    A table that then lacks one of the columns ``needs`` is refused.
    """
    table = read_arrow(path, needs=())
    names: Sequence[str] = table.column_names
    rows: list[dict[str, Any]] = table.to_pylist()
    for each in (dialect, shipped_dialect()):
        if each is not None and each != Dialect():
            names = each.columns_of(names)
            rows = [each.translated(row) for row in rows]
    check_columns(path, names, needs)
    return rows


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


def failed_otherwise(rows: Sequence[Row], ran: Sequence[bool]) -> list[bool]:
    """Return for each row whether it failed although another row ``ran`` that needs at least as much memory.

    The other run has a model, a sequence and a micro batch that are not smaller; tensor groups and a ZeRO stage that
    are not larger; the same pipeline with at least as many microbatches in flight; and, if states are sharded, not
    more replicas to share them.
    """
    common = [tuple(text(row, name) for name in _SAME) for row in rows]
    columns = {name: _column(rows, name) for name in (*_NO_SMALLER, *_NO_LARGER, "dp", "pp", "grad_accum")}
    in_flight = np.minimum(columns["grad_accum"], columns["pp"])
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, key in enumerate(common):
        if ran[index]:
            groups.setdefault(key, []).append(index)
    found = [False] * len(rows)
    for index, key in enumerate(common):
        others = np.array(groups.get(key, ()), dtype=np.intp)
        if ran[index] or not len(others):
            continue
        needs_more: Flags = in_flight[others] >= in_flight[index]
        for name in _NO_SMALLER:
            needs_more &= columns[name][others] >= columns[name][index]
        for name in _NO_LARGER:
            needs_more &= columns[name][others] <= columns[name][index]
        needs_more &= (columns["zero"][others] == 0) | (columns["dp"][others] <= columns["dp"][index])
        found[index] = bool(needs_more.any())
    return found


def _column(rows: Sequence[Row], name: str) -> npt.NDArray[np.float64]:
    """Return the numbers of a column; NaN, which no comparison holds for, if a number is not stated."""
    return np.array([value if (value := number(row, name)) is not None else np.nan for row in rows])
