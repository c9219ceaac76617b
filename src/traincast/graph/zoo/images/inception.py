"""Networks of parallel branches with auxiliary classifiers: GoogLeNet and Inception v3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from traincast.graph.zoo.parts.convolution import conv_norm, cross_entropy, image_model
from traincast.graph.zoo.traceable import Traceable


class Branches(nn.Module):  # type: ignore[misc]
    """Branches that read one input and whose outputs are concatenated (Szegedy et al. 2015, figure 2)."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, sum of the branches' outputs, h', w']``."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class WithAuxiliary(nn.Module):  # type: ignore[misc]
    """A chain of trunks; each but the last also feeds an auxiliary classifier while training."""

    def __init__(self, trunks: list[nn.Module], auxiliary: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.trunks = nn.ModuleList(trunks)
        self.aux = nn.ModuleList(auxiliary)
        self.head = head

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Images to logits ``[batch, classes]``: the network's own, then (in training) the auxiliary ones."""
        *early, last = self.trunks
        side = []
        for trunk, auxiliary in zip(early, self.aux, strict=True):
            x = trunk(x)
            if self.training:
                side.append(auxiliary(x))
        logits = self.head(last(x))
        return (logits, *side) if self.training else logits


def _weighted_loss(weight: float) -> Callable[[Any], Tensor]:
    def loss(outputs: Any) -> Tensor:
        if isinstance(outputs, torch.Tensor):
            return cross_entropy(outputs)
        logits, *side = outputs
        return cross_entropy(logits) + weight * sum(cross_entropy(each) for each in side)

    return loss


def _head(features: int, classes: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(features, classes))


def _googlenet_module(inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> Branches:
    """One inception module; the "5×5" branch has a 3×3 kernel, as the published weights do."""
    return Branches(
        conv_norm(inputs, one, 1),
        nn.Sequential(conv_norm(inputs, three[0], 1), conv_norm(*three)),
        nn.Sequential(conv_norm(inputs, five[0], 1), conv_norm(*five)),
        nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), conv_norm(inputs, pool, 1)),
    )


def _googlenet_auxiliary(inputs: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(4),
        conv_norm(inputs, 128, 1),
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 1024),
        nn.ReLU(inplace=True),
        nn.Dropout(0.7),
        nn.Linear(1024, classes),
    )


def googlenet(*, classes: int = 1000, resolution: int = 224) -> Traceable:
    """GoogLeNet with batch normalisation and both auxiliary classifiers (Szegedy et al. 2015)."""
    with torch.device("meta"):
        until_4a = nn.Sequential(
            conv_norm(3, 64, 7, stride=2),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            conv_norm(64, 64, 1),
            conv_norm(64, 192),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            _googlenet_module(192, 64, (96, 128), (16, 32), 32),
            _googlenet_module(256, 128, (128, 192), (32, 96), 64),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            _googlenet_module(480, 192, (96, 208), (16, 48), 64),
        )
        until_4d = nn.Sequential(
            _googlenet_module(512, 160, (112, 224), (24, 64), 64),
            _googlenet_module(512, 128, (128, 256), (24, 64), 64),
            _googlenet_module(512, 112, (144, 288), (32, 64), 64),
        )
        rest = nn.Sequential(
            _googlenet_module(528, 256, (160, 320), (32, 128), 128),
            nn.MaxPool2d(2, stride=2, ceil_mode=True),
            _googlenet_module(832, 256, (160, 320), (32, 128), 128),
            _googlenet_module(832, 384, (192, 384), (48, 128), 128),
        )
        module = WithAuxiliary(
            [until_4a, until_4d, rest],
            [_googlenet_auxiliary(512, classes), _googlenet_auxiliary(528, classes)],
            _head(1024, classes, dropout=0.2),
        )
    return image_model(module, resolution=resolution, loss=_weighted_loss(0.3))


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), conv_norm(inputs, outputs, 1))


