"""T5 (Raffel et al. 2019, arXiv:1910.10683): an encoder and a decoder with learned relative positions."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from traincast.graph.zoo.parts.layers import (
    MLP,
    RMSNorm,
    check_choices,
    check_divides,
    check_sizes,
    cross_entropy,
    token_ids,
)
from traincast.graph.zoo.traceable import Traceable

_BUCKETS = 32
_FARTHEST = 128


class RelativeBias(nn.Module):  # type: ignore[misc]
    """A learned number per head and bucket of distance, added to the scores of every layer of a stack.

    Half of the buckets are exact distances, the other half grow logarithmically up to 128; without
    ``causal``, each direction has half of them.
    """

    def __init__(self, *, heads: int, seq: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.table = nn.Embedding(_BUCKETS, heads)
        position = torch.arange(seq)
        distance = position[:, None] - position[None, :]
        buckets = _BUCKETS if causal else _BUCKETS // 2
        offset = 0 if causal else (distance < 0).long() * buckets
        near, exact = distance.clamp(min=0) if causal else distance.abs(), buckets // 2
        scale = (buckets - exact) / math.log(_FARTHEST / exact)
        far = exact + (torch.log(near.clamp(min=1) / exact) * scale).long()
        self.register_buffer("buckets", offset + torch.where(near < exact, near, far.clamp(max=buckets - 1)))
        self.register_buffer("future", distance < 0)

    def forward(self) -> torch.Tensor:
        """The bias [1, heads, seq, seq], minus infinity where a causal stack must not look."""
        bias = self.table(self.buckets).permute(2, 0, 1)[None]
        return bias.masked_fill(self.future, float("-inf")) if self.causal else bias


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Attention with a trained bias on the scores, which no fused kernel differentiates: three operators."""

    def __init__(self, *, hidden: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(hidden, 3 * heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, hidden, bias=False)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Attend within ``x`` [batch, seq, hidden]."""
        batch, seq, _ = x.shape
        q, k, v = self.qkv(x).view(batch, seq, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT + bias).softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, self.heads * self.head_dim))


class CrossAttention(nn.Module):  # type: ignore[misc]
    """Attention from the decoder to the encoder's output, without positions."""

    def __init__(self, *, hidden: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.q = nn.Linear(hidden, heads * head_dim, bias=False)
        self.kv = nn.Linear(hidden, 2 * heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, hidden, bias=False)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Attend from ``x`` [batch, target, hidden] to ``memory`` [batch, seq, hidden]."""
        batch, seq, _ = x.shape
        q = self.q(x).view(batch, seq, self.heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(memory).view(batch, -1, 2, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, scale=1.0)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, self.heads * self.head_dim))


class Switch(nn.Module):  # type: ignore[misc]
    """Experts with a capacity, one after another (Fedus et al. 2021, arXiv:2101.03961), as Hugging Face runs them.

    Every expert takes ``capacity`` tokens of each sample; the others pass by.
    """

    def __init__(self, *, hidden: int, ffn: int, activation: str, experts: int, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(
            MLP(hidden=hidden, ffn=ffn, activation=activation, bias=False) for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        best = self.router(x).softmax(dim=-1).amax(dim=-1, keepdim=True)
        order, out = best.squeeze(-1).argsort(dim=1), x
        for i, expert in enumerate(self.experts):
            chosen = order[:, i * self.capacity : (i + 1) * self.capacity, None].expand(-1, -1, x.shape[-1])
            out = out.scatter(1, chosen, expert(x.gather(1, chosen)))
        return best * out


class EncoderLayer(nn.Module):  # type: ignore[misc]
    """Self-attention and MLP, each after an RMS norm."""

    def __init__(
        self, *, hidden: int, heads: int, head_dim: int, ffn: int, activation: str, sparse: tuple[int, int] | None
    ) -> None:
        super().__init__()
        self.norm1 = RMSNorm(hidden)
        self.attention = SelfAttention(hidden=hidden, heads=heads, head_dim=head_dim)
        self.norm2 = RMSNorm(hidden)
        self.mlp = (
            MLP(hidden=hidden, ffn=ffn, activation=activation, bias=False)
            if sparse is None
            else Switch(hidden=hidden, ffn=ffn, activation=activation, experts=sparse[0], capacity=sparse[1])
        )

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        x = x + self.attention(self.norm1(x), bias)
        return x + self.mlp(self.norm2(x))


class DecoderLayer(nn.Module):  # type: ignore[misc]
    """Self-attention, attention to the encoder, and MLP, each after an RMS norm."""

    def __init__(
        self, *, hidden: int, heads: int, head_dim: int, ffn: int, activation: str, sparse: tuple[int, int] | None
    ) -> None:
        super().__init__()
        self.norm1 = RMSNorm(hidden)
        self.attention = SelfAttention(hidden=hidden, heads=heads, head_dim=head_dim)
        self.norm2 = RMSNorm(hidden)
        self.cross = CrossAttention(hidden=hidden, heads=heads, head_dim=head_dim)
        self.norm3 = RMSNorm(hidden)
        self.mlp = (
            MLP(hidden=hidden, ffn=ffn, activation=activation, bias=False)
            if sparse is None
            else Switch(hidden=hidden, ffn=ffn, activation=activation, experts=sparse[0], capacity=sparse[1])
        )

    def forward(self, x: torch.Tensor, bias: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, target, hidden] to the same shape."""
        x = x + self.attention(self.norm1(x), bias)
        x = x + self.cross(self.norm2(x), memory)
        return x + self.mlp(self.norm3(x))


class T5(nn.Module):  # type: ignore[misc]
    """Encoder layers in ``encoder``, decoder layers in ``decoder``, one embedding for both."""

    def __init__(
        self,
        *,
        layers: int,
        decoder_layers: int,
        hidden: int,
        heads: int,
        head_dim: int,
        ffn: int,
        vocab: int,
        seq: int,
        target_seq: int,
        activation: str,
        tied: bool,
        sparse: tuple[int, int] | None,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.encoder_bias = RelativeBias(heads=heads, seq=seq, causal=False)
        self.encoder = nn.ModuleList(
            EncoderLayer(
                hidden=hidden,
                heads=heads,
                head_dim=head_dim,
                ffn=ffn,
                activation=activation,
                sparse=sparse if i % 2 else None,
            )
            for i in range(layers)
        )
        self.encoder_norm = RMSNorm(hidden)
        self.decoder_bias = RelativeBias(heads=heads, seq=target_seq, causal=True)
        self.decoder = nn.ModuleList(
            DecoderLayer(
                hidden=hidden,
                heads=heads,
                head_dim=head_dim,
                ffn=ffn,
                activation=activation,
                sparse=sparse if i % 2 else None,
            )
            for i in range(decoder_layers)
        )
        self.decoder_norm = RMSNorm(hidden)
        self.logits = None if tied else nn.Linear(hidden, vocab, bias=False)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Logits [batch, target, vocab] for ``source`` [batch, seq] and ``target`` [batch, target]."""
        memory, bias = self.embedding(source), self.encoder_bias()
        for layer in self.encoder:
            memory = layer(memory, bias)
        memory = self.encoder_norm(memory)
        x, bias = self.embedding(target), self.decoder_bias()
        for layer in self.decoder:
            x = layer(x, bias, memory)
        x = self.decoder_norm(x)
        if self.logits is not None:
            return self.logits(x)
        return functional.linear(x * x.shape[-1] ** -0.5, self.embedding.weight)


def t5(
    *,
    layers: int,
    hidden: int,
    heads: int,
    decoder_layers: int | None = None,
    head_dim: int | None = None,
    ffn: int | None = None,
    vocab: int = 32128,
    seq: int = 512,
    target_seq: int | None = None,
    activation: str = "relu",
    tied: bool = True,
    experts: int = 0,
    capacity: int = 64,
) -> Traceable:
    """T5; ``target_seq`` defaults to 114 of 512, the lengths of its span-corruption pre-training."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "seq": seq}
    optional = {"decoder_layers": decoder_layers, "head_dim": head_dim, "ffn": ffn, "target_seq": target_seq}
    check_sizes("t5", sizes | {name: size for name, size in optional.items() if size is not None})
    check_choices("t5", {"activation": activation, "tied": tied})
    if head_dim is None:
        remedy = "choose heads that divide hidden, or give head_dim"
        check_divides("t5", whole=("hidden", hidden), parts=("heads", heads), remedy=remedy)
    targets = max(1, seq * 114 // 512) if target_seq is None else target_seq
    with torch.device("meta"):
        module = T5(
            layers=layers,
            decoder_layers=layers if decoder_layers is None else decoder_layers,
            hidden=hidden,
            heads=heads,
            head_dim=hidden // heads if head_dim is None else head_dim,
            ffn=4 * hidden if ffn is None else ffn,
            vocab=vocab,
            seq=seq,
            target_seq=targets,
            activation=activation,
            tied=tied,
            sparse=(experts, capacity) if experts else None,
        )

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return token_ids(module, batch, seq), token_ids(module, batch, targets)

    return Traceable(module=module, inputs=inputs, loss=cross_entropy, tokens_per_sample=seq)
