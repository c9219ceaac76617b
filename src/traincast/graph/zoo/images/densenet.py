"""Densely connected networks (Huang et al. 2017)."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from traincast.errors import RequestError
from traincast.graph.zoo.parts.convolution import conv_norm, image_model, variant
from traincast.graph.zoo.parts.layers import check_sizes
from traincast.graph.zoo.traceable import Traceable

VARIANTS: Final[dict[int, tuple[int, int, tuple[int, ...]]]] = {
    121: (32, 64, (6, 12, 24, 16)),
    161: (48, 96, (6, 12, 36, 24)),
    169: (32, 64, (6, 12, 32, 32)),
    201: (32, 64, (6, 12, 48, 32)),
}
"""Growth rate, channels of the stem, and layers of each dense block (Huang et al. 2017, table 1)."""

BOTTLENECK: Final = 4
"""Channels of a layer's first convolution over the growth rate."""


def _norm_conv(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(inputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False),
    )


class DenseLayer(nn.Module):  # type: ignore[misc]
    """Adds ``growth`` channels computed from all channels before (Huang et al. 2017, equation 2)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        inner = BOTTLENECK * growth
        self.body = nn.Sequential(_norm_conv(inputs, inner, 1), _norm_conv(inner, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, inputs + growth, h, w]``."""
        return torch.cat([x, self.body(x)], dim=1)


class PlainDenseLayer(nn.Module):  # type: ignore[misc]
    """A dense layer of one convolution, without a bottleneck (Huang et al. 2017, section 3)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = _norm_conv(inputs, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, inputs + growth, h, w]``."""
        return torch.cat([x, self.body(x)], dim=1)


def densenet_cifar(*, layers: int = 40, growth: int = 12, classes: int = 10, resolution: int = 32) -> Traceable:
    """DenseNet for CIFAR without bottlenecks: three dense blocks of equal depth (Huang et al. 2017, section 3)."""
    check_sizes("densenet-cifar", {"layers": layers, "growth": growth, "classes": classes})
    depth, rest = divmod(layers - 4, 3)
    if depth < 1 or rest:
        raise RequestError(f"densenet-cifar with layers={layers} is not 3n + 4: choose 40, 100 or 190")
    channels = 16
    with torch.device("meta"):
        parts: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
        for block in range(3):
            if block:
                parts += [_norm_conv(channels, channels, 1), nn.AvgPool2d(2)]
            parts.append(nn.Sequential(*(PlainDenseLayer(channels + i * growth, growth) for i in range(depth))))
            channels += depth * growth
        head = (nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        module = nn.Sequential(*parts, *head, nn.Linear(channels, classes))
    return image_model(module, resolution=resolution)


def densenet(*, layers: int = 121, classes: int = 1000, resolution: int = 224) -> Traceable:
    """DenseNet-BC for ImageNet (Huang et al. 2017)."""
    growth, channels, depths = variant(VARIANTS, layers, family="densenet")
    with torch.device("meta"):
        parts: list[nn.Module] = [
            conv_norm(3, channels, 7, stride=2),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        for depth in depths:
            if len(parts) > 2:
                parts += [_norm_conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
            parts.append(nn.Sequential(*(DenseLayer(channels + i * growth, growth) for i in range(depth))))
            channels += depth * growth
        head = (nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        module = nn.Sequential(*parts, *head, nn.Linear(channels, classes))
    return image_model(module, resolution=resolution)
