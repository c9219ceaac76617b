"""Attention in kernels: one that is fused, of this or an older make, or products with the scores in memory."""

from __future__ import annotations

import pytest

from tests.conftest import GPT, request_of, tasks_per_work
from traincast import Operator, TensorSpec
from traincast.graph import DType, OpKind, Phase
from traincast.strategy import lower
from traincast.strategy.program.attention import kernels_of, unfused

FUSED_SOFTMAX = ["scores", "softmax", "dropout", "attention_output"]
EAGER = ["scores", "scale", "mask", "softmax", "dropout", "attention_output"]


def attention(batch: int, heads: int, *, backward: bool = False) -> Operator:
    """Causal attention of 128 tokens and heads of 64."""
    q = TensorSpec((batch, heads, 128, 64), DType.BF16, 0)
    return Operator(
        name="attention_backward" if backward else "attention",
        kind=OpKind.ATTENTION,
        phase=Phase.BACKWARD if backward else Phase.FORWARD,
        inputs=(q,) * (4 if backward else 3),
        outputs=(q,) * (3 if backward else 1),
        attributes={"causal": True},
    )


@pytest.mark.parametrize("backward", [False, True])
def test_fused_attention_is_one_kernel_and_an_older_one_says_so(backward: bool) -> None:
    op = attention(2, 8, backward=backward)
    assert kernels_of(op, "flash") == [op]
    (older,) = kernels_of(op, "flash-2")
    assert older.attributes == {"causal": True, "kernel": "flash-2"}
    assert (older.inputs, older.outputs, older.flops, older.nbytes) == (op.inputs, op.outputs, op.flops, op.nbytes)


@pytest.mark.parametrize(("batch", "heads"), [(1, 4), (2, 2), (4, 1), (3, 8), (1, 12)])
def test_the_fused_softmax_takes_four_rows_of_heads_at_a_time(batch: int, heads: int) -> None:
    assert [k.name for k in kernels_of(attention(batch, heads), "unfused")] == FUSED_SOFTMAX


@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (1, 2), (1, 6), (3, 2), (5, 5)])
def test_other_numbers_of_rows_are_left_to_separate_kernels(batch: int, heads: int) -> None:
    op = attention(batch, heads)
    assert [k.name for k in kernels_of(op, "unfused")] == EAGER
    assert kernels_of(op, "unfused") == kernels_of(op, "eager")
    back = attention(batch, heads, backward=True)
    assert len(kernels_of(back, "unfused")) == len(kernels_of(attention(4, 1, backward=True), "unfused")) + 2


def test_eager_attention_never_fuses() -> None:
    assert [k.name for k in kernels_of(attention(4, 4), "eager")] == EAGER


def test_products_of_unfused_attention_are_those_of_the_whole_score_matrix() -> None:
    batch, heads, seq, dims = 2, 8, 128, 64
    products = [k for k in kernels_of(attention(batch, heads), "unfused") if k.kind is OpKind.BATCHED_GEMM]
    assert [k.flops for k in products] == [2 * batch * heads * seq * seq * dims] * 2


@pytest.mark.parametrize(("tp", "softmax_alone"), [(1, True), (4, False)])
def test_tensor_parallelism_may_leave_too_few_heads_for_the_fused_softmax(tp: int, softmax_alone: bool) -> None:
    # One sample of eight heads: four ranks have two each.
    request = request_of(f"tp={tp},num_microbatches=4", model=GPT, global_batch=4, runtime="megatron-2")
    names = {w.name for w, _ in tasks_per_work(lower(request, grain="operator").plan) if isinstance(w, Operator)}
    assert "softmax" in names
    assert ("scale" in names) != softmax_alone


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_the_projection_to_the_vocabulary_stays_wide(precision: str) -> None:
    plan = lower(request_of("tp=2", model=GPT, precision=precision), grain="operator").plan
    gemms = [w for w, _ in tasks_per_work(plan) if isinstance(w, Operator) and w.kind is OpKind.GEMM]
    of_vocabulary = [w for w in gemms if any(500 in t.shape for t in (*w.inputs, *w.outputs))]  # 1000 over two ranks
    others = [w for w in gemms if w not in of_vocabulary]
    assert len(of_vocabulary) == 3  # forward, and gradients of input and weight
    assert {w.inputs[0].dtype for w in of_vocabulary} == {DType.BF16}
    assert {w.inputs[0].dtype.value for w in others} == {precision}


@pytest.mark.parametrize(("dim", "attributes"), [(64, {}), (104, {}), (108, {"kernel": "unaligned"})])
def test_heads_that_begin_between_16_bytes_are_marked(dim: int, attributes: dict[str, str]) -> None:
    q = TensorSpec((1, 4, 32, dim), DType.FP16, 0)
    op = Operator(name="attention", kind=OpKind.ATTENTION, phase=Phase.FORWARD, inputs=(q, q, q), outputs=(q,))
    made = unfused(op)
    products = [part for part in made if part.kind is OpKind.BATCHED_GEMM]
    assert [dict(part.attributes) for part in products] == [attributes] * 2
    assert all(not part.attributes for part in made if part not in products)
