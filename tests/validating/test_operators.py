"""Estimates against measured operators: by the whole where a model knows it, else by its parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.test_verbs import run, run_json
from traincast import AnalyticalCostModel, Cluster, CostModel, Estimates, Operator, RequestError
from traincast.cluster import find_device
from traincast.fitting.rows.operator import RowConfig, operator_of
from traincast.fitting.rows.parts import parts_of
from traincast.validating.operators import one_device, validate_operators
from traincast.work import Work

GEMM = {
    "source": "lab", "device": "A100", "dtype": "bf16", "op": "gemm", "phase": "fwd", "b": 1, "m": 4096, "n": 4096,
    "k": 4096, "params": None, "time_us": 600.0, "framework": "torch", "suspect": False,
}  # fmt: skip
ROWS = [
    GEMM,
    {**GEMM, "phase": "bwd", "time_us": 1200.0},
    {**GEMM, "time_us": float("nan")},
    {**GEMM, "device": "H100", "framework": "other", "time_us": 300.0},
    {**GEMM, "source": "second", "op": "layernorm", "params": '{"rows": 4096, "cols": 4096}', "time_us": 50.0},
    {**GEMM, "source": "third", "op": "warp_drive"},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


class Constant:
    """Says ``seconds`` for every work, and knows the operators of one name."""

    def __init__(self, seconds: float, known: str) -> None:
        self.seconds, self.known = seconds, known

    def knows(self, operators: Sequence[Operator], cluster: Cluster) -> npt.NDArray[np.bool_]:
        return np.array([op.name == self.known for op in operators], dtype=bool)

    def estimate(self, works: Sequence[Work], cluster: Cluster) -> Estimates:
        seconds = np.full(len(works), self.seconds)
        return Estimates(seconds=seconds, low=seconds / 2, high=seconds * 2, source=np.ones(len(works), dtype=np.int8))


def test_every_row_has_an_outcome_in_order(path: Path) -> None:
    rows = list(validate_operators(path).rows)
    assert [row.index for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row.status for row in rows] == ["ok", "ok", "skipped", "ok", "ok", "skipped"]
    assert rows[2].reason == "the time is NaN or missing"
    assert (rows[5].source, rows[5].reason) == ("third", "unknown operator 'warp_drive'")


def test_an_operator_is_estimated_as_the_sum_of_its_parts(path: Path) -> None:
    op = operator_of(RowConfig("gemm", "bwd", "bf16", 1, 4096, 4096, 4096))
    estimates = AnalyticalCostModel().estimate(parts_of(op), one_device(find_device("A100")))
    row = list(validate_operators(path, model_for=lambda framework: AnalyticalCostModel()).rows)[1]
    assert row.predicted == pytest.approx(estimates.seconds.sum())
    assert row.low == pytest.approx(estimates.low.sum())
    assert row.high == pytest.approx(estimates.high.sum())


def test_a_model_that_knows_the_whole_is_asked_for_it(path: Path) -> None:
    model = Constant(1.0, known="gemm.bwd")
    rows = list(validate_operators(path, model_for=lambda framework: model).rows)
    assert rows[1].predicted == 1.0
    other = Constant(1.0, known="")
    assert list(validate_operators(path, model_for=lambda framework: other).rows)[1].predicted == 2.0


def test_each_framework_has_its_own_model(path: Path) -> None:
    models: dict[str, CostModel] = {"torch": Constant(1.0, ""), "other": Constant(5.0, "")}
    rows = list(validate_operators(path, model_for=models.__getitem__).rows)
    assert [rows[i].predicted for i in (0, 3, 4)] == [1.0, 5.0, 1.0]


def test_the_summary_is_by_source_and_by_cell(path: Path) -> None:
    result = validate_operators(path)
    summary = result.summary()
    assert list(summary) == ["lab", "second", "third", "all"]
    assert (summary["lab"]["n"], summary["lab"]["rows"], summary["third"]["n"]) == (3, 4, 0)
    assert (summary["all"]["rows"], summary["all"]["forecast"]) == (6, 4)
    cells = {(c["source"], c["op"], c["phase"]): c["n"] for c in result.cells()}
    assert cells == {("lab", "gemm", "fwd"): 2, ("lab", "gemm", "bwd"): 1, ("second", "layernorm", "fwd"): 1}


def test_the_lines_of_json_are_one_document(path: Path) -> None:
    result = validate_operators(path)
    document = json.loads("\n".join(result.json_lines()))
    assert document["rows"] == result.to_dict()["rows"]
    assert document["summary"]["third"]["mape"] is None
    assert len(document["cells"]) == 3


def test_rows_can_be_chosen(path: Path) -> None:
    assert [r.index for r in validate_operators(path, where={"device": ["H100"]}).rows] == [3]
    assert [r.index for r in validate_operators(path, rows=2).rows] == [0, 5]
    with pytest.raises(RequestError, match="by colour: expected op, phase"):
        validate_operators(path, where={"colour": ["red"]})


def test_nothing_left_gives_an_empty_result(path: Path) -> None:
    result = validate_operators(path, where={"source": ["nobody"]})
    assert list(result.rows) == []
    assert result.cells() == []
    assert json.loads("\n".join(result.json_lines()))["rows"] == []


def test_progress_ends_at_the_number_of_rows(path: Path) -> None:
    seen: list[tuple[int, int]] = []
    validate_operators(path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (4, 4)


def test_the_command_shows_tables_and_gives_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "validate", "operators", str(path))
    assert "by operator" in shown
    assert "layernorm" in shown
    document: dict[str, Any] = run_json(capsys, "validate", "operators", str(path), "--where", "op=gemm,phase=fwd")
    assert [row["index"] for row in document["rows"]] == [0, 2, 3]
