"""Measured steps and their forecasts: one outcome for each row, in order, and figures for each source."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.calibrating.test_read import GOOD, run, table
from tests.measured.test_assumed import DP, STATED
from tests.measured.test_dp_steps import ROW as DP_ROW
from tests.measured.test_steps import ROW
from traincast import load_cluster
from traincast.cli.main import main
from traincast.measured import dp_steps
from traincast.tables import Row
from traincast.validating.steps import validate_dp_steps, validate_steps

FAILED: Row = {
    "status": "failed/OOM",
    "step_time_s": None,
    "micro_batch": 65536.0,
    "global_batch": 524288.0,
    "recompute": "none",
}


def write(path: Path, *rows: Row) -> Path:
    keys = {key for row in rows for key in row}
    pq.write_table(pa.Table.from_pylist([{k: row.get(k) for k in keys} for row in rows]), path)
    return path


def test_outcomes_stand_in_the_order_of_the_rows_and_none_is_dropped(tmp_path: Path) -> None:
    bad = {**ROW, "n_layers": None, "model": "secret"}
    experts = {**ROW, "ep": 8.0}
    failed = {**ROW, **FAILED}
    deep = {**ROW, "status": "failed", "step_time_s": None, "pp": 8.0, "n_gpus": 64.0}
    result = validate_steps(write(tmp_path / "t.parquet", ROW, bad, experts, failed, deep))
    assert [r.index for r in result.rows] == [0, 1, 2, 3, 4]
    assert [r.status for r in result.rows] == ["ok", "skipped", "skipped", "ok", "ok"]
    first, second, third, fourth, fifth = result.rows
    assert first.predicted is not None and first.low is not None and first.high is not None
    assert first.low < first.predicted < first.high
    assert (first.measured, first.fits, first.measured_memory) == (0.05, True, 3 * 2**30)
    assert "secret" in second.reason
    assert "ep=8" in third.reason
    assert (fourth.measured, fourth.fits) == (None, False)
    assert (fifth.predicted, fifth.fits) == (None, False)
    assert "4 blocks" in fifth.reason


def test_the_summary_counts_rows_errors_and_misses_per_source(tmp_path: Path) -> None:
    failed = {**ROW, **FAILED}
    result = validate_steps(write(tmp_path / "t.parquet", ROW, {**ROW, "source": "yours"}, failed))
    summary = result.summary()
    assert list(summary) == ["mine", "yours", "all"]
    assert (summary["mine"]["rows"], summary["mine"]["forecast"], summary["mine"]["n"]) == (2, 2, 1)
    assert summary["mine"]["oom_f1"] == 1.0
    predicted = result.rows[0].predicted
    assert predicted is not None
    assert summary["all"]["mape"] == pytest.approx(abs(predicted / 0.05 - 1) * 100)
    document = result.to_dict()
    assert set(document) == {"rows", "summary", "calibration", "warnings"}
    assert {"index", "source", "measured", "predicted", "low", "high", "status", "reason"} <= set(document["rows"][0])


def test_memory_that_only_fits_as_decimal_gigabytes_is_taken_for_such(tmp_path: Path) -> None:
    rows = validate_steps(write(tmp_path / "t.parquet", {**STATED, "mem_gb": 80.5}, STATED)).rows
    assert [row.measured_memory for row in rows] == [80.5e9, 3 * 2**30]
    assert rows[0].assumed == ("mem_gb in GiB exceeds the memory of h100-sxm5-80gb: 80.5 GB of 10⁹ bytes",)


def test_a_run_without_a_time_or_memory_is_skipped(tmp_path: Path) -> None:
    (row,) = validate_steps(write(tmp_path / "t.parquet", {**STATED, "step_time_s": None, "mem_gb": None})).rows
    assert (row.status, row.reason) == (
        "skipped",
        "neither step_time_s, tokens_per_s_per_gpu, tflops_per_gpu, mfu_pct nor mem_gb is stated",
    )


def test_the_summary_counts_assumptions_by_source_and_kind(tmp_path: Path) -> None:
    open_row = {**STATED, "source": "yours", "recompute": None, "zero": None}
    summary = validate_steps(write(tmp_path / "t.parquet", STATED, open_row, open_row)).summary()
    assert (summary["mine"]["assumed"], summary["yours"]["assumed"], summary["all"]["assumed"]) == (0, 2, 2)
    assert summary["yours"]["assumptions"] == {"zero not stated": 2, "recompute not stated": 2}


def test_forecasts_by_a_calibration_that_may_have_seen_the_rows_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = {**STATED, "source": "ultrascale", "framework": "nanotron", "status": "ok"}
    path = write(tmp_path / "t.parquet", seen, {**seen, "source": "mine"}, STATED)
    name = "h100-sxm5-80gb-nanotron-ultrascale"
    result = validate_steps(path)
    assert [(row.calibrated_by, row.maybe_seen) for row in result.rows[:2]] == [(name, True), (name, False)]
    assert result.to_dict()["calibration"] == {
        "clusters": [{"cluster": name, "rows": 2, "rows_maybe_seen": 1}],
        "rows_maybe_seen": 1,
    }
    assert not validate_steps(path, calibrated=False).to_dict()["calibration"]["clusters"]
    with pytest.raises(SystemExit):
        main(["validate", "steps", str(path)])
    said = capsys.readouterr().out
    assert "1 forecast may come from a calibration fitted to the same rows" in said
    assert "--uncalibrated" in said


def test_assumptions_stand_in_the_json_of_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.parquet", {**STATED, "recompute": None})
    with pytest.raises(SystemExit):
        main(["validate", "steps", str(path), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["rows"][0]["assumed"] == ["recompute not stated: none"]
    assert document["summary"]["all"]["assumptions"] == {"recompute not stated": 1}


def test_seconds_and_accumulation_follow_from_throughput_and_global_batch(tmp_path: Path) -> None:
    row = {**DP, "grad_accum": None, "global_batch": 1024, "step_time_s": None, "throughput_samples_per_s": 12800.0}
    (outcome,) = validate_dp_steps(write(tmp_path / "t.parquet", row, row)).rows[:1]
    assert outcome.measured == pytest.approx(0.08)
    assert dp_steps.read_row(row).request.strategy.num_microbatches == 2


def test_where_accumulation_is_not_stated_a_microbatch_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "dp.csv"
    rows = (DP_ROW, {**DP_ROW, "grad_accum": 2}, {**DP_ROW, "step_time_s": None, "microstep_time_s": None})
    lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    path.write_text("\n".join([",".join(DP_ROW), *lines]) + "\n")
    result = validate_dp_steps(path)
    assert [r.measured for r in result.rows] == [0.02, 0.04, None]
    assert [r.status for r in result.rows] == ["ok", "ok", "skipped"]
    one, two = result.rows[0].predicted, result.rows[1].predicted
    assert one is not None and two is not None
    assert 1.5 * one < two < 2.5 * one


def test_validate_warns_of_another_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path, GOOD.replace("0.05,A100", "50,A100"))
    (warning,) = validate_steps(path, cluster=load_cluster("dgx-a100")).warnings()
    assert warning.startswith("unknown: step_time_s looks like milliseconds")
    _, out, _ = run(["validate", "steps", str(path), "--cluster", "dgx-a100"], capsys)
    assert "step_time_s looks like milliseconds" in out
