"""Decoders whose layers differ: attention with and without windows, state spaces, linear attention, experts.

``mixers`` has a letter per layer for what mixes its tokens, ``feeds`` one for what follows; both are repeated up to
the number of layers. So ``mixers="LLL*"`` is Qwen3-Next's order of three gated delta rules and one attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import nn

from traincast.errors import RequestError
from traincast.graph.zoo.language.transformer import expert_sizes, layer_sizes
from traincast.graph.zoo.parts.further import FurtherToken, check_depths, sum_of_losses
from traincast.graph.zoo.parts.layers import (
    MLP,
    Experts,
    MoE,
    StackConfig,
    check_choices,
    check_divides,
    check_sizes,
    norm,
    share_tables,
    token_ids,
)
from traincast.graph.zoo.parts.mixers import DeltaNet, GatedDelta, Mamba, Mamba2, OptionalAttention, StateSpace
from traincast.graph.zoo.traceable import Traceable

MIXERS: Final[Mapping[str, str]] = {
    "*": "attention",
    "w": "attention within a window",
    "n": "attention without rotary positions",
    "M": "a state space (Mamba or Mamba-2)",
    "L": "a gated delta rule",
    "-": "nothing",
}
"""The letters of ``mixers``."""
ATTENTIONS: Final = frozenset("*wn")
"""Those of them that attend."""
FEEDS: Final[Mapping[str, str]] = {"d": "an MLP", "e": "experts", "-": "nothing"}
"""The letters of ``feeds``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(StackConfig):
    """A decoder: the sizes that its layers share, and what each layer is.

    ``norms`` stand ``before`` each part (GPT-2), ``after`` it (OLMo 2), ``around`` it (Gemma 2), or before two parts
    that run in ``parallel`` on their own norms (GPT-NeoX) or on a ``shared`` one (Falcon 7B). ``latent`` is the width
    that experts work in (0: that of the model). ``idle`` parameters are held and not trained on text: a vision tower.
    """

    mixers: str
    feeds: str
    norms: str = "before"
    qk: str = "none"
    gated_attention: bool = False
    shared_gate: bool = False
    latent: int = 0
    head_bias: bool = False
    embedding_norm: bool = False
    state: StateSpace | None = None
    delta: DeltaNet | None = None
    idle: int = 0

    def letters(self) -> list[tuple[str, str]]:
        """Mixer and feed of each layer, in order."""
        return [(self.mixers[i % len(self.mixers)], self.feeds[i % len(self.feeds)]) for i in range(self.layers)]

    def further_letters(self) -> list[tuple[str, str]]:
        """Mixer and feed of each layer that predicts a further token: like the last layer with attention.

        If that layer has no feed, the last layer with a feed follows.
        """
        every = self.letters()
        attention = next((pair for pair in reversed(every) if pair[0] in ATTENTIONS), every[-1])
        feeds = [pair for pair in reversed(every) if pair[1] != "-"]
        return [attention, feeds[0]] if attention[1] == "-" and feeds else [attention]

    def check(self) -> None:
        """Raise ``RequestError`` for letters that are not known or that lack their sizes."""
        for name, text, known in (("mixers", self.mixers, MIXERS), ("feeds", self.feeds, FEEDS)):
            unknown = sorted(set(text) - set(known))
            if unknown or not text:
                letters = ", ".join(f"{letter} ({what})" for letter, what in known.items())
                raise RequestError(f"decoder: {name}={text[:80]!r} must be made of {letters}")
        if any(pair == ("-", "-") for pair in self.letters()):
            raise RequestError(
                f"decoder: mixers={self.mixers[:80]!r} and feeds={self.feeds[:80]!r} leave a layer empty"
            )
        needs = (
            ("M", self.mixers, "state", self.state),
            ("L", self.mixers, "linear_heads", self.delta),
            ("e", self.feeds, "experts", self.layer.experts),
        )
        for letter, text, name, given in needs:
            if letter in text and given is None:
                raise RequestError(f"decoder: layers of kind {letter!r} need {name}")


