"""Multi-token prediction: layers that predict the tokens after the next one, in training only.

Each depth joins what the depth before it made of a token with the embedding of the token after it, by a product, and
passes the sum through layers of its own; its logits come from the model's own output projection and have a loss of
their own (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2). So a depth costs its layers, a product of 2·h by h, and one
more projection to the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import nn

from traincast.errors import RequestError
from traincast.graph.zoo.parts.layers import cross_entropy

MOST_DEPTHS: Final = 2
"""Depths that published models are trained with at most: one in DeepSeek V3, two in Nemotron 3 Super."""


def check_depths(family: str, depths: object) -> None:
    """Raise ``RequestError`` if ``depths`` is no number of further tokens that can be built."""
    if type(depths) is not int or not 0 <= depths <= MOST_DEPTHS:
        raise RequestError(f"{family}: mtp={depths!r} must be a whole number from 0 to {MOST_DEPTHS}")


class FurtherToken(nn.Module):  # type: ignore[misc]
    """One depth: two norms, the product that joins hidden states and embeddings, layers and the norm of its logits."""

    def __init__(self, hidden: int, norms: Sequence[nn.Module], layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm = norms
        self.join = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Hidden states [batch, seq, hidden] of this depth, from those of the depth before and the embeddings."""
        x = self.join(torch.cat((self.norm1(x), self.norm2(embedded)), dim=-1))
        for layer in self.layers:
            x = layer(x)
        return x


def sum_of_losses(logits: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The cross-entropy of the next token, and of the further ones if there are any."""
    if isinstance(logits, torch.Tensor):
        return cross_entropy(logits)
    losses = [cross_entropy(each) for each in logits]
    return sum(losses[1:], start=losses[0])
