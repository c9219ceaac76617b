"""The verbs of the testbed on the command line: tables, JSON, pages, and one line for everything that is refused."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.runs import Span, write_run
from traincast import RunFolder, compare_testbed
from traincast.cli.main import main
from traincast.cli.real_runs.testbed_tables import sentence_of
from traincast.testbed.folder import read_run_folder
from traincast.testbed.outcome import Disagreement
from traincast.testbed.request import RunRequest
from traincast.testbed.study.grid import StudyCell


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["testbed", *words])
    said = capsys.readouterr()
    return int(stop.value.code or 0), said.out, said.err


def longer(span: Span) -> Span:
    return {**span, "end_s": span["end_s"] + 1e-4} if span["category"] == "optimizer" and span["rank"] == 1 else span


def test_compare_shows_errors_with_the_noise_beside_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    step = write_run(tmp_path / "plain", "dp=2", 2).report.step_s
    write_run(tmp_path / "run", "dp=2", 2, change=longer, steps_s=[1.2 * step, 1.3 * step])
    code, out, _ = call(capsys, "compare", str(tmp_path / "run"))
    assert code == 0
    assert re.search(r"batch error +−20\.0 %", out)
    assert "noise of the machine: 4.0 %" in out
    assert "rank 1, optimizer: the forecast is busy shorter by" in out
    assert "times from bundles and physics" in out
    assert "warning: no events were given" in out


def test_compare_says_that_a_machine_cannot_carry_a_run_and_prints_no_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_run(tmp_path / "run", "dp=2", 2)
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(content | {"cannot_carry": "steps vary by 30 %"}))
    code, out, _ = call(capsys, "compare", str(tmp_path / "run"))
    assert code == 0
    assert "this machine cannot carry the run: steps vary by 30 %" in " ".join(out.split())
    assert "batch error" not in out and "worst disagreements" not in out
    told = compare_testbed(tmp_path / "run").to_dict()
    assert (told["batch_error"], told["activity_error"]) == (None, None)
    assert json.loads(call(capsys, "compare", str(tmp_path / "run"), "--json")[1]) == json.loads(json.dumps(told))


def test_compare_gives_one_json_document_and_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_run(tmp_path / "run", "dp=2", 2)
    page = tmp_path / "compare.html"
    code, out, _ = call(capsys, "compare", str(tmp_path / "run"), "--html", str(page), "--json")
    assert code == 0
    data = json.loads(out)
    assert data["batch_error"] == pytest.approx(0.0, abs=1e-12)
    assert [device["rank"] for device in data["by_device"]] == [0, 1]
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("damage", ["missing", "file", "empty", "json", "format", "spans", "cluster", "events", "page"])
def test_bad_input_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path, damage: str) -> None:
    run = tmp_path / "run"
    words = ["compare", str(run)]
    if damage == "file":
        run.write_text("a file")
    elif damage == "empty":
        run.mkdir()
    elif damage != "missing":
        write_run(run, "dp=2", 2)
    if damage == "json":
        (run / "run.json").write_text('{"format": 1, ')
    elif damage == "format":
        (run / "run.json").write_text('{"format": 99}')
    elif damage == "spans":
        (run / "spans.parquet").write_text("no table")
    elif damage == "cluster":
        (run / "cluster.toml").write_text("[cluster]\nnode = 3\n")
    elif damage == "events":
        words += ["--events", str(tmp_path / "nowhere")]
    elif damage == "page":
        words += ["--html", str(run / "run.json")]
    code, out, err = call(capsys, *words)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1 and err.startswith("traincast: ")


@pytest.mark.parametrize(
    ("error", "figure", "text"),
    [
        (0.2, "busy", "rank 3, forward: the forecast is busy longer by 20.0 % (noise 1.0 %)"),
        (-0.05, "start", "rank 3, forward: the forecast starts earlier by 5.0 % (noise 1.0 %)"),
        (0.05, "end", "rank 3, forward: the forecast ends later by 5.0 % (noise 1.0 %)"),
        (0.3, "missing", "rank 3, forward: only in the forecast, busy for 30.0 %"),
    ],
)
def test_disagreements_read_as_sentences(error: float, figure: str, text: str) -> None:
    found = Disagreement(
        rank=3, name="forward", figure=figure, measured_s=None, predicted_s=1.0, error=error, noise=0.01
    )
    assert sentence_of(found) == text


RUN = ("run", "gpt2", "--ranks", "4", "--strategy", "dp=4", "--global-batch", "8")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the verb asks of the testbed, which writes the folder of another run."""
    asked: list[dict[str, Any]] = []

    def run(request: RunRequest, output: Path, *, progress: object = None) -> RunFolder:
        asked.append(asdict(request))
        write_run(output, "dp=2", 2)
        return read_run_folder(output)

    monkeypatch.setattr("traincast.testbed.run.run", run)
    return asked


