"""Single operators cut for one rank: which dim shrinks."""

from __future__ import annotations

import pytest

from traincast import Operator, TensorSpec
from traincast.graph import DType, OpKind, Phase
from traincast.strategy.program.cut import cut_operator, saved_fraction, tokens, width
from traincast.strategy.program.sharding import Role


def gemm(m: int, k: int, n: int, *, phase: Phase = Phase.FORWARD, parameter: bool = True) -> Operator:
    a, b = TensorSpec((m, k), DType.BF16, 0), TensorSpec((k, n), DType.BF16)
    return Operator(
        name="mm",
        kind=OpKind.GEMM,
        phase=phase,
        inputs=(a, b),
        outputs=(TensorSpec((m, n), DType.BF16, 0),),
        parameters=(b,) if parameter else (),
    )


def shapes(op: Operator) -> list[tuple[int, ...]]:
    return [t.shape for t in (*op.inputs, *op.outputs)]


def cut(op: Operator, role: Role, forward: Operator | None = None, **degrees: int) -> Operator:
    return cut_operator(op, role, forward, tp=degrees.get("tp", 1), cp=degrees.get("cp", 1), sequence_parallel=False)


def test_a_column_layer_shares_its_outputs_and_a_row_layer_its_inputs() -> None:
    op = gemm(128, 64, 256)
    assert shapes(cut(op, Role.COLUMN, tp=4)) == [(128, 64), (64, 64), (128, 64)]
    assert shapes(cut(op, Role.ROW, tp=4)) == [(128, 16), (16, 256), (128, 256)]
    assert cut(op, Role.WHOLE, tp=4) == op


def test_gradients_of_a_column_layer_are_cut_along_its_outputs() -> None:
    forward = gemm(128, 64, 256)
    by_input = gemm(128, 256, 64, phase=Phase.BACKWARD)
    by_weight = gemm(256, 128, 64, phase=Phase.BACKWARD, parameter=False)
    assert shapes(cut(by_input, Role.COLUMN, forward, tp=4)) == [(128, 64), (64, 64), (128, 64)]
    assert shapes(cut(by_weight, Role.COLUMN, forward, tp=4)) == [(64, 128), (128, 64), (64, 64)]


def test_gradients_of_a_row_layer_are_cut_along_its_inputs() -> None:
    forward = gemm(128, 256, 64)
    by_input = gemm(128, 64, 256, phase=Phase.BACKWARD)
    by_weight = gemm(64, 128, 256, phase=Phase.BACKWARD, parameter=False)
    assert shapes(cut(by_input, Role.ROW, forward, tp=4)) == [(128, 64), (64, 64), (128, 64)]
    assert shapes(cut(by_weight, Role.ROW, forward, tp=4)) == [(64, 128), (128, 64), (64, 64)]


@pytest.mark.parametrize("role", [Role.COLUMN, Role.ROW])
@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD])
def test_a_share_of_a_square_layer_is_a_share_of_its_flops(role: Role, phase: Phase) -> None:
    """Where widths are equal, sizes alone cannot tell which dim is which; the share is right all the same."""
    op = gemm(128, 64, 64, phase=phase)
    assert cut(op, role, gemm(128, 64, 64), tp=4).flops == op.flops / 4


def test_attention_is_cut_by_heads() -> None:
    q = TensorSpec((1, 8, 128, 32), DType.BF16, 0)
    op = Operator(name="attention", kind=OpKind.ATTENTION, phase=Phase.FORWARD, inputs=(q, q, q), outputs=(q,))
    for share in (cut(op, Role.INSIDE, tp=4), cut(op, Role.WHOLE, cp=4)):
        assert shapes(share) == [(1, 2, 128, 32)] * 4


def test_tokens_and_widths_are_the_dims_that_divide() -> None:
    spec = TensorSpec((1, 128, 256), DType.BF16, 0)
    assert tokens(spec, 4).shape == (1, 32, 256)
    assert width(spec, 4).shape == (1, 128, 64)
    assert width(TensorSpec((1, 8, 128, 32), DType.BF16, 0), 4).shape == (1, 2, 128, 32)
    parameter = TensorSpec((256,), DType.BF16)
    assert tokens(parameter, 4) == width(parameter, 4) == parameter


@pytest.mark.parametrize(
    ("role", "sequence_parallel", "share"),
    [
        (Role.INSIDE, False, 1 / 4),
        (Role.ROW, False, 1 / 4),
        (Role.COLUMN, False, 1.0),
        (Role.WHOLE, False, 1.0),
        (Role.COLUMN, True, 1 / 4),
        (Role.WHOLE, True, 1 / 4),
    ],
)
def test_what_a_rank_keeps_for_backward(role: Role, sequence_parallel: bool, share: float) -> None:
    op = gemm(128, 64, 64)
    assert saved_fraction(op, role, tp=4, cp=1, sequence_parallel=sequence_parallel) == share
    assert saved_fraction(op, role, tp=4, cp=2, sequence_parallel=sequence_parallel) == share / 2
