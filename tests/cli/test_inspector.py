"""``fit resources``, ``resources simulate``, and ``predict --resources --bundle``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_fit import run
from tests.fitting.inspector.test_fit import QUICK, rows
from traincast.fitting.inspector.fit import fit_resources
from traincast.fitting.inspector.runs import write_runs

PREDICT = "predict alexnet --cluster dgx-1-v100:1x2 --strategy dp=2 --global-batch 16 --precision fp32".split()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("inspector")
    write_runs(folder / "runs.csv", rows(24))
    return fit_resources([folder / "runs.csv"], output=folder / "bundle", **QUICK).bundle


@pytest.mark.long(guard="fitting/inspector/test_fit.py::test_an_inspector_is_adapted_to_another_table")
def test_an_inspector_is_fitted_and_adapted(bundle: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = ["fit", "resources", str(bundle.parent / "runs.csv"), "-o", str(tmp_path / "new"), "--epochs", "1"]
    out, _ = run(capsys, *call, "--from", str(bundle), "--json")
    said = json.loads(out)
    assert said["runs"] == 24
    assert set(said["scores"]["memory"]) == {"burst_amount", "burst_s", "idle_s"}
    out, _ = run(capsys, *call, "--grouping", "uniform", "--num-groups", "4", "--rivals")
    assert "patterns predicted" in out
    assert "LightGBM" in out


def test_predict_gives_the_figures_of_the_inspector(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, *PREDICT, "--resources", "--bundle", str(bundle), "--json")
    said = json.loads(out)
    assert said["resources_by"] == str(bundle)
    assert set(said["resources"]) == set(said["timeline_resources"]) == {"compute", "memory", "receive", "send"}
    out, _ = run(capsys, *PREDICT, "--resources", "--bundle", str(bundle))
    assert "as the inspector in" in " ".join(out.split())


def test_an_inspector_without_resources_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, said = run(capsys, *PREDICT, "--bundle", str(bundle), code=2)
    assert "add --resources" in said
    _, said = run(capsys, *PREDICT, "--resources", "--bundle", str(bundle.parent / "no"), code=2)
    assert "is no bundle" in said


@pytest.mark.long(guard="fitting/inspector/test_fit.py::test_simulated_runs_resume_from_their_journal")
def test_simulated_runs_are_written_as_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = ["resources", "simulate", "--model", "alexnet", "--workers", "1", "--json"]
    out, _ = run(capsys, *call, "--runs", "2", "-o", str(tmp_path / "runs.csv"))
    said = json.loads(out)
    assert said["runs"] + said["left_out"] == 2
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + said["runs"]
    _, error = run(capsys, *call, "--runs", "2", "-o", str(tmp_path / "runs.txt"), code=2)
    assert "ends in .csv" in error