def test_run_asks_for_what_the_options_say(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, requests: list[dict[str, Any]]
) -> None:
    folder = tmp_path / "run"
    more = ("--compute", "k80", "--network", "1Gbit", "--link", "3=200Mbit", "--slow", "1=1.5", "--slow", "2=2")
    code, out, err = call(capsys, *RUN, *more, "--steps", "20", "-o", str(folder))
    assert (code, err) == (0, "")
    (asked,) = requests
    assert asked["link_rates"] == ((3, 25e6),)
    assert asked["slow"] == ((1, 1.5), (2, 2.0))
    expected = {
        "model": "gpt2", "ranks": 4, "strategy": "dp=4", "global_batch": 8, "seq": None, "compute": "k80",
        "network": "1Gbit", "steps": 20, "warmup": 3, "threads": 1, "events": True,
    }  # fmt: skip
    assert {name: asked[name] for name in expected} == expected
    assert f"traincast testbed compare {folder}" in " ".join(out.split())


def test_run_gives_the_run_as_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, requests: list[dict[str, Any]]
) -> None:
    code, out, _ = call(capsys, *RUN, "-o", str(tmp_path / "run"), "--json")
    assert code == 0
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {name: value for name, value in json.loads(out).items() if name in told} == told


def test_events_are_left_out_if_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, requests: list[dict[str, Any]]
) -> None:
    assert call(capsys, *RUN, "--no-events", "-o", str(tmp_path / "run"))[0] == 0
    assert requests[0]["events"] is False


@pytest.mark.parametrize(("words", "hz"), [((), None), (("--monitor",), 50.0), (("--monitor", "100"), 100.0)])
def test_a_sampler_runs_if_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, requests: list[dict[str, Any]], words: tuple[str, ...],
    hz: float | None,
) -> None:  # fmt: skip
    code, out, _ = call(capsys, *RUN, *words, "-o", str(tmp_path / "run"))
    assert code == 0
    assert requests[0]["monitor_hz"] == hz
    assert ("traincast resources compare" in " ".join(out.split())) == bool(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--monitor", "5"), "5 readings per second: expected 10 to 100"),
        (("--slow", "1"), "--slow '1': expected RANK=FACTOR, such as 3=1.5"),
        (("--slow", "1=x"), "--slow factor 'x': expected a number above 0"),
        (("--slow", "-1=2"), "--slow '-1=2': expected RANK=FACTOR"),
        (("--link", "1=1Gbit"), "link 1=1Gbit on loopback: give the rate of the other links"),
        (("--network", "1Gbit", "--link", "1=fast"), "link 'fast': expected a rate such as 1Gbit"),
    ],
)
def test_values_that_mean_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, requests: list[dict[str, Any]], words: tuple[str, ...],
    message: str,
) -> None:  # fmt: skip
    code, _, err = call(capsys, *RUN, *words, "-o", str(tmp_path / "run"))
    assert code == 2
    assert message in err and len(err.splitlines()) == 1
    assert requests == []


def test_study_writes_its_files_and_shows_a_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pretended:
        def run(self, cell: StudyCell, folder: Path) -> None:
            if cell.strategy == "tp=2":
                raise RuntimeError("no cores left")
            write_run(folder, cell.strategy, cell.ranks, model=cell.spec, batch=cell.global_batch, runtime="pytorch")

    monkeypatch.setattr("traincast.testbed.study.study.ThisMachine", Pretended)
    spec = "gpt:layers=2,hidden=64,heads=2,vocab=128,seq=32"
    code, out, err = call(
        capsys, "study", "--models", spec, "--strategies", "dp=2 tp=2", "--rates", "1Gbit", "-o", str(tmp_path / "s")
    )
    assert code == 0
    assert "failed: " in out and "no cores left" in out
    assert "emulated: 1 cells" in out or "emulated: 1 cell" in out
    assert "2 of 2" in err
    assert sorted(path.name for path in (tmp_path / "s").glob("study*")) == [
        "study-errors.svg", "study-steps.svg", "study.journal", "study.json", "study.md",
    ]  # fmt: skip
