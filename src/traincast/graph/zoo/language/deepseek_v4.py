"""DeepSeek-V4: attention to a window and to compressed tokens, residual streams, experts in every layer.

DeepSeek-AI 2026, "DeepSeek-V4"; shapes as in ``transformers``. Layers that route by a hash of the token
are built like the others: they look their experts up in place of choosing them.

Residual streams are mixed by learned weights in place of one residual: manifold-constrained hyper-connections (Xie et
al. 2025, arXiv:2512.24880). A layer reads a weighted sum of the streams, and adds its output to streams that were mixed
by a doubly stochastic matrix. Training runs each as one fused kernel, so each is an operator here:

* ``traincast::stream_weights``: the weights of each token, Sinkhorn's iterations included;
* ``traincast::stream_collapse``: the weighted sum;
* ``traincast::stream_expand``: the mixed streams plus the weighted output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn

from traincast.errors import RequestError
from traincast.graph.zoo.language.transformer import expert_sizes, layer_sizes
from traincast.graph.zoo.parts.further import FurtherToken, check_depths, sum_of_losses
from traincast.graph.zoo.parts.indexer import IndexSizes, best_keys
from traincast.graph.zoo.parts.kernels import rms_norm
from traincast.graph.zoo.parts.layers import (
    LayerConfig,
    MoE,
    RMSNorm,
    Rotary,
    StackConfig,
    attend,
    check_divides,
    check_sizes,
    share_tables,
    token_ids,
)
from traincast.graph.zoo.parts.mixers import UnitNorm
from traincast.graph.zoo.parts.scans import differentiable
from traincast.graph.zoo.traceable import Traceable

_ROUNDS: Final = 20
_EPS: Final = 1e-6


def _stream_weights(mixes: Tensor, base: Tensor, scale: Tensor) -> Tensor:
    count = round((mixes.shape[-1] + 1) ** 0.5) - 1
    sizes = [count, count, count * count]
    factors = torch.cat([factor.expand(size) for factor, size in zip(scale, sizes, strict=True)])
    read, write, mix = (mixes * factors + base).split(sizes, dim=-1)
    square = mix.unflatten(-1, (count, count)).softmax(dim=-1) + _EPS
    for _ in range(_ROUNDS):
        square = square / (square.sum(dim=-2, keepdim=True) + _EPS)
        square = square / (square.sum(dim=-1, keepdim=True) + _EPS)
    return torch.cat((read.sigmoid(), 2 * write.sigmoid(), square.flatten(-2)), dim=-1)


def _stream_collapse(streams: Tensor, weights: Tensor) -> Tensor:
    return (streams * weights[..., None]).sum(dim=2)


def _stream_expand(streams: Tensor, out: Tensor, write: Tensor, mix: Tensor) -> Tensor:
    square = mix.unflatten(-1, (write.shape[-1], write.shape[-1]))
    return square.mT @ streams + write[..., None] * out[:, :, None]


stream_weights = differentiable("stream_weights", _stream_weights, like=0)
"""Weights of each token: mixes and result [batch, seq, n + n + n·n], base [n + n + n·n], scale [3]."""
stream_collapse = differentiable(
    "stream_collapse",
    _stream_collapse,
    like=lambda streams, _: streams.new_empty((*streams.shape[:2], streams.shape[3])),
)
"""The weighted sum [batch, seq, hidden] of streams [batch, seq, n, hidden] by weights [batch, seq, n]."""
stream_expand = differentiable("stream_expand", _stream_expand, like=0)
"""Streams mixed by ``mix`` [batch, seq, n·n], plus ``write`` [batch, seq, n] times ``out`` [batch, seq, hidden]."""


class HyperConnection(nn.Module):  # type: ignore[misc]
    """Reads ``count`` streams into one input of a layer, and writes the layer's output back to them.

    The weights are made by a norm over all streams and one projection (Xie et al. 2025, equations 7 to 9).
    """

    def __init__(self, hidden: int, count: int) -> None:
        super().__init__()
        self.count = count
        weights = (2 + count) * count
        self.register_buffer("ones", torch.ones(count * hidden), persistent=False)
        self.mixes = nn.Linear(count * hidden, weights, bias=False)
        self.base = nn.Parameter(torch.zeros(weights))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The input of the layer [batch, seq, hidden], and the weights that write its output and mix the streams."""
        mixes = self.mixes(rms_norm(streams.flatten(2), self.ones, _EPS))
        weights = stream_weights(mixes, self.base, self.scale)
        read, write, mix = weights.split([self.count, self.count, self.count**2], dim=-1)
        return stream_collapse(streams, read), write, mix


