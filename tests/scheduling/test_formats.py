"""Logs in the layout in which their publishers give them: values, what is left out, and what is rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from traincast import FileFormatError, JobLog
from traincast.scheduling.joblogs.read import load_jobs

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"


def load(folder: Path, name: str, text: str, **options: Any) -> JobLog:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return load_jobs(path, **options)


def rows(log: JobLog, *names: str) -> list[tuple[object, ...]]:
    return list(zip(*(log[name].tolist() for name in names), strict=True))


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    """An attempt of Philly on machines with so many GPUs each."""
    detail = [{"ip": f"m{i}", "gpus": [f"gpu{g}" for g in range(n)]} for i, n in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


def philly_job(name: str, submitted: str | None, *attempts: dict[str, Any], status: str = "Pass") -> dict[str, Any]:
    return {
        "status": status,
        "vc": "ee9e8c",
        "jobid": name,
        "attempts": list(attempts),
        "submitted_time": submitted,
        "user": "ce2f4c",
    }


PHILLY = [
    philly_job(
        "application_1",
        "2017-10-07 01:11:39",
        attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8),
        attempt("2017-10-07 01:13:30", "2017-10-09 06:53:12", 8),
    ),
    philly_job("application_0", "2017-10-07 01:11:29", attempt("2017-10-07 01:12:00", "2017-10-07 01:12:10", 8, 8)),
    philly_job(
        "failed", "2017-10-07 02:00:00", attempt("2017-10-07 02:00:00", "2017-10-07 02:00:00", 1), status="Failed"
    ),
    philly_job("never", "2017-10-07 02:00:00", status="Killed"),
    philly_job("running", "2017-10-07 02:00:00", attempt("2017-10-07 02:00:00", None, 1)),
    philly_job("unlogged", "2017-10-07 02:00:00", attempt("None", "None", 1)),
    philly_job("no gpus", "2017-10-07 02:00:00", attempt("2017-10-07 02:00:00", "2017-10-07 02:10:00")),
]


@pytest.mark.parametrize("indent", [None, 4])
def test_a_job_of_philly_runs_for_the_sum_of_its_attempts(indent: int | None, tmp_path: Path) -> None:
    log = load(tmp_path, "cluster_job_log", json.dumps(PHILLY, indent=indent))
    assert log.format == "philly"
    assert rows(log, "job_id", "submit_s", "num_gpus", "duration_s", "status") == [
        ("application_0", 0.0, 16.0, 10.0, "Pass"),
        ("application_1", 10.0, 8.0, 74.0 + 2 * 86400 + 5 * 3600 + 39 * 60 + 42, "Pass"),
        ("failed", 2911.0, 1.0, 0.5, "Failed"),
    ]
    assert (log.jobs[0].vc, log.jobs[0].user) == ("ee9e8c", "ce2f4c")
    assert [note.removeprefix(f"{log.path}: ") for note in log.notes] == [
        "1 job logged as 0 s counts as 0.5 s",
        "4 jobs left out: 1 that never ran, 1 still running when the log ends, 1 without a start or an end, "
        "1 without GPUs",
        "jobs were not in order of submission: sorted by submit_s",
    ]
    assert log.where(0) == "entry 2 (job application_0)"


def test_a_job_of_philly_without_submission_is_refused_with_its_entry(tmp_path: Path) -> None:
    text = json.dumps(
        [philly_job("a", "None", attempt("2017-10-07 02:00:00", "2017-10-07 02:10:00", 1)), PHILLY[0], {"jobid": 1}]
    )
    with pytest.raises(FileFormatError, match="entry 3 lacks submitted_time"):
        load(tmp_path, "log.json", text)
    log = load(tmp_path, "log.json", text, drop_invalid=True)
    assert log["job_id"].tolist() == ["application_1"]
    assert "entry 1 (job a) has nothing" in log.notes[0]
    assert log.notes[1].endswith("1 job left out: 1 without what a job of Philly has")


def test_helios_keeps_failed_and_cancelled_jobs_and_leaves_out_those_without_gpus(tmp_path: Path) -> None:
    log = load(
        tmp_path,
        "cluster_log.csv",
        HELIOS
        + "1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0\n"
        + "1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0\n"
        + "1425513,uzqls,vcpDC,16,1,2,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:51:28,2020-06-17 14:15:21,,600\n"
        + "1425514,uzqls,vcpDC,0,1,1,COMPLETED,2020-06-09 18:41:29,2020-06-09 18:41:29,2020-06-09 18:41:39,10,0\n"
        + "1425515,uzqls,vcpDC,2,1,1,CANCELLED,2020-06-09 18:41:30,,2020-06-09 18:41:39,,9\n"
        + "1425516,uzqls,vcpDC,2,1,1,FAILED,2020-06-09 18:41:31,2020-06-09 18:41:31,2020-06-09 18:41:31,0,0\n",
    )
    assert log.format == "helios"
    assert rows(log, "job_id", "submit_s", "num_gpus", "duration_s", "status", "vc", "user") == [
        ("1425511", 0.0, 1.0, 36848.0, "COMPLETED", "vcJkd", "uXBbc"),
        ("1425512", 26.0, 4.0, 249.0, "FAILED", "vchbv", "uVMrF"),
        ("1425513", 27.0, 16.0, 674633.0, "CANCELLED", "vcpDC", "uzqls"),
        ("1425516", 30.0, 2.0, 0.5, "FAILED", "vcpDC", "uzqls"),
    ]
    assert [note.removeprefix(f"{log.path}: ") for note in log.notes] == [
        "1 job logged as 0 s counts as 0.5 s",
        "2 jobs left out: 1 without GPUs, 1 that never ran",
    ]
    assert log.lines.tolist() == [2, 3, 4, 7]


TASKS = (
    "j1,ps,1.0,Terminated,100.0,250.0,600.0,29.296875,,\n"
    "j1,worker,2.0,Terminated,110.0,200.0,600.0,29.296875,100.0,V100\n"
    "j1,evaluator,1.0,Failed,120.0,230.0,600.0,29.296875,100.0,V100\n"
    "j2,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,MISC\n"
    "j3,worker,5.0,Terminated,50.0,60.0,600.0,29.296875,50.0,T4\n"
    "j4,worker,1.0,Running,70.0,,600.0,29.296875,100.0,T4\n"
    "j5,worker,1.0,Waiting,,,600.0,29.296875,100.0,T4\n"
    "j6,ps,1.0,Terminated,70.0,80.0,600.0,29.296875,0.0,CPU\n"
)
LAUNCHES = "j1,i1,u1,Failed,90.0,230.0\nj2,i2,u2,Terminated,1739000.0,1739200.0\nj9,i9,u9,Terminated,1.0,2.0\n"
PAI_NOTES = [
    "1 job with shares of several GPUs rounded up to whole ones",
    "3 jobs left out: 1 without GPUs, 1 that never ran, 1 still running when the log ends",
]


def test_a_job_of_pai_is_all_its_tasks_with_gpus(tmp_path: Path) -> None:
    log = load(tmp_path, "pai_task_table.csv", TASKS)
    assert log.format == "pai"
    assert rows(log, "job_id", "submit_s", "num_gpus", "duration_s", "status", "gpu_type") == [
        ("j3", 50.0, 3.0, 10.0, "Terminated", ""),
        ("j1", 110.0, 3.0, 120.0, "Terminated", ""),
        ("j2", 1739162.0, 0.5, 38.0, "Terminated", ""),
    ]
    assert [note.removeprefix(f"{log.path}: ") for note in log.notes[:2]] == PAI_NOTES
    assert log.where(1) == "line 2 (job j1)"


def test_submission_user_and_status_come_from_the_table_of_jobs_beside_pais_tasks(tmp_path: Path) -> None:
    (tmp_path / "pai_job_table.csv").write_text(LAUNCHES, encoding="utf-8")
    (tmp_path / "pai_task_table.csv").write_text(TASKS, encoding="utf-8")
    for path in (tmp_path, tmp_path / "pai_task_table.csv", tmp_path / "pai_job_table.csv"):
        log = load_jobs(path)
        assert rows(log, "job_id", "submit_s", "duration_s", "user", "status") == [
            ("j3", 50.0, 10.0, "", "Terminated"),
            ("j1", 90.0, 120.0, "u1", "Failed"),
            ("j2", 1739000.0, 38.0, "u2", "Terminated"),
        ]


def test_instances_of_pai_say_when_they_ran(tmp_path: Path) -> None:
    (tmp_path / "pai_task_table.csv").write_text(TASKS, encoding="utf-8")
    log = load(
        tmp_path,
        "pai_instance_table.csv",
        "j1,ps,a,w0,i1,Terminated,100.0,250.0,m1\n"
        "j1,worker,b,w1,i1,Terminated,115.0,190.0,m1\n"
        "j1,worker,c,w2,i1,Terminated,116.0,195.0,m2\n"
        "j2,tensorflow,d,w3,i2,Terminated,1739165.0,1739200.0,m3\n"
        "j9,worker,e,w4,i9,Terminated,1.0,2.0,m3\n",
    )
    assert rows(log, "job_id", "submit_s", "num_gpus", "duration_s") == [
        ("j1", 115.0, 3.0, 80.0),
        ("j2", 1739165.0, 0.5, 35.0),
    ]


def test_tables_of_pai_with_a_header_are_read_too(tmp_path: Path) -> None:
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    log = load(tmp_path, "tasks.csv", header + TASKS)
    assert len(log) == 3
    assert log.where(0) == "line 6 (job j3)"


def test_pods_of_openb_share_gpus_and_keep_their_types(tmp_path: Path) -> None:
    log = load(
        tmp_path,
        "openb_pod_list_default.csv",
        PODS
        + "openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0\n"
        + "openb-pod-0001,6000,12288,1,460,,LS,Running,427061,12902960,427061\n"
        + "openb-pod-0017,88000,327680,8,1000,,Burstable,Succeeded,9437497,10769854,9437497\n"
        + "openb-pod-0035,16000,32768,1,1000,V100M16|V100M32,LS,Failed,9967058,9968575,9967063\n"
        + "openb-pod-0005,16000,32768,0,0,,LS,Running,9967059,9968575,9967063\n"
        + "openb-pod-0061,16000,32768,1,1000,,BE,Pending,10001278,12902960,\n",
    )
    assert log.format == "openb"
    assert rows(log, "job_id", "submit_s", "num_gpus", "duration_s", "vc", "status", "gpu_type") == [
        ("openb-pod-0000", 0.0, 1.0, 12537496.0, "LS", "Running", ""),
        ("openb-pod-0001", 427061.0, 0.46, 12475899.0, "LS", "Running", ""),
        ("openb-pod-0017", 9437497.0, 8.0, 1332357.0, "Burstable", "Succeeded", ""),
        ("openb-pod-0035", 9967058.0, 1.0, 1512.0, "LS", "Failed", "V100M16|V100M32"),
    ]
    assert log.notes == (f"{log.path}: 2 jobs left out: 1 without GPUs, 1 that never ran",)


SWF = (
    "; Version: 2.2\n"
    ";MaxProcs: 128\n"
    "\n"
    "    1        0    10   100    4    -1    -1    4   300    -1  1   3   1  -1  2  -1  -1  -1\n"
    "    2       50    -1    20    8    -1    -1   -1    -1    -1  0   4   1  -1 -1  -1  -1  -1\n"
    "    3       60     0     0    1    -1    -1    1    -1    -1  1   4   1  -1  1  -1  -1  -1\n"
    "    4       70    99     0   -1    -1    -1    2    -1    -1  5   4   1  -1  1  -1  -1  -1\n"
    "    5       80    -1    -1    2    -1    -1    2    -1    -1 -1   4   1  -1  1  -1  -1  -1\n"
    "    6       90     1    50   -1    -1    -1   -1    -1    -1  1   4   1  -1  1  -1  -1  -1\n"
)


def test_processors_of_the_standard_workload_format_are_gpus(tmp_path: Path) -> None:
    log = load(tmp_path, "log.swf", SWF)
    assert log.format == "swf"
    assert rows(log, "job_id", "submit_s", "num_gpus", "duration_s", "user", "vc", "status") == [
        ("1", 0.0, 4.0, 100.0, "3", "2", "completed"),
        ("2", 50.0, 8.0, 20.0, "4", "", "failed"),
        ("3", 60.0, 1.0, 0.5, "4", "1", "completed"),
    ]
    assert [job.estimate_s for job in log.jobs] == [300.0, None, None]
    assert log.lines.tolist() == [4, 5, 6]
    assert [note.removeprefix(f"{log.path}: ") for note in log.notes] == [
        "1 job logged as 0 s counts as 0.5 s",
        "3 jobs left out: 2 that never ran, 1 without processors",
    ]


def test_the_standard_workload_format_is_known_without_comments(tmp_path: Path) -> None:
    assert load(tmp_path, "log.txt", SWF.splitlines()[3] + "\n").format == "swf"


def test_damaged_lines_of_the_standard_workload_format_are_left_out_when_asked(tmp_path: Path) -> None:
    log = load(tmp_path, "log.swf", SWF + "7 100 x\n", drop_invalid=True)
    assert len(log) == 3
    assert log.notes[-1].endswith(
        "4 jobs left out: 1 on lines without 18 numbers, 2 that never ran, 1 without processors"
    )


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("helios.csv", HELIOS + "1,u,v,1,1,1,FAILED,2020-06-09 18:41:01,2020-06-09 18:41:01,,x,0\n", 0),
        ("pods.csv", PODS + "p,1,1,1,1000,,LS,Failed,0,x,0\nq,1,1,1,1000,,LS,Failed,0,9,0\n", 1),
    ],
)
def test_a_cell_that_is_no_number_is_named_and_not_taken_for_a_job_that_never_ran(
    name: str, text: str, kept: int, tmp_path: Path
) -> None:
    with pytest.raises(FileFormatError, match=r"line 2 \(job \w\) has 'x'"):
        load(tmp_path, name, text)
    if kept:
        assert len(load(tmp_path, name, text, drop_invalid=True)) == kept
