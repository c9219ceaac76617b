"""The command for Megatron-LM: which flags stand for what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import GPT, LLAMA, graph_of, request_of
from tests.export.reading import read_command
from traincast import Request, StrategyError
from traincast.export import export
from traincast.export.megatron import _model as megatron_flags
from traincast.export.megatron import _vocabulary, layout
from traincast.export.shape import _settings, decoder_from
from traincast.graph.zoo import card


def flags_of(request: Request) -> dict[str, str]:
    return read_command(export(request, "megatron"))


def named(request: Request, name: str) -> Request:
    """The request with a graph that has another model's name, whose card is then read."""
    return replace(request, graph=replace(request.graph, name=name))


def test_a_command_in_full() -> None:
    request = request_of("dp=2,tp=2,pp=2,sp,zero=1,micro_batch=2", model=LLAMA, runtime="megatron")
    text = export(request, "megatron")
    assert text == (
        f"# {LLAMA} on 8 devices of dgx-a100, for Megatron-LM core_v0.16.1 (pretrain_gpt.py)\n"
        "# strategy dp=2,tp=2,pp=2,num_microbatches=4,schedule=1f1b,zero=1,sequence_parallel; global batch 16, "
        "precision bf16\n"
        "# base of rotary positions and epsilon of norms not known: the default is used; add --rotary-base, "
        "--norm-epsilon\n"
        "export CUDA_DEVICE_MAX_CONNECTIONS=1  # required by tensor and context parallelism before Blackwell\n"
        "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py \\\n"
        "    --num-layers 4 \\\n"
        "    --hidden-size 256 \\\n"
        "    --ffn-hidden-size 768 \\\n"
        "    --num-attention-heads 8 \\\n"
        "    --seq-length 128 \\\n"
        "    --max-position-embeddings 128 \\\n"
        "    --group-query-attention \\\n"
        "    --num-query-groups 4 \\\n"
        "    --untie-embeddings-and-output-weights \\\n"
        "    --position-embedding-type rope \\\n"
        "    --normalization RMSNorm \\\n"
        "    --swiglu \\\n"
        "    --disable-bias-linear \\\n"
        "    --attention-dropout 0.0 \\\n"
        "    --hidden-dropout 0.0 \\\n"
        "    --vocab-size 1000 \\\n"
        "    --make-vocab-size-divisible-by 4 \\\n"
        "    --tensor-model-parallel-size 2 \\\n"
        "    --pipeline-model-parallel-size 2 \\\n"
        "    --context-parallel-size 1 \\\n"
        "    --sequence-parallel \\\n"
        "    --micro-batch-size 2 \\\n"
        "    --global-batch-size 16 \\\n"
        "    --use-distributed-optimizer \\\n"
        "    --bf16 \\\n"
        "    --overlap-grad-reduce \\\n"
        "    --overlap-param-gather \\\n"
        '    "$@"\n'
    )


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("llama3-8b", {"--rotary-base": "500000", "--norm-epsilon": "1e-05"}),
        ("llama-3.1-8b", {"--rotary-base": "500000", "--use-rope-scaling": "", "--rope-scaling-factor": "8"}),
        ("qwen2.5-7b", {"--rotary-base": "1000000", "--norm-epsilon": "1e-06", "--add-qkv-bias": ""}),
        ("qwen3-4b", {"--rotary-base": "1000000", "--kv-channels": "128", "--qk-layernorm": ""}),
        (
            "nemotron-4-15b",
            {"--rotary-base": "10000", "--squared-relu": "", "--untie-embeddings-and-output-weights": ""},
        ),
        ("starcoder2-7b", {"--rotary-base": "1000000", "--position-embedding-type": "rope"}),
        ("neox-20b", {"--rotary-base": "10000", "--rotary-percent": "0.25"}),
    ],
)
def test_positions_and_norms_are_those_of_the_released_model(model: str, flags: dict[str, str]) -> None:
    decoder = decoder_from(card(model), 4096)
    written = {flag[0]: " ".join(flag[1:]) for flag in megatron_flags(decoder, [])}
    assert {name: written.get(name) for name in flags} == flags


def test_settings_belong_to_known_models() -> None:
    for values in _settings().values():
        assert {name: card(name).name for name in values} == {name: name for name in values}


@pytest.mark.parametrize(
    ("vocab", "tp", "divisor"),
    [(128256, 1, None), (128256, 8, "32"), (50257, 1, "1"), (50257, 8, "1"), (32000, 8, "32")],
)
def test_the_vocabulary_is_not_padded_beyond_the_forecast(vocab: int, tp: int, divisor: str | None) -> None:
    notes: list[str] = []
    decoder = replace(decoder_from(card("llama3-8b"), 4096), vocab=vocab)
    flags = {flag[0]: flag[1] for flag in _vocabulary(decoder, tp, notes)}
    assert flags.get("--make-vocab-size-divisible-by") == divisor
    assert bool(notes) == bool(vocab % tp)  # only what tensor ranks cannot share out is padded


