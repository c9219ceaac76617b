"""The judge of measured operators: what became worse, on rows that were held back, and the figures it wrote last."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.cells import CellFigures, main, read_figures, report, worse, write_figures

from traincast.estimate.bundle import SHIPPED, load_bundle

CONV, GEMM = ("lab", "conv2d", "fwd"), ("lab", "gemm", "fwd")
GOOD = CellFigures(rows=400, mape=5.0, median=4.0, bias=0.5)


def test_the_figures_are_those_of_the_shipped_bundle() -> None:
    _, known = read_figures()
    assert known["bundle"] == load_bundle(SHIPPED / "operators").card["sha256"], (
        "run python -m benchmarks.cells --write"
    )


def test_no_cell_of_many_rows_is_off_on_one_side() -> None:
    """Layers of TensorFlow were once timed as bare kernels: −64 % of 8,831 rows, and no score of a cell told it."""
    figures, _ = read_figures()
    many = {key: found for key, found in figures.items() if found.rows >= 100}
    assert len(many) > 40
    assert {key: found.bias for key, found in many.items() if abs(found.bias) > 5.0} == {}


def test_a_cell_whose_error_grew_by_more_than_a_fifth_is_worse() -> None:
    then = {CONV: GOOD, GEMM: GOOD}
    now = {CONV: replace(GOOD, mape=6.1, bias=-6.0), GEMM: replace(GOOD, mape=5.9)}
    assert worse(then, now) == [CONV]
    assert worse(now, then) == []
    assert report(then, now).splitlines()[2] == (
        "| lab | conv2d | fwd | 400 | 5.0 % | +0.5 % | 6.1 % | -6.0 % | worse |"
    )
    assert report(then, then) == "2 cells: 0 worse by more than a fifth, 0 better"


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "cells.csv"
    write_figures({CONV: GOOD}, {"bundle": "a1", "rows": "b2"}, file)
    assert read_figures(file) == ({CONV: GOOD}, {"bundle": "a1", "rows": "b2"})


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Sixty convolutions as layers of TensorFlow, each of a millisecond."""
    layer = {"batchsize": 8, "kernelsize": 3, "strides": 1, "padding": 1, "channels_out": 64, "use_bias": 0}
    rows = [
        {
            "source": "lab", "device": "V100-SXM2-16GB", "dtype": "fp32", "op": "conv2d", "phase": "fwd",
            "framework": "TensorFlow 1.13", "time_us": 1000.0 + c,
            "params": json.dumps(layer | {"matsize": 28, "channels_in": 16 + c}),
        }
        for c in range(60)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "operators.parquet")
    return tmp_path


def test_a_bundle_is_no_worse_than_itself_on_rows_held_back(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(measured), "--base", str(SHIPPED / "operators"), "--rows", "5", "--all"]) == 0
    cell, _, said = capsys.readouterr().out.strip().splitlines()[2:]
    assert said == "1 cells: 0 worse by more than a fifth, 0 better"
    source, operator, phase, rows, before, _, now, *_ = (part.strip() for part in cell.strip("|").split("|"))
    assert (source, operator, phase, rows) == ("lab", "conv2d", "fwd", "5")
    assert before == now


def test_a_base_that_is_no_commit_is_refused(measured: Path) -> None:
    with pytest.raises(SystemExit, match="--base nowhere: neither a commit of this repository nor a folder"):
        main([str(measured), "--base", "nowhere"])
