"""``--lora``, ``--freeze``, ``--quantize`` and ``--optimizer``: on the command line and in Python."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_exporting import run
from tests.conftest import GPT
from tests.searching.problems import MOE
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
    assert told["memory"] == report.memory.to_dict()


def test_fine_tuning_runs_with_a_trainer_unless_a_runtime_is_stated_and_that_is_said() -> None:
    def told(**said: str) -> tuple[str, tuple[str, ...]]:
        report = predict(GPT, cluster="dgx-a100:1x1", global_batch=4, strategy="dp=1", **said).report  # type: ignore[call-overload]
        return report.runtime, tuple(w for w in report.warnings if "runtime" in w)

    runtime, (warning,) = told(lora="rank=8")
    assert runtime == "hf-trainer"
    assert "fine-tuning is taken to run with hf-trainer; else give --runtime NAME" in warning
    assert told(lora="rank=8", runtime="megatron") == ("megatron", ())
    assert told() == ("megatron", ())


def test_a_model_with_experts_runs_with_a_runtime_that_overlaps_and_that_is_said() -> None:
    report = predict(MOE, cluster="dgx-a100:1x2", global_batch=4, strategy="dp=2,ep=2").report
    assert report.runtime == "megatron-bridge"
    said = "a model with experts is taken to run with megatron-bridge of release 26.06; else give --runtime NAME"
    assert any(said in warning for warning in report.warnings)
    found = search(MOE, cluster="dgx-a100:1x2", global_batch=4, constraint="pp=1,tp=1,cp=1,recompute=none")
    assert any(said in warning for warning in found.warnings)


def test_a_search_repeats_the_options_for_predict(capsys: pytest.CaptureFixture[str]) -> None:
    frozen = ("--freeze", "embedding", "--freeze", "layers.[01]")
    out, _ = run(capsys, "search", GPT, *PLACE, *frozen, "--constraint", "pp=1,tp=1,cp=1", "--workers", "1")
    out = out.replace("\n", " ")
    assert "--freeze embedding --freeze 'layers.[01]' --strategy" in out


@pytest.mark.long(guard="searching/test_bulk.py::test_models_with_frozen_weights_are_forecast_as_they_would_be_alone")
def test_a_search_of_adapters_finds_the_step_that_predict_forecasts() -> None:
    tuning = {"lora": "rank=8,targets=all", "quantize": 4}
    best = search(GPT, cluster="dgx-a100:1", global_batch=16, constraint="pp=1,cp=1", **tuning).best  # type: ignore[call-overload]
    alone = predict(GPT, cluster="dgx-a100:1", global_batch=16, strategy=best.strategy, **tuning)  # type: ignore[call-overload]
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
