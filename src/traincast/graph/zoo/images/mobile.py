"""Networks of depthwise convolutions: MobileNet, MnasNet, ProxylessNAS, EfficientNet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from traincast.errors import UnknownNameError
from traincast.graph.zoo.parts.convolution import Activation, conv_norm, divisible, image_model
from traincast.graph.zoo.traceable import Traceable

DROP_RATE: Final = 0.2
"""Share of samples whose block is skipped; the same for all blocks, because it changes no operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualShape:
    """One inverted residual: expand by 1×1, depthwise convolution, squeeze-and-excitation, project by 1×1.

    No expansion when ``expanded`` equals ``inputs``; no excitation when ``squeezed`` is 0; ``fused``
    replaces expansion and depthwise convolution by one full convolution.
    """

    inputs: int
    expanded: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    squeezed: int = 0
    activation: Activation = nn.ReLU
    fused: bool = False
    stochastic: bool = False


class SqueezeExcite(nn.Module):  # type: ignore[misc]
    """Scale each channel by a gate computed from all channels' means (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int, *, smooth: bool) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(inplace=True) if smooth else nn.ReLU(inplace=True),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid() if smooth else nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, h, w]`` to the same shape."""
        return x * self.gate(x)


class StochasticDepth(nn.Module):  # type: ignore[misc]
    """Drop the whole branch for some samples of the batch while training (Huang et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, ...]`` to the same shape."""
        if not self.training:
            return x
        keep = 1 - DROP_RATE
        kept = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep).div_(keep)
        return x * kept


