"""Hugging Face ``config.json`` files, read as families of the zoo: sizes only, no code and no weights.

A configuration states the longest sequence that a model accepts, not the one it is trained with. So the sequence
length defaults to that maximum or to :data:`DEFAULT_SEQ`, whichever is less.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from traincast.errors import FileFormatError, RequestError
from traincast.graph.files import read_json
from traincast.graph.operator import Scalar

DEFAULT_SEQ: Final = 4096
_MAX_SIZE: Final = 2**27
_MAX_SHOWN: Final = 60

Parameters: TypeAlias = dict[str, Scalar]
Reading: TypeAlias = tuple[str, Parameters]


def read_config(path: str | Path) -> Reading:
    """Returns the family and its dimensions from the ``config.json`` at ``path``."""
    data = read_json(Path(path))
    if not isinstance(data, dict):
        raise FileFormatError(f"model file {path} holds a {type(data).__name__}, not an object with model_type")
    return from_config(data)


def from_config(data: Mapping[str, object]) -> Reading:
    """Returns the family and its dimensions from the content of a ``config.json``."""
    model_type = data.get("model_type")
    if model_type is None:
        raise RequestError("the configuration has no model_type; is it a Hugging Face config.json?")
    if not isinstance(model_type, str) or model_type not in READERS:
        raise RequestError(f"unknown model_type {_show(model_type)}: known are {', '.join(READERS)}")
    return READERS[model_type](Fields(model_type, data))


def _show(value: object) -> str:
    """``value`` on one short line, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"of {value.bit_length()} bits"
    return reprlib.repr(value)[:_MAX_SHOWN]


class Fields:
    """Reads the fields of a configuration with their types; raises ``RequestError`` for missing or wrong ones."""

    def __init__(self, model_type: str, data: Mapping[str, object]) -> None:
        self.model_type = model_type
        self._data = data

    def _refuse(self, name: str, problem: str) -> RequestError:
        return RequestError(f"{self.model_type} configuration: {name} {problem}")

    def size(self, *names: str, default: int | None = None, low: int = 1) -> int:
        """The whole number under the first of ``names`` that is given."""
        for name in names:
            value = self._data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise self._refuse(name, f"{_show(value)} is not a whole number")
            if not low <= value <= _MAX_SIZE:
                raise self._refuse(name, f"{_show(value)} must be between {low} and {_MAX_SIZE:,}")
            return value
        if default is None:
            raise self._refuse(" or ".join(names), "is missing")
        return default

    def fraction(self, name: str, *, default: float) -> float:
        """The number from 0 to 1 under ``name``."""
        value = self._data.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self._refuse(name, f"{_show(value)} must be a number from 0 to 1")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """The truth value under ``name``."""
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._refuse(name, f"{_show(value)} must be true or false")
        return value

    def choice(self, *names: str, default: str, known: Mapping[str, str]) -> str:
        """The zoo's word for the word under the first of ``names`` that is given."""
        for name in names:
            value = self._data.get(name)
            if value is None:
                continue
            if not isinstance(value, str) or value not in known:
                raise self._refuse(name, f"{_show(value)} is not supported; known are {', '.join(known)}")
            return known[value]
        return default

    def section(self, name: str) -> Fields:
        """The object under ``name``, empty where it is missing."""
        value = self._data.get(name) or {}
        if not isinstance(value, Mapping):
            raise self._refuse(name, f"{_show(value)} is not an object")
        return Fields(f"{self.model_type} {name}", value)

    def length(self, name: str, *, default: int) -> int:
        """How many entries the list or object under ``name`` has."""
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, list | Mapping):
            raise self._refuse(name, f"{_show(value)} is neither a list nor an object")
        return len(value)

    def require(self, name: str, value: object, *, why: str) -> None:
        """Raise ``RequestError`` if a field has a value that the zoo cannot build."""
        given = self._data.get(name, value)
        if given is not None and (type(given) is not type(value) or given != value):
            raise self._refuse(name, f"{_show(given)} is not supported: {why}")


_GATED: Final = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu",
}
_PLAIN: Final = {"gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"}


def _seq(fields: Fields, *names: str) -> int:
    return min(DEFAULT_SEQ, fields.size(*names, default=DEFAULT_SEQ))


def _decoder(fields: Fields) -> Parameters:
    """The dimensions that all recent decoder-only configurations have."""
    heads = fields.size("num_attention_heads")
    parameters: Parameters = {
        "layers": fields.size("num_hidden_layers"),
        "hidden": fields.size("hidden_size"),
        "heads": heads,
        "kv_heads": fields.size("num_key_value_heads", default=heads),
        "ffn": fields.size("intermediate_size"),
        "vocab": fields.size("vocab_size"),
        "seq": _seq(fields, "max_position_embeddings"),
    }
    head_dim = fields.size("head_dim", default=0, low=0)
    return parameters | ({"head_dim": head_dim} if head_dim else {})


def _llama(fields: Fields) -> Reading:
    bias = fields.flag("attention_bias", default=False)
    return "llama", _decoder(fields) | {
        "activation": fields.choice("hidden_act", default="swiglu", known=_GATED),
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
        "activation": fields.choice("hidden_activation", "hidden_act", default="geglu", known=_GATED),
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
        "activation": fields.choice("activation_function", default="gelu", known=_PLAIN),
        "tied": fields.flag("tie_word_embeddings", default=True),
    }


def _gpt_neox(fields: Fields) -> Reading:
    return "gpt", _decoder(fields) | {
        "positions": "rope",
        "rope_fraction": fields.fraction("rotary_pct", default=0.25),
        "activation": fields.choice("hidden_act", default="gelu", known=_PLAIN),
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
        "activation": fields.choice("activation_function", default="relu", known=_PLAIN),
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
        "seq": _seq(fields, "max_seq_len"),
        "positions": "alibi" if alibi else "learned" if learned else "none",
        "bias": not fields.flag("no_bias", default=True),
        "tied": fields.flag("tie_word_embeddings", default=True),
    }


def _bert(fields: Fields) -> Reading:
    fields.require("type_vocab_size", 2, why="BERT is built with two segment types")
    positions = fields.size("max_position_embeddings", default=512)
    return "bert", {
        "layers": fields.size("num_hidden_layers"),
        "hidden": fields.size("hidden_size"),
        "heads": fields.size("num_attention_heads"),
        "ffn": fields.size("intermediate_size"),
        "vocab": fields.size("vocab_size"),
        "seq": min(DEFAULT_SEQ, positions),
        "max_positions": positions,
    }


def _mixtral(fields: Fields) -> Reading:
    return "moe", _decoder(fields) | {
        "experts": fields.size("num_local_experts"),
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": fields.size("intermediate_size"),
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _qwen3_moe(fields: Fields) -> Reading:
    fields.require("decoder_sparse_step", 1, why="every layer must have experts")
    fields.require("mlp_only_layers", [], why="every layer must have experts")
    return "moe", _decoder(fields) | {
        "head_dim": fields.size("head_dim", default=128),
        "experts": fields.size("num_experts", "num_local_experts"),
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": fields.size("moe_intermediate_size"),
        "qk_norm": True,
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _deepseek(fields: Fields) -> Reading:
    fields.require("moe_layer_freq", 1, why="every layer after the first dense ones must have experts")
    common = _decoder(fields)
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


def _gpt_oss(fields: Fields) -> Reading:
    common = _decoder(fields)
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


READERS: Final[Mapping[str, Callable[[Fields], Reading]]] = {
    "bert": _bert,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma": _gemma,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "kimi_k2": _deepseek,
    "llama": _llama,
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
"""The reader of each ``model_type``."""
