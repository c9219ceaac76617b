"""``traincast fit`` and what takes its bundles: from a table to a forecast, and one line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fitting.test_operators import DEVICES, rows
from traincast.cli.main import main

GPT = "gpt:layers=2,hidden=2048,heads=16,vocab=1000,seq=512"
PREDICT = ["predict", GPT, "--cluster", "dgx-a100", "--global-batch", "64", "--strategy", "dp=8", "--json"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    shown = capsys.readouterr()
    assert stopped.value.code == code, shown.err
    return shown.out, shown.err


def write(path: Path, made: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(made), path)
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("fit") / "my.parquet", rows(400, dict(list(DEVICES.items())[:1])))


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_becomes_a_bundle_that_predict_and_validate_take(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(tmp_path / "my.bundle")
    out, _ = run(capsys, "fit", "operators", data, "-o", bundle, "--networks", "none", "--json")
    (cell,) = json.loads(out)["cells"]
    assert cell["cell"] == "product/serving/bf16/a100-sxm4-80gb"
    assert cell["scores"]["all"]["mape"] < 10
    shipped = json.loads(run(capsys, *PREDICT)[0])
    mine = json.loads(run(capsys, *PREDICT, "--bundle", bundle)[0])
    assert mine["estimated_by"]["learned"] > 0
    assert mine["step_s"] != shipped["step_s"]
    judged = json.loads(run(capsys, "validate", "operators", data, "--bundle", bundle, "--json")[0])
    assert judged["summary"]["all"]["n"] == 400
    assert judged["summary"]["all"]["mape"] < 8
    told, _ = run(capsys, "validate", "operators", data, "--bundle", bundle)
    assert "my.bundle was fitted to four fifths of this table" in " ".join(told.split())
    assert {"index", "measured", "predicted", "low", "high", "status", "reason"} <= set(judged["rows"][0])


def test_people_see_errors_per_cell_and_what_was_left_out(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = pq.read_table(data).to_pylist()
    bad[3]["time_us"], bad[4]["time_us"], bad[9]["op"] = float("nan"), -1.0, "frobnicate"
    table = write(tmp_path / "bad.parquet", bad)
    out, err = run(capsys, "fit", "operators", table, "-o", str(tmp_path / "b"), "--networks", "none")
    assert "product/serving/bf16/a100-sxm4-80gb" in out
    assert "row 3: the time is NaN or missing" in err
    assert "row 4: the time is zero or negative" in err
    assert "row 9: unknown operator 'frobnicate'" in err


@pytest.mark.long(guard="fitting/test_rivals.py::test_scores_are_of_each_operator_and_of_all")
def test_rivals_are_scored_on_the_same_rows(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("fit", "operators", data, "-o", str(tmp_path / "b"), "--networks", "none", "--epochs", "3")
    out, _ = run(capsys, *arguments, "--rivals", "--json")
    scores = {(r["rival"], r["operator"]): r for r in json.loads(out)["rivals"]}
    assert {rival for rival, _ in scores} >= {"roofline", "ridge", "random forest", "LightGBM", "MLP", "FI-Net", "FNO"}
    assert scores["LightGBM", "all"]["mape"] < scores["roofline", "all"]["mape"]
    for score in scores.values():
        assert score["median"] <= score["p90"]
        assert score["train_s"] >= 0
        assert score["inference_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fit", "operators", "nowhere.parquet", "-o", "b"], "no such file"),
        (["fit", "operators", "{data}"], "--output"),
        (["fit", "operators", "{data}", "-o", "b", "--seed", "-1"], "--seed"),
        (["fit", "operators", "{data}", "-o", "b", "--where", "colour=red"], "cannot choose rows by colour"),
        (["fit", "operators", "{data}", "-o", "b", "--where", "op=conv2d"], "nothing to fit"),
        (["fit", "operators", "{data}", "-o", "{data}"], "exists and is no bundle"),
        (["fit", "collectives", "{data}", "-o", "b"], "lacks the columns"),
        (["validate", "operators", "{data}", "--bundle", "nowhere"], "is no bundle"),
        (["validate", "collectives", "{data}"], "lacks the columns"),
        ([*PREDICT[:-1], "--bundle", "nowhere"], "is no bundle"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    arguments: list[str], says: str, data: str, empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [a.replace("{data}", data) for a in arguments]
    if "operators" in given and "fit" in given:
        given += ["--networks", "none"]
    out, err = run(capsys, *given, code=2)
    assert out == ""
    assert says in err
    assert len([line for line in err.strip().splitlines() if "left out" not in line and "Usage" not in line]) <= 2
    assert list(empty.iterdir()) == []
