"""Dimensions that need code: a line of ``types.toml`` names the function that computes one.

Each function gets the fields of a configuration and the dimensions that were read before. Several return letters for
layers, which :mod:`traincast.graph.zoo.language.decoder` explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from traincast.graph.huggingface.fields import Fields, Parameters
from traincast.graph.vocabulary import Scalar

_ATTENTION: Final = {
    "full_attention": "*",
    "attention": "*",
    "sliding_attention": "w",
    "chunked_attention": "w",
    "local": "w",
    "global": "*",
}
LAYER_TYPES: Final[Mapping[str, Mapping[str, str]]] = {
    "attention": _ATTENTION,
    "windows": {**_ATTENTION, "full_attention": "n"},
    "linear": {"full_attention": "*", "linear_attention": "L"},
    "states": {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*"},
}
"""Letters of the values of ``layer_types``, by the lists that ``types.toml`` names."""


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
    return shortest(known[kind] for kind in kinds)


def shortest(letters: Iterable[str]) -> str:
    """The shortest beginning of ``letters`` that gives them when repeated and cut off."""
    text = "".join(letters)
    for length in range(1, len(text)):
        if (text[:length] * len(text))[: len(text)] == text:
            return text[:length]
    return text


def _mpt_positions(fields: Fields, found: Parameters) -> str:
    alibi = fields.section("attn_config").flag("alibi", default=False)
    learned = fields.flag("learned_pos_emb", default=True) and not alibi
    return "alibi" if alibi else "learned" if learned else "none"


def _one_window(fields: Fields, found: Parameters) -> int:
    """Longformer's window, which all layers must share."""
    windows = fields.numbers("attention_window") or [512]
    if len(set(windows)) > 1:
        raise fields.refuse("attention_window", "must be the same in all layers")
    return windows[0]


def _dense_layers(fields: Fields, found: Parameters) -> int:
    """How many layers of DeepSeek-V3.2 have no experts: counted in ``mlp_layer_types``, else ``first_dense``."""
    kinds = fields.words("mlp_layer_types")
    dense = next((i for i, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    if set(kinds[dense:]) - {"sparse"}:
        raise fields.refuse("mlp_layer_types", "must be dense layers, then sparse ones")
    return dense if kinds else int(found["first_dense"])


def _dense_then_experts(fields: Fields, found: Parameters) -> str:
    layers = int(found["layers"])
    dense = min(layers, fields.size("first_k_dense_replace", default=1, low=0))
    return shortest("d" * dense + "e" * (layers - dense))


def _sparse_feeds(fields: Fields, found: Parameters) -> str:
    """Which layers have experts in Qwen's mixtures: every ``decoder_sparse_step``-th, but for ``mlp_only_layers``."""
    layers, step = int(found["layers"]), fields.size("decoder_sparse_step", default=1)
    dense = set(fields.numbers("mlp_only_layers") or [])
    return shortest("e" if i not in dense and (i + 1) % step == 0 else "d" for i in range(layers))


def _turned(fields: Fields, found: Parameters) -> list[int]:
    """1 for each layer whose queries and keys are turned: all but every fourth, if the file does not say which."""
    every = fields.size("no_rope_layer_interval", default=4)
    return fields.numbers("no_rope_layers") or [int((i + 1) % every != 0) for i in range(int(found["layers"]))]


def _smollm3_mixers(fields: Fields, found: Parameters) -> str:
    return shortest("*" if flag else "n" for flag in _turned(fields, found))


def _llama4_mixers(fields: Fields, found: Parameters) -> str:
    turned, layers = _turned(fields, found), found["layers"]
    if len(turned) != layers:
        raise fields.refuse("no_rope_layers", f"names {len(turned)} layers where num_hidden_layers={layers}")
    return shortest("w" if flag else "n" for flag in turned)


def _llama4_feeds(fields: Fields, found: Parameters) -> str:
    layers, step = int(found["layers"]), fields.size("interleave_moe_layer_step", default=1)
    sparse = fields.numbers("moe_layers")
    sparse = list(range(step - 1, layers, step)) if sparse is None else sparse
    return shortest("e" if i in sparse else "d" for i in range(layers))


def _granite_mixers(fields: Fields, found: Parameters) -> str:
    """Attention of Granite's hybrids has no positions unless the file asks for rotary ones."""
    pattern = mixers(fields, LAYER_TYPES["states"], default="M")
    return pattern if fields.text("position_embedding_type") == "rope" else pattern.replace("*", "n")


def _falcon_kv_heads(fields: Fields, found: Parameters) -> int:
    heads = int(found["heads"])
    shared = 1 if fields.flag("multi_query", default=True) else heads
    new = fields.flag("new_decoder_architecture", default=False)
    return fields.size("num_kv_heads", "n_head_kv", default=heads) if new else shared


def _falcon_norms(fields: Fields, found: Parameters) -> str:
    new = fields.flag("new_decoder_architecture", default=False)
    parallel = new or fields.flag("parallel_attn", default=True)
    two = fields.size("num_ln_in_parallel_attn", default=2 if new else 1) == 2
    return ("parallel" if two else "shared") if parallel else "before"


def _rotary_share(fields: Fields, found: Parameters) -> float:
    turned = fields.size("rotary_dim", default=64, low=0)
    return min(1.0, turned * int(found["heads"]) / int(found["hidden"]))


def _mamba_inner(fields: Fields, found: Parameters) -> int:
    return fields.size("intermediate_size", default=fields.size("expand", default=2) * int(found["hidden"]))


def _mamba2_heads(fields: Fields, found: Parameters) -> int:
    width = fields.size("head_dim", default=64)
    return fields.size("num_heads", default=max(1, int(found["state_inner"]) // width))


CODES: Final[Mapping[str, Callable[[Fields, Parameters], Scalar]]] = {
    "dense_layers": _dense_layers,
    "dense_then_experts": _dense_then_experts,
    "falcon_kv_heads": _falcon_kv_heads,
    "falcon_norms": _falcon_norms,
    "granite_mixers": _granite_mixers,
    "llama4_feeds": _llama4_feeds,
    "llama4_mixers": _llama4_mixers,
    "mamba2_heads": _mamba2_heads,
    "mamba_inner": _mamba_inner,
    "mpt_positions": _mpt_positions,
    "one_window": _one_window,
    "rotary_share": _rotary_share,
    "smollm3_mixers": _smollm3_mixers,
    "sparse_feeds": _sparse_feeds,
}
