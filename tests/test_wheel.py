"""A wheel of this repository holds the whole package, and forecasts by name where there is no PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from benchmarks.wheel import ROOT, build

pytest.importorskip("setuptools.command.bdist_wheel", reason="building a wheel needs setuptools 70.1 or later")

_FORECAST = """
import sys
sys.modules["torch"] = None
import traincast
report = traincast.predict("llama3-8b", cluster="dgx-h100:4", strategy="dp=8,tp=4", global_batch=256).report
print(traincast.__file__)
print(report.step_s)
"""


def test_a_wheel_holds_every_file_and_answers_by_name_without_pytorch(tmp_path: Path) -> None:
    package = ROOT / "src" / "traincast"
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(build(tmp_path)) as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == sources
        wheel.extractall(tmp_path / "installed")

    def forecast(place: Path) -> list[str]:
        environment = {**os.environ, "PYTHONPATH": str(place), "TRAINCAST_CACHE": str(tmp_path / "none")}
        command = [sys.executable, "-c", _FORECAST]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
        return done.stdout.splitlines()

    installed, here = forecast(tmp_path / "installed"), forecast(ROOT / "src")
    assert installed[0].startswith(str(tmp_path))
    assert installed[1] == here[1]
    assert not (tmp_path / "none").exists()
