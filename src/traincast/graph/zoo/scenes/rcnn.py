"""Faster R-CNN and Mask R-CNN on a feature pyramid, with proposals whose number and levels are fixed.

A real step keeps the best proposals of an image, drops overlapping ones, and samples some of the rest; their number and
their levels depend on the weights. Here proposals are an input: every image has ``proposals`` boxes, half of them on
the finest level, a quarter on the next, and so on. The scores are sorted as in training, but the suppression of
overlapping boxes and the matching with annotated ones are left out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.graph.zoo.parts.layers import check_choices, check_divides, check_sizes
from traincast.graph.zoo.parts.pyramid import PYRAMID, WIDTHS, Backbone, FeaturePyramid, Tower, per_box, sides_of
from traincast.graph.zoo.traceable import Traceable

ANCHORS = 3
SAMPLES = 2
"""Bilinear samples of a bin of RoIAlign in each direction (He et al. 2017, arXiv:1703.06870, section 3)."""
BOX_BINS, MASK_BINS = 7, 14
CONSIDERED = 2000
"""Boxes of a level that are sorted out by score before overlapping ones are dropped."""


class Outputs(NamedTuple):
    """What the losses are computed from."""

    objects: Tensor
    anchors: Tensor
    scores: Tensor
    boxes: Tensor
    masks: Tensor | None = None


class Align(nn.Module):  # type: ignore[misc]
    """Features of boxes by bilinear sampling and averaging: RoIAlign (He et al. 2017, figure 3)."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins, self.points = bins, bins * SAMPLES
        self.register_buffer("lattice", torch.empty(self.points, self.points, 2), persistent=False)

    def forward(self, levels: list[Tensor], boxes: Tensor) -> Tensor:
        """Boxes ``[batch, boxes, 4]`` of four levels to ``[batch · boxes, channels, bins, bins]``."""
        count = boxes.shape[1]
        shares = [count // 2, count // 4, count // 8, count - count // 2 - count // 4 - count // 8]
        pooled = []
        for features, part in zip(levels, boxes.split(shares, dim=1), strict=True):
            origin, extent = part[:, :, None, None, :2], part[:, :, None, None, 2:]
            grid = (origin + extent * self.lattice).reshape(part.shape[0], -1, self.points, 2)
            sampled = functional.avg_pool2d(functional.grid_sample(features, grid, align_corners=False), SAMPLES)
            pooled.append(sampled.unflatten(2, (part.shape[1], self.bins)))
        return torch.cat(pooled, dim=2).transpose(1, 2).flatten(0, 1)


class MaskHead(nn.Module):  # type: ignore[misc]
    """Four convolutions, a doubling, and one mask for each class (He et al. 2017, figure 4)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.align = Align(MASK_BINS)
        convolutions = (nn.Conv2d(PYRAMID, PYRAMID, 3, padding=1) for _ in range(4))
        self.convolutions = nn.Sequential(*(p for conv in convolutions for p in (conv, nn.ReLU(inplace=True))))
        self.enlarge = nn.ConvTranspose2d(PYRAMID, PYRAMID, 2, stride=2)
        self.masks = nn.Conv2d(PYRAMID, classes, 1)

    def forward(self, levels: list[Tensor], boxes: Tensor) -> Tensor:
        """Boxes ``[batch, boxes, 4]`` to logits ``[batch · boxes, classes, 28, 28]``."""
        x = self.convolutions(self.align(levels, boxes))
        return self.masks(functional.relu(self.enlarge(x)))


class RegionCNN(nn.Module):  # type: ignore[misc]
    """A network that proposes boxes, and heads that classify, refine and mask them."""

    def __init__(self, *, classes: int, proposals: int, masks: bool) -> None:
        super().__init__()
        self.proposals = proposals
        self.backbone = Backbone(frozen=True)
        self.pyramid = FeaturePyramid(WIDTHS)
        self.hidden = Tower([nn.Conv2d(PYRAMID, PYRAMID, 3, padding=1)], nn.Identity(), levels=1, norm=None)
        self.objects = nn.Conv2d(PYRAMID, ANCHORS, 1)
        self.anchors = nn.Conv2d(PYRAMID, 4 * ANCHORS, 1)
        self.align = Align(BOX_BINS)
        self.head = nn.Sequential(
            nn.Linear(PYRAMID * BOX_BINS**2, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 1024), nn.ReLU(inplace=True)
        )
        self.scores = nn.Linear(1024, classes)
        self.boxes = nn.Linear(1024, 4 * classes)
        self.masks = MaskHead(classes) if masks else None

    def forward(self, images: Tensor, boxes: Tensor) -> Outputs:
        """Images and proposals ``[batch, proposals, 4]`` to scores, offsets and masks."""
        levels = self.pyramid(self.backbone(images))
        hidden = self.hidden(levels)
        objects = [self.objects(x) for x in hidden]
        with torch.no_grad():
            for each in objects:
                flat = each.flatten(1)
                flat.sigmoid().topk(min(CONSIDERED, flat.shape[1]), dim=1)
        anchors = per_box([self.anchors(x) for x in hidden], 4)
        pooled = self.head(self.align(levels[:4], boxes).flatten(1))
        masks = None if self.masks is None else self.masks(levels[:4], boxes[:, : self.proposals // 4])
        return Outputs(per_box(objects, 1), anchors, self.scores(pooled), self.boxes(pooled), masks)


def _loss(outputs: Outputs) -> Tensor:
    """Cross-entropies of objects, classes and masks, and smooth-L1 of offsets, without sampling of anchors."""
    classes = torch.empty(outputs.scores.shape[0], dtype=torch.int64, device=outputs.scores.device)
    total = functional.binary_cross_entropy_with_logits(outputs.objects, torch.empty_like(outputs.objects))
    total = total + functional.smooth_l1_loss(outputs.anchors, torch.empty_like(outputs.anchors))
    total = total + functional.cross_entropy(outputs.scores, classes)
    total = total + functional.smooth_l1_loss(outputs.boxes, torch.empty_like(outputs.boxes))
    if outputs.masks is None:
        return total
    return total + functional.binary_cross_entropy_with_logits(outputs.masks, torch.empty_like(outputs.masks))


def rcnn(*, masks: bool = True, classes: int = 91, proposals: int = 512, size: str = "800x1344") -> Traceable:
    """Mask R-CNN (He et al. 2017, arXiv:1703.06870) on ResNet-50, or without ``masks`` Faster R-CNN.

    ``proposals`` boxes of every image are classified, and a quarter of them are masked.
    """
    check_sizes("rcnn", {"classes": classes, "proposals": proposals})
    check_choices("rcnn", {"masks": masks})
    check_divides("rcnn", whole=("proposals", proposals), parts=("share", 32), remedy="choose a multiple of 32")
    height, width = sides_of("rcnn", size, stride=32)
    with torch.device("meta"):
        module = RegionCNN(classes=classes, proposals=proposals, masks=masks)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = next(module.parameters())
        shapes = ((batch, 3, height, width), (batch, proposals, 4))
        return tuple(torch.empty(shape, dtype=like.dtype, device=like.device) for shape in shapes)

    return Traceable(module=module, inputs=inputs, loss=_loss, optimizer="sgd")
