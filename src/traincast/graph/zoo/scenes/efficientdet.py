"""EfficientDet (Tan et al. 2020, arXiv:1911.09070): a small backbone, and a pyramid run down and up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import UnknownNameError
from traincast.graph.zoo.images.mobile import efficientnet_stages
from traincast.graph.zoo.parts.convolution import image_model
from traincast.graph.zoo.parts.layers import check_sizes
from traincast.graph.zoo.parts.pyramid import Tower, per_box
from traincast.graph.zoo.scenes.retinanet import one_stage_loss
from traincast.graph.zoo.traceable import Traceable

LEVELS: Final = 5
"""Levels of strides 8 to 128."""
ANCHORS: Final = 9


class Scale(NamedTuple):
    """Width and depth of the backbone, channels and repetitions of the pyramid, depth of the heads, resolution."""

    width: float
    depth: float
    channels: int
    repeats: int
    head: int
    resolution: int


SCALES: Final[dict[str, Scale]] = {
    "d0": Scale(1.0, 1.0, 64, 3, 3, 512),
    "d1": Scale(1.0, 1.1, 88, 4, 3, 640),
    "d2": Scale(1.1, 1.2, 112, 5, 3, 768),
    "d3": Scale(1.2, 1.4, 160, 6, 4, 896),
    "d4": Scale(1.4, 1.8, 224, 7, 4, 1024),
    "d5": Scale(1.6, 2.2, 288, 7, 4, 1280),
    "d6": Scale(1.8, 2.6, 384, 8, 5, 1280),
}
"""Table 1 of the paper; the backbones are EfficientNet-B0 to B6."""


def _separable(inputs: int, outputs: int) -> nn.Sequential:
    depthwise = nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False)
    return nn.Sequential(depthwise, nn.Conv2d(inputs, outputs, 1))


def _enter(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.BatchNorm2d(outputs))


class Fusion(nn.Module):  # type: ignore[misc]
    """A weighted sum of two or three inputs, and a separable convolution (section 3.3, fast normalised fusion)."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.empty(inputs))
        self.conv = nn.Sequential(nn.SiLU(), _separable(channels, channels), nn.BatchNorm2d(channels))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Inputs ``[batch, channels, h, w]`` to the same shape."""
        weights = functional.relu(self.weights)
        weights = weights / (weights.sum() + 1e-4)
        total = inputs[0] * weights[0]
        for index, each in enumerate(inputs[1:], start=1):
            total = total + each * weights[index]
        return self.conv(total)


def _halved(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 3, stride=2, padding=1)


def _doubled(x: Tensor, like: Tensor) -> Tensor:
    return functional.interpolate(x, size=like.shape[-2:])


class BiFPN(nn.Module):  # type: ignore[misc]
    """One pass down and one up the pyramid (section 3.2, figure 2d)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(Fusion(2, channels) for _ in range(LEVELS - 1))
        self.up = nn.ModuleList(Fusion(3 if i < LEVELS - 2 else 2, channels) for i in range(LEVELS - 1))

    def forward(self, levels: Sequence[Tensor], again: Sequence[Tensor]) -> list[Tensor]:
        """Levels, the finest first, to levels; ``again`` are the inputs of the way up."""
        coarse = levels[-1]
        middle = [coarse]
        for index, fusion in zip(range(LEVELS - 2, -1, -1), self.down, strict=True):
            middle.insert(0, fusion(levels[index], _doubled(middle[0], levels[index])))
        outputs = [middle[0]]
        for index, fusion in enumerate(self.up, start=1):
            below = _halved(outputs[-1])
            last = index == LEVELS - 1
            outputs.append(fusion(again[index], below) if last else fusion(again[index], middle[index], below))
        return outputs


class EfficientDet(nn.Module):  # type: ignore[misc]
    """EfficientNet's last three sizes of features, the pyramid, and heads that all levels share (figure 3)."""

    def __init__(self, scale: Scale, *, classes: int) -> None:
        super().__init__()
        self.classes = classes
        stages, outputs = efficientnet_stages(width=scale.width, depth=scale.depth)
        groups = (stages[:3], stages[3:5], stages[5:])
        self.backbone = nn.ModuleList(nn.Sequential(*group) for group in groups)
        fine, middle, coarse = outputs[2], outputs[4], outputs[6]
        c = scale.channels
        self.enter = nn.ModuleList(_enter(w, c) for w in (fine, middle, coarse, coarse))
        self.enter_again = nn.ModuleList(_enter(w, c) for w in (middle, coarse))
        self.pyramid = nn.ModuleList(BiFPN(c) for _ in range(scale.repeats))
        self.scores = self._tower(c, classes * ANCHORS, scale.head)
        self.locations = self._tower(c, 4 * ANCHORS, scale.head)

    @staticmethod
    def _tower(channels: int, outputs: int, depth: int) -> Tower:
        norm = nn.Sequential(nn.BatchNorm2d(channels), nn.SiLU())
        convolutions = [_separable(channels, channels) for _ in range(depth)]
        return Tower(convolutions, _separable(channels, outputs), levels=LEVELS, norm=norm)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images to offsets ``[batch, 4, boxes]`` and class scores ``[batch, classes, boxes]``."""
        x, features = images, []
        for group in self.backbone:
            x = group(x)
            features.append(x)
        levels = [enter(x) for enter, x in zip(self.enter, [*features, features[-1]], strict=True)]
        levels[3] = _halved(levels[3])
        levels.append(_halved(levels[3]))
        again = [levels[0], self.enter_again[0](features[1]), self.enter_again[1](features[2]), *levels[3:]]
        for index, layer in enumerate(self.pyramid):
            levels = layer(levels, again if index == 0 else levels)
        return per_box(self.locations(levels), 4), per_box(self.scores(levels), self.classes)


def efficientdet(*, size: str = "d0", classes: int = 90, resolution: int | None = None) -> Traceable:
    """EfficientDet of ``size`` d0 to d6 (Tan et al. 2020, table 1) for COCO."""
    if size not in SCALES:
        raise UnknownNameError("size of efficientdet", size, SCALES)
    side = SCALES[size].resolution if resolution is None else resolution
    check_sizes("efficientdet", {"classes": classes, "resolution": side})
    with torch.device("meta"):
        module = EfficientDet(SCALES[size], classes=classes)
    return image_model(module, resolution=side, loss=one_stage_loss)
