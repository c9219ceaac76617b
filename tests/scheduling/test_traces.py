"""Loading logs: formats are known by their content, columns by either name."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.scheduling.test_bad_traces import GPUS, HEADER, RUN, SUBMIT, write
from traincast import FileFormatError, RequestError, UnknownNameError
from traincast.scheduling.joblogs.read import FORMATS, load_jobs


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = write(tmp_path, "jobs.csv", HEADER + "a,0,1,5\n")
    with pytest.raises(UnknownNameError, match="unknown log format 'phily': did you mean philly"):
        load_jobs(path, format="phily")


def test_a_format_that_is_asked_for_is_not_guessed(tmp_path: Path) -> None:
    path = write(tmp_path, "jobs.csv", HEADER + "a,0,1,5\n")
    assert load_jobs(path, format="native").format == "native"
    with pytest.raises(FileFormatError, match="lacks gpu_num and submit_time: a log of Helios needs"):
        load_jobs(path, format="helios")


def test_every_format_says_what_it_is() -> None:
    assert list(FORMATS) == ["philly", "swf", "openb", "helios", "pai", "native"]
    assert all(kind.about for kind in FORMATS.values())


def test_jobs_have_the_values_of_the_table(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "jobs.csv",
        "job_id,submit_s,num_gpus,duration_s,vc,user,status,gpu_type,priority,deadline_s,estimate_s,min_gpus,max_gpus\n"
        "a,0,8,14371,ee9e8c,u1,Pass,V100,2,20000,15000,4,16\n"
        "b,12.5,0.46,60.25,,,Killed,,,,,,\n",
    )
    log = load_jobs(path)
    first, second = log.jobs
    assert (first.job_id, first.submit_s, first.num_gpus, first.duration_s) == ("a", 0.0, 8.0, 14371.0)
    assert (first.vc, first.user, first.gpu_type, first.priority) == ("ee9e8c", "u1", "V100", 2.0)
    assert (first.deadline_s, first.estimate_s, first.min_gpus, first.max_gpus) == (20000.0, 15000.0, 4, 16)
    assert (second.submit_s, second.num_gpus, second.duration_s) == (12.5, 0.46, 60.25)
    assert (second.vc, second.deadline_s, second.estimate_s, second.max_gpus) == ("", None, None, 0)
    assert log["status"].tolist() == ["Pass", "Killed"]
    assert (log.format, log.notes, len(log), log.span_s) == ("native", (), 2, 12.5)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("names", ["job_id,submit_time_s,n_gpus,duration_s", "job_id,submit_s,num_gpus,duration_s"])
def test_tables_are_read_packed_or_not_by_either_name_of_a_column(suffix: str, names: str, tmp_path: Path) -> None:
    path = tmp_path / f"jobs{suffix}"
    text = (names + "\n7,0,8,14371\n8,12351,4,35419\n").encode()
    if suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = [[7, 8], [0, 12351], [8, 4], [14371.0, 35419.0]]
        pq.write_table(pa.table(dict(zip(names.split(","), columns, strict=True))), path)
    else:
        path.write_bytes(gzip.compress(text) if suffix == ".csv.gz" else text)
    log = load_jobs(path)
    assert [job.job_id for job in log.jobs] == ["7", "8"]
    assert log["submit_s"].tolist() == [0.0, 12351.0]
    assert log["num_gpus"].tolist() == [8.0, 4.0]
    assert log["duration_s"].tolist() == [14371.0, 35419.0]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_endings_delimiters_and_marks_of_spreadsheets_are_understood(
    start: str, delimiter: str, ending: str, tmp_path: Path
) -> None:
    text = start + (HEADER + 'a , 0,1 ,5\n\n"b",1,+2,1e1\n').replace(",", delimiter).replace("\n", ending)
    log = load_jobs(write(tmp_path, "jobs.csv", text))
    assert log["job_id"].tolist() == ["a", "b"]
    assert log["num_gpus"].tolist() == [1.0, 2.0]
    assert log["duration_s"].tolist() == [5.0, 10.0]
    assert log.lines.tolist() == [2, 4]


def test_jobs_are_sorted_by_submission_and_ties_keep_their_order(tmp_path: Path) -> None:
    path = write(tmp_path, "jobs.csv", HEADER + "late,9,1,5\nfirst,3,1,5\nsecond,3,1,5\n")
    log = load_jobs(path)
    assert log["job_id"].tolist() == ["first", "second", "late"]
    assert log.lines.tolist() == [3, 4, 2]
    assert log.notes == (f"{path}: jobs were not in order of submission: sorted by submit_s",)


def test_a_described_job_needs_no_duration(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "jobs.csv",
        "job_id,submit_s,num_gpus,duration_s,model,batch_size,steps,samples,strategy\n"
        "a,0,1,17465.9,Transformer,128.0,95121.0,,\n"
        "b,1,8,,ResNet-18,64,1000,,dp=8\n"
        "c,2,8,,ResNet-50,64,,6401,\n",
    )
    log = load_jobs(path)
    assert log.to_forecast.tolist() == [False, True, True]
    assert log["duration_s"].tolist() == [17465.9, 0.0, 0.0]
    assert log["steps"].tolist() == [95121.0, 1000.0, 101.0]
    with pytest.raises(RequestError, match=r"2 jobs of 3 have no duration_s, line 3 \(job b\) first: forecast them"):
        _ = log.jobs
    known = log.with_columns(numbers={"duration_s": np.array([17465.9, 60.0, 70.0])})
    assert [(job.duration_s, job.model, job.batch, job.strategy) for job in known.jobs] == [
        (17465.9, "Transformer", 128, ""),
        (60.0, "ResNet-18", 64, "dp=8"),
        (70.0, "ResNet-50", 64, ""),
    ]


def test_a_table_of_described_jobs_needs_no_column_of_durations(tmp_path: Path) -> None:
    path = write(tmp_path, "jobs.csv", "job_id,submit_s,num_gpus,model,steps\na,0,8,gpt2,100\n")
    assert load_jobs(path).to_forecast.tolist() == [True]


def test_a_missing_bound_is_the_number_of_gpus_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "jobs.csv", HEADER[:-1] + ",min_gpus,max_gpus\na,0,4,5,2,\nb,0,4,5,,8\nc,0,4,5,,\n")
    assert [(job.min_gpus, job.max_gpus) for job in load_jobs(path).jobs] == [(2, 4), (4, 8), (0, 0)]


def test_invalid_jobs_are_left_out_and_counted_when_asked(tmp_path: Path) -> None:
    rows = "a,0,1,5\nb,0,0,5\nb,0,1,5\nc,x,1,5\nd,1\ne,2,1,-1\nf,3,1,7\n"
    path = write(tmp_path, "jobs.csv", HEADER + rows)
    log = load_jobs(path, drop_invalid=True)
    assert log["job_id"].tolist() == ["a", "f"]
    assert log.lines.tolist() == [2, 8]
    assert log.notes == (
        f"{path}: 4 of 6 jobs left out as invalid: every job needs its own job_id, but line 4 (job b) has 'b'; "
        f"{SUBMIT}line 5 (job c) has 'x'; {GPUS}line 3 (job b) has 0; {RUN}line 7 (job e) has -1",
        f"{path}: 1 job left out: 1 on lines with more or fewer cells than columns",
    )


def test_nothing_left_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "jobs.csv", HEADER + "a,0,0,5\n")
    with pytest.raises(FileFormatError, match=r"has no jobs that can run: give a log with at least one$"):
        load_jobs(path, drop_invalid=True)


def test_deadlines_before_submission_are_noted(tmp_path: Path) -> None:
    path = write(tmp_path, "jobs.csv", HEADER[:-1] + ",deadline_s\na,0,1,5,9\nb,100,1,5,50\n")
    assert load_jobs(path).notes == (
        f"{path}: 1 job with a deadline_s before submission, line 3 first: deadlines are on the clock of submit_s, "
        "not counted from it",
    )


def test_an_unknown_column_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    log = load_jobs(write(tmp_path, "jobs.csv", HEADER + "a,0,1,5\n"))
    with pytest.raises(UnknownNameError, match="unknown column of a log 'duration': did you mean duration_s"):
        log["duration"]


def test_a_selection_keeps_columns_and_places_together(tmp_path: Path) -> None:
    log = load_jobs(write(tmp_path, "jobs.csv", HEADER + "a,0,1,5\nb,1,2,6\nc,2,4,7\n"))
    part = log.select(log["num_gpus"] != 2.0)
    assert [(job.job_id, job.num_gpus) for job in part.jobs] == [("a", 1.0), ("c", 4.0)]
    assert part.where(1) == "line 4 (job c)"


def test_reading_a_table_does_not_import_pandas(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = write(tmp_path, "jobs.csv", HEADER + "a,0,1,5\nb,,1,5\n")
    code = (
        "import sys\nfrom traincast.scheduling.joblogs.read import load_jobs\n"
        f"assert len(load_jobs({str(path)!r}, drop_invalid=True).jobs) == 1\n"
        "sys.stdout.write(str([m for m in ('pandas', 'torch') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]"
