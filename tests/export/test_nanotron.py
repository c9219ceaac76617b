"""The YAML file for nanotron: which keys stand for what."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import GPT, LLAMA, request_of
from tests.export.reading import read_yaml
from tests.export.test_conformance import MOE
from traincast import Request, StrategyError
from traincast.export import export


def read(request: Request) -> dict[str, Any]:
    return read_yaml(export(request, "nanotron"))


def test_a_file_in_full() -> None:
    request = request_of("dp=2,tp=2,pp=2,sp,zero=1,recompute=full,micro_batch=2", model=LLAMA, runtime="nanotron")
    lines = export(request, "nanotron").splitlines()
    assert lines[:3] == [
        f"# {LLAMA} on 8 devices of dgx-a100, for nanotron, main at 2411b022, April 2026",
        "# strategy dp=2,tp=2,pp=2,num_microbatches=4,schedule=1f1b,zero=1,sequence_parallel,recompute=full; "
        "global batch 16, precision bf16",
        "# set these yourself: general, checkpoints, train_steps, init_method, optimizer except zero_stage, "
        "data_stages",
    ]
    assert read(request) == {
        "general": {"project": "traincast", "run": "%date_%jobid"},
        "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": 1000},
        "parallelism": {
            "dp": 2,
            "pp": 2,
            "tp": 2,
            "expert_parallel_size": 1,
            "pp_engine": "1f1b",
            "tp_mode": "REDUCE_SCATTER",
            "tp_linear_async_communication": False,
            "recompute_layer": True,
        },
        "tokens": {
            "sequence_length": 128,
            "train_steps": 1000,
            "micro_batch_size": 2,
            "batch_accumulation_per_replica": 4,
        },
        "optimizer": {
            "zero_stage": 1,
            "accumulate_grad_in_fp32": True,
            "weight_decay": 0.01,
            "clip_grad": 1.0,
            "optimizer_factory": {
                "name": "adamW",
                "adam_beta1": 0.9,
                "adam_beta2": 0.95,
                "adam_eps": 1e-8,
                "torch_adam_is_fused": True,
            },
            "learning_rate_scheduler": {
                "learning_rate": 0.0003,
                "lr_warmup_steps": 2,
                "lr_warmup_style": "linear",
                "lr_decay_style": "cosine",
                "min_decay_lr": 1e-5,
            },
        },
        "model": {
            "dtype": "bfloat16",
            "init_method": {"std": 0.025},
            "model_config": {
                "is_llama_config": True,
                "num_hidden_layers": 4,
                "hidden_size": 256,
                "intermediate_size": 768,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "max_position_embeddings": 128,
                "vocab_size": 1000,
                "hidden_act": "silu",
                "tie_word_embeddings": False,
            },
        },
    }


def test_a_plain_tensor_group_reduces_and_gpipe_is_afab() -> None:
    found = read(request_of("tp=2,pp=2,schedule=gpipe,microbatches=4", model=LLAMA))["parallelism"]
    assert found["tp_mode"] == "ALL_REDUCE"
    assert found["pp_engine"] == "afab"
    assert "recompute_layer" not in found


def test_experts_of_a_mixture_have_their_own_size() -> None:
    config = read(request_of("dp=4,zero=1,microbatches=4", model=MOE))["model"]["model_config"]
    assert config["is_qwen2_config"] is True
    assert config["intermediate_size"] == 512
    assert config["moe_config"] == {
        "num_experts": 8,
        "top_k": 2,
        "moe_intermediate_size": 512,
        "enable_shared_expert": False,
        "token_dispatcher_type": "alltoall",
    }


def test_shared_experts_and_dense_layers_are_said() -> None:
    shared = f"{MOE},shared_ffn=384"
    assert read(request_of("dp=4,microbatches=4", model=shared))["model"]["model_config"]["moe_config"] == {
        "num_experts": 8,
        "top_k": 2,
        "moe_intermediate_size": 512,
        "enable_shared_expert": True,
        "token_dispatcher_type": "alltoall",
        "shared_expert_intermediate_size": 384,
    }


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
        ("dp=2,recompute=selective,microbatches=4", LLAMA, "choose one of none, full"),
        ("dp=2,recompute=full,recompute_every=2,microbatches=4", LLAMA, "all layers or none"),
        ("dp=2,zero=1,offload=optimizer,microbatches=4", LLAMA, "offloads nothing"),
        ("cp=2,microbatches=4", LLAMA, "use cp=1"),
        ("dp=4,zero=1,shard=2,microbatches=4", LLAMA, "leave shard out"),
        ("dp=4,ep=2,microbatches=4", MOE, "use ep=1"),
        ("dp=2,tp=2,sp,etp=1,microbatches=4", MOE, "tp=2 with 8 experts"),
        ("tp=8,microbatches=4", LLAMA, "tp=8 with 4 heads of keys and values"),
        ("dp=2,microbatches=4", GPT, "family gpt"),
        ("dp=2,microbatches=4", f"{LLAMA},head_dim=64", "8 heads of 64 with hidden size 256"),
    ],
)
def test_what_nanotron_cannot_do_is_refused(strategy: str, model: str, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        export(request_of(strategy, model=model), "nanotron")