class LastConnection(nn.Module):  # type: ignore[misc]
    """Reads the streams behind the last layer into one."""

    def __init__(self, hidden: int, count: int) -> None:
        super().__init__()
        self.register_buffer("ones", torch.ones(count * hidden), persistent=False)
        self.mixes = nn.Linear(count * hidden, count, bias=False)
        self.base = nn.Parameter(torch.zeros(count))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, streams: Tensor) -> Tensor:
        """``streams`` [batch, seq, n, hidden] to [batch, seq, hidden]."""
        mixes = self.mixes(rms_norm(streams.flatten(2), self.ones, _EPS))
        return stream_collapse(streams, torch.sigmoid(mixes * self.scale + self.base))


_NAME: Final = "deepseek-v4"
MIXERS: Final[Mapping[str, str]] = {
    "w": "attention within a window",
    "c": "a window and the best compressed tokens",
    "h": "a window and all heavily compressed tokens",
}
"""The letters of ``mixers``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseConfig:
    """What the attention of a layer needs besides the sizes of the layer.

    One compressed token stands for ``every`` tokens (0: there are none); an ``index`` chooses among them.
    """

    q_rank: int
    rope_dim: int
    out_groups: int
    out_rank: int
    every: int = 0
    index: IndexSizes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig(StackConfig):
    """A model on ``streams`` residual streams; ``kinds`` has the attention of each layer."""

    kinds: tuple[SparseConfig, ...]
    streams: int


def keys_seen(seq: int, *, window: int, every: int = 0, top_k: int = 0) -> int:
    """The window of plain causal attention that computes as many scores as this sparse one.

    A query sees the last ``window`` keys, and of the tokens that stand for ``every`` tokens before it at most ``top_k``
    (0: all). Cost models know causal attention within a window, whose time depends on the number of scores.

    >>> keys_seen(4096, window=128), keys_seen(4096, window=128, every=4, top_k=512)
    (128, 542)
    """
    window = min(window, seq)
    scores = window * seq - window * (window - 1) / 2
    if every:
        scores += sum(min((i + 1) // every, top_k or seq) for i in range(seq))
    # W·seq - W·(W - 1) / 2 = scores
    root = math.sqrt(max(0.0, (2 * seq + 1) ** 2 - 8 * scores))
    return min(seq, max(1, round((2 * seq + 1 - root) / 2)))


class Compressor(nn.Module):  # type: ignore[misc]
    """Makes one key of every few tokens: their sum, weighted by a softmax of gates for each channel.

    An ``overlapping`` one weighs the tokens of the group before as well, by projections of their own.
    """

    def __init__(self, hidden: int, *, dim: int, every: int, overlapping: bool) -> None:
        super().__init__()
        self.every, self.dim, self.overlapping = every, dim, overlapping
        width = 2 * dim if overlapping else dim
        self.both = nn.Linear(hidden, 2 * width, bias=False)
        self.bias = nn.Parameter(torch.zeros(every, width))
        self.norm = RMSNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [batch, seq, hidden] to [batch, seq / every, dim]; tokens that fill no group are left out."""
        groups = x.shape[1] // self.every
        values, gates = self.both(x[:, : groups * self.every]).unflatten(1, (groups, self.every)).chunk(2, dim=-1)
        gates = gates + self.bias
        if self.overlapping:
            values, gates = (self._with_previous(t) for t in (values, gates))
        return self.norm((values * gates.softmax(dim=2)).sum(dim=2))

    def _with_previous(self, x: Tensor) -> Tensor:
        """Put the first half of each token's channels into the next group: [batch, groups, 2 · every, dim]."""
        before, now = x.split(self.dim, dim=-1)
        return torch.cat((before.roll(1, dims=1), now), dim=2)


