"""Files of measurements: CSV or Parquet in, Arrow out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from traincast.errors import FileFormatError

if TYPE_CHECKING:
    import pyarrow as pa


class RowError(ValueError):
    """A row of a table that cannot be used; the text is the reason."""


def read_arrow(path: Path, *, needs: Sequence[str], wants: Sequence[str] | None = None) -> pa.Table:
    """A ``.csv``, ``.csv.gz`` or ``.parquet`` file with at least the columns ``needs``; only ``wants`` are read."""
    import pyarrow as pa

    if not path.is_file():
        raise FileFormatError(f"cannot read {path}: there is no such file")
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            file = pq.ParquetFile(path)
            names = file.schema_arrow.names
            _check(path, names, needs)
            table = file.read(columns=[c for c in names if wants is None or c in wants], use_threads=False)
        elif path.name.endswith((".csv", ".csv.gz")):
            from pyarrow import csv

            table = csv.read_csv(path, read_options=csv.ReadOptions(use_threads=False))
            _check(path, table.column_names, needs)
        else:
            raise FileFormatError(f"{path} is neither .csv, .csv.gz nor .parquet")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read as a table: {' '.join(str(error).split())[:200]}") from error
    return table


def _check(path: Path, names: Sequence[str], needs: Sequence[str]) -> None:
    missing = [name for name in needs if name not in names]
    if missing:
        raise FileFormatError(
            f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(names[:12])}"
            f"{', …' if len(names) > 12 else ''}"
        )
