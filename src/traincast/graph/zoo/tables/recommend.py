"""Recommendation from what users did before.

Neural collaborative filtering (He et al. 2017, arXiv:1708.05031) on pairs of users and items, SIM on histories of
items, VAE-CF on sets of items.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.layers import LARGEST, check_sizes
from traincast.graph.zoo.tables.click import binary_loss, widths_of
from traincast.graph.zoo.traceable import Traceable


def _activated(widths: list[int], activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers with ``activation`` between them, and none after the last."""
    parts: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        parts += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*parts[:-1])


class InterestEvolution(nn.Module):  # type: ignore[misc]
    """A GRU over the history, attention to the target, and a second GRU gated by it (Zhou et al. 2018, figure 1)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.interest = nn.GRU(inputs, hidden, batch_first=True)
        self.score = nn.Linear(inputs, hidden, bias=False)
        self.evolution = nn.GRU(hidden, hidden, batch_first=True)

    def forward(self, target: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """The evolved interest ``[batch, hidden]`` and all interests ``[batch, items, hidden]``."""
        interests = self.interest(history)[0]
        weights = torch.bmm(interests, self.score(target)[:, :, None]).softmax(dim=1)
        return self.evolution(interests * weights)[0][:, -1], interests


class SIM(nn.Module):  # type: ignore[misc]
    """A search in a long history, then attention to what it found and to the recent history (Pi et al. 2020)."""

    def __init__(self, *, users: int, items: int, kinds: int, width: int, found: int) -> None:
        super().__init__()
        self.found = found
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(items, width)
        self.kind = nn.Embedding(kinds, width)
        item, hidden = 2 * width, 6 * width
        self.recent = InterestEvolution(item, hidden)
        self.first = _activated([2 * item + width, 200, 1], nn.PReLU)
        self.second = _activated([3 * item + hidden + width, 200, 80, 1], nn.PReLU)
        self.auxiliary = _activated([hidden + item, 100, 50, 1], nn.Sigmoid)

    def _embed(self, ids: Tensor) -> Tensor:
        """Items ``[batch, ..., 2]``, each an item and its kind, to ``[batch, ..., 2 · width]``."""
        return torch.cat([self.item(ids[..., 0]), self.kind(ids[..., 1])], dim=-1)

    @staticmethod
    def _attend(target: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of ``items`` weighted by their products with ``target``, and these products."""
        scores = torch.bmm(items, target[:, :, None])
        return (items * scores).sum(dim=1), scores.squeeze(-1)

    def forward(
        self, user: Tensor, target: Tensor, long: Tensor, short: Tensor, missed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of both stages ``[batch, 1]``, and of next items ``[batch, 2 · (items - 1), 1]``."""
        who, what, past = self.user(user), self._embed(target), self._embed(long)
        searched, scores = self._attend(what, past)
        first = self.first(torch.cat([what, searched, who], dim=1))
        best = scores.topk(self.found, dim=1).indices
        past = past.gather(1, best[:, :, None].expand(-1, -1, past.shape[-1]))
        attended, _ = self._attend(what, past)
        now = self._embed(short)
        evolved, interests = self.recent(what, now)
        nexts = [torch.cat([interests[:, :-1], x[:, 1:]], dim=-1) for x in (now, self._embed(missed))]
        auxiliary = self.auxiliary(torch.cat(nexts, dim=1))
        second = self.second(torch.cat([attended, past.mean(dim=1), what, evolved, who], dim=1))
        return first, second, auxiliary


def _sum_of_losses(outputs: tuple[Tensor, ...]) -> Tensor:
    total: Tensor = sum((binary_loss(each) for each in outputs[1:]), start=binary_loss(outputs[0]))
    return total


def sim(
    *,
    users: int = 105_925,
    items: int = 1_209_081,
    kinds: int = 2_330,
    width: int = 16,
    long: int = 90,
    short: int = 10,
    found: int = 50,
) -> Traceable:
    """SIM (Pi et al. 2020, arXiv:2006.05639) on Amazon's books: ``long`` and ``short`` are items of each history.

    The search keeps the ``found`` best items. The second GRU's gate of DIEN (Zhou et al. 2018, arXiv:1809.03672) scales
    its inputs here, so that it is one kernel.
    """
    sizes = {"users": users, "items": items, "kinds": kinds, "width": width, "long": long, "found": found}
    sizes["short"] = short
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 2 <= size <= 2**28:
            raise RequestError(f"sim: {name}={size!r} must be a whole number from 2 to {2**28:,}")
    if found > long:
        raise RequestError(f"sim: found={found} of long={long} items; it must be at most long")
    with torch.device("meta"):
        module = SIM(users=users, items=items, kinds=kinds, width=width, found=found)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        shapes = ((batch,), (batch, 2), (batch, long, 2), (batch, short, 2), (batch, short, 2))
        device = next(module.parameters()).device
        return tuple(torch.empty(shape, dtype=torch.int64, device=device) for shape in shapes)

    return Traceable(module=module, inputs=inputs, loss=_sum_of_losses, optimizer="adam")


class MultVAE(nn.Module):  # type: ignore[misc]
    """An autoencoder of a user's items whose code is drawn from a normal distribution (Liang et al. 2018)."""

    def __init__(self, *, items: int, widths: list[int], dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.Sequential(mlp_tanh([items, *widths[:-1]]), nn.Linear(widths[-2], 2 * widths[-1]))
        self.decoder = nn.Sequential(mlp_tanh(widths[:0:-1]), nn.Linear(widths[1], widths[0]), nn.Tanh())
        self.items = nn.Linear(widths[0], items)

    def forward(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Items ``[batch, items]`` to their logits, and mean and logarithm of variance of the code."""
        mean, log_variance = self.encoder(self.dropout(functional.normalize(chosen, dim=1))).chunk(2, dim=1)
        code = mean + torch.rand_like(mean) * torch.exp(0.5 * log_variance)
        return self.items(self.decoder(code)), mean, log_variance


def mlp_tanh(widths: list[int]) -> nn.Sequential:
    """Linear layers with a hyperbolic tangent after each."""
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.Tanh())))


def _elbo(outputs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The multinomial log-likelihood of all items, and the divergence of the code from the normal distribution."""
    logits, mean, log_variance = outputs
    likelihood = (logits.log_softmax(dim=1) * torch.empty_like(logits)).sum(dim=1).mean()
    divergence = (log_variance.exp() + mean * mean - 1 - log_variance).sum(dim=1).mean()
    return 0.1 * divergence - likelihood


def vae_cf(*, items: int = 20_108, layers: str = "600x200", dropout: float = 0.5) -> Traceable:
    """Mult-VAE (Liang et al. 2018, arXiv:1802.05814): a sample is a user; ``layers`` end with the code."""
    widths = widths_of("vae-cf", "layers", layers)
    check_sizes("vae-cf", {"items": items})
    if len(widths) < 2 or isinstance(dropout, bool) or not 0 <= dropout < 1:
        raise RequestError(f"vae-cf: layers={layers} must have two or more widths, and dropout={dropout} be below 1")
    with torch.device("meta"):
        module = MultVAE(items=items, widths=widths, dropout=dropout)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = next(module.parameters())
        return (torch.empty(batch, items, dtype=like.dtype, device=like.device),)

    return Traceable(module=module, inputs=inputs, loss=_elbo, optimizer="adam")


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
