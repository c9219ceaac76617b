"""The families of encoder-only and decoder-only transformers: thin presets of one parametric module."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from traincast.errors import RequestError
from traincast.graph.zoo.parts.further import check_depths
from traincast.graph.zoo.parts.indexer import IndexSizes
from traincast.graph.zoo.parts.layers import Experts, Latent, LayerConfig, check_choices, check_divides, check_sizes
from traincast.graph.zoo.parts.stack import TransformerConfig, traceable
from traincast.graph.zoo.traceable import Traceable

DROPOUT: Final = 0.1
"""The settings that GPT-2, BERT and their successors are trained with."""

_MAY_BE_ZERO: Final = frozenset(
    {"window", "window_period", "first_dense", "shared_ffn", "shared_experts", "q_lora", "predictions", "index_heads"}
)


def _probability(family: str, dropout: float) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise RequestError(f"{family}: dropout={dropout!r} must be a number from 0 to below 1")
    return float(dropout)


def layer_sizes(
    family: str,
    *,
    hidden: int,
    heads: int,
    seq: int,
    ffn: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    rope: float = 0.0,
) -> LayerConfig:
    """The sizes of a layer, checked, with the field's usual defaults for those not given."""
    optional = {"ffn": ffn, "kv_heads": kv_heads, "head_dim": head_dim}
    sizes: dict[str, object] = {"hidden": hidden, "heads": heads, "seq": seq}
    check_sizes(family, sizes | {name: size for name, size in optional.items() if size is not None})
    if head_dim is None:
        remedy = "choose heads that divide hidden, or give head_dim"
        check_divides(family, whole=("hidden", hidden), parts=("heads", heads), remedy=remedy)
        head_dim = hidden // heads
    kv_heads = heads if kv_heads is None else kv_heads
    remedy = "every key head must serve equally many query heads"
    check_divides(family, whole=("heads", heads), parts=("kv_heads", kv_heads), remedy=remedy)
    if isinstance(rope, bool) or not isinstance(rope, int | float) or not 0 <= rope <= 1:
        raise RequestError(f"{family}: rope_fraction={rope!r} must be a number from 0 to 1")
    rope_dim = int(rope * head_dim)
    if rope_dim % 2:
        raise RequestError(f"{family}: {rope_dim} rotated elements per head of {head_dim} must be even")
    return LayerConfig(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=4 * hidden if ffn is None else ffn,
        seq=seq,
        rope_dim=rope_dim,
    )


