"""What a job draws, on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import traincast
from tests.scheduling.described import MLP
from traincast.cli.main import main
from traincast.files import finite

GPT = "gpt:layers=4,hidden=256,heads=8,vocab=1000,seq=128"
PREDICT = ("predict", GPT, "--cluster", "dgx-h100:2", "--global-batch", "64", "--strategy", "dp=16")
WHAT_IF = ("resources", "whatif", GPT, "--cluster", "dgx-a100:2", "--global-batch", "64", "--strategy", "dp=16")
FIGURES = {"burst_amount", "burst_s", "idle_s"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    shown = capsys.readouterr()
    assert stopped.value.code == code, shown.err
    return shown.err if code else shown.out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def test_predict_has_the_twelve_figures_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *PREDICT, "--resources")
    assert set(report["resources"]) == {"compute", "memory", "receive", "send"}
    for use in report["resources"].values():
        assert set(use) == {*FIGURES, "pattern", "refused", "low", "high"}
        assert set(use["low"]) == set(use["high"]) == FIGURES
        assert use["pattern"] in ("idle", "bursts", "busy")
    assert "resources" not in run_json(capsys, *PREDICT)
    parts = {name: value for name, value in report["split"].items() if name != "operators"}
    assert sum(parts.values()) == pytest.approx(report["step_s"])


def test_figures_that_a_rate_cannot_carry_are_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """A step of some milliseconds, with 500 samples per second, has bursts that are shorter than two samples."""
    asked = (*PREDICT, "--resources", "--hz", "500")
    uses = run_json(capsys, *asked)["resources"]
    refused = [(use, name, reason) for use in uses.values() for name, reason in use["refused"].items()]
    assert refused
    for use, name, reason in refused:
        assert use[name] is use["low"][name] is use["high"][name] is None
        assert "samples of 2 ms" in reason
    shown = " ".join(run(capsys, *asked).split())
    assert "refused: " in shown
    assert "samples of 2 ms" in shown


def test_predict_shows_curves_and_writes_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "use.csv"
    shown = run(capsys, *PREDICT, "--resources-csv", str(path), "--hz", "1000")
    assert "1000 samples per second" in shown
    assert "of its node's NICs" in shown
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["scope"] for row in rows} == {"rank", "node"}
    assert {row["number"] for row in rows if row["scope"] == "node"} == {"0", "1"}
    first = [row for row in rows if row["scope"] == "rank" and row["number"] == "0"]
    assert float(first[0]["time_s"]) == pytest.approx(0.001)
    assert {"compute", "memory", "memory_held", "receive", "send", "host", "flops"} <= set(first[0])


def test_a_rate_of_zero_is_as_fine_as_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert "finely sampled" in run(capsys, *PREDICT, "--resources", "--hz", "0")
    assert "samples per second" in run(capsys, *PREDICT, "--hz", "-3", code=2)


@pytest.mark.long(but=2)
@pytest.mark.parametrize(
    "change", [("--to-gpu", "h100-sxm5-80gb"), ("--to-workers", "8"), ("--to-servers", "2"), ("--to-batch", "128")]
)
def test_a_question_in_one_command(capsys: pytest.CaptureFixture[str], change: tuple[str, str]) -> None:
    answer = run_json(capsys, *WHAT_IF, *change)
    assert set(answer) == {"before", "after", "step_change", "changes", "change_ranges"}
    assert all(set(changes) == FIGURES for changes in answer["changes"].values())
    shown = run(capsys, *WHAT_IF, *change)
    assert "before" in shown and "after" in shown


def test_python_gets_what_the_command_line_prints(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = traincast.whatif_resources(
        GPT, cluster="dgx-a100:2", global_batch=64, strategy="dp=16", to_workers=8, hz=200.0, use_cache=True
    )
    printed = run_json(capsys, *WHAT_IF, "--to-workers", "8", "--hz", "200")
    assert finite(answer.to_dict()) == printed
    made = traincast.simulate_resources(tmp_path / "one.csv", runs=2, models=["alexnet"], seed=3)
    words = ("--output", str(tmp_path / "two.csv"), "--runs", "2", "--model", "alexnet", "--seed", "3")
    assert run_json(capsys, "resources", "simulate", *words) == made.to_dict() | {"table": str(tmp_path / "two.csv")}
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "two.csv").read_text()


def test_a_question_without_a_change_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing changes" in run(capsys, *WHAT_IF, code=2)


@pytest.mark.long(guard="scheduling/test_contention.py::test_jobs_with_parameter_servers_meet_node_by_node")
def test_schedule_compares_ways_to_share(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    lines = ["job_id,submit_s,num_gpus,model,batch,steps", *(f'{n},{n},12,"{MLP}",1200,2000' for n in range(4))]
    path.write_text("\n".join(lines) + "\n")
    request = ("schedule", str(path), "--nodes", "3x8:V100", "--hardware", "V100=p3.16xlarge")
    data = run_json(capsys, *request, "--share", "exclusive,blind,complementary")
    assert [entry["share"] for entry in data["share"]] == ["exclusive", "blind", "complementary"]
    assert data["share"][0]["gain"] == 0.0
    assert data["share"][0]["mean_slowdown"] == pytest.approx(1.0)
    assert data["share"][1]["mean_slowdown"] > 1.0
    assert "what sharing nodes gains" in run(capsys, *request, "--share", "exclusive,blind")
    assert "share" not in run_json(capsys, *request)
    assert "did you mean" in run(capsys, *request, "--share", "blinds", code=2)
    both = (*request, "--share", "blind,exclusive", "--compare", "fifo,sjf")
    assert "compare policies" in run(capsys, *both, code=2)
