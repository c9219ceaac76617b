"""Names of Python code in data files are refused before they are imported, unless the user allows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traincast.cli.main import main

MODULE = """\
from pathlib import Path

Path("ran").touch()

import torch


def small():
    return torch.nn.Linear(8, 8), torch.empty(4, 8)


def order(pp, microbatches, chunks):
    raise SystemExit("ran")
"""
RUNS = "source,model,n_gpus,gpu,seq,strategy,global_batch,framework,step_time_s\n"
JOBS = "job_id,submit_s,num_gpus,steps,model,batch,strategy\n"


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    said = capsys.readouterr()
    return int(stop.value.code or 0), said.out, said.err


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of the working folder that writes a file when it is imported."""
    monkeypatch.chdir(tmp_path)
    name = f"own_{abs(hash(tmp_path)) % 10**9}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    return name


@pytest.mark.parametrize(
    "row",
    ["mine,{}:small,1,H100,,dp=1,4,PyTorch,0.1", 'mine,bert-base,2,H100,128,"pp=2,schedule={}:order",4,PyTorch,0.1'],
)
def test_a_table_of_runs_does_not_run_code(row: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs.csv").write_text(RUNS + row.format(module) + "\n", encoding="utf-8")
    code, out, _ = run(["validate", "steps", "runs.csv", "--json"], capsys)
    (outcome,) = json.loads(out)["rows"]
    assert code == 0 and outcome["status"] == "skipped"
    assert "would run Python code: add --allow-code" in outcome["reason"]
    code, _, err = run(["calibrate", "runs.csv", "--cluster", "dgx-h100", "-o", "out.toml"], capsys)
    assert code == 2 and "add --allow-code" in err
    code, _, err = run(["validate", "steps", "runs.csv", "--explain", "0"], capsys)
    assert code == 2 and "add --allow-code" in err
    assert not Path("ran").exists()


def test_a_column_of_schedules_does_not_run_code(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    header = "source,model,n_gpus,gpu,seq,pp,micro_batch,global_batch,schedule,framework,step_time_s\n"
    row = f"mine,bert-base,2,H100,128,2,1,4,{module}:order,PyTorch,0.1\n"
    Path("runs.csv").write_text(header + row, encoding="utf-8")
    _, out, _ = run(["validate", "steps", "runs.csv", "--json"], capsys)
    assert "add --allow-code" in json.loads(out)["rows"][0]["reason"]
    assert not Path("ran").exists()


def test_the_user_may_allow_a_table_to_run_code(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs.csv").write_text(f"{RUNS}mine,{module}:small,1,H100,,dp=1,4,PyTorch,0.1\n", encoding="utf-8")
    _, out, _ = run(["validate", "steps", "runs.csv", "--allow-code", "--json"], capsys)
    assert json.loads(out)["rows"][0]["status"] == "ok"
    assert Path("ran").exists()


@pytest.mark.parametrize("row", ["1,0,1,10,{}:small,4,", '1,0,2,10,bert-base,4,"pp=2,schedule={}:order"'])
def test_a_trace_of_jobs_does_not_run_code(row: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("jobs.csv").write_text(JOBS + row.format(module) + "\n", encoding="utf-8")
    asked = ["schedule", "jobs.csv", "--nodes", "1x8:H100"]
    code, _, err = run(asked, capsys)
    assert code == 2 and "would run Python code: add --allow-code" in err and err.count("\n") == 1
    timed = JOBS.replace("steps", "duration_s,steps") + row.format(module).replace(",10,", ",60,10,") + "\n"
    Path("jobs.csv").write_text(timed, encoding="utf-8")
    code, _, err = run([*asked, "--estimates", "predicted"], capsys)
    assert code == 2 and "add --allow-code" in err
    assert not Path("ran").exists()


def test_the_user_may_allow_a_trace_to_run_code(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("jobs.csv").write_text(f"{JOBS}1,0,1,10,{module}:small,4,\n", encoding="utf-8")
    code, _, _ = run(["schedule", "jobs.csv", "--nodes", "1x8:H100", "--allow-code", "--json"], capsys)
    assert code == 0 and Path("ran").exists()
