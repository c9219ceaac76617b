"""Click-through predictors on tables of categories: Wide & Deep, DLRM, DCN v2 and DeepFM."""

from __future__ import annotations

import itertools
import math
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError, UnknownNameError
from traincast.graph.zoo.parts.kernels import table_lookup
from traincast.graph.zoo.parts.layers import LARGEST, check_sizes
from traincast.graph.zoo.traceable import Traceable

OUTBRAIN: Final = (
    (128, 300_000, 1), (19, 4, 1), (128, 100_000, 1), (64, 4_000, 1), (64, 1_000, 1), (64, 2_500, 1), (64, 300, 1),
    (64, 2_000, 1), (64, 350, 3), (64, 10_000, 3), (64, 100, 3), (128, 250_000, 1), (64, 2_500, 1), (64, 4_000, 1),
    (64, 1_000, 1), (128, 5_000, 1),
)  # fmt: skip
"""Width of the embedding, number of categories, and categories per sample of Outbrain's features.

NVIDIA DeepLearningExamples, Wide & Deep for TensorFlow 2.
"""
CRITEO: Final[dict[int, tuple[int, ...]]] = {
    15: (
        7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209, 10667, 104, 4, 968,
        15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35,
    ),
    3: (
        45833188, 36747, 17246, 7414, 20244, 4, 7115, 1442, 63, 29275261, 1572176, 345139, 11, 2209, 11268, 128, 4, 975,
        15, 48937457, 11316796, 40094537, 452104, 12607, 105, 36,
    ),
}  # fmt: skip
"""Categories of the 26 features of Criteo's terabyte of clicks, if those seen less often than the key become one.

NVIDIA DeepLearningExamples, DLRM for PyTorch and for TensorFlow 2.
"""
INTERACTIONS: Final = ("dot", "cross")


def binary_loss(logits: Tensor) -> Tensor:
    """Binary cross-entropy of logits against some targets."""
    return functional.binary_cross_entropy_with_logits(logits, torch.empty_like(logits))


def widths_of(family: str, name: str, text: str) -> list[int]:
    """The widths of an MLP that is written ``512x256x128``."""
    texts = str(text).split("x")
    if not all(each.isdecimal() and 0 < int(each) <= LARGEST for each in texts):
        raise RequestError(f"{family}: {name}={text!r} must be widths of 1 to {LARGEST:,}, such as 512x256x128")
    return [int(each) for each in texts]


def mlp(widths: list[int], *, dropout: float = 0.0, last: bool = True) -> nn.Sequential:
    """Linear layers with ReLU (and dropout) after each; none after the last one unless ``last``."""
    parts: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        parts.append(nn.Linear(inputs, outputs))
        if last or index < len(widths) - 2:
            parts.append(nn.ReLU())
            if dropout:
                parts.append(nn.Dropout(dropout))
    return nn.Sequential(*parts)