def _llama_layer(layer: LayerConfig, *, ffn: int | None) -> LayerConfig:
    """RMSNorm, no biases, gated; two thirds of 4·hidden, rounded up to 256, where ``ffn`` is not given."""
    width = -(-8 * layer.hidden // 3 // 256) * 256 if ffn is None else ffn
    return replace(
        layer, ffn=width, norm="rmsnorm", activation="swiglu", qkv_bias=False, out_bias=False, mlp_bias=False
    )


def gpt(
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn: int | None = None,
    vocab: int = 50257,
    seq: int = 1024,
    positions: str = "learned",
    max_positions: int | None = None,
    rope_fraction: float = 1.0,
    norm: str = "layernorm",
    activation: str = "gelu",
    bias: bool = True,
    tied: bool = True,
    parallel: bool = False,
    dropout: float = DROPOUT,
) -> Traceable:
    """GPT-2 and 3 and their kin (Radford et al. 2019; Brown et al. 2020, arXiv:2005.14165).

    A table of learned positions has ``max_positions`` rows (default ``seq``), and never fewer than
    ``seq``; ALiBi (Press et al. 2021, arXiv:2108.12409) costs nothing beside its fused kernel.
    """
    check_choices("gpt", {"positions": positions, "norm": norm, "activation": activation})
    check_choices("gpt", {"bias": bias, "tied": tied, "parallel": parallel})
    rope = rope_fraction if positions == "rope" else 0.0
    layer = layer_sizes(
        "gpt", hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ffn=ffn, seq=seq, rope=rope
    )
    table = seq if max_positions is None else max_positions
    check_sizes("gpt", {"layers": layers, "vocab": vocab, "max_positions": table})
    layer = replace(layer, norm=norm, norm_bias=bias, activation=activation, parallel=parallel)
    layer = replace(layer, qkv_bias=bias, out_bias=bias, mlp_bias=bias, dropout=_probability("gpt", dropout))
    config = TransformerConfig(
        layers=layers,
        layer=layer,
        vocab=vocab,
        max_positions=max(table, seq) if positions == "learned" else 0,
        tied=tied,
    )
    return traceable(config)


def mpt(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int | None = None,
    vocab: int = 50368,
    seq: int = 2048,
    positions: str = "learned",
    bias: bool = True,
    tied: bool = True,
) -> Traceable:
    """MPT (MosaicML 2023), as LLM Foundry's benchmarks train it: GPT with a padded vocabulary."""
    return gpt(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        vocab=vocab,
        seq=seq,
        positions=positions,
        bias=bias,
        tied=tied,
        dropout=0.0,
    )


def llama(
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn: int | None = None,
    vocab: int = 32000,
    seq: int = 4096,
    activation: str = "swiglu",
    rope_fraction: float = 1.0,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    window: int = 0,
    window_period: int = 0,
    tied: bool = False,
) -> Traceable:
    """Llama and its kin (Touvron et al. 2023, arXiv:2302.13971): RMSNorm, rotary positions, gated MLP.

    ``ffn`` defaults to two thirds of 4·hidden, rounded up to a multiple of 256. With a sliding
    ``window``, every ``window_period``-th layer attends to everything (0: none does).
    """
    check_choices("llama", {"activation": activation, "qk_norm": qk_norm, "tied": tied})
    check_choices("llama", {"qkv_bias": qkv_bias, "out_bias": out_bias, "mlp_bias": mlp_bias})
    sizes = {"layers": layers, "vocab": vocab, "window": window, "window_period": window_period}
    check_sizes("llama", sizes, may_be_zero=_MAY_BE_ZERO)
    layer = layer_sizes(
        "llama",
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        seq=seq,
        rope=rope_fraction,
    )
    layer = replace(_llama_layer(layer, ffn=ffn), activation=activation, qk_norm=qk_norm, window=window)
    layer = replace(layer, qkv_bias=qkv_bias, out_bias=out_bias, mlp_bias=mlp_bias)
    return traceable(TransformerConfig(layers=layers, layer=layer, vocab=vocab, tied=tied, window_period=window_period))


def bert(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int | None = None,
    vocab: int = 30522,
    seq: int = 512,
    max_positions: int = 512,
    predictions: int = 0,
    dropout: float = DROPOUT,
) -> Traceable:
    """BERT in pre-training (Devlin et al. 2018, arXiv:1810.04805): masked tokens and next sentence.

    ``predictions`` tokens per sample reach the masked-token head, as the original code gathers them;
    0 sends all, as Megatron-LM and Hugging Face do.
    """
    layer = layer_sizes("bert", hidden=hidden, heads=heads, ffn=ffn, seq=seq)
    sizes = {"layers": layers, "vocab": vocab, "max_positions": max_positions, "predictions": predictions}
    check_sizes("bert", sizes, may_be_zero=_MAY_BE_ZERO)
    if predictions > seq:
        raise RequestError(f"bert: predictions={predictions} of seq={seq} tokens; it must be at most seq")
    config = TransformerConfig(
        layers=layers,
        layer=replace(layer, post_norm=True, causal=False, dropout=_probability("bert", dropout)),
        vocab=vocab,
        max_positions=max(max_positions, seq),
        token_types=2,
        tied=True,
        head="mlm",
        predictions=predictions,
    )
    return traceable(config)


def vit(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int | None = None,
    patch: int = 16,
    image: int = 224,
    classes: int = 1000,
) -> Traceable:
    """Vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929): patches and a class token."""
    check_sizes("vit", {"layers": layers, "patch": patch, "image": image, "classes": classes})
    remedy = "an image is a whole number of patches"
    check_divides("vit", whole=("image", image), parts=("patch", patch), remedy=remedy)
    layer = layer_sizes("vit", hidden=hidden, heads=heads, ffn=ffn, seq=(image // patch) ** 2 + 1)
    config = TransformerConfig(
        layers=layers,
        layer=replace(layer, causal=False),
        vocab=classes,
        head="classes",
        patch=patch,
        image=image,
    )
    return traceable(config)


def expert_sizes(
    family: str, *, count: int, top_k: int, ffn: int, shared_ffn: int, router: str, bias: bool = False
) -> Experts:
    """The experts of a layer, checked."""
    check_choices(family, {"router": router})
    sizes = {"experts": count, "top_k": top_k, "expert_ffn": ffn, "shared_ffn": shared_ffn}
    check_sizes(family, sizes, may_be_zero=_MAY_BE_ZERO)
    if top_k > count:
        raise RequestError(f"{family}: top_k={top_k} of experts={count}; top_k must be at most experts")
    return Experts(count=count, top_k=top_k, ffn=ffn, shared_ffn=shared_ffn, router=router, bias=bias)


def moe(
    *,
    layers: int,
    hidden: int,
    heads: int,
    experts: int,
    top_k: int,
    expert_ffn: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn: int | None = None,
    vocab: int = 32000,
    seq: int = 4096,
    shared_ffn: int = 0,
    first_dense: int = 0,
    router: str = "softmax",
    qk_norm: bool = False,
    tied: bool = False,
) -> Traceable:
    """Llama with experts: Mixtral (Jiang et al. 2024, arXiv:2401.04088), Qwen3-MoE (arXiv:2505.09388)."""
    check_choices("moe", {"qk_norm": qk_norm, "tied": tied})
    sizes = {"layers": layers, "vocab": vocab, "first_dense": first_dense}
    check_sizes("moe", sizes, may_be_zero=_MAY_BE_ZERO)
    layer = layer_sizes(
        "moe", hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ffn=ffn, seq=seq, rope=1.0
    )
    mixture = expert_sizes("moe", count=experts, top_k=top_k, ffn=expert_ffn, shared_ffn=shared_ffn, router=router)
    layer = replace(_llama_layer(layer, ffn=ffn), qk_norm=qk_norm, experts=mixture)
    return traceable(TransformerConfig(layers=layers, layer=layer, vocab=vocab, tied=tied, first_dense=first_dense))


def deepseek(
    *,
    layers: int,
    hidden: int,
    heads: int,
    experts: int,
    top_k: int,
    expert_ffn: int,
    ffn: int,
    shared_experts: int = 1,
    first_dense: int = 1,
    q_lora: int = 1536,
    kv_lora: int = 512,
    rope_dim: int = 64,
    nope_dim: int = 128,
    v_dim: int = 128,
    index_heads: int = 0,
    index_dim: int = 128,
    index_top_k: int = 2048,
    router: str = "sigmoid",
    vocab: int = 129280,
    seq: int = 4096,
    tied: bool = False,
    mtp: int = 0,
) -> Traceable:
    """DeepSeek-V2, V3 and V3.2 (arXiv:2405.04434, arXiv:2412.19437): latent attention, many small experts.

    With ``index_heads``, an indexer chooses ``index_top_k`` keys for each query (V3.2, arXiv:2512.02556). ``mtp`` is
    the number of further tokens that are predicted (:mod:`traincast.graph.zoo.parts.further`). The bias that balances
    experts is not trained.
    """
    check_choices("deepseek", {"tied": tied})
    check_depths("deepseek", mtp)
    sizes = {"layers": layers, "vocab": vocab, "first_dense": first_dense, "shared_experts": shared_experts}
    ranks = {"q_lora": q_lora, "kv_lora": kv_lora, "rope_dim": rope_dim, "nope_dim": nope_dim, "v_dim": v_dim}
    sizes |= {"index_heads": index_heads, "index_dim": index_dim, "index_top_k": index_top_k}
    check_sizes("deepseek", sizes | ranks, may_be_zero=_MAY_BE_ZERO)
    if index_heads and (not q_lora or index_dim < rope_dim):
        raise RequestError(
            f"deepseek: index_heads={index_heads} needs q_lora above 0 and index_dim of at least rope_dim"
        )
    check_divides("deepseek", whole=("rope_dim", rope_dim), parts=("pair", 2), remedy="elements turn in pairs")
    mixture = expert_sizes(
        "deepseek",
        count=experts,
        top_k=top_k,
        ffn=expert_ffn,
        shared_ffn=shared_experts * expert_ffn,
        router=router,
    )
    latent = Latent(q_rank=q_lora, kv_rank=kv_lora, rope_dim=rope_dim, nope_dim=nope_dim, v_dim=v_dim)
    if index_heads:
        latent = replace(latent, index=IndexSizes(heads=index_heads, dim=index_dim, top_k=index_top_k))
    layer = layer_sizes("deepseek", hidden=hidden, heads=heads, head_dim=nope_dim + rope_dim, ffn=ffn, seq=seq)
    layer = replace(_llama_layer(layer, ffn=ffn), latent=latent, experts=mixture)
    config = TransformerConfig(layers=layers, layer=layer, vocab=vocab, tied=tied, first_dense=first_dense)
    return traceable(replace(config, mtp=mtp))


def gpt_oss(
    *,
    layers: int,
    hidden: int,
    heads: int,
    experts: int,
    top_k: int = 4,
    expert_ffn: int | None = None,
    kv_heads: int | None = None,
    head_dim: int = 64,
    vocab: int = 201088,
    seq: int = 4096,
    window: int = 128,
) -> Traceable:
    """GPT-OSS (OpenAI 2025, arXiv:2508.10925): biased experts, sinks, a window on every other layer."""
    sizes = {"layers": layers, "vocab": vocab, "window": window}
    check_sizes("gpt-oss", sizes, may_be_zero=_MAY_BE_ZERO)
    layer = layer_sizes("gpt-oss", hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, seq=seq, rope=1.0)
    width = hidden if expert_ffn is None else expert_ffn
    mixture = expert_sizes("gpt-oss", count=experts, top_k=top_k, ffn=width, shared_ffn=0, router="softmax", bias=True)
    layer = replace(_llama_layer(layer, ffn=width), qkv_bias=True, out_bias=True, sinks=True, window=window)
    layer = replace(layer, experts=mixture)
    return traceable(TransformerConfig(layers=layers, layer=layer, vocab=vocab, window_period=2))
