"""JAX steps against captures of the same networks in PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.graph.test_onnx_file import moved, step_of
from traincast import OperatorGraph, RequestError
from traincast.graph import OpKind, Phase
from traincast.graph.capture.capture import capture
from traincast.graph.load import load_model
from traincast.graph.zoo import Traceable

pytest.importorskip("jax", reason="needs JAX, which make test-all installs")
HIDDEN, HEADS, LAYERS, SEQ, VOCAB, STEPS, WIDTH = 64, 4, 3, 16, 96, 12, 4096


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        shape = (x.shape[0], SEQ, HEADS, HIDDEN // HEADS)
        q, k, v = (part(y).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v))
        out = ((q @ k.transpose(-1, -2)) * 0.25).softmax(-1) @ v
        x = x + self.o(out.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = (nn.BatchNorm2d(16, track_running_stats=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + x)


class Recurrent(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.input, self.recurrent = nn.Linear(32, HIDDEN), nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.start, self.head = nn.Parameter(torch.zeros(HIDDEN)), nn.Linear(HIDDEN, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.start.expand(x.shape[0], HIDDEN)
        for step in range(STEPS):
            state = torch.tanh(self.input(x[:, step]) + self.recurrent(state))
        return self.head(state)


class Averaged(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def cross_entropy(logits: torch.Tensor) -> torch.Tensor:
    flat = logits.flatten(0, -2)
    return functional.cross_entropy(flat, torch.empty(flat.shape[0], dtype=torch.int64))


def torch_network(name: str) -> OperatorGraph:
    floats = torch.float32
    shape: tuple[int, ...]
    match name:
        case "mlp":
            module = nn.Sequential(
                nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
            )
            shape, dtype, loss, optimizer = (64,), floats, cross_entropy, "sgd-plain"
        case "transformer":
            module = nn.Sequential(
                nn.Embedding(VOCAB, HIDDEN), *(Layer() for _ in range(LAYERS)), nn.Linear(HIDDEN, VOCAB, bias=False)
            )
            shape, dtype, loss, optimizer = (SEQ,), torch.int64, cross_entropy, "sgd"
        case "resnet":
            norm = nn.BatchNorm2d(16, track_running_stats=False)
            blocks = (Block() for _ in range(3))
            stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
            module = nn.Sequential(stem, norm, nn.ReLU(), *blocks, Averaged(), nn.Linear(16, 10))
            shape, dtype, loss, optimizer = (3, 32, 32), floats, cross_entropy, "sgd-plain"
        case _:
            module, shape, dtype = Recurrent(), (STEPS, 32), floats
            loss, optimizer = cross_entropy, "sgd-plain"
    return capture(
        Traceable(
            module=module,
            inputs=lambda batch: (torch.empty((batch, *shape), dtype=dtype),),
            loss=loss,
            tokens_per_sample=SEQ if name == "transformer" else 0,
            optimizer=optimizer,
        ),
        name=name,
    )


@pytest.mark.parametrize("name", ["mlp", "transformer", "resnet", "recurrent"])
def test_a_step_costs_what_a_capture_of_the_same_network_costs(name: str) -> None:
    ours, theirs = load_model(f"tests.graph.jax_networks:{name}_step"), torch_network(name)
    for phase in Phase:
        assert ours.flops(phase) == pytest.approx(theirs.flops(phase), rel=0.01)
    total = [sum(moved(graph, phase) for phase in Phase) for graph in (ours, theirs)]
    assert total[0] == pytest.approx(total[1], rel=0.01)
    assert ours.num_parameters == theirs.num_parameters
    assert ours.tokens_per_sample == theirs.tokens_per_sample
    # In fp32: autocast is PyTorch's, and asks for the names of PyTorch's operators.
    assert step_of(ours, 8192, "fp32") == pytest.approx(step_of(theirs, 8192, "fp32"), rel=0.01)


def test_a_scan_over_layers_is_one_repeated_block() -> None:
    graph = load_model("tests.graph.jax_networks:transformer_step")
    (block,) = (b for b in graph.blocks if b.repeated)
    assert block.count == LAYERS
    products = [graph.operators[i] for i in block.forward if graph.operators[i].kind is OpKind.GEMM]
    assert len(products) == 6
    assert sum(graph.operators[i].kind is OpKind.GEMM for i in block.backward) == 12
    assert all(graph.forward_of[i] in block.forward for i in block.backward)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("looping_step", r"the step has a while at .*jax_networks.py:\d+, whose length or branch depends on data"),
        ("forward_only", "computes no gradient: a step calls jax.grad"),
        ("stateless", "returns none of its arguments in a new version"),
    ],
)
def test_a_step_that_cannot_be_traced_is_refused_in_one_line(name: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        load_model(f"tests.graph.jax_networks:{name}")
    assert "\n" not in str(caught.value)


def test_the_sequence_length_of_a_step_is_that_of_its_example() -> None:
    with pytest.raises(RequestError, match="its example inputs set the sequence length"):
        load_model("tests.graph.jax_networks:transformer_step", seq=8)
