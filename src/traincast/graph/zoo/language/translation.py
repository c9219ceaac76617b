"""The translation Transformer (Vaswani et al. 2017, arXiv:1706.03762), and its variant with average attention."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import UnknownNameError
from traincast.graph.zoo.parts.layers import (
    MLP,
    Attention,
    LayerConfig,
    check_divides,
    check_sizes,
    cross_entropy,
    token_ids,
)
from traincast.graph.zoo.traceable import Traceable

DECODERS: Final = ("attention", "average")


class MemoryAttention(nn.Module):  # type: ignore[misc]
    """Attention of one sequence to another, of any width (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, hidden: int, heads: int, *, memory: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(hidden, hidden)
        self.kv = nn.Linear(hidden if memory is None else memory, 2 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """``x`` [batch, queries, hidden] attends to ``memory`` [batch, keys, width]."""
        q = self.q(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.kv(memory).chunk(2, dim=2))
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class AverageAttention(nn.Module):  # type: ignore[misc]
    """The average of all inputs so far, an MLP on it, and a gate (Zhang et al. 2018, arXiv:1805.00631)."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.mlp = MLP(hidden=hidden, ffn=ffn, activation="relu", bias=True)
        self.gate = nn.Linear(2 * hidden, 2 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        steps = torch.ones(x.shape[1], 1, dtype=x.dtype, device=x.device).cumsum(dim=0)
        average = self.mlp(x.cumsum(dim=1) / steps)
        keep, forget = torch.sigmoid(self.gate(torch.cat([x, average], dim=2))).chunk(2, dim=2)
        return keep * x + forget * average


class SeqLayer(nn.Module):  # type: ignore[misc]
    """One layer of encoder or decoder, normed before each part; a decoder's attends to the encoder as well."""

    def __init__(self, config: LayerConfig, *, crosses: bool, decoder: str) -> None:
        super().__init__()
        c = config
        self.norm1 = nn.LayerNorm(c.hidden)
        self.attention = AverageAttention(c.hidden, c.ffn) if crosses and decoder == "average" else Attention(c)
        self.norm2 = nn.LayerNorm(c.hidden) if crosses else None
        self.cross = MemoryAttention(c.hidden, c.heads) if crosses else None
        self.norm3 = nn.LayerNorm(c.hidden)
        self.mlp = MLP(hidden=c.hidden, ffn=c.ffn, activation=c.activation, bias=True)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        if self.norm2 is not None and self.cross is not None and memory is not None:
            x = x + self.dropout(self.cross(self.norm2(x), memory))
        return x + self.dropout(self.mlp(self.norm3(x)))


def seq_config(*, hidden: int, heads: int, ffn: int, seq: int, causal: bool, dropout: float = 0.1) -> LayerConfig:
    """The sizes of a layer with biases and ReLU."""
    return LayerConfig(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
        seq=seq,
        activation="relu",
        causal=causal,
        dropout=dropout,
    )


class Translator(nn.Module):  # type: ignore[misc]
    """Encoder and decoder with one embedding for both languages and for the logits."""

    def __init__(self, encoder: LayerConfig, target: LayerConfig, *, layers: int, vocab: int, decoder: str) -> None:
        super().__init__()
        hidden = encoder.hidden
        self.embedding = nn.Embedding(vocab, hidden)
        self.register_buffer("positions", torch.empty(max(encoder.seq, target.seq), hidden), persistent=False)
        self.dropout = nn.Dropout(encoder.dropout)
        self.encoder = nn.ModuleList(SeqLayer(encoder, crosses=False, decoder=decoder) for _ in range(layers))
        self.encoder_norm = nn.LayerNorm(hidden)
        self.decoder = nn.ModuleList(SeqLayer(target, crosses=True, decoder=decoder) for _ in range(layers))
        self.decoder_norm = nn.LayerNorm(hidden)

    def _embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        return self.dropout(x * x.shape[-1] ** 0.5 + self.positions[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits [batch, target, vocab] for ``source`` [batch, seq] and ``target`` [batch, target]."""
        memory = self._embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        x = self._embed(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return functional.linear(self.decoder_norm(x), self.embedding.weight)


def transformer(
    *,
    layers: int = 6,
    hidden: int = 512,
    heads: int = 8,
    ffn: int = 2048,
    vocab: int = 32000,
    seq: int = 50,
    target_seq: int | None = None,
    decoder: str = "attention",
) -> Traceable:
    """The base Transformer; ``decoder`` average replaces its causal attention by averages (AAN)."""
    targets = seq if target_seq is None else target_seq
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "vocab": vocab, "seq": seq}
    check_sizes("transformer", sizes | {"target_seq": targets})
    remedy = "choose heads that divide hidden"
    check_divides("transformer", whole=("hidden", hidden), parts=("heads", heads), remedy=remedy)
    if decoder not in DECODERS:
        raise UnknownNameError("decoder of transformer", decoder, DECODERS)
    one = seq_config(hidden=hidden, heads=heads, ffn=ffn, seq=seq, causal=False)
    two = seq_config(hidden=hidden, heads=heads, ffn=ffn, seq=targets, causal=True)
    with torch.device("meta"):
        module = Translator(one, two, layers=layers, vocab=vocab, decoder=decoder)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return token_ids(module, batch, seq), token_ids(module, batch, targets)

    return Traceable(module=module, inputs=inputs, loss=cross_entropy, tokens_per_sample=seq, optimizer="adam")
