"""A model as the testbed runs it: its module with real tensors, or the part of it that one pipeline stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from traincast.errors import RequestError
from traincast.graph.zoo.stack import Transformer
from traincast.strategy import Lowered


class ChainPart(nn.Module):  # type: ignore[misc]
    """Consecutive parts of a transformer: perhaps its embedding, some layers, perhaps its head."""

    def __init__(self, embedding: nn.Module | None, layers: Sequence[nn.Module], head: nn.Module | None) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.head = head

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The activations after the last part."""
        x = self.embedding(*inputs) if self.embedding is not None else inputs[0]
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x, self.embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModules:
    """The modules of one rank, in the order of their stages, and the numbers of these stages."""

    modules: tuple[nn.Module, ...]
    indices: tuple[int, ...]
    num_stages: int


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The equal layers of a module: those that FSDP shards one by one and tensor parallelism splits."""
    layers = getattr(module, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise RequestError("the testbed shards and splits models with a list of layers: choose one, or use dp alone")
    return list(layers)


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """A transformer as a chain of blocks: its embedding, each of its layers, its head."""
    _check_chain(module, "parameter servers with real compute need")
    layers = [ChainPart(None, [layer], None) for layer in module.layers]
    return [ChainPart(module.embedding, [], None), *layers, ChainPart(None, [], module.head)]


def _check_chain(module: nn.Module, what: str) -> None:
    if not isinstance(module, Transformer):
        raise RequestError(f"{what} a transformer of the zoo: choose one, or use dp alone")
    if getattr(module.head, "logits", True) is None or module.config.head == "mlm":
        raise RequestError(f"{what} a head that shares no weights with the embedding: choose a model with tied=false")


def parts_of(module: nn.Module, lowered: Lowered, stage: int) -> StageModules:
    """The parts of ``module`` that the rank of pipeline ``stage`` holds: those that the forecast gives it."""
    graph, slots = lowered.request.graph, lowered.prepared.slots
    pieces, routes = lowered.prepared.pieces, slots.routes
    if len(pieces) == 1:
        return StageModules(modules=(module,), indices=(0,), num_stages=1)
    _check_chain(module, "pipeline stages of the testbed need")
    if len(routes) > 1:
        raise RequestError(f"schedule {lowered.request.strategy.schedule}: the testbed runs pipelines of one direction")
    layers = [sum(graph.blocks[b].repeated for b in piece.blocks) for piece in pieces]
    modules, indices = [], []
    at = 0
    for number, count in enumerate(layers):
        if routes[0][number][0] == stage:
            first, last = number == 0, number == len(pieces) - 1
            modules.append(
                ChainPart(
                    module.embedding if first else None,
                    list(module.layers)[at : at + count],
                    module.head if last else None,
                )
            )
            indices.append(number)
        at += count
    return StageModules(modules=tuple(modules), indices=tuple(indices), num_stages=len(pieces))
