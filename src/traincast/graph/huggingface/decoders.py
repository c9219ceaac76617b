"""Readers of Hugging Face decoders that the zoo's family ``decoder`` builds: attention in every layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from traincast.graph.huggingface.fields import GATED, PLAIN, Fields, Parameters, Reading, decoder_sizes, seq_of

_ATTENTION: Final = {
    "full_attention": "*",
    "attention": "*",
    "sliding_attention": "w",
    "chunked_attention": "w",
    "local": "w",
    "global": "*",
}


def mixers(fields: Fields, known: Mapping[str, str], *, default: str) -> str:
    """A letter for each layer by ``layer_types``, or ``default`` repeated where the configuration has none."""
    layers = fields.size("num_hidden_layers")
    kinds = fields.words("layer_types") or fields.words("layers_block_type")
    if not kinds:
        return shortest((default * layers)[:layers])
    for kind in kinds:
        if kind not in known:
            raise fields.refuse("layer_types", f"{kind[:40]!r} is not supported; known are {', '.join(known)}")
    if len(kinds) != layers:
        raise fields.refuse("layer_types", f"names {len(kinds)} layers where num_hidden_layers={layers}")
    return shortest("".join(known[kind] for kind in kinds))


def shortest(text: str) -> str:
    """The shortest beginning of ``text`` that gives it when repeated and cut off."""
    for length in range(1, len(text)):
        if (text[:length] * len(text))[: len(text)] == text:
            return text[:length]
    return text


def sizes(fields: Fields, known: Mapping[str, str] = GATED) -> Parameters:
    """What most of these decoders have: the usual sizes, biases of attention, a tied embedding or not."""
    bias = fields.flag("attention_bias", default=False)
    return decoder_sizes(fields) | {
        "activation": fields.choice("hidden_activation", "hidden_act", default=next(iter(known.values())), known=known),
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": fields.flag("mlp_bias", default=False),
        "rope_fraction": fields.rope_fraction(),
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _gemma2(fields: Fields) -> Reading:
    fields = fields.with_defaults(head_dim=256, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh")
    return "decoder", sizes(fields) | {
        "norms": "around",
        "mixers": mixers(fields, _ATTENTION, default="w*"),
        "window": fields.size("sliding_window", default=4096),
    }


def gemma3_text(fields: Fields) -> Reading:
    """Gemma 3's language model; files leave out what the smallest model has."""
    fields = fields.with_defaults(
        num_attention_heads=8, num_key_value_heads=4, vocab_size=262208, num_hidden_layers=26, hidden_size=2304,
        intermediate_size=9216, sliding_window=4096,
    )  # fmt: skip
    every = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    _, parameters = _gemma2(fields)
    return "decoder", parameters | {"qk": "head", "mixers": mixers(fields, _ATTENTION, default="w" * (every - 1) + "*")}


def _llama4_text(fields: Fields) -> Reading:
    fields = fields.with_defaults(
        hidden_size=5120, num_hidden_layers=48, num_attention_heads=40, num_key_value_heads=8, head_dim=128,
        intermediate_size=8192, intermediate_size_mlp=16384, num_local_experts=16, num_experts_per_tok=1,
        vocab_size=202048,
    )  # fmt: skip
    layers = fields.size("num_hidden_layers")
    every = fields.size("no_rope_layer_interval", default=4)
    turned = fields.numbers("no_rope_layers") or [int((i + 1) % every != 0) for i in range(layers)]
    step = fields.size("interleave_moe_layer_step", default=1)
    sparse = fields.numbers("moe_layers")
    sparse = list(range(step - 1, layers, step)) if sparse is None else sparse
    if len(turned) != layers:
        raise fields.refuse("no_rope_layers", f"names {len(turned)} layers where num_hidden_layers={layers}")
    inner = fields.size("intermediate_size")
    return "decoder", sizes(fields) | {
        "ffn": fields.size("intermediate_size_mlp"),
        "qk": "unit" if fields.flag("use_qk_norm", default=True) else "none",
        "mixers": shortest("".join("w" if flag else "n" for flag in turned)),
        "feeds": shortest("".join("e" if i in sparse else "d" for i in range(layers))),
        "window": fields.size("attention_chunk_size", default=8192),
        "experts": fields.size("num_local_experts"),
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": inner,
        "shared_ffn": inner,
        "router": "sigmoid",
    }


def _nemotron(fields: Fields) -> Reading:
    return "decoder", sizes(fields, {"relu2": "relu2", **PLAIN}) | {
        "norm": "layernorm",
        "rope_fraction": fields.rope_fraction(default=0.5),
    }


def _olmo(fields: Fields) -> Reading:
    return "decoder", sizes(fields) | {"norm": "plain"}


def _olmo2(fields: Fields) -> Reading:
    windows = fields.model_type == "olmo3"
    return "decoder", sizes(fields) | {
        "norms": "after",
        "qk": "width",
        "mixers": mixers(fields, _ATTENTION, default="www*" if windows else "*"),
        "window": fields.size("sliding_window", default=4096) if windows else 0,
    }


