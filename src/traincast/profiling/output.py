"""What a profile writes and returns: finished rows go to a journal at once, and to the table when all is done.

The journal lies beside the output. A run that was stopped leaves it there; the next run with the same output resumes
from it. The output itself is replaced in one step: at any time it holds all old rows, or all old and new rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from traincast import files
from traincast.brief import Brief, BriefTable
from traincast.errors import FileFormatError, RequestError
from traincast.journal import Journal
from traincast.profiling.rows import COLLECTIVE_COLUMNS, ISOLATED, OPERATOR_COLUMNS, Columns, Row
from traincast.tables import to_frame

if TYPE_CHECKING:
    import pandas as pd

Progress: TypeAlias = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """Why an operator or a whole model could not be measured; ``count`` is how many have the same reason."""

    what: str
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profile(Brief):
    """The result of a run of the profiler: all rows of the table ``output``, and what could not be measured.

    ``measured`` counts the rows of this run, ``kept`` those of earlier runs, ``left`` the measurements that a limit
    left for the next run.
    """

    output: Path
    rows: tuple[Row, ...]
    failures: tuple[Unmeasured, ...]
    measured: int
    kept: int
    left: int
    warnings: tuple[str, ...]

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows of the table as a pandas table."""
        return to_frame(self.rows)

    def brief(self) -> BriefTable:
        """Return where the rows are, and how many."""
        counts = (("measured", self.measured), ("kept", self.kept), ("failed", len(self.failures)), ("left", self.left))
        return BriefTable(f"{len(self.rows):,} rows in {self.output}", [(name, f"{count:,}") for name, count in counts])


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
            f"{output} exists and is not a Parquet file: move it away, or choose another name"
        ) from error
    older = [name for name in TABLES[table] if name not in ISOLATED]
    if list(names) not in (list(TABLES[table]), older):
        raise FileFormatError(
            f"{output} exists and is not a table of profiled {table}: its columns are {', '.join(names[:6])}"
            f"{', …' if len(names) > 6 else ''}; move it away, or choose another name"
        )


class ProfileOutput:
    """The rows of one table: those of the output, those of its journal, and those that are added now.

    ``identity`` gives equal texts for rows that are the same measurement; the later row takes the place of the earlier.
    Use it as a context manager; :meth:`finish` writes the table and removes the journal.
    """

    def __init__(self, output: Path, *, table: str, identity: Callable[[Row], str]) -> None:
        check_output(output, table=table)
        self.output = output
        self.table = table
        self._identity = identity
        self._rows = {identity(row): row for row in _read(output, table=table)}
        self._failures: dict[str, str] = {}
        self._marks: set[str] = set()
        self.found = len(self._rows)
        self._journal = Journal(
            journal_path(output), kind=f"a profile of {table}", key=",".join(TABLES[table]), sync=False
        )
        for name, value in self._journal.parts.items():
            self._take(name, value)
        self.resumed = len(self._rows) - self.found

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order in which they were first measured."""
        return list(self._rows.values())

    @property
    def warnings(self) -> list[str]:
        """Return what was wrong with the journal of the previous run."""
        return self._journal.warnings

    def reason(self, identity: str) -> str | None:
        """Return why that measurement is impossible, or ``None`` if it is not known to be."""
        return self._failures.get(identity)

    def has(self, identity: str) -> bool:
        """Return whether that measurement exists already, or is known to be impossible."""
        return identity in self._rows or identity in self._failures

    def add(self, row: Row) -> None:
        """Add a finished row."""
        self._keep(self._identity(row), {"row": row})

    def fail(self, identity: str, reason: str) -> None:
        """Record that a measurement is impossible, with the reason."""
        self._keep(identity, {"failed": reason})

    def mark(self, name: str) -> None:
        """Record that a larger piece, such as the run of a model, is done."""
        self._keep(name, {"done": True})

    def marked(self, name: str) -> bool:
        """Whether :meth:`mark` was called with ``name``, in this run or in the one that it resumes."""
        return name in self._marks

    def finish(self) -> None:
        """Write the table, and remove the journal."""
        write_table(self.rows, self.output, table=self.table)
        self._journal.remove()

    def close(self) -> None:
        """Leave the journal as it is, for the next run to resume from."""
        self._journal.close()

    def __enter__(self) -> ProfileOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keep(self, name: str, value: dict[str, Any]) -> None:
        self._take(name, value)
        self._journal.keep(name, value)

    def _take(self, name: str, value: Any) -> None:
        match value:
            case {"row": dict(row)} if row.keys() == TABLES[self.table].keys():
                self._rows[name] = row
            case {"failed": str(reason)}:
                self._failures[name] = reason
            case {"done": True}:
                self._marks.add(name)


def _read(output: Path, *, table: str) -> list[Row]:
    """Return the rows of a table that exists already; columns that it lacks get their usual values."""
    if not output.exists():
        return []
    import pyarrow.parquet as pq

    rows: list[Row] = pq.read_table(output).to_pylist()
    missing = ISOLATED if table == "collectives" else {}
    return [{**missing, **row} for row in rows]


def write_table(rows: Iterable[Row], path: Path, *, table: str) -> None:
    """Write ``rows`` as a Parquet file; an existing file is replaced in one step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in TABLES[table].items()])
    whole = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), whole)
    files.write_bytes(path, whole.getvalue())
