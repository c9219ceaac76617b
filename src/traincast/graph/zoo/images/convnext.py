"""ConvNeXt (Liu et al. 2022, arXiv:2201.03545): a convolutional network with the proportions of a transformer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.images.mobile import StochasticDepth
from traincast.graph.zoo.parts.convolution import image_model
from traincast.graph.zoo.parts.layers import check_sizes
from traincast.graph.zoo.traceable import Traceable

STAGES = 4


class NormOfChannels(nn.LayerNorm):  # type: ignore[misc]
    """Layer normalisation over the channels of ``[batch, channels, h, w]``."""

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, h, w]`` to the same shape."""
        y = functional.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return y.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):  # type: ignore[misc]
    """Depthwise 7×7 convolution, norm, and an MLP of four times the width, scaled by channel (figure 4)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.empty(width, 1, 1))
        self.drop = StochasticDepth()

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, width, h, w]`` to the same shape."""
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(functional.gelu(self.up(y))).permute(0, 3, 1, 2)
        return x + self.drop(self.scale * y)


class ConvNeXt(nn.Module):  # type: ignore[misc]
    """Patches of 4, four stages between which the resolution is halved, and a classifier."""

    def __init__(self, widths: list[int], depths: list[int], *, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 4, stride=4), NormOfChannels(widths[0], eps=1e-6))
        stages, before = [], 0
        for width, depth in zip(widths, depths, strict=True):
            parts: list[nn.Module] = []
            if before:
                parts += [NormOfChannels(before, eps=1e-6), nn.Conv2d(before, width, 2, stride=2)]
            stages.append(nn.Sequential(*parts, *(ConvNeXtBlock(width) for _ in range(depth))))
            before = width
        self.stages = nn.ModuleList(stages)
        self.norm = nn.LayerNorm(widths[-1], eps=1e-6)
        self.classes = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images to logits ``[batch, classes]``."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return self.classes(self.norm(x.mean(dim=(2, 3))))


def convnext(*, width: int = 96, depths: str = "3x3x9x3", classes: int = 1000, resolution: int = 224) -> Traceable:
    """ConvNeXt: ``depths`` are the blocks of the four stages, ``width`` the channels of the first, doubled in each."""
    check_sizes("convnext", {"width": width, "classes": classes, "resolution": resolution})
    texts = str(depths).split("x")
    if len(texts) != STAGES or not all(t.isdecimal() and 0 < int(t) <= 200 for t in texts):
        raise RequestError(f"convnext: depths={depths!r} must be the blocks of four stages, such as 3x3x9x3")
    if resolution < 32:
        raise RequestError(f"convnext: resolution={resolution} must be at least 32, the stride of the last stage")
    with torch.device("meta"):
        widths = [width * 2**stage for stage in range(STAGES)]
        module = ConvNeXt(widths, [int(t) for t in texts], classes=classes)
    return replace(image_model(module, resolution=resolution), optimizer="adamw")
