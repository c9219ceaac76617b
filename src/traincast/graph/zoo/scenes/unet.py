"""U-Net for segmentation (Ronneberger et al. 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from traincast.graph.zoo.parts.convolution import conv_norm, image_model
from traincast.graph.zoo.traceable import Traceable


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
