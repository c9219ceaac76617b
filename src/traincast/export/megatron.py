"""Megatron-LM: the command of ``pretrain_gpt.py``.

Flags and refusals follow ``megatron/training/arguments.py``, ``core/parallel_state.py`` and
``core/transformer/transformer_config.py`` at :data:`RELEASE`. Data, tokenizer, learning rate and length of the run are
left to the user.
"""

from __future__ import annotations

import math
import shlex
from typing import Final, TypeAlias

from traincast.export.shape import (
    Decoder,
    check_common,
    check_tokens,
    comments,
    decoder_of,
    gradient_dtype,
    header,
    layers_by_stage,
    not_stated,
    refuse,
    sent_dtype,
)
from traincast.strategy import Request, Strategy

NAME: Final = "Megatron-LM"
RELEASE: Final = "core_v0.16.1"
"""The release that the flags and refusals follow."""
_PRECISIONS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "fp32": (),
    "tf32": (),
    "fp16": (("--fp16",),),
    "bf16": (("--bf16",),),
    "fp8": (("--bf16",), ("--fp8-format", "hybrid")),
    "nvfp4": (("--bf16",), ("--fp4-format", "e2m1")),
}
_SCHEDULES: Final = ("1f1b", "interleaved")
_RECOMPUTES: Final = ("none", "selective", "full")
_SHARDED: Final = {2: "optim_grads", 3: "optim_grads_params"}
_ACTIVATIONS: Final = {"swiglu": "--swiglu", "relu2": "--squared-relu"}
_PADDING: Final = 128
"""What Megatron-LM pads a rank's share of the vocabulary to, by default."""
_CP_COMM: Final = {"all_gather": "allgather", "ring": "p2p"}
Flag: TypeAlias = tuple[str, ...]


def megatron(request: Request) -> str:
    """Return the command that trains ``request`` with Megatron-LM; what flags cannot state becomes a comment."""
    _check(request)
    model = decoder_of(request.graph)
    notes = header(request, f"{NAME} {RELEASE} (pretrain_gpt.py)")
    flags: list[Flag] = []
    if model is None:
        notes.append(f"dimensions of {request.graph.name} are not in the zoo: add its --num-layers, --hidden-size, …")
        flags.append(("--seq-length", str(request.graph.tokens_per_sample)))
    else:
        flags += _model(model, notes) + _vocabulary(model, request.strategy.tp, notes)
    flags += _degrees(request, model, notes)
    flags += _batch(request)
    flags += _sharding(request, notes)
    flags += _memory(request, model, notes)
    flags += _precision(request, notes, experts=model is not None and model.experts > 0)
    flags += _overlap(request)
    return _command(request, flags, notes)


def axes(model: str) -> str:
    """Return the values of each axis that Megatron-LM supports, as constraints of a search."""
    return f"schedule={'|'.join(_SCHEDULES)}"


def _check(request: Request) -> None:
    strategy, graph = request.strategy, request.graph
    check_common(NAME, strategy, recomputes=_RECOMPUTES)
    check_tokens(NAME, graph)
    if request.precision.name not in _PRECISIONS:
        raise refuse(NAME, f"precision {request.precision.name}", f"choose one of {', '.join(_PRECISIONS)}")
    if strategy.pp > 1 and strategy.schedule not in _SCHEDULES:
        raise refuse(NAME, f"schedule={strategy.schedule}", "it has 1f1b and, with virtual_stages, interleaved")
    if strategy.cp > 1 and graph.tokens_per_sample % (2 * strategy.cp):
        tokens = f"{graph.tokens_per_sample} tokens"
        raise refuse(
            NAME, f"cp={strategy.cp} with {tokens}", f"sequences must be a multiple of 2·cp = {2 * strategy.cp}"
        )
    if strategy.ep > 1 and request.precision.name == "fp16":
        raise refuse(NAME, f"ep={strategy.ep} with fp16", "it supports expert parallelism only in bf16; use bf16")
    if strategy.zero > 1 and strategy.pp > 1:
        asked = f"zero={strategy.zero} with pp={strategy.pp}"
        raise refuse(NAME, asked, "its FSDP excludes pipelines; use zero=1, or pp=1")
    if not strategy.reshard:
        raise refuse(
            NAME, "reshard=false", "its FSDP always releases gathered weights; leave reshard out, or use torchtitan"
        )
    if strategy.sync_each:
        raise refuse(NAME, "sync_each", "it exchanges gradients once a step; leave sync_each out")
    if strategy.sequence_parallel and graph.tokens_per_sample % (strategy.cp * strategy.tp):
        asked = f"{graph.tokens_per_sample} tokens with cp={strategy.cp}, tp={strategy.tp} and sequence_parallel"
        whole = strategy.cp * strategy.tp
        raise refuse(NAME, asked, f"a sequence must be a multiple of cp·tp = {whole}")
    _check_experts(request)
    _check_offload(strategy)