def test_a_gpt_keeps_learned_positions_biases_and_tied_embeddings() -> None:
    found = flags_of(request_of("dp=1", model=GPT, global_batch=1))
    assert found["--ffn-hidden-size"] == "1024"
    assert found["--max-position-embeddings"] == "128"
    assert found["--attention-dropout"] == found["--hidden-dropout"] == "0.1"
    gated = {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--position-embedding-type"}
    assert gated.isdisjoint(found)


DEEPSEEK = (
    "deepseek:layers=4,hidden=256,heads=4,experts=8,top_k=2,expert_ffn=64,ffn=512,first_dense=1,q_lora=64,kv_lora=32,"
    "rope_dim=16,nope_dim=32,v_dim=24,vocab=1000,seq=128"
)


def test_latent_attention_and_experts_have_their_flags() -> None:
    found = flags_of(request_of("pp=2,microbatches=4", model=DEEPSEEK))
    wanted = {
        "--num-layers": "4",
        "--hidden-size": "256",
        "--ffn-hidden-size": "512",
        "--num-attention-heads": "4",
        "--vocab-size": "1000",
        "--num-experts": "8",
        "--moe-router-topk": "2",
        "--moe-ffn-hidden-size": "64",
        "--moe-shared-expert-intermediate-size": "64",
        "--moe-layer-freq": "([0]*1+[1]*3)",
        "--moe-router-score-function": "sigmoid",
        "--multi-latent-attention": "",
        "--qk-layernorm": "",
        "--q-lora-rank": "64",
        "--kv-lora-rank": "32",
        "--qk-head-dim": "32",
        "--qk-pos-emb-head-dim": "16",
        "--v-head-dim": "24",
    }
    assert wanted.items() <= found.items()
    assert "--kv-channels" not in found


GPT_OSS = "gpt-oss:layers=4,hidden=256,heads=8,kv_heads=4,experts=8,top_k=2,head_dim=32,vocab=1000,seq=256,window=64"


def test_windows_sinks_and_biases_of_gpt_oss_have_their_flags() -> None:
    found = flags_of(request_of("dp=4,ep=4,zero=1,microbatches=4", model=GPT_OSS))
    wanted = {"--window-size": "64,0", "--window-attn-skip-freq": "2", "--softmax-type": "learnable"}
    assert wanted.items() <= found.items()
    assert "--disable-bias-linear" not in found
    with pytest.raises(StrategyError, match=r"etp=2 with gpt-oss.*set etp=1"):
        export(request_of("dp=2,tp=2,sp,etp=2,zero=1,microbatches=4", model=GPT_OSS), "megatron")


def test_gradients_of_sharded_weights_travel_as_forecast() -> None:
    plain = flags_of(request_of("dp=4,zero=2,microbatches=4", model=LLAMA))
    assert "--grad-reduce-in-bf16" not in plain
    assert "--grad-reduce-in-bf16" in flags_of(request_of("dp=4,zero=3,microbatches=4", model=LLAMA))


def test_optimizer_instances_must_divide_the_replicas_of_experts() -> None:
    with pytest.raises(StrategyError, match=r"shard=2 with 1 replicas of experts .* 4 optimizer instances"):
        export(request_of("dp=8,ep=8,zero=1,shard=2,microbatches=2", model=DEEPSEEK), "megatron")


def test_a_dense_model_has_no_degrees_of_experts() -> None:
    found = flags_of(request_of("dp=4,etp=2,zero=1,shard=1,microbatches=4", model=LLAMA))
    assert not [flag for flag in found if "expert" in flag]


def test_a_model_outside_the_zoo_says_so() -> None:
    text = export(named(request_of("dp=1", model=LLAMA, global_batch=1), "my-model"), "megatron")
    assert "# dimensions of my-model are not in the zoo" in text
    assert "--num-layers" not in read_command(text)
    assert "--num-layers" not in flags_of(named(request_of("dp=1", model=LLAMA, global_batch=1), "llama3-8b"))
    assert read_command(text)["--seq-length"] == "128"


def test_fsdp_leaves_the_queues_of_the_device_alone() -> None:
    text = export(request_of("dp=2,tp=2,sp,zero=3,microbatches=4", model=LLAMA), "megatron")
    assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in text
    assert "export CUDA" not in text


def test_a_name_stays_within_its_comment() -> None:
    text = export(named(request_of("dp=1", model=LLAMA, global_batch=1), "a\nrm -r b"), "megatron")
    assert text.startswith("# a rm -r b on 1 devices")


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("pp=2,vp=2,microbatches=4", {"--num-virtual-stages-per-pipeline-rank": "2"}),
        ("pp=3,layers=2/1/1,microbatches=4", {"--pipeline-model-parallel-layout": "Et*2|t|tL"}),
        ("pp=2,vp=2,layers=1/1/2/0,microbatches=4", {"--pipeline-model-parallel-layout": "Et|t|t*2|L"}),
        ("dp=2,cp=2,context=ring,microbatches=4", {"--cp-comm-type": "p2p", "--context-parallel-size": "2"}),
        ("dp=2,cp=2,microbatches=4", {"--cp-comm-type": "allgather"}),
        (
            "dp=4,zero=3,microbatches=4",
            {
                "--use-megatron-fsdp": "",
                "--data-parallel-sharding-strategy": "optim_grads_params",
                "--ckpt-format": "fsdp_dtensor",
            },
        ),
        ("dp=4,zero=2,microbatches=4", {"--data-parallel-sharding-strategy": "optim_grads"}),
        ("dp=4,zero=1,shard=2,microbatches=4", {"--num-distributed-optimizer-instances": "2"}),
        (
            "dp=4,recompute=selective,microbatches=4",
            {"--recompute-granularity": "selective", "--recompute-modules": "core_attn"},
        ),
        (
            "dp=4,recompute=full,microbatches=4",
            {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": "1"},
        ),
        (
            "dp=4,recompute=full,recompute_every=2,microbatches=4",
            {"--recompute-granularity": "full", "--recompute-method": "block", "--recompute-num-layers": "2"},
        ),
        (
            "dp=4,zero=1,offload=optimizer,microbatches=4",
            {"--optimizer-cpu-offload": "", "--use-precision-aware-optimizer": ""},
        ),
        ("dp=4,offload=activations,microbatches=4", {"--cpu-offloading-num-layers": "3"}),
    ],
)
def test_a_setting_has_its_flags(strategy: str, expected: dict[str, str]) -> None:
    found = flags_of(request_of(strategy, model=LLAMA))
    assert expected.items() <= found.items()


