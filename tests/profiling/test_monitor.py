"""The sampler beside real commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from array import array
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import traincast
from traincast import FileFormatError, Monitored, RequestError
from traincast.cli.resources.monitor import monitor as verb
from traincast.profiling.monitor.sample import COLUMNS, monitor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are sampled in /proc, which only Linux has")

BURN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


def test_processor_time_of_a_command_and_its_children_is_counted() -> None:
    child = BURN.format(0.3)
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n{BURN.format(0.3)}"
    found = monitor([sys.executable, "-c", code], hz=50.0)
    used = np.array(found.columns["processor_s"])
    assert 0.6 <= used[-1] < 1.5
    assert np.all(np.diff(used) >= 0.0)
    assert np.all(np.diff(found.columns["time_s"]) >= 0.0)
    assert max(found.columns["processes"]) == 2
    assert max(found.columns["resident_bytes"]) > 1e6
    assert found.exit_code == 0
    assert 0.0 < found.sampler_cpu_share < 1.0


def test_a_signal_that_ends_the_command_makes_the_exit_code_of_a_shell() -> None:
    found = monitor([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], hz=50.0)
    assert found.exit_code == 128 + signal.SIGKILL


def test_a_running_process_is_sampled_as_long_as_asked() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        found = monitor(pid=process.pid, hz=50.0, for_s=0.2)
        assert found.samples >= 2
        assert process.poll() is None
        process.kill()
    assert found.columns["time_s"][-1] - found.columns["time_s"][0] >= 0.2


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(RequestError, match="one of the two"):
        monitor(hz=50.0)
    with pytest.raises(RequestError, match="one of the two"):
        monitor(["true"], pid=1, hz=50.0)
    with pytest.raises(RequestError, match="no such process"):
        monitor(pid=2**22 - 1, hz=50.0)
    with pytest.raises(RequestError, match="cannot run 'no-such-program'"):
        monitor(["no-such-program"], hz=50.0)


def test_the_verb_writes_readings_and_figures_and_passes_the_exit_code_on(tmp_path: Path) -> None:
    table = tmp_path / "readings.csv"
    words = ["--hz", "100", "--link-rate", "1Gbit", "-o", str(table), "--html", str(tmp_path / "page.html"), "--json"]
    code = f"{BURN.format(0.2)}print('hello')\nraise SystemExit(3)"
    done = subprocess.run(
        [sys.executable, "-m", "traincast", "monitor", *words, "--", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "hello" in done.stderr
    told = json.loads(done.stdout)
    assert told["exit_code"] == 3
    assert told["resources"]["memory"] is None
    assert set(told["resources"]["compute"]) == {"burst_amount", "burst_s", "idle_s", "pattern", "refused"}
    assert told["peaks"]["receive"] == 1.25e8
    assert 0.0 < told["sampler_cpu_share"] < 1.0
    assert any("memory traffic was not read" in warning for warning in told["warnings"])
    lines = table.read_text().splitlines()
    assert lines[0].startswith("time_s,processor_s,resident_bytes,processes,received_bytes")
    assert len(lines) == 1 + told["samples"]
    assert "monitored run" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("code", "ended"), [("exit 5", 5), ("kill -9 $$", 128 + signal.SIGKILL), ("true", 0)])
def test_the_exit_code_of_a_command_that_is_too_short_to_sample_is_passed_on(
    code: str, ended: int, tmp_path: Path
) -> None:
    words = ["-o", str(tmp_path / "readings.csv"), "--json", "--hz", "10"]
    done = CliRunner().invoke(verb, [*words, "--", "sh", "-c", code])
    assert done.exit_code == ended
    assert json.loads(done.stdout)["exit_code"] == ended
    assert (tmp_path / "readings.csv").exists()


def test_a_command_with_one_reading_has_no_figures_and_keeps_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = Monitored(
        columns={name: array("d", [1.0]) for name in COLUMNS},
        exit_code=5, sampler_s=0.0, elapsed_s=0.01, missed=0, cores=1,
    )  # fmt: skip
    monkeypatch.setattr("traincast.profiling.monitor.sample.monitor", lambda *_, **__: once)
    words = ["-o", str(tmp_path / "readings.csv"), "--html", str(tmp_path / "page.html")]
    done = CliRunner().invoke(verb, [*words, "--json", "--", "true"])
    told = json.loads(done.stdout)
    assert done.exit_code == 5
    assert told["resources"] == dict.fromkeys(("compute", "memory", "receive", "send"))
    assert "nothing to sample" in told["warnings"][0]
    assert (tmp_path / "readings.csv").exists()
    assert not (tmp_path / "page.html").exists()
    assert "nothing to sample" in " ".join(CliRunner().invoke(verb, [*words, "--", "true"]).output.split())


def test_a_result_that_cannot_be_written_does_not_hide_the_command_s_failure(tmp_path: Path) -> None:
    """The command removes the folder of its monitor's output."""
    folder = tmp_path / "out"
    folder.mkdir()
    done = CliRunner().invoke(verb, ["-o", str(folder / "r.csv"), "--", "sh", "-c", f"rmdir {folder}; exit 7"])
    assert done.exit_code == 7
    assert "does not exist" in done.stderr


