"""One parametric transformer: an embedding, layers, and a head.

``config.layer_configs()`` says what each layer is; equal ones may be cut from ``layers`` and the module
still runs, which is how a capture traces two instead of ninety-six.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from traincast.graph.zoo.parts.further import FurtherToken, sum_of_losses
from traincast.graph.zoo.parts.layers import (
    Layer,
    LayerConfig,
    StackConfig,
    cross_entropy,
    norm,
    share_tables,
    token_ids,
)
from traincast.graph.zoo.traceable import Traceable


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig(StackConfig):
    """A transformer: its layers, and what stands before and after them.

    The first ``first_dense`` layers have a plain MLP where the others have experts. With a sliding
    window, every ``window_period``-th layer attends to everything (0: none does). ``head`` is ``lm``
    (next token), ``mlm`` (masked tokens and next sentence, as BERT is pre-trained) or ``classes``.
    ``max_positions`` are learned positions (0: none); ``patch`` and ``image`` are sides in pixels (0: text).
    """

    max_positions: int = 0
    token_types: int = 0
    head: str = "lm"
    predictions: int = 0
    first_dense: int = 0
    window_period: int = 0
    patch: int = 0
    image: int = 0

    def layer_configs(self) -> list[LayerConfig]:
        """What each layer is, in order."""
        configs = []
        for index in range(self.layers):
            everything = bool(self.window_period) and (index + 1) % self.window_period == 0
            window = 0 if everything else self.layer.window
            experts = None if index < self.first_dense else self.layer.experts
            configs.append(replace(self.layer, window=window, experts=experts))
        return configs


class TokenEmbedding(nn.Module):  # type: ignore[misc]
    """Token, position and segment embeddings, summed; normed where the layers are post-norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        hidden = config.layer.hidden
        self.tokens = nn.Embedding(config.vocab, hidden)
        self.positions = nn.Embedding(config.max_positions, hidden) if config.max_positions else None
        self.types = nn.Embedding(config.token_types, hidden) if config.token_types else None
        self.norm = norm(config.layer.norm, hidden) if config.layer.post_norm else None
        self.dropout = nn.Dropout(config.layer.dropout)

    def forward(self, ids: torch.Tensor, types: torch.Tensor | None = None) -> torch.Tensor:
        """Embed ``ids`` [batch, seq]."""
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        if self.types is not None and types is not None:
            x = x + self.types(types)
        return self.dropout(x if self.norm is None else self.norm(x))


class PatchEmbedding(nn.Module):  # type: ignore[misc]
    """Images cut into patches, a class token in front, learned positions (Dosovitskiy et al. 2020)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        hidden = config.layer.hidden
        self.patches = nn.Conv2d(3, hidden, config.patch, stride=config.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.zeros(1, config.layer.seq, hidden))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Embed ``images`` [batch, 3, height, width]."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(x.shape[0], -1, -1)
        return torch.cat((first, x), dim=1) + self.positions


class LanguageHead(nn.Module):  # type: ignore[misc]
    """Final norm and logits of the next token, by the embedding's own matrix where it is tied."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        c = config.layer
        self.norm = None if c.post_norm else norm(c.norm, c.hidden, bias=c.norm_bias)
        self.logits = None if config.tied else nn.Linear(c.hidden, config.vocab, bias=False)

    def forward(self, x: torch.Tensor, embedding: nn.Module) -> torch.Tensor:
        """Logits [batch, seq, vocab]."""
        return self.project(x if self.norm is None else self.norm(x), embedding)

    def project(self, x: torch.Tensor, embedding: nn.Module) -> torch.Tensor:
        """Logits of hidden states that are normed."""
        return functional.linear(x, embedding.tokens.weight) if self.logits is None else self.logits(x)


class MaskedHead(nn.Module):  # type: ignore[misc]
    """BERT's two heads (Devlin et al. 2018, arXiv:1810.04805): masked tokens, and next sentence.

    ``predictions`` positions of each sample are predicted, as the original code gathers them; 0: all.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        hidden = config.layer.hidden
        self.predictions = config.predictions
        self.transform = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.bias = nn.Parameter(torch.zeros(config.vocab))
        self.pooler = nn.Linear(hidden, hidden)
        self.sentence = nn.Linear(hidden, 2)

    def forward(self, x: torch.Tensor, embedding: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of tokens [batch, positions, vocab] and of the sentence pair [batch, 2]."""
        pooled = torch.tanh(self.pooler(x[:, 0]))
        if self.predictions:
            where = torch.zeros(x.shape[0], self.predictions, dtype=torch.int64, device=x.device)
            x = x.gather(1, where[:, :, None].expand(-1, -1, x.shape[-1]))
        x = self.norm(functional.gelu(self.transform(x)))
        return functional.linear(x, embedding.tokens.weight, self.bias), self.sentence(pooled)


class ClassHead(nn.Module):  # type: ignore[misc]
    """Final norm and class logits from the class token."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.layer.hidden)
        self.logits = nn.Linear(config.layer.hidden, config.vocab)

    def forward(self, x: torch.Tensor, embedding: nn.Module) -> torch.Tensor:
        """Logits [batch, classes]."""
        return self.logits(self.norm(x)[:, 0])


_HEADS: Final[Mapping[str, Callable[[TransformerConfig], nn.Module]]] = {
    "lm": LanguageHead,
    "mlm": MaskedHead,
    "classes": ClassHead,
}


class Transformer(nn.Module):  # type: ignore[misc]
    """An encoder-only or decoder-only transformer (Vaswani et al. 2017, arXiv:1706.03762)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = PatchEmbedding(config) if config.patch else TokenEmbedding(config)
        self.layers = nn.ModuleList(Layer(layer) for layer in config.layer_configs())
        self.head = _HEADS[config.head](config)
        self.further = nn.ModuleList(_further(config) for _ in range(config.mtp))
        share_tables(self)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The head's output for token ids (and segment ids), or for images."""
        x = self.embedding(*inputs)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x, self.embedding)
        if not len(self.further):
            return logits
        every = [logits]
        for further in self.further:
            x = further(x, self.embedding(*inputs))
            every.append(self.head.project(further.norm(x), self.embedding))
        return tuple(every)


def _further(config: TransformerConfig) -> FurtherToken:
    """One depth of multi-token prediction, with a layer like the last one."""
    layer = config.layer_configs()[-1]
    return FurtherToken(
        layer.hidden, [norm(layer.norm, layer.hidden, bias=layer.norm_bias) for _ in range(3)], [Layer(layer)]
    )


def _masked_loss(output: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return cross_entropy(output[0]) + cross_entropy(output[1])


def traceable(config: TransformerConfig) -> Traceable:
    """Build ``config`` on the ``meta`` device."""
    with torch.device("meta"):
        module = Transformer(config)
    seq = config.layer.seq

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        if config.patch:
            device = next(module.parameters()).device
            return (torch.empty(batch, 3, config.image, config.image, device=device),)
        ids = token_ids(module, batch, seq)
        return (ids, torch.zeros_like(ids)) if config.token_types else (ids,)

    return Traceable(
        module=module,
        inputs=inputs,
        loss=_masked_loss if config.head == "mlm" else sum_of_losses,
        tokens_per_sample=0 if config.patch else seq,
    )
