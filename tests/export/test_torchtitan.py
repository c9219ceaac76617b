"""The TOML file for torchtitan: which keys stand for what."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import GPT, LLAMA, request_of
from tests.export.test_conformance import MOE
from traincast import Request, Strategy, StrategyError
from traincast.export import export
from traincast.export.torchtitan import FLAVORS, degrees, modules
from traincast.graph.zoo import names


def read(request: Request) -> dict[str, Any]:
    return tomllib.loads(export(request, "torchtitan"))


def test_a_file_in_full() -> None:
    request = request_of("dp=4,tp=2,sp,zero=3,micro_batch=2", model="llama3-8b", runtime="torchtitan")
    assert read(request) == {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {
            "local_batch_size": 2,
            "global_batch_size": 16,
            "seq_len": 8192,
            "mixed_precision_param": "bfloat16",
            "mixed_precision_reduce": "float32",
        },
        "parallelism": {
            "data_parallel_replicate_degree": 1,
            "data_parallel_shard_degree": 4,
            "tensor_parallel_degree": 2,
            "pipeline_parallel_degree": 1,
            "context_parallel_degree": 1,
            "expert_parallel_degree": 1,
            "fsdp_reshard_after_forward": "always",
            "enable_async_tensor_parallel": False,
        },
        "activation_checkpoint": {"mode": "none"},
        "compile": {"enable": True},
    }


def test_flavors_are_of_models_of_the_zoo() -> None:
    assert set(FLAVORS) <= set(names())
    text = export(request_of("dp=2,zero=3,microbatches=4", model=LLAMA), "torchtitan")
    assert "add one with dim=256, n_layers=4, n_heads=8, n_kv_heads=4, vocab_size=1000" in text
    assert tomllib.loads(text)["model"] == {"name": "llama3", "flavor": LLAMA}  # not its default, a debug model


def test_a_model_that_only_has_a_known_name_gets_no_flavor() -> None:
    request = request_of("dp=2,zero=3,microbatches=4", model=LLAMA)
    own = replace(request, graph=replace(request.graph, name="llama3-8b"))
    assert read(own)["model"] == {"name": "llama3-8b", "flavor": "llama3-8b"}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy(dp=8), (8, 1)),
        (Strategy(dp=8, zero=3), (1, 8)),
        (Strategy(dp=8, zero=3, shard=2), (4, 2)),
        (Strategy(dp=4, cp=2, zero=3), (1, 4)),
        (Strategy(dp=4, cp=2, zero=3, shard=4), (2, 2)),
    ],
)
def test_replicas_are_replicated_or_sharded(strategy: Strategy, expected: tuple[int, int]) -> None:
    assert degrees(strategy) == expected


def test_a_pipeline_cuts_its_local_batch_into_microbatches() -> None:
    found = read(request_of("dp=2,pp=2,zero=3,micro_batch=2", model=LLAMA))
    assert found["training"]["local_batch_size"] == 8
    spread = found["parallelism"]
    assert spread["pipeline_parallel_microbatch_size"] == 2
    assert spread["pipeline_parallel_schedule"] == "1F1B"
    assert spread["pipeline_parallel_layers_per_stage"] == 2
    assert spread["pipeline_parallel_first_stage_less_layers"] == 0
    assert spread["pipeline_parallel_last_stage_less_layers"] == 0


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ("dp=2,pp=2,zero=3,schedule=gpipe,microbatches=4", "GPipe"),
        ("dp=2,pp=2,vp=2,zero=3,microbatches=4", "Interleaved1F1B"),
        ("dp=2,pp=2,vp=2,zero=3,schedule=interleaved,microbatches=4", "Interleaved1F1B"),
        ("dp=2,pp=2,vp=2,zero=3,schedule=breadth-first,microbatches=4", "LoopedBFS"),
        ("dp=2,pp=2,zero=3,schedule=zb-v,microbatches=4", "ZBVZeroBubble"),
    ],
)
def test_schedules_have_the_names_of_pytorch(strategy: str, name: str) -> None:
    spread = read(request_of(strategy, model=LLAMA))["parallelism"]
    assert spread["pipeline_parallel_schedule"] == name
    if name != "GPipe":
        assert spread["pipeline_parallel_layers_per_stage"] == 1


def test_uneven_stages_are_listed_by_module() -> None:
    spread = read(request_of("dp=2,pp=2,zero=3,layers=1/3,microbatches=4", model=LLAMA))["parallelism"]
    assert spread["module_fqns_per_model_part"] == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2", "layers.3", "norm", "output"],
    ]
    assert modules([1, 0]) == [["tok_embeddings", "layers.0"], ["norm", "output"]]


@pytest.mark.parametrize(
    ("strategy", "section"),
    [
        ("dp=2,zero=3,recompute=full,microbatches=4", {"mode": "full"}),
        (
            "dp=2,zero=3,recompute=full,recompute_every=3,microbatches=4",
            {"mode": "selective", "selective_ac_option": "3"},
        ),
        ("dp=2,zero=3,recompute=selective,microbatches=4", {"mode": "selective", "selective_ac_option": "op"}),
    ],
)
def test_recomputation_has_its_mode(strategy: str, section: dict[str, str]) -> None:
    assert read(request_of(strategy, model=LLAMA))["activation_checkpoint"] == section


def test_context_offload_and_resharding_have_their_keys() -> None:
    found = read(
        request_of(
            "dp=2,cp=2,zero=3,context=ring,reshard=false,sync_each,offload=optimizer,microbatches=4", model=LLAMA
        )
    )
    assert found["parallelism"]["context_parallel_rotate_method"] == "alltoall"
    assert found["parallelism"]["fsdp_reshard_after_forward"] == "never"
    assert found["training"]["enable_cpu_offload"] is True


def test_fp8_swaps_linear_layers_and_compiles() -> None:
    found = read(request_of("dp=2,zero=3,microbatches=4", model=LLAMA, precision="fp8"))
    assert found["model"]["converters"] == ["quantize.linear.float8"]
    assert found["quantize"]["linear"]["float8"] == {"recipe_name": "tensorwise"}
    assert found["compile"]["enable"] is True


def test_fp8_experts_are_swapped_as_well() -> None:
    found = read(request_of("dp=4,ep=2,zero=3,microbatches=4", model=MOE, precision="fp8"))
    assert found["model"]["converters"] == ["quantize.linear.float8", "quantize.grouped_mm.float8"]
    assert found["quantize"]["grouped_mm"]["float8"] == {"fqns": ["experts"]}
    with pytest.raises(StrategyError, match="fp8 experts with pp=1, cp=2"):
        export(request_of("dp=2,cp=2,ep=2,zero=3,microbatches=4", model=MOE, precision="fp8"), "torchtitan")


def test_overlapped_tensor_traffic_is_compiled() -> None:
    for runtime in ("torchtitan", "megatron-bridge"):
        found = read(request_of("dp=2,tp=2,sp,zero=3,microbatches=4", model=LLAMA, runtime=runtime))
        assert found["compile"]["enable"] or not found["parallelism"]["enable_async_tensor_parallel"]


def test_experts_have_degrees_of_their_own() -> None:
    spread = read(request_of("dp=4,tp=2,sp,ep=4,etp=2,zero=3,microbatches=4", model=MOE))["parallelism"]
    assert (spread["expert_parallel_degree"], spread["expert_tensor_parallel_degree"]) == (4, 2)


@pytest.mark.parametrize(
    ("strategy", "model", "message"),
    [
        ("pp=2,schedule=dualpipe,microbatches=8", LLAMA, "schedule=dualpipe"),
        ("dp=2,zero=1,microbatches=4", LLAMA, "zero=3,reshard=false"),
        ("dp=2,tp=2,zero=3,microbatches=4", LLAMA, "set sp"),
        ("dp=2,tp=2,sp,microbatches=4", LLAMA, "replicas without sharding exclude other parallelism"),
        ("cp=2,microbatches=4", LLAMA, "always shards weights over context ranks"),
        ("dp=2,cp=2,zero=3,shard=1,microbatches=4", LLAMA, "shard=1 with cp=2"),
        ("dp=2,offload=activations,microbatches=4", LLAMA, "offload=activations"),
        ("dp=4,tp=2,sp,ep=8,etp=1,zero=3,shard=2,microbatches=4", MOE, "ep·etp must divide 4"),
        ("tp=2,sp,ep=2,microbatches=4", MOE, "bf16 with tp=2, pp=1 and no sharded replicas .* fp32 would run"),
        ("dp=2,pp=4,zero=3,microbatches=2", LLAMA, "2 microbatches with pp=4 .* needs at least one per stage"),
        ("tp=2,sp,pp=2,microbatches=4", LLAMA, "fp32 would run"),
        ("dp=4,microbatches=4", LLAMA, "4 microbatches with zero=0 .* set sync_each"),
        ("dp=4,zero=3,reshard=false,microbatches=4", LLAMA, "set sync_each"),
        ("dp=4,zero=3,prefetch=2,microbatches=4", LLAMA, "leave prefetch out"),
        ("dp=4,zero=3,shard=1,microbatches=4", LLAMA, "shard=1 of 4 replicas"),
        ("dp=2,cp=2,zero=3,microbatches=4", "deepseek-v2-lite", "cp=2 with deepseek-v2-lite"),
        ("dp=2,pp=2,zero=3,microbatches=4", "qwen3-8b", "its qwen3 has no pipeline"),
        ("dp=2,zero=3,microbatches=4", GPT, "family gpt"),
        ("dp=2,cp=8,tp=4,sp,zero=3,microbatches=4", f"{LLAMA[:-3]}96", "multiple of 2·cp·tp = 64"),
    ],
)
def test_what_torchtitan_cannot_do_is_refused(strategy: str, model: str, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        export(request_of(strategy, model=model), "torchtitan")
