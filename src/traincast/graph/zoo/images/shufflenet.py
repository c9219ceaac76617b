"""ShuffleNet V2 (Ma et al. 2018)."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from traincast.errors import RequestError
from traincast.graph.zoo.parts.convolution import conv_norm, image_model
from traincast.graph.zoo.traceable import Traceable

BLOCKS: Final = (4, 8, 4)

WIDTHS: Final[dict[float, tuple[int, int, int, int]]] = {
    0.5: (48, 96, 192, 1024),
    1.0: (116, 232, 464, 1024),
    1.5: (176, 352, 704, 1024),
    2.0: (244, 488, 976, 2048),
}
"""Channels of stages 2, 3, 4 and of the last convolution (Ma et al. 2018, table 5)."""


def _depthwise(channels: int, stride: int) -> nn.Sequential:
    return conv_norm(channels, channels, stride=stride, groups=channels, activation=None)


def _body(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(conv_norm(inputs, outputs, 1), _depthwise(outputs, stride), conv_norm(outputs, outputs, 1))


def _shuffle(x: Tensor) -> Tensor:
    """Interleave the two halves of the channels."""
    return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


class Unit(nn.Module):  # type: ignore[misc]
    """Half of the channels pass, half are transformed; then both are shuffled (Ma et al. 2018, figure 3c)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = _body(channels // 2, channels // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, h, w]`` to the same shape."""
        kept, changed = x.chunk(2, dim=1)
        return _shuffle(torch.cat([kept, self.body(changed)], dim=1))


class DownsamplingUnit(nn.Module):  # type: ignore[misc]
    """Both branches read all channels and halve the resolution (Ma et al. 2018, figure 3d)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.side = nn.Sequential(_depthwise(inputs, 2), conv_norm(inputs, outputs // 2, 1))
        self.body = _body(inputs, outputs // 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, outputs, h / 2, w / 2]``."""
        return _shuffle(torch.cat([self.side(x), self.body(x)], dim=1))


def shufflenet_v2(*, width: float = 1.0, classes: int = 1000, resolution: int = 224) -> Traceable:
    """ShuffleNet V2 of ``width`` 0.5, 1.0, 1.5 or 2.0 (Ma et al. 2018)."""
    if width not in WIDTHS:
        known = ", ".join(map(str, WIDTHS))
        raise RequestError(f"shufflenet-v2 with width={width!r} is not published: choose width from {known}")
    *channels, last = WIDTHS[width]
    with torch.device("meta"):
        stages = []
        inputs = 24
        for outputs, blocks in zip(channels, BLOCKS, strict=True):
            units = (Unit(outputs) for _ in range(blocks - 1))
            stages.append(nn.Sequential(DownsamplingUnit(inputs, outputs), *units))
            inputs = outputs
        module = nn.Sequential(
            conv_norm(3, 24, stride=2),
            nn.MaxPool2d(3, stride=2, padding=1),
            *stages,
            conv_norm(inputs, last, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(last, classes),
        )
    return image_model(module, resolution=resolution)
