"""Single-shot detectors with 300×300 inputs (Liu et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import UnknownNameError
from traincast.graph.zoo.images.plain_cnn import vgg_stages
from traincast.graph.zoo.images.resnet import bottleneck_stage, stem
from traincast.graph.zoo.parts.convolution import conv_norm, cross_entropy, image_model
from traincast.graph.zoo.traceable import Traceable

BOXES: Final = (4, 6, 6, 6, 4, 4)
"""Default boxes per position of the six feature maps: 8732 in all (Liu et al. 2016, section 3.1)."""


class ChannelNorm(nn.Module):  # type: ignore[misc]
    """Each position divided by its norm over channels, times a learned scale (Liu et al. 2015, ParseNet)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, h, w]`` to the same shape."""
        return functional.normalize(x, dim=1) * self.weight.view(1, -1, 1, 1)


class Detector(nn.Module):  # type: ignore[misc]
    """A chain of feature extractors, with heads for box offsets and class scores on each of them."""

    def __init__(
        self, features: Sequence[nn.Module], channels: Sequence[int], norm: nn.Module, *, classes: int
    ) -> None:
        super().__init__()
        self.features = nn.ModuleList(features)
        self.norm = norm
        self.classes = classes
        self.locations = nn.ModuleList(
            nn.Conv2d(c, 4 * boxes, 3, padding=1) for c, boxes in zip(channels, BOXES, strict=True)
        )
        self.scores = nn.ModuleList(
            nn.Conv2d(c, classes * boxes, 3, padding=1) for c, boxes in zip(channels, BOXES, strict=True)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Images to offsets ``[batch, 4, boxes]`` and class scores ``[batch, classes, boxes]``."""
        locations, scores = [], []
        for index, feature in enumerate(self.features):
            x = feature(x)
            y = self.norm(x) if index == 0 else x
            locations.append(self.locations[index](y).reshape(x.shape[0], 4, -1))
            scores.append(self.scores[index](y).reshape(x.shape[0], self.classes, -1))
        return torch.cat(locations, dim=2), torch.cat(scores, dim=2)


def detection_loss(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """Smooth-L1 of the offsets plus cross-entropy of the classes, over all boxes (no mining of negatives)."""
    locations, scores = outputs
    return functional.smooth_l1_loss(locations, torch.empty_like(locations)) + cross_entropy(scores)


def _vgg16(classes: int) -> Detector:
    """VGG-16 until conv4_3, then dilated conv6 and four extra pairs (Liu et al. 2016, figure 2)."""

    def pair(inputs: int, inner: int, outputs: int, *, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, inner, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, outputs, 3, stride=stride, padding=stride - 1),
            nn.ReLU(inplace=True),
        )

    one, two, three, four, five = vgg_stages(16)
    until_4 = nn.Sequential(one, nn.MaxPool2d(2), two, nn.MaxPool2d(2), three, nn.MaxPool2d(2, ceil_mode=True), four)
    until_7 = nn.Sequential(
        nn.MaxPool2d(2),
        five,
        nn.MaxPool2d(3, stride=1, padding=1),
        nn.Conv2d(512, 1024, 3, padding=6, dilation=6),
        nn.ReLU(inplace=True),
        nn.Conv2d(1024, 1024, 1),
        nn.ReLU(inplace=True),
    )
    extras = [
        pair(1024, 256, 512, stride=2),
        pair(512, 128, 256, stride=2),
        pair(256, 128, 256, stride=1),
        pair(256, 128, 256, stride=1),
    ]
    widths = (512, 1024, 512, 256, 256, 256)
    return Detector([until_4, until_7, *extras], widths, ChannelNorm(512), classes=classes)


def _resnet50(classes: int) -> Detector:
    """ResNet-50 until conv4 with stride 1 there, and five extra pairs (NVIDIA's SSD300 v1.1)."""

    def pair(inputs: int, inner: int, outputs: int, *, stride: int) -> nn.Sequential:
        return nn.Sequential(conv_norm(inputs, inner, 1), conv_norm(inner, outputs, stride=stride, padding=stride - 1))

    until_4 = nn.Sequential(
        stem(),
        bottleneck_stage(64, 64, blocks=3, stride=1),
        bottleneck_stage(256, 128, blocks=4, stride=2),
        bottleneck_stage(512, 256, blocks=6, stride=1),
    )
    extras = [
        pair(1024, 256, 512, stride=2),
        pair(512, 256, 512, stride=2),
        pair(512, 128, 256, stride=2),
        pair(256, 128, 256, stride=1),
        pair(256, 128, 256, stride=1),
    ]
    widths = (1024, 512, 512, 256, 256, 256)
    return Detector([until_4, *extras], widths, nn.Identity(), classes=classes)


BACKBONES: Final = {"vgg16": _vgg16, "resnet50": _resnet50}


def ssd300(*, backbone: str = "vgg16", classes: int = 21, resolution: int = 300) -> Traceable:
    """SSD300 (Liu et al. 2016) on ``backbone`` vgg16 or resnet50; ``classes`` counts the background."""
    if backbone not in BACKBONES:
        raise UnknownNameError("backbone of ssd", backbone, BACKBONES)
    with torch.device("meta"):
        module = BACKBONES[backbone](classes)
    return image_model(module, resolution=resolution, loss=detection_loss)
