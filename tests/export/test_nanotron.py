"""The YAML file for nanotron: which keys stand for what."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import GPT, LLAMA, request_of
from tests.export.reading import read_yaml
from tests.export.test_conformance import MOE
from traincast.errors import StrategyError
from traincast.export import export
from traincast.strategy import Request


def read(request: Request) -> dict[str, Any]:
    return read_yaml(export(request, "nanotron"))


def test_a_file_in_full() -> None:
    request = request_of("dp=2,tp=2,pp=2,sp,zero=1,recompute=full,micro_batch=2", model=LLAMA, runtime="nanotron")
    assert export(request, "nanotron") == (
        f"# {LLAMA} on 8 devices of dgx-a100, for nanotron\n"
        "# strategy dp=2,tp=2,pp=2,num_microbatches=4,schedule=1f1b,zero=1,sequence_parallel,recompute=full; "
        "global batch 16, precision bf16\n"
        "parallelism:\n"
        "  dp: 2\n"
        "  pp: 2\n"
        "  tp: 2\n"
        "  context_parallel_size: 1\n"
        "  expert_parallel_size: 1\n"
        "  pp_engine: 1f1b\n"
        "  tp_mode: REDUCE_SCATTER\n"
        "  tp_linear_async_communication: false\n"
        "  recompute_layer: true\n"
        "tokens:\n"
        "  sequence_length: 128\n"
        "  micro_batch_size: 2\n"
        "  batch_accumulation_per_replica: 4\n"
        "optimizer:\n"
        "  zero_stage: 1\n"
        "  accumulate_grad_in_fp32: true\n"
        "model:\n"
        "  dtype: bfloat16\n"
        "  model_config:\n"
        "    is_llama_config: true\n"
        "    num_hidden_layers: 4\n"
        "    hidden_size: 256\n"
        "    intermediate_size: 768\n"
        "    num_attention_heads: 8\n"
        "    num_key_value_heads: 4\n"
        "    max_position_embeddings: 128\n"
        "    vocab_size: 1000\n"
        "    hidden_act: silu\n"
        "    tie_word_embeddings: false\n"
    )


def test_a_plain_tensor_group_reduces_and_gpipe_is_afab() -> None:
    found = read(request_of("tp=2,pp=2,schedule=gpipe,microbatches=4", model=LLAMA))["parallelism"]
    assert found["tp_mode"] == "ALL_REDUCE"
    assert found["pp_engine"] == "afab"
    assert found["recompute_layer"] is False


def test_mixtures_and_shared_sequences_are_qwen2s() -> None:
    mixture = read(request_of("dp=4,ep=4,microbatches=4", model=MOE))
    config = mixture["model"]["model_config"]
    assert config["is_qwen2_config"] is True
    assert config["intermediate_size"] == 512
    assert config["moe_config"] == {
        "num_experts": 8,
        "top_k": 2,
        "enable_shared_expert": False,
        "token_dispatcher_type": "alltoall",
    }
    shared = read(request_of("cp=2,microbatches=4", model=LLAMA))["model"]["model_config"]
    assert shared["_attn_implementation"] == "llama3_ring_attention"


def test_a_model_that_nanotron_lacks_is_left_out_and_said() -> None:
    text = export(request_of("dp=2,microbatches=4", model=GPT), "nanotron")
    assert "# nanotron has no gpt" in text
    assert read_yaml(text)["model"] == {"dtype": "bfloat16"}


def test_gradients_are_summed_as_the_runtime_does() -> None:
    half = request_of("dp=2,microbatches=4", model=LLAMA, precision="fp16")
    assert read(half)["optimizer"]["accumulate_grad_in_fp32"] is False
    wide = request_of("dp=2,microbatches=4", model=LLAMA, precision="fp16", runtime="nanotron")
    assert read(wide)["optimizer"]["accumulate_grad_in_fp32"] is True


@pytest.mark.parametrize(
    ("strategy", "model", "message"),
    [
        ("dp=2,zero=2,microbatches=4", LLAMA, "use zero=1"),
        ("dp=2,zero=3,microbatches=4", LLAMA, "use zero=1"),
        ("pp=2,vp=2,microbatches=4", LLAMA, "one chunk per stage"),
        ("pp=2,schedule=zb-h1,microbatches=4", LLAMA, "schedule=zb-h1"),
        ("pp=2,layers=1/3,microbatches=4", LLAMA, "layers=1/3"),
        ("pp=4,microbatches=2", LLAMA, "pp − 1 = 3"),
        ("dp=2,recompute=selective,microbatches=4", LLAMA, "all layers or none"),
        ("dp=2,zero=1,offload=optimizer,microbatches=4", LLAMA, "offloads nothing"),
        ("cp=2,context=ring,microbatches=4", LLAMA, "use context=all_gather"),
        ("dp=4,zero=1,shard=2,microbatches=4", LLAMA, "leave shard out"),
        ("dp=4,ep=2,etp=2,microbatches=4", MOE, "use etp=1"),
    ],
)
def test_what_nanotron_cannot_do_is_refused(strategy: str, model: str, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        export(request_of(strategy, model=model), "nanotron")
