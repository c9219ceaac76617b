"""Encoders that are fine-tuned, or trained on masked tokens alone: BERT, DistilBERT, RoBERTa, ALBERT, ESM."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError, UnknownNameError
from traincast.graph.zoo.parts.layers import (
    Layer,
    LayerConfig,
    check_choices,
    check_divides,
    check_sizes,
    cross_entropy,
    token_ids,
)
from traincast.graph.zoo.traceable import Traceable

TASKS: Final = ("masked", "spans", "classes", "pooled")
"""Masked tokens; first and last token of an answer (SQuAD); classes of a sequence; the bare model with its pooler."""


class Embeddings(nn.Module):  # type: ignore[misc]
    """Tokens, positions and segments, summed and normed; narrower than the layers if ``width`` is (ALBERT)."""

    def __init__(self, *, vocab: int, width: int, hidden: int, positions: int, types: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(positions, width)
        self.types = nn.Embedding(types, width) if types else None
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.widen = nn.Linear(width, hidden) if width != hidden else None

    def forward(self, ids: Tensor) -> Tensor:
        """Embed ``ids`` [batch, seq]."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        if self.types is not None:
            x = x + self.types(torch.zeros_like(ids))
        x = self.dropout(self.norm(x))
        return x if self.widen is None else self.widen(x)


class TaskHead(nn.Module):  # type: ignore[misc]
    """What stands on the encoder in each task."""

    def __init__(self, task: str, *, hidden: int, width: int, vocab: int, outputs: int) -> None:
        super().__init__()
        self.task = task
        if task == "masked":
            self.transform = nn.Linear(hidden, width)
            self.norm = nn.LayerNorm(width)
            self.bias = nn.Parameter(torch.zeros(vocab))
        elif task == "spans":
            self.spans = nn.Linear(hidden, 2)
        else:
            self.pooler = nn.Linear(hidden, hidden)
            self.classes = nn.Linear(hidden, outputs) if task == "classes" else None

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Features [batch, seq, hidden] to logits, whose second or last dim are classes."""
        if self.task == "masked":
            return functional.linear(self.norm(functional.gelu(self.transform(x))), tokens, self.bias)
        if self.task == "spans":
            return self.spans(x).transpose(1, 2)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return pooled if self.classes is None else self.classes(pooled)


class WindowLayer(Layer):
    """A layer whose tokens attend to their neighbours (Beltagy et al. 2020, arXiv:2004.05150).

    The projections of tokens that attend to everything are held; no token does while masked tokens are learned.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__(config)
        self.everywhere = nn.Linear(config.hidden, 3 * config.hidden).requires_grad_(False)


class SharedLayer(nn.Module):  # type: ignore[misc]
    """One layer that is run ``times`` times (Lan et al. 2019, arXiv:1909.11942)."""

    def __init__(self, config: LayerConfig, times: int) -> None:
        super().__init__()
        self.layer, self.times = Layer(config), times

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        for _ in range(self.times):
            x = self.layer(x)
        return x


class Encoder(nn.Module):  # type: ignore[misc]
    """Embeddings, layers with the norm after each part, and the head of a task."""

    def __init__(self, embeddings: Embeddings, layers: nn.ModuleList, head: TaskHead) -> None:
        super().__init__()
        self.embedding = embeddings
        self.layers = layers
        self.head = head

    def forward(self, ids: Tensor) -> Tensor:
        """The head's logits for token ids [batch, seq]."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x, self.embedding.tokens.weight)


def _loss(task: str, logits: Tensor) -> Tensor:
    return logits.sum() if task == "pooled" else cross_entropy(logits)


def encoder(
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    ffn: int | None = None,
    vocab: int = 30522,
    seq: int = 384,
    max_positions: int = 512,
    token_types: int = 2,
    embedding: int | None = None,
    shared: bool = False,
    window: int = 0,
    task: str = "spans",
    classes: int = 2,
    dropout: float = 0.1,
) -> Traceable:
    """BERT's encoder (Devlin et al. 2018, arXiv:1810.04805) for a task: masked, spans, classes or pooled.

    ``embedding`` is the width of the embeddings if it differs from the layers'; ``shared`` layers have equal weights.
    With a ``window`` a token attends to that many neighbours (Longformer).
    """
    width, inner = hidden if embedding is None else embedding, 4 * hidden if ffn is None else ffn
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": inner, "vocab": vocab, "seq": seq}
    sizes |= {"max_positions": max_positions, "embedding": width, "classes": classes, "token_types": token_types}
    check_sizes("encoder", sizes | {"window": window}, may_be_zero=frozenset({"token_types", "window"}))
    check_choices("encoder", {"shared": shared})
    remedy = "choose heads that divide hidden"
    check_divides("encoder", whole=("hidden", hidden), parts=("heads", heads), remedy=remedy)
    if task not in TASKS:
        raise UnknownNameError("task of encoder", task, TASKS)
    if isinstance(dropout, bool) or not 0 <= dropout < 1:
        raise RequestError(f"encoder: dropout={dropout!r} must be a number from 0 to below 1")
    config = LayerConfig(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=inner,
        seq=seq,
        post_norm=True,
        causal=False,
        window=window,
        dropout=dropout,
    )
    one = WindowLayer if window else Layer
    with torch.device("meta"):
        rows = max(max_positions, seq)
        parts = [SharedLayer(config, layers)] if shared else [one(config) for _ in range(layers)]
        module = Encoder(
            Embeddings(vocab=vocab, width=width, hidden=hidden, positions=rows, types=token_types, dropout=dropout),
            nn.ModuleList(parts),
            TaskHead(task, hidden=hidden, width=width, vocab=vocab, outputs=classes),
        )

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return (token_ids(module, batch, seq),)

    return Traceable(module=module, inputs=inputs, loss=lambda y: _loss(task, y), tokens_per_sample=seq)
