"""``fit resources``, ``resources simulate``, and ``predict --resources --bundle``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.resources.inspector.test_fit import rows
from traincast.cli.main import main
from traincast.resources.inspector.runs import write_runs

PREDICT = "predict alexnet --cluster dgx-1-v100:1x2 --strategy dp=2 --global-batch 16 --precision fp32".split()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("inspector")
    write_runs(folder / "runs.csv", rows(24))
    assert main(["fit", "resources", str(folder / "runs.csv"), "-o", str(folder / "bundle"), "--epochs", "2"]) == 0
    return folder / "bundle"


def test_a_table_is_printed_or_json(bundle: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = str(bundle.parent / "runs.csv")
    call = ["fit", "resources", table, "-o", str(tmp_path / "new"), "--from", str(bundle), "--epochs", "1", "--json"]
    assert main(call) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["runs"] == 24
    assert set(said["scores"]["memory"]) == {"burst_amount", "burst_s", "idle_s"}


def test_predict_gives_the_figures_of_the_inspector(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PREDICT, "--resources", "--bundle", str(bundle), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["resources_by"] == str(bundle)
    assert set(said["resources"]) == set(said["timeline_resources"]) == {"compute", "memory", "receive", "send"}
    assert main([*PREDICT, "--resources", "--bundle", str(bundle)]) == 0
    assert "as the inspector in" in " ".join(capsys.readouterr().out.split())


def test_an_inspector_without_resources_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PREDICT, "--bundle", str(bundle)]) == 2
    assert "add --resources" in capsys.readouterr().err
    assert main([*PREDICT, "--resources", "--bundle", str(bundle), "--bundle", str(bundle.parent / "no")]) == 2
    assert "is no bundle" in capsys.readouterr().err


def test_simulated_runs_are_written_as_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = ["resources", "simulate", "-o", str(tmp_path / "runs.csv"), "--runs", "2", "--model", "alexnet"]
    assert main([*call, "--workers", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["runs"] + said["left_out"] == 2
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + said["runs"]
    assert main(["resources", "simulate", "-o", str(tmp_path / "runs.txt"), "--runs", "1"]) == 2
