"""Tables of measured runs: CSV or Parquet in, plain rows out, with what is wrong said by row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeAlias

from traincast.tables import read_arrow

Row: TypeAlias = dict[str, Any]


def read_table(path: Path, *, needs: tuple[str, ...]) -> list[Row]:
    """Rows of a ``.csv``, ``.csv.gz`` or ``.parquet`` file that has at least the columns ``needs``."""
    rows: list[Row] = read_arrow(path, needs=needs).to_pylist()
    return rows


class RowError(ValueError):
    """A row that cannot be forecast; the text is the reason."""


def number(row: Row, key: str) -> float | None:
    """A number of a row, or ``None`` where it is blank, ``?`` or not a number."""
    value = row.get(key)
    if value is None or isinstance(value, bool):
        return None
    try:
        result = float(value)
    except (TypeError, ValueError):
        return None
    return result if math.isfinite(result) else None


def whole(row: Row, key: str, default: int | None = None) -> int:
    """A positive whole number of a row."""
    value = number(row, key)
    if value is None:
        if default is None:
            raise RowError(f"{key} is not stated")
        return default
    if value < 1 or value != int(value) or value > 1e12:
        raise RowError(f"{key} is {value:g}: expected a positive whole number")
    return int(value)


def text(row: Row, key: str) -> str:
    """A text of a row, empty where it is blank, ``?`` or missing."""
    value = row.get(key)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    result = str(value).strip()
    return "" if result in ("?", "nan", "None") else result
