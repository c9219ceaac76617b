"""Residual streams that are mixed by learned weights in place of one residual: hyper-connections.

Manifold-constrained hyper-connections (Xie et al. 2025, arXiv:2512.24880), as DeepSeek-V4 trains them. A layer reads a
weighted sum of the streams, and adds its output to streams that were mixed by a doubly stochastic matrix. Training runs
each as one fused kernel, so each is an operator here:

* ``traincast::stream_weights``: the weights of each token, Sinkhorn's iterations included;
* ``traincast::stream_collapse``: the weighted sum;
* ``traincast::stream_expand``: the mixed streams plus the weighted output.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from traincast.graph.zoo.parts.kernels import rms_norm
from traincast.graph.zoo.parts.scans import differentiable

_ROUNDS: Final = 20
_EPS: Final = 1e-6


def _stream_weights(mixes: Tensor, base: Tensor, scale: Tensor) -> Tensor:
    count = round((mixes.shape[-1] + 1) ** 0.5) - 1
    sizes = [count, count, count * count]
    factors = torch.cat([factor.expand(size) for factor, size in zip(scale, sizes, strict=True)])
    read, write, mix = (mixes * factors + base).split(sizes, dim=-1)
    square = mix.unflatten(-1, (count, count)).softmax(dim=-1) + _EPS
    for _ in range(_ROUNDS):
        square = square / (square.sum(dim=-2, keepdim=True) + _EPS)
        square = square / (square.sum(dim=-1, keepdim=True) + _EPS)
    return torch.cat((read.sigmoid(), 2 * write.sigmoid(), square.flatten(-2)), dim=-1)


def _stream_collapse(streams: Tensor, weights: Tensor) -> Tensor:
    return (streams * weights[..., None]).sum(dim=2)


def _stream_expand(streams: Tensor, out: Tensor, write: Tensor, mix: Tensor) -> Tensor:
    square = mix.unflatten(-1, (write.shape[-1], write.shape[-1]))
    return square.mT @ streams + write[..., None] * out[:, :, None]


stream_weights = differentiable("stream_weights", _stream_weights, like=0)
"""Weights of each token: mixes and result [batch, seq, n + n + n·n], base [n + n + n·n], scale [3]."""
stream_collapse = differentiable(
    "stream_collapse",
    _stream_collapse,
    like=lambda streams, _: streams.new_empty((*streams.shape[:2], streams.shape[3])),
)
"""The weighted sum [batch, seq, hidden] of streams [batch, seq, n, hidden] by weights [batch, seq, n]."""
stream_expand = differentiable("stream_expand", _stream_expand, like=0)
"""Streams mixed by ``mix`` [batch, seq, n·n], plus ``write`` [batch, seq, n] times ``out`` [batch, seq, hidden]."""


class HyperConnection(nn.Module):  # type: ignore[misc]
    """Reads ``count`` streams into one input of a layer, and writes the layer's output back to them.

    The weights come of a norm over all streams and one projection (Xie et al. 2025, equations 7 to 9).
    """

    def __init__(self, hidden: int, count: int) -> None:
        super().__init__()
        self.count = count
        weights = (2 + count) * count
        self.register_buffer("ones", torch.ones(count * hidden), persistent=False)
        self.mixes = nn.Linear(count * hidden, weights, bias=False)
        self.base = nn.Parameter(torch.zeros(weights))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The input of the layer [batch, seq, hidden], and what to write and to mix with."""
        mixes = self.mixes(rms_norm(streams.flatten(2), self.ones, _EPS))
        weights = stream_weights(mixes, self.base, self.scale)
        read, write, mix = weights.split([self.count, self.count, self.count**2], dim=-1)
        return stream_collapse(streams, read), write, mix


class LastConnection(nn.Module):  # type: ignore[misc]
    """Reads the streams behind the last layer into one."""

    def __init__(self, hidden: int, count: int) -> None:
        super().__init__()
        self.register_buffer("ones", torch.ones(count * hidden), persistent=False)
        self.mixes = nn.Linear(count * hidden, count, bias=False)
        self.base = nn.Parameter(torch.zeros(count))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, streams: Tensor) -> Tensor:
        """``streams`` [batch, seq, n, hidden] to [batch, seq, hidden]."""
        mixes = self.mixes(rms_norm(streams.flatten(2), self.ones, _EPS))
        return stream_collapse(streams, torch.sigmoid(mixes * self.scale + self.base))
