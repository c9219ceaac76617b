"""Columns of a table of jobs or nodes: texts as they stand in the file, numbers as float64, each with its line.

Every reader of a format returns :class:`JobColumns`, with columns named like the fields of
:class:`traincast.scheduling.Job`. A missing number is NaN, a missing text is "".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traincast.errors import FileFormatError
from traincast.scheduling.joblogs.source import (
    MAX_COLUMNS,
    MAX_LINE_BYTES,
    Source,
    first_not_utf8,
    line_numbers,
    open_bytes,
    printable,
    reading,
)
from traincast.tables import read_arrow

if TYPE_CHECKING:
    import pyarrow as pa

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Texts: TypeAlias = NDArray[np.object_]

ROUNDED_S: Final = 0.5
"""Duration of a run that a log of whole seconds states as 0 s: the mean of what was rounded down."""

_MAX_MALFORMED: Final = 1_000_000
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_ABSENT: Final = ("", "nan", "NaN", "None", "null", "NULL", "N/A", "NA")


@dataclass(kw_only=True)
class JobColumns:
    """The result of a reader: columns by the name of the job's field, and where each job stands in the file.

    ``unparsable`` has the cells that should be numbers and are not: for each column, the text by number of the job.
    ``left_out`` counts jobs that the format's own rules leave out, by reason; ``notes`` are whole sentences.
    """

    numbers: dict[str, Floats]
    texts: dict[str, Texts]
    lines: Ints
    place: str = "line"
    unparsable: dict[str, dict[int, str]] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.lines)

    def keep(self, mask: Bools, reason: str = "") -> None:
        """Keep only the jobs of ``mask``; count the others under ``reason``."""
        gone = int(len(mask) - np.count_nonzero(mask))
        if not gone:
            return
        if reason:
            self.left_out[reason] = self.left_out.get(reason, 0) + gone
        moved = np.cumsum(mask) - 1
        self.numbers = {name: column[mask] for name, column in self.numbers.items()}
        self.texts = {name: column[mask] for name, column in self.texts.items()}
        self.unparsable = {
            name: {int(moved[i]): text for i, text in cells.items() if mask[i]}
            for name, cells in self.unparsable.items()
        }
        self.lines = self.lines[mask]

    def round_up_short_runs(self) -> None:
        """Set the duration of jobs that a log of whole seconds states as 0 s to :data:`ROUNDED_S`."""
        short = self.numbers["duration_s"] == 0.0
        if count := int(np.count_nonzero(short)):
            self.numbers["duration_s"] = np.where(short, ROUNDED_S, self.numbers["duration_s"])
            self.notes.append(f"{jobs(count)} logged as 0 s {'counts' if count == 1 else 'count'} as {ROUNDED_S} s")


def jobs(count: int) -> str:
    """Format a number of jobs: ``1 job``, ``1,204 jobs``."""
    return "1 job" if count == 1 else f"{count:,} jobs"


@dataclass(kw_only=True)
class TextTable:
    """The columns of a file as texts, in Arrow; ``lines`` is where each row stands."""

    source: Source
    columns: Mapping[str, pa.ChunkedArray]
    lines: Ints
    place: str
    malformed: int = 0

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def left_out(self) -> dict[str, int]:
        """Return how many lines are no rows, by the reason."""
        return {"on lines with more or fewer cells than columns": self.malformed} if self.malformed else {}

    def jobs(self) -> JobColumns:
        """Return one job for each row, with no column yet."""
        return JobColumns(numbers={}, texts={}, lines=self.lines, place=self.place, left_out=self.left_out())

    def codes(self, name: str) -> tuple[Ints, list[str]]:
        """Return the distinct texts of a column, trimmed, with "" last, and for each row the number of its text."""
        import pyarrow.compute as pc

        encoded = pc.utf8_trim_whitespace(self.columns[name]).combine_chunks().dictionary_encode()
        words: list[str] = [*encoded.dictionary.to_pylist(), ""]
        numbers, there = _values_of(encoded.indices, np.dtype(np.int32))
        return np.where(there, numbers, len(words) - 1).astype(np.int64), words

    def texts(self, name: str) -> Texts:
        """Return a column as trimmed texts; equal texts are one object. All are "" if the column does not exist."""
        if name not in self.columns:
            return np.full(len(self), "", dtype=object)
        codes, words = self.codes(name)
        found: Texts = np.array(words, dtype=object)[codes]
        return found

    def numbers(self, name: str, unparsable: dict[str, dict[int, str]], *, called: str = "") -> Floats:
        """Return a column as float64, NaN for empty cells; cells that are not numbers go to ``unparsable``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if name not in self.columns:
            return np.full(len(self), np.nan)
        trimmed = pc.utf8_trim_whitespace(self.columns[name]).combine_chunks()
        try:
            values, there = _values_of(pc.cast(trimmed, pa.float64()), np.dtype(np.float64))
        except pa.ArrowInvalid:
            parsed, bad = _parse(trimmed.to_pylist())
            unparsable.setdefault(called or name, {}).update(bad)
            return parsed
        return np.where(there, values, np.nan)

    def seconds(self, name: str, unparsable: dict[str, dict[int, str]], *, called: str = "") -> Floats:
        """Return a column of dates such as ``2020-06-09 18:41:01`` as seconds since 1970, NaN for empty cells."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if name not in self.columns:
            return np.full(len(self), np.nan)
        dates = pc.replace_substring(pc.utf8_slice_codeunits(self.columns[name], 0, 19), "T", " ").combine_chunks()
        try:
            stamps = pc.cast(dates, pa.timestamp("s"))
        except pa.ArrowInvalid:  # slower, but finds the cells that are not dates
            stamps = pc.strptime(dates, format="%Y-%m-%d %H:%M:%S", unit="s", error_is_null=True)
        values, there = _values_of(stamps, np.dtype(np.int64))
        if stamps.null_count > dates.null_count:
            cells = self.columns[name].to_pylist()
            bad = {int(row): cells[row] for row in np.flatnonzero(~there) if cells[row]}
            unparsable.setdefault(called or name, {}).update(bad)
        return np.where(there, values, np.nan)


def _values_of(array: pa.Array, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Bools]:
    """Values and validity of an array, straight from its memory: Arrow's own conversion would import pandas."""
    valid, values = array.buffers()
    end = array.offset + len(array)
    there = np.full(len(array), True)
    if valid is not None and array.null_count:
        bits = np.unpackbits(np.frombuffer(valid, dtype=np.uint8), bitorder="little", count=end)
        there = bits[array.offset :].astype(bool)
    if not len(array):
        return np.empty(0, dtype=dtype), there
    return np.frombuffer(values, dtype=dtype, count=end)[array.offset :], there


