"""Hugging Face ``config.json`` files, read as families of the zoo: sizes only, no code and no weights.

A configuration states the longest sequence that a model accepts, not the one it is trained with. So the sequence
length defaults to that maximum or to :data:`DEFAULT_SEQ`, whichever is less.

Tables of ``types.toml`` say how most types are read; code reads those that a table of dimensions cannot say. DeepSeek
V4 and Nemotron-H name the kind of every layer in ways of their own. A model that sees images is forecast for training
on text: its vision tower is held in memory, and neither run nor trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final

from traincast.errors import RequestError
from traincast.graph.huggingface.codes import shortest
from traincast.graph.huggingface.fields import ACTIVATIONS, DEFAULT_SEQ, Fields, Parameters, Reading, seq_of, show
from traincast.graph.huggingface.types import read_type, type_names

__all__ = ["DEFAULT_SEQ", "Reading", "from_config", "is_read", "readers"]


@cache
def readers() -> Mapping[str, Callable[[Fields], Reading]]:
    """The reader of each ``model_type``: a table of ``types.toml``, or code."""
    found: dict[str, Callable[[Fields], Reading]] = {name: partial(read_type, name) for name in type_names()}
    return dict(sorted((found | dict(_BY_CODE)).items()))


def from_config(data: Mapping[str, object]) -> Reading:
    """Returns the family and its dimensions from the content of a ``config.json``."""
    model_type = data.get("model_type")
    if model_type is None:
        model_type, data = _without_model_type(data)
    if not isinstance(model_type, str) or model_type not in readers():
        raise RequestError(
            f"unknown model_type {show(model_type)}: it is none of the {len(readers())} that Traincast reads itself "
            "(docs/your-models.md lists them); for others, pip install 'traincast[transformers]'"
        )
    return readers()[model_type](Fields(model_type, data))


def is_read(data: Mapping[str, object]) -> bool:
    """Whether Traincast reads a ``config.json`` of this content itself, without ``transformers``."""
    model_type = data.get("model_type")
    return model_type is None or (isinstance(model_type, str) and model_type in readers())


_BLOCKS: Final = {"M": ("M", "-"), "*": ("n", "-"), "-": ("-", "d"), "E": ("-", "e")}
_BLOCK_NAMES: Final = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip
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


def _nemotron_h(fields: Fields) -> Reading:
    pattern = fields.text("hybrid_override_pattern").replace("|", "")
    kinds = fields.words("layers_block_type") or fields.words("layer_types")
    pattern = pattern or "".join(_BLOCK_NAMES.get(kind, "?") for kind in kinds)
    unknown = sorted(set(pattern) - set(_BLOCKS))
    if unknown or not pattern:
        raise fields.refuse("hybrid_override_pattern", f"{pattern[:60]!r} must be made of {' '.join(_BLOCKS)}")
    heads = fields.size("mamba_num_heads", default=128)
    parameters: Parameters = {
        "layers": len(pattern),
        "hidden": fields.size("hidden_size"),
        "heads": fields.size("num_attention_heads"),
        "kv_heads": fields.size("num_key_value_heads", default=fields.size("num_attention_heads")),
        "head_dim": fields.size("head_dim", "attention_head_dim", default=128),
        "ffn": fields.size("intermediate_size", default=21504),
        "vocab": fields.size("vocab_size"),
        "seq": seq_of(fields, "max_position_embeddings"),
        "activation": fields.choice("mlp_hidden_act", default="relu2", known=ACTIVATIONS["squared"]),
        "mlp_bias": fields.flag("mlp_bias", default=False),
        "mixers": shortest(_BLOCKS[letter][0] for letter in pattern),
        "feeds": shortest(_BLOCKS[letter][1] for letter in pattern),
        "state": fields.size("ssm_state_size", "mamba_state_dim", default=128),
        "state_inner": heads * fields.size("mamba_head_dim", default=64),
        "state_heads": heads,
        "state_groups": fields.size("n_groups", "mamba_n_groups", default=8),
        "taps": fields.size("conv_kernel", "mamba_d_conv", default=4),
        "chunk": fields.size("chunk_size", "mamba_chunk_size", default=128),
        "conv_bias": fields.flag("use_conv_bias", default=True),
        "state_bias": fields.flag("use_bias", default=False),
        "tied": fields.flag("tie_word_embeddings", default=False),
    }
    if "E" not in pattern:
        return "decoder", parameters
    return "decoder", parameters | {
        "experts": fields.size("n_routed_experts", "num_local_experts"),
        "top_k": fields.size("num_experts_per_tok", default=2),
        "expert_ffn": fields.size("moe_intermediate_size"),
        "shared_ffn": fields.size("moe_shared_expert_intermediate_size", default=0, low=0),
        "latent": fields.size("moe_latent_size", default=0, low=0),
        "router": "sigmoid",
    }


def _tower_layers(fields: Fields, *, hidden: int, inner: int) -> int:
    """Parameters of the layers of a vision transformer with biases everywhere."""
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden
    return fields.size("num_hidden_layers") * layer


def _gemma3(fields: Fields) -> Reading:
    family, text = read_type("gemma3_text", fields.section("text_config"))
    eye = fields.section("vision_config").with_defaults(
        hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, image_size=896, patch_size=14
    )
    hidden, patch = eye.size("hidden_size"), eye.size("patch_size")
    patches = (eye.size("image_size") // patch) ** 2
    idle = _tower_layers(eye, hidden=hidden, inner=eye.size("intermediate_size"))
    idle += 3 * patch * patch * hidden + hidden + patches * hidden + 2 * hidden  # patches, positions, the last norm
    idle += hidden * int(text["hidden"]) + hidden  # the projection into the language model, and its norm
    return family, text | {"idle": idle}


def _llama4(fields: Fields) -> Reading:
    family, text = read_type("llama4_text", fields.section("text_config"))
    eye = fields.section("vision_config").with_defaults(
        hidden_size=768, intermediate_size=5632, num_hidden_layers=34, image_size=448, patch_size=14,
        projector_input_dim=4096, projector_output_dim=4096, vision_output_dim=7680,
    )  # fmt: skip
    hidden, inner, patch = eye.size("hidden_size"), eye.size("intermediate_size"), eye.size("patch_size")
    patches = (eye.size("image_size") // patch) ** 2 + 1
    middle, out = eye.size("projector_input_dim"), eye.size("projector_output_dim")
    idle = _tower_layers(eye, hidden=hidden, inner=inner)
    idle += 3 * patch * patch * hidden + hidden + patches * hidden + 4 * hidden
    idle += inner * middle + middle * out + eye.size("vision_output_dim") * int(text["hidden"])
    return family, text | {"idle": idle}


def _without_model_type(data: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """``model_type`` and fields of a file that lacks it, as those of the authors of Mamba do; others are refused."""
    settings = data.get("ssm_cfg")
    if not isinstance(settings, Mapping) or "d_model" not in data or data.get("attn_layer_idx"):
        raise RequestError("the configuration has no model_type; is it a Hugging Face config.json?")
    fields = Fields("mamba", data)
    vocab, multiple = fields.size("vocab_size"), fields.size("pad_vocab_size_multiple", default=8)
    second = settings.get("layer") == "Mamba2"
    return "mamba2" if second else "mamba", {
        "hidden_size": fields.size("d_model"),
        "num_hidden_layers": fields.size("n_layer"),
        "vocab_size": -(-vocab // multiple) * multiple,
        "n_groups": settings.get("ngroups", 1),
        "state_size": settings.get("d_state", 128 if second else 16),
        "head_dim": settings.get("headdim", 64),
        "tie_word_embeddings": fields.flag("tie_embeddings", default=True),
    }


_BY_CODE: Final[Mapping[str, Callable[[Fields], Reading]]] = {
    "deepseek_v4": _deepseek_v4,
    "gemma3": _gemma3,
    "llama4": _llama4,
    "nemotron_h": _nemotron_h,
}
"""The reader of each ``model_type`` that is read by code."""
