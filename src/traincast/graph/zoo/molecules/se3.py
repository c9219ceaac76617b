"""SE(3)-Transformer (Fuchs et al. 2020, arXiv:2006.10503): attention on molecules that turns as they are turned.

A feature of degree d has 2·d + 1 elements. Features of all degrees are one tensor ``[nodes, channels, elements]``, and
convolutions of all pairs of degrees are one product, as in NVIDIA's version with fused kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.layers import check_divides, check_sizes
from traincast.graph.zoo.traceable import Traceable

NODE_FEATURES, EDGE_FEATURES, RADIAL = 6, 4, 32
"""Kinds of atoms and of bonds in QM9, and the width of the network on distances."""


def frequencies(ins: range | list[int], outs: range | list[int]) -> int:
    """Basis kernels between all features of degrees ``ins`` and ``outs``: 2·min + 1 for each pair."""
    return sum(2 * min(a, b) + 1 for a in ins for b in outs)


class EdgeConv(nn.Module):  # type: ignore[misc]
    """Weights that depend on distance and bond, times basis kernels that depend on direction (equation 8)."""

    def __init__(self, channels: int, outputs: int, kernels: int) -> None:
        super().__init__()
        self.channels, self.outputs, self.kernels = channels, outputs, kernels
        self.radial = nn.Sequential(
            nn.Linear(EDGE_FEATURES + 1, RADIAL),
            nn.LayerNorm(RADIAL),
            nn.ReLU(),
            nn.Linear(RADIAL, RADIAL),
            nn.LayerNorm(RADIAL),
            nn.ReLU(),
            nn.Linear(RADIAL, kernels * channels * outputs, bias=False),
        )

    def forward(self, x: Tensor, edges: Tensor, basis: Tensor) -> Tensor:
        """``[edges, channels, in]`` to ``[edges, outputs, out]``; ``basis`` is ``[edges, in, kernels, out]``."""
        weights = self.radial(edges).view(-1, self.outputs, self.channels * self.kernels)
        turned = torch.bmm(x, basis.flatten(2)).view(-1, self.channels * self.kernels, basis.shape[-1])
        return torch.bmm(weights, turned)


class DegreeLinear(nn.Module):  # type: ignore[misc]
    """A linear layer on the channels of each degree."""

    def __init__(self, channels: int, outputs: int, degrees: list[int]) -> None:
        super().__init__()
        self.sizes = [2 * degree + 1 for degree in degrees]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(outputs, channels)) for _ in degrees)

    def forward(self, x: Tensor) -> Tensor:
        """``[nodes, channels, elements]`` to ``[nodes, outputs, elements]``."""
        parts = x.split(self.sizes, dim=2)
        return torch.cat([weight @ part for weight, part in zip(self.weights, parts, strict=True)], dim=2)


class NormNonlinearity(nn.Module):  # type: ignore[misc]
    """Norms of the features through group normalisation and ReLU; directions stay (equation 13)."""

    def __init__(self, channels: int, degrees: list[int]) -> None:
        super().__init__()
        self.sizes = [2 * degree + 1 for degree in degrees]
        self.norm = nn.GroupNorm(len(degrees), channels * len(degrees))

    def forward(self, x: Tensor) -> Tensor:
        """``[nodes, channels, elements]`` to the same shape."""
        parts = x.split(self.sizes, dim=2)
        norms = [part.norm(dim=2).clamp(min=2**-24) for part in parts]
        scaled = functional.relu(self.norm(torch.cat(norms, dim=1))).chunk(len(parts), dim=1)
        return torch.cat([p * (s / n)[:, :, None] for p, s, n in zip(parts, scaled, norms, strict=True)], dim=2)


class AttentionBlock(nn.Module):  # type: ignore[misc]
    """Keys and values by convolutions of the neighbours, queries by a linear layer (section 3.2)."""

    def __init__(self, *, channels: int, hidden: int, heads: int, degrees: list[int], first: bool, divide: int) -> None:
        super().__init__()
        self.heads, self.values, self.first = heads, hidden // divide, first
        self.keys = [0] if first else degrees
        both = 2 * self.values
        if first:
            convs = [EdgeConv(channels, both if degree == 0 else self.values, 1) for degree in degrees]
        else:
            convs = [EdgeConv(channels, both, frequencies(degrees, degrees))]
        self.convs = nn.ModuleList(convs)
        self.query = DegreeLinear(channels, self.values, self.keys)
        self.project = DegreeLinear(self.values if first else self.values + channels, hidden, degrees)
        self.skip = nn.Parameter(torch.empty(hidden, channels)) if first else None
        self.norm = NormNonlinearity(hidden, degrees)

    def _key_values(self, x: Tensor, edges: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
        if not self.first:
            value, key = self.convs[0](x, edges, basis).chunk(2, dim=1)
            return key, value
        parts, at = [], 0
        for degree, conv in enumerate(self.convs):
            size = 2 * degree + 1
            parts.append(conv(x, edges, basis[:, :1, degree : degree + 1, at : at + size]))
            at += size
        value, key = parts[0].chunk(2, dim=1)
        return key, torch.cat([value, *parts[1:]], dim=2)

    def forward(self, x: Tensor, edges: Tensor, basis: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Features of nodes ``[nodes, channels, elements]`` to ``[nodes, hidden, elements]``."""
        nodes = x.shape[0]
        key, value = self._key_values(x.index_select(0, source), edges, basis)
        key = key.reshape(key.shape[0], self.heads, -1)
        query = self.query(x).reshape(nodes, self.heads, -1).index_select(0, target)
        scores = torch.exp((key * query).sum(dim=2) * key.shape[2] ** -0.5)
        total = scores.new_zeros(nodes, self.heads).index_add(0, target, scores)
        weights = scores / total.index_select(0, target)
        weighted = (value.unflatten(1, (self.heads, -1)) * weights[:, :, None, None]).flatten(1, 2)
        mixed = weighted.new_zeros(nodes, *weighted.shape[1:]).index_add(0, target, weighted)
        if self.skip is None:
            return self.norm(self.project(torch.cat([mixed, x], dim=1)))
        y = self.project(mixed)
        return self.norm(torch.cat([y[:, :, :1] + self.skip @ x, y[:, :, 1:]], dim=2))


