"""The JSON file for DeepSpeed: which keys stand for what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import CNN, LLAMA, graph_of, request_of
from tests.export.test_conformance import MOE
from traincast import Request, StrategyError
from traincast.export import export
from traincast.export.shape import parameters_of_largest_block


def read(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(export(request, "deepspeed"))
    return found


def test_a_file_in_full() -> None:
    found = read(request_of("dp=4,zero=2,offload=optimizer,micro_batch=2", model=LLAMA, runtime="deepspeed"))
    assert found.pop("_comment") == [
        f"{LLAMA} on 4 devices of dgx-a100, for DeepSpeed 0.19.8",
        "strategy dp=4,num_microbatches=2,zero=2,offload=optimizer; global batch 16, precision bf16",
    ]
    assert found == {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": True,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
        },
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    }


def test_full_sharding_says_how_far_ahead_and_how_long() -> None:
    graph = graph_of(LLAMA)
    found = read(request_of("dp=4,zero=3,prefetch=2,reshard=false,sync_each,microbatches=4", model=LLAMA))
    zero = found["zero_optimization"]
    assert found["communication_data_type"] == "bf16"
    block = 256 * 256 + 2 * 128 * 256 + 256 * 256 + 3 * 256 * 768 + 2 * 256
    assert parameters_of_largest_block(graph) == block
    assert zero == {
        "stage": 3,
        "overlap_comm": True,
        "stage3_max_live_parameters": graph.num_parameters,
        "stage3_max_reuse_distance": graph.num_parameters,
        "stage3_prefetch_bucket_size": 2 * block,
    }


def test_a_pipeline_has_stages_and_checkpoints() -> None:
    found = read(request_of("dp=2,pp=2,zero=1,recompute=full,offload=activations,microbatches=4", model=LLAMA))
    assert found["pipeline"] == {"stages": 2, "activation_checkpoint_interval": 1}
    assert found["activation_checkpointing"] == {"cpu_checkpointing": True}
    assert any("num_stages=2" in note for note in found["_comment"])


def test_ranks_of_a_tensor_group_are_no_replicas() -> None:
    found = read(request_of("dp=2,tp=2,zero=1,microbatches=4", model=LLAMA))
    assert found["tensor_parallel"] == {"autotp_size": 2}
    assert "train_batch_size" not in found  # DeepSpeed would compare it with micro batch × steps × all 4 ranks
    assert found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"] * 2 == 16
    assert any("would expect 32, although a step trains on 16 samples" in note for note in found["_comment"])


def test_a_shared_sequence_needs_both_sizes_of_the_mesh() -> None:
    shared = read(request_of("dp=2,cp=2,zero=1,microbatches=4", model=LLAMA))
    assert (shared["data_parallel_size"], shared["sequence_parallel_size"]) == (2, 2)
    assert shared["seq_parallel_communication_data_type"] == "fp32"
    assert any("Ulysses" in note for note in shared["_comment"])


def test_experts_have_a_section_of_their_own() -> None:
    experts = read(request_of("dp=4,ep=2,zero=1,microbatches=4", model=MOE))["expert_parallel"]
    assert experts == {"enabled": True, "autoep_size": 2, "expert_tensor_parallel_size": 1}


def test_one_replica_sums_wide_gradients_in_stage_1() -> None:
    assert read(request_of("pp=2,microbatches=4", model=LLAMA))["zero_optimization"] == {"stage": 1}
    assert read(request_of("pp=2,microbatches=4", model=LLAMA, precision="fp16"))["zero_optimization"] == {"stage": 0}
    assert read(request_of("pp=2,microbatches=4", model=LLAMA, precision="fp32"))["zero_optimization"] == {"stage": 0}


def test_precisions_have_sections_of_their_own() -> None:
    found = read(request_of("dp=4,microbatches=4", model=CNN, precision="amp"))
    assert found["torch_autocast"] == {"enabled": True, "dtype": "float16"}
    assert {"bf16", "fp16", "data_types"}.isdisjoint(found)
    half = read(request_of("dp=4,microbatches=4", model=CNN, precision="fp16"))
    assert half["fp16"] == {"enabled": True}
    assert half["data_types"] == {"grad_accum_dtype": "fp16"}
    assert {"bf16", "fp16", "torch_autocast"}.isdisjoint(read(request_of("dp=4,microbatches=4", precision="fp32")))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("dp=2,cp=2,ep=2,zero=1,microbatches=4", "cp=2 with ep=2"),
        ("dp=4,ep=2,etp=2,zero=1,microbatches=4", "use etp=1"),
    ],
)
def test_experts_that_deepspeed_cannot_share_out_are_refused(strategy: str, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        export(request_of(strategy, model=MOE), "deepspeed")


def test_a_shared_sequence_needs_whole_heads() -> None:
    model = "llama:layers=2,hidden=64,heads=2,vocab=100,seq=64"
    with pytest.raises(StrategyError, match="cp=4 with 2 heads"):
        export(request_of("cp=4,microbatches=4", model=model), "deepspeed")


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("dp=2,pp=2,zero=2,microbatches=4", "zero=2 with pp=2 .* use zero=1"),
        ("dp=2,pp=2,zero=3,microbatches=4", "zero=3 with pp=2"),
        ("tp=2,pp=2,microbatches=4", "^tp=2 with pp=2 .* use megatron"),
        ("pp=2,vp=2,microbatches=4", "virtual_stages=2"),
        ("pp=2,schedule=gpipe,microbatches=4", "schedule=gpipe"),
        ("pp=2,layers=1/3,microbatches=4", "layers=1/3"),
        ("dp=2,tp=2,zero=3,microbatches=4", "AutoTP needs zero=0, 1 or 2"),
        ("dp=2,tp=2,sp,microbatches=4", "sequence_parallel with tp=2"),
        ("dp=4,zero=1,shard=2,microbatches=4", "shard=2 of 4 replicas"),
        ("dp=4,zero=3,shard=2,microbatches=4", "MiCS, which did this, was removed in 0.19.8"),
        ("dp=4,microbatches=4", "zero=0 with bf16 and gradients summed in fp32 .* set zero=1"),
        ("dp=4,zero=3,reshard=false,microbatches=4", "set sync_each"),
        ("dp=4,offload=optimizer,microbatches=4", "set zero=1, 2 or 3"),
        ("dp=4,offload=activations,microbatches=4", "set recompute=full"),
    ],
)
def test_what_deepspeed_cannot_do_is_refused(strategy: str, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        export(request_of(strategy, model=LLAMA), "deepspeed")