def _olmoe(fields: Fields) -> Reading:
    return "decoder", sizes(fields) | {
        "qk": "width",
        "feeds": "e",
        "experts": fields.size("num_experts", default=64),
        "top_k": fields.size("num_experts_per_tok", default=8),
        "expert_ffn": fields.size("intermediate_size"),
    }


def _glm(fields: Fields) -> Reading:
    return "decoder", sizes(fields) | {
        "norms": "around" if fields.model_type == "glm4" else "before",
        "out_bias": False,
        "rope_fraction": fields.rope_fraction(default=0.5),
    }


def _chatglm(fields: Fields) -> Reading:
    heads = fields.size("num_attention_heads")
    fields.require("rmsnorm", True, why="norms are RMS norms")
    fields.require("post_layer_norm", True, why="a norm stands behind the last layer")
    bias = fields.flag("add_bias_linear", default=False)
    return "decoder", {
        "layers": fields.size("num_layers"),
        "hidden": fields.size("hidden_size"),
        "heads": heads,
        "kv_heads": fields.size("multi_query_group_num", default=heads),
        "head_dim": fields.size("kv_channels"),
        "ffn": fields.size("ffn_hidden_size"),
        "vocab": fields.size("padded_vocab_size", "vocab_size"),
        "seq": seq_of(fields, "seq_length"),
        "qkv_bias": bias or fields.flag("add_qkv_bias", default=False),
        "out_bias": bias,
        "mlp_bias": bias,
        "rope_fraction": 0.5,
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _glm4_moe(fields: Fields) -> Reading:
    layers, inner = fields.size("num_hidden_layers"), fields.size("moe_intermediate_size")
    dense = min(layers, fields.size("first_k_dense_replace", default=1, low=0))
    return "decoder", sizes(fields) | {
        "out_bias": False,
        "rope_fraction": fields.rope_fraction(default=0.5),
        "qk": "head" if fields.flag("use_qk_norm", default=False) else "none",
        "feeds": shortest("d" * dense + "e" * (layers - dense)),
        "experts": fields.size("n_routed_experts"),
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": inner,
        "shared_ffn": inner * fields.size("n_shared_experts", default=0, low=0),
        "router": "sigmoid",
    }


def _granite(fields: Fields) -> Reading:
    """Granite is Llama with four constant factors, each an element-wise product that frameworks fuse."""
    return "decoder", sizes(fields)


def _granitemoe(fields: Fields) -> Reading:
    return "decoder", sizes(fields) | {
        "feeds": "e",
        "experts": fields.size("num_local_experts"),
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": fields.size("intermediate_size"),
        "shared_ffn": fields.size("shared_intermediate_size", default=0, low=0),
    }


def sparse_feeds(fields: Fields) -> str:
    """Which layers have experts in Qwen's mixtures: every ``decoder_sparse_step``-th, but for ``mlp_only_layers``."""
    layers, step = fields.size("num_hidden_layers"), fields.size("decoder_sparse_step", default=1)
    dense = set(fields.numbers("mlp_only_layers") or [])
    return shortest("".join("e" if i not in dense and (i + 1) % step == 0 else "d" for i in range(layers)))


def _qwen2_moe(fields: Fields) -> Reading:
    fields.require("use_sliding_window", False, why="which layers have a window is not read")
    return "decoder", sizes(fields) | {
        "qkv_bias": fields.flag("qkv_bias", default=True),
        "feeds": sparse_feeds(fields),
        "experts": fields.size("num_experts"),
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": fields.size("moe_intermediate_size"),
        "shared_ffn": fields.size("shared_expert_intermediate_size"),
        "shared_gate": True,
    }


def _phimoe(fields: Fields) -> Reading:
    return "decoder", sizes(fields) | {
        "norm": "layernorm",
        "head_bias": fields.flag("lm_head_bias", default=False),
        "mixers": "w" if "sliding_window" in fields else "*",
        "window": fields.size("sliding_window", default=0, low=0),
        "feeds": "e",
        "experts": fields.size("num_local_experts", default=16),
        "top_k": fields.size("num_experts_per_tok", default=2),
        "expert_ffn": fields.size("intermediate_size"),
    }


def _cohere(fields: Fields) -> Reading:
    fields = fields.with_defaults(tie_word_embeddings=True)
    windows = fields.model_type == "cohere2"
    every = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=4)
    # Cohere 2 turns only the layers with a window.
    known = {**_ATTENTION, "full_attention": "n"}
    return "decoder", sizes(fields) | {
        "norm": "layernorm",
        "norm_bias": False,
        "norms": "shared",
        "qk": "heads" if fields.flag("use_qk_norm", default=False) else "none",
        "mixers": mixers(fields, known, default="w" * (every - 1) + "n") if windows else "*",
        "window": fields.size("sliding_window", default=4096) if windows else 0,
    }


