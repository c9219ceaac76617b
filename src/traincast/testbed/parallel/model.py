"""A model as the testbed runs it: its module with real tensors, or the part of it that one pipeline stage holds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from traincast.errors import RequestError
from traincast.graph.zoo.parts.stack import Transformer
from traincast.strategy import Lowered


class TiedTable(nn.Module):  # type: ignore[misc]
    """A copy of the token table of an embedding, for a head that shares its weights and is on another stage."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.tokens = copy.deepcopy(embedding.tokens)


class ChainPart(nn.Module):  # type: ignore[misc]
    """Consecutive parts of a transformer: perhaps its embedding, some layers, perhaps its head.

    ``table`` is the copy that a head with tied weights uses in the place of the embedding.
    """

    def __init__(
        self,
        embedding: nn.Module | None,
        layers: Sequence[nn.Module],
        head: nn.Module | None,
        table: TiedTable | None = None,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.head = head
        self.table = table

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The activations after the last part."""
        x = self.embedding(*inputs) if self.embedding is not None else inputs[0]
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x, self.table or self.embedding)


def tied_weight(part: nn.Module) -> nn.Parameter | None:
    """The weight of ``part`` of which another stage has a copy: the token table of a tied embedding or head."""
    inner = getattr(part, "module", part)  # DDP wraps a part
    for table in (inner.table, inner.embedding):
        if table is not None:
            return table.tokens.weight
    return None


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
    if _is_tied(module):
        raise RequestError(
            "parameter servers with real compute need a head that shares no weights with the embedding: choose a "
            "model with tied=false"
        )
    layers = [ChainPart(None, [layer], None) for layer in module.layers]
    return [ChainPart(module.embedding, [], None), *layers, ChainPart(None, [], module.head)]


def _check_chain(module: nn.Module, what: str) -> None:
    if not isinstance(module, Transformer):
        raise RequestError(f"{what} a transformer of the zoo: choose one, or use dp alone")
    if len(module.further):
        raise RequestError(f"{what} a model that predicts one token: choose mtp=0")


def _is_tied(module: Transformer) -> bool:
    """Whether the head multiplies by the embedding's own table."""
    return getattr(module.head, "logits", True) is None or module.config.head == "mlm"


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
                    TiedTable(module.embedding) if last and _is_tied(module) else None,
                )
            )
            indices.append(number)
        at += count
    return StageModules(modules=tuple(modules), indices=tuple(indices), num_stages=len(pieces))
