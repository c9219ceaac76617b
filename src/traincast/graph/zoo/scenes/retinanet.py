"""Detectors in one stage on a feature pyramid: RetinaNet, and TensorFlow's SSD with FPN."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.graph.zoo.parts.layers import check_choices, check_sizes
from traincast.graph.zoo.parts.pyramid import (
    PYRAMID,
    WIDTHS,
    Backbone,
    FeaturePyramid,
    Tower,
    focal_loss,
    per_box,
    sides_of,
)
from traincast.graph.zoo.traceable import Traceable

LEVELS = 5
"""Levels of strides 8 to 128."""


class RetinaNet(nn.Module):  # type: ignore[misc]
    """One tower for classes and one for offsets, shared by all levels (Lin et al. 2017, figure 3)."""

    def __init__(self, *, classes: int, anchors: int, frozen: bool, normed: bool) -> None:
        super().__init__()
        self.classes = classes
        self.backbone = Backbone(frozen=frozen)
        self.pyramid = FeaturePyramid(WIDTHS[1:], strided=2)
        self.scores = self._tower(classes * anchors, normed=normed)
        self.locations = self._tower(4 * anchors, normed=normed)

    @staticmethod
    def _tower(outputs: int, *, normed: bool) -> Tower:
        convolutions = [nn.Conv2d(PYRAMID, PYRAMID, 3, padding=1, bias=not normed) for _ in range(4)]
        norm = nn.Sequential(nn.BatchNorm2d(PYRAMID), nn.ReLU(inplace=True)) if normed else None
        return Tower(convolutions, nn.Conv2d(PYRAMID, outputs, 3, padding=1), levels=LEVELS, norm=norm)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images to offsets ``[batch, 4, boxes]`` and class scores ``[batch, classes, boxes]``."""
        levels = self.pyramid(self.backbone(images)[1:])
        return per_box(self.locations(levels), 4), per_box(self.scores(levels), self.classes)


def one_stage_loss(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """Smooth-L1 of the offsets plus focal loss of the classes, over all boxes."""
    locations, scores = outputs
    return functional.smooth_l1_loss(locations, torch.empty_like(locations)) + focal_loss(scores)


def retinanet(
    *, classes: int = 91, anchors: int = 9, size: str = "800x1344", frozen: bool = True, normed: bool = False
) -> Traceable:
    """RetinaNet on ResNet-50 (Lin et al. 2017, arXiv:1708.02002), or with ``normed`` towers SSD with FPN."""
    check_sizes("retinanet", {"classes": classes, "anchors": anchors})
    check_choices("retinanet", {"frozen": frozen, "normed": normed})
    height, width = sides_of("retinanet", size, stride=32)
    with torch.device("meta"):
        module = RetinaNet(classes=classes, anchors=anchors, frozen=frozen, normed=normed)

    def images(batch: int) -> tuple[Tensor, ...]:
        like = next(module.parameters())
        return (torch.empty(batch, 3, height, width, dtype=like.dtype, device=like.device),)

    return Traceable(module=module, inputs=images, loss=one_stage_loss, optimizer="sgd")