def _check_experts(request: Request) -> None:
    strategy = request.strategy
    model = decoder_of(request.graph)
    if model is not None and not model.experts:
        return
    instances = strategy.dp * strategy.cp // (strategy.shard or strategy.dp * strategy.cp)
    if strategy.expert_replicas % instances:
        asked = f"shard={strategy.shard} with {strategy.expert_replicas} replicas of experts"
        raise refuse(NAME, asked, f"its {instances} optimizer instances must divide them; leave shard out")
    if model is not None and model.family == "gpt-oss" and strategy.expert_tp > 1:
        asked = f"etp={strategy.expert_tp} with {request.graph.name}"
        raise refuse(NAME, asked, "it does not shard experts with biases; set etp=1, which needs sp with tp > 1")


def _check_offload(strategy: Strategy) -> None:
    if "optimizer" in strategy.offload and not strategy.zero:
        raise refuse(NAME, "offload=optimizer with zero=0", "it offloads its distributed optimizer; set zero=1")
    if "activations" in strategy.offload and (strategy.pp > 1 or strategy.recompute != "none"):
        asked = f"offload=activations with pp={strategy.pp}, recompute={strategy.recompute}"
        raise refuse(
            NAME, asked, "it offloads layers only without a pipeline and recomputation; set pp=1, recompute=none"
        )


def _model(model: Decoder, notes: list[str]) -> list[Flag]:
    given = model.other
    positions = max(int(given.get("max_positions") or 0), model.seq)
    flags: list[Flag] = [
        ("--num-layers", str(model.layers)),
        ("--hidden-size", str(model.hidden)),
        ("--ffn-hidden-size", str(model.ffn if not model.experts or model.first_dense else model.expert_ffn)),
        ("--num-attention-heads", str(model.heads)),
        ("--seq-length", str(model.seq)),
        ("--max-position-embeddings", str(positions)),
    ]
    if model.kv_heads != model.heads:
        flags += [("--group-query-attention",), ("--num-query-groups", str(model.kv_heads))]
    if model.head_dim * model.heads != model.hidden and model.family != "deepseek":
        flags.append(("--kv-channels", str(model.head_dim)))
    if not model.tied:
        flags.append(("--untie-embeddings-and-output-weights",))
    flags += _gpt_like(model, notes) if model.family in ("gpt", "mpt") else _gated(model, notes)
    if model.experts:
        flags += _experts(model)
    if model.norm_epsilon:
        flags.append(("--norm-epsilon", f"{model.norm_epsilon:g}"))
    if missing := not_stated(model):
        notes.append(f"{' and '.join(missing)} not known: the default is used; add --rotary-base, --norm-epsilon")
    return flags


