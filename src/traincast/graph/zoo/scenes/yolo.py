"""YOLOv5 and YOLOv8 (Jocher et al. 2020 and 2023): detectors in one stage, after their public configurations."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError, UnknownNameError
from traincast.graph.zoo.parts.convolution import conv_norm, image_model
from traincast.graph.zoo.parts.layers import check_sizes
from traincast.graph.zoo.traceable import Traceable

VERSIONS: Final = ("v5", "v8")
CHANNELS: Final = (64, 128, 256, 512, 1024)
"""Channels of the levels of strides 2 to 32, before they are scaled."""
REPEATS: Final = {"v5": (3, 6, 9, 3), "v8": (3, 6, 6, 3)}
"""Blocks of the levels of strides 4 to 32, before they are scaled; those of the neck are three."""
NECK_REPEATS: Final = 3
ANCHORS: Final = 3
BINS: Final = 16
"""Boxes at each place (v5), and bins of a distribution of each distance (v8)."""


def _conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    return conv_norm(inputs, outputs, kernel, stride=stride, activation=nn.SiLU)


class AddedPair(nn.Module):  # type: ignore[misc]
    """Two convolutions, with their input added if ``adds``."""

    def __init__(self, width: int, *, kernel: int, adds: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(width, width, kernel), _conv(width, width, 3))
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, width, h, w]`` to the same shape."""
        return x + self.body(x) if self.adds else self.body(x)