def _parse(cells: Iterable[str | None]) -> tuple[Floats, dict[int, str]]:
    values: list[float] = []
    bad: dict[int, str] = {}
    for i, cell in enumerate(cells):
        if cell is None:
            values.append(np.nan)
        elif not cell or _NUMBER.fullmatch(cell):
            values.append(float(cell or "nan"))
        else:
            values.append(np.nan)
            bad[i] = cell
    return np.array(values, dtype=np.float64), bad


def need(source: Source, names: Sequence[str], *, what: str) -> None:
    """Refuse a table without the columns ``names``."""
    missing = [name for name in names if name not in source.header]
    if missing:
        has = ", ".join(printable(name) for name in source.header[:12]) or "none"
        raise FileFormatError(
            f"{source.path} lacks {_listed(missing)}: {what} needs {_listed(names)}; "
            f"its columns are {has}{', …' if len(source.header) > 12 else ''}"
        )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def read_table(
    source: Source, wanted: Collection[str], *, names: Sequence[str] | None = None, drop_malformed: bool = False
) -> TextTable:
    """Read the columns ``wanted`` that a table has, as texts; ``names`` are its columns if it has no header."""
    if source.is_parquet:
        return _read_parquet(source, wanted)
    header = list(names or source.header)
    if len(header) > MAX_COLUMNS:
        raise FileFormatError(f"{source.path} has {len(header)} columns: a table has at most {MAX_COLUMNS}")
    wanted = set(wanted)
    twice = sorted({name for name in header if header.count(name) > 1 and name in wanted})
    if twice:
        raise FileFormatError(f"{source.path} has the column {twice[0]} twice: rename one, or take it out")
    has_header = names is None
    table, malformed, has_blank = _read_csv(source, header, [n for n in header if n in wanted], has_header=has_header)
    lines = _line_numbers(source, len(table), malformed, has_header=has_header, has_blank=has_blank)
    if malformed and not drop_malformed:
        number, found, text = malformed[0]
        shown = printable(text)
        raise FileFormatError(
            f"{source.path} has {len(malformed):,} line{'s' if len(malformed) > 1 else ''} with more or fewer cells "
            f"than its {len(header)} columns: line {lines.of_row(number)} has {found} ({shown!r}); correct "
            f"{'them' if len(malformed) > 1 else 'it'}, or leave {'them' if len(malformed) > 1 else 'it'} out "
            "with drop_invalid"
        )
    columns = {name: table.column(name) for name in table.column_names}
    return TextTable(source=source, columns=columns, lines=lines.kept, place="line", malformed=len(malformed))