def _vocabulary(model: Decoder, tp: int, notes: list[str]) -> list[Flag]:
    """Return the flags of the vocabulary, which Megatron-LM pads to a multiple of 128·tp unless told otherwise."""
    flags: list[Flag] = [("--vocab-size", str(model.vocab))]
    if model.vocab % tp:
        padded = -(-model.vocab // tp) * tp
        notes.append(f"a vocabulary of {model.vocab} is padded to {padded}, a multiple of tp={tp}")
        return [*flags, ("--make-vocab-size-divisible-by", "1")]
    if model.vocab % (_PADDING * tp):
        flags.append(("--make-vocab-size-divisible-by", str(math.gcd(model.vocab // tp, _PADDING))))
    return flags


def _rotary(model: Decoder) -> list[Flag]:
    """Return the flags of rotary positions."""
    flags: list[Flag] = [("--position-embedding-type", "rope")]
    if model.rotary_base:
        flags.append(("--rotary-base", str(model.rotary_base)))
    if model.other.get("rope_fraction", 1.0) != 1.0:
        flags.append(("--rotary-percent", f"{model.other['rope_fraction']:g}"))
    if model.rope_scaling:
        flags += [("--use-rope-scaling",), ("--rope-scaling-factor", f"{model.rope_scaling:g}")]
    return flags


def _gpt_like(model: Decoder, notes: list[str]) -> list[Flag]:
    """Return the flags of GPT-like models."""
    given = model.other
    dropout = f"{given.get('dropout', 0.1 if model.family == 'gpt' else 0.0):.3g}"
    flags: list[Flag] = [("--attention-dropout", dropout), ("--hidden-dropout", dropout)]
    positions = given.get("positions", "learned")
    if positions == "rope":
        flags += _rotary(model)
    elif positions == "none":
        flags.append(("--position-embedding-type", "none"))
    elif positions != "learned":
        notes.append(f"positions={positions} has no flag: learned positions are used")
    if given.get("norm", "layernorm") == "rmsnorm":
        flags.append(("--normalization", "RMSNorm"))
    if not given.get("bias", True):
        flags.append(("--disable-bias-linear",))
    activation = given.get("activation", "gelu")
    if activation in _ACTIVATIONS:
        flags.append((_ACTIVATIONS[activation],))
    elif activation != "gelu":
        notes.append(f"activation={activation} has no flag: GELU is used")
    if given.get("parallel"):
        notes.append("parallel attention and MLP have no flag: they run one after the other")
    return flags


def _gated(model: Decoder, notes: list[str]) -> list[Flag]:
    """Return the flags of Llama-like models."""
    given = model.other
    flags: list[Flag] = [
        *_rotary(model),
        ("--normalization", "RMSNorm"),
        ("--swiglu",),
        ("--softmax-type", "learnable") if model.family == "gpt-oss" else ("--disable-bias-linear",),
        ("--attention-dropout", "0.0"),
        ("--hidden-dropout", "0.0"),
    ]
    if given.get("qk_norm") or model.family == "deepseek":  # latent queries, keys and values have norms
        flags.append(("--qk-layernorm",))
    if given.get("qkv_bias"):
        flags.append(("--add-qkv-bias",))
    if given.get("out_bias") or given.get("mlp_bias"):
        notes.append("biases of some linear layers alone have no flag, and are left out")
    if given.get("activation", "swiglu") != "swiglu":
        notes.append(f"activation={given['activation']} has no flag: SwiGLU is used")
    flags += _window(model)
    if model.family == "gpt-oss":
        notes.append(
            "experts of GPT-OSS clamp and scale their gates: to load its weights, add --quick-geglu and related flags"
        )
    if model.family == "deepseek":
        flags += _latent(model)
    return flags


def _window(model: Decoder) -> list[Flag]:
    """Return the flags of windowed attention; every ``window_period``-th layer has full attention."""
    gpt_oss = model.family == "gpt-oss"
    window = int(model.other.get("window", 128 if gpt_oss else 0))
    period = int(model.other.get("window_period", 2 if gpt_oss else 0))
    if not window:
        return []
    flags: list[Flag] = [("--window-size", f"{window},0")]
    return [*flags, ("--window-attn-skip-freq", str(period))] if period else flags


def _latent(model: Decoder) -> list[Flag]:
    given = model.other
    flags: list[Flag] = [("--multi-latent-attention",)]
    if given.get("q_lora", 1536):
        flags.append(("--q-lora-rank", str(given.get("q_lora", 1536))))
    names = {"--kv-lora-rank": ("kv_lora", 512), "--qk-head-dim": ("nope_dim", 128), "--v-head-dim": ("v_dim", 128)}
    names["--qk-pos-emb-head-dim"] = ("rope_dim", 64)
    return flags + [(flag, str(given.get(key, default))) for flag, (key, default) in names.items()]


def _experts(model: Decoder) -> list[Flag]:
    flags: list[Flag] = [
        ("--num-experts", str(model.experts)),
        ("--moe-router-topk", str(model.top_k)),
        ("--moe-ffn-hidden-size", str(model.expert_ffn)),
        ("--moe-token-dispatcher-type", "alltoall"),
    ]
    if model.shared_ffn:
        flags.append(("--moe-shared-expert-intermediate-size", str(model.shared_ffn)))
    if model.first_dense:
        flags.append(("--moe-layer-freq", f"([0]*{model.first_dense}+[1]*{model.layers - model.first_dense})"))
    router = model.other.get("router", "sigmoid" if model.family == "deepseek" else "softmax")
    if router == "sigmoid":
        flags.append(("--moe-router-score-function", "sigmoid"))
    return flags


def _degrees(request: Request, model: Decoder | None, notes: list[str]) -> list[Flag]:
    strategy = request.strategy
    flags: list[Flag] = [
        ("--tensor-model-parallel-size", str(strategy.tp)),
        ("--pipeline-model-parallel-size", str(strategy.pp)),
        ("--context-parallel-size", str(strategy.cp)),
    ]
    if strategy.cp > 1:
        flags.append(("--cp-comm-type", _CP_COMM[strategy.context]))
    dense = model is not None and not model.experts
    if not dense and (strategy.ep > 1 or strategy.expert_tp != strategy.tp):
        flags.append(("--expert-model-parallel-size", str(strategy.ep)))
        flags.append(("--expert-tensor-parallel-size", str(strategy.expert_tp)))
    if strategy.sequence_parallel:
        flags.append(("--sequence-parallel",))
    if strategy.capacity:
        flags.append(("--moe-expert-capacity-factor", f"{strategy.capacity:g}"))
    if strategy.pp > 1:
        flags += _stages(request, model, notes)
    return flags


def _stages(request: Request, model: Decoder | None, notes: list[str]) -> list[Flag]:
    """Return the flags that assign layers to stages: an equal number each, else a layout that names every chunk."""
    strategy = request.strategy
    split = list(strategy.layers) if model is None else layers_by_stage(request, model.layers)
    if split and len(set(split)) > 1:
        return [("--pipeline-model-parallel-layout", layout(split))]
    if model is None and not strategy.layers:
        notes.append("if pp·virtual_stages does not divide the layers, add a --pipeline-model-parallel-layout")
    return (
        [("--num-virtual-stages-per-pipeline-rank", str(strategy.virtual_stages))]
        if strategy.virtual_stages > 1
        else []
    )


def layout(split: list[int]) -> str:
    """Return the value of the layout flag: E is the embedding, t a layer, L the loss; | separates stages."""
    words = [f"t*{count}" if count > 1 else "t" * count for count in split]
    return f"E{'|'.join(words)}L"


def _batch(request: Request) -> list[Flag]:
    return [
        ("--micro-batch-size", str(request.strategy.micro_batch(request.global_batch))),
        ("--global-batch-size", str(request.global_batch)),
    ]


def _sharding(request: Request, notes: list[str]) -> list[Flag]:
    strategy = request.strategy
    if not strategy.zero:
        return []
    flags: list[Flag] = [("--use-distributed-optimizer",)]
    if strategy.zero > 1:
        flags += [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", _SHARDED[strategy.zero]),
            ("--no-gradient-accumulation-fusion",),
            ("--ckpt-format", "fsdp_dtensor"),
        ]
        if strategy.prefetch >= 0:
            notes.append(f"prefetch={strategy.prefetch} has no flag: see --suggested-communication-unit-size")
    replicas = strategy.dp * strategy.cp
    if strategy.shard and strategy.shard != replicas:
        flags.append(("--num-distributed-optimizer-instances", str(replicas // strategy.shard)))
    return flags


def _memory(request: Request, model: Decoder | None, notes: list[str]) -> list[Flag]:
    strategy = request.strategy
    flags: list[Flag] = []
    if strategy.recompute == "selective":
        flags += [("--recompute-granularity", "selective"), ("--recompute-modules", "core_attn")]
    elif strategy.recompute == "full":
        flags.append(("--recompute-granularity", "full"))
        if strategy.recompute_every == 1:
            flags += [("--recompute-method", "uniform"), ("--recompute-num-layers", "1")]
        else:
            flags += _some_layers(request, model, notes)
    if "optimizer" in strategy.offload:
        flags += [
            ("--optimizer-cpu-offload",),
            ("--use-precision-aware-optimizer",),
            ("--overlap-cpu-optimizer-d2h-h2d",),
        ]
    if "activations" in strategy.offload:
        if model is None:
            notes.append("offload=activations: add --cpu-offloading-num-layers, at most all layers but one")
        else:
            flags.append(("--cpu-offloading-num-layers", str(model.layers - 1)))
            notes.append("activations of one layer stay on the device: fewer than all layers can be offloaded")
    return flags


def _some_layers(request: Request, model: Decoder | None, notes: list[str]) -> list[Flag]:
    every = request.strategy.recompute_every
    if model is None:
        raise refuse(NAME, f"recompute_every={every}", f"layers of {request.graph.name} are not known; use a zoo model")
    split = layers_by_stage(request, model.layers)
    count = -(-max(split) // every)
    notes.append(f"recompute_every={every}: the first {count} layers of every chunk are recomputed, not every n-th")
    return [("--recompute-method", "block"), ("--recompute-num-layers", str(count))]


def _precision(request: Request, notes: list[str], *, experts: bool) -> list[Flag]:
    name = request.precision.name
    flags: list[Flag] = list(_PRECISIONS[name])
    if experts and ("--bf16",) in flags:
        flags.append(("--moe-grouped-gemm",))
    if name == "tf32":
        notes.append("tf32 is a setting of PyTorch: set torch.backends.cuda.matmul.allow_tf32")
    if name == "fp16" and gradient_dtype(request) == "fp32":
        flags.append(("--accumulate-allreduce-grads-in-fp32",))
    if name in ("bf16", "fp8", "nvfp4") and sent_dtype(request) == "bf16":
        flags.append(("--grad-reduce-in-bf16",))
        if gradient_dtype(request) != "bf16":
            notes.append("gradients exchanged in bf16 are also summed in bf16")
    return flags


def _overlap(request: Request) -> list[Flag]:
    strategy, runtime = request.strategy, request.runtime
    flags: list[Flag] = []
    if runtime.exchange.overlap_gradients and strategy.dp * strategy.cp > 1:
        flags.append(("--overlap-grad-reduce",))
        if strategy.zero:
            flags.append(("--overlap-param-gather",))
    if runtime.exchange.overlap_tensor and strategy.sequence_parallel:
        flags.append(("--tp-comm-overlap",))
    if not runtime.exchange.overlap_sends and strategy.virtual_stages > 1 and strategy.pp > 2:
        flags.append(("--no-overlap-p2p-communication",))
    return flags


def _command(request: Request, flags: list[Flag], notes: list[str]) -> str:
    strategy, cluster = request.strategy, request.cluster
    lines = comments(notes)
    if cluster.parts:
        lines += comments(["nodes differ: launch each with its own --nproc-per-node"])
    if strategy.zero > 1:
        lines.append("unset CUDA_DEVICE_MAX_CONNECTIONS  # its FSDP refuses to run with 1")
    elif strategy.tp > 1 or strategy.cp > 1:
        lines.append(
            "export CUDA_DEVICE_MAX_CONNECTIONS=1  # required by tensor and context parallelism before Blackwell"
        )
    launch = f"torchrun --nnodes {cluster.num_nodes} --nproc-per-node {cluster.devices_per_node} pretrain_gpt.py"
    parts = [launch, *(" ".join(shlex.quote(word) for word in flag) for flag in flags), '"$@"']
    return "\n".join([*lines, " \\\n    ".join(parts)]) + "\n"