class SplitStage(nn.Module):  # type: ignore[misc]
    """Half of the channels pass ``count`` pairs, the others none, and all are joined (CSP; Wang et al. 2020).

    With ``keeps`` (v8) the output of every pair is joined, otherwise (v5) only that of the last.
    """

    def __init__(self, inputs: int, outputs: int, *, count: int, adds: bool, keeps: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.keeps = keeps
        self.enter = nn.ModuleList([_conv(inputs, 2 * half)] if keeps else [_conv(inputs, half) for _ in range(2)])
        self.pairs = nn.ModuleList(AddedPair(half, kernel=3 if keeps else 1, adds=adds) for _ in range(count))
        self.join = _conv((2 + count if keeps else 2) * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, outputs, h, w]``."""
        if self.keeps:
            parts = list(self.enter[0](x).chunk(2, dim=1))
            for pair in self.pairs:
                parts.append(pair(parts[-1]))
            return self.join(torch.cat(parts, dim=1))
        y = self.enter[0](x)
        for pair in self.pairs:
            y = pair(y)
        return self.join(torch.cat((y, self.enter[1](x)), dim=1))


class PooledPyramid(nn.Module):  # type: ignore[misc]
    """Three poolings of 5×5 one after the other, joined with their input (after He et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = _conv(width, width // 2)
        self.join = _conv(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, width, h, w]`` to the same shape."""
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(functional.max_pool2d(parts[-1], 5, stride=1, padding=2))
        return self.join(torch.cat(parts, dim=1))


class YoloShape(NamedTuple):
    """Version, channels of the levels of strides 2 to 32, and blocks of the backbone's stages and of the neck's."""

    version: str
    channels: list[int]
    repeats: list[int]
    neck: int


class Yolo(nn.Module):  # type: ignore[misc]
    """Backbone, a neck that mixes three levels from the top down and from the bottom up, and a head for each."""

    def __init__(self, shape: YoloShape, *, classes: int) -> None:
        super().__init__()
        version, channels, repeats, count = shape
        self.keeps = version == "v8"
        fine, middle, coarse = channels[2:]
        first = nn.Conv2d(3, channels[0], 3, stride=2, padding=1, bias=False)
        if not self.keeps:
            first = nn.Conv2d(3, channels[0], 6, stride=2, padding=2, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(channels[0]), nn.SiLU(inplace=True))
        self.stages = nn.ModuleList(
            nn.Sequential(_conv(a, b, 3, 2), SplitStage(b, b, count=n, adds=True, keeps=self.keeps))
            for a, b, n in zip(channels, channels[1:], repeats, strict=False)
        )
        self.pool = PooledPyramid(coarse)

        def mix(inputs: int, outputs: int) -> SplitStage:
            return SplitStage(inputs, outputs, count=count, adds=False, keeps=self.keeps)

        self.narrow = nn.ModuleList(
            [nn.Identity(), nn.Identity()] if self.keeps else [_conv(coarse, middle), _conv(middle, fine)]
        )
        self.down = nn.ModuleList(
            [mix(coarse + middle, middle), mix(middle + fine, fine)]
            if self.keeps
            else [mix(2 * middle, middle), mix(2 * fine, fine)]
        )
        self.shrink = nn.ModuleList([_conv(fine, fine, 3, 2), _conv(middle, middle, 3, 2)])
        last = middle + coarse if self.keeps else 2 * middle
        self.up = nn.ModuleList([mix(fine + middle if self.keeps else 2 * fine, middle), mix(last, coarse)])
        self.heads = nn.ModuleList(
            _separate_head(width, fine, classes) if self.keeps else nn.Conv2d(width, ANCHORS * (5 + classes), 1)
            for width in (fine, middle, coarse)
        )
        self.values = 4 * BINS + classes if self.keeps else 5 + classes

    def forward(self, images: Tensor) -> Tensor:
        """Images to the values of all boxes ``[batch, boxes, values]``."""
        x, levels = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        _, fine, middle, _ = levels
        top = self.narrow[0](self.pool(x))
        middle = self.narrow[1](self.down[0](torch.cat((functional.interpolate(top, scale_factor=2.0), middle), dim=1)))
        fine = self.down[1](torch.cat((functional.interpolate(middle, scale_factor=2.0), fine), dim=1))
        middle = self.up[0](torch.cat((self.shrink[0](fine), middle), dim=1))
        coarse = self.up[1](torch.cat((self.shrink[1](middle), top), dim=1))
        boxes = [head(level) for head, level in zip(self.heads, (fine, middle, coarse), strict=True)]
        flat = (y.flatten(2).unflatten(1, (-1, self.values)) for y in boxes)
        return torch.cat([y.transpose(2, 3).flatten(1, 2) for y in flat], dim=1)


class SeparateHead(nn.Module):  # type: ignore[misc]
    """Three convolutions for distances and three for classes (v8)."""

    def __init__(self, inputs: int, distances: int, scores: int, classes: int) -> None:
        super().__init__()
        self.distances = nn.Sequential(
            _conv(inputs, distances, 3), _conv(distances, distances, 3), nn.Conv2d(distances, 4 * BINS, 1)
        )
        self.scores = nn.Sequential(_conv(inputs, scores, 3), _conv(scores, scores, 3), nn.Conv2d(scores, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, 4 · bins + classes, h, w]``."""
        return torch.cat((self.distances(x), self.scores(x)), dim=1)


def _separate_head(inputs: int, finest: int, classes: int) -> SeparateHead:
    return SeparateHead(inputs, max(16, finest // 4, 4 * BINS), max(finest, min(classes, 100)), classes)


def _loss(classes: int, boxes: Tensor) -> Tensor:
    """Squared error of the boxes and cross-entropy of the rest, for every box."""
    places, scores = boxes.split([boxes.shape[-1] - classes, classes], dim=-1)
    entropy = functional.binary_cross_entropy_with_logits(scores, torch.empty_like(scores))
    return entropy + functional.smooth_l1_loss(places, torch.empty_like(places))


def yolo(
    *,
    version: str = "v5",
    width: float = 0.5,
    depth: float = 0.33,
    widest: int = 1024,
    classes: int = 80,
    resolution: int = 640,
) -> Traceable:
    """YOLOv5 or YOLOv8, by ``version``, scaled by ``width`` and ``depth``; ``widest`` limits channels before scaling.

    Boxes are not matched to targets: every one counts in the loss.
    """
    if version not in VERSIONS:
        raise UnknownNameError("version of yolo", version, VERSIONS)
    check_sizes("yolo", {"widest": widest, "classes": classes, "resolution": resolution})
    for name, value in (("width", width), ("depth", depth)):
        if not isinstance(value, int | float) or not 0.1 <= value <= 4:
            raise RequestError(f"yolo: {name}={value!r} must be between 0.1 and 4")
    if resolution % 32:
        raise RequestError(f"yolo: resolution={resolution} must be a multiple of 32, the stride of the coarsest level")
    shape = YoloShape(
        version,
        [-(-int(min(channels, widest) * width) // 8) * 8 for channels in CHANNELS],
        [max(1, round(count * depth)) for count in REPEATS[version]],
        max(1, round(NECK_REPEATS * depth)),
    )
    with torch.device("meta"):
        module = Yolo(shape, classes=classes)
    return image_model(module, resolution=resolution, loss=lambda boxes: _loss(classes, boxes))
