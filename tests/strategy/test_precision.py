"""Precisions: which tensor has which dtype, and what a parameter costs."""

from __future__ import annotations

import pytest

from traincast import Operator, TensorSpec, UnknownNameError
from traincast.graph import DType, OpKind, Phase
from traincast.strategy import PRECISIONS, load_precision

A, B, OUT = TensorSpec((8, 4), batch_dim=0), TensorSpec((4, 2)), TensorSpec((8, 2), batch_dim=0)


def operator(kind: OpKind, phase: Phase = Phase.FORWARD) -> Operator:
    return Operator(name="op", kind=kind, phase=phase, inputs=(A, B), outputs=(OUT,), saved=(A,), parameters=(B,))


@pytest.mark.parametrize(
    ("name", "gemm", "attention", "pointwise", "kept"),
    [
        ("fp32", "fp32", "fp32", "fp32", "fp32"),
        ("tf32", "tf32", "tf32", "fp32", "fp32"),
        ("amp", "fp16", "fp16", "fp16", "fp16"),
        ("amp-bf16", "bf16", "bf16", "bf16", "bf16"),
        ("fp16", "fp16", "fp16", "fp16", "fp16"),
        ("bf16", "bf16", "bf16", "bf16", "bf16"),
        ("fp8", "fp8", "bf16", "bf16", "bf16"),
        ("nvfp4", "nvfp4", "bf16", "bf16", "bf16"),
    ],
)
def test_each_kind_computes_in_its_dtype(name: str, gemm: str, attention: str, pointwise: str, kept: str) -> None:
    precision = load_precision(name)
    for kind, dtype in (
        (OpKind.GEMM, gemm),
        (OpKind.ATTENTION, attention),
        (OpKind.ACTIVATION, pointwise),
        (OpKind.LAYER_NORM, pointwise),
    ):
        made = precision.apply(operator(kind))
        assert {t.dtype.value for t in made.inputs} == {dtype}
        assert {t.dtype.value for t in (*made.outputs, *made.saved)} == {kept}


def test_whole_numbers_and_masks_keep_their_dtype() -> None:
    ids = TensorSpec((4,), DType.INT64, 0)
    op = Operator(name="op", kind=OpKind.EMBEDDING, phase=Phase.FORWARD, inputs=(B, ids), outputs=(OUT,))
    assert [t.dtype for t in load_precision("bf16").apply(op).inputs] == [DType.BF16, DType.INT64]


@pytest.mark.parametrize(
    ("name", "read", "written"),
    [
        # gradient, master weight, two states; the same back, and the half-precision weight
        ("bf16", 4 + 4 + 4 + 4, 4 + 4 + 4 + 2),
        ("fp16", 2 + 4 + 4 + 4, 4 + 4 + 4 + 2),
        ("fp32", 4 + 4 + 4 + 4, 4 + 4 + 4),
        ("amp", 4 + 4 + 4 + 4, 4 + 4 + 4),
    ],
)
def test_an_update_of_adam_moves_these_bytes_per_parameter(name: str, read: int, written: int) -> None:
    spec = TensorSpec((1000,))
    update = Operator(
        name="adamw",
        kind=OpKind.OPTIMIZER,
        phase=Phase.OPTIMIZER,
        inputs=(spec,) * 4,
        outputs=(spec,) * 3,
        parameters=(spec,),
    )
    made = load_precision(name).apply(update)
    assert (made.bytes_read, made.bytes_written) == (1000 * read, 1000 * written)


@pytest.mark.parametrize("name", sorted(PRECISIONS))
def test_names_are_their_own(name: str) -> None:
    assert load_precision(name).name == name


def test_an_unknown_precision_lists_the_choices() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown precision 'bf15': did you mean .*bf16"):
        load_precision("bf15")
