"""Tables of measurements: CSV or Parquet files in, columns or rows out, and the values of one row.

A cell that is empty, ``?``, ``nan`` or ``None`` is not stated: it is never read as a number or a text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from traincast.errors import FileFormatError

if TYPE_CHECKING:
    import pyarrow as pa

Row: TypeAlias = Mapping[str, Any]
"""One row of a table: values by the name of their column."""

_BLANKS: Final = ("", "?", "nan", "None")
_YES: Final = ("true", "yes", "on")
_NO: Final = ("false", "no", "off", "none")
_DTYPES: Final = {
    "float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "single": "fp32", "float16": "fp16",
    "half": "fp16", "bfloat16": "bf16", "float8": "fp8", "fp4": "nvfp4",
}  # fmt: skip
_MOST: Final = 1e12
"""The largest count that a table may state."""


class RowError(ValueError):
    """A row of a table that cannot be used; the text is the reason."""


# Files


def read_rows(path: Path, *, needs: Sequence[str]) -> list[dict[str, Any]]:
    """Read the rows of a ``.csv``, ``.csv.gz`` or ``.parquet`` file that has at least the columns ``needs``."""
    rows: list[dict[str, Any]] = read_arrow(path, needs=needs).to_pylist()
    return rows


def read_arrow(path: Path, *, needs: Sequence[str], wants: Sequence[str] | None = None) -> pa.Table:
    """Read a ``.csv``, ``.csv.gz`` or ``.parquet`` file that has at least the columns ``needs``.

    With ``wants``, only those columns of a Parquet file are read.
    """
    import pyarrow as pa

    if not path.is_file():
        raise FileFormatError(f"cannot read {path}: there is no such file")
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            file = pq.ParquetFile(path)
            names = file.schema_arrow.names
            check_columns(path, names, needs)
            table = file.read(columns=[c for c in names if wants is None or c in wants], use_threads=False)
        elif path.name.endswith((".csv", ".csv.gz")):
            from pyarrow import csv

            table = csv.read_csv(path, read_options=csv.ReadOptions(use_threads=False))
            check_columns(path, table.column_names, needs)
        else:
            raise FileFormatError(f"{path} is neither .csv, .csv.gz nor .parquet")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read as a table: {' '.join(str(error).split())[:200]}") from error
    return table


def check_columns(path: Path, names: Sequence[str], needs: Sequence[str]) -> None:
    """Refuse a table with the columns ``names`` that lacks any that it ``needs``."""
    missing = [name for name in needs if name not in names]
    if missing:
        raise FileFormatError(
            f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(names[:12])}"
            f"{', …' if len(names) > 12 else ''}"
        )


# Values


def text_in(value: object) -> str:
    """Return the text in a cell without surrounding blanks; "" if nothing is stated."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    result = str(value).strip()
    return "" if result in _BLANKS else result


def number_in(value: object) -> float | None:
    """Return the finite number in a cell, written as a number or as text; ``None`` if there is none."""
    if value is None or isinstance(value, bool):
        return None
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return result if math.isfinite(result) else None


def dtype_in(written: str) -> str:
    """Return our name of a dtype that a table spells ``torch.bfloat16``, ``half`` or the like; others in lower case."""
    plain = written.lower().removeprefix("torch.")
    return _DTYPES.get(plain, plain)


def text(row: Row, key: str) -> str:
    """Return a text of a row; "" if it is not stated."""
    return text_in(row.get(key))


def number(row: Row, key: str) -> float | None:
    """Return a number of a row; ``None`` if it is not stated or is not a number."""
    return number_in(row.get(key))


def figure(row: Row, key: str) -> float | None:
    """Return a number of a row; ``None`` if it is not stated. Text that is not a number is refused."""
    value = number(row, key)
    written = text(row, key)
    if value is None and written:
        raise RowError(f"{key} is {written[:40]!r}: expected a number")
    return value


def whole(row: Row, key: str, default: int | None = None) -> int:
    """Return a positive whole number of a row.

    If it is not stated, ``default`` is returned; without a default the row is refused.
    """
    value = figure(row, key)
    if value is None:
        if default is None:
            raise RowError(f"{key} is not stated")
        return default
    if value < 1 or value != int(value) or value > _MOST:
        raise RowError(f"{key} is {value:g}: expected a positive whole number")
    return int(value)


def flag(row: Row, key: str) -> bool | None:
    """Return a yes or no of a row (``1``, ``true``, ``yes``, ``on`` …); ``None`` if it is not stated."""
    written = text(row, key).lower()
    if not written or written in _YES or written in _NO:
        return written in _YES if written else None
    value = number(row, key)
    if value is None:
        raise RowError(f"{key} is {written[:40]!r}: expected 0 or 1")
    return value > 0
