"""GPUNet (Wang et al. 2022, arXiv:2205.00841): networks searched for the latency of a GPU."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import nn

from traincast.errors import UnknownNameError
from traincast.graph.zoo.images.mobile import InvertedResidual, ResidualShape
from traincast.graph.zoo.parts.convolution import conv_norm, image_model
from traincast.graph.zoo.traceable import Traceable


class SearchedStage(NamedTuple):
    """Blocks of one kind: expansion (0: a plain convolution), channels, blocks, stride of the first, kernel."""

    expansion: int
    channels: int
    blocks: int
    stride: int
    kernel: int = 3
    swish: bool = False
    fused: bool = False
    excites: bool = False


class Design(NamedTuple):
    """Resolution, channels of the stem, stages, channels of the last convolution, and of one behind the pooling."""

    resolution: int
    stem: int
    stages: tuple[SearchedStage, ...]
    head: int = 1280
    hidden: int = 0


def _distilled(expansion: int, channels: int, stride: int, kernel: int) -> SearchedStage:
    return SearchedStage(expansion, channels, 1, stride, kernel)


DESIGNS: Final[dict[str, Design]] = {
    "0": Design(
        320,
        32,
        (
            SearchedStage(0, 32, 2, 1),
            SearchedStage(5, 32, 2, 2, fused=True),
            SearchedStage(5, 64, 3, 2, fused=True),
            SearchedStage(5, 256, 3, 2, swish=True),
            SearchedStage(5, 704, 2, 2, excites=True),
        ),
    ),
    "1": Design(
        288,
        24,
        (
            SearchedStage(0, 24, 1, 1),
            SearchedStage(4, 64, 2, 2, swish=True, fused=True),
            SearchedStage(4, 96, 2, 2, swish=True, fused=True),
            SearchedStage(2, 160, 1, 2, swish=True, excites=True),
            SearchedStage(5, 288, 4, 1),
            SearchedStage(4, 448, 4, 2, excites=True),
        ),
    ),
    "2": Design(
        384,
        32,
        (
            SearchedStage(0, 32, 3, 1),
            SearchedStage(6, 32, 1, 2, 5, swish=True, fused=True, excites=True),
            SearchedStage(3, 112, 3, 2, swish=True, fused=True),
            SearchedStage(6, 144, 6, 2, swish=True),
            SearchedStage(3, 160, 4, 1, 5),
            SearchedStage(3, 224, 8, 2, swish=True, excites=True),
            SearchedStage(2, 832, 7, 1, 5),
        ),
    ),
    "d1": Design(
        456,
        33,
        (
            _distilled(1, 33, 1, 3),
            *(_distilled(*row) for row in ((3, 44, 2, 3), (4, 44, 1, 5), (3, 44, 1, 3))),
            *(_distilled(*row) for row in ((4, 67, 2, 5), (4, 67, 1, 5), (6, 67, 1, 3), (3, 67, 1, 5))),
            *(_distilled(*row) for row in ((6, 134, 2, 7), (6, 134, 1, 5), (3, 134, 1, 3), (4, 134, 1, 5))),
            *(_distilled(*row) for row in ((6, 190, 1, 3), (6, 190, 1, 5), (6, 190, 1, 7), (4, 190, 1, 3))),
            *(_distilled(*row) for row in ((6, 268, 2, 3), (6, 268, 1, 3), (6, 268, 1, 5))),
            *(_distilled(3, 268, 1, 3) for _ in range(3)),
        ),
        head=1152,
        hidden=1984,
    ),
}
"""The searched networks, as NVIDIA DeepLearningExamples publishes them."""


def _stage(inputs: int, stage: SearchedStage) -> nn.Sequential:
    activation = nn.SiLU if stage.swish else nn.ReLU
    blocks: list[nn.Module] = []
    for index in range(stage.blocks):
        stride = stage.stride if index == 0 else 1
        if stage.expansion == 0:
            blocks.append(conv_norm(inputs, stage.channels, stage.kernel, stride=stride, activation=activation))
        else:
            shape = ResidualShape(
                inputs=inputs,
                expanded=inputs * stage.expansion,
                outputs=stage.channels,
                kernel=stage.kernel,
                stride=stride,
                squeezed=max(1, inputs // 4) if stage.excites else 0,
                activation=activation,
                fused=stage.fused,
                stochastic=True,
            )
            blocks.append(InvertedResidual(shape))
        inputs = stage.channels
    return nn.Sequential(*blocks)


def gpunet(*, size: str | int = "0", classes: int = 1000, resolution: int | None = None) -> Traceable:
    """GPUNet of ``size`` 0, 1, 2 or d1; ``resolution`` defaults to the one that it was searched for."""
    if str(size) not in DESIGNS:
        raise UnknownNameError("size of gpunet", str(size), DESIGNS)
    design = DESIGNS[str(size)]
    with torch.device("meta"):
        parts: list[nn.Module] = [conv_norm(3, design.stem, stride=2)]
        inputs = design.stem
        for stage in design.stages:
            parts.append(_stage(inputs, stage))
            inputs = stage.channels
        parts += [conv_norm(inputs, design.head, 1), nn.AdaptiveAvgPool2d(1)]
        if design.hidden:
            parts += [nn.Conv2d(design.head, design.hidden, 1, bias=False), nn.ReLU()]
        parts += [nn.Flatten(), nn.Dropout(0.2), nn.Linear(design.hidden or design.head, classes)]
        module = nn.Sequential(*parts)
    return image_model(module, resolution=design.resolution if resolution is None else resolution)
