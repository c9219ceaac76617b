"""The operator set: all types, no operator twice, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from traincast.errors import FileFormatError, RequestError
from traincast.graph import OpKind, Phase
from traincast.profiling.executors import executor_of, memory_of, reason_not_to_run
from traincast.profiling.operators import OperatorRequest, operators_of
from traincast.profiling.opset import operator_set, operator_set_by_type
from traincast.profiling.opset_files import load_operator_set, save_operator_set
from traincast.profiling.opset_layers import TYPES, Operators
from traincast.profiling.opset_shapes import CNN_MODELS
from traincast.profiling.rows import key_of

CNN_TYPES = "Conv ReLU ReLU6 Mul FC MaxPool AvgPool BatchNorm Mean Add Concat DepthConv Transpose Split"
TRANSFORMER_TYPES = (
    "GEMM BatchedGEMM Attention LayerNorm RMSNorm GELU SiLU Softmax Embedding CrossEntropy Optimizer GroupedGEMM"
)


@cache
def drawn(samples: int = 6, seed: int = 0) -> dict[str, Operators]:
    return operator_set_by_type(samples=samples, seed=seed, batch=2)


def test_every_type_of_thirteen_families_and_of_transformers_is_there() -> None:
    assert len(CNN_MODELS) == 13
    assert set(drawn()) == set(TYPES) == {*CNN_TYPES.split(), *TRANSFORMER_TYPES.split()}
    for name, chosen in drawn().items():
        layers = [op for op in chosen if op.phase is not Phase.BACKWARD]
        assert len(layers) >= 6, name
        if name != "Optimizer":
            assert {op.phase for op in chosen} == {Phase.FORWARD, Phase.BACKWARD}, name


def test_no_operator_is_there_twice() -> None:
    keys = Counter(key_of(op) for chosen in drawn().values() for op in chosen)
    assert set(keys.values()) == {1}
    kinds = {op.kind for chosen in drawn().values() for op in chosen}
    assert kinds == set(OpKind) - {OpKind.RNN, OpKind.DROPOUT, OpKind.GATHER, OpKind.RESIZE}


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


@pytest.mark.parametrize("name", list(TYPES))
def test_operators_of_each_type_can_be_run(name: str) -> None:
    for operator in drawn()[name][:4]:
        assert reason_not_to_run(operator) is None, operator
    smallest = min(drawn()[name], key=memory_of)
    if memory_of(smallest) < 2**24 and smallest.flops < 1e8:
        executor_of(smallest)()


def test_a_file_gives_the_set_back_and_can_be_profiled(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    save_operator_set(drawn(), path, settings={"samples": 6, "seed": 0, "batch": 2})
    every = tuple(op for chosen in drawn().values() for op in chosen)
    assert load_operator_set(path) == every
    from_file, _, _ = operators_of(OperatorRequest(files=(path,)))
    drawn_anew, _, _ = operators_of(OperatorRequest(opset=True, layers_per_type=6, batch=2))
    assert set(from_file) == set(drawn_anew) == {key_of(op) for op in every}


def test_what_is_no_operator_set_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    for text in ("{}", "[]", '{"format":"traincast-opset","version":1}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(FileFormatError, match="operator set"):
            load_operator_set(path)
    with pytest.raises(RequestError, match="expected 1 to"):
        operator_set(samples=0)
