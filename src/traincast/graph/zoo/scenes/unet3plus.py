"""UNet 3+ (Huang et al. 2020, arXiv:2004.08790): every decoder level reads all other levels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.convolution import conv_norm, image_model
from traincast.graph.zoo.parts.layers import check_sizes
from traincast.graph.zoo.traceable import Traceable

LEVELS = 5


class FullScaleNode(nn.Module):  # type: ignore[misc]
    """Finer levels pooled, coarser ones enlarged, each convolved to ``width`` channels, and joined (figure 2)."""

    def __init__(self, level: int, widths: list[int], width: int) -> None:
        super().__init__()
        self.level = level
        self.convs = nn.ModuleList(conv_norm(inputs, width) for inputs in widths)
        self.join = conv_norm(LEVELS * width, LEVELS * width)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Features of all levels, the finest first, to ``[batch, 5 · width, h, w]`` of this level."""
        size = features[self.level].shape[-2:]
        parts = []
        for level, conv in enumerate(self.convs):
            x = features[level]
            if level < self.level:
                x = functional.max_pool2d(x, 2 ** (self.level - level))
            elif level > self.level:
                x = functional.interpolate(x, size=size, mode="bilinear")
            parts.append(conv(x))
        return self.join(torch.cat(parts, dim=1))


class UNet3Plus(nn.Module):  # type: ignore[misc]
    """Five levels down, and decoder levels with full-scale skip connections (section 2.1)."""

    def __init__(self, *, channels: int, classes: int, width: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(LEVELS)]
        self.down = nn.ModuleList(
            nn.Sequential(conv_norm(inputs, outputs), conv_norm(outputs, outputs))
            for inputs, outputs in zip([channels, *widths], widths, strict=False)
        )
        joined = LEVELS * width
        self.up = nn.ModuleList(
            FullScaleNode(level, [*widths[: level + 1], *[joined] * (LEVELS - 2 - level), widths[-1]], width)
            for level in range(LEVELS - 2, -1, -1)
        )
        self.head = nn.Conv2d(joined, classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Images to pixel logits ``[batch, classes, h, w]``."""
        features = []
        for index, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if index else x)
            features.append(x)
        for node in self.up:
            features[node.level] = node(features)
        return self.head(features[0])


def unet3plus(*, channels: int = 3, classes: int = 2, width: int = 64, resolution: int = 320) -> Traceable:
    """UNet 3+ without deep supervision (Huang et al. 2020); ``width`` is that of the finest level."""
    check_sizes("unet3plus", {"channels": channels, "classes": classes, "width": width, "resolution": resolution})
    if resolution % 2 ** (LEVELS - 1):
        raise RequestError(f"unet3plus: resolution={resolution} must be a multiple of {2 ** (LEVELS - 1)}")
    with torch.device("meta"):
        module = UNet3Plus(channels=channels, classes=classes, width=width)
    return image_model(module, resolution=resolution, channels=channels)
