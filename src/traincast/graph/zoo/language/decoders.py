"""The family ``decoder``: layers of attention, state spaces or linear attention, with MLPs or experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from traincast.errors import RequestError
from traincast.graph.zoo.language.decoder import DecoderConfig, traceable_decoder
from traincast.graph.zoo.language.transformer import expert_sizes, layer_sizes
from traincast.graph.zoo.parts.further import check_depths
from traincast.graph.zoo.parts.layers import check_choices, check_divides, check_sizes
from traincast.graph.zoo.parts.mixers import DeltaNet, StateSpace
from traincast.graph.zoo.traceable import Traceable

_NAME: Final = "decoder"
_MAY_BE_ZERO: Final = frozenset(
    {"window", "latent", "idle", "state", "state_heads", "state_rank", "linear_heads", "linear_value_heads"}
)
_MOST_IDLE: Final = 2**40


def decoder(
    *,
    layers: int,
    hidden: int,
    heads: int = 1,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn: int | None = None,
    vocab: int = 32000,
    seq: int = 4096,
    mixers: str = "*",
    feeds: str = "d",
    norm: str = "rmsnorm",
    norms: str = "before",
    norm_bias: bool = True,
    activation: str = "swiglu",
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    head_bias: bool = False,
    embedding_norm: bool = False,
    qk: str = "none",
    gated_attention: bool = False,
    sinks: bool = False,
    rope_fraction: float = 1.0,
    window: int = 0,
    tied: bool = False,
    experts: int = 0,
    top_k: int = 0,
    expert_ffn: int = 0,
    shared_ffn: int = 0,
    shared_gate: bool = False,
    latent: int = 0,
    router: str = "softmax",
    state: int = 0,
    state_inner: int | None = None,
    state_heads: int = 0,
    state_groups: int = 1,
    state_rank: int = 0,
    state_norm_groups: int | None = None,
    state_bias: bool = False,
    conv_bias: bool = True,
    taps: int = 4,
    chunk: int = 256,
    linear_heads: int = 0,
    linear_value_heads: int = 0,
    linear_dim: int = 128,
    linear_value_dim: int = 128,
    idle: int = 0,
    mtp: int = 0,
) -> Traceable:
    """Decoders of many kinds: Gemma 2 and 3, Llama 4, OLMo 2, GLM 4, Falcon, Cohere, Mamba, Nemotron-H, Qwen3-Next.

    ``mixers`` and ``feeds`` have a letter per layer (:mod:`traincast.graph.zoo.language.decoder`) and are repeated.
    ``mtp`` is the number of further tokens that are predicted (:mod:`.further`).
    """
    check_depths(_NAME, mtp)
    flags = {"norm_bias": norm_bias, "qkv_bias": qkv_bias, "out_bias": out_bias, "mlp_bias": mlp_bias, "tied": tied}
    flags |= {"head_bias": head_bias, "embedding_norm": embedding_norm, "gated_attention": gated_attention}
    flags |= {"shared_gate": shared_gate, "state_bias": state_bias, "conv_bias": conv_bias, "sinks": sinks}
    words = {"norm": norm, "norms": norms, "activation": activation, "qk": qk, "router": router}
    sizes = {"layers": layers, "vocab": vocab, "window": window, "latent": latent, "state": state, "taps": taps}
    _check({**flags, **words}, sizes | {"chunk": chunk, "linear_heads": linear_heads}, idle=idle)
    layer = layer_sizes(
        _NAME, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ffn=ffn, seq=seq, rope=rope_fraction
    )
    layer = replace(layer, norm=norm, norm_bias=norm_bias, activation=activation, window=window, sinks=sinks)
    layer = replace(layer, qkv_bias=qkv_bias, out_bias=out_bias, mlp_bias=mlp_bias)
    if experts:
        mixture = expert_sizes(_NAME, count=experts, top_k=top_k, ffn=expert_ffn, shared_ffn=shared_ffn, router=router)
        layer = replace(layer, experts=mixture)
    config = DecoderConfig(layers=layers, layer=layer, mixers=str(mixers), feeds=str(feeds), vocab=vocab, tied=tied)
    config = replace(config, norms=norms, qk=qk, gated_attention=gated_attention, shared_gate=shared_gate)
    config = replace(config, latent=latent, head_bias=head_bias, embedding_norm=embedding_norm, idle=idle)
    config = replace(config, mtp=mtp)
    if state:
        space = StateSpace(inner=2 * hidden if state_inner is None else state_inner, state=state, heads=state_heads)
        space = replace(space, groups=state_groups, taps=taps, chunk=chunk, rank=state_rank or -(-hidden // 16))
        space = replace(space, bias=state_bias, conv_bias=conv_bias)
        config = replace(config, state=_checked(space, state_norm_groups))
    if linear_heads:
        delta = DeltaNet(key_heads=linear_heads, value_heads=linear_value_heads or linear_heads, taps=taps)
        delta = replace(delta, key_dim=linear_dim, value_dim=linear_value_dim)
        config = replace(config, delta=_checked_delta(delta))
    return traceable_decoder(config)


def _check(choices: Mapping[str, object], sizes: Mapping[str, object], *, idle: int) -> None:
    """Raise ``RequestError`` for words, flags and sizes that the family does not know."""
    check_choices(_NAME, choices)
    check_sizes(_NAME, sizes, may_be_zero=_MAY_BE_ZERO)
    if type(idle) is not int or not 0 <= idle <= _MOST_IDLE:
        raise RequestError(f"{_NAME}: idle={idle!r} must be a whole number from 0 to {_MOST_IDLE:,}")


def _checked(space: StateSpace, norm_groups: int | None) -> StateSpace:
    """Returns ``space`` with the groups of its norm, by default all; ``RequestError`` if sizes do not divide."""
    space = replace(space, norm_groups=space.groups if norm_groups is None else norm_groups)
    sizes = {"state_inner": space.inner, "state_groups": space.groups, "state_norm_groups": space.norm_groups}
    check_sizes(_NAME, sizes | {"state_heads": space.heads, "state_rank": space.rank}, may_be_zero=_MAY_BE_ZERO)
    pairs = (
        ("state_inner", space.inner, "state_heads", space.heads or 1),
        ("state_heads", space.heads or space.groups, "state_groups", space.groups),
        ("state_inner", space.inner, "state_norm_groups", space.norm_groups),
    )
    for whole, size, part, count in pairs:
        check_divides(_NAME, whole=(whole, size), parts=(part, count), remedy="heads and groups are of equal size")
    return space


def _checked_delta(delta: DeltaNet) -> DeltaNet:
    """Returns ``delta``, or raises ``RequestError`` for heads of values that heads of keys cannot share."""
    sizes = {"linear_dim": delta.key_dim, "linear_value_dim": delta.value_dim, "linear_value_heads": delta.value_heads}
    check_sizes(_NAME, sizes)
    remedy = "every key head must serve equally many value heads"
    whole, parts = ("linear_value_heads", delta.value_heads), ("linear_heads", delta.key_heads)
    check_divides(_NAME, whole=whole, parts=parts, remedy=remedy)
    return delta
