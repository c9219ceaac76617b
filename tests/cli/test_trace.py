"""``traincast trace``: figures by their names, refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.made import device_bound, host_bound, pair_of_ranks
from traincast.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["trace", *arguments])
    shown = capsys.readouterr()
    assert stopped.value.code == code, shown.err
    return shown.out, shown.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json")[0])


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(host_bound().write(tmp_path / "t.json"))


def test_show_has_steps_and_a_breakdown(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "show", path)
    assert [step["seconds"] for step in found["steps"]] == pytest.approx([1e-4] * 3)
    assert found["step_s"] == pytest.approx(1e-4)
    assert sum(found["breakdown"].values()) == pytest.approx(1e-4)
    text, _ = run(capsys, "show", path)
    assert "Where a step goes" in text


def test_replay_states_its_errors(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "replay", path, "--fit-steps", "even")
    names = {"measured_s", "replayed_s", "error", "worst_step_error", "strict_error", "opaque_share"}
    assert names <= set(found)
    assert found["error"] == pytest.approx(0, abs=1e-9)


def test_whatif_answers_or_refuses(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "whatif", path, "--host", "2x", "-o", str(tmp_path / "out.json"))
    assert answer["refused"] is None
    assert answer["low_s"] <= answer["step_s"] <= answer["high_s"] < answer["base_s"]
    assert run_json(capsys, "show", str(tmp_path / "out.json"))["step_s"] == pytest.approx(5e-5, rel=0.02)
    refused = run_json(capsys, "whatif", path, "--network", "2x")
    assert refused["step_s"] is None
    assert "no communication" in refused["refused"]


def test_ranks_are_given_as_a_folder_or_as_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(made.write(tmp_path / f"rank{rank}.json")) for rank, made in enumerate(pair_of_ranks())]
    one = run_json(capsys, "whatif", str(tmp_path), "--network", "2x")
    assert one == run_json(capsys, "whatif", *files, "--network", "2x")
    assert one["step_s"] < one["base_s"]


def test_diff_compares_two_traces(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(device_bound().write(tmp_path / "other.json"))
    found = run_json(capsys, "diff", path, other)
    assert {part["name"] for part in found["parts"]} >= {"compute", "host", "idle"}
    assert "Operators by time" in run(capsys, "diff", path, other)[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["whatif", "{}"], "nothing is changed"),
        (["whatif", "{}", "--host", "twice"], "--host twice: expected a factor such as 2x"),
        (["whatif", "{}", "--gpu", "h1000"], "unknown device"),
        (["whatif", "{}", "--host", "2x", "-o", "{}"], "would be overwritten"),
        (["show", "/nowhere/t.json"], "does not exist"),
        (["show", "{}", "--range", "none"], "no range named 'none'"),
        (["diff", "{}"], "needs two traces"),
        (["diff", "{}", "--forecast", "resnet50"], "--forecast needs --cluster and --global-batch"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(
    arguments: list[str], words: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, error = run(capsys, *(argument.format(path) for argument in arguments), code=2)
    assert words in error
    assert error.count("\n") == 1
