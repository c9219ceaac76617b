"""Bad logs are refused in one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from traincast import FileFormatError
from traincast.scheduling.joblogs import source as sources
from traincast.scheduling.joblogs.read import load_jobs

HEADER = "job_id,submit_s,num_gpus,duration_s\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
DATED = "2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 18:51:01,600,0\n"
PACKED = gzip.compress((HEADER + "a,0,1,5\n" * 1000).encode())

WRONG = "cannot be run: "
FIX_IT = "; correct it, or leave it out with drop_invalid"
FIX_THEM = "; correct them, or leave them out with drop_invalid"
GPUS = "num_gpus must be a whole number to 1e+06, or a share between 0 and 1, but "
SUBMIT = "submit_s must be seconds from 0 to 1e+11, but "
RUN = "duration_s must be seconds above 0 to 1e+11, unless model and steps are given, but "
A_JOB = "; expected a job of Philly's cluster_job_log with jobid, submitted_time, attempts"
FIX_ENTRY = "; correct it, or leave such out with drop_invalid"


def philly(**changed: object) -> str:
    """A log of Philly with one job that never ran."""
    job = {"status": "Pass", "vc": "a", "jobid": "j", "attempts": [], "submitted_time": "2017-10-07 01:11:39"}
    return json.dumps([{**job, **changed}])


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


BAD: list[tuple[str, str | bytes, str]] = [
    ("empty.csv", b"", "empty.csv is empty: expected a table or a log with a job or node on each line"),
    ("blank.csv", b"\n \n", "blank.csv is empty: expected a table or a log with a job or node on each line"),
    ("header_only.csv", HEADER, "header_only.csv has no jobs that can run: give a log with at least one"),
    (
        "headerless.csv",
        "a,0,1,5\nb,1,1,5\n",
        "headerless.csv is not a job log of a known format: its first line has 'a', '0', '1', '5'; expected "
        "the columns job_id, submit_s, num_gpus and duration_s, or Philly's cluster_job_log (JSON), Standard "
        "Workload Format, Alibaba's openb_pod_list, Helios's cluster_log.csv, Alibaba's pai_task_table",
    ),
    (
        "no_gpus.csv",
        "job_id,submit_s,duration_s\na,0,5\n",
        "no_gpus.csv lacks num_gpus: a table of jobs needs job_id, submit_s, num_gpus and duration_s; its "
        "columns are job_id, submit_s, duration_s",
    ),
    (
        "no_duration.csv",
        "job_id,submit_s,num_gpus\na,0,5\n",
        "no_duration.csv lacks duration_s: a table of jobs needs job_id, submit_s, num_gpus and duration_s; "
        "its columns are job_id, submit_s, num_gpus",
    ),
    (
        "twice.csv",
        "job_id,submit_s,num_gpus,duration_s,duration_s\na,0,1,5,6\n",
        "twice.csv has the column duration_s twice: rename one, or take it out",
    ),
    (
        "words.csv",
        HEADER + "a,0,1,5\nb,soon,1,5\n",
        f"words.csv: 1 of 2 jobs {WRONG}{SUBMIT}line 3 (job b) has 'soon'{FIX_IT}",
    ),
    ("nan.csv", HEADER + "a,0,1,nan\n", f"nan.csv: 1 of 1 job {WRONG}{RUN}line 2 (job a) has nothing{FIX_IT}"),
    ("infinite.csv", HEADER + "a,0,1,inf\n", f"infinite.csv: 1 of 1 job {WRONG}{RUN}line 2 (job a) has inf{FIX_IT}"),
    (
        "negative.csv",
        HEADER + "a,0,1,-5\nb,1,1,-6\nc,2,1,-7\nd,3,1,-8\n",
        f"negative.csv: 4 of 4 jobs {WRONG}{RUN}line 2 (job a) has -5, line 3 (job b) has -6, line 4 (job c) "
        f"has -7 and 1 more{FIX_THEM}",
    ),
    ("zero.csv", HEADER + "a,0,1,0\n", f"zero.csv: 1 of 1 job {WRONG}{RUN}line 2 (job a) has 0{FIX_IT}"),
    (
        "submitted_before.csv",
        HEADER + "a,-1,1,5\n",
        f"submitted_before.csv: 1 of 1 job {WRONG}{SUBMIT}line 2 (job a) has -1{FIX_IT}",
    ),
    (
        "never_submitted.csv",
        HEADER + "a,,1,5\n",
        f"never_submitted.csv: 1 of 1 job {WRONG}{SUBMIT}line 2 (job a) has nothing{FIX_IT}",
    ),
    (
        "milliseconds.csv",
        HEADER + "a,1700000000000,1,5\n",
        f"milliseconds.csv: 1 of 1 job {WRONG}{SUBMIT}line 2 (job a) has 1700000000000{FIX_IT}",
    ),
    ("no_gpu.csv", HEADER + "a,0,0,5\n", f"no_gpu.csv: 1 of 1 job {WRONG}{GPUS}line 2 (job a) has 0{FIX_IT}"),
    ("minus_gpus.csv", HEADER + "a,0,-4,5\n", f"minus_gpus.csv: 1 of 1 job {WRONG}{GPUS}line 2 (job a) has -4{FIX_IT}"),
    ("half_more.csv", HEADER + "a,0,1.5,5\n", f"half_more.csv: 1 of 1 job {WRONG}{GPUS}line 2 (job a) has 1.5{FIX_IT}"),
    ("huge.csv", HEADER + "a,0,1e300,5\n", f"huge.csv: 1 of 1 job {WRONG}{GPUS}line 2 (job a) has 1e+300{FIX_IT}"),
    (
        "same_name.csv",
        HEADER + "a,0,1,5\n\na,1,1,5\n",
        f"same_name.csv: 1 of 2 jobs {WRONG}every job needs its own job_id, but line 4 (job a) has 'a'{FIX_IT}",
    ),
    (
        "nameless.csv",
        HEADER + ",0,1,5\n",
        f"nameless.csv: 1 of 1 job {WRONG}every job must have a job_id, but line 2 has nothing{FIX_IT}",
    ),
    (
        "two_wrongs.csv",
        HEADER + "a,0,1,5\na,1,0,5\n",
        f"two_wrongs.csv: 1 of 2 jobs {WRONG}every job needs its own job_id, but line 3 (job a) has 'a'; {GPUS}line "
        f"3 (job a) has 0{FIX_IT}",
    ),
    (
        "ragged.csv",
        HEADER + "a,0,1,5\n\nb,0,1\nc,0,1,5,6\n",
        f"ragged.csv has 2 lines with more or fewer cells than its 4 columns: line 4 has 3 ('b,0,1'){FIX_THEM}",
    ),
    (
        "quote.csv",
        HEADER + '"a,0,1,5\nb,0,1,5\n',
        f"quote.csv has 1 line with more or fewer cells than its 4 columns: line 2 has 1 ('\"a,0,1,5�b,0,1,5'){FIX_IT}",
    ),
    (
        "bounds.csv",
        "job_id,submit_s,num_gpus,duration_s,min_gpus,max_gpus\na,0,4,5,8,2\n",
        f"bounds.csv: 1 of 1 job {WRONG}bounds must be whole numbers with 1 ≤ min_gpus ≤ num_gpus ≤ max_gpus, "
        f"but line 2 (job a) has 8, 4, 2{FIX_IT}",
    ),
    (
        "estimate.csv",
        "job_id,submit_s,num_gpus,duration_s,estimate_s\na,0,4,5,-1\n",
        f"estimate.csv: 1 of 1 job {WRONG}estimate_s must be seconds above 0 to 1e+11, or empty, but line 2 "
        f"(job a) has -1{FIX_IT}",
    ),
    (
        "undescribed.csv",
        "job_id,submit_s,num_gpus,model,steps\na,0,4,,100\n",
        f"undescribed.csv: 1 of 1 job {WRONG}{RUN}line 2 (job a) has nothing{FIX_IT}",
    ),
    (
        "latin.csv",
        (HEADER + "a,0,1,5\nb\xe9,0,1,5\n").encode("latin-1"),
        "latin.csv is not UTF-8: line 3 has the byte 0xe9; save it as UTF-8",
    ),
    ("utf16.csv", (HEADER + "a,0,1,5\n").encode("utf-16"), "utf16.csv is UTF-16 text: save it as UTF-8"),
    ("binary.csv", b"\x7fELF\x00\x01\x02", "binary.csv is a binary file: expected a table or a log as UTF-8 text"),
    (
        "binary_later.csv",
        HEADER.encode() + b"a,0,1,5\n" * 20_000 + b"\x00\x01\n",
        "binary_later.csv is a binary file: expected a table or a log as UTF-8 text",
    ),
    (
        "long_line.csv",
        HEADER.encode() + b"a" * 3_000_000,
        "long_line.csv has a line longer than 1 MiB: not a table of jobs or nodes",
    ),
    ("archive.csv", b"PK\x03\x04rest", "archive.csv is a ZIP archive: unpack it"),
    (
        "packed.csv.gz",
        b"\x1f\x8b\x08\x00not gzip at all",
        "packed.csv.gz is damaged: its gzip data are cut off or wrong (Error -3 while decompressing data: "
        "invalid stored block lengths); fetch it again",
    ),
    (
        "cut.csv.gz",
        PACKED[:60],
        "cut.csv.gz is damaged: its gzip data are cut off or wrong (Compressed file ended before the "
        "end-of-stream marker was reached); fetch it again",
    ),
    (
        "fake.parquet",
        b"job_id,submit_s\n",
        "fake.parquet is not a Parquet file, although its name says so: rename it",
    ),
    (
        "broken.parquet",
        b"PAR1 and nothing else",
        "broken.parquet cannot be read as Parquet: Parquet magic bytes not found in footer. Either the file "
        "is corrupted or this is not a parquet file; write it again",
    ),
    ("object.json", "{}", "object.json is JSON, but not a list: Philly's cluster_job_log is a list of jobs"),
    (
        "broken.json",
        '[{"jobid": ',
        "broken.json is not valid JSON in entry 1: Expecting value; fetch it again, or repair it",
    ),
    (
        "cut.json",
        philly()[:-1],
        "cut.json is cut off or damaged after entry 1: expected a comma or the end of the list; fetch it again",
    ),
    (
        "deep.json",
        "[" * 100_000,
        "deep.json is not valid JSON in entry 1: it is nested too deeply; fetch it again, or repair it",
    ),
    ("list.json", "[[], []]", f"list.json: entry 1 is a list{A_JOB}{FIX_ENTRY}"),
    ("number.json", "[1e5, 2]", f"number.json: entry 1 is 100000.0{A_JOB}{FIX_ENTRY}"),
    ("keyless.json", '[{"jobid": "a"}]', f"keyless.json: entry 1 lacks submitted_time{A_JOB}{FIX_ENTRY}"),
    (
        "date.json",
        philly(submitted_time="last week"),
        "date.json: entry 1 has 'last week' as submitted_time, which is not a date such as 2017-10-07 "
        f"01:11:39{A_JOB}{FIX_ENTRY}",
    ),
    (
        "attempts.json",
        philly(attempts="none"),
        f"attempts.json: entry 1 has attempts that are not a list of objects{A_JOB}{FIX_ENTRY}",
    ),
    (
        "never_ran.json",
        philly(),
        "never_ran.json has no jobs that can run; 1 job left out: 1 that never ran: give a log with at least one",
    ),
    (
        "short.swf",
        "; Version: 2.2\n1 0 5 100 4\n",
        f"short.swf has 1 line without the 18 numbers of the Standard Workload Format: line 2 has 5 fields{FIX_IT}",
    ),
    (
        "words.swf",
        "; Version: 2.2\n1 0 5 soon 4 -1 -1 4 -1 -1 1 1 1 -1 1 -1 -1 -1\n",
        f"words.swf has 1 line without the 18 numbers of the Standard Workload Format: line 2 has 'soon'{FIX_IT}",
    ),
    (
        "comments.swf",
        "; Version: 2.2\n",
        "comments.swf has no jobs: all of its lines are comments; give a log with jobs",
    ),
    (
        "cpu_only.csv",
        HELIOS + "1,u,vc,0,4,1,COMPLETED," + DATED,
        "cpu_only.csv has no jobs that can run; 1 job left out: 1 without GPUs: give a log with at least one",
    ),
    (
        "undated.csv",
        HELIOS + "1,u,vc,1,4,1,COMPLETED,yesterday" + DATED[19:],
        f"undated.csv: 1 of 1 job {WRONG}{SUBMIT}line 2 (job 1) has 'yesterday'{FIX_IT}",
    ),
    (
        "backwards.csv",
        PODS + "p,1,1,1,1000,,LS,Failed,100,90,100\n",
        f"backwards.csv: 1 of 1 job {WRONG}{RUN}line 2 (job p) has -10{FIX_IT}",
    ),
    (
        "pai_job_table.csv",
        "j1,i1,u1,Terminated,10.0,20.0\n",
        "pai_job_table.csv is PAI's pai_job_table, which does not say how many GPUs a job has: put "
        "pai_task_table.csv into the same folder",
    ),
    (
        "pai_task_table.csv",
        "j1,worker,1.0,Terminated,10.0,20.0,600.0,29.0,many,T4\n",
        f"pai_task_table.csv has 1 cell of plan_gpu without a number: line 1 has 'many'{FIX_IT}",
    ),
]


@pytest.mark.parametrize(("name", "content", "line"), BAD, ids=[name for name, _, _ in BAD])
def test_a_bad_trace_is_refused_in_one_clear_line(
    name: str, content: str | bytes, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, name, content)
    with pytest.raises(FileFormatError) as refused:
        load_jobs(name)
    assert str(refused.value) == line
    assert "\n" not in line


def test_there_are_more_than_thirty_bad_traces() -> None:
    assert len(BAD) > 30


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"cannot read .*none\.csv: no such file; give the path of a file$"):
        load_jobs(tmp_path / "none.csv")
    with pytest.raises(FileFormatError, match=r"it is a folder; give the path of a file$"):
        load_jobs(tmp_path)


def test_a_name_with_a_newline_stays_on_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, "jobs.csv", HEADER + '"a\nb",0,0,5\n')
    with pytest.raises(FileFormatError) as refused:
        load_jobs(path)
    assert "\n" not in str(refused.value)


def test_gzip_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_HARMLESS_BYTES", 100_000)
    path = write(tmp_path, "bomb.csv.gz", gzip.compress(HEADER.encode() + b"a,0,1,5\n" * 500_000))
    with pytest.raises(FileFormatError, match="unpacks to more than 200 times its size"):
        load_jobs(path)


def test_a_text_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincast.scheduling.joblogs.philly.MAX_JSON_BYTES", 1024)
    path = write(tmp_path, "log.json", "[" + " " * 200_000)
    with pytest.raises(FileFormatError, match=r"GiB of text: give a part of it$"):
        load_jobs(path)