def _module_35(inputs: int, pool: int) -> Branches:
    """35×35 grid: one 5×5 branch, and one where two 3×3 stand for it (Szegedy et al. 2016, figure 5)."""
    return Branches(
        conv_norm(inputs, 64, 1),
        nn.Sequential(conv_norm(inputs, 48, 1), conv_norm(48, 64, 5)),
        nn.Sequential(conv_norm(inputs, 64, 1), conv_norm(64, 96), conv_norm(96, 96)),
        _pooled(inputs, pool),
    )


def _reduction_17(inputs: int) -> Branches:
    """35×35 to 17×17 without a representational bottleneck (Szegedy et al. 2016, figure 10)."""
    return Branches(
        conv_norm(inputs, 384, stride=2, padding=0),
        nn.Sequential(conv_norm(inputs, 64, 1), conv_norm(64, 96), conv_norm(96, 96, stride=2, padding=0)),
        nn.MaxPool2d(3, stride=2),
    )


def _module_17(inputs: int, width: int) -> Branches:
    """17×17 grid: 7×7 convolutions factorised into 1×7 and 7×1 (Szegedy et al. 2016, figure 6)."""
    row, column = (1, 7), (7, 1)
    return Branches(
        conv_norm(inputs, 192, 1),
        nn.Sequential(conv_norm(inputs, width, 1), conv_norm(width, width, row), conv_norm(width, 192, column)),
        nn.Sequential(
            conv_norm(inputs, width, 1),
            conv_norm(width, width, column),
            conv_norm(width, width, row),
            conv_norm(width, width, column),
            conv_norm(width, 192, row),
        ),
        _pooled(inputs, 192),
    )


def _reduction_8(inputs: int) -> Branches:
    """17×17 to 8×8."""
    return Branches(
        nn.Sequential(conv_norm(inputs, 192, 1), conv_norm(192, 320, stride=2, padding=0)),
        nn.Sequential(
            conv_norm(inputs, 192, 1),
            conv_norm(192, 192, (1, 7)),
            conv_norm(192, 192, (7, 1)),
            conv_norm(192, 192, stride=2, padding=0),
        ),
        nn.MaxPool2d(3, stride=2),
    )


def _module_8(inputs: int) -> Branches:
    """8×8 grid: 3×3 convolutions fan out into 1×3 and 3×1 (Szegedy et al. 2016, figure 7)."""

    def fan() -> Branches:
        return Branches(conv_norm(384, 384, (1, 3)), conv_norm(384, 384, (3, 1)))

    return Branches(
        conv_norm(inputs, 320, 1),
        nn.Sequential(conv_norm(inputs, 384, 1), fan()),
        nn.Sequential(conv_norm(inputs, 448, 1), conv_norm(448, 384), fan()),
        _pooled(inputs, 192),
    )


def inception_v3(*, classes: int = 1000, resolution: int = 299) -> Traceable:
    """Inception v3 with its auxiliary classifier (Szegedy et al. 2016)."""
    with torch.device("meta"):
        until_17 = nn.Sequential(
            conv_norm(3, 32, stride=2, padding=0),
            conv_norm(32, 32, padding=0),
            conv_norm(32, 64),
            nn.MaxPool2d(3, stride=2),
            conv_norm(64, 80, 1),
            conv_norm(80, 192, padding=0),
            nn.MaxPool2d(3, stride=2),
            _module_35(192, pool=32),
            _module_35(256, pool=64),
            _module_35(288, pool=64),
            _reduction_17(288),
            _module_17(768, 128),
            _module_17(768, 160),
            _module_17(768, 160),
            _module_17(768, 192),
        )
        rest = nn.Sequential(_reduction_8(768), _module_8(1280), _module_8(2048))
        auxiliary = nn.Sequential(
            nn.AvgPool2d(5, stride=3),
            conv_norm(768, 128, 1),
            conv_norm(128, 768, 5, padding=0),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(768, classes),
        )
        module = WithAuxiliary([until_17, rest], [auxiliary], _head(2048, classes, dropout=0.5))
    return image_model(module, resolution=resolution, loss=_weighted_loss(0.4))
