"""``--export`` of ``search`` and ``predict``: timed with the framework's runtime, for a release that is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.export.test_conformance import check_fields
from traincast.cli.main import main
from traincast.export import FRAMEWORKS

LLAMA = "llama:layers=4,hidden=256,heads=8,kv_heads=4,vocab=1000,seq=256"
GPT = "gpt:layers=4,hidden=256,heads=8,vocab=1000,seq=256"
PLACE = [LLAMA, "--cluster", "dgx-a100:1x4", "--global-batch", "16"]
SEARCH = [
    "search",
    *PLACE,
    "--workers",
    "1",
    "--constraint",
    "tp<=2,micro_batch=1|2,offload=none,recompute=none|full",
    "--export",
]
PREDICT = ["predict", *PLACE, "--strategy"]
STRATEGIES = {
    "megatron": "tp=2,dp=2",
    "torchtitan": "dp=4,zero=3",
    "deepspeed": "dp=4,zero=2",
    "nanotron": "dp=4,zero=1",
}


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    shown = capsys.readouterr()
    assert stopped.value.code == code, shown.err
    return shown.out, shown.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json")[0])


@pytest.mark.long(but=1)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_search_for_a_framework_times_its_runtime(framework: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, *SEARCH, framework)
    assert answer["runtime"] == framework
    found = answer["export"]
    assert {k: found[k] for k in ("framework", "release", "runtime")} == {
        "framework": framework,
        "release": FRAMEWORKS[framework].release,
        "runtime": framework,
    }
    assert answer["best"]["strategy"] in found["text"]
    check_fields(found["text"], framework)


@pytest.mark.long(guard="test_a_search_for_a_framework_times_its_runtime")
def test_a_search_shows_the_release_and_the_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    shown, _ = run(capsys, *SEARCH, "torchtitan")
    assert "· torchtitan ·" in shown
    assert "the first strategy for torchtitan (0.2.2), timed with the runtime torchtitan\n" in shown
    assert "--runtime torchtitan" in shown.partition("traincast predict")[2]


def test_a_runtime_that_is_given_is_kept_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*PREDICT, "dp=4,zero=3", "--export", "torchtitan", "--runtime", "fsdp"]
    assert run_json(capsys, *arguments)["export"]["runtime"] == "fsdp"
    shown, _ = run(capsys, *arguments)
    said = " ".join(shown.split())
    assert (
        "timed with the runtime fsdp, as --runtime says; omit --runtime to time the step as torchtitan runs it" in said
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_forecast_is_written_for_each_framework(framework: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *PREDICT, STRATEGIES[framework], "--export", framework)
    assert report["runtime"] == report["export"]["runtime"] == framework
    check_fields(report["export"]["text"], framework)
    plain = run_json(capsys, *PREDICT, STRATEGIES[framework], "--runtime", framework)
    assert plain["step_s"] == report["step_s"]
    assert plain["export"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PREDICT, "dp=4,zero=3", "--export", "nanotron"], "zero=3 cannot be written for nanotron"),
        (
            ["predict", GPT, *PLACE[1:], "--export", "nanotron"],
            "Traincast chose the strategy",
        ),
        ([*PREDICT, "dp=4", "--export", "fairseq"], "unknown framework 'fairseq'"),
        ([*SEARCH, "nanotron", "--constraint", "zero=3"], "nanotron"),
    ],
)
def test_what_a_framework_lacks_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, error = run(capsys, *arguments, code=2)
    assert words in error
    assert error.count("\n") == 1
