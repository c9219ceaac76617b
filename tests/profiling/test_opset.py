"""The operator set: all types, no operator twice, the same for the same seed."""

from __future__ import annotations

import inspect
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.profiling.running import reason_not_to_run
from traincast import FileFormatError, OperatorRequest, RequestError
from traincast.estimate.events.keys import operator_key
from traincast.graph import OpKind, Phase
from traincast.profiling.operators.executors import executor_of, memory_of
from traincast.profiling.operators.measure import operators_of
from traincast.profiling.operators.opset import (
    COLUMNS,
    load_operator_set,
    operator_set,
    operator_set_by_type,
    operators_by_family,
    save_operator_set,
)
from traincast.profiling.operators.opset_layers import TYPES, Operators
from traincast.profiling.operators.opset_shapes import CNN_MODELS

CNN_TYPES = "Conv ReLU ReLU6 Mul FC MaxPool AvgPool BatchNorm Mean Add Concat DepthConv Transpose Split"
TRANSFORMER_TYPES = (
    "GEMM BatchedGEMM Attention LayerNorm RMSNorm GELU SiLU Softmax Embedding CrossEntropy Optimizer GroupedGEMM"
)
OTHER_TYPES = "ConvGradients DepthConvGradients LSTM GRU RNN"


@cache
def drawn(samples: int = 6, seed: int = 0) -> dict[str, Operators]:
    return operator_set_by_type(samples=samples, seed=seed, batch=2)


def test_every_type_of_thirteen_families_and_of_transformers_is_there() -> None:
    assert len(CNN_MODELS) == 13
    assert set(drawn()) == set(TYPES) == {*CNN_TYPES.split(), *TRANSFORMER_TYPES.split(), *OTHER_TYPES.split()}
    for name, chosen in drawn().items():
        if name.endswith("ConvGradients"):
            assert Counter(op.name for op in chosen) == {"conv2d.bwd_data": 6, "conv2d.bwd_weight": 6}
            continue
        layers = [op for op in chosen if op.phase is not Phase.BACKWARD]
        assert len(layers) >= 6, name
        if name != "Optimizer":
            assert {op.phase for op in chosen} == {Phase.FORWARD, Phase.BACKWARD}, name


def test_no_operator_is_there_twice() -> None:
    keys = Counter(operator_key(op) for chosen in drawn().values() for op in chosen)
    assert set(keys.values()) == {1}
    kinds = {op.kind for chosen in drawn().values() for op in chosen}
    assert kinds == set(OpKind) - {OpKind.SCAN, OpKind.DROPOUT, OpKind.GATHER, OpKind.RESIZE}


def test_the_draw_is_fixed_by_its_seed() -> None:
    again = operator_set_by_type(samples=6, seed=0, batch=2)
    assert again == drawn()
    other = operator_set_by_type(samples=6, seed=1, batch=2)
    assert other != drawn()
    assert len(operator_set(samples=3)) < len(operator_set(samples=6))


def test_published_shapes_come_first_and_others_lie_around_them() -> None:
    heights = {op.inputs[0].shape[2] for op in drawn()["BatchNorm"] if op.phase is Phase.FORWARD}
    assert len(heights - {224, 112, 56, 28, 14, 7, 32, 16, 8}) >= 1
    kernels = {op.attributes["kernel"] for op in operator_set_by_type(samples=40)["Conv"]}
    assert {1, 3, 5, 7} <= kernels


@pytest.mark.long(but=10)
@pytest.mark.parametrize("name", list(TYPES))
def test_operators_of_each_type_can_be_run(name: str) -> None:
    for operator in drawn()[name][:4]:
        assert reason_not_to_run(operator) is None, operator
    smallest = min(drawn()[name], key=memory_of)
    if memory_of(smallest) < 2**24 and smallest.flops < 1e8:
        executor_of(smallest)()


def test_the_small_set_has_all_types_and_no_large_operator() -> None:
    small = operator_set_by_type(samples=6, size="small")
    assert set(small) == set(TYPES)
    assert all(len(chosen) >= 10 for chosen in small.values())
    every = [op for chosen in small.values() for op in chosen]
    assert 380 <= len(every) <= 440
    assert max(op.flops for op in every) <= 1e9
    assert max(op.nbytes for op in every) <= 2**25
    assert max(op.flops for op in operator_set(samples=6)) > 1e11
    with pytest.raises(RequestError, match="expected full or small"):
        operator_set(size="tiny")
    with pytest.raises(RequestError, match="expected full or small"):
        OperatorRequest(opset=True, size="tiny")


@pytest.mark.parametrize(("name", "of"), [("conv2d.bwd_data", 0), ("conv2d.bwd_weight", 1)])
@pytest.mark.parametrize("kind", ["ConvGradients", "DepthConvGradients"])
def test_each_gradient_of_a_convolution_is_the_one_of_autograd(kind: str, name: str, of: int) -> None:
    import torch

    operators = [op for op in operator_set_by_type(samples=4, size="small")[kind] if op.name == name]
    operator = min(operators, key=lambda op: op.flops)
    call = executor_of(operator)
    grad, x, weight, _, stride, padding, *_, groups, mask = inspect.getclosurevars(call).nonlocals["arguments"]
    found = call()
    assert mask == [of == 0, of == 1, False]
    assert [tensor is not None for tensor in found] == mask
    x.requires_grad_()
    weight.requires_grad_()
    out = torch.nn.functional.conv2d(x, weight, stride=stride, padding=padding, groups=groups)
    wanted = torch.autograd.grad(out, (x, weight), grad)[of]
    assert found[of].shape == operator.inputs[of].shape
    assert torch.allclose(found[of], wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))


def test_a_file_gives_the_set_back_and_can_be_profiled(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    save_operator_set(drawn(), path, settings={"samples": 6, "seed": 0, "batch": 2})
    every = tuple(op for chosen in drawn().values() for op in chosen)
    assert load_operator_set(path) == every
    from_file, _, _ = operators_of(OperatorRequest(files=(path,)))
    drawn_anew, _, _ = operators_of(OperatorRequest(opset=True, layers_per_type=6, batch=2))
    assert set(from_file) == set(drawn_anew) == {operator_key(op) for op in every}


def test_what_is_no_operator_set_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    for text in ("{}", "[]", '{"format":"traincast-opset","version":1}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(FileFormatError, match="operator set"):
            load_operator_set(path)
    with pytest.raises(RequestError, match="expected 1 to"):
        operator_set(samples=0)


def test_operators_of_families_are_counted_by_type() -> None:
    counts = operators_by_family()
    assert list(counts) == list(CNN_MODELS)
    assert counts["alexnet"] == {"Conv": 5, "ReLU": 5, "MaxPool": 3, "FC": 3, "other": 4}
    assert counts["shufflenet-v2"]["Transpose"] == 3
    assert "Transpose" not in counts["mobilenet-v2"]
    assert {name for found in counts.values() for name in found} <= set(COLUMNS)
    assert set(COLUMNS) - {"other"} == set(CNN_TYPES.split())
