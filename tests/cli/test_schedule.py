"""``traincast schedule`` says how a queue fared, for people and programs, and refuses what cannot be in one line."""

from __future__ import annotations

import csv
import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from traincast import Metrics
from traincast.cli.main import main
from traincast.errors import RequestError
from traincast.scheduling import POLICIES
from traincast.scheduling.ask import ScheduleAsk
from traincast.scheduling.queue.outcome import COLUMNS

JOBS = str(Path(__file__).parents[2] / "examples" / "jobs.csv")
ON = ["--nodes", "2x8"]
HEADER = "job_id,submit_s,num_gpus,duration_s,vc\n"
FIGURES = {field.name for field in fields(Metrics)} | {"utilisation"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["schedule", *arguments])
    shown = capsys.readouterr()
    assert stopped.value.code == 0, shown.err
    assert shown.err == ""
    return shown.out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def write(path: Path, *lines: str) -> str:
    path.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_json_has_all_figures_of_all_jobs_and_of_each_virtual_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, JOBS, *ON, "--policy", "easy", "--placement", "consolidated")
    assert set(found) == FIGURES | {
        *("trace", "format", "num_nodes", "num_gpus", "gpu_types", "placement", "estimates", "load", "seed", "notes"),
        *("policy", "virtual_clusters"),
    }
    assert (found["policy"], found["num_jobs"], found["num_gpus"]) == ("easy", 40, 16)
    assert set(found["virtual_clusters"]) == {"research", "products"}
    assert all(set(figures) == FIGURES for figures in found["virtual_clusters"].values())
    assert sum(figures["num_jobs"] for figures in found["virtual_clusters"].values()) == 40


def test_the_output_has_exactly_its_columns_and_exact_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    jobs = write(tmp_path / "jobs.csv", "a,0,2,100,", "b,10.25,1,50.125,", "c,20,0.5,7,")
    run(capsys, jobs, "--nodes", "2x1", "--jobs-out", str(tmp_path / "fates.csv"))
    lines = (tmp_path / "fates.csv").read_text(encoding="utf-8").splitlines()
    assert lines == [
        "job_id,submit_s,start_s,end_s,n_gpus,jct_s,queue_s,preemptions,restarts,nodes",
        "a,0,0,100,2,100,0,0,0,node0;node1",
        "b,10.25,100,150.125,1,139.875,89.75,0,0,node0",
        "c,20,100,107,0.5,87,80,0,0,node1",
    ]
    assert lines[0] == ",".join(COLUMNS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fates.csv", "jobs.csv"]


def test_the_output_for_people_has_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, JOBS, *ON, "--policy", "easy")
    for word in ("completion time, mean", "median", "99th percentile", "queueing", "makespan", "utilization"):
        assert word in text
    for word in ("fragmentation", "preemptions", "restarts", "fairness", "by virtual cluster", "research", "products"):
        assert word in text


def test_policies_are_compared_side_by_side_and_the_first_is_the_main_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, JOBS, *ON, "--compare", "fifo,sjf,srtf")
    assert [each["policy"] for each in found["compare"]] == ["fifo", "sjf", "srtf"]
    assert found["policy"] == "fifo"
    assert all(found["compare"][0][name] == found[name] for name in FIGURES)
    assert found["compare"][2]["mean_jct_s"] < found["compare"][0]["mean_jct_s"]
    assert set(found["compare"][1]["virtual_clusters"]) == {"research", "products"}
    text = run(capsys, JOBS, *ON, "--compare", "fifo,sjf", "--policy", "easy")
    assert "policies side by side" in text
    assert [line.split()[0] for line in text.splitlines() if line[1:5] in ("easy", "fifo", "sjf ")] == [
        *("easy", "fifo", "sjf"),
    ]


def test_every_policy_can_be_compared_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, JOBS, *ON, "--compare", "all")
    assert [each["policy"] for each in found["compare"]] == list(POLICIES)


def test_a_policy_of_ones_own_is_found_in_the_current_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_in_line.py").write_text(
        "from traincast.scheduling import Policy\n"
        "class InLine(Policy):\n"
        "    def decide(self, state):\n"
        "        for run in list(state.waiting.values()):\n"
        "            if not state.start(run):\n"
        "                return\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = run_json(capsys, JOBS, *ON, "--compare", "fifo,mine_in_line:InLine")
    assert found["compare"][1]["mean_jct_s"] == pytest.approx(found["compare"][0]["mean_jct_s"])


def test_failures_restart_jobs_and_cost_work_and_checkpoints_save_some(capsys: pytest.CaptureFixture[str]) -> None:
    fails = ["--mtbf", "node=12h,device=5d", "--repair", "node=30min,device=2h", "--weibull-shape", "0.8"]
    without = run_json(capsys, JOBS, *ON, *fails, "--restart-cost", "5min")
    saved = run_json(capsys, JOBS, *ON, *fails, "--checkpoint-interval", "10min", "--checkpoint-cost", "1s+0.5s/gpu")
    assert without["restarts"] > 0
    assert without["lost_gpu_s"] > saved["lost_gpu_s"] > 0
    assert without["goodput"] < 1
    text = run(capsys, JOBS, *ON, *fails, "--policy", "srtf")
    assert "lost to failures" in text
    assert "-0.0" not in text


