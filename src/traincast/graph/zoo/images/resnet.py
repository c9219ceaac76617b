"""Residual networks: ResNet v1.5 and ResNeXt for ImageNet, the small ResNets for CIFAR, and Big Transfer.

Big Transfer (Kolesnikov et al. 2019, arXiv:1912.11370) has wide ResNets v2 with group norms and standardised weights.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.convolution import conv_norm, image_model, variant
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


BLOCKS: Final[dict[int, tuple[int, int, int, int]]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Blocks of the four stages (He et al. 2016, table 1); from 50 layers on they are bottlenecks."""

EXPANSION: Final = 4
"""Output channels of a bottleneck over its nominal width."""


class Residual(nn.Module):  # type: ignore[misc]
    """``relu(body(x) + shortcut(x))`` (He et al. 2016, equation 1)."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, outputs, h / stride, w / stride]``."""
        y = self.body(x)
        y += self.shortcut(x)
        return self.relu(y)


class PaddedShortcut(nn.Module):  # type: ignore[misc]
    """Every second pixel, and zeros for the new channels (He et al. 2016, shortcut option A)."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.added = added

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, c, h, w]`` to ``[batch, c + added, h / 2, w / 2]``."""
        before = self.added // 2
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.added - before))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return conv_norm(inputs, outputs, 1, stride=stride, activation=None)


def _basic_body(inputs: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(conv_norm(inputs, width, stride=stride), conv_norm(width, width, activation=None))


def _bottleneck_body(
    inputs: int, inner: int, outputs: int, *, stride: int = 1, groups: int = 1, dilation: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        conv_norm(inputs, inner, 1),
        conv_norm(inner, inner, stride=stride, groups=groups, dilation=dilation),
        conv_norm(inner, outputs, 1, activation=None),
    )


def bottleneck_stage(
    inputs: int,
    width: int,
    *,
    blocks: int,
    stride: int,
    groups: int = 1,
    group_width: int = 64,
    dilations: tuple[int, int] = (1, 1),
) -> nn.Sequential:
    """``blocks`` bottlenecks of which the first strides, in its 3×3 convolution (ResNet v1.5).

    ``dilations`` are those of the 3×3 convolutions of the first block and of the others.
    """
    outputs = width * EXPANSION
    inner = width * group_width // 64 * groups
    body = _bottleneck_body(inputs, inner, outputs, stride=stride, groups=groups, dilation=dilations[0])
    first = Residual(body, _projection(inputs, outputs, stride))
    rest = [
        Residual(_bottleneck_body(outputs, inner, outputs, groups=groups, dilation=dilations[1]), nn.Identity())
        for _ in range(blocks - 1)
    ]
    return nn.Sequential(first, *rest)


def _basic_stage(inputs: int, width: int, *, blocks: int, stride: int) -> nn.Sequential:
    first = Residual(_basic_body(inputs, width, stride), _projection(inputs, width, stride))
    return nn.Sequential(first, *(Residual(_basic_body(width, width, 1), nn.Identity()) for _ in range(blocks - 1)))


def stem() -> nn.Sequential:
    """7×7 convolution and pooling that leave a quarter of the resolution, in 64 channels."""
    return nn.Sequential(conv_norm(3, 64, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1))


class ResNet(nn.Module):  # type: ignore[misc]
    """Stem, four stages of residual blocks, and a linear classifier (He et al. 2016; Xie et al. 2017)."""

    def __init__(self, layers: int, *, groups: int, group_width: int, classes: int) -> None:
        super().__init__()
        depths = variant(BLOCKS, layers, family="resnet")
        if layers < 50 and (groups, group_width) != (1, 64):
            raise RequestError(f"resnet with layers={layers} has no groups: choose 50, 101 or 152 layers")
        self.stem = stem()
        inputs = 64
        stages = []
        for index, blocks in enumerate(depths):
            width, stride = 64 * 2**index, 1 if index == 0 else 2
            if layers < 50:
                stages.append(_basic_stage(inputs, width, blocks=blocks, stride=stride))
                inputs = width
            else:
                stages.append(
                    bottleneck_stage(
                        inputs, width, blocks=blocks, stride=stride, groups=groups, group_width=group_width
                    )
                )
                inputs = width * EXPANSION
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits ``[batch, classes]``."""
        x = self.layer2(self.layer1(self.stem(x)))
        return self.head(self.layer4(self.layer3(x)))


def resnet(
    *, layers: int = 50, groups: int = 1, group_width: int = 64, classes: int = 1000, resolution: int = 224
) -> Traceable:
    """ResNet v1.5 (He et al. 2016), or with ``groups`` of ``group_width`` ResNeXt (Xie et al. 2017)."""
    with torch.device("meta"):
        module = ResNet(layers, groups=groups, group_width=group_width, classes=classes)
    return image_model(module, resolution=resolution)


class CifarResNet(nn.Module):  # type: ignore[misc]
    """6n + 2 layers: three stages of n basic blocks, 16, 32 and 64 wide (He et al. 2016, section 4.2)."""

    def __init__(self, blocks: int, *, classes: int) -> None:
        super().__init__()
        self.stem = conv_norm(3, 16)
        self.layer1 = nn.Sequential(*(Residual(_basic_body(16, 16, 1), nn.Identity()) for _ in range(blocks)))
        self.layer2 = self._stage(16, 32, blocks)
        self.layer3 = self._stage(32, 64, blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))

    @staticmethod
    def _stage(inputs: int, width: int, blocks: int) -> nn.Sequential:
        first = Residual(_basic_body(inputs, width, 2), PaddedShortcut(width - inputs))
        rest = (Residual(_basic_body(width, width, 1), nn.Identity()) for _ in range(blocks - 1))
        return nn.Sequential(first, *rest)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits ``[batch, classes]``."""
        return self.head(self.layer3(self.layer2(self.layer1(self.stem(x)))))


def resnet_cifar(*, layers: int = 20, classes: int = 10, resolution: int = 32) -> Traceable:
    """ResNet for CIFAR with parameter-free shortcuts (He et al. 2016, section 4.2)."""
    blocks, rest = divmod(layers - 2, 6)
    if blocks < 1 or rest:
        raise RequestError(f"resnet-cifar with layers={layers} is not 6n + 2: choose 20, 32, 44, 56 or 110")
    with torch.device("meta"):
        module = CifarResNet(blocks, classes=classes)
    return image_model(module, resolution=resolution)
