"""Real compute and real updates for parameter servers: the blocks of a PyTorch model as pieces, and SGD."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from traincast.testbed.parallel.servers import Shard
from traincast.testbed.rank.clock import now, sleep_until

Floats32 = npt.NDArray[np.float32]


def parameters_of(block: nn.Module) -> Floats32:
    """Returns all trained parameters of a block, one after the other: what its piece holds."""
    trained = [p.detach().reshape(-1) for p in block.parameters() if p.requires_grad]
    flat: Floats32 = torch.cat([torch.empty(0), *trained]).numpy()
    return flat


class BlockPasses:
    """The passes of a worker through ``blocks``, which follow one another; the last is followed by ``loss``.

    The parameters of a block move into one array, and so do its gradients: they are pushed from there and pulled to
    there. A block takes one tensor and returns one.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        parts: Sequence[Shard],
        inputs: torch.Tensor,
        loss: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._blocks, self._parts, self._loss = blocks, parts, loss
        self._weights = [torch.from_numpy(parameters_of(block)) for block in blocks]
        self._gradients = [torch.zeros_like(flat) for flat in self._weights]
        for block, weights, gradients in zip(blocks, self._weights, self._gradients, strict=True):
            _move(block, weights, gradients)
        self._inputs = [inputs] + [torch.empty(0)] * (len(blocks) - 1)
        self._outputs = [torch.empty(0)] * len(blocks)

    def run(self, piece: int, *, backward: bool, earliest: float) -> tuple[float, float]:
        """Runs a pass through a block; piece −1 only waits until ``earliest``."""
        sleep_until(earliest)
        start = now()
        if piece >= 0:
            (self._backward if backward else self._forward)(piece)
        return start, now()

    def gradient(self, shard: int) -> memoryview:
        """The gradient of a shard."""
        return _part(self._gradients[self._parts[shard].piece].numpy(), self._parts[shard])

    def weights(self, shard: int) -> memoryview:
        """The parameters of a shard."""
        return _part(self._weights[self._parts[shard].piece].numpy(), self._parts[shard])

    def _forward(self, piece: int) -> None:
        if piece:
            self._inputs[piece] = self._outputs[piece - 1].detach().requires_grad_()
        output = self._blocks[piece](self._inputs[piece])
        self._outputs[piece] = self._loss(output) if piece == len(self._blocks) - 1 else output

    def _backward(self, piece: int) -> None:
        self._gradients[piece].zero_()
        follows = piece + 1 < len(self._blocks)
        self._outputs[piece].backward(self._inputs[piece + 1].grad if follows else None)


class SgdUpdates:
    """A server that subtracts ``rate`` times the mean of the gradients it is given.

    ``weights`` are the parameters of all shards at the start; those of other servers may be empty.
    """

    def __init__(self, parts: Sequence[Shard], weights: Sequence[Floats32], *, workers: int, rate: float) -> None:
        self._parts, self._rate = parts, rate
        self._weights = [flat.copy() for flat in weights]
        self._pushed = [[np.empty_like(flat) for _ in range(workers)] for flat in self._weights]

    def room(self, shard: int, worker: int) -> memoryview:
        """The memory of a worker's gradient."""
        return _bytes(self._pushed[shard][worker])

    def apply(self, shard: int, workers: Sequence[int], *, earliest: float) -> tuple[float, float]:
        """Updates a shard by the gradients of ``workers``."""
        start = max(now(), earliest)
        step = self._rate / len(workers)
        for worker in sorted(workers):
            self._weights[shard] -= step * self._pushed[shard][worker]
        return start, now()

    def weights(self, shard: int) -> memoryview:
        """The parameters of a shard."""
        return _bytes(self._weights[shard])


def shard_weights(blocks: Sequence[nn.Module], parts: Sequence[Shard]) -> list[Floats32]:
    """Returns the parameters of every shard of a model."""
    flat = [parameters_of(block) for block in blocks]
    return [np.frombuffer(_part(flat[part.piece], part), dtype=np.float32) for part in parts]


def _move(block: nn.Module, weights: torch.Tensor, gradients: torch.Tensor) -> None:
    """Lets the trained parameters of a block and their gradients live in two arrays."""
    offset = 0
    for parameter in block.parameters():
        if parameter.requires_grad:
            end = offset + parameter.numel()
            parameter.data = weights[offset:end].view_as(parameter)
            parameter.grad = gradients[offset:end].view_as(parameter)
            offset = end


def _bytes(flat: Floats32) -> memoryview:
    return flat.view(np.uint8).data


def _part(flat: Floats32, part: Shard) -> memoryview:
    return _bytes(flat)[part.offset : part.offset + part.nbytes]
