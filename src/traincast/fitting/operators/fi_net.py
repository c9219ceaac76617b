"""FI-Net: a regression network of FNO-Inception modules over the tile axis of an operator.

Flat features pass through a trainable periodic embedding (Gorishniy et al., 2022), which lets a small network follow
steps such as those of tiles and waves. Their summary is added to every position of the sequence. The modules refine
the sequence, and a head reads the sequence and the summary. The output is the logarithm of the time over the baseline.

FNO-Inception runs Fourier layers with different numbers of modes side by side, so that no one number must be chosen. A
Fourier layer (Li et al., "Fourier neural operator", 2021) multiplies the lowest modes of a sequence by learned complex
matrices. A layer with few modes follows slow changes along the sequence, one with many modes follows edges. The
Inception module (Szegedy et al., 2015; swPredictor for operator times) runs several such layers beside a pointwise
path, and mixes their outputs.

Sequences are tensors of [position, sample, channel], so that every step is one large matrix product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from traincast.estimate.operators.network import fourier_matrices


class SpectralMix(nn.Module):
    """Multiplies the lowest modes of a sequence by learned complex matrices.

    ``branches`` lists (channels, modes): the first branch mixes the first channels, the next branch the next ones.
    """

    def __init__(self, length: int, branches: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.branches = branches
        most = max(modes for _, modes in branches)
        if most > length // 2 + 1:
            raise ValueError(f"{most} modes: a sequence of {length} has at most {length // 2 + 1}")
        analysis, synthesis = fourier_matrices(length, most)
        self.register_buffer("analysis", torch.from_numpy(analysis), persistent=False)
        self.register_buffer("synthesis", torch.from_numpy(synthesis), persistent=False)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(modes, 2, width, width) / width) for width, modes in branches
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` [position, sample, channel] with its modes mixed, in the same shape."""
        length, batch, channels = x.shape
        most = self.analysis.shape[0] // 2
        spectrum = (self.analysis @ x.reshape(length, -1)).view(2, most, batch, channels)
        mixed = []
        start = 0
        for (width, modes), weight in zip(self.branches, self.weights, strict=True):
            real, imaginary = spectrum[:, :modes, :, start : start + width]
            a, b = weight[:, 0], weight[:, 1]
            product = torch.stack([real @ a - imaginary @ b, real @ b + imaginary @ a])
            mixed.append(nn.functional.pad(product, (0, 0, 0, 0, 0, most - modes)))
            start += width
        return (self.synthesis @ torch.cat(mixed, dim=-1).reshape(2 * most, -1)).view(length, batch, channels)


class FNOInception(nn.Module):
    """Parallel Fourier branches and a pointwise path, mixed and added to the input."""

    def __init__(self, width: int, length: int, modes: tuple[int, ...]) -> None:
        super().__init__()
        if width % len(modes):
            raise ValueError(f"{width} channels do not divide among {len(modes)} branches")
        self.enter = nn.Linear(width, width)
        self.spectral = SpectralMix(length, tuple((width // len(modes), m) for m in modes))
        self.pointwise = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [position, sample, channel], refined."""
        return x + self.mix(torch.relu(self.spectral(self.enter(x)) + self.pointwise(x)))


class ConvInception(nn.Module):
    """The same module with convolutions of different widths in place of Fourier branches; a rival of FI-Net."""

    def __init__(self, width: int, length: int, kernels: tuple[int, ...]) -> None:
        super().__init__()
        if width % len(kernels) or not all(k % 2 for k in kernels):
            raise ValueError(
                f"{width} channels, kernel widths {kernels}: expected odd widths whose number divides the channels"
            )
        self.enter = nn.Linear(width, width)
        part = width // len(kernels)
        self.branches = nn.ModuleList(nn.Conv1d(part, part, k, padding=k // 2) for k in kernels)
        self.pointwise = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [position, sample, channel], refined."""
        parts = self.enter(x).permute(1, 2, 0).chunk(len(self.branches), dim=1)
        seen = torch.cat([branch(part) for branch, part in zip(self.branches, parts, strict=True)], dim=1)
        return x + self.mix(torch.relu(seen.permute(2, 0, 1) + self.pointwise(x)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetConfig:
    """The size of a network.

    ``modes`` has the number of modes of each Fourier branch, or the kernel width of each convolution. The last
    ``smooth`` flat features get no periodic embedding. ``spread`` is the standard deviation of the initial frequencies.
    A network with the ``body`` "none" ignores the tiles.
    """

    flat: int
    length: int
    channels: int
    categories: int = 0
    smooth: int = 0
    width: int = 24
    modes: tuple[int, ...] = (2, 4, 7, 11)
    blocks: int = 2
    hidden: int = 192
    frequencies: int = 8
    spread: float = 0.3
    body: Literal["fourier", "convolution", "none"] = "fourier"


class FINet(nn.Module):
    """The network that the head of this module describes."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        c = config
        self.config = c
        embedded = c.flat - c.smooth
        self.frequency = nn.Parameter(torch.randn(embedded, c.frequencies) * c.spread)
        self.summary = nn.Linear(c.flat + 2 * embedded * c.frequencies + c.categories, c.hidden)
        read = c.hidden
        if c.body != "none":
            self.lift = nn.Linear(c.channels, c.width)
            self.context = nn.Linear(c.hidden, c.width)
            block = FNOInception if c.body == "fourier" else ConvInception
            self.blocks = nn.ModuleList(block(c.width, c.length, c.modes) for _ in range(c.blocks))
            self.read = nn.Linear(c.length * c.width, c.hidden, bias=False)
        self.head = nn.Linear(read, c.hidden)
        self.deep = nn.Linear(c.hidden, c.hidden)
        self.out = nn.Linear(c.hidden, 1)

    def forward(self, flat: Tensor, tiles: Tensor, categories: Tensor) -> Tensor:
        """Return log(time / baseline) [sample].

        Shapes: ``flat`` [sample, feature], ``tiles`` [sample, position, channel], ``categories`` [sample, category].
        """
        c = self.config
        angle = (flat[:, : c.flat - c.smooth, None] * (2.0 * math.pi * self.frequency)).flatten(1)
        summary = torch.relu(self.summary(torch.cat([flat, torch.sin(angle), torch.cos(angle), categories], dim=1)))
        hidden = self.head(summary)
        if c.body != "none":
            x = self.lift(tiles.transpose(0, 1)) + self.context(summary)
            for block in self.blocks:
                x = block(x)
            hidden = hidden + self.read(x.transpose(0, 1).reshape(len(flat), -1))
        hidden = torch.relu(hidden)
        hidden = hidden + torch.relu(self.deep(hidden))
        result: Tensor = self.out(hidden)[:, 0]
        return result
