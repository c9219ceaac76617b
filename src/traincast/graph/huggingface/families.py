"""Readers of Hugging Face configurations whose families the zoo has: GPT, Llama, BERT, T5, mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from traincast.graph.huggingface.fields import (
    DEFAULT_SEQ,
    GATED,
    PLAIN,
    Fields,
    Parameters,
    Reading,
    decoder_sizes,
    seq_of,
)


def _llama(fields: Fields) -> Reading:
    bias = fields.flag("attention_bias", default=False)
    return "llama", decoder_sizes(fields) | {
        "activation": fields.choice("hidden_act", default="swiglu", known=GATED),
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": fields.flag("mlp_bias", default=False),
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _mistral(fields: Fields) -> Reading:
    family, parameters = _llama(fields)
    return family, parameters | {"window": fields.size("sliding_window", default=0, low=0)}


def _phi3(fields: Fields) -> Reading:
    family, parameters = _mistral(fields)
    return family, parameters | {"rope_fraction": fields.fraction("partial_rotary_factor", default=1.0)}


def _qwen2(fields: Fields) -> Reading:
    family, parameters = _llama(fields)
    fields.require("use_sliding_window", False, why="which layers have a window is not read")
    return family, parameters | {"qkv_bias": True}


def _qwen3(fields: Fields) -> Reading:
    family, parameters = _llama(fields)
    fields.require("use_sliding_window", False, why="which layers have a window is not read")
    return family, parameters | {"head_dim": fields.size("head_dim", default=128), "qk_norm": True}


def _gemma(fields: Fields) -> Reading:
    family, parameters = _llama(fields)
    return family, parameters | {
        "head_dim": fields.size("head_dim", default=256),
        "activation": fields.choice("hidden_activation", "hidden_act", default="geglu", known=GATED),
        "tied": fields.flag("tie_word_embeddings", default=True),
    }


def _gpt2(fields: Fields) -> Reading:
    hidden, positions = fields.size("n_embd"), fields.size("n_positions", "n_ctx", default=1024)
    return "gpt", {
        "layers": fields.size("n_layer"),
        "hidden": hidden,
        "heads": fields.size("n_head"),
        "ffn": fields.size("n_inner", default=4 * hidden),
        "vocab": fields.size("vocab_size"),
        "seq": min(DEFAULT_SEQ, positions),
        "max_positions": positions,
        "activation": fields.choice("activation_function", default="gelu", known=PLAIN),
        "tied": fields.flag("tie_word_embeddings", default=True),
    }


def _gpt_neox(fields: Fields) -> Reading:
    return "gpt", decoder_sizes(fields) | {
        "positions": "rope",
        "rope_fraction": fields.fraction("rotary_pct", default=0.25),
        "activation": fields.choice("hidden_act", default="gelu", known=PLAIN),
        "parallel": fields.flag("use_parallel_residual", default=True),
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _opt(fields: Fields) -> Reading:
    hidden = fields.size("hidden_size")
    fields.require("do_layer_norm_before", True, why="only pre-norm OPT models can be built (all but 350m)")
    fields.require("word_embed_proj_dim", hidden, why=f"embeddings must be as wide as hidden_size={hidden}")
    positions = fields.size("max_position_embeddings", default=2048)
    return "gpt", {
        "layers": fields.size("num_hidden_layers"),
        "hidden": hidden,
        "heads": fields.size("num_attention_heads"),
        "ffn": fields.size("ffn_dim"),
        "vocab": fields.size("vocab_size"),
        "seq": min(DEFAULT_SEQ, positions),
        "max_positions": positions + 2,
        "activation": fields.choice("activation_function", default="relu", known=PLAIN),
        "bias": fields.flag("enable_bias", default=True),
        "tied": fields.flag("tie_word_embeddings", default=True),
    }


def _mpt(fields: Fields) -> Reading:
    hidden = fields.size("d_model")
    alibi = fields.section("attn_config").flag("alibi", default=False)
    learned = fields.flag("learned_pos_emb", default=True) and not alibi
    return "mpt", {
        "layers": fields.size("n_layers"),
        "hidden": hidden,
        "heads": fields.size("n_heads"),
        "ffn": hidden * fields.size("expansion_ratio", default=4),
        "vocab": fields.size("vocab_size"),
        "seq": seq_of(fields, "max_seq_len"),
        "positions": "alibi" if alibi else "learned" if learned else "none",
        "bias": not fields.flag("no_bias", default=True),
        "tied": fields.flag("tie_word_embeddings", default=True),
    }


def _encoder_sizes(fields: Fields) -> Parameters:
    """The dimensions that all encoders have."""
    return {
        "layers": fields.size("num_hidden_layers"),
        "hidden": fields.size("hidden_size"),
        "heads": fields.size("num_attention_heads"),
        "ffn": fields.size("intermediate_size"),
        "vocab": fields.size("vocab_size"),
    }


def _bert(fields: Fields) -> Reading:
    fields.require("type_vocab_size", 2, why="BERT is built with two segment types")
    positions = fields.size("max_position_embeddings", default=512)
    return "bert", _encoder_sizes(fields) | {"seq": min(DEFAULT_SEQ, positions), "max_positions": positions}


def _longformer(fields: Fields) -> Reading:
    """Longformer on masked tokens; all layers must have the same window."""
    windows = fields.numbers("attention_window") or [512]
    if len(set(windows)) > 1:
        raise fields.refuse("attention_window", "must be the same in all layers")
    positions = fields.size("max_position_embeddings", default=4098)
    return "encoder", _encoder_sizes(fields) | {
        "seq": min(DEFAULT_SEQ, positions - 2),
        "max_positions": positions,
        "token_types": fields.size("type_vocab_size", default=1),
        "window": windows[0],
        "task": "masked",
    }


def _mixtral(fields: Fields) -> Reading:
    return "moe", decoder_sizes(fields) | {
        "experts": fields.size("num_local_experts"),
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": fields.size("intermediate_size"),
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _qwen3_moe(fields: Fields) -> Reading:
    fields.require("decoder_sparse_step", 1, why="every layer must have experts")
    fields.require("mlp_only_layers", [], why="every layer must have experts")
    return "moe", decoder_sizes(fields) | {
        "head_dim": fields.size("head_dim", default=128),
        "experts": fields.size("num_experts", "num_local_experts"),
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": fields.size("moe_intermediate_size"),
        "qk_norm": True,
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _deepseek(fields: Fields) -> Reading:
    fields.require("moe_layer_freq", 1, why="every layer after the first dense ones must have experts")
    common = decoder_sizes(fields)
    return "deepseek", {name: common[name] for name in ("layers", "hidden", "heads", "ffn", "vocab", "seq")} | {
        "experts": fields.size("n_routed_experts"),
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": fields.size("moe_intermediate_size"),
        "shared_experts": fields.size("n_shared_experts", default=0, low=0),
        "first_dense": fields.size("first_k_dense_replace", default=0, low=0),
        "q_lora": fields.size("q_lora_rank", default=0, low=0),
        "kv_lora": fields.size("kv_lora_rank"),
        "rope_dim": fields.size("qk_rope_head_dim"),
        "nope_dim": fields.size("qk_nope_head_dim"),
        "v_dim": fields.size("v_head_dim"),
        "router": "softmax" if fields.model_type == "deepseek_v2" else "sigmoid",
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _deepseek_v32(fields: Fields) -> Reading:
    fields = fields.with_defaults(first_k_dense_replace=3, n_shared_experts=1)
    family, parameters = _deepseek(fields)
    kinds = fields.words("mlp_layer_types")
    dense = next((i for i, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    if set(kinds[dense:]) - {"sparse"}:
        raise fields.refuse("mlp_layer_types", "must be dense layers, then sparse ones")
    return family, parameters | {
        "first_dense": dense if kinds else parameters["first_dense"],
        "index_heads": fields.size("index_n_heads", default=64),
        "index_dim": fields.size("index_head_dim", default=128),
        "index_top_k": fields.size("index_topk", default=2048),
    }


_V4_RATIOS: Final = {0: "w", 4: "c", 128: "h"}
_V4_KINDS: Final = {
    "sliding_attention": "w",
    "compressed_sparse_attention": "c",
    "heavily_compressed_attention": "h",
}


def _deepseek_v4(fields: Fields) -> Reading:
    """DeepSeek V4; a file names the attention of its layers, or how many tokens each compresses into one."""
    layers = fields.size("num_hidden_layers")
    ratios, kinds = fields.numbers("compress_ratios"), fields.words("layer_types")
    fields.require("num_key_value_heads", 1, why="all query heads share one head of keys")
    if not kinds and ratios and set(ratios) <= set(_V4_RATIOS):
        letters = "".join(_V4_RATIOS[ratio] for ratio in ratios)
    elif kinds and set(kinds) <= set(_V4_KINDS):
        letters = "".join(_V4_KINDS[kind] for kind in kinds)
    elif not kinds and not ratios:
        letters = ("hh" + "hc" * layers)[:layers]
    else:
        raise fields.refuse(
            "layer_types", f"must be made of {', '.join(_V4_KINDS)}, or compress_ratios of 0, 4 and 128"
        )
    if len(letters) < layers:
        raise fields.refuse(
            "layer_types" if kinds else "compress_ratios",
            f"names {len(letters)} layers where num_hidden_layers={layers}",
        )
    rates = fields.section("compress_rates")
    head_dim = fields.size("head_dim", default=512)
    return "deepseek-v4", {
        "layers": layers,
        "hidden": fields.size("hidden_size"),
        "heads": fields.size("num_attention_heads"),
        "head_dim": head_dim,
        "mixers": letters[:layers],
        "experts": fields.size("n_routed_experts"),
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": fields.size("moe_intermediate_size"),
        "shared_experts": fields.size("n_shared_experts", default=1, low=0),
        "q_lora": fields.size("q_lora_rank"),
        "rope_dim": fields.size("qk_rope_head_dim", default=int(fields.rope_fraction(default=0.125) * head_dim)),
        "out_groups": fields.size("o_groups", default=8),
        "out_lora": fields.size("o_lora_rank", default=1024),
        "window": fields.size("sliding_window", default=128),
        "every": rates.size("compressed_sparse_attention", default=4),
        "heavily": rates.size("heavily_compressed_attention", default=128),
        "index_heads": fields.size("index_n_heads", default=64),
        "index_dim": fields.size("index_head_dim", default=128),
        "index_top_k": fields.size("index_topk", default=512),
        "streams": fields.size("hc_mult", default=4),
        "vocab": fields.size("vocab_size"),
        "seq": seq_of(fields, "max_position_embeddings"),
    }


def _gpt_oss(fields: Fields) -> Reading:
    common = decoder_sizes(fields)
    return "gpt-oss", {name: common[name] for name in ("layers", "hidden", "heads", "kv_heads", "vocab", "seq")} | {
        "head_dim": fields.size("head_dim", default=64),
        "experts": fields.size("num_local_experts", "num_experts"),
        "top_k": fields.size("num_experts_per_tok", "experts_per_token", default=4),
        "expert_ffn": fields.size("intermediate_size"),
        "window": fields.size("sliding_window", default=128, low=0),
    }


def _t5(fields: Fields) -> Reading:
    layers = fields.size("num_layers")
    known = {"relu": "relu", "gated-gelu": "geglu", "gated-silu": "swiglu"}
    return "t5", {
        "layers": layers,
        "decoder_layers": fields.size("num_decoder_layers", default=layers),
        "hidden": fields.size("d_model"),
        "heads": fields.size("num_heads"),
        "head_dim": fields.size("d_kv"),
        "ffn": fields.size("d_ff"),
        "vocab": fields.size("vocab_size"),
        "seq": min(DEFAULT_SEQ, fields.size("n_positions", default=512)),
        "activation": fields.choice("feed_forward_proj", default="relu", known=known),
        "tied": fields.flag("tie_word_embeddings", default=True),
    }


def _vit(fields: Fields) -> Reading:
    fields.require("num_channels", 3, why="images have three channels")
    return "vit", {
        "layers": fields.size("num_hidden_layers"),
        "hidden": fields.size("hidden_size"),
        "heads": fields.size("num_attention_heads"),
        "ffn": fields.size("intermediate_size"),
        "patch": fields.size("patch_size", default=16),
        "image": fields.size("image_size", default=224),
        "classes": fields.length("id2label", default=1000),
    }


FAMILY_READERS: Final[Mapping[str, Callable[[Fields], Reading]]] = {
    "bert": _bert,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "deepseek_v32": _deepseek_v32,
    "deepseek_v4": _deepseek_v4,
    "gemma": _gemma,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "kimi_k2": _deepseek,
    "llama": _llama,
    "longformer": _longformer,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "mpt": _mpt,
    "opt": _opt,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "t5": _t5,
    "vit": _vit,
}
"""The reader of each ``model_type`` of these families."""