def _starcoder2(fields: Fields) -> Reading:
    bias = fields.flag("use_bias", default=True)
    fields = fields.with_defaults(tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh", intermediate_size=12288)
    return "decoder", decoder_sizes(fields) | {
        "activation": fields.choice("hidden_act", default="gelu", known=PLAIN),
        "norm": "layernorm",
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": bias,
        "mixers": "w" if "sliding_window" in fields else "*",
        "window": fields.size("sliding_window", default=0, low=0),
        "tied": fields.flag("tie_word_embeddings", default=True),
    }


def _falcon(fields: Fields) -> Reading:
    heads, hidden = fields.size("num_attention_heads", "n_head"), fields.size("hidden_size")
    new = fields.flag("new_decoder_architecture", default=False)
    shared = 1 if fields.flag("multi_query", default=True) else heads
    parallel = new or fields.flag("parallel_attn", default=True)
    two = fields.size("num_ln_in_parallel_attn", default=2 if new else 1) == 2
    bias = fields.flag("bias", default=False)
    return "decoder", {
        "layers": fields.size("num_hidden_layers", "n_layer"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": fields.size("num_kv_heads", "n_head_kv", default=heads) if new else shared,
        "ffn": fields.size("ffn_hidden_size", default=4 * hidden),
        "vocab": fields.size("vocab_size"),
        "seq": seq_of(fields, "max_position_embeddings") if "max_position_embeddings" in fields else 2048,
        "activation": fields.choice("activation", default="gelu", known=PLAIN),
        "norm": "layernorm",
        "norms": ("parallel" if two else "shared") if parallel else "before",
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": bias,
        "rope_fraction": 0.0 if fields.flag("alibi", default=False) else 1.0,
        "tied": fields.flag("tie_word_embeddings", default=True),
    }


def _phi(fields: Fields) -> Reading:
    fields.require("qk_layernorm", False, why="norms of queries and keys are not read")
    return "decoder", decoder_sizes(fields) | {
        "activation": fields.choice("hidden_act", default="gelu", known=PLAIN),
        "norm": "layernorm",
        "norms": "shared",
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "head_bias": True,
        "rope_fraction": fields.rope_fraction(default=0.5),
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _gptj(fields: Fields) -> Reading:
    hidden, heads = fields.size("n_embd"), fields.size("n_head")
    turned = fields.size("rotary_dim", default=64, low=0)
    return "decoder", {
        "layers": fields.size("n_layer"),
        "hidden": hidden,
        "heads": heads,
        "ffn": fields.size("n_inner", default=4 * hidden),
        "vocab": fields.size("vocab_size"),
        "seq": seq_of(fields, "n_positions", "n_ctx"),
        "activation": fields.choice("activation_function", default="gelu", known=PLAIN),
        "norm": "layernorm",
        "norms": "shared",
        "mlp_bias": True,
        "head_bias": True,
        "rope_fraction": min(1.0, turned * heads / hidden),
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _bloom(fields: Fields) -> Reading:
    hidden = fields.size("hidden_size", "n_embed")
    return "decoder", {
        "layers": fields.size("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "heads": fields.size("n_head", "num_attention_heads"),
        "ffn": 4 * hidden,
        "vocab": fields.size("vocab_size"),
        "seq": seq_of(fields, "seq_length") if "seq_length" in fields else 2048,
        "activation": "gelu",
        "norm": "layernorm",
        "embedding_norm": True,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "rope_fraction": 0.0,
        "tied": fields.flag("tie_word_embeddings", default=True),
    }


def _stablelm(fields: Fields) -> Reading:
    fields.require("qk_layernorm", False, why="norms of queries and keys are not read")
    return "decoder", sizes(fields) | {
        "norm": "layernorm",
        "norms": "shared" if fields.flag("use_parallel_residual", default=False) else "before",
        "qkv_bias": fields.flag("use_qkv_bias", default=False),
        "out_bias": False,
        "rope_fraction": fields.rope_fraction(default=0.25),
    }


def _smollm3(fields: Fields) -> Reading:
    layers, every = fields.size("num_hidden_layers"), fields.size("no_rope_layer_interval", default=4)
    turned = fields.numbers("no_rope_layers") or [int((i + 1) % every != 0) for i in range(layers)]
    tied = fields.flag("tie_word_embeddings", default=True)
    return "decoder", sizes(fields) | {"mixers": shortest("".join("*" if t else "n" for t in turned)), "tied": tied}


DECODER_READERS: Final[Mapping[str, Callable[[Fields], Reading]]] = {
    "bloom": _bloom,
    "chatglm": _chatglm,
    "cohere": _cohere,
    "cohere2": _cohere,
    "falcon": _falcon,
    "gemma2": _gemma2,
    "gemma3_text": gemma3_text,
    "glm": _glm,
    "glm4": _glm,
    "glm4_moe": _glm4_moe,
    "gptj": _gptj,
    "granite": _granite,
    "granitemoe": _granitemoe,
    "granitemoeshared": _granitemoe,
    "llama4_text": _llama4_text,
    "nemotron": _nemotron,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "olmoe": _olmoe,
    "phi": _phi,
    "phimoe": _phimoe,
    "qwen2_moe": _qwen2_moe,
    "smollm3": _smollm3,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}
"""The reader of each ``model_type`` with attention in every layer."""