class MixtureOfExperts(MoE):
    """Experts that may work in a ``latent`` width, beside a shared MLP that may have a gate (Qwen, Nemotron 3)."""

    def __init__(self, *, hidden: int, experts: Experts, activation: str, latent: int, shared_gate: bool) -> None:
        super().__init__(hidden=latent or hidden, experts=replace(experts, shared_ffn=0), activation=activation)
        self.router = nn.Linear(hidden, experts.count, bias=experts.bias)
        self.into = nn.Linear(hidden, latent, bias=False) if latent else None
        self.out = nn.Linear(latent, hidden, bias=False) if latent else None
        shared = experts.shared_ffn
        self.shared = MLP(hidden=hidden, ffn=shared, activation=activation, bias=False) if shared else None
        self.gate = nn.Linear(hidden, 1, bias=False) if shared and shared_gate else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape, each token through ``top_k`` experts."""
        rows = x.reshape(-1, x.shape[-1])
        route = self._route(rows)
        mixed = self._mixed(rows if self.into is None else self.into(rows), *route)
        mixed = (mixed if self.out is None else self.out(mixed)).view(x.shape)
        if self.shared is None:
            return mixed
        shared = self.shared(x)
        return mixed + (shared if self.gate is None else torch.sigmoid(self.gate(x)) * shared)


class MixedLayer(nn.Module):  # type: ignore[misc]
    """A mixer of tokens and an MLP or experts, either of which may be missing, with residuals."""

    is_layer = True

    def __init__(self, config: DecoderConfig, mixer: str, feed: str) -> None:
        super().__init__()
        layer, self.norms = config.layer, config.norms
        self.mixer = _mixer(config, mixer)
        self.feed = _feed(config, feed)
        both = self.mixer is not None and self.feed is not None

        def make() -> nn.Module:
            return norm(layer.norm, layer.hidden, bias=layer.norm_bias)

        before, after = self.norms != "after", self.norms in ("after", "around")
        self.norm1 = make() if before else None
        self.norm2 = make() if before and both and self.norms != "shared" else None
        self.after1 = make() if after else None
        self.after2 = make() if after and both else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        if self.mixer is None or self.feed is None:
            part = self.feed if self.mixer is None else self.mixer
            return x + _normed(self.after1, _normed(part, _normed(self.norm1, x)))
        if self.norms in ("parallel", "shared"):
            first = _normed(self.norm1, x)
            return x + self.mixer(first) + self.feed(first if self.norm2 is None else self.norm2(x))
        x = x + _normed(self.after1, self.mixer(_normed(self.norm1, x)))
        return x + _normed(self.after2, self.feed(_normed(self.norm2, x)))


def _normed(module: nn.Module | None, x: torch.Tensor) -> torch.Tensor:
    return x if module is None else module(x)


def _mixer(config: DecoderConfig, letter: str) -> nn.Module | None:
    layer = config.layer
    match letter:
        case "M" if config.state is not None:
            return (Mamba2 if config.state.heads else Mamba)(layer.hidden, config.state)
        case "L" if config.delta is not None:
            return GatedDelta(layer.hidden, config.delta)
        case "-":
            return None
        case _:
            own = replace(layer, window=layer.window if letter == "w" else 0)
            own = replace(own, rope_dim=0) if letter == "n" else own
            return OptionalAttention(own, qk=config.qk, gate=config.gated_attention)


def _feed(config: DecoderConfig, letter: str) -> nn.Module | None:
    layer = config.layer
    if letter == "-":
        return None
    if letter == "e" and layer.experts is not None:
        return MixtureOfExperts(
            hidden=layer.hidden,
            experts=layer.experts,
            activation=layer.activation,
            latent=config.latent,
            shared_gate=config.shared_gate,
        )
    return MLP(hidden=layer.hidden, ffn=layer.ffn, activation=layer.activation, bias=layer.mlp_bias)


class MixedDecoder(nn.Module):  # type: ignore[misc]
    """Token embedding, layers, a norm and the logits of the next token."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        layer = config.layer
        self.tokens = nn.Embedding(config.vocab, layer.hidden)
        self.first_norm = norm(layer.norm, layer.hidden, bias=layer.norm_bias) if config.embedding_norm else None
        self.layers = nn.ModuleList(MixedLayer(config, *letters) for letters in config.letters())
        self.norm = norm(layer.norm, layer.hidden, bias=layer.norm_bias)
        self.logits = nn.Linear(layer.hidden, config.vocab, bias=config.head_bias)
        if config.tied:
            self.logits.weight = self.tokens.weight
        self.idle = nn.Parameter(torch.empty(config.idle)) if config.idle else None
        self.further = nn.ModuleList(_further(config) for _ in range(config.mtp))
        share_tables(self)

    def forward(self, ids: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Logits [batch, seq, vocab] for token ids [batch, seq]; with further tokens, those of each."""
        x = _normed(self.first_norm, self.tokens(ids))
        for layer in self.layers:
            x = layer(x)
        logits = self.logits(self.norm(x))
        if not len(self.further):
            return logits
        every = [logits]
        for further in self.further:
            x = further(x, self.tokens(ids))
            every.append(self.logits(further.norm(x)))
        return tuple(every)


def _further(config: DecoderConfig) -> FurtherToken:
    """One depth of multi-token prediction."""
    layer = config.layer
    norms = [norm(layer.norm, layer.hidden, bias=layer.norm_bias) for _ in range(3)]
    return FurtherToken(layer.hidden, norms, (MixedLayer(config, *letters) for letters in config.further_letters()))


def traceable_decoder(config: DecoderConfig) -> Traceable:
    """Build ``config`` on the ``meta`` device; letters that cannot be built are refused."""
    config.check()
    with torch.device("meta"):
        module = MixedDecoder(config)
    seq = config.layer.seq
    return Traceable(
        module=module, inputs=lambda batch: (token_ids(module, batch, seq),), loss=sum_of_losses, tokens_per_sample=seq
    )


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
    ``mtp`` is the number of further tokens that are predicted (:mod:`traincast.graph.zoo.parts.further`).
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
