"""FI-Net: a regression network of FNO-Inception modules over the tile axis of an operator.

Flat features pass through a trainable periodic embedding (Gorishniy et al., 2022), which lets a small network follow
steps such as those of tiles and waves. Their summary is added to every position of the sequence. The modules refine
the sequence, and a head reads the sequence and the summary. The output is the logarithm of the time over the baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from traincast.fitting.operators.fno_inception import ConvInception, FNOInception


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