class CompressedIndexer(nn.Module):  # type: ignore[misc]
    """Chooses the best compressed tokens for each query, by keys that are compressed for it."""

    def __init__(self, hidden: int, *, q_rank: int, every: int, sizes: IndexSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.keys = Compressor(hidden, dim=sizes.dim, every=every, overlapping=True)
        self.queries = nn.Linear(q_rank, sizes.heads * sizes.dim, bias=False)
        self.weights = nn.Linear(hidden, sizes.heads, bias=False)

    def forward(self, x: Tensor, latent: Tensor, rotary: nn.Module) -> Tensor:
        """The numbers of the compressed tokens that each query keeps, [batch, seq, top k]."""
        with torch.no_grad():
            queries = self.queries(latent).view(*latent.shape[:2], self.sizes.heads, self.sizes.dim)
            return best_keys(rotary(queries), self.keys(x), self.weights(x), self.sizes.top_k)


class SparseAttention(nn.Module):  # type: ignore[misc]
    """Many query heads that share one head of keys, which are the values too: a window, and compressed tokens."""

    def __init__(self, config: LayerConfig, sparse: SparseConfig) -> None:
        super().__init__()
        c, s = config, sparse
        self.heads, self.dim, self.groups, self.causal = c.heads, c.head_dim, s.out_groups, True
        top_k = 0 if s.index is None else s.index.top_k
        self.window = keys_seen(c.seq, window=c.window, every=s.every, top_k=top_k)
        self.q_down = nn.Linear(c.hidden, s.q_rank, bias=False)
        self.q_norm = RMSNorm(s.q_rank)
        self.q_up = nn.Linear(s.q_rank, c.heads * c.head_dim, bias=False)
        self.unit = UnitNorm(c.head_dim)
        self.kv = nn.Linear(c.hidden, c.head_dim, bias=False)
        self.kv_norm = RMSNorm(c.head_dim)
        self.rotary = Rotary(size=s.rope_dim, seq=c.seq)
        self.compressor = self.indexer = None
        if s.every:
            self.compressor = Compressor(c.hidden, dim=c.head_dim, every=s.every, overlapping=s.index is not None)
        if s.index is not None:
            self.indexer = CompressedIndexer(c.hidden, q_rank=s.q_rank, every=s.every, sizes=s.index)
        self.sinks = nn.Parameter(torch.zeros(c.heads))
        self.out_down = nn.Parameter(torch.empty(s.out_groups, c.heads * c.head_dim // s.out_groups, s.out_rank))
        self.out = nn.Linear(s.out_groups * s.out_rank, c.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend within ``x`` [batch, seq, hidden]."""
        batch, seq, _ = x.shape
        latent = self.q_norm(self.q_down(x))
        q = self.rotary(self.unit(self.q_up(latent).view(batch, seq, self.heads, self.dim)))
        kv = self.rotary(self.kv_norm(self.kv(x))[:, :, None])
        if self.indexer is not None:
            self.indexer(x, latent, self.rotary)
        if self.compressor is not None:
            kv = torch.cat((kv, self.compressor(x)[:, :, None]), dim=1)
        mixed = self.rotary(attend(q, kv, kv, causal=self.causal, grouped=True, sinks=self.sinks))
        rows = mixed.reshape(batch * seq, self.groups, -1).transpose(0, 1)
        return self.out(torch.bmm(rows, self.out_down).transpose(0, 1).reshape(batch, seq, -1))


class StreamLayer(nn.Module):  # type: ignore[misc]
    """Attention and experts, each between the reading and the writing of residual streams."""

    is_layer = True

    def __init__(self, config: LayerConfig, sparse: SparseConfig, streams: int) -> None:
        super().__init__()
        assert config.experts is not None, "every layer has experts"
        self.connection1, self.connection2 = (HyperConnection(config.hidden, streams) for _ in range(2))
        self.norm1, self.norm2 = RMSNorm(config.hidden), RMSNorm(config.hidden)
        self.attention = SparseAttention(config, sparse)
        self.mlp = MoE(hidden=config.hidden, experts=config.experts, activation=config.activation)

    def forward(self, streams: Tensor) -> Tensor:
        """Map ``streams`` [batch, seq, n, hidden] to the same shape."""
        x, write, mix = self.connection1(streams)
        streams = stream_expand(streams, self.attention(self.norm1(x)), write, mix)
        x, write, mix = self.connection2(streams)
        return stream_expand(streams, self.mlp(self.norm2(x)), write, mix)


class DeepseekV4(nn.Module):  # type: ignore[misc]
    """Token embedding, layers on residual streams, a norm and the logits of the next token."""

    def __init__(self, config: StreamConfig) -> None:
        super().__init__()
        layer, self.streams = config.layer, config.streams
        self.tokens = nn.Embedding(config.vocab, layer.hidden)
        self.layers = nn.ModuleList(StreamLayer(layer, kind, config.streams) for kind in config.kinds)
        self.last = LastConnection(layer.hidden, config.streams)
        self.norm = RMSNorm(layer.hidden)
        self.logits = nn.Linear(layer.hidden, config.vocab, bias=False)
        self.further = nn.ModuleList(
            FurtherToken(
                layer.hidden,
                [RMSNorm(layer.hidden) for _ in range(3)],
                [StreamLayer(layer, config.kinds[0], config.streams)],
            )
            for _ in range(config.mtp)
        )
        share_tables(self)

    def forward(self, ids: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Logits [batch, seq, vocab] for token ids [batch, seq]; with further tokens, those of each."""
        x = self.tokens(ids)[:, :, None].expand(-1, -1, self.streams, -1).contiguous()
        for layer in self.layers:
            x = layer(x)
        if not len(self.further):
            return self.logits(self.norm(self.last(x)))
        every = [self.logits(self.norm(self.last(x)))]
        for further in self.further:
            x = further(x, self.tokens(ids)[:, :, None].expand(-1, -1, self.streams, -1))
            every.append(self.logits(further.norm(self.last(x))))
        return tuple(every)


def deepseek_v4(
    *,
    layers: int,
    hidden: int,
    heads: int,
    experts: int,
    top_k: int,
    expert_ffn: int,
    head_dim: int = 512,
    mixers: str = "wch",
    q_lora: int = 1024,
    rope_dim: int = 64,
    out_groups: int = 8,
    out_lora: int = 1024,
    window: int = 128,
    every: int = 4,
    heavily: int = 128,
    index_heads: int = 64,
    index_dim: int = 128,
    index_top_k: int = 512,
    shared_experts: int = 1,
    streams: int = 4,
    vocab: int = 129280,
    seq: int = 4096,
    mtp: int = 0,
) -> Traceable:
    """DeepSeek-V4 (DeepSeek-AI 2026).

    ``mixers`` has a letter per layer and is repeated: ``w`` attends within a window, ``c`` also to the best tokens that
    stand for ``every`` tokens, ``h`` also to all that stand for ``heavily`` many. ``mtp`` is the number of further
    tokens that are predicted (:mod:`traincast.graph.zoo.parts.further`), with a layer like the first one each.
    """
    check_depths(_NAME, mtp)
    sizes = {"layers": layers, "vocab": vocab, "window": window, "q_lora": q_lora, "rope_dim": rope_dim}
    sizes |= {"out_groups": out_groups, "out_lora": out_lora, "every": every, "heavily": heavily, "streams": streams}
    sizes |= {"index_heads": index_heads, "index_dim": index_dim, "index_top_k": index_top_k}
    check_sizes(_NAME, sizes | {"shared_experts": shared_experts}, may_be_zero=frozenset({"shared_experts"}))
    layer = layer_sizes(_NAME, hidden=hidden, heads=heads, kv_heads=1, head_dim=head_dim, seq=seq)
    _check(str(mixers), rope_dim=rope_dim, narrowest=min(head_dim, index_dim))
    remedy = "every group has equally many heads"
    check_divides(_NAME, whole=("heads", heads), parts=("out_groups", out_groups), remedy=remedy)
    shared = shared_experts * expert_ffn
    mixture = expert_sizes(_NAME, count=experts, top_k=top_k, ffn=expert_ffn, shared_ffn=shared, router="sigmoid")
    layer = replace(layer, norm="rmsnorm", activation="swiglu", window=window, experts=mixture)
    plain = SparseConfig(q_rank=q_lora, rope_dim=rope_dim, out_groups=out_groups, out_rank=out_lora)
    index = IndexSizes(heads=index_heads, dim=index_dim, top_k=index_top_k)
    kinds = {"w": plain, "c": replace(plain, every=every, index=index), "h": replace(plain, every=heavily)}
    each = tuple(kinds[str(mixers)[i % len(str(mixers))]] for i in range(layers))
    config = StreamConfig(layers=layers, layer=layer, vocab=vocab, mtp=mtp, kinds=each, streams=streams)
    with torch.device("meta"):
        module = DeepseekV4(config)
    return Traceable(
        module=module, inputs=lambda batch: (token_ids(module, batch, seq),), loss=sum_of_losses, tokens_per_sample=seq
    )


def _check(mixers: str, *, rope_dim: int, narrowest: int) -> None:
    """Raise ``RequestError`` for letters that are not known, and for more rotary elements than a head has."""
    if not mixers or set(mixers) - set(MIXERS):
        letters = ", ".join(f"{letter} ({what})" for letter, what in MIXERS.items())
        raise RequestError(f"{_NAME}: mixers={mixers[:80]!r} must be made of {letters}")
    if rope_dim % 2 or rope_dim > narrowest:
        raise RequestError(f"{_NAME}: rope_dim={rope_dim} must be even and at most {narrowest}, the width of a head")