def test_failures_that_are_known_come_from_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    jobs = write(tmp_path / "jobs.csv", "a,0,8,100,", "b,0,8,100,")
    events = tmp_path / "events.csv"
    events.write_text("time_s,kind,target,repair_s,gpu\n50,device,node0,10,3\n", encoding="utf-8")
    out = tmp_path / "fates.csv"
    run(capsys, jobs, *ON, "--failure-events", str(events), "--jobs-out", str(out))
    with out.open(encoding="utf-8") as file:
        rows = {row["job_id"]: row for row in csv.DictReader(file)}
    assert (rows["a"]["restarts"], rows["a"]["end_s"]) == ("1", "160")
    assert (rows["b"]["restarts"], rows["b"]["end_s"]) == ("0", "100")


def test_a_quota_holds_a_virtual_cluster_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    jobs = write(tmp_path / "jobs.csv", *(f"j{n},0,4,100,{'a' if n % 2 else 'b'}" for n in range(4)))
    free = run_json(capsys, jobs, *ON)
    held = run_json(capsys, jobs, *ON, "--quota", "a=4")
    assert free["makespan_s"] == 100
    assert held["makespan_s"] == 200
    assert held["virtual_clusters"]["b"]["makespan_s"] == 100


def test_node_lists_types_and_racks_make_the_cluster(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = run_json(capsys, JOBS, "--nodes", "2x8:V100+4x4:T4")
    assert (found["num_nodes"], found["num_gpus"]) == (6, 32)
    assert found["gpu_types"] == {"V100": 16, "T4": 16}
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node,gpu_type,gpus,rack\nn1,V100,8,r1\nn2,V100,8,r1\n", encoding="utf-8")
    assert run_json(capsys, JOBS, "--cluster-file", str(nodes))["num_gpus"] == 16
    racks = run_json(capsys, JOBS, *ON, "--nodes-per-rack", "1", "--mtbf", "switch=12h", "--placement", "topology")
    assert racks["restarts"] > 0


def test_a_higher_load_queues_longer(capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = (run_json(capsys, JOBS, *ON, "--load", load) for load in ("0.5", "3"))
    assert slow["mean_queue_s"] < fast["mean_queue_s"]
    assert any("overload" in note for note in fast["notes"])


def test_a_study_gives_every_run_and_what_estimates_cost(capsys: pytest.CaptureFixture[str]) -> None:
    study = [JOBS, *ON, "--compare", "sjf,easy", "--estimates", "exact,noisy:0.5", "--seeds", "2", "--load", "1,2"]
    found = run_json(capsys, *study)
    assert len(found["study"]) == 2 * 2 * 2 * 2
    assert {row["load"] for row in found["study"]} == {1.0, 2.0}
    assert set(found["study"][0]) == FIGURES | {"policy", "placement", "estimates", "load", "seed"}
    assert [each["policy"] for each in found["compare"]] == ["sjf", "easy"]
    regret = {(each["policy"], each["estimates"], each["load"]): each["loss"] for each in found["regret"]}
    assert regret["sjf", "exact", 1.0] == 0
    text = run(capsys, *study)
    assert "means over 2 seeds" in text
    assert "change caused by estimates, compared with exact" in text


def test_processes_give_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("traincast.engines")
    here = run_json(capsys, JOBS, *ON, "--compare", "fifo,srtf")
    spread = run_json(capsys, JOBS, *ON, "--compare", "fifo,srtf", "--workers", "2")
    for one, other in zip(here["compare"], spread["compare"], strict=True):
        assert {name: one[name] for name in FIGURES} == {name: other[name] for name in FIGURES}


def test_estimates_of_users_are_taken_and_equal_runs_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    first, again = (run(capsys, JOBS, *ON, "--policy", "sjf", "--estimates", "user", "--json") for _ in range(2))
    assert first == again
    assert json.loads(first)["estimates"] == "user"


def test_notes_of_the_checks_come_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    jobs = write(tmp_path / "jobs.csv", "a,0,64,100,", "b,5,1,100,", "c,9,1,-3,")
    text = run(capsys, jobs, *ON, "--oversize", "drop", "--drop-invalid")
    assert text.splitlines()[0].startswith("note ")
    assert "left out as invalid" in text
    assert "larger than what the cluster can give" in text


def test_the_page_is_one_file_that_loads_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "queue.html"
    run(capsys, JOBS, *ON, "--compare", "fifo,easy", "--html", str(page))
    text = page.read_text(encoding="utf-8")
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert "default-src 'none'" in text
    assert "__TRAINCAST_DATA__" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["queue.html"]


def test_a_device_is_written_to_and_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, JOBS, *ON, "--jobs-out", os.devnull)
    assert not Path(os.devnull).is_file()


def test_pytorch_and_pandas_are_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    import subprocess

    code = (
        "import sys\nfrom traincast.cli.main import main\n"
        f"try:\n    main(['schedule', {JOBS!r}, '--nodes', '2x8'])\n"
        "except SystemExit as stop:\n    assert not stop.code\n"
        "sys.stderr.write(str([m for m in ('torch', 'pandas', 'numba', 'traincast.forecast') if m in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]"


def test_what_a_schedule_is_asked_is_json_and_refuses_what_it_does_not_know() -> None:
    ask = ScheduleAsk("jobs.csv", nodes="2x8", quota=("a=4",), compare="fifo,sjf", seeds=3)
    written = {"jobs": "jobs.csv", "nodes": "2x8", "quota": ("a=4",), "compare": "fifo,sjf", "seeds": 3}
    assert ask.to_dict() == written
    assert ScheduleAsk.from_dict(json.loads(json.dumps(written))) == ask
    assert (ask.policies(), ask.every_seed(), ask.loads()) == (["fifo", "sjf"], range(3), [1.0])
    with pytest.raises(RequestError, match="unknown key 'node': did you mean nodes"):
        ScheduleAsk.from_dict({"jobs": "jobs.csv", "node": "2x8"})
