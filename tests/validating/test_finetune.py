"""``validate finetune`` compares time, and memory in the kind that a row states."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_verbs import run, run_json
from tests.measured.test_finetune import ROW
from traincast import load_runtime, validate
from traincast.measured.tuning.rows import read_tuning
from traincast.strategy import Memory, lower
from traincast.validating.finetune import counted


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


def test_reserved_memory_is_a_multiple_of_what_each_step_allocates_and_frees() -> None:
    memory = Memory(
        weights=100.0,
        gradients=5.0,
        optimizer=8.0,
        activations=30.0,
        other=13.0,
        parts={"fragmentation": 3.0, "context": 10.0, "paged optimizer states": 8.0},
    )
    runtime = load_runtime("hf-trainer")
    assert counted([memory], "allocated", runtime, ratio=2.0) == 135.0
    assert counted([memory], "reserved", runtime) == 135.0
    assert counted([memory], "reserved", runtime, ratio=2.0) == 170.0
    assert counted([memory], "nvidia-smi", runtime, ratio=2.0) == 188.0
    assert counted([memory], "reserved", load_runtime("megatron"), ratio=2.0) == 165.0


def test_batches_of_different_lengths_reserve_more_than_equal_ones(tmp_path: Path) -> None:
    long = {"seq": 2048, "mem_kind": "reserved", "recompute": "yes"}
    rows = list(validate(table(tmp_path / "runs.csv", long, long | {"notes": "max_length"}), kind="finetune").rows)
    equal, different = (row.predicted_memory or 0.0 for row in rows)
    assert different > 1.05 * equal
    assert any(said.startswith("lengths of texts: log-normal, mean 725") for said in rows[1].assumed)


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
