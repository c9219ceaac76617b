"""What detectors share: a ResNet that gives features of several sizes, and a feature pyramid on it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.images.resnet import bottleneck_stage, stem

WIDTHS = (256, 512, 1024, 2048)
"""Channels of the four stages of ResNet-50, whose strides are 4, 8, 16 and 32."""
PYRAMID = 256
"""Channels of a feature pyramid (Lin et al. 2017, arXiv:1612.03144)."""


class FrozenNorm(nn.Module):  # type: ignore[misc]
    """Batch normalisation whose statistics and scales stay as they were pre-trained: one scale and one shift."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.empty(channels, 1, 1))
        self.register_buffer("shift", torch.empty(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, h, w]`` to the same shape."""
        return x * self.scale + self.shift


def _freeze_norms(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, FrozenNorm(child.num_features))
        else:
            _freeze_norms(child)


class Backbone(nn.Module):  # type: ignore[misc]
    """ResNet-50 without its classifier. With ``frozen``, its norms, its stem and its first stage are not trained."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.stem = stem()
        self.layer1 = bottleneck_stage(64, 64, blocks=3, stride=1)
        self.layer2 = bottleneck_stage(256, 128, blocks=4, stride=2)
        self.layer3 = bottleneck_stage(512, 256, blocks=6, stride=2)
        self.layer4 = bottleneck_stage(1024, 512, blocks=3, stride=2)
        if frozen:
            _freeze_norms(self)
            for part in (self.stem, self.layer1):
                part.requires_grad_(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images to features of strides 4, 8, 16 and 32."""
        x, features = self.stem(images), []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            features.append(x)
        return features


class FeaturePyramid(nn.Module):  # type: ignore[misc]
    """Coarse features added to finer ones from the top down (Lin et al. 2017, figure 3).

    Behind the coarsest level come ``strided`` more, each by a convolution of stride 2; with none, one by pooling.
    """

    def __init__(self, widths: Sequence[int], *, strided: int = 0) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(width, PYRAMID, 1) for width in widths)
        self.outer = nn.ModuleList(nn.Conv2d(PYRAMID, PYRAMID, 3, padding=1) for _ in widths)
        self.coarser = nn.ModuleList(nn.Conv2d(PYRAMID, PYRAMID, 3, stride=2, padding=1) for _ in range(strided))

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Features, the finest first, to levels of ``PYRAMID`` channels, the finest first."""
        inner = [conv(x) for conv, x in zip(self.inner, features, strict=True)]
        for index in reversed(range(len(inner) - 1)):
            size = inner[index].shape[-2:]
            inner[index] = inner[index] + functional.interpolate(inner[index + 1], size=size)
        levels = [conv(x) for conv, x in zip(self.outer, inner, strict=True)]
        if not self.coarser:
            levels.append(functional.max_pool2d(levels[-1], 1, stride=2))
        for index, conv in enumerate(self.coarser):
            levels.append(conv(levels[-1] if index == 0 else functional.relu(levels[-1])))
        return levels


class Tower(nn.Module):  # type: ignore[misc]
    """Convolutions that all levels share, and a last one; with ``normed`` each level has norms of its own."""

    def __init__(
        self, convolutions: Sequence[nn.Module], last: nn.Module, *, levels: int, norm: nn.Module | None
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)
        self.last = last
        self.norms = nn.ModuleList(
            nn.ModuleList(copy.deepcopy(norm) for _ in convolutions) for _ in range(levels if norm is not None else 0)
        )

    def forward(self, levels: Sequence[Tensor]) -> list[Tensor]:
        """Levels of a pyramid to one output each."""
        outputs = []
        for index, level in enumerate(levels):
            x = level
            for depth, conv in enumerate(self.convolutions):
                y = conv(x)
                x = self.norms[index][depth](y) if len(self.norms) else functional.relu(y)
            outputs.append(self.last(x))
        return outputs


def per_box(outputs: Sequence[Tensor], values: int) -> Tensor:
    """Outputs ``[batch, boxes · values, h, w]`` of all levels as ``[batch, values, all boxes]``."""
    return torch.cat([each.reshape(each.shape[0], values, -1) for each in outputs], dim=2)


def sides_of(family: str, size: str, *, stride: int) -> tuple[int, int]:
    """Height and width of images of ``size`` 800x1344, which ``stride`` must divide."""
    texts = str(size).split("x")
    if len(texts) != 2 or not all(t.isdecimal() and int(t) > 0 and int(t) % stride == 0 for t in texts):
        raise RequestError(f"{family}: size={size!r} must be height and width, multiples of {stride}, such as 800x1344")
    return int(texts[0]), int(texts[1])


def focal_loss(logits: Tensor) -> Tensor:
    """Cross-entropy of each class that counts less the surer the prediction (Lin et al. 2017, arXiv:1708.02002)."""
    targets = torch.empty_like(logits)
    probabilities = logits.sigmoid()
    missed = probabilities * (1 - targets) + (1 - probabilities) * targets
    entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return (entropy * missed * missed * (0.75 - 0.5 * targets)).sum()
