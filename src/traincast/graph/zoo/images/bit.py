"""Big Transfer (Kolesnikov et al. 2019, arXiv:1912.11370): wide ResNets v2 with group norms, standardised weights."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.graph.zoo.images.resnet import BLOCKS, EXPANSION
from traincast.graph.zoo.parts.convolution import image_model, variant
from traincast.graph.zoo.parts.layers import check_sizes
from traincast.graph.zoo.traceable import Traceable

GROUPS: Final = 32


class StandardConv(nn.Conv2d):  # type: ignore[misc]
    """A convolution whose weights are brought to mean 0 and variance 1 (Qiao et al. 2019, arXiv:1903.10520)."""

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, outputs, h / stride, w / stride]``."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        weight = (self.weight - mean) / torch.sqrt(variance + 1e-10)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> StandardConv:
    return StandardConv(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class PreactivatedBottleneck(nn.Module):  # type: ignore[misc]
    """Norm and ReLU before each convolution (He et al. 2016, arXiv:1603.05027)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // EXPANSION
        self.norm1, self.conv1 = nn.GroupNorm(GROUPS, inputs), _conv(inputs, inner, 1)
        self.norm2, self.conv2 = nn.GroupNorm(GROUPS, inner), _conv(inner, inner, 3, stride)
        self.norm3, self.conv3 = nn.GroupNorm(GROUPS, inner), _conv(inner, outputs, 1)
        self.shortcut = _conv(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, outputs, h / stride, w / stride]``."""
        y = functional.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(y)
        y = functional.relu(self.norm2(self.conv1(y)))
        return x + self.conv3(functional.relu(self.norm3(self.conv2(y))))


def bit(*, layers: int = 152, width: int = 2, classes: int = 1000, resolution: int = 480) -> Traceable:
    """BiT: a ResNet of ``layers`` whose channels are multiplied by ``width``."""
    depths = variant(BLOCKS, layers, family="bit")
    check_sizes("bit", {"width": width, "classes": classes, "resolution": resolution})
    inputs = 64 * width
    with torch.device("meta"):
        parts: list[nn.Module] = [_conv(3, inputs, 7, 2), nn.MaxPool2d(3, stride=2, padding=1)]
        for stage, blocks in enumerate(depths):
            outputs, stride = 256 * width * 2**stage, 1 if stage == 0 else 2
            first = PreactivatedBottleneck(inputs, outputs, stride)
            parts.append(
                nn.Sequential(first, *(PreactivatedBottleneck(outputs, outputs, 1) for _ in range(blocks - 1)))
            )
            inputs = outputs
        tail = (nn.GroupNorm(GROUPS, inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        module = nn.Sequential(*parts, *tail, nn.Linear(inputs, classes))
    return image_model(module, resolution=resolution)
