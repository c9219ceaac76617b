"""Tables of operators: columns out, problems named by row, files that are none refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from traincast import FileFormatError, RequestError, TraincastError
from traincast.fitting.rows.dataset import read_operators
from traincast.fitting.rows.problems import RowProblem, summarize_problems

GEMM = {
    "source": "lab", "device": "NVIDIA A100-SXM4-80GB", "dtype": "bf16", "op": "gemm", "phase": "fwd", "b": 1,
    "m": 4096, "n": 4096, "k": 4096, "params": None, "time_us": 600.0, "time_us_min": 590.0, "n_meas": 3,
    "framework": "torch", "tflops": 229.0, "suspect": False,
}  # fmt: skip
NORM = {**GEMM, "op": "layernorm", "b": None, "m": None, "n": None, "k": None, "tflops": None,
        "params": json.dumps({"b": 2, "l": 8, "dim": 16}), "time_us": 9.0}  # fmt: skip


def write(path: Path, *rows: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def reasons(path: Path) -> dict[int, str]:
    return {p.row: p.reason for p in read_operators(path).problems}


def test_rows_become_columns(tmp_path: Path) -> None:
    table = read_operators(write(tmp_path / "t.parquet", GEMM, NORM, {**GEMM, "device": "H100 SXM5 80GB"}))
    assert len(table) == 3
    assert table.problems == ()
    assert table.index.tolist() == [0, 1, 2]
    assert table.seconds.tolist() == pytest.approx([600e-6, 9e-6, 600e-6])
    assert table.min_seconds.tolist() == pytest.approx([590e-6] * 3)
    assert table.n_meas.tolist() == [3, 3, 3]
    assert [op.name for op in table.operators] == ["gemm.fwd", "layernorm.fwd", "gemm.fwd"]
    assert [d.name for d in table.device] == [table.device[0].name] * 2 + [table.device[2].name]
    assert len(table.devices) == 2


def test_a_configuration_has_one_key_on_every_device_and_is_made_once(tmp_path: Path) -> None:
    table = read_operators(
        write(tmp_path / "t.parquet", GEMM, {**GEMM, "device": "H100"}, {**GEMM, "m": 64, "tflops": 3.5})
    )
    assert table.key[0] == table.key[1] != table.key[2]
    assert table.operators[0] is table.operators[1]
    assert table.key.dtype == np.uint64


def test_keys_are_stable(tmp_path: Path) -> None:
    one = read_operators(write(tmp_path / "a.parquet", NORM, GEMM))
    other = read_operators(write(tmp_path / "b.parquet", GEMM, NORM))
    assert one.key.tolist() == other.key.tolist()[::-1]


def test_a_csv_is_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    pyarrow.csv.write_csv(pa.Table.from_pylist([GEMM, NORM]), path)
    table = read_operators(path)
    assert [op.name for op in table.operators] == ["gemm.fwd", "layernorm.fwd"]


def test_only_five_columns_are_needed(tmp_path: Path) -> None:
    row = {
        "device": "A100",
        "dtype": "fp32",
        "op": "relu",
        "phase": "fwd",
        "time_us": 9.0,
        "params": '{"rows": 8, "cols": 8}',
    }
    table = read_operators(write(tmp_path / "t.parquet", row))
    assert (table.source.tolist(), table.framework.tolist(), table.n_meas.tolist()) == (["unknown"], [""], [0])
    assert np.isnan(table.min_seconds).all()


@pytest.mark.parametrize(("change", "reason"), [
    ({"time_us": float("nan")}, "the time is NaN or missing"),
    ({"time_us": None}, "the time is NaN or missing"),
    ({"time_us": float("inf")}, "the time is infinite"),
    ({"time_us": 0.0}, "the time is zero or negative"),
    ({"time_us": -3.0}, "the time is zero or negative"),
    ({"suspect": True}, "marked as suspect"),
    ({"op": "warp_drive"}, "unknown operator 'warp_drive'"),
    ({"op": None}, "op, phase or dtype is missing"),
    ({"dtype": "fp17"}, "unknown dtype"),
    ({"m": 0}, "m is not a positive whole number"),
    ({"params": "{"}, "not valid JSON"),
    ({"device": "Abacus 3000"}, "unknown device 'Abacus 3000'"),
    ({"device": None}, "unknown device None"),
    ({"time_us": 0.6}, "time and tflops disagree more than 30-fold (mixed units?)"),
    ({"time_us": 600_000.0}, "time and tflops disagree more than 30-fold (mixed units?)"),
    ({"time_us": 0.6, "tflops": None}, "more than 3 times faster than the device's peak rates allow"),
])  # fmt: skip
def test_a_row_that_is_wrong_is_left_out_and_named(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    good = [{**GEMM, "time_us": 600.0 + i} for i in range(9)]
    table = read_operators(write(tmp_path / "t.parquet", *good, {**GEMM, **change}))
    assert table.index.tolist() == list(range(9))
    assert [p.row for p in table.problems] == [9]
    assert reason in table.problems[0].reason
    assert table.problems[0].source == "lab"


def test_an_operator_whose_rows_are_often_implausible_is_not_believed_at_all(tmp_path: Path) -> None:
    fast = [{**GEMM, "time_us": 1.0 + i, "tflops": None} for i in range(3)]
    rows = [*fast, *({**GEMM, "time_us": 600.0 + i} for i in range(7)), {**GEMM, "device": "H100"}, NORM]
    table = read_operators(write(tmp_path / "t.parquet", *rows))
    assert table.index.tolist() == [10, 11]
    assert table.problems[0].reason.startswith("more than 3 times faster")
    assert "more than 20% of the source's rows" in table.problems[-1].reason


def test_repeats_have_one_group_and_devices_and_frameworks_tell_groups_apart(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{}, {"time_us": 601.0}, {"device": "H100"}, {"framework": "other"}]
    groups = read_operators(write(tmp_path / "t.parquet", *({**GEMM, **c} for c in changes))).groups.tolist()
    assert groups[0] == groups[1]
    assert len(set(groups)) == 3


def test_traffic_faster_than_memory_is_implausible_but_a_cached_one_is_not(tmp_path: Path) -> None:
    cached = [{**NORM, "time_us": 0.01 + i} for i in range(9)]
    large = {**NORM, "params": json.dumps({"b": 8, "l": 4096, "dim": 8192})}
    assert list(reasons(write(tmp_path / "t.parquet", *cached, large))) == [9]


def test_the_second_of_two_identical_rows_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", GEMM, {**GEMM, "time_us": 601.0}, GEMM)
    assert reasons(path) == {2: "identical to an earlier row"}


def test_rows_are_chosen_before_they_are_converted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.parquet",
        {**GEMM, "op": "warp_drive"},
        GEMM,
        {**GEMM, "device": "H100", "framework": "other"},
        {**NORM, "source": "second"},
        {**NORM, "op": "ln"},
    )
    assert read_operators(path, ops={"gemm"}).index.tolist() == [1, 2]
    assert read_operators(path, ops={"gemm"}).problems == ()
    assert (
        read_operators(path, ops={"layernorm"}).index.tolist() == [3, 4] or len(read_operators(path, ops={"ln"})) == 1
    )
    assert read_operators(path, devices={"a100-sxm4-80gb"}, ops=["gemm"]).index.tolist() == [1]
    assert read_operators(path, sources={"second"}).index.tolist() == [3]
    assert read_operators(path, frameworks={"other"}).index.tolist() == [2]
    assert read_operators(path, phases={"bwd"}).index.tolist() == []


def test_a_sample_is_spread_evenly(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", *({**GEMM, "time_us": 600.0 + i} for i in range(101)))
    assert read_operators(path, rows=5).index.tolist() == [0, 25, 50, 75, 100]
    assert len(read_operators(path, rows=1000)) == 101
    with pytest.raises(RequestError, match="rows is 0: expected 1 or more"):
        read_operators(path, rows=0)


def test_part_of_a_table_can_be_taken(tmp_path: Path) -> None:
    table = read_operators(write(tmp_path / "t.parquet", GEMM, NORM, {**GEMM, "op": "warp"}))
    part = table.take(np.array([False, True]))
    assert [op.name for op in part.operators] == ["layernorm.fwd"]


def test_problems_are_summed_up_by_reason_and_range() -> None:
    rows = [12, *range(40, 45), *range(100, 162, 2)]
    lines = summarize_problems(
        [*(RowProblem(row=r, reason="the time is NaN") for r in rows), RowProblem(row=3, reason="other")], shown=2
    )
    assert lines == ["rows 12, 40–44 and 31 more: the time is NaN", "row 3: other"]


def test_an_empty_table_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist([GEMM]).slice(0, 0), path)
    table = read_operators(path)
    assert len(table) == len(table.problems) == 0


def truncated(path: Path) -> None:
    write(path, *[GEMM] * 50)
    path.write_bytes(path.read_bytes()[:-40])


def of_other_columns(path: Path) -> None:
    write(path, {"a": 1, "b": 2})


def of_other_types(path: Path) -> None:
    write(path, {**GEMM, "time_us": "soon"})


@pytest.mark.parametrize(("make", "said"), [
    (truncated, "cannot be read as a table"),
    (lambda path: path.write_bytes(b"PAR1 nonsense"), "cannot be read as a table"),
    (of_other_columns, "lacks the columns device, dtype, op, phase, time_us; it has a, b"),
    (of_other_types, "column time_us holds string"),
    (lambda path: None, "no such file"),
])  # fmt: skip
def test_a_file_that_is_no_table_is_refused_in_one_line(tmp_path: Path, make: Any, said: str) -> None:
    path = tmp_path / "t.parquet"
    make(path)
    with pytest.raises(FileFormatError) as caught:
        read_operators(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("x")
    with pytest.raises(TraincastError, match="neither"):
        read_operators(tmp_path / "t.txt")


def test_a_rate_that_counts_point_wise_work_agrees_with_its_time(tmp_path: Path) -> None:
    elements = 2 * 8 * 16
    row = {**NORM, "tflops": 5 * elements / 9e-6 * 1e-12}
    assert reasons(write(tmp_path / "t.parquet", row)) == {}
    mixed = {**NORM, "tflops": 5 * elements / 9e-6 * 1e-15}
    assert "mixed units" in reasons(write(tmp_path / "t.parquet", mixed))[0]


def test_a_processor_is_its_own_device_where_devices_are_derived(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", {**GEMM, "device": "AMD EPYC 9999 (4 cores)", "dtype": "fp32", "tflops": None})
    (device,) = read_operators(path, derive=True).devices.values()
    assert device.name == "amd-epyc-9999-4-cores"
    assert device.peak("fp32") == pytest.approx(2 * 4096**3 / 600e-6)