def test_what_is_not_asked_for_is_not_written() -> None:
    found = flags_of(request_of("dp=4,microbatches=4", model=LLAMA))
    silent = {"--use-distributed-optimizer", "--recompute-granularity", "--sequence-parallel", "--cp-comm-type"}
    assert silent.isdisjoint(found)
    assert not any(flag.startswith(("--num-virtual", "--pipeline-model-parallel-layout", "--expert")) for flag in found)


def test_experts_that_are_cut_otherwise_than_all_else() -> None:
    model = "moe:layers=4,hidden=256,heads=8,kv_heads=4,experts=8,top_k=2,expert_ffn=512,vocab=1000,seq=128"
    found = flags_of(request_of("dp=4,tp=2,sp,ep=4,zero=1,microbatches=4", model=model))
    assert found["--expert-model-parallel-size"] == "4"
    assert found["--expert-tensor-parallel-size"] == "1"
    assert found["--moe-token-dispatcher-type"] == "alltoall"
    assert found["--num-experts"] == "8"
    assert found["--ffn-hidden-size"] == found["--moe-ffn-hidden-size"] == "512"
    assert "--moe-grouped-gemm" in found


def test_precisions_and_overlap_have_their_flags() -> None:
    fp8 = flags_of(
        request_of("dp=4,tp=2,sp,zero=1,microbatches=4", model=LLAMA, precision="fp8", runtime="megatron-bridge")
    )
    assert fp8["--fp8-format"] == "hybrid"
    assert {"--bf16", "--tp-comm-overlap", "--overlap-grad-reduce", "--overlap-param-gather"} <= set(fp8)
    fp16 = flags_of(request_of("dp=4,microbatches=4", model=LLAMA, precision="fp16", runtime="megatron"))
    assert {"--fp16", "--accumulate-allreduce-grads-in-fp32"} <= set(fp16)
    late = flags_of(request_of("dp=4,microbatches=4", model=LLAMA, runtime="megatron-deepspeed"))
    assert "--overlap-grad-reduce" not in late


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("pp=2,schedule=dualpipe,microbatches=8", "schedule=dualpipe .* 1f1b and, with virtual_stages, interleaved"),
        ("pp=2,schedule=zb-h1,microbatches=8", "schedule=zb-h1"),
        ("dp=4,zero=3,reshard=false,microbatches=4", "reshard=false"),
        ("dp=2,pp=2,zero=2,microbatches=4", "zero=2 with pp=2 .* use zero=1, or pp=1"),
        ("dp=4,offload=optimizer,microbatches=4", "set zero=1"),
        ("dp=2,pp=2,offload=activations,microbatches=4", "set pp=1, recompute=none"),
        ("dp=4,sync_each,microbatches=4", "sync_each"),
    ],
)
def test_what_megatron_cannot_do_is_refused(strategy: str, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        export(request_of(strategy, model=LLAMA), "megatron")


def test_a_sequence_must_halve_over_the_context_ranks() -> None:
    model = "llama:layers=2,hidden=64,heads=4,vocab=100,seq=6"
    with pytest.raises(StrategyError, match="multiple of 2·cp = 4"):
        export(request_of("cp=2,microbatches=4", model=model), "megatron")


def test_a_layout_names_every_chunk() -> None:
    assert layout([1, 2, 0]) == "Et|t*2|L"
    assert layout([3]) == "Et*3L"


def test_layers_that_do_not_divide_get_a_layout() -> None:
    request = request_of("pp=3,microbatches=4", model=LLAMA)
    written = flags_of(request)["--pipeline-model-parallel-layout"]
    assert (
        sum(len(part.strip("EL")) if "*" not in part else int(part.strip("EL")[2:]) for part in written.split("|")) == 4
    )
    assert graph_of(LLAMA).blocks[1].count == 4