class InvertedResidual(nn.Module):  # type: ignore[misc]
    """MobileNetV2's block and its descendants (Sandler et al. 2018); adds its input where shapes allow."""

    def __init__(self, block: ResidualShape) -> None:
        super().__init__()
        inputs, inner, outputs, act = block.inputs, block.expanded, block.outputs, block.activation
        layers: list[nn.Module] = []
        if block.fused:
            layers.append(conv_norm(inputs, inner, block.kernel, stride=block.stride, activation=act))
        else:
            if inner != inputs:
                layers.append(conv_norm(inputs, inner, 1, activation=act))
            layers.append(conv_norm(inner, inner, block.kernel, stride=block.stride, groups=inner, activation=act))
        if block.squeezed:
            layers.append(SqueezeExcite(inner, block.squeezed, smooth=act is nn.SiLU))
        if not block.fused or inner != inputs:
            layers.append(conv_norm(inner, outputs, 1, activation=None))
        self.adds = block.stride == 1 and inputs == outputs
        if self.adds and block.stochastic:
            layers.append(StochasticDepth())
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, outputs, h / stride, w / stride]``."""
        return x + self.body(x) if self.adds else self.body(x)


def _stages(blocks: Iterable[ResidualShape]) -> list[nn.Module]:
    """Blocks with the same number of output channels, as one stage."""
    runs = (list(run) for _, run in groupby(blocks, key=lambda block: block.outputs))
    return [nn.Sequential(*map(InvertedResidual, run)) for run in runs]


def _classifier(features: int, classes: int, *, dropout: float = 0.0) -> list[nn.Module]:
    drop = [nn.Dropout(dropout)] if dropout else []
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *drop, nn.Linear(features, classes)]


MOBILENET_V1: Final = ((64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 6, 2), (1024, 2, 2))
"""Output channels, number of separable convolutions, stride of the first (Howard et al. 2017, table 1)."""


def mobilenet_v1(*, width: float = 1.0, classes: int = 1000, resolution: int = 224) -> Traceable:
    """MobileNet (Howard et al. 2017)."""

    def separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        depthwise = conv_norm(inputs, inputs, stride=stride, groups=inputs)
        return nn.Sequential(depthwise, conv_norm(inputs, outputs, 1))

    with torch.device("meta"):
        inputs = divisible(32 * width)
        parts: list[nn.Module] = [conv_norm(3, inputs, stride=2)]
        for channels, count, stride in MOBILENET_V1:
            outputs = divisible(channels * width)
            rest = (separable(outputs, outputs, 1) for _ in range(count - 1))
            parts.append(nn.Sequential(separable(inputs, outputs, stride), *rest))
            inputs = outputs
        module = nn.Sequential(*parts, *_classifier(inputs, classes))
    return image_model(module, resolution=resolution)


class Row(NamedTuple):
    """A run of blocks, of which only the first strides and changes the number of channels."""

    expansion: int
    channels: int
    blocks: int
    stride: int
    kernel: int
    fused: bool = False


def _repeated(
    rows: Sequence[Row],
    inputs: int,
    *,
    width: float = 1.0,
    depth: float = 1.0,
    activation: Activation = nn.ReLU,
    efficient: bool = False,
) -> list[ResidualShape]:
    """Blocks of a table, scaled; ``efficient`` adds squeeze-and-excitation and stochastic depth."""
    blocks = []
    for row in rows:
        outputs = divisible(row.channels * width)
        for index in range(math.ceil(row.blocks * depth)):
            blocks.append(
                ResidualShape(
                    inputs=inputs,
                    expanded=inputs * row.expansion,
                    outputs=outputs,
                    kernel=row.kernel,
                    stride=row.stride if index == 0 else 1,
                    squeezed=max(1, inputs // 4) if efficient and not row.fused else 0,
                    activation=activation,
                    fused=row.fused,
                    stochastic=efficient,
                )
            )
            inputs = outputs
    return blocks


MOBILENET_V2: Final[tuple[Row, ...]] = (
    Row(1, 16, 1, 1, 3),
    Row(6, 24, 2, 2, 3),
    Row(6, 32, 3, 2, 3),
    Row(6, 64, 4, 2, 3),
    Row(6, 96, 3, 1, 3),
    Row(6, 160, 3, 2, 3),
    Row(6, 320, 1, 1, 3),
)
MNASNET_B1: Final[tuple[Row, ...]] = (
    Row(1, 16, 1, 1, 3),
    Row(3, 24, 3, 2, 3),
    Row(3, 40, 3, 2, 5),
    Row(6, 80, 3, 2, 5),
    Row(6, 96, 2, 1, 3),
    Row(6, 192, 4, 2, 5),
    Row(6, 320, 1, 1, 3),
)
PROXYLESS_GPU: Final[tuple[Row, ...]] = (
    Row(1, 24, 1, 1, 3),
    Row(3, 32, 1, 2, 5),
    Row(3, 56, 1, 2, 7),
    Row(3, 56, 1, 1, 3),
    Row(6, 112, 1, 2, 7),
    Row(3, 112, 1, 1, 5),
    Row(6, 128, 1, 1, 5),
    Row(3, 128, 1, 1, 3),
    Row(3, 128, 1, 1, 5),
    Row(6, 256, 1, 2, 7),
    Row(6, 256, 2, 1, 7),
    Row(6, 256, 1, 1, 5),
    Row(6, 432, 1, 1, 7),
)


def _chain(blocks: Sequence[ResidualShape], head: int, *, classes: int, resolution: int, dropout: float) -> Traceable:
    """Stem of stride 2, stages of inverted residuals, 1×1 convolution to ``head`` channels, classifier."""
    first, last = blocks[0], blocks[-1]
    with torch.device("meta"):
        module = nn.Sequential(
            conv_norm(3, first.inputs, stride=2, activation=first.activation),
            *_stages(blocks),
            conv_norm(last.outputs, head, 1, activation=last.activation),
            *_classifier(head, classes, dropout=dropout),
        )
    return image_model(module, resolution=resolution)


def mobilenet_v2(*, width: float = 1.0, classes: int = 1000, resolution: int = 224) -> Traceable:
    """MobileNetV2 (Sandler et al. 2018)."""
    blocks = _repeated(MOBILENET_V2, divisible(32 * width), width=width, activation=nn.ReLU6)
    head = divisible(1280 * max(1.0, width))
    return _chain(blocks, head, classes=classes, resolution=resolution, dropout=0.2)


def mnasnet(*, width: float = 1.0, classes: int = 1000, resolution: int = 224) -> Traceable:
    """MnasNet-B1, the searched network without squeeze-and-excitation (Tan et al. 2019)."""
    blocks = _repeated(MNASNET_B1, divisible(32 * width), width=width)
    return _chain(blocks, 1280, classes=classes, resolution=resolution, dropout=0.2)


def proxylessnas(*, classes: int = 1000, resolution: int = 224) -> Traceable:
    """ProxylessNAS searched for GPU latency (Cai et al. 2019, figure 4)."""
    blocks = _repeated(PROXYLESS_GPU, 40, activation=nn.ReLU6)
    return _chain(blocks, 1728, classes=classes, resolution=resolution, dropout=0.0)


V3Row = tuple[int, int, int, bool, bool, int]

MOBILENET_V3: Final[dict[str, tuple[int, tuple[V3Row, ...]]]] = {
    "large": (
        1280,
        (
            (3, 16, 16, False, False, 1),
            (3, 64, 24, False, False, 2),
            (3, 72, 24, False, False, 1),
            (5, 72, 40, True, False, 2),
            (5, 120, 40, True, False, 1),
            (5, 120, 40, True, False, 1),
            (3, 240, 80, False, True, 2),
            (3, 200, 80, False, True, 1),
            (3, 184, 80, False, True, 1),
            (3, 184, 80, False, True, 1),
            (3, 480, 112, True, True, 1),
            (3, 672, 112, True, True, 1),
            (5, 672, 160, True, True, 2),
            (5, 960, 160, True, True, 1),
            (5, 960, 160, True, True, 1),
        ),
    ),
    "small": (
        1024,
        (
            (3, 16, 16, True, False, 2),
            (3, 72, 24, False, False, 2),
            (3, 88, 24, False, False, 1),
            (5, 96, 40, True, True, 2),
            (5, 240, 40, True, True, 1),
            (5, 240, 40, True, True, 1),
            (5, 120, 48, True, True, 1),
            (5, 144, 48, True, True, 1),
            (5, 288, 96, True, True, 2),
            (5, 576, 96, True, True, 1),
            (5, 576, 96, True, True, 1),
        ),
    ),
}
"""Hidden width of the classifier; per block kernel, expanded, outputs, excitation, h-swish, stride."""


def mobilenet_v3(*, size: str = "large", classes: int = 1000, resolution: int = 224) -> Traceable:
    """MobileNetV3 of ``size`` large or small (Howard et al. 2019, tables 1 and 2)."""
    if size not in MOBILENET_V3:
        raise UnknownNameError("size of mobilenet-v3", size, MOBILENET_V3)
    hidden, rows = MOBILENET_V3[size]
    blocks = []
    inputs = 16
    for kernel, expanded, outputs, excites, swish, stride in rows:
        blocks.append(
            ResidualShape(
                inputs=inputs,
                expanded=expanded,
                outputs=outputs,
                kernel=kernel,
                stride=stride,
                squeezed=divisible(expanded / 4) if excites else 0,
                activation=nn.Hardswish if swish else nn.ReLU,
            )
        )
        inputs = outputs
    with torch.device("meta"):
        features = 6 * inputs
        module = nn.Sequential(
            conv_norm(3, 16, stride=2, activation=nn.Hardswish),
            *_stages(blocks),
            conv_norm(inputs, features, 1, activation=nn.Hardswish),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(features, hidden),
            nn.Hardswish(inplace=True),
            nn.Dropout(0.2),
            nn.Linear(hidden, classes),
        )
    return image_model(module, resolution=resolution)


EFFICIENTNET: Final[dict[str, tuple[int, tuple[Row, ...]]]] = {
    "v1": (
        32,
        (
            Row(1, 16, 1, 1, 3),
            Row(6, 24, 2, 2, 3),
            Row(6, 40, 2, 2, 5),
            Row(6, 80, 3, 2, 3),
            Row(6, 112, 3, 1, 5),
            Row(6, 192, 4, 2, 5),
            Row(6, 320, 1, 1, 3),
        ),
    ),
    "v2-s": (
        24,
        (
            Row(1, 24, 2, 1, 3, fused=True),
            Row(4, 48, 4, 2, 3, fused=True),
            Row(4, 64, 4, 2, 3, fused=True),
            Row(4, 128, 6, 2, 3),
            Row(6, 160, 9, 1, 3),
            Row(6, 256, 15, 2, 3),
        ),
    ),
    "v2-m": (
        24,
        (
            Row(1, 24, 3, 1, 3, fused=True),
            Row(4, 48, 5, 2, 3, fused=True),
            Row(4, 80, 5, 2, 3, fused=True),
            Row(4, 160, 7, 2, 3),
            Row(6, 176, 14, 1, 3),
            Row(6, 304, 18, 2, 3),
            Row(6, 512, 5, 1, 3),
        ),
    ),
    "v2-l": (
        32,
        (
            Row(1, 32, 4, 1, 3, fused=True),
            Row(4, 64, 7, 2, 3, fused=True),
            Row(4, 96, 7, 2, 3, fused=True),
            Row(4, 192, 10, 2, 3),
            Row(6, 224, 19, 1, 3),
            Row(6, 384, 25, 2, 3),
            Row(6, 640, 7, 1, 3),
        ),
    ),
}
"""Channels of the stem, and the stages (Tan & Le 2019, table 1; Tan & Le 2021, table 4)."""


def efficientnet_stages(*, width: float = 1.0, depth: float = 1.0) -> tuple[list[nn.Module], list[int]]:
    """The stages of EfficientNet, the stem in front of the first, and the channels of each."""
    stem, rows = EFFICIENTNET["v1"]
    blocks = _repeated(rows, divisible(stem * width), width=width, depth=depth, activation=nn.SiLU, efficient=True)
    first, *rest = _stages(blocks)
    start = conv_norm(3, blocks[0].inputs, stride=2, activation=nn.SiLU)
    channels = [run for run, _ in groupby(block.outputs for block in blocks)]
    return [nn.Sequential(start, first), *rest], channels


def efficientnet(
    *,
    version: str = "v1",
    width: float = 1.0,
    depth: float = 1.0,
    dropout: float = 0.2,
    classes: int = 1000,
    resolution: int = 224,
) -> Traceable:
    """EfficientNet (Tan & Le 2019) scaled by ``width`` and ``depth``, or EfficientNetV2 (Tan & Le 2021)."""
    if version not in EFFICIENTNET:
        raise UnknownNameError("version of efficientnet", version, EFFICIENTNET)
    stem, rows = EFFICIENTNET[version]
    blocks = _repeated(rows, divisible(stem * width), width=width, depth=depth, activation=nn.SiLU, efficient=True)
    head = 4 * blocks[-1].outputs if version == "v1" else 1280
    return _chain(blocks, head, classes=classes, resolution=resolution, dropout=dropout)
