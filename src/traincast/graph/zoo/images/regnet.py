"""RegNet (Radosavovic et al. 2020, arXiv:2003.13678): residual networks whose widths follow a quantised line."""

from __future__ import annotations

import math
from itertools import groupby

import torch
from torch import Tensor, nn

from traincast.errors import RequestError
from traincast.graph.zoo.images.mobile import SqueezeExcite
from traincast.graph.zoo.images.resnet import Residual
from traincast.graph.zoo.parts.convolution import conv_norm, divisible, image_model
from traincast.graph.zoo.parts.layers import check_choices, check_sizes
from traincast.graph.zoo.traceable import Traceable

STEM = 32
STEP = 8
"""Channels of the stem, and the number that widths of blocks are multiples of."""


def widths_of_blocks(*, layers: int, start: float, slope: float, ratio: float, group: int) -> list[int]:
    """Widths of all blocks (section 3.3, equations 2 to 4), rounded to whole groups.

    Block ``i`` is to have ``start + slope · i`` channels; it gets the nearest ``start · ratio ** n``.
    """
    widths = []
    for index in range(layers):
        power = round(math.log((start + slope * index) / start) / math.log(ratio))
        width = int(round(start * ratio**power / STEP) * STEP)
        widths.append(divisible(width, min(group, width)))
    return widths


def _block(inputs: int, outputs: int, *, stride: int, group: int, excites: bool) -> Residual:
    """A bottleneck as wide inside as outside (figure 4); its gate is squeezed to a quarter of its inputs."""
    parts: list[nn.Module] = [
        conv_norm(inputs, outputs, 1),
        conv_norm(outputs, outputs, stride=stride, groups=outputs // min(group, outputs)),
    ]
    if excites:
        gate = SqueezeExcite(outputs, round(inputs / 4), smooth=False)
        gate.gate[-1] = nn.Sigmoid()
        parts.append(gate)
    parts.append(conv_norm(outputs, outputs, 1, activation=None))
    same = stride == 1 and inputs == outputs
    shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride=stride, activation=None)
    return Residual(nn.Sequential(*parts), shortcut)


class RegNet(nn.Module):  # type: ignore[misc]
    """Stem, stages of blocks of equal width, each of which halves the resolution, and a classifier."""

    def __init__(self, widths: list[int], *, group: int, excites: bool, classes: int) -> None:
        super().__init__()
        self.stem = conv_norm(3, STEM, stride=2)
        inputs, stages = STEM, []
        for width, run in groupby(widths):
            blocks = []
            for index, _ in enumerate(run):
                blocks.append(_block(inputs, width, stride=1 if index else 2, group=group, excites=excites))
                inputs = width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Images to logits ``[batch, classes]``."""
        return self.head(self.stages(self.stem(images)))


def regnet(
    *,
    layers: int = 16,
    start: int = 48,
    slope: float = 27.89,
    ratio: float = 2.09,
    group: int = 8,
    excites: bool = True,
    classes: int = 1000,
    resolution: int = 224,
) -> Traceable:
    """RegNetY, or without squeeze-and-excitation (``excites``) RegNetX.

    ``layers`` blocks; ``start``, ``slope`` and ``ratio`` are w0, wa and wm of the paper, ``group`` its group width.
    """
    sizes = {"layers": layers, "start": start, "group": group, "classes": classes, "resolution": resolution}
    check_sizes("regnet", sizes)
    check_choices("regnet", {"excites": excites})
    if not isinstance(slope, int | float) or not isinstance(ratio, int | float) or slope < 0 or ratio <= 1:
        raise RequestError(f"regnet: slope={slope!r} must be 0 or more, and ratio={ratio!r} more than 1")
    widths = widths_of_blocks(layers=layers, start=start, slope=slope, ratio=ratio, group=group)
    with torch.device("meta"):
        module = RegNet(widths, group=group, excites=excites, classes=classes)
    return image_model(module, resolution=resolution)
