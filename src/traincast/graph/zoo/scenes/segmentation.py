"""Semantic segmentation on a dilated ResNet: DeepLabV3 (Chen et al. 2017) and FCN (Long et al. 2015)."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import UnknownNameError
from traincast.graph.zoo.images.resnet import BLOCKS, bottleneck_stage, stem
from traincast.graph.zoo.parts.convolution import conv_norm, cross_entropy, image_model, variant
from traincast.graph.zoo.parts.layers import check_sizes
from traincast.graph.zoo.traceable import Traceable

RATES: Final = (12, 24, 36)
"""Dilations of the pyramid at an output stride of 8 (Chen et al. 2017, section 4.1)."""
FEATURES: Final = 2048
AUXILIARY: Final = 1024
"""Channels of the last two stages of the backbone."""
WIDTH: Final = 256
AUXILIARY_SHARE: Final = 0.5
"""Weight of the auxiliary head's loss."""


class DilatedPyramid(nn.Module):  # type: ignore[misc]
    """Atrous spatial pyramid pooling: one 1×1 and three dilated 3×3 convolutions, and the mean of the image."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [conv_norm(inputs, WIDTH, 1), *(conv_norm(inputs, WIDTH, dilation=rate) for rate in RATES)]
        )
        self.image = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv_norm(inputs, WIDTH, 1))
        self.join = nn.Sequential(conv_norm((len(RATES) + 2) * WIDTH, WIDTH, 1), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, 256, h, w]``."""
        parts = [branch(x) for branch in self.branches]
        parts.append(functional.interpolate(self.image(x), size=x.shape[-2:], mode="bilinear", align_corners=False))
        return self.join(torch.cat(parts, dim=1))


def _deeplab_head(inputs: int, classes: int) -> nn.Sequential:
    return nn.Sequential(DilatedPyramid(inputs), conv_norm(WIDTH, WIDTH), nn.Conv2d(WIDTH, classes, 1))


def _plain_head(inputs: int, classes: int) -> nn.Sequential:
    return nn.Sequential(conv_norm(inputs, inputs // 4), nn.Dropout(0.1), nn.Conv2d(inputs // 4, classes, 1))


HEADS: Final = {"deeplabv3": _deeplab_head, "fcn": _plain_head}


class Segmenter(nn.Module):  # type: ignore[misc]
    """A ResNet whose last two stages dilate instead of striding, a head, and an auxiliary head for training."""

    def __init__(self, *, head: str, layers: int, classes: int) -> None:
        super().__init__()
        blocks = variant({depth: BLOCKS[depth] for depth in (50, 101, 152)}, layers, family="segmentation")
        self.stem = stem()
        self.layer1 = bottleneck_stage(64, 64, blocks=blocks[0], stride=1)
        self.layer2 = bottleneck_stage(256, 128, blocks=blocks[1], stride=2)
        self.layer3 = bottleneck_stage(512, 256, blocks=blocks[2], stride=1, dilations=(1, 2))
        self.layer4 = bottleneck_stage(1024, 512, blocks=blocks[3], stride=1, dilations=(2, 4))
        self.head = HEADS[head](FEATURES, classes)
        self.auxiliary = _plain_head(AUXILIARY, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images to logits of every pixel ``[batch, classes, h, w]``, of the head and of the auxiliary one."""
        x = self.layer3(self.layer2(self.layer1(self.stem(images))))
        outputs = self.head(self.layer4(x)), self.auxiliary(x)
        size = images.shape[-2:]
        one, two = (functional.interpolate(y, size=size, mode="bilinear", align_corners=False) for y in outputs)
        return one, two


def _loss(outputs: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(outputs[0]) + AUXILIARY_SHARE * cross_entropy(outputs[1])


def segmentation(*, head: str = "deeplabv3", layers: int = 50, classes: int = 21, resolution: int = 480) -> Traceable:
    """DeepLabV3 (arXiv:1706.05587) or FCN (arXiv:1411.4038), by ``head``, on a ResNet of ``layers``; stride 8."""
    check_sizes("segmentation", {"layers": layers, "classes": classes, "resolution": resolution})
    if head not in HEADS:
        raise UnknownNameError("head of segmentation", head, HEADS)
    with torch.device("meta"):
        module = Segmenter(head=head, layers=layers, classes=classes)
    return image_model(module, resolution=resolution, loss=_loss)
