"""nanotron: a YAML file that its ``run_train.py`` reads.

Names follow ``src/nanotron/config/`` at :data:`RELEASE`: its package still calls itself 0.4, but the 0.4 of PyPI
(March 2024) has neither ``recompute_layer`` nor mixtures. Settings that nanotron requires and a strategy lacks (name of
the run, checkpoints, learning rate) get placeholders, and a comment asks for the user's values.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from traincast.export.shape import (
    Decoder,
    check_common,
    check_tokens,
    comments,
    decoder_of,
    family_of,
    gradient_dtype,
    header,
    not_stated,
    refuse,
)
from traincast.strategy import Request, Strategy

NAME: Final = "nanotron"
RELEASE: Final = "main at 2411b022, April 2026"
"""The release that the names and refusals follow."""
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_ENGINES: Final = {"1f1b": "1f1b", "gpipe": "afab"}
_RECOMPUTES: Final = ("none", "full")
_FAMILIES: Final = frozenset({"llama", "moe"})
"""Families of the zoo that its Llama and Qwen2 models can express."""
Value: TypeAlias = "str | int | float | bool | list[int] | dict[str, Value]"
Section: TypeAlias = dict[str, Value]
_OPTIMIZER: Final[Section] = {
    "weight_decay": 0.01,
    "clip_grad": 1.0,
    "optimizer_factory": {
        "name": "adamW",
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_eps": 1.0e-8,
        "torch_adam_is_fused": True,
    },
    "learning_rate_scheduler": {
        "learning_rate": 0.0003,
        "lr_warmup_steps": 2,
        "lr_warmup_style": "linear",
        "lr_decay_style": "cosine",
        "min_decay_lr": 1.0e-5,
    },
}


def nanotron(request: Request) -> str:
    """Return the YAML file that trains ``request`` with nanotron; what it cannot state becomes a comment."""
    _check(request)
    strategy = request.strategy
    notes = header(request, f"{NAME}, {RELEASE}")
    notes.append(
        "set these yourself: general, checkpoints, train_steps, init_method, optimizer except zero_stage, data_stages"
    )
    sections: dict[str, Section] = {
        "general": {"project": "traincast", "run": "%date_%jobid"},
        "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": 1000},
        "parallelism": _parallelism(request),
        "tokens": {
            "sequence_length": request.graph.tokens_per_sample,
            "train_steps": 1000,
            "micro_batch_size": strategy.micro_batch(request.global_batch),
            "batch_accumulation_per_replica": strategy.num_microbatches,
        },
        "optimizer": {
            "zero_stage": strategy.zero,
            "accumulate_grad_in_fp32": gradient_dtype(request) == "fp32",
            **_OPTIMIZER,
        },
        "model": {"dtype": _DTYPES[request.precision.name], "init_method": {"std": 0.025}, **_model(request, notes)},
    }
    if strategy.pp > 1 and request.runtime.defaults.stage_cut != "weights":
        notes.append(
            "nanotron divides stages by weights, not by layers: forecast with the runtime nanotron to see them"
        )
    lines = comments(notes)
    for name, section in sections.items():
        lines += [f"{name}:", *_written(section, "  ")]
    return "\n".join(lines) + "\n"


def axes(model: str) -> str:
    """Return the values of each axis that nanotron supports for a model, as constraints of a search."""
    found = f"schedule={'|'.join(_ENGINES)},recompute={'|'.join(_RECOMPUTES)}"
    found += ",virtual_stages=1,cut=even,zero=0|1,offload=none,cp=1,ep=1"
    return found + (",tp=1" if family_of(model) == "moe" else "")


def _check(request: Request) -> None:
    strategy = request.strategy
    check_common(NAME, strategy, recomputes=_RECOMPUTES)
    check_tokens(NAME, request.graph)
    if request.precision.name not in _DTYPES:
        raise refuse(NAME, f"precision {request.precision.name}", f"choose one of {', '.join(_DTYPES)}")
    if strategy.zero > 1:
        raise refuse(NAME, f"zero={strategy.zero}", "it shards only optimizer states; use zero=1")
    if strategy.shard not in (0, strategy.dp * strategy.cp):
        asked = f"shard={strategy.shard} of {strategy.dp * strategy.cp} replicas"
        raise refuse(NAME, asked, "it shards over all of them; leave shard out")
    if strategy.offload:
        raise refuse(NAME, f"offload={'+'.join(strategy.offload)}", "it offloads nothing; leave offload out")
    if strategy.sync_each:
        raise refuse(NAME, "sync_each", "it exchanges gradients once a step; leave sync_each out")
    if strategy.pp > 1:
        _check_pipeline(strategy)
    if strategy.recompute_every > 1:
        asked = f"recompute={strategy.recompute},recompute_every={strategy.recompute_every}"
        raise refuse(NAME, asked, "it recomputes all layers or none; use recompute=full or none")
    if strategy.cp > 1:
        asked = f"cp={strategy.cp}"
        raise refuse(NAME, asked, "it cannot start a run with context parallelism, only resume one; use cp=1")
    if strategy.ep > 1:
        raise refuse(NAME, f"ep={strategy.ep}", "its process groups do not support expert parallelism; use ep=1")
    if strategy.capacity:
        raise refuse(NAME, f"capacity={strategy.capacity:g}", "it drops no tokens; leave capacity out")
    model = decoder_of(request.graph)
    if model is not None:
        _check_model(strategy, model)


def _check_model(strategy: Strategy, model: Decoder) -> None:
    """Refuse models that Llama and Qwen2, its two models, cannot express or shard."""
    if model.family not in _FAMILIES:
        raise refuse(NAME, f"a model of the family {model.family}", "it has Llama and Qwen2, dense or as a mixture")
    if model.head_dim * model.heads != model.hidden:
        asked = f"{model.heads} heads of {model.head_dim} with hidden size {model.hidden}"
        raise refuse(NAME, asked, "its heads always have hidden/heads dimensions; use megatron")
    if model.kv_heads % strategy.tp:
        asked = f"tp={strategy.tp} with {model.kv_heads} heads of keys and values"
        raise refuse(NAME, asked, "it does not replicate them; choose a tp that divides them")
    if model.experts and strategy.tp > 1:
        asked = f"tp={strategy.tp} with {model.experts} experts"
        raise refuse(NAME, asked, "it neither shards experts nor keeps their copies equal; use tp=1, or megatron")


def _check_pipeline(strategy: Strategy) -> None:
    if strategy.schedule not in _ENGINES or strategy.virtual_stages > 1:
        asked = f"schedule={strategy.schedule}, virtual_stages={strategy.virtual_stages}"
        raise refuse(NAME, asked, "it has 1f1b and gpipe, with one chunk per stage")
    if strategy.layers:
        asked = f"layers={'/'.join(map(str, strategy.layers))}"
        raise refuse(NAME, asked, "it divides stages by the weights of layers; leave layers out")
    if strategy.schedule == "1f1b" and strategy.num_microbatches < strategy.pp - 1:
        asked = f"{strategy.num_microbatches} microbatches with pp={strategy.pp}"
        raise refuse(
            NAME, asked, f"1f1b needs pp − 1 = {strategy.pp - 1} to fill the pipeline; use a smaller micro_batch"
        )


def _parallelism(request: Request) -> Section:
    strategy = request.strategy
    section: Section = {
        "dp": strategy.dp,
        "pp": strategy.pp,
        "tp": strategy.tp,
        "expert_parallel_size": strategy.ep,
        "pp_engine": _ENGINES[strategy.schedule] if strategy.pp > 1 else "1f1b",
        "tp_mode": "REDUCE_SCATTER" if strategy.sequence_parallel else "ALL_REDUCE",
        "tp_linear_async_communication": strategy.sequence_parallel and request.runtime.exchange.overlap_tensor > 0,
    }
    return section | {"recompute_layer": True} if strategy.recompute == "full" else section


def _model(request: Request, notes: list[str]) -> Section:
    """Return the model's settings: Llama's for a dense model, Qwen2's for a mixture of experts."""
    model = decoder_of(request.graph)
    if model is None:
        notes.append(f"dimensions of {request.graph.name} are not in the zoo: add a model_config")
        return {}
    if model.other.get("qk_norm"):
        notes.append("norms of queries and keys have no setting and are left out")
    if model.other.get("window"):
        notes.append("windowed attention has no effective setting and is left out")
    section: Section = {
        "is_qwen2_config" if model.experts else "is_llama_config": True,
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn if model.first_dense or not model.experts else model.expert_ffn,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": model.seq,
        "vocab_size": model.vocab,
        "hidden_act": "silu",
        "tie_word_embeddings": model.tied,
    }
    if model.rotary_base:
        section["rope_theta"] = float(model.rotary_base)
    if model.norm_epsilon:
        section["rms_norm_eps"] = model.norm_epsilon
    if missing := not_stated(model):
        notes.append(f"{' and '.join(missing)} not known: nanotron's default is used; add rope_theta, rms_norm_eps")
    if model.rope_scaling:
        notes.append(f"rotary positions are not scaled by {model.rope_scaling:g} for long sequences: no setting does")
    if model.other.get("rope_fraction", 1.0) != 1.0:
        notes.append("all dims of a head are rotated: there is no setting for a part of them")
    if model.other.get("activation", "swiglu") != "swiglu":
        notes.append(f"activation={model.other['activation']} has no setting: SwiGLU is used")
    if model.other.get("qkv_bias"):
        section["attention_bias"] = True
    if model.experts:
        section["moe_config"] = _experts(model)
    return {"model_config": section}


def _experts(model: Decoder) -> Section:
    """Return the sizes of experts; omitted sizes would default to 1408 and 5632."""
    section: Section = {
        "num_experts": model.experts,
        "top_k": model.top_k,
        "moe_intermediate_size": model.expert_ffn,
        "enable_shared_expert": model.shared_ffn > 0,
        "token_dispatcher_type": "alltoall",
    }
    if model.shared_ffn:
        section["shared_expert_intermediate_size"] = model.shared_ffn
    if model.first_dense:
        section["layers"] = list(range(model.first_dense, model.layers))
    return section


def _written(section: Section, indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in section.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *_written(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {_scalar(value)}")
    return lines


def _scalar(value: str | int | float | bool | list[int]) -> str:
    """Return a value in YAML; a number with an exponent needs a point, and a text with a symbol needs quotes."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return repr(value) if "." in repr(value) else repr(value).replace("e", ".0e")
        case str():
            return value if value.replace("_", "").isalnum() else f'"{value}"'
        case _:
            return str(value)
