"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): a small generator fills in, a discriminator finds out."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError, UnknownNameError
from traincast.graph.zoo.parts.layers import Layer, LayerConfig, check_divides, check_sizes, cross_entropy, token_ids
from traincast.graph.zoo.parts.stack import TokenEmbedding, TransformerConfig
from traincast.graph.zoo.traceable import Traceable

TASKS: Final = ("pretrain", "spans")
"""Pre-training of both networks, or fine-tuning of the discriminator to find spans (SQuAD)."""


def _config(*, layers: int, hidden: int, heads: int, seq: int, vocab: int) -> TransformerConfig:
    layer = LayerConfig(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        seq=seq,
        post_norm=True,
        causal=False,
    )
    return TransformerConfig(layers=layers, layer=layer, vocab=vocab, max_positions=max(seq, 512), token_types=2)


class Generator(nn.Module):  # type: ignore[misc]
    """A narrow BERT that predicts the masked tokens, and shares the discriminator's embeddings."""

    def __init__(self, config: TransformerConfig, *, embedding: int) -> None:
        super().__init__()
        hidden = config.layer.hidden
        self.narrow = nn.Linear(embedding, hidden)
        self.layers = nn.ModuleList(Layer(layer) for layer in config.layer_configs())
        self.widen = nn.Linear(hidden, embedding)
        self.norm = nn.LayerNorm(embedding)
        self.bias = nn.Parameter(torch.zeros(config.vocab))

    def forward(self, x: Tensor, where: Tensor, tokens: Tensor) -> Tensor:
        """Logits ``[batch, predictions, vocab]`` at ``where`` [batch, predictions] of embedded ``x``."""
        x = self.narrow(x)
        for layer in self.layers:
            x = layer(x)
        x = x.gather(1, where[:, :, None].expand(-1, -1, x.shape[-1]))
        x = self.norm(functional.gelu(self.widen(x)))
        return functional.linear(x, tokens, self.bias)


class Electra(nn.Module):  # type: ignore[misc]
    """Masked tokens are replaced by the generator's samples; the discriminator says which were replaced."""

    def __init__(self, config: TransformerConfig, generator: TransformerConfig, *, predictions: int) -> None:
        super().__init__()
        hidden = config.layer.hidden
        self.predictions = predictions
        self.embedding = TokenEmbedding(config)
        self.generator = Generator(generator, embedding=hidden)
        self.layers = nn.ModuleList(Layer(layer) for layer in config.layer_configs())
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 1))

    def forward(self, ids: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the masked tokens [batch, predictions, vocab] and of being replaced [batch, seq]."""
        where = torch.zeros(ids.shape[0], self.predictions, dtype=torch.int64, device=ids.device)
        guesses = self.generator(self.embedding(ids, types), where, self.embedding.tokens.weight)
        with torch.no_grad():
            noise = torch.rand_like(guesses).log().neg().log()
            ids = ids.scatter(1, where, (guesses - noise).argmax(dim=-1))
        x = self.embedding(ids, types)
        for layer in self.layers:
            x = layer(x)
        return guesses, self.head(x).squeeze(-1)


class SpanFinder(nn.Module):  # type: ignore[misc]
    """The discriminator with a linear head for the first and the last token of an answer."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(config)
        self.layers = nn.ModuleList(Layer(layer) for layer in config.layer_configs())
        self.head = nn.Linear(config.layer.hidden, 2)

    def forward(self, ids: Tensor, types: Tensor) -> Tensor:
        """Logits of first and last token, ``[batch, 2, seq]``."""
        x = self.embedding(ids, types)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).transpose(1, 2)


def _pretraining_loss(outputs: tuple[Tensor, Tensor]) -> Tensor:
    guesses, replaced = outputs
    found = functional.binary_cross_entropy_with_logits(replaced, torch.empty_like(replaced))
    return cross_entropy(guesses) + 50 * found


def electra(
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    generator_hidden: int = 256,
    generator_heads: int = 4,
    vocab: int = 30522,
    seq: int = 128,
    mask: float = 0.155,
    task: str = "pretrain",
) -> Traceable:
    """ELECTRA, whose generator is as deep as the discriminator and predicts the share ``mask`` of the tokens."""
    check_sizes("electra", {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "seq": seq})
    check_sizes("electra", {"generator_hidden": generator_hidden, "generator_heads": generator_heads})
    remedy = "choose heads that divide hidden"
    check_divides("electra", whole=("hidden", hidden), parts=("heads", heads), remedy=remedy)
    whole, parts = ("generator_hidden", generator_hidden), ("generator_heads", generator_heads)
    check_divides("electra", whole=whole, parts=parts, remedy=remedy)
    if task not in TASKS:
        raise UnknownNameError("task of electra", task, TASKS)
    if isinstance(mask, bool) or not 0 < mask <= 1 or int(mask * seq) < 1:
        raise RequestError(f"electra: mask={mask} of seq={seq} tokens must be at least one token and at most all")
    config = _config(layers=layers, hidden=hidden, heads=heads, seq=seq, vocab=vocab)
    small = _config(layers=layers, hidden=generator_hidden, heads=generator_heads, seq=seq, vocab=vocab)
    with torch.device("meta"):
        module = Electra(config, small, predictions=int(mask * seq)) if task == "pretrain" else SpanFinder(config)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        ids = token_ids(module, batch, seq)
        return ids, torch.zeros_like(ids)

    return Traceable(
        module=module,
        inputs=inputs,
        loss=_pretraining_loss if task == "pretrain" else cross_entropy,
        tokens_per_sample=seq,
        optimizer="lamb" if task == "pretrain" else "adamw",
    )
