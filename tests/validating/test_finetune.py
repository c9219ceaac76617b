"""``validate finetune`` compares time, and memory in the kind that a row states."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_verbs import run, run_json
from tests.measured.test_finetune import ROW
from traincast.measured.finetune import read_tuning
from traincast.strategy import Memory, load_runtime, lower
from traincast.validating.finetune import counted
from traincast.validating.validate import validate


def table(path: Path, *changes: dict[str, Any]) -> Path:
    rows = [ROW | change for change in changes]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_every_kind_of_memory_is_compared_with_its_own_forecast(tmp_path: Path) -> None:
    kinds = ("allocated", "reserved", "nvidia-smi")
    result = validate(table(tmp_path / "runs.csv", *({"mem_kind": kind} for kind in kinds)), kind="finetune")
    rows = list(result.rows)
    assert [row.memory_kind for row in rows] == list(kinds)
    assert [row.measured_memory for row in rows] == [2**30] * 3
    found = [row.predicted_memory or 0.0 for row in rows]
    assert found[0] == lower(read_tuning(0, ROW).longest).memory[0].tensors
    assert found[0] < found[1] < found[2]


def test_a_cache_that_grows_with_the_lengths_of_batches_is_larger_than_a_steady_one() -> None:
    memory = Memory(
        weights=100.0,
        gradients=0.0,
        optimizer=0.0,
        activations=30.0,
        other=13.0,
        parts={"kept for backward": 20.0, "working": 10.0, "fragmentation": 3.0, "context": 10.0},
    )
    runtime = load_runtime("hf-trainer")
    assert counted([memory], "allocated", runtime, cache="grown") == 130.0
    assert counted([memory], "reserved", runtime, cache="emptied") == 133.0
    assert counted([memory], "reserved", runtime, cache="steady") == pytest.approx(133.0 + 0.25 * 30.0)
    assert counted([memory], "reserved", runtime, cache="grown") == pytest.approx(133.0 + 3.2 * 10.0)
    assert counted([memory], "nvidia-smi", runtime, cache="emptied") == 143.0


def test_a_row_that_cannot_be_read_is_skipped_with_its_reason(tmp_path: Path) -> None:
    result = validate(table(tmp_path / "runs.csv", {}, {"gpu": "abacus"}), kind="finetune")
    statuses = [(row.status, row.reason[:15]) for row in result.rows]
    assert statuses == [("ok", ""), ("skipped", "device 'abacus'")]
    assert result.summary()["all"]["forecast"] == 1


def test_the_start_of_a_short_run_is_added_to_the_forecast(tmp_path: Path) -> None:
    short = {"num_steps": 100, "train_time_s": 10.0}
    plain, later = validate(table(tmp_path / "runs.csv", {}, short), kind="finetune").rows
    assert plain.predicted is not None
    assert later.predicted == pytest.approx(plain.predicted + 0.02)


def test_the_command_line_prints_rows_and_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path / "runs.csv", {}, {"method": "full", "lora_rank": None, "lora_targets": None})
    found = run_json(capsys, "validate", "finetune", str(path))
    assert [row["memory_kind"] for row in found["rows"]] == ["allocated", "allocated"]
    assert found["summary"]["all"]["memory_median_ape"] > 0.0
    assert "2/2" in run(capsys, "validate", "finetune", str(path))
