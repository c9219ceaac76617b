"""Tables of measured runs, read with what is wrong said."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traincast import FileFormatError
from traincast.tables import RowError, dtype_in, figure, flag, number, read_rows, text, whole


def test_csv_and_parquet_give_the_same_rows(tmp_path: Path) -> None:
    rows = [{"gpu": "H100", "n_gpus": 8, "time": 0.5}, {"gpu": "A100", "n_gpus": 16, "time": 1.5}]
    (tmp_path / "t.csv").write_text("gpu,n_gpus,time\nH100,8,0.5\nA100,16,1.5\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    assert read_rows(tmp_path / "t.csv", needs=("gpu",)) == rows
    assert read_rows(tmp_path / "t.parquet", needs=("gpu", "time")) == rows


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("gpu,n_gpus\nH100,8\n")
    with pytest.raises(FileFormatError, match="lacks the columns dp, tp; it has gpu, n_gpus"):
        read_rows(tmp_path / "t.csv", needs=("gpu", "dp", "tp"))


def test_a_truncated_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(FileFormatError, match="cannot be read as a table"):
        read_rows(path, needs=())


@pytest.mark.parametrize("value", [None, "?", "", "nan", float("nan"), float("inf"), True, "abc"])
def test_what_is_not_stated_is_no_number(value: object) -> None:
    assert number({"x": value}, "x") is None
    assert number({}, "x") is None


def test_numbers_may_be_written_as_text() -> None:
    assert number({"x": "8"}, "x") == 8.0
    assert whole({"x": "8"}, "x") == 8
    assert whole({}, "x", 3) == 3


@pytest.mark.parametrize("value", [0, -1, 2.5, 1e15])
def test_a_count_that_cannot_be_is_a_reason(value: float) -> None:
    with pytest.raises(RowError, match=r"x is .*: expected a positive whole number"):
        whole({"x": value}, "x")


def test_a_count_that_is_missing_is_a_reason() -> None:
    with pytest.raises(RowError, match="x is not stated"):
        whole({}, "x")


def test_blanks_are_no_text() -> None:
    assert [text({"x": v}, "x") for v in (None, "?", "nan", " A ", float("nan"))] == ["", "", "", "A", ""]


@pytest.mark.parametrize(("value", "found"), [("yes", True), ("Off", False), (1, True), ("0", False), ("?", None)])
def test_yes_and_no_are_words_or_numbers(value: object, found: bool | None) -> None:
    assert flag({"sp": value}, "sp") is found


def test_words_that_are_no_figures_are_a_reason() -> None:
    assert figure({"dp": " ? "}, "dp") is None
    with pytest.raises(RowError, match="dp is 'four': expected a number"):
        figure({"dp": "four"}, "dp")
    with pytest.raises(RowError, match="sp is 'maybe': expected 0 or 1"):
        flag({"sp": "maybe"}, "sp")


def test_dtypes_have_one_name() -> None:
    written = ("torch.bfloat16", "Half", "float", "float64", "fp4", "int8")
    assert [dtype_in(word) for word in written] == ["bf16", "fp16", "fp32", "fp64", "nvfp4", "int8"]
