"""What the convolutional networks of the zoo share: convolution with normalisation, inputs and loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.traceable import Traceable

Activation = Callable[..., Any]
"""A module class that takes ``inplace``, such as ``nn.ReLU``."""

Size = int | tuple[int, int]
Variant = TypeVar("Variant")


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: Size = 3,
    *,
    stride: int = 1,
    padding: Size | None = None,
    groups: int = 1,
    dilation: int = 1,
    activation: Activation | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution without bias, batch normalisation, activation; padded to keep the size unless told."""
    if padding is None:
        sides = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (dilation * (sides[0] // 2), dilation * (sides[1] // 2))
    conv = nn.Conv2d(
        inputs, outputs, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=False
    )
    layers = [conv, nn.BatchNorm2d(outputs)]
    if activation is not None:
        layers.append(activation(inplace=True))
    return nn.Sequential(*layers)


def divisible(channels: float, by: int = 8) -> int:
    """The nearest multiple of ``by``, but never below 90 % of ``channels`` (Sandler et al. 2018)."""
    nearest = max(by, int(channels + by / 2) // by * by)
    return nearest if nearest >= 0.9 * channels else nearest + by


def variant(table: Mapping[int, Variant], layers: int, *, family: str) -> Variant:
    """Look up the published variant with ``layers`` layers."""
    if layers not in table:
        known = ", ".join(map(str, table))
        raise RequestError(f"{family} with layers={layers!r} is not published: choose layers from {known}")
    return table[layers]


def cross_entropy(logits: Tensor) -> Tensor:
    """Mean cross-entropy of logits ``[batch, classes, ...]`` against some targets ``[batch, ...]``."""
    shape = (logits.shape[0], *logits.shape[2:])
    return functional.cross_entropy(logits, torch.empty(shape, dtype=torch.int64, device=logits.device))


def image_model(
    module: nn.Module,
    *,
    resolution: int,
    channels: int = 3,
    loss: Callable[[Any], Tensor] = cross_entropy,
) -> Traceable:
    """A network that reads square images ``[batch, channels, resolution, resolution]``."""

    def images(batch: int) -> tuple[Tensor, ...]:
        like = next(module.parameters())
        shape = (batch, channels, resolution, resolution)
        return (torch.empty(shape, dtype=like.dtype, device=like.device),)

    return Traceable(module=module, inputs=images, loss=loss, optimizer="sgd")
