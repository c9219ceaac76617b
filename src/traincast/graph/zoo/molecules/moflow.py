"""MoFlow (Zang and Wang 2020, arXiv:2006.10137): molecules by two invertible flows, of bonds and of atoms."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.graph.zoo.parts.layers import check_divides, check_sizes
from traincast.graph.zoo.traceable import Traceable

BONDS = 4
"""No bond, single, double and triple."""


class ActNorm(nn.Module):  # type: ignore[misc]
    """A learned shift and scale of each channel (Kingma and Dhariwal 2018, arXiv:1807.03039)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.empty(shape))
        self.log_scale = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` scaled, and the logarithm of the determinant."""
        return (x + self.shift) * torch.exp(self.log_scale), self.log_scale.sum()


class BondFlow(nn.Module):  # type: ignore[misc]
    """Half of the channels are scaled and shifted by what three convolutions make of the other half (figure 2)."""

    def __init__(self, channels: int, hidden: int, *, swap: bool) -> None:
        super().__init__()
        self.swap = swap
        self.norm = ActNorm((channels, 1, 1))
        widths = (channels // 2, hidden, hidden)
        parts = [
            p
            for inputs, outputs in itertools.pairwise(widths)
            for p in (nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
        ]
        self.net = nn.Sequential(*parts, nn.Conv2d(hidden, channels, 3, padding=1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``[batch, channels, h, w]`` to the same shape, and the logarithm of the determinant."""
        x, logdet = self.norm(x)
        kept, changed = x.chunk(2, dim=1)
        if self.swap:
            kept, changed = changed, kept
        scale, shift = self.net(kept).chunk(2, dim=1)
        changed = (changed + shift) * torch.sigmoid(scale)
        logdet = logdet + functional.softplus(-scale).neg().flatten(1).sum(dim=1)
        return torch.cat([changed, kept] if self.swap else [kept, changed], dim=1), logdet


class NodeNorm(nn.Module):  # type: ignore[misc]
    """Batch normalisation with one channel for each node, and ReLU."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(nodes)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, nodes, 1, width]`` to the same shape."""
        return functional.relu(self.norm(x))


class AtomFlow(nn.Module):  # type: ignore[misc]
    """The atoms but one are scaled and shifted by a graph convolution on all the others (figure 3)."""

    def __init__(self, nodes: int, kinds: int, graph: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.norm = ActNorm((nodes, 1))
        self.register_buffer("mask", torch.empty(nodes, kinds))
        self.own = nn.Linear(kinds, graph)
        self.edges = nn.Linear(kinds, BONDS * graph)
        self.graph_norm = NodeNorm(nodes)
        sizes = (graph, *widths)
        self.net = nn.Sequential(*(p for a, b in itertools.pairwise(sizes) for p in (nn.Linear(a, b), NodeNorm(nodes))))
        self.out = nn.Linear(sizes[-1], 2 * kinds)

    def forward(self, bonds: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Atoms ``[batch, nodes, kinds]`` to the same shape, given bonds ``[batch, 4, nodes, nodes]``."""
        x, logdet = self.norm(x)
        kept = self.mask * x
        messages = self.edges(kept).unflatten(2, (BONDS, -1)).transpose(1, 2)
        hidden = self.own(kept) + torch.matmul(bonds, messages).sum(dim=1)
        scale, shift = self.out(self.net(self.graph_norm(hidden[:, :, None]))).squeeze(2).chunk(2, dim=-1)
        x = kept + (1 - self.mask) * (x + shift) * torch.sigmoid(scale)
        return x, logdet + functional.softplus(-scale).neg().flatten(1).sum(dim=1)


class MoFlow(nn.Module):  # type: ignore[misc]
    """Bonds through convolutional flows, atoms through flows on the graph of bonds (figure 1)."""

    def __init__(
        self, *, nodes: int, kinds: int, fold: int, bond_flows: int, atom_flows: int, hidden: int, graph: int
    ) -> None:
        super().__init__()
        self.fold = fold
        self.bonds = nn.ModuleList(
            BondFlow(BONDS * fold * fold, hidden, swap=bool(index % 2)) for index in range(bond_flows)
        )
        self.atoms = nn.ModuleList(AtomFlow(nodes, kinds, graph, (512, 64)) for _ in range(atom_flows))
        self.log_variance = nn.Parameter(torch.empty(1))

    def forward(self, bonds: Tensor, atoms: Tensor) -> Tensor:
        """The negative log-likelihood of each molecule, ``[batch]``."""
        bonds = bonds + torch.rand_like(bonds) * 0.6
        x = functional.pixel_unshuffle(bonds, self.fold)
        total: Tensor | None = None
        for flow in self.bonds:
            x, logdet = flow(x)
            total = logdet if total is None else total + logdet
        y = atoms + torch.rand_like(atoms) * 0.6
        for flow in self.atoms:
            y, logdet = flow(bonds, y)
            total = logdet if total is None else total + logdet
        codes = torch.cat([x.flatten(1), y.flatten(1)], dim=1)
        likelihood = (codes * codes * torch.exp(-self.log_variance) + self.log_variance).sum(dim=1)
        return 0.5 * likelihood - total


def moflow(
    *,
    nodes: int = 40,
    kinds: int = 10,
    fold: int = 20,
    bond_flows: int = 10,
    atom_flows: int = 38,
    hidden: int = 512,
    graph: int = 256,
) -> Traceable:
    """MoFlow for ZINC 250k as NVIDIA trains it: a sample is a molecule of up to ``nodes`` atoms of ``kinds``."""
    sizes = {"nodes": nodes, "kinds": kinds, "fold": fold, "bond_flows": bond_flows, "atom_flows": atom_flows}
    check_sizes("moflow", sizes | {"hidden": hidden, "graph": graph})
    check_divides("moflow", whole=("nodes", nodes), parts=("fold", fold), remedy="a molecule is folded into squares")
    with torch.device("meta"):
        module = MoFlow(
            nodes=nodes,
            kinds=kinds,
            fold=fold,
            bond_flows=bond_flows,
            atom_flows=atom_flows,
            hidden=hidden,
            graph=graph,
        )

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = next(module.parameters())
        shapes = ((batch, BONDS, nodes, nodes), (batch, nodes, kinds))
        return tuple(torch.empty(shape, dtype=like.dtype, device=like.device) for shape in shapes)

    return Traceable(module=module, inputs=inputs, loss=lambda output: output.mean(), optimizer="adam")
