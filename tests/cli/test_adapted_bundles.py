"""Ten lines of a log become an adapted bundle that a forecast uses; wrong requests are refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_bundles import GPT, run, run_json
from tests.fitting.test_adapt_collectives import lines
from tests.fitting.test_collectives import write
from traincast import FileFormatError, learned_cost_model
from traincast.estimate.bundle import load_bundle, save_bundle

PREDICT = ["predict", GPT, "--precision", "bf16", "--global-batch", "32", "--strategy", "dp=16", "--cluster"]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = lines(interconnect="NVSwitch + 8x400G NDR IB")
    return write(tmp_path_factory.mktemp("log") / "lines.parquet", rows)


@pytest.fixture
def mine(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    said = " ".join(run(capsys, "fit", "collectives", str(table), "-o", str(tmp_path / "mine")).split())
    assert "adapted to 10 points of lab" in said
    assert "each point estimated from the others: MAPE" in said
    return tmp_path / "mine"


def test_a_forecast_uses_the_adapted_bundle(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without = run_json(capsys, *PREDICT, "dgx-h100:2")
    report = run_json(capsys, *PREDICT, "dgx-h100:2", "--bundle", str(mine))
    (use,) = report["bundles"]
    assert use["collectives"] == 1.0
    assert report["exposed_communication_s"] > 1.3 * without["exposed_communication_s"]
    four = run_json(capsys, *[word.replace("dp=16", "dp=32") for word in PREDICT], "dgx-h100:4", "--bundle", str(mine))
    assert any("none of 32 ranks like this" in warning for warning in four["warnings"])


def test_a_bundle_of_other_links_says_what_it_covers(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cluster in ("dgx-a100:2", "p5.48xlarge:2"):
        line = run(capsys, *PREDICT, cluster, "--bundle", str(mine), code=2)
        assert "it covers collectives between nodes over infiniband on h100-sxm5-80gb" in line


def test_a_json_fit_says_what_was_adapted(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapted = run_json(capsys, "fit", "collectives", str(table), "-o", str(tmp_path / "a"))
    assert adapted["adapted"].startswith("adapted to 10 points")
    curves = run_json(capsys, "fit", "collectives", str(table), "-o", str(tmp_path / "b"), "--no-adapt")
    assert curves["adapted"] == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["validate", "collectives", "{table}", "--own-points", "-1"], "--own-points"),
        (["validate", "collectives", "{table}", "--own-points", "many"], "--own-points"),
        (["validate", "collectives", "nowhere.csv", "--own-points", "10"], "no such file"),
        (["fit", "collectives", "{table}", "-o", "b", "--adapt", "--rivals"], "leave out rivals and prior"),
        (["fit", "collectives", "{table}", "-o", "b", "--prior", "nowhere.csv"], "no such file"),
        (
            ["profile", "collectives", "--local", "2", "--concurrent-groups", "0", "-o", "t.parquet"],
            "--concurrent-groups",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    words: list[str], said: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in run(capsys, *(word.replace("{table}", str(table)) for word in words), code=2)


def test_own_points_in_the_json(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "validate", "collectives", str(table), "--own-points", "4")
    used = [r for r in found["rows"] if r["status"] == "skipped"]
    assert [r["reason"] for r in used] == ["used to adapt"] * 4
    assert found["summary"]["all"]["n"] == 6
    assert {"index", "source", "measured", "predicted", "low", "high", "status", "reason", "assumed"} <= set(used[0])


def drop(name: str) -> Change:
    return lambda model: model.pop(name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop("prior"), "no prior"),
        (lambda model: model["adapted"].pop("links"), "points of an adapted system are damaged: 'links'"),
        (lambda model: model["adapted"].update(words=[]), "damaged: list index out of range"),
        (lambda model: model["adapted"].update(condition={}), "points of an adapted system are damaged"),
        (lambda model: model["prior"].pop("noise"), "prior of unmeasured systems is damaged"),
        (lambda model: model.update(systems=[1]), "model.systems is [1]"),
    ],
)
def test_a_damaged_adapted_bundle_is_refused(mine: Path, change: Change, said: str) -> None:
    bundle = load_bundle(mine)
    arrays = bundle.arrays()
    card = json.loads(json.dumps(bundle.card))
    change(card["model"])
    save_bundle(mine, card, arrays)
    with pytest.raises(FileFormatError) as raised:
        learned_cost_model([mine])
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_shipped_bundle_has_a_prior_and_names_its_systems() -> None:
    (model,) = learned_cost_model().collectives
    assert model.prior is not None
    assert model.adapted is None
    assert "CSCS Alps" in model.card["systems"]
    assert 1.0 < min(model.prior.spread) < max(model.prior.spread) < 2.0