@dataclass(frozen=True)
class _Lines:
    numbers: Ints
    kept: Ints

    def of_row(self, row: int) -> int:
        return int(self.numbers[row - 1])


def _line_numbers(
    source: Source, rows: int, malformed: list[tuple[int, int, str]], *, has_header: bool, has_blank: bool
) -> _Lines:
    """Return the line of each row; the file is read again only if it has blank lines."""
    first = 1 if has_header else 0
    total = first + rows + len(malformed)
    numbers = np.arange(1, total + 1, dtype=np.int64)
    if has_blank:
        found = line_numbers(source.path)
        if len(found) >= total:
            numbers = np.array(found[:total], dtype=np.int64)
    bad = {number for number, _, _ in malformed}
    kept = np.array([i not in bad for i in range(first + 1, total + 1)], dtype=bool) if bad else slice(None)
    return _Lines(numbers=numbers, kept=numbers[first:][kept])


def _read_csv(
    source: Source, header: list[str], wanted: list[str], *, has_header: bool
) -> tuple[pa.Table, list[tuple[int, int, str]], bool]:
    import pyarrow as pa
    from pyarrow import csv

    malformed: list[tuple[int, int, str]] = []

    def skip(row: Any) -> str:
        if len(malformed) >= _MAX_MALFORMED:
            return "error"
        malformed.append((row.number, row.actual_columns, row.text[:80] if len(malformed) < 3 else ""))
        return "skip"

    leading = source.head[: len(source.head) - len(source.head.lstrip("\r\n"))].count("\n") if has_header else 0
    try:
        with reading(source.path), open_bytes(source.path) as stream:
            table = csv.read_csv(
                pa.PythonFile(stream, mode="r"),
                read_options=csv.ReadOptions(
                    use_threads=False,
                    column_names=header,
                    skip_rows=leading + 1 if has_header else 0,
                    block_size=2 * MAX_LINE_BYTES,
                ),
                parse_options=csv.ParseOptions(delimiter=source.delimiter, invalid_row_handler=skip),
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(wanted, pa.string()),
                    include_columns=wanted,
                    null_values=list(_ABSENT),
                    strings_can_be_null=True,
                ),
            )
    except pa.ArrowException as error:
        reason = " ".join(str(error).split())[:200]
        if "skip initial" in reason:  # nothing follows the header
            return pa.schema([(name, pa.string()) for name in wanted]).empty_table(), [], False
        raise first_not_utf8(source.path) or FileFormatError(
            f"{source.path} cannot be read as a table: {reason}; check that it is CSV"
        ) from error
    return table, malformed, stream.raw.has_blank_lines


def _read_parquet(source: Source, wanted: Collection[str]) -> TextTable:
    import pyarrow as pa
    import pyarrow.compute as pc

    table = read_arrow(source.path, needs=(), wants=sorted(wanted))
    try:
        columns = {name: pc.cast(table.column(name), pa.string()) for name in table.column_names}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = " ".join(str(error).split())[:120]
        raise FileFormatError(
            f"{source.path} has a column that is neither text nor numbers: {reason}; write it as CSV"
        ) from error
    return TextTable(source=source, columns=columns, lines=np.arange(1, len(table) + 1), place="row")
