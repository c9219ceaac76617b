"""Readers of Hugging Face models with state spaces or linear attention, and of language models with a vision tower.

A model that sees images is forecast for training on text: its vision tower is held in memory, and neither run nor
trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from traincast.errors import RequestError
from traincast.graph.huggingface.decoders import DECODER_READERS, gemma3_text, mixers, shortest, sizes, sparse_feeds
from traincast.graph.huggingface.fields import DEFAULT_SEQ, PLAIN, Fields, Parameters, Reading

_BLOCKS: Final = {"M": ("M", "-"), "*": ("n", "-"), "-": ("-", "d"), "E": ("-", "e")}
_BLOCK_NAMES: Final = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip


def _mamba2(fields: Fields) -> Reading:
    hidden = fields.size("hidden_size")
    inner = fields.size("expand", default=2) * hidden
    heads = fields.size("num_heads", default=max(1, inner // fields.size("head_dim", default=64)))
    return "decoder", _unmixed(fields) | {
        "state": fields.size("state_size", default=128),
        "state_inner": inner,
        "state_heads": heads,
        "state_groups": fields.size("n_groups", default=8),
        "state_norm_groups": 1,
        "chunk": fields.size("chunk_size", default=256),
    }


def _mamba(fields: Fields) -> Reading:
    hidden = fields.size("hidden_size")
    fields = fields.with_defaults(tie_word_embeddings=fields.model_type == "mamba")
    return "decoder", _unmixed(fields) | {
        "state": fields.size("state_size", default=16),
        "state_inner": fields.size("intermediate_size", default=fields.size("expand", default=2) * hidden),
        "state_rank": fields.size("time_step_rank", default=0, low=0, automatic="auto"),
    }


def _unmixed(fields: Fields) -> Parameters:
    """What Mamba and Mamba-2 share: layers of a norm and a state space, nothing else."""
    return {
        "layers": fields.size("num_hidden_layers"),
        "hidden": fields.size("hidden_size"),
        "vocab": fields.size("vocab_size"),
        "seq": DEFAULT_SEQ,
        "rope_fraction": 0.0,
        "mixers": "M",
        "feeds": "-",
        "taps": fields.size("conv_kernel", default=4),
        "conv_bias": fields.flag("use_conv_bias", default=True),
        "state_bias": fields.flag("use_bias", default=False),
        "tied": fields.flag("tie_word_embeddings", default=False),
    }


def _nemotron_h(fields: Fields) -> Reading:
    pattern = fields.text("hybrid_override_pattern").replace("|", "")
    kinds = fields.words("layers_block_type") or fields.words("layer_types")
    pattern = pattern or "".join(_BLOCK_NAMES.get(kind, "?") for kind in kinds)
    unknown = sorted(set(pattern) - set(_BLOCKS))
    if unknown or not pattern:
        raise fields.refuse("hybrid_override_pattern", f"{pattern[:60]!r} must be made of {' '.join(_BLOCKS)}")
    heads = fields.size("mamba_num_heads", default=128)
    known = {"relu2": "relu2", **PLAIN}
    parameters: Parameters = {
        "layers": len(pattern),
        "hidden": fields.size("hidden_size"),
        "heads": fields.size("num_attention_heads"),
        "kv_heads": fields.size("num_key_value_heads", default=fields.size("num_attention_heads")),
        "head_dim": fields.size("head_dim", "attention_head_dim", default=128),
        "ffn": fields.size("intermediate_size", default=21504),
        "vocab": fields.size("vocab_size"),
        "seq": min(DEFAULT_SEQ, fields.size("max_position_embeddings", default=DEFAULT_SEQ)),
        "activation": fields.choice("mlp_hidden_act", default="relu2", known=known),
        "mlp_bias": fields.flag("mlp_bias", default=False),
        "mixers": shortest("".join(_BLOCKS[letter][0] for letter in pattern)),
        "feeds": shortest("".join(_BLOCKS[letter][1] for letter in pattern)),
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


def _qwen3_next(fields: Fields) -> Reading:
    every = fields.size("full_attention_interval", default=4)
    known = {"full_attention": "*", "linear_attention": "L"}
    parameters = sizes(fields) | {
        "head_dim": fields.size("head_dim", default=256),
        "qk": "head",
        "gated_attention": True,
        "rope_fraction": fields.rope_fraction(default=0.25),
        "mixers": mixers(fields, known, default="L" * (every - 1) + "*"),
        "linear_heads": fields.size("linear_num_key_heads", default=16),
        "linear_value_heads": fields.size("linear_num_value_heads", default=32),
        "linear_dim": fields.size("linear_key_head_dim", default=128),
        "linear_value_dim": fields.size("linear_value_head_dim", default=128),
        "taps": fields.size("linear_conv_kernel_dim", default=4),
    }
    if "num_experts" not in fields:
        return "decoder", parameters
    return "decoder", parameters | {
        "feeds": sparse_feeds(fields),
        "experts": fields.size("num_experts"),
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": fields.size("moe_intermediate_size"),
        "shared_ffn": fields.size("shared_expert_intermediate_size"),
        "shared_gate": True,
    }


def _granite_hybrid(fields: Fields) -> Reading:
    hidden, heads = fields.size("hidden_size"), fields.size("mamba_n_heads", default=128)
    known = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*"}
    turned = fields.text("position_embedding_type") == "rope"
    pattern = mixers(fields, known, default="M")
    experts = fields.size("num_local_experts", default=0, low=0)
    shared = fields.size("shared_intermediate_size", default=1024)
    parameters = sizes(fields) | {
        "ffn": shared,
        "mixers": pattern if turned else pattern.replace("*", "n"),
        "state": fields.size("mamba_d_state", default=256),
        "state_inner": fields.size("mamba_expand", default=2) * hidden,
        "state_heads": heads,
        "state_groups": fields.size("mamba_n_groups", default=1),
        "state_norm_groups": 1,
        "taps": fields.size("mamba_d_conv", default=4),
        "chunk": fields.size("mamba_chunk_size", default=256),
        "conv_bias": fields.flag("mamba_conv_bias", default=True),
        "state_bias": fields.flag("mamba_proj_bias", default=False),
    }
    if not experts:
        return "decoder", parameters
    return "decoder", parameters | {
        "feeds": "e",
        "experts": experts,
        "top_k": fields.size("num_experts_per_tok"),
        "expert_ffn": fields.size("intermediate_size"),
        "shared_ffn": shared,
    }


def _tower_layers(fields: Fields, *, hidden: int, inner: int) -> int:
    """Parameters of the layers of a vision transformer with biases everywhere."""
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden
    return fields.size("num_hidden_layers") * layer


def _gemma3(fields: Fields) -> Reading:
    family, text = gemma3_text(fields.section("text_config"))
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
    family, text = DECODER_READERS["llama4_text"](fields.section("text_config"))
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


def without_model_type(data: Mapping[str, object]) -> tuple[str, dict[str, object]]:
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


HYBRID_READERS: Final[Mapping[str, Callable[[Fields], Reading]]] = {
    "falcon_mamba": _mamba,
    "gemma3": _gemma3,
    "granitemoehybrid": _granite_hybrid,
    "llama4": _llama4,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "nemotron_h": _nemotron_h,
    "qwen3_next": _qwen3_next,
}
"""The reader of each ``model_type`` of these models."""
