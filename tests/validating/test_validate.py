"""One function compares any table of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fitting import test_collectives as collectives
from tests.measured.test_assumed import DP, STATED
from tests.validating.test_steps import write
from traincast import RequestError, validate

OPERATOR = {
    "device": "A100", "dtype": "fp16", "op": "gemm", "phase": "fwd", "m": 512.0, "n": 512.0, "k": 512.0, "time_us": 20.0
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "row", "with_memory", "sources"),
    [
        ("steps", STATED, True, ["mine", "all"]),
        ("dp-steps", DP, False, ["cnn", "all"]),
        ("operators", OPERATOR, False, ["unknown", "all"]),
    ],
)
def test_every_kind_answers_in_one_way(
    kind: Any, row: dict[str, Any], with_memory: bool, sources: list[str], tmp_path: Path
) -> None:
    result = validate(str(write(tmp_path / "t.parquet", row)), kind=kind)
    (outcome,) = result.rows
    assert outcome.status == "ok" and outcome.predicted is not None and outcome.low is not None
    assert outcome.low < outcome.predicted
    assert list(result.summary()) == sources and result.summary()["all"]["n"] == 1
    assert result.with_memory is with_memory and result.warnings() == ()
    assert result.to_dict()["rows"][0]["predicted"] == outcome.predicted


def test_collectives_are_a_kind_as_well(tmp_path: Path) -> None:
    path = collectives.write(tmp_path / "c.parquet", collectives.grid()[:3])
    assert [row.index for row in validate(path, kind="collectives").rows] == [0, 1, 2]


def test_a_cluster_may_be_given_by_its_name(tmp_path: Path) -> None:
    row = {**STATED, "gpu": None, "source": None}
    (outcome,) = validate(write(tmp_path / "t.parquet", row), cluster="dgx-h100").rows
    assert outcome.status == "ok" and outcome.source == "unknown"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"kind": "dp_steps"}, "kind 'dp_steps' is not known: expected one of steps, dp-steps, finetune, operators"),
        ({"kind": "dp-steps", "cluster": "dgx-h100"}, "cluster does not apply to a table of dp-steps: it takes"),
        ({"rows": 3}, "rows does not apply to a table of steps"),
        ({"kind": "collectives", "calibrated": False}, "calibrated does not apply to a table of collectives"),
    ],
)
def test_what_does_not_apply_is_refused(arguments: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=said):
        validate(tmp_path / "none.csv", **arguments)
