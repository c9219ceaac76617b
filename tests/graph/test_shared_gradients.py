"""Layers that all read one tensor, such as the output of an encoder, add their gradients of it up."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from traincast import OperatorGraph
from traincast.graph import Phase, zoo
from traincast.graph.capture.capture import capture
from traincast.graph.zoo import Traceable


class Reader(nn.Module):  # type: ignore[misc]
    """A layer that reads a tensor which all layers are given."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.given = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.own(x)) * self.given(given)


class Readers(nn.Module):  # type: ignore[misc]
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.made = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Reader() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.made(x)
        for layer in self.layers:
            x = layer(x, given)
        return x


def readers(layers: int) -> Traceable:
    return Traceable(module=Readers(layers), inputs=lambda batch: (torch.zeros(batch, 8),))


def whole(traceable: Traceable) -> Traceable:
    """The same with a mark on each child of a list, so that no two are equal and all of them are traced."""
    for module in traceable.module.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            for number, child in enumerate(module):
                child.mark = number
    return traceable


def operators(graph: OperatorGraph) -> Counter[object]:
    """How often each operator runs in a step, wherever it stands."""
    found: Counter[object] = Counter()
    for op, count in graph:
        found[op.phase, op.name, op.inputs, op.outputs] += count
    return found


def saved(graph: OperatorGraph) -> float:
    """Bytes kept for the backward pass."""
    return sum(tensor.nbytes * count for op, count in graph for tensor in op.saved)


def test_all_but_the_last_of_five_layers_add_to_the_gradient_of_what_they_share() -> None:
    graph = capture(readers(5), name="readers")
    assert [(block.count, block.first) for block in graph.blocks if block.repeated] == [
        (1, True),
        (3, False),
        (1, True),
    ]
    added = {block.scope: sum(graph.operators[i].name == "add" for i in block.backward) for block in graph.blocks}
    assert [added[f"layers.{n}"] for n in range(3)] == [1, 1, 0]


def test_three_layers_are_all_traced() -> None:
    assert operators(capture(readers(3), name="three")) == operators(capture(whole(readers(3)), name="three"))


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    "spec",
    [
        "t5:layers=5,hidden=32,heads=2,head_dim=16,ffn=64,vocab=64,seq=16,target_seq=8",
        "transformer:layers=4,hidden=32,heads=2,ffn=64,vocab=64,seq=16",
        "transformer-xl:layers=4,hidden=32,heads=2,head_dim=16,seq=16",
    ],
)
def test_a_folded_model_has_the_operators_of_the_whole_one(spec: str) -> None:
    folded, full = (capture(made(zoo.build(spec)), name="it") for made in (lambda t: t, whole))
    assert operators(folded) == operators(full)
    assert len(folded.operators) < len(full.operators)
    assert saved(folded) == saved(full)
    assert folded.num_parameters == full.num_parameters
    assert folded.flops(Phase.BACKWARD) == full.flops(Phase.BACKWARD)
