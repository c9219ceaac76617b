"""Mixed precision of PyTorch's autocast: what backward keeps, against a real module that runs with the same casts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tests.conftest import request_of
from traincast import OperatorGraph, capture, load_runtime, predict
from traincast.strategy import load_precision
from traincast.strategy.program.autocast import autocast

BATCH, SEQ, WIDTH, HEADS = 2, 24, 64, 4
IN_FP32 = frozenset({torch.softmax, nn.functional.softmax, nn.functional.layer_norm, torch.layer_norm})


class AsOnGpu(TorchFunctionMode):  # type: ignore[misc]
    """Autocast of processors with the fp32 list of GPUs: their inputs are cast, and they run without autocast."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in IN_FP32:
            return func(*args, **(kwargs or {}))
        wide = [a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
        with torch.autocast("cpu", enabled=False):
            return func(*wide, **(kwargs or {}))


class WrittenOut(nn.Module):  # type: ignore[misc]
    """A layer with attention in plain products and a softmax."""

    def __init__(self, *, dropout: bool) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, width = x.shape
        heads = (batch, seq, HEADS, width // HEADS)
        q, k, v = (t.view(heads).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1)
        if self.dropout:
            weights = torch.native_dropout(weights, 0.1, True)[0]
        return x + self.out((weights @ v).transpose(1, 2).reshape(batch, seq, width))


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self, *, dropout: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, WIDTH)
        self.layers = nn.ModuleList([WrittenOut(dropout=dropout) for _ in range(3)])
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def kept_in_pytorch(network: nn.Module, ids: torch.Tensor) -> int:
    """Bytes that autograd keeps, by storage, without weights and their 16-bit copies."""
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()} | {ids.untyped_storage().data_ptr()}
    shapes = {tuple(p.shape) for p in network.parameters()} | {tuple(p.shape)[::-1] for p in network.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights and tuple(tensor.shape) not in shapes:
            kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, AsOnGpu(), torch.autocast("cpu", torch.bfloat16):
        result = network(ids)
    assert result.dtype is torch.bfloat16
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def kept_in_forecast(graph: OperatorGraph) -> float:
    precision, total = load_precision("amp-bf16"), 0.0
    for block in graph.blocks:
        ops = [precision.apply(graph.operators[i].with_batch(BATCH)) for i in block.forward]
        total += block.count * sum(t.nbytes for op in ops for t in op.saved)
    return total


@pytest.mark.parametrize("dropout", [False, True])
def test_attention_written_out_keeps_what_autocast_keeps(dropout: bool) -> None:
    network, ids = Network(dropout=dropout), torch.randint(0, 100, (BATCH, SEQ))
    graph = capture(network, ids)
    assert kept_in_forecast(autocast(graph)) == kept_in_pytorch(network, ids)
    assert kept_in_forecast(graph) < 0.85 * kept_in_forecast(autocast(graph))


def test_casts_stand_between_products_and_fp32() -> None:
    graph = autocast(capture(Network(dropout=False), torch.zeros(BATCH, SEQ, dtype=torch.long)))
    layer = next(block for block in graph.blocks if block.count > 1)
    forward = [graph.operators[i].name for i in layer.forward]
    at = forward.index("_softmax")
    assert (forward[at - 1], forward[at + 1 : forward.index("bmm", at)].count("to_half")) == ("to_fp32", 1)
    casts = {"to_fp32": "to_half", "to_half": "to_fp32"}
    backward = [graph.operators[i].name for i in layer.backward]
    assert {name: forward.count(name) for name in casts} == {name: backward.count(casts[name]) for name in casts}


def test_only_a_runtime_that_autocasts_keeps_fp32() -> None:
    def kept(precision: str, *, casts: bool) -> float:
        graph = request_of("dp=1", model="gpt:layers=2,hidden=128,heads=4,vocab=512,seq=64").graph
        runtime = load_runtime("pytorch").patched(kernels={"autocast": casts})
        found = predict(graph, cluster="dgx-a100:1x1", global_batch=8, runtime=runtime, precision=precision)
        return float(found.report.memory.activations)

    residual = 2 * 2 * 8 * 64 * 128 * 2.0  # inputs of two norms in two layers have two bytes more
    assert kept("amp-bf16", casts=True) >= kept("amp-bf16", casts=False) + residual
    assert kept("bf16", casts=True) == kept("bf16", casts=False)
