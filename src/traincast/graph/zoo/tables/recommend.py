"""Neural collaborative filtering (He et al. 2017, arXiv:1708.05031)."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.layers import LARGEST, check_sizes
from traincast.graph.zoo.traceable import Traceable


class NeuMF(nn.Module):  # type: ignore[misc]
    """Products of factors, and an MLP on embeddings of its own, joined in one score (section 3.4)."""

    def __init__(self, *, users: int, items: int, factors: int, widths: list[int], dropout: float) -> None:
        super().__init__()
        self.user_factors = nn.Embedding(users, factors)
        self.item_factors = nn.Embedding(items, factors)
        self.user_embedding = nn.Embedding(users, widths[0] // 2)
        self.item_embedding = nn.Embedding(items, widths[0] // 2)
        self.mlp = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout))
                for inputs, outputs in itertools.pairwise(widths)
            )
        )
        self.score = nn.Linear(factors + widths[-1], 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Pairs of ids ``[batch]`` to logits ``[batch, 1]``."""
        product = self.user_factors(users) * self.item_factors(items)
        deep = self.mlp(torch.cat([self.user_embedding(users), self.item_embedding(items)], dim=1))
        return self.score(torch.cat([product, deep], dim=1))


def _loss(logits: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, torch.empty_like(logits))


def ncf(
    *,
    users: int = 138_493,
    items: int = 26_744,
    factors: int = 64,
    layers: str = "256x256x128x64",
    dropout: float = 0.5,
) -> Traceable:
    """NeuMF: a sample is one pair of user and item; ``layers`` are the widths of the MLP, input first."""
    texts = str(layers).split("x")
    if not all(text.isdecimal() for text in texts) or len(texts) < 2 or int(texts[0]) % 2:
        raise RequestError(f"ncf: layers={layers!r} must be widths of which the first is even, such as 256x256x128x64")
    widths = [int(text) for text in texts]
    check_sizes("ncf", {"users": users, "items": items, "factors": factors, "layers": len(widths)})
    if not 0 < max(widths) <= LARGEST or isinstance(dropout, bool) or not 0 <= dropout < 1:
        raise RequestError(f"ncf: layers={layers} and dropout={dropout} must lie in 1 to {LARGEST:,} and 0 to 1")
    with torch.device("meta"):
        module = NeuMF(users=users, items=items, factors=factors, widths=widths, dropout=dropout)

    def pairs(batch: int) -> tuple[Tensor, ...]:
        device = next(module.parameters()).device
        return tuple(torch.empty(batch, dtype=torch.int64, device=device) for _ in range(2))

    return Traceable(module=module, inputs=pairs, loss=_loss, optimizer="adam")
