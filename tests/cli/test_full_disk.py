"""What cannot be written is one line: a full disk, a reader that has gone; devices and pipes are written through."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from traincast.cli.main import main

GPT = "gpt:layers=2,hidden=256,heads=8,vocab=1000,seq=128"
PREDICT = ["predict", GPT, "--cluster", "dgx-h100:1x2", "--strategy", "dp=2", "--global-batch", "4"]
SEARCH = ["search", GPT, "--cluster", "dgx-h100:1x2", "--global-batch", "4", "--constraint", "recompute=none"]
RUNS = "bert-base,8,64,128,8,fp16,pytorch,0.05\nbert-base,8,128,128,8,fp16,pytorch,0.09\n"
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command is refused with."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    shown = capsys.readouterr()
    assert stopped.value.code == 2, shown.err
    assert shown.out == ""
    assert shown.err.startswith("traincast: ")
    assert shown.err.count("\n") == 1
    return shown.err


def launched(arguments: Sequence[str], **streams: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traincast", *arguments]
    return subprocess.run(command, check=False, text=True, timeout=120, **streams)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full when what was written is to reach it."""

    def refuse(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and os.fstat(descriptor).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)


@needs_full
@pytest.mark.parametrize("arguments", [["devices"], ["devices", "--json"], ["--help"]])
def test_standard_output_on_a_full_disk_is_one_line(arguments: list[str]) -> None:
    with FULL.open("w") as full:
        done = launched(arguments, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == "traincast: cannot write standard output: no space left on device\n"


def test_a_reader_that_has_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = launched(["devices", "--json"], stdout=gone, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")


def test_standard_output_that_is_closed_is_no_traceback() -> None:
    command = [sys.executable, "-m", "traincast", "devices", "--json"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], check=False, text=True, timeout=120, stderr=subprocess.PIPE
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long(but=3)
@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize(
    "arguments",
    [
        [*PREDICT, "--html", "out.html"],
        [*PREDICT, "--trace", "out.json"],
        [*PREDICT, "--trace", "out.json.gz"],
        [*PREDICT, "--trace", "traces/"],
        [*SEARCH, "--html", "out.html"],
        [*SEARCH, "--all-out", "out.parquet"],
        [*SEARCH, "--resume", "parts"],
        ["capture", GPT, "-o", "out.json"],
        ["calibrate", "runs.csv", "--cluster", "dgx-a100", "-o", "out.toml", "--curve", "0"],
        ["schedule", "jobs.csv", "--nodes", "1x8", "--jobs-out", "out.csv"],
        ["schedule", "jobs.csv", "--nodes", "1x8", "--html", "out.html"],
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[-2]} {arguments[-1]}",
)
def test_a_full_disk_is_one_line_and_nothing_half_written_stays(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text("model,n_gpus,global_batch,seq_len,dp,precision,framework,step_time_s\n" + RUNS)
    Path("jobs.csv").write_text("job_id,submit_s,num_gpus,duration_s\na,0,1,10\n")
    assert "no space left on device; free some space" in refused(capsys, *arguments)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left <= {"runs.csv", "jobs.csv"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_page_for_a_device_leaves_the_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device, link = tmp_path / "null", tmp_path / "link.html"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("devices cannot be made or opened here")
    link.symlink_to(device)
    for path in (device, link):
        with pytest.raises(SystemExit) as stopped:
            main([*PREDICT, "--html", str(path), "--json"])
        assert stopped.value.code == 0, capsys.readouterr().err
    assert stat.S_ISCHR(device.stat().st_mode)
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.html", "null"]


@needs_full
def test_a_link_to_a_device_that_is_full_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, option in (("a.html", "--html"), ("a.json", "--trace"), ("b.json.gz", "--trace")):
        (tmp_path / name).symlink_to(FULL)
        assert "no space left on device" in refused(capsys, *PREDICT, option, str(tmp_path / name))
        assert (tmp_path / name).is_symlink()


def test_no_verb_writes_over_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    inputs = {
        "lab.toml": 'extends = "dgx-a100"\n',
        "runs.csv": "model,n_gpus,step_time_s\n",
        "jobs.csv": "job_id,submit_s,num_gpus,duration_s\na,0,1,10\n",
        "config.json": json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2}),
    }
    for name, text in inputs.items():
        Path(name).write_text(text)
    for arguments in (
        ["calibrate", "runs.csv", "--cluster", "lab.toml", "-o", "lab.toml"],
        ["capture", "config.json", "-o", "./config.json"],
        ["schedule", "jobs.csv", "--nodes", "1x8", "--jobs-out", "jobs.csv"],
        ["predict", "config.json", "--cluster", "lab.toml:2", "--global-batch", "4", "--html", "lab.toml"],
        ["predict", "config.json", "--cluster", "lab.toml", "--global-batch", "4", "--trace", "config.json"],
        ["search", "config.json", "--cluster", "lab.toml+dgx-a100", "--global-batch", "4", "--html", "lab.toml"],
    ):
        assert "which would be overwritten; choose another name" in refused(capsys, *arguments)
    same = refused(capsys, *SEARCH, "--html", "a.parquet", "--all-out", "a.parquet")
    assert "--all-out and --html are both a.parquet" in same
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == inputs
