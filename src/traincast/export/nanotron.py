"""nanotron: a YAML file.

Names are of ``src/nanotron/config/`` and ``parallel/context.py`` (github.com/huggingface/nanotron, commits 19f88fb for
``parallelism``, 025f314 for ``model_config``, 00708b8 for the rest, 009b8f7 for the product of degrees). Data,
tokenizer, checkpoints and learning rate are left to the user.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from traincast.export.shape import (
    Decoder,
    check_common,
    check_tokens,
    comments,
    decoder_of,
    gradient_dtype,
    header,
    refuse,
)
from traincast.strategy import Request, Strategy

NAME: Final = "nanotron"
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_ENGINES: Final = {"1f1b": "1f1b", "gpipe": "afab"}
Value: TypeAlias = "str | int | float | bool | dict[str, Value]"
Section: TypeAlias = dict[str, Value]


def nanotron(request: Request) -> str:
    """The YAML file that trains ``request`` with nanotron, what it cannot say in comments."""
    _check(request)
    strategy = request.strategy
    notes = header(request, NAME)
    model = decoder_of(request.graph)
    sections: dict[str, Section] = {
        "parallelism": _parallelism(request),
        "tokens": {
            "sequence_length": request.graph.tokens_per_sample,
            "micro_batch_size": strategy.micro_batch(request.global_batch),
            "batch_accumulation_per_replica": strategy.num_microbatches,
        },
        "optimizer": {
            "zero_stage": strategy.zero,
            "accumulate_grad_in_fp32": gradient_dtype(request) == "fp32",
        },
        "model": {"dtype": _DTYPES[request.precision.name], **_model(request, model, notes)},
    }
    if strategy.pp > 1 and request.runtime.stage_cut != "weights":
        notes.append(
            "stages are cut by weights, not by counting layers: forecast with the runtime nanotron to see them"
        )
    lines = comments(notes)
    for name, section in sections.items():
        lines += [f"{name}:", *_written(section, "  ")]
    return "\n".join(lines) + "\n"


def _check(request: Request) -> None:
    strategy = request.strategy
    check_common(NAME, strategy)
    check_tokens(NAME, request.graph)
    if request.precision.name not in _DTYPES:
        raise refuse(NAME, f"precision {request.precision.name}", f"choose one of {', '.join(_DTYPES)}")
    if strategy.zero > 1:
        raise refuse(NAME, f"zero={strategy.zero}", "it shares optimizer states alone; use zero=1")
    if strategy.shard not in (0, strategy.dp * strategy.cp):
        asked = f"shard={strategy.shard} of {strategy.dp * strategy.cp} replicas"
        raise refuse(NAME, asked, "it shards over all of them; leave shard out")
    if strategy.offload:
        raise refuse(NAME, f"offload={'+'.join(strategy.offload)}", "it offloads nothing; leave offload out")
    if strategy.sync_each:
        raise refuse(NAME, "sync_each", "it exchanges gradients once a step; leave sync_each out")
    if strategy.pp > 1:
        _check_pipeline(strategy)
    if strategy.recompute == "selective" or strategy.recompute_every > 1:
        asked = f"recompute={strategy.recompute},recompute_every={strategy.recompute_every}"
        raise refuse(NAME, asked, "it recomputes all layers or none; use recompute=full or none")
    if strategy.context == "ring" and strategy.cp > 1:
        raise refuse(NAME, f"context=ring with cp={strategy.cp}", "it gathers keys and values; use context=all_gather")
    if strategy.ep > 1 and strategy.expert_tp != 1:
        raise refuse(
            NAME, f"etp={strategy.expert_tp} with ep={strategy.ep}", "its settings share out whole experts; use etp=1"
        )
    if strategy.capacity:
        raise refuse(NAME, f"capacity={strategy.capacity:g}", "it drops no tokens; leave capacity out")


def _check_pipeline(strategy: Strategy) -> None:
    if strategy.schedule not in _ENGINES or strategy.virtual_stages > 1:
        asked = f"schedule={strategy.schedule}, virtual_stages={strategy.virtual_stages}"
        raise refuse(NAME, asked, "it has 1f1b and gpipe, with one chunk per stage")
    if strategy.layers:
        asked = f"layers={'/'.join(map(str, strategy.layers))}"
        raise refuse(NAME, asked, "it cuts stages by the weights of layers; leave layers out")
    if strategy.schedule == "1f1b" and strategy.num_microbatches < strategy.pp - 1:
        asked = f"{strategy.num_microbatches} microbatches with pp={strategy.pp}"
        raise refuse(
            NAME, asked, f"1f1b needs pp − 1 = {strategy.pp - 1} to fill the pipeline; use a smaller micro_batch"
        )


def _parallelism(request: Request) -> Section:
    strategy = request.strategy
    return {
        "dp": strategy.dp,
        "pp": strategy.pp,
        "tp": strategy.tp,
        "context_parallel_size": strategy.cp,
        "expert_parallel_size": strategy.ep,
        "pp_engine": _ENGINES[strategy.schedule] if strategy.pp > 1 else "1f1b",
        "tp_mode": "REDUCE_SCATTER" if strategy.sequence_parallel else "ALL_REDUCE",
        "tp_linear_async_communication": strategy.sequence_parallel and request.runtime.overlap_tensor > 0,
        "recompute_layer": strategy.recompute == "full",
    }


def _model(request: Request, model: Decoder | None, notes: list[str]) -> Section:
    """The model's own settings: Llama's for dense ones, Qwen2's for mixtures and shared sequences."""
    if model is None:
        notes.append(f"dimensions of {request.graph.name} are not in the zoo: add a model_config")
        return {}
    if model.family not in ("llama", "moe"):
        notes.append(f"nanotron has no {model.family}: add a model_config of your own")
        return {}
    if model.head_dim * model.heads != model.hidden or model.other.get("qk_norm"):
        notes.append("heads of another size than hidden/heads, and norms of queries and keys, have no setting")
    qwen = model.experts > 0 or request.strategy.cp > 1
    section: Section = {
        "is_qwen2_config" if qwen else "is_llama_config": True,
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "intermediate_size": model.expert_ffn or model.ffn,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": model.seq,
        "vocab_size": model.vocab,
        "hidden_act": "silu",
        "tie_word_embeddings": model.tied,
    }
    if request.strategy.cp > 1:
        section["_attn_implementation"] = "llama3_ring_attention"
    if model.experts:
        section["moe_config"] = {
            "num_experts": model.experts,
            "top_k": model.top_k,
            "enable_shared_expert": model.shared_ffn > 0,
            "token_dispatcher_type": "alltoall",
        }
        if model.first_dense:
            notes.append(f"the first {model.first_dense} layers are dense: list the others in moe_config.layers")
    return {"model_config": section}


def _written(section: Section, indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in section.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *_written(value, indent + "  ")]
        else:
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            lines.append(f"{indent}{key}: {shown}")
    return lines
