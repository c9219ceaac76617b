"""FLOPs and bytes of single operators, where the general laws do not reach."""

from __future__ import annotations

import pytest
import torch

from traincast import Operator, TensorSpec, capture
from traincast.graph import DType, OpKind, Phase
from traincast.graph.work_amount import attention_dims, attention_fraction, gemm_dims, grouped_gemm_dims


def make(kind: OpKind, inputs: list[TensorSpec], outputs: list[TensorSpec], name: str = "op") -> Operator:
    return Operator(name=name, kind=kind, phase=Phase.FORWARD, inputs=tuple(inputs), outputs=tuple(outputs))


def test_every_kind_has_a_formula() -> None:
    from traincast.graph import work_amount

    assert set(work_amount._FLOPS) == set(OpKind)


def test_dims_of_products() -> None:
    half = DType.FP16
    assert gemm_dims(make(OpKind.GEMM, [TensorSpec((3, 5), half), TensorSpec((5, 7), half)], [])) == (1, 3, 7, 5)
    batched = make(OpKind.BATCHED_GEMM, [TensorSpec((2, 4, 3, 5)), TensorSpec((2, 4, 5, 7))], [])
    assert gemm_dims(batched) == (8, 3, 7, 5)
    forward = make(OpKind.GROUPED_GEMM, [TensorSpec((64, 5)), TensorSpec((8, 5, 7))], [TensorSpec((64, 7))])
    assert grouped_gemm_dims(forward) == (8, 64, 7, 5)


def test_a_matrix_times_a_vector_has_one_column() -> None:
    op = make(OpKind.GEMM, [TensorSpec((100, 50)), TensorSpec((50,))], [TensorSpec((100,))], name="mv")
    assert op.flops == 2 * 100 * 50


def test_attention_from_few_queries_to_many_keys() -> None:
    q, k, v = TensorSpec((2, 4, 8, 16)), TensorSpec((2, 4, 32, 16)), TensorSpec((2, 4, 32, 12))
    op = make(OpKind.ATTENTION, [q, k, v], [TensorSpec((2, 4, 8, 12))])
    assert attention_dims(op) == (2, 4, 8, 32, 16, 12)
    assert op.flops == 2 * 2 * 4 * 8 * 32 * (16 + 12)
    causal = Operator(
        name="op",
        kind=OpKind.ATTENTION,
        phase=Phase.FORWARD,
        inputs=(q, k, v),
        outputs=(q,),
        attributes={"causal": True},
    )
    # The last eight of 32 positions look back at 25, 26 … 32 keys.
    assert attention_fraction(causal) * 8 * 32 == sum(range(25, 33))


@pytest.mark.parametrize(
    ("kind", "per_element"),
    [(OpKind.ELEMENTWISE, 1), (OpKind.ACTIVATION, 1), (OpKind.LAYER_NORM, 5), (OpKind.SOFTMAX, 5), (OpKind.COPY, 0)],
)
def test_pointwise_work_counts_the_larger_side(kind: OpKind, per_element: int) -> None:
    op = make(kind, [TensorSpec((4, 8)), TensorSpec((8,))], [TensorSpec((4, 8))])
    assert op.flops == per_element * 32
    assert (op.bytes_read, op.bytes_written) == (4 * (32 + 8), 4 * 32)


def test_whole_numbers_are_no_floating_point_work() -> None:
    ids = TensorSpec((16,), DType.INT64)
    assert make(OpKind.ELEMENTWISE, [ids], [ids]).flops == 0
    assert make(OpKind.ELEMENTWISE, [ids], [ids]).nbytes == 2 * 16 * 8


@pytest.mark.parametrize(("dtype", "nbytes"), [("fp32", 4), ("tf32", 4), ("bf16", 2), ("fp8", 1), ("nvfp4", 0.5625)])
def test_bytes_follow_the_dtype(dtype: str, nbytes: float) -> None:
    assert TensorSpec((10, 16), DType(dtype)).nbytes == 160 * nbytes


def test_scaling_rounds_up_and_never_to_nothing() -> None:
    spec = TensorSpec((10, 3), DType.FP32, 0)
    assert spec.scaled(1, 1 / 2).shape == (10, 2)
    assert spec.scaled(1, 1 / 100).shape == (10, 1)
    assert spec.scaled(0, 1 / 5).shape == (2, 3)
    assert spec.with_batch(4).shape == (40, 3)
    assert TensorSpec((10, 3)).with_batch(4).shape == (10, 3)


def test_a_tensor_that_is_filled_is_not_read() -> None:
    shape = TensorSpec((4, 8))
    for name in ("zero_", "fill_", "zeros_like", "normal_"):
        op = make(OpKind.COPY, [shape], [shape], name=name)
        assert (op.bytes_read, op.bytes_written) == (0, 128)


class _Squares(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        return torch.add(y * y, 1.0).mean(dim=1)


def test_a_captured_operator_reads_each_value_once() -> None:
    graph = capture(_Squares(), torch.ones(2, 8, 16))
    moved = {(op.phase, op.name): (op.bytes_read, op.bytes_written) for op, _ in graph}
    size = 4.0 * 8 * 16
    assert moved[Phase.FORWARD, "add"] == (size, size)  # a scalar is not read
    square = [op for op, _ in graph if op.phase is Phase.FORWARD and op.name == "mul" and not op.parameters]
    assert [op.bytes_read for op in square] == [size]  # y · y reads y once
    assert moved[Phase.BACKWARD, "div"] == (4.0, size)  # the gradient of a mean of means is one value
