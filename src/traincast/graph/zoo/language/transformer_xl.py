"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860): segment-level memory and relative positions.

Which words fall into which frequency class depends on the data; here fixed shares of each sample do,
as WikiText-103's word frequencies suggest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.layers import MLP, check_divides, check_sizes, cross_entropy, token_ids
from traincast.graph.zoo.traceable import Traceable

_TAIL_SHARES: Final = (0.02, 0.025, 0.0025)
"""Share of the tokens in each rarer class: the last holds every class from there on."""


class RelativeAttention(nn.Module):  # type: ignore[misc]
    """Attention over memory and segment whose scores depend on content and on distance, unfused."""

    def __init__(self, *, hidden: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(hidden, 3 * heads * head_dim, bias=False)
        self.distance = nn.Linear(hidden, heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, hidden, bias=False)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, positions: torch.Tensor, biases: torch.Tensor
    ) -> torch.Tensor:
        """Attend from ``x`` [batch, seq, hidden] to memory and itself; ``biases`` [2, heads, head dim]."""
        batch, seq, _ = x.shape
        joint = self.qkv(torch.cat((memory, x), dim=1))
        keys = joint.shape[1]
        q, k, v = joint.view(batch, keys, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q = q[:, :, -seq:]
        r = self.distance(positions).view(keys, self.heads, self.head_dim).transpose(0, 1)
        content = (q + biases[0][:, None]) @ k.mT
        distance = _shift((q + biases[1][:, None]) @ r.mT)
        scores = (content + distance) * self.head_dim**-0.5
        future = torch.ones(seq, keys, dtype=torch.bool, device=x.device).triu(1 + keys - seq)
        mixed = scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, self.heads * self.head_dim))


def _shift(scores: torch.Tensor) -> torch.Tensor:
    """Turn columns of absolute into columns of relative position, row by row, by reading askew."""
    *lead, rows, columns = scores.shape
    padded = functional.pad(scores, (1, 0)).view(*lead, columns + 1, rows)
    return padded[..., 1:, :].reshape(*lead, rows, columns)


class XLLayer(nn.Module):  # type: ignore[misc]
    """Attention and ReLU MLP, a layer norm after each."""

    def __init__(self, *, hidden: int, heads: int, head_dim: int, ffn: int, memory: int) -> None:
        super().__init__()
        self.memory = memory
        self.attention = RelativeAttention(hidden=hidden, heads=heads, head_dim=head_dim)
        self.norm1 = nn.LayerNorm(hidden)
        self.mlp = MLP(hidden=hidden, ffn=ffn, activation="relu", bias=True)
        self.norm2 = nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape; the memory's content does not matter here."""
        memory = x.new_empty(x.shape[0], self.memory, x.shape[2])
        x = self.norm1(x + self.attention(x, memory, positions, biases))
        return self.norm2(x + self.mlp(x))


