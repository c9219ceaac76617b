"""``traincast schedule`` refuses what cannot be in one line, with exit code 2 and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_schedule import HEADER, JOBS, ON
from traincast.cli.main import main

REQUESTS: dict[str, tuple[list[str], str]] = {
    # what is asked for: arguments, a word the message must have
    "no jobs": ([], "JOBS"),
    "a log that is not there": (["missing.csv", *ON], "missing.csv"),
    "a log of an unknown format": ([JOBS, *ON, "--format", "slurm"], "slurm"),
    "a log that is no log of that format": ([JOBS, *ON, "--format", "swf"], "jobs.csv"),
    "no cluster": ([JOBS], "--nodes"),
    "two clusters": ([JOBS, *ON, "--cluster-file", "nodes.csv"], "one way"),
    "nodes without GPUs per node": ([JOBS, "--nodes", "5"], "without a number of GPUs"),
    "GPUs per node twice": ([JOBS, "--nodes", "5x8", "--gpus-per-node", "8"], "leave out"),
    "zero nodes": ([JOBS, "--nodes", "0", "--gpus-per-node", "8"], "0 nodes"),
    "negative nodes": ([JOBS, "--nodes", "-5", "--gpus-per-node", "8"], "-5 nodes"),
    "negative GPUs": ([JOBS, "--nodes", "5", "--gpus-per-node", "-8"], "-8"),
    "GPUs that are a word": ([JOBS, "--nodes", "5", "--gpus-per-node", "eight"], "eight"),
    "nodes beyond counting": ([JOBS, "--nodes", "99999999x8"], "99999999"),
    "nodes that are nonsense": ([JOBS, "--nodes", "5x"], "NODESxGPUS"),
    "a node list that is not there": ([JOBS, "--cluster-file", "missing.csv"], "missing.csv"),
    "negative racks": ([JOBS, *ON, "--nodes-per-rack", "-1"], "rack"),
    "an unknown policy": ([JOBS, *ON, "--policy", "fifa"], "fifo"),
    "an unknown policy to compare": ([JOBS, *ON, "--compare", "fifo,shortest"], "shortest"),
    "nothing to compare": ([JOBS, *ON, "--compare", "fifo,,sjf"], "--compare"),
    "a module that is not there": ([JOBS, *ON, "--policy", "no.such.module:Policy"], "no.such"),
    "a class that is not there": ([JOBS, *ON, "--policy", "json:Policy"], "Policy"),
    "a class that is no policy": ([JOBS, *ON, "--policy", "collections:Counter"], "Counter"),
    "a class that wants arguments": ([JOBS, *ON, "--policy", "fractions:Fraction"], "Fraction"),
    "a policy that decides nothing": ([JOBS, *ON, "--policy", "traincast.scheduling:Policy"], "NotImplementedError"),
    "an unknown placement": ([JOBS, *ON, "--placement", "consolidate"], "consolidated"),
    "a placement that is none": ([JOBS, *ON, "--placement", "collections:Counter"], "Counter"),
    "unknown estimates": ([JOBS, *ON, "--estimates", "perfect"], "perfect"),
    "noise that is not a number": ([JOBS, *ON, "--estimates", "noisy:nan"], "nan"),
    "noise that is a word": ([JOBS, *ON, "--estimates", "noisy:much"], "much"),
    "negative noise": ([JOBS, *ON, "--estimates", "noisy:-1"], "-1"),
    "estimates with a gap": ([JOBS, *ON, "--estimates", "exact,"], "--estimates"),
    "predictions of jobs without a model": ([JOBS, *ON, "--estimates", "predicted"], "model"),
    "a quota without a number": ([JOBS, *ON, "--quota", "research"], "VC=N"),
    "a quota of nothing": ([JOBS, *ON, "--quota", "research=0"], "research"),
    "a quota that is not a number": ([JOBS, *ON, "--quota", "research=nan"], "nan"),
    "a quota given twice": ([JOBS, *ON, "--quota", "a=1", "--quota", "a=2"], "twice"),
    "a quota below a job": ([JOBS, *ON, "--quota", "research=2"], "never start"),
    "jobs larger than the cluster": ([JOBS, "--nodes", "1x4"], "never start"),
    "an oversize rule that is none": ([JOBS, *ON, "--oversize", "split"], "split"),
    "a load of zero": ([JOBS, *ON, "--load", "0"], "--load"),
    "a load that is not a number": ([JOBS, *ON, "--load", "nan"], "nan"),
    "a negative load": ([JOBS, *ON, "--load", "-1"], "-1"),
    "a load beyond reason": ([JOBS, *ON, "--load", "1e300"], "load"),
    "failures of what does not fail": ([JOBS, *ON, "--mtbf", "cable=3d"], "cable"),
    "failures without a time": ([JOBS, *ON, "--mtbf", "node"], "KIND=TIME"),
    "failures after a time that is none": ([JOBS, *ON, "--mtbf", "node=often"], "often"),
    "failures after no time": ([JOBS, *ON, "--mtbf", "node=0"], "mtbf_s"),
    "failures after NaN": ([JOBS, *ON, "--mtbf", "node=nan"], "nan"),
    "negative failures": ([JOBS, *ON, "--mtbf", "node=-3d"], "-3d"),
    "failures of switches that are not there": ([JOBS, *ON, "--mtbf", "switch=3d"], "switch"),
    "repairs without failures": ([JOBS, *ON, "--repair", "1h"], "--mtbf"),
    "repairs of something else": ([JOBS, *ON, "--mtbf", "node=3d", "--repair", "device=1h"], "device"),
    "a repair that is no time": ([JOBS, *ON, "--mtbf", "node=3d", "--repair", "soon"], "soon"),
    "a shape of zero": ([JOBS, *ON, "--mtbf", "node=3d", "--weibull-shape", "0"], "--weibull-shape"),
    "a shape without failures": ([JOBS, *ON, "--weibull-shape", "0.7"], "--mtbf"),
    "failures faster than checkpoints": ([JOBS, *ON, "--mtbf", "node=1s", "--repair", "0"], "failures come faster"),
    "events that are not there": ([JOBS, *ON, "--failure-events", "missing.csv"], "missing.csv"),
    "a negative checkpoint cost": ([JOBS, *ON, "--checkpoint-cost", "-5"], "-5"),
    "a checkpoint cost per node": ([JOBS, *ON, "--checkpoint-cost", "5s/node"], "gpu"),
    "a restore cost that is NaN": ([JOBS, *ON, "--restore-cost", "nan"], "nan"),
    "a restart cost that is infinite": ([JOBS, *ON, "--restart-cost", "inf"], "inf"),
    "an interval that is a word": ([JOBS, *ON, "--checkpoint-interval", "hourly"], "hourly"),
    "a seed that is a word": ([JOBS, *ON, "--seed", "luck"], "luck"),
    "no seeds": ([JOBS, *ON, "--seeds", "0"], "--seeds"),
    "no workers": ([JOBS, *ON, "--workers", "0"], "--workers"),
    "an engine that is none": ([JOBS, *ON, "--engine", "steam"], "steam"),
    "hardware without a name": ([JOBS, *ON, "--hardware", "V100"], "TYPE=NAME"),
    "jobs into a folder that is not there": ([JOBS, *ON, "--jobs-out", "/no/such/folder/f.csv"], "folder"),
    "jobs into a folder": ([JOBS, *ON, "--jobs-out", "/tmp"], "folder"),
    "jobs into /proc": ([JOBS, *ON, "--jobs-out", "/proc/fates.csv"], "/proc/fates.csv"),
    "a page into /proc": ([JOBS, *ON, "--html", "/proc/page.html"], "/proc/page.html"),
    "a page over the log": ([JOBS, *ON, "--html", JOBS], "JOBS"),
    "two outputs in one": ([JOBS, *ON, "--html", "out", "--jobs-out", "out"], "--jobs-out"),
}


def one_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["schedule", *arguments])
    shown = capsys.readouterr()
    assert stopped.value.code == 2, shown.err
    lines = shown.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("traincast: ")
    assert len(lines[0]) < 700
    assert "Traceback" not in lines[0]
    return lines[0]


@pytest.mark.parametrize("what", REQUESTS)
def test_a_wrong_request_gets_one_line_and_exit_code_two(
    what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, word = REQUESTS[what]
    assert word in one_line(capsys, arguments)
    assert list(tmp_path.iterdir()) == []


TRACES: dict[str, tuple[str, str]] = {
    "an empty file": ("", "empty"),
    "a header alone": (HEADER, "no jobs"),
    "another table": ("a,b\n1,2\n", "not a job log"),
    "a missing column": ("job_id,submit_s,duration_s\na,0,1\n", "num_gpus"),
    "a column twice": ("job_id,submit_s,num_gpus,duration_s,submit_s\na,0,1,1,0\n", "twice"),
    "a line with too many cells": (HEADER + "a,0,1,1,,,,\n", "line 2"),
    "a negative duration": (HEADER + "a,0,1,-1,\n", "duration_s"),
    "a duration of NaN": (HEADER + "a,0,1,nan,\n", "duration_s"),
    "an infinite duration": (HEADER + "a,0,1,inf,\n", "duration_s"),
    "a duration that is a word": (HEADER + "a,0,1,long,\n", "long"),
    "a submission before time": (HEADER + "a,-5,1,1,\n", "submit_s"),
    "a submission in milliseconds": (HEADER + "a,1700000000000,1,1,\n", "submit_s"),
    "no GPUs": (HEADER + "a,0,0,1,\n", "num_gpus"),
    "one and a half GPUs": (HEADER + "a,0,1.5,1,\n", "num_gpus"),
    "no name": (HEADER + ",0,1,1,\n", "job_id"),
    "a name twice": (HEADER + "a,0,1,1,\na,1,1,1,\n", "its own job_id"),
    "a model without steps": ("job_id,submit_s,num_gpus,duration_s,model\na,0,1,,resnet50\n", "steps"),
    "a model that is not known": (
        "job_id,submit_s,num_gpus,duration_s,model,batch,steps\na,0,1,,resnet51,8,9\n",
        "resnet51",
    ),
}


@pytest.mark.parametrize("what", TRACES)
def test_a_bad_trace_gets_one_line_and_exit_code_two(
    what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text, word = TRACES[what]
    path = tmp_path / "jobs.csv"
    path.write_text(text, encoding="utf-8")
    assert word in one_line(capsys, [str(path), "--nodes", "1x8:dgx-1-v100"])
    assert list(tmp_path.iterdir()) == [path]


NODES: dict[str, tuple[str, str]] = {
    "an empty list": ("", "empty"),
    "a list without nodes": ("node,gpu_type,gpus\n", "no nodes"),
    "another table": ("a,b\n1,2\n", "gpus"),
    "negative GPUs": ("node,gpu_type,gpus\nn1,V100,-8\n", "-8"),
    "half a GPU": ("node,gpu_type,gpus\nn1,V100,0.5\n", "0.5"),
    "GPUs that are a word": ("node,gpu_type,gpus\nn1,V100,many\n", "many"),
    "a node twice": ("node,gpu_type,gpus\nn1,V100,8\nn1,V100,8\n", "again"),
    "no GPUs at all": ("node,gpu_type,gpus\nn1,V100,0\n", "no node with a GPU"),
}


@pytest.mark.parametrize("what", NODES)
def test_a_bad_node_list_gets_one_line_and_exit_code_two(
    what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text, word = NODES[what]
    path = tmp_path / "nodes.csv"
    path.write_text(text, encoding="utf-8")
    assert word in one_line(capsys, [JOBS, "--cluster-file", str(path)])


EVENTS: dict[str, tuple[str, str]] = {
    "another table": ("a,b\n1,2\n", "time_s"),
    "no failures": ("time_s,kind,target,repair_s\n", "no failures"),
    "a negative time": ("time_s,kind,target,repair_s\n-5,node,node0,1\n", "-5"),
    "no time": ("time_s,kind,target,repair_s\n,node,node0,1\n", "nothing"),
    "a time that is a word": ("time_s,kind,target,repair_s\nsoon,node,node0,1\n", "soon"),
    "a negative repair": ("time_s,kind,target,repair_s\n5,node,node0,-1\n", "-1"),
    "an unknown kind": ("time_s,kind,target,repair_s\n5,cable,node0,1\n", "cable"),
    "an unknown node": ("time_s,kind,target,repair_s\n5,node,node99,1\n", "node99"),
    "a GPU that is not there": ("time_s,kind,target,repair_s,gpu\n5,device,node0,1,8\n", "GPU 8"),
    "half a GPU": ("time_s,kind,target,repair_s,gpu\n5,device,node0,1,0.5\n", "0.5"),
    "a cluster that is down for ever": (
        "time_s,kind,target,repair_s\n5,node,node0,\n5,node,node1,\n",
        "wait for ever",
    ),
}


@pytest.mark.parametrize("what", EVENTS)
def test_a_bad_list_of_failures_gets_one_line_and_exit_code_two(
    what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text, word = EVENTS[what]
    path = tmp_path / "events.csv"
    path.write_text(text, encoding="utf-8")
    assert word in one_line(capsys, [JOBS, *ON, "--failure-events", str(path)])