@pytest.mark.parametrize("words", [["train.py"], ["--script=train.py"], ["./train.py"]])
def test_a_file_of_the_command_is_not_overwritten(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    for option in ("-o", "--html"):
        others = ["-o", "readings.csv"] if option == "--html" else []
        done = CliRunner().invoke(verb, [*others, option, "train.py", "--", sys.executable, *words])
        assert isinstance(done.exception, FileFormatError)
        assert "of the command, which would be overwritten" in str(done.exception)
    assert script.read_text() == "print('trained')\n"


def test_only_outputs_of_a_monitor_are_replaced(tmp_path: Path) -> None:
    table, page = tmp_path / "readings.csv", tmp_path / "page.html"
    words = ["-o", str(table), "--html", str(page), "--", "sleep", "0.3"]
    table.touch()  # an empty file has nothing to lose
    for _ in range(2):
        assert CliRunner().invoke(verb, words).exit_code == 0
    for path, text in ((page, "<html>mine</html>"), (table, "job,model\n1,gpt2\n"), (table, b"\xff\x00")):
        before = path.read_bytes()
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        done = CliRunner().invoke(verb, words)
        assert isinstance(done.exception, FileFormatError)
        assert "was not written by a monitor" in str(done.exception)
        path.write_bytes(before)


def test_python_gets_what_the_command_line_prints() -> None:
    found = traincast.monitor([sys.executable, "-c", BURN.format(0.2)], hz=100.0, link_rate="1Gbit")
    assert isinstance(found, traincast.MonitoredRun)
    assert found.used is not None
    told = found.to_dict()
    assert told["peaks"]["send"] == 1.25e8
    assert told["resources"]["compute"] == asdict(found.used.uses["compute"])
    assert json.loads(json.dumps(told)) == told
    with pytest.raises(RequestError, match="that is no rate"):
        traincast.monitor(["true"], link_rate="loopback")


def test_an_interrupt_reaches_the_command_and_leaves_a_complete_file(tmp_path: Path) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(5))\n"
    code += "print('on', flush=True)\ntime.sleep(60)"
    table = tmp_path / "readings.csv"
    process = subprocess.Popen(
        [sys.executable, "-m", "traincast", "monitor", "-o", str(table), "--", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert "readings:" in process.communicate(timeout=60)[0]
    assert process.returncode == 5
    assert len(table.read_text().splitlines()) > 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--hz", "500", "-o", "x.csv", "--", "true"], "expected 10 to 100"),
        (["-o", "x.csv"], "one of the two"),
        (["-o", "x.csv", "--link-rate", "fast", "--", "true"], "expected a rate such as 1Gbit"),
    ],
)
def test_the_verb_refuses_in_one_line(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(verb, words)
    assert told in str(done.exception)
