"""Rows survive any end of a run, and a table is whole or not there."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traincast import FileFormatError, RequestError
from traincast.profiling.output import ProfileOutput, check_output, journal_path, write_table
from traincast.profiling.rows import COLLECTIVE_COLUMNS


def identity(row: dict[str, Any]) -> str:
    return f"{row['collective']} {row['bytes']}"


def row(nbytes: int, seconds: float = 1.0) -> dict[str, Any]:
    zero: dict[str, Any] = {"string": "x", "int64": 1, "double": 0.0, "bool": False}
    made = {name: zero[kind] for name, kind in COLLECTIVE_COLUMNS.items()}
    return {**made, "bytes": nbytes, "time_us": seconds}


def journal(path: Path) -> ProfileOutput:
    return ProfileOutput(path, table="collectives", identity=identity)


def test_rows_of_a_stopped_run_are_there_in_the_next(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with journal(path) as first:
        first.add(row(1))
        first.add(row(2))
        first.fail("x 3", "too large")
        first.mark("resnet50")
    assert not path.exists()
    with journal(path) as second:
        assert (second.found, second.resumed) == (0, 2)
        assert [r["bytes"] for r in second.rows] == [1, 2]
        assert second.has("x 1")
        assert second.reason("x 3") == "too large"
        assert second.marked("resnet50")
        assert not second.has("x 4")
        second.add(row(4))
        second.finish()
    assert pq.read_table(path).column("bytes").to_pylist() == [1, 2, 4]
    assert list(tmp_path.iterdir()) == [path]


def test_a_finished_table_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    for number in (1, 2):
        with journal(path) as now:
            now.add(row(number))
            now.finish()
    with journal(path) as now:
        assert (now.found, now.resumed) == (2, 0)
        now.add(row(2, seconds=9.0))
        now.finish()
    table = pq.read_table(path)
    assert table.column("bytes").to_pylist() == [1, 2]
    assert table.column("time_us").to_pylist() == [1.0, 9.0]


def test_a_row_cut_in_half_is_dropped_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with journal(path) as first:
        first.add(row(1))
    with journal_path(path).open("ab") as file:
        file.write(b'["x 2",{"row":{"sour')
    with journal(path) as second:
        assert [r["bytes"] for r in second.rows] == [1]
        assert len(second.warnings) == 1
        assert "1 damaged line at the end dropped" in second.warnings[0]


@pytest.mark.parametrize("value", ["7", '{"row":{}}', '{"row":7}', '{"failed":7}', '{"other":1}'])
def test_what_is_no_row_is_not_taken_for_one(tmp_path: Path, value: str) -> None:
    path = tmp_path / "t.parquet"
    journal(path).close()
    with journal_path(path).open("a", encoding="utf-8") as file:
        file.write(f'["x 2",{value}]\n')
    with journal(path) as now:
        assert not now.has("x 2")
        assert not now.marked("x 2")


def test_a_journal_of_another_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    journal(path).close()
    with pytest.raises(FileFormatError, match="of a profile of collectives, not of a profile of operators"):
        ProfileOutput(path, table="operators", identity=str)


def test_two_runs_cannot_measure_into_one_table(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with journal(path), pytest.raises(RequestError, match="in use"):
        journal(path)


def test_outputs_that_cannot_be_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    text = tmp_path / "text.parquet"
    text.write_text("hello", encoding="utf-8")
    for path, said in (
        (tmp_path / "t.csv", r"must end in \.parquet"),
        (tmp_path / "no" / "t.parquet", "does not exist"),
        (other, "not a table of profiled collectives"),
        (text, "not a Parquet file"),
    ):
        with pytest.raises(RequestError, match=said):
            check_output(path, table="collectives")


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """A disk that takes so many bytes of a file, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_line_and_the_rows_before_it_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    added = 0
    said = r"cannot write .*t\.parquet\.journal: file too large; free some space"
    with pytest.raises(FileFormatError, match=said), largest_file(5000), journal(path) as kept:
        for number in range(1, 100):
            kept.add(row(number))
            added = number
    assert added > 2
    with journal(path) as again:
        assert [r["bytes"] for r in again.rows] == list(range(1, added + 1))
        assert len(again.warnings) == 1  # of the line that was cut in half


def test_a_table_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_table([row(1)], path, table="collectives")
    before = path.read_bytes()
    with pytest.raises(pa.ArrowException):
        write_table([{**row(1), "bytes": "many"}], path, table="collectives")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