class AdaptiveVocabulary(nn.Module):  # type: ignore[misc]
    """Embedding and softmax by frequency class (Grave et al. 2016, arXiv:1609.04309), tied.

    Class ``i`` is ``divisor**i`` times narrower; with a divisor above 1 every class is projected to
    ``hidden``, and the softmax shares all projections but the first.
    """

    def __init__(self, *, vocab: int, hidden: int, cutoffs: Sequence[int], divisor: int) -> None:
        super().__init__()
        bounds = (0, *cutoffs, vocab)
        sizes = [high - low for low, high in itertools.pairwise(bounds)]
        widths = [hidden // divisor**i for i in range(len(sizes))]
        self.words = nn.ParameterList(torch.empty(size, width) for size, width in zip(sizes, widths, strict=True))
        self.biases = nn.ParameterList(torch.zeros(size) for size in sizes)
        self.classes = nn.Linear(hidden, len(cutoffs))
        projected = widths if divisor > 1 else []
        self.projections = nn.ParameterList(torch.empty(hidden, width) for width in projected)
        self.head_projection = nn.Parameter(torch.empty(hidden, hidden)) if projected else None

    def shares(self, seq: int) -> list[int]:
        """How many tokens of a sample are of each class."""
        tails = [_TAIL_SHARES[min(i, len(_TAIL_SHARES) - 1)] for i in range(len(self.words) - 1)]
        counts = [max(1, round(seq * share)) for share in tails]
        return [max(1, seq - sum(counts)), *counts]

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed ``ids`` [batch, seq], as if they were sorted by class."""
        parts = []
        for i, part in enumerate(ids.split(self.shares(ids.shape[1]), dim=1)):
            x = functional.embedding(part, self.words[i])
            parts.append(functional.linear(x, self.projections[i]) if len(self.projections) else x)
        return torch.cat(parts, dim=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits of the frequent words and the classes for all tokens, then of each class for its own."""
        first = x if self.head_projection is None else x @ self.head_projection
        weight = torch.cat((self.words[0], self.classes.weight))
        logits = [functional.linear(first, weight, torch.cat((self.biases[0], self.classes.bias)))]
        for i, part in enumerate(x.split(self.shares(x.shape[1]), dim=1)[1:], start=1):
            row = part @ self.projections[i] if len(self.projections) else part
            logits.append(functional.linear(row, self.words[i], self.biases[i]))
        return tuple(logits)


class TransformerXL(nn.Module):  # type: ignore[misc]
    """Adaptive embedding, layers that share two position biases, adaptive softmax."""

    def __init__(
        self,
        *,
        layers: int,
        hidden: int,
        heads: int,
        head_dim: int,
        ffn: int,
        vocab: int,
        seq: int,
        memory: int,
        cutoffs: Sequence[int],
        divisor: int,
    ) -> None:
        super().__init__()
        self.vocabulary = AdaptiveVocabulary(vocab=vocab, hidden=hidden, cutoffs=cutoffs, divisor=divisor)
        self.biases = nn.Parameter(torch.zeros(2, heads, head_dim))
        distances = torch.arange(memory + seq - 1, -1, -1)
        angles = torch.outer(distances, 10000.0 ** (torch.arange(0, hidden, 2) / -hidden))
        self.register_buffer("positions", torch.cat((angles.sin(), angles.cos()), dim=-1))
        self.layers = nn.ModuleList(
            XLLayer(hidden=hidden, heads=heads, head_dim=head_dim, ffn=ffn, memory=memory) for _ in range(layers)
        )

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits by frequency class for ``ids`` [batch, seq]."""
        x = self.vocabulary.embed(ids)
        for layer in self.layers:
            x = layer(x, self.positions, self.biases)
        logits: tuple[torch.Tensor, ...] = self.vocabulary(x)
        return logits


def _loss(logits: tuple[torch.Tensor, ...]) -> torch.Tensor:
    head, *tails = (cross_entropy(part) for part in logits)
    return sum(tails, head)


def transformer_xl(
    *,
    layers: int,
    hidden: int,
    heads: int,
    head_dim: int = 64,
    ffn: int | None = None,
    vocab: int = 267735,
    seq: int = 192,
    memory: int | None = None,
    cutoffs: Sequence[int] = (19997, 39997, 199997),
    divisor: int = 1,
) -> Traceable:
    """Transformer-XL as trained on WikiText-103, with ``memory`` tokens (default ``seq``) of the past."""
    memory = seq if memory is None else memory
    width = 4 * hidden if ffn is None else ffn
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "head_dim": head_dim, "vocab": vocab}
    check_sizes("transformer-xl", sizes | {"seq": seq, "ffn": width, "divisor": divisor})
    check_sizes("transformer-xl", {"memory": memory}, may_be_zero=frozenset({"memory"}))
    check_divides("transformer-xl", whole=("hidden", hidden), parts=("pair", 2), remedy="sine and cosine pair up")
    if not isinstance(cutoffs, list | tuple):
        raise RequestError(f"transformer-xl: cutoffs={cutoffs!r} must be a list of whole numbers")
    bounds = (0, *cutoffs, vocab)
    if any(not isinstance(b, int) for b in bounds) or list(bounds) != sorted(set(bounds)):
        raise RequestError(f"transformer-xl: cutoffs {list(cutoffs)} must rise from above 0 to below vocab={vocab}")
    remedy = "each frequency class is divisor times narrower than the one before"
    check_divides("transformer-xl", whole=("hidden", hidden), parts=("widths", divisor ** len(cutoffs)), remedy=remedy)
    if seq <= len(cutoffs):
        raise RequestError(f"transformer-xl: seq={seq} must be above the {len(cutoffs)} rarer classes of words")
    with torch.device("meta"):
        module = TransformerXL(
            layers=layers,
            hidden=hidden,
            heads=heads,
            head_dim=head_dim,
            ffn=width,
            vocab=vocab,
            seq=seq,
            memory=memory,
            cutoffs=cutoffs,
            divisor=divisor,
        )

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return (token_ids(module, batch, seq),)

    return Traceable(module=module, inputs=inputs, loss=_loss, tokens_per_sample=seq, optimizer="lamb")
