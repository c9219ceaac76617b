"""The lightning indexer of sparse attention: it scores all keys cheaply, so that attention reads the best ones alone.

DeepSeek Sparse Attention (DeepSeek-AI 2025, arXiv:2512.02556, section 2.1). The loss of the language model does not
train the indexer, so its operators have no gradients here: its own loss is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from traincast.graph.zoo.parts.kernels import index_scores


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSizes:
    """Sizes of an indexer: its heads, their width, and how many keys each query keeps."""

    heads: int
    dim: int
    top_k: int


class Indexer(nn.Module):  # type: ignore[misc]
    """Scores of all keys for each query, and the best ``top_k`` of them."""

    def __init__(self, hidden: int, *, q_rank: int, sizes: IndexSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.queries = nn.Linear(q_rank, sizes.heads * sizes.dim, bias=False)
        self.keys = nn.Linear(hidden, sizes.dim, bias=False)
        self.norm = nn.LayerNorm(sizes.dim)
        self.weights = nn.Linear(hidden, sizes.heads, bias=False)

    def forward(self, x: torch.Tensor, latent: torch.Tensor, rotary: nn.Module) -> torch.Tensor:
        """The numbers of the keys that each query of ``x`` [batch, seq, hidden] keeps, [batch, seq, top k]."""
        with torch.no_grad():
            keys = rotary(self.norm(self.keys(x))[:, :, None])[:, :, 0]
            return best_keys(rotary(self._split(latent)), keys, self.weights(x), self.sizes.top_k)

    def _split(self, latent: torch.Tensor) -> torch.Tensor:
        return self.queries(latent).view(*latent.shape[:2], self.sizes.heads, self.sizes.dim)


def best_keys(queries: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor, top_k: int) -> torch.Tensor:
    """The best of ``keys`` [batch, keys, d] for each of ``queries`` [batch, seq, heads, d]."""
    scores = index_scores(queries.flatten(1, 2), keys.mT, weights)
    return scores.topk(min(top_k, keys.shape[1]), dim=-1).indices
