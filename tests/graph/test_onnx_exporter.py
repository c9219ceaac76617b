"""Activations and layers of ONNX files that exporters take apart, and activations that PyTorch applies in place."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("onnx")

from tests.graph.test_onnx_file import captured, kernels
from traincast import OperatorGraph, capture


def read(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path, opset: int) -> OperatorGraph:
    """The file that PyTorch's older exporter writes of ``module``, read again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.train(),
            inputs,
            path,
            dynamo=False,
            opset_version=opset,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )
    return capture(str(path))


@pytest.mark.parametrize("opset", [15, 17, 20])
def test_gelu_is_one_kernel_whatever_the_opset(opset: int, tmp_path: Path) -> None:
    module, inputs = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (torch.zeros(2, 8),)
    assert kernels(read(module, inputs, tmp_path / "it.onnx", opset)) == kernels(captured(module, inputs))


class Layer(nn.Module):  # type: ignore[misc]
    """A layer of a Transformer; in half precision the exporter puts casts between its products and their biases."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.reshape(*t.shape[:2], 4, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_has_the_same_operators_in_every_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    whole = captured(Layer(), (torch.zeros(2, 12, 32),))
    ours = read(Layer().to(dtype), (torch.zeros(2, 12, 32, dtype=dtype),), tmp_path / "layer.onnx", 17)
    assert kernels(ours) == kernels(whole)


class Called(nn.Module):  # type: ignore[misc]
    """Activations that are functions, called by the module that holds the convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(self.second(functional.relu6(self.first(x)))).mean((2, 3))


def modules(*, in_place: bool) -> nn.Module:
    first, second = nn.ReLU6(inplace=in_place), nn.SiLU(inplace=in_place)
    return nn.Sequential(nn.Conv2d(3, 8, 3), first, nn.Conv2d(8, 8, 3), second, nn.Flatten())


def test_functions_behind_convolutions_are_not_in_place(tmp_path: Path) -> None:
    inputs = (torch.zeros(2, 3, 8, 8),)
    ours = read(Called(), inputs, tmp_path / "called.onnx", 17)
    assert kernels(ours) == kernels(captured(Called(), inputs))
    assert "in place" not in str(ours.attributes.get("note"))


def test_modules_behind_convolutions_are_taken_to_be_in_place_and_the_graph_says_so(tmp_path: Path) -> None:
    inputs = (torch.zeros(2, 3, 8, 8),)
    for in_place in (True, False):
        ours = read(modules(in_place=in_place), inputs, tmp_path / "modules.onnx", 17)
        assert (kernels(ours) == kernels(captured(modules(in_place=in_place), inputs))) is in_place
        assert "modules.onnx has 2 activations behind convolutions, taken to be in place" in str(
            ours.attributes["note"]
        )
