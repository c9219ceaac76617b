"""Frozen parameters and buffers in captured graphs, and layers that are given the same tensors."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from traincast import OperatorGraph
from traincast.graph import DType, OpKind, Phase
from traincast.graph.capture.capture import _trace, capture
from traincast.graph.capture.own_modules import load_factory
from traincast.graph.files import graph_from_dict, graph_to_dict
from traincast.graph.zoo import Traceable

WIDTH, LAYERS = 32, 6


def traceable(module: nn.Module, *shape: int, dtype: torch.dtype = torch.float32) -> Traceable:
    return Traceable(module=module, inputs=lambda batch: (torch.empty(batch, *shape, dtype=dtype),))


def captured(module: nn.Module, *shape: int) -> OperatorGraph:
    return capture(traceable(module, *shape), name="mine")


def fixed_elements(graph: OperatorGraph, *, buffer: bool) -> int:
    return sum(t.spec.numel * b.count for b in graph.blocks for t in b.fixed if t.buffer is buffer)


class Adapted(nn.Module):  # type: ignore[misc]
    """A frozen linear layer beside a trained one of low rank, as LoRA has it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Linear(4, WIDTH, bias=False)
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) * self.scale + self.up(self.down(x))


def test_frozen_parameters_and_buffers_stand_in_the_block_of_their_module() -> None:
    graph = captured(nn.Sequential(*(Adapted() for _ in range(LAYERS))), WIDTH)
    frozen, trained = LAYERS * (WIDTH * WIDTH + WIDTH), LAYERS * 2 * 4 * WIDTH
    assert fixed_elements(graph, buffer=False) == frozen
    assert fixed_elements(graph, buffer=True) == LAYERS * WIDTH
    assert (graph.num_parameters, graph.num_trainable_parameters) == (frozen + trained, trained)
    # Forward, and in backward by weights of the two small ones and by inputs: nothing by frozen weights.
    backward = [op for op, _ in graph if op.phase is Phase.BACKWARD and op.kind is OpKind.GEMM]
    assert not [op for op in backward if op.outputs[0].shape == (WIDTH, WIDTH)]


def test_a_saved_graph_keeps_what_is_frozen() -> None:
    graph = captured(nn.Sequential(*(Adapted() for _ in range(LAYERS))), WIDTH)
    read = graph_from_dict(graph_to_dict(graph), where="here")
    assert read == graph
    assert read.blocks == graph.blocks
    assert any(block.fixed for block in read.blocks)


def test_a_parameter_that_no_gradient_reaches_is_held_and_not_trained() -> None:
    class Spare(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(8, 8), nn.Linear(8, 100)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    graph = captured(Spare(), 8)
    assert (graph.num_parameters, graph.num_trainable_parameters) == (72 + 900, 72)


def test_a_tensor_with_several_owners_is_counted_once_and_a_view_with_its_storage() -> None:
    class Shared(nn.Module):  # type: ignore[misc]
        def __init__(self, table: torch.Tensor) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("table", table)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.table[:8]

    table = torch.ones(1000)
    graph = captured(nn.Sequential(*(Shared(table) for _ in range(4))), 8)
    names = {t.shared for block in graph.blocks for t in block.fixed}
    assert len(names) == 1
    assert "" not in names
    view = captured(Shared(torch.ones(500)[:8]), 8)
    assert fixed_elements(view, buffer=True) == 500


def test_a_buffer_larger_than_this_machine_is_counted_in_its_own_dtype() -> None:
    with torch.device("meta"):
        module = nn.Linear(8, 8)
        module.register_buffer("big", torch.empty(10_007, 1_000_000, dtype=torch.int8))
    (tensor,) = (t for block in captured(module, 8).blocks for t in block.fixed)
    assert (tensor.spec.nbytes, tensor.spec.dtype, tensor.spec.batch_dim) == (10_007e6, DType.INT8, None)


def test_frozen_layers_do_not_stand_for_trained_ones() -> None:
    layers = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(8)]
    for layer in layers[:4]:
        layer.requires_grad_(False)
    graph = captured(nn.Sequential(*layers), 8)
    assert graph.num_trainable_parameters == 4 * 72
    assert graph.num_parameters == 8 * 72


class Between(nn.Module):  # type: ignore[misc]
    """A parent that runs something between its layers, after the last too or not."""

    def __init__(self, *, after_last: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(LAYERS))
        self.after_last = after_last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if self.after_last or number < len(self.layers) - 1:
                x = torch.relu(x)
        return x


@pytest.mark.parametrize("after_last", [True, False])
def test_what_a_parent_runs_between_its_layers_is_counted_for_each(after_last: bool) -> None:
    graph = captured(Between(after_last=after_last), 16)
    whole = _trace(traceable(Between(after_last=after_last), 16), name="whole", fold=False, half=False, progress=None)
    assert graph.num_operators == whole.num_operators
    assert sum(t.nbytes * count for op, count in graph for t in op.saved) == sum(
        t.nbytes * count for op, count in whole for t in op.saved
    )


class GivenLayer(nn.Module):  # type: ignore[misc]
    """A layer that is given tables and a mask, which autograd keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(x * cos) * mask))


class Given(nn.Module):  # type: ignore[misc]
    """Tables and a mask are made once, before the layers: as Hugging Face's decoders do it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(GivenLayer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = (x.sum(-1, keepdim=True) > 0).to(x.dtype).expand(*x.shape[:-1], 64).contiguous()
        cos = torch.cos(torch.ones(WIDTH))
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, cos, mask)
        return x


def test_layers_that_are_all_given_the_same_tensors_are_equal_and_do_not_send_them_on() -> None:
    graph = captured(Given(), 4, WIDTH)
    layers = [block for block in graph.blocks if block.scope.startswith("layers.")]
    assert sum(block.count for block in layers if block.repeated) == LAYERS
    assert [t.shape for t in layers[0].boundary] == [(1, 4, WIDTH)]
    kept = [sum(t.numel for i in b.forward for t in graph.operators[i].saved) for b in layers]
    assert len(set(kept)) == 1


def test_the_first_of_a_run_is_a_layer_though_its_backward_is_another() -> None:
    class Head(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(LAYERS))
            self.head = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    graph = captured(Head(), 16)  # the batch needs no gradient, so the first layer makes none by its input
    assert [(b.count, b.first, b.repeated) for b in graph.blocks][:2] == [(1, True, True), (LAYERS - 1, False, True)]


def hugging_face_llama() -> tuple[nn.Module, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4, vocab_size=100,
        use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), (torch.zeros(1, 16, dtype=torch.int64),)


@pytest.mark.long(guard="test_layers_that_are_all_given_the_same_tensors_are_equal_and_do_not_send_them_on")
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_the_layers_of_a_hugging_face_llama_are_one_block() -> None:
    graph = capture(load_factory("tests.graph.test_fixed:hugging_face_llama"), name="llama")
    assert [b.count for b in graph.blocks if b.repeated] == [LAYERS]