class WideAndDeep(nn.Module):  # type: ignore[misc]
    """A linear model on all categories beside an MLP on their embeddings (Cheng et al. 2016, figure 1)."""

    def __init__(self, features: tuple[tuple[int, int, int], ...], *, numbers: int, widths: list[int]) -> None:
        super().__init__()
        self.hot = [hot for _, _, hot in features]
        self.deep = nn.ModuleList(nn.Embedding(rows, width) for width, rows, _ in features)
        self.wide = nn.ModuleList(nn.Embedding(rows, 1) for _, rows, _ in features)
        self.numbers = nn.Linear(numbers, 1)
        self.mlp = mlp([sum(width for width, _, _ in features) + numbers, *widths], dropout=0.1)
        self.score = nn.Linear(widths[-1], 1)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Numbers ``[batch, numbers]`` and categories ``[batch, all of them]`` to logits ``[batch, 1]``."""
        parts = ids.split(self.hot, dim=1)
        embedded = [table(part).mean(dim=1) for table, part in zip(self.deep, parts, strict=True)]
        linear = [table(part).mean(dim=1) for table, part in zip(self.wide, parts, strict=True)]
        deep = self.score(self.mlp(torch.cat([*embedded, numbers], dim=1)))
        return deep + torch.cat(linear, dim=1).sum(dim=1, keepdim=True) + self.numbers(numbers)


def wide_and_deep(*, layers: str = "1024x1024x1024x1024x1024", numbers: int = 13) -> Traceable:
    """Wide & Deep (Cheng et al. 2016, arXiv:1606.07792) on Outbrain's clicks, as NVIDIA trains it.

    ``layers`` are the widths of the MLP. The recipe's optimizers, FTRL and RMSProp, keep two states; here Adam's two.
    """
    check_sizes("wide-and-deep", {"numbers": numbers})
    widths = widths_of("wide-and-deep", "layers", layers)
    with torch.device("meta"):
        module = WideAndDeep(OUTBRAIN, numbers=numbers, widths=widths)
    return _clicks(module, numbers=numbers, categories=sum(hot for _, _, hot in OUTBRAIN), optimizer="adam")


def _clicks(module: nn.Module, *, numbers: int, categories: int, optimizer: str) -> Traceable:
    """A model that reads numbers and categories, and predicts a click."""

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = next(module.parameters())
        ids = torch.empty(batch, categories, dtype=torch.int64, device=like.device)
        return torch.empty(batch, numbers, dtype=like.dtype, device=like.device), ids

    return Traceable(module=module, inputs=inputs, loss=binary_loss, optimizer=optimizer)


class Table(nn.Module):  # type: ignore[misc]
    """The embeddings of all features in one table; only the rows of a batch are updated, by plain SGD."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, ids: Tensor) -> Tensor:
        """Categories ``[batch, features]`` to ``[batch, features, width]``."""
        return table_lookup(self.weight, ids)


class DotInteraction(nn.Module):  # type: ignore[misc]
    """Products of all pairs of vectors, behind the first vector (Naumov et al. 2019, section 2.1)."""

    def __init__(self, vectors: int, width: int) -> None:
        super().__init__()
        self.register_buffer("pairs", torch.empty(math.comb(vectors, 2), dtype=torch.int64), persistent=False)
        self.outputs = width + math.comb(vectors, 2) + 1

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, vectors, width]`` to ``[batch, width + pairs + 1]``; the last element is padding."""
        products = torch.bmm(x, x.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return torch.cat([x[:, 0], products, products.new_zeros(x.shape[0], 1)], dim=1)


class CrossNetwork(nn.Module):  # type: ignore[misc]
    """``x0 · (V U x + b) + x`` for each layer, of low rank (Wang et al. 2020, arXiv:2008.13535, equation 2)."""

    def __init__(self, vectors: int, width: int, *, depth: int, rank: int) -> None:
        super().__init__()
        self.outputs = vectors * width
        self.down = nn.ModuleList(nn.Linear(self.outputs, rank, bias=False) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(rank, self.outputs) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, vectors, width]`` to ``[batch, vectors · width]``."""
        first = crossed = x.flatten(1)
        for down, up in zip(self.down, self.up, strict=True):
            crossed = first * up(down(crossed)) + crossed
        return crossed


