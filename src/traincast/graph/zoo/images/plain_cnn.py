"""Networks that are one chain of convolutions: AlexNet, VGG, SqueezeNet."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from traincast.graph.zoo.parts.convolution import image_model, variant
from traincast.graph.zoo.traceable import Traceable

VGG_BLOCKS: Final[dict[int, tuple[int, ...]]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
"""Convolutions before each of the five poolings (Simonyan & Zisserman 2015, table 1, columns A, B, D, E)."""

VGG_WIDTHS: Final = (64, 128, 256, 512, 512)


def _conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding), nn.ReLU(inplace=True)]


def _dense_classifier(features: int, hidden: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Dropout(),
        nn.Linear(features, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, classes),
    )


def alexnet(*, classes: int = 1000, resolution: int = 224) -> Traceable:
    """AlexNet with one tower (Krizhevsky, "One weird trick", 2014)."""
    with torch.device("meta"):
        module = nn.Sequential(
            *_conv(3, 64, 11, stride=4, padding=2),
            nn.MaxPool2d(3, stride=2),
            *_conv(64, 192, 5, padding=2),
            nn.MaxPool2d(3, stride=2),
            *_conv(192, 384, 3, padding=1),
            *_conv(384, 256, 3, padding=1),
            *_conv(256, 256, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            nn.AdaptiveAvgPool2d(6),
            nn.Flatten(),
            _dense_classifier(256 * 6 * 6, 4096, classes),
        )
    return image_model(module, resolution=resolution)


def vgg_stages(layers: int) -> list[nn.Sequential]:
    """The five stages of a VGG network, without the poolings between them."""
    stages = []
    inputs = 3
    for width, depth in zip(VGG_WIDTHS, variant(VGG_BLOCKS, layers, family="vgg"), strict=True):
        convolutions: list[nn.Module] = []
        for _ in range(depth):
            convolutions += _conv(inputs, width, 3, padding=1)
            inputs = width
        stages.append(nn.Sequential(*convolutions))
    return stages


def vgg(*, layers: int = 16, classes: int = 1000, resolution: int = 224) -> Traceable:
    """VGG without normalisation (Simonyan & Zisserman 2015)."""
    with torch.device("meta"):
        pooled = [layer for stage in vgg_stages(layers) for layer in (stage, nn.MaxPool2d(2))]
        module = nn.Sequential(
            *pooled,
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            _dense_classifier(512 * 7 * 7, 4096, classes),
        )
    return image_model(module, resolution=resolution)


class Fire(nn.Module):  # type: ignore[misc]
    """Squeeze by 1×1, then expand by 1×1 and 3×3 side by side (SqueezeNet, Iandola et al. 2016)."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(*_conv(inputs, squeezed, 1))
        self.expand1 = nn.Sequential(*_conv(squeezed, expanded, 1))
        self.expand3 = nn.Sequential(*_conv(squeezed, expanded, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, 2 expanded, h, w]``."""
        x = self.squeeze(x)
        return torch.cat([self.expand1(x), self.expand3(x)], dim=1)


def squeezenet(*, classes: int = 1000, resolution: int = 224) -> Traceable:
    """SqueezeNet 1.0 (Iandola et al. 2016)."""
    with torch.device("meta"):
        module = nn.Sequential(
            *_conv(3, 96, 7, stride=2),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            Fire(96, 16, 64),
            Fire(128, 16, 64),
            Fire(128, 32, 128),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            Fire(256, 32, 128),
            Fire(256, 48, 192),
            Fire(384, 48, 192),
            Fire(384, 64, 256),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            Fire(512, 64, 256),
            nn.Dropout(),
            *_conv(512, classes, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
    return image_model(module, resolution=resolution)