class SE3Transformer(nn.Module):  # type: ignore[misc]
    """Attention blocks, a last convolution to invariant features, pooling, and an MLP to one property."""

    def __init__(self, *, layers: int, channels: int, heads: int, degrees: int, divide: int) -> None:
        super().__init__()
        every = list(range(degrees))
        self.degrees = degrees
        self.enter = AttentionBlock(
            channels=NODE_FEATURES, hidden=channels, heads=heads, degrees=every, first=True, divide=divide
        )
        self.layers = nn.ModuleList(
            AttentionBlock(channels=channels, hidden=channels, heads=heads, degrees=every, first=False, divide=divide)
            for _ in range(layers - 1)
        )
        outputs = degrees * channels
        self.last = EdgeConv(channels, outputs, frequencies(every, [0]))
        self.own = nn.Parameter(torch.empty(outputs, channels))
        self.mlp = nn.Sequential(nn.Linear(outputs, outputs), nn.ReLU(), nn.Linear(outputs, 1))

    def forward(self, nodes: Tensor, edges: Tensor, basis: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Molecules ``[batch, nodes, 6]`` with bonds ``[batch, edges, 5]`` to one property each, ``[batch, 1]``."""
        batch, count, _ = nodes.shape
        edges, basis, source, target = (t.flatten(0, 1) for t in (edges, basis, source, target))
        x = self.enter(nodes.flatten(0, 1)[:, :, None], edges, basis, source, target)
        for layer in self.layers:
            x = layer(x, edges, basis, source, target)
        y = self.last(x.index_select(0, source), edges, basis[:, :, : self.degrees, :1])
        y = y + self.own @ x[:, :, :1].index_select(0, target)
        pooled = y.new_zeros(batch * count, y.shape[1], 1).index_add(0, target, y)
        return self.mlp(pooled.view(batch, count, -1).amax(dim=1))


def se3_transformer(
    *,
    layers: int = 7,
    channels: int = 32,
    heads: int = 8,
    degrees: int = 4,
    divide: int = 2,
    nodes: int = 18,
    edges: int = 37,
) -> Traceable:
    """SE(3)-Transformer for QM9: a sample is a molecule of ``nodes`` atoms and ``edges`` bonds, each counted both ways.

    18 atoms and 37 edges are QM9's averages. The basis kernels are an input, as they are computed once for a dataset.
    """
    sizes = {"layers": layers, "channels": channels, "heads": heads, "degrees": degrees, "divide": divide}
    check_sizes("se3-transformer", sizes | {"nodes": nodes, "edges": edges})
    whole, remedy = ("channels", channels), "every head has the same channels of every degree"
    check_divides("se3-transformer", whole=whole, parts=("divide · heads", divide * heads), remedy=remedy)
    if layers < 2:
        raise RequestError(f"se3-transformer: layers={layers} must be 2 or more")
    with torch.device("meta"):
        module = SE3Transformer(layers=layers, channels=channels, heads=heads, degrees=degrees, divide=divide)
    elements, kernels = degrees**2, frequencies(range(degrees), range(degrees))

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = next(module.parameters())
        shapes = ((nodes, NODE_FEATURES), (edges, EDGE_FEATURES + 1), (edges, elements, kernels, elements))
        features = (torch.empty((batch, *shape), dtype=like.dtype, device=like.device) for shape in shapes)
        ends = (torch.zeros(batch, edges, dtype=torch.int64, device=like.device) for _ in range(2))
        return (*features, *ends)

    return Traceable(
        module=module, inputs=inputs, loss=lambda y: functional.l1_loss(y, torch.empty_like(y)), optimizer="adam"
    )
