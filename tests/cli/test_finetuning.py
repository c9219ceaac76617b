"""``--lora``, ``--freeze``, ``--quantize`` and ``--optimizer``: on the command line and in Python."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_exporting import run
from tests.conftest import GPT
from traincast import predict, search

PLACE = ("--cluster", "dgx-a100:1", "--global-batch", "16")
TUNED = ("--lora", "rank=8,targets=attention", "--quantize", "4", "--optimizer", "adamw8bit")


def test_options_and_arguments_mean_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(run(capsys, "predict", GPT, *PLACE, "--strategy", "dp=8", *TUNED, "--json")[0])
    report = predict(
        GPT,
        cluster="dgx-a100:1",
        global_batch=16,
        strategy="dp=8",
        lora="rank=8,targets=attention",
        quantize=4,
        optimizer="adamw8bit",
    ).report
    assert told["step_s"] == report.step_s
    assert told["num_trainable_parameters"] == 4 * 8 * 8 * 256
    assert told["memory"] == report.memory.as_dict()


def test_a_search_repeats_the_options_for_predict(capsys: pytest.CaptureFixture[str]) -> None:
    frozen = ("--freeze", "embedding", "--freeze", "layers.[01]")
    out, _ = run(capsys, "search", GPT, *PLACE, *frozen, "--constraint", "pp=1,tp=1,cp=1", "--workers", "1")
    out = out.replace("\n", " ")
    assert "--freeze embedding --freeze 'layers.[01]' --strategy" in out


def test_a_search_of_adapters_finds_the_step_that_predict_forecasts() -> None:
    tuning = {"lora": "rank=8,targets=all", "quantize": 4}
    best = search(GPT, cluster="dgx-a100:1", global_batch=16, constraint="pp=1,cp=1", **tuning).best  # type: ignore[arg-type]
    alone = predict(GPT, cluster="dgx-a100:1", global_batch=16, strategy=best.strategy, **tuning)  # type: ignore[arg-type]
    assert best.report.step_s == pytest.approx(alone.report.step_s, rel=1e-9)
    assert best.report.memory == alone.report.memory


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lora", "rank=0"), "lora rank"),
        (("--lora", "rank=8,targets=moe"), "lora target 'moe' matches no module"),
        (("--quantize", "4"), "quantised weights cannot be trained"),
        (("--optimizer", "adam9"), "unknown optimizer 'adam9'"),
        (("--freeze", "*"), "nothing is left to train"),
    ],
)
def test_mistakes_are_refused_in_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = run(capsys, "predict", GPT, *PLACE, *words, code=2)
    assert message in " ".join(err.split())
