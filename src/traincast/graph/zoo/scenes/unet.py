"""U-Nets for segmentation.

U-Net (Ronneberger et al. 2015) joins every level of the encoder with the same level of the decoder; in UNet 3+ (Huang
et al. 2020, arXiv:2004.08790) every level of the decoder reads all other levels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.convolution import conv_norm, image_model
from traincast.graph.zoo.parts.layers import check_sizes
from traincast.graph.zoo.traceable import Traceable


class UpBlock(nn.Module):  # type: ignore[misc]
    """Upsample by 2, join the cropped features of the way down, and convolve twice."""

    def __init__(self, inputs: int, *, padded: bool, norm: bool) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(inputs, inputs // 2, 2, stride=2)
        self.conv = _double_conv(inputs, inputs // 2, padded=padded, norm=norm)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """``x`` of ``[batch, inputs, h, w]``; ``skip`` of half the channels and at least twice the size."""
        x = self.up(x)
        height, width = x.shape[-2:]
        top, left = (skip.shape[-2] - height) // 2, (skip.shape[-1] - width) // 2
        cropped = skip[:, :, top : top + height, left : left + width]
        return self.conv(torch.cat([cropped, x], dim=1))


class UNet(nn.Module):  # type: ignore[misc]
    """Contract over ``depth`` levels, expand again with skip connections, classify pixels."""

    def __init__(self, *, channels: int, classes: int, width: int, depth: int, padded: bool, norm: bool) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            _double_conv(inputs, outputs, padded=padded, norm=norm)
            for inputs, outputs in zip([channels, *widths], widths, strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(UpBlock(inputs, padded=padded, norm=norm) for inputs in widths[:0:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images to pixel logits ``[batch, classes, h', w']``."""
        skips = []
        for index, block in enumerate(self.down):
            x = block(self.pool(x) if index else x)
            skips.append(x)
        skips.pop()
        for up in self.up:
            x = up(x, skips.pop())
        return self.head(x)


def unet(
    *,
    channels: int = 1,
    classes: int = 2,
    width: int = 64,
    depth: int = 4,
    padded: bool = False,
    norm: bool = False,
    resolution: int = 572,
) -> Traceable:
    """U-Net (Ronneberger et al. 2015), or as in later use ``padded`` and with batch ``norm``."""
    with torch.device("meta"):
        module = UNet(channels=channels, classes=classes, width=width, depth=depth, padded=padded, norm=norm)
    return image_model(module, resolution=resolution, channels=channels)


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


def _double_conv(inputs: int, outputs: int, *, padded: bool, norm: bool) -> nn.Sequential:
    padding = 1 if padded else 0
    if norm:
        return nn.Sequential(conv_norm(inputs, outputs, padding=padding), conv_norm(outputs, outputs, padding=padding))
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=padding),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=padding),
        nn.ReLU(inplace=True),
    )
