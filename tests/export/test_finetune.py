"""Fine-tuning in exported text: DeepSpeed notes what the user's code sets, and frameworks without a setting refuse."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.conftest import GPT, request_of
from traincast import Request, StrategyError
from traincast.export import FRAMEWORKS, export
from traincast.graph.tuning.tune import fine_tuned, parse_fine_tuning


def tuned(strategy: str, lora: str | None, *freeze: str, quantize: int | None = None) -> Request:
    request = request_of(strategy, runtime="deepspeed", model=GPT)
    return replace(request, graph=fine_tuned(request.graph, parse_fine_tuning(lora, freeze, quantize)))


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "deepspeed"])
def test_frameworks_without_a_setting_refuse_in_one_line(framework: str) -> None:
    with pytest.raises(StrategyError, match=r"^lora rank=8,targets=attention cannot be written for .*use deepspeed"):
        export(tuned("dp=2", "rank=8,targets=attention"), framework)
    request = request_of("dp=2")
    with pytest.raises(StrategyError, match=r"^optimizer adamw8bit cannot be written for"):
        export(replace(request, graph=request.graph.with_optimizer("adamw8bit")), framework)


def test_deepspeed_notes_adapters_and_quantised_weights() -> None:
    notes = json.loads(export(tuned("dp=2,zero=3", "rank=8,targets=attention", quantize=4), "deepspeed"))["_comment"]
    assert notes[2:] == [
        "fine-tuning: lora rank=8,targets=attention; quantize nf4",
        "add the adapters with PEFT (LoraConfig, get_peft_model) before deepspeed.initialize",
        "load the frozen weights in 4 bits with bitsandbytes",
        "set bnb_4bit_quant_storage to the dtype of the model, so that ZeRO-3 can shard the weights",
    ]


def test_deepspeed_notes_frozen_modules_and_optimizers() -> None:
    request = tuned("dp=2", None, "embedding")
    request = replace(
        request, graph=request.graph.with_optimizer("paged-adamw8bit"), strategy=replace(request.strategy, zero=1)
    )
    notes = json.loads(export(request, "deepspeed"))["_comment"]
    assert "freeze modules with requires_grad_(False) before deepspeed.initialize" in notes
    assert "pass the optimizer paged-adamw8bit of bitsandbytes to deepspeed.initialize" in notes


@pytest.mark.parametrize(
    ("strategy", "lora", "freeze", "quantize", "message"),
    [
        ("tp=2", "rank=8", (), None, "adapters with tp=2 cannot be written for DeepSpeed: AutoTP does not shard"),
        ("tp=2", None, ("layers",), 4, "quantised weights with tp=2"),
        ("dp=2,zero=3", "rank=8", (), 8, "frozen weights of 8 bits with zero=3"),
    ],
)
def test_deepspeed_refuses_what_it_cannot_shard(
    strategy: str, lora: str | None, freeze: tuple[str, ...], quantize: int | None, message: str
) -> None:
    with pytest.raises(StrategyError, match=message):
        export(tuned(strategy, lora, *freeze, quantize=quantize), "deepspeed")
