"""The table being measured: finished rows go to a journal at once, and to the table when all is done.

The journal is a file of JSON lines beside the output. A run that was stopped, however it was stopped,
leaves it; the next run with the same output reads it and goes on. The output itself is written to a
neighbour and renamed, so that it is whole or not there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from traincast import files
from traincast.errors import FileFormatError, RequestError
from traincast.profiling.rows import COLLECTIVE_COLUMNS, OPERATOR_COLUMNS, Columns, Row

FORMAT: Final = "traincast-profile"
VERSION: Final = 1
TABLES: Final[dict[str, Columns]] = {"operators": OPERATOR_COLUMNS, "collectives": COLLECTIVE_COLUMNS}


def journal_path(output: Path) -> Path:
    """Where the journal of ``output`` is kept while it grows."""
    return output.with_name(output.name + ".journal")


def check_output(output: Path, *, table: str) -> None:
    """Refuse an output that cannot be written, or that holds something else, before anything is measured."""
    if output.suffix != ".parquet":
        raise RequestError(f"cannot write {output}: the table is Parquet, so its name must end in .parquet")
    files.check_output(output)
    if output.exists():
        _check_schema(output, table=table)


def _check_schema(output: Path, *, table: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(output).names
    except (pa.ArrowException, OSError) as error:
        raise FileFormatError(
            f"{output} exists and is no Parquet file: move it away, or choose another name"
        ) from error
    if list(names) != list(TABLES[table]):
        raise FileFormatError(
            f"{output} exists and is not a table of profiled {table}: its columns are {', '.join(names[:6])}"
            f"{', …' if len(names) > 6 else ''}; move it away, or choose another name"
        )


class ProfileJournal:
    """The rows of one table: what is in the output, what is in the journal, and what is added now.

    ``identity`` says which rows are the same measurement; the later one counts. Use as a context manager;
    :meth:`finish` writes the table and removes the journal.
    """

    def __init__(self, output: Path, *, table: str, identity: Callable[[Row], str]) -> None:
        check_output(output, table=table)
        self.output = output
        self.table = table
        self.warnings: list[str] = []
        self._identity = identity
        self._rows: dict[str, Row] = {}
        self._failures: dict[str, str] = {}
        self._marks: set[str] = set()
        self._file: IO[bytes] | None = None
        self._read_output()
        self.found = len(self._rows)
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        self.resumed = len(self._rows) - self.found

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order in which they were first measured."""
        return list(self._rows.values())

    def reason(self, identity: str) -> str | None:
        """Why that measurement is not possible, where it is known not to be."""
        return self._failures.get(identity)

    def has(self, identity: str) -> bool:
        """Whether that measurement is there already, or known not to be possible."""
        return identity in self._rows or identity in self._failures

    def add(self, row: Row) -> None:
        """Keep a finished row."""
        self._rows[self._identity(row)] = row
        self._write({"row": row})

    def fail(self, identity: str, reason: str) -> None:
        """Keep that a measurement is not possible."""
        self._failures[identity] = reason
        self._write({"failed": [identity, reason]})

    def mark(self, name: str) -> None:
        """Keep that a larger piece, such as the run of a model, is done."""
        self._marks.add(name)
        self._write({"done": name})

    def marked(self, name: str) -> bool:
        """Whether :meth:`mark` was called with ``name``, in this run or in the one it goes on with."""
        return name in self._marks

    def finish(self) -> None:
        """Write the table whole, and remove the journal."""
        write_table(self.rows, self.output, table=self.table)
        self.close()
        journal_path(self.output).unlink(missing_ok=True)

    def close(self) -> None:
        """Leave the journal as it is, for the next run to go on with."""
        if self._file is not None:
            with suppress(OSError):  # on a full disk; it was said when the row was written
                self._file.close()
            self._file = None

    def __enter__(self) -> ProfileJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_output(self) -> None:
        if not self.output.exists():
            return
        import pyarrow.parquet as pq

        for row in pq.read_table(self.output).to_pylist():
            self._rows[self._identity(row)] = row

    def _open(self) -> None:
        path = journal_path(self.output)
        try:
            self._file = path.open("a+b")
            _lock(self._file, path)
            self._file.seek(0)
            text = self._file.read()
        except OSError as error:
            raise files.refusal(path, error) from error
        sound = self._replay(text, path)
        if sound < len(text):
            self._file.truncate(sound)
        self._file.seek(0, os.SEEK_END)
        if not sound:
            self._write({"format": FORMAT, "version": VERSION, "table": self.table})

    def _replay(self, text: bytes, path: Path) -> int:
        """Take over what the journal holds; return how many of its bytes are sound."""
        sound = 0
        for number, line in enumerate(text.splitlines(keepends=True)):
            entry = _entry(line)
            if number == 0:
                if entry is None and b"\n" in text:
                    raise FileFormatError(f"{path} is no journal of a profile: move it away")
                if entry is not None and (entry.get("format"), entry.get("version")) != (FORMAT, VERSION):
                    raise FileFormatError(f"{path} is no journal of a profile, or of another version: move it away")
                if entry is not None and entry.get("table") != self.table:
                    raise FileFormatError(f"{path} is a journal of {entry.get('table')}, not of {self.table}")
            if entry is None or not self._take(entry):
                left = text[sound:].count(b"\n") + (not text.endswith(b"\n"))
                self.warnings.append(f"{path}: {left} damaged line{'s' if left > 1 else ''} at the end dropped")
                break
            sound += len(line)
        return sound

    def _take(self, entry: dict[str, Any]) -> bool:
        match entry:
            case {"row": dict(row)} if set(row) == set(TABLES[self.table]):
                self._rows[self._identity(row)] = row
            case {"failed": [str(identity), str(reason)]}:
                self._failures[identity] = reason
            case {"done": str(name)}:
                self._marks.add(name)
            case {"format": _}:
                pass
            case _:
                return False
        return True

    def _write(self, entry: dict[str, Any]) -> None:
        assert self._file is not None, "a closed journal takes no rows"
        try:
            self._file.write(json.dumps(entry, separators=(",", ":"), allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise files.refusal(journal_path(self.output), error) from error


def _entry(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _lock(file: IO[bytes], path: Path) -> None:
    """Two runs must not write one table; the lock ends with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on this platform: then nothing but care keeps two runs apart
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RequestError(f"{path} is in use: another run is measuring into the same output") from error


def write_table(rows: Iterable[Row], path: Path, *, table: str) -> None:
    """Write ``rows`` as a Parquet file, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in TABLES[table].items()])
    whole = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), whole)
    files.write_bytes(path, whole.getvalue())