class DLRM(nn.Module):  # type: ignore[misc]
    """Embeddings and an MLP on numbers, their interaction, and an MLP on it (Naumov et al. 2019, figure 1)."""

    def __init__(self, table: Table, interaction: nn.Module, *, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        self.table = table
        self.bottom = mlp(bottom)
        self.interaction = interaction
        self.top = mlp([interaction.outputs, *top], last=False)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Numbers ``[batch, numbers]`` and categories ``[batch, features]`` to logits ``[batch, 1]``."""
        embedded = self.table(ids)
        vectors = torch.cat([self.bottom(numbers)[:, None], embedded], dim=1)
        return self.top(self.interaction(vectors))


def dlrm(
    *,
    threshold: int = 15,
    width: int = 128,
    bottom: str = "512x256x128",
    top: str = "1024x1024x512x256",
    interaction: str = "dot",
    cross_layers: int = 3,
    cross_rank: int = 512,
    numbers: int = 13,
    devices: int = 1,
) -> Traceable:
    """DLRM (Naumov et al. 2019, arXiv:1906.00091), or with ``interaction`` cross DCN v2 (Wang et al. 2020).

    ``threshold`` chooses the tables: how often Criteo's categories must occur. If the tables are spread over
    ``devices``, the module holds the share of one device. As every device then looks up its tables for the samples of
    all, lookups per sample stay the same. The exchange of the rows between devices is not part of the module.
    """
    if threshold not in CRITEO:
        raise UnknownNameError("threshold of dlrm", str(threshold), map(str, CRITEO))
    if interaction not in INTERACTIONS:
        raise UnknownNameError("interaction of dlrm", interaction, INTERACTIONS)
    sizes = {"width": width, "cross_layers": cross_layers, "cross_rank": cross_rank}
    check_sizes("dlrm", sizes | {"numbers": numbers, "devices": devices})
    below, above = widths_of("dlrm", "bottom", bottom), widths_of("dlrm", "top", top)
    if below[-1] != width:
        raise RequestError(f"dlrm: bottom={bottom} must end with width={width}, the width of the embeddings")
    rows, vectors = CRITEO[threshold], len(CRITEO[threshold]) + 1
    with torch.device("meta"):
        module = DLRM(
            Table(-(-sum(rows) // devices), width),
            DotInteraction(vectors, width)
            if interaction == "dot"
            else CrossNetwork(vectors, width, depth=cross_layers, rank=cross_rank),
            bottom=[numbers, *below],
            top=[*above, 1],
        )
    optimizer = "sgd-plain" if interaction == "dot" else "adam"
    return _clicks(module, numbers=numbers, categories=len(rows), optimizer=optimizer)


class DeepFM(nn.Module):  # type: ignore[misc]
    """A factorization machine beside an MLP, both on the same vectors of all features (Guo et al. 2017, figure 1).

    A feature's row has its linear weight in front of its vector; numbers scale a row of their own.
    """

    def __init__(self, table: Table, *, features: int, numbers: int, width: int, widths: list[int]) -> None:
        super().__init__()
        self.table = table
        self.numbers = nn.Parameter(torch.empty(numbers, width + 1))
        self.mlp = mlp([(features + numbers) * width, *widths], dropout=0.5)
        self.score = nn.Linear(widths[-1], 1)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Numbers ``[batch, numbers]`` and categories ``[batch, features]`` to logits ``[batch, 1]``."""
        rows = torch.cat([self.table(ids), numbers[:, :, None] * self.numbers], dim=1)
        linear, vectors = rows[:, :, 0], rows[:, :, 1:]
        pairs = (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1, keepdim=True)
        return self.score(self.mlp(vectors.flatten(1))) + linear.sum(dim=1, keepdim=True) + 0.5 * pairs


def deepfm(*, threshold: int = 15, width: int = 10, layers: str = "400x400x400", numbers: int = 13) -> Traceable:
    """DeepFM (Guo et al. 2017, arXiv:1703.04247) on Criteo's clicks; ``threshold`` chooses the tables as for DLRM."""
    if threshold not in CRITEO:
        raise UnknownNameError("threshold of deepfm", str(threshold), map(str, CRITEO))
    check_sizes("deepfm", {"width": width, "numbers": numbers})
    rows = CRITEO[threshold]
    widths = widths_of("deepfm", "layers", layers)
    with torch.device("meta"):
        table = Table(sum(rows), width + 1)
        module = DeepFM(table, features=len(rows), numbers=numbers, width=width, widths=widths)
    return _clicks(module, numbers=numbers, categories=len(rows), optimizer="adam")
