"""Tables of measured runs: CSV or Parquet in, plain rows out, with what is wrong said by row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final, TypeAlias

from traincast.tables import RowError, read_arrow
from traincast.units import GIB

Row: TypeAlias = dict[str, Any]

_YES: Final = ("true", "yes", "on")
_NO: Final = ("false", "no", "off", "none")
_MEMORY_UNITS: Final = {"gib": GIB, "gb": 1e9, "mib": GIB / 1024, "mb": 1e6, "b": 1.0, "byte": 1.0, "bytes": 1.0}


def read_table(path: Path, *, needs: tuple[str, ...]) -> list[Row]:
    """Rows of a ``.csv``, ``.csv.gz`` or ``.parquet`` file that has at least the columns ``needs``."""
    rows: list[Row] = read_arrow(path, needs=needs).to_pylist()
    return rows


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


def figure(row: Row, key: str) -> float | None:
    """A number of a row, or ``None`` where it is blank or ``?``; a text that is no number is a reason."""
    value = number(row, key)
    written = text(row, key)
    if value is None and written:
        raise RowError(f"{key} is {written[:40]!r}: expected a number")
    return value


def flag(row: Row, key: str) -> bool | None:
    """A yes or no of a row (``1``, ``true``, ``yes`` …), or ``None`` where it is blank or ``?``."""
    written = text(row, key).lower()
    if not written or written in _YES or written in _NO:
        return written in _YES if written else None
    value = number(row, key)
    if value is None:
        raise RowError(f"{key} is {written[:40]!r}: expected 0 or 1")
    return value > 0


def memory_bytes(row: Row) -> float | None:
    """Bytes of memory that a row states in ``mem_gb``: GiB, as frameworks print them, unless ``mem_unit`` differs."""
    amount = number(row, "mem_gb")
    unit = text(row, "mem_unit").lower() or "gib"
    if unit not in _MEMORY_UNITS:
        raise RowError(f"mem_unit is {unit[:40]!r}: expected one of {', '.join(_MEMORY_UNITS)}")
    return amount * _MEMORY_UNITS[unit] if amount and amount > 0.0 else None


def whole(row: Row, key: str, default: int | None = None) -> int:
    """A positive whole number of a row."""
    value = figure(row, key)
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
