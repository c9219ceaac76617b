"""Tensor and context parallelism share work out; they neither add nor lose any."""

from __future__ import annotations

import pytest

from tests.conftest import GPT, LLAMA, request_of, tasks_per_work
from traincast import Operator, StrategyError
from traincast.graph import OpKind
from traincast.strategy import lower

BERT = "bert:layers=3,hidden=256,heads=8,vocab=1000,seq=128"
UNTIED = "gpt:layers=3,hidden=256,heads=8,vocab=1000,seq=128,tied=false,positions=rope"
MOE = "moe:layers=3,hidden=256,heads=8,kv_heads=4,experts=4,top_k=2,expert_ffn=256,vocab=1000,seq=128"
PRODUCTS = (OpKind.GEMM, OpKind.GROUPED_GEMM, OpKind.ATTENTION)


def flops_of(strategy: str, model: str, *, runtime: str = "pytorch") -> dict[OpKind, float]:
    """FLOPs of the products that one rank runs, by kind."""
    plan = lower(request_of(strategy, model=model, runtime=runtime), grain="operator").plan
    total = dict.fromkeys(PRODUCTS, 0.0)
    for work, count in tasks_per_work(plan):
        if isinstance(work, Operator) and work.kind in PRODUCTS:
            total[work.kind] += work.flops * count
    return total


@pytest.mark.parametrize("ways", [2, 4, 8])
@pytest.mark.parametrize("sequence_parallel", ["", ",sp"])
@pytest.mark.parametrize("model", [GPT, UNTIED])
def test_tensor_ranks_together_compute_the_whole_products(model: str, ways: int, sequence_parallel: str) -> None:
    whole, share = flops_of("tp=1", model), flops_of(f"tp={ways}{sequence_parallel}", model)
    assert share[OpKind.ATTENTION] * ways == pytest.approx(whole[OpKind.ATTENTION], rel=1e-12)
    assert share[OpKind.GEMM] * ways == pytest.approx(whole[OpKind.GEMM], rel=1e-12)


@pytest.mark.parametrize("ways", [2, 4])
def test_grouped_query_heads_are_shared_out_too(ways: int) -> None:
    whole, share = flops_of("tp=1", LLAMA), flops_of(f"tp={ways}", LLAMA)
    assert share[OpKind.ATTENTION] * ways == pytest.approx(whole[OpKind.ATTENTION], rel=1e-12)
    assert share[OpKind.GEMM] * ways == pytest.approx(whole[OpKind.GEMM], rel=1e-12)


def test_berts_layers_are_shared_out_and_the_transform_of_its_masked_head_is_not() -> None:
    whole, share = flops_of("tp=1", BERT), flops_of("tp=4", BERT)
    assert share[OpKind.ATTENTION] * 4 == pytest.approx(whole[OpKind.ATTENTION], rel=1e-12)
    batch, seq, hidden = 16, 128, 256
    # A norm stands between the transform and the vocabulary: no pair of column and row, so every rank runs it.
    repeated = 3 * 2 * batch * seq * hidden**2
    assert share[OpKind.GEMM] == pytest.approx((whole[OpKind.GEMM] - repeated) / 4 + repeated, rel=1e-9)


@pytest.mark.parametrize("ways", [2, 4])
def test_experts_are_cut_like_other_linear_layers(ways: int) -> None:
    whole, share = flops_of("tp=1", MOE), flops_of(f"tp={ways}", MOE)
    assert share[OpKind.GROUPED_GEMM] * ways == pytest.approx(whole[OpKind.GROUPED_GEMM], rel=1e-12)


@pytest.mark.parametrize("ways", [2, 4])
@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_context_ranks_together_compute_the_whole_products(model: str, ways: int) -> None:
    whole, share = flops_of("cp=1", model), flops_of(f"cp={ways}", model)
    for kind in (OpKind.GEMM, OpKind.ATTENTION):
        assert share[kind] * ways == pytest.approx(whole[kind], rel=1e-12)


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_pipeline_stages_together_compute_the_whole_products(model: str) -> None:
    whole = flops_of("pp=1,num_microbatches=4", model)
    plan = lower(request_of("pp=4,num_microbatches=4", model=model), grain="operator").plan
    for kind in (OpKind.GEMM, OpKind.ATTENTION):
        found = sum(
            w.flops * n
            for row in range(4)
            for w, n in tasks_per_work(plan, row=row)
            if isinstance(w, Operator) and w.kind is kind
        )
        assert found == pytest.approx(whole[kind], rel=1e-12)


def test_replicas_and_microbatches_share_out_the_batch() -> None:
    one = flops_of("dp=1", GPT)
    assert flops_of("dp=4", GPT)[OpKind.GEMM] * 4 == pytest.approx(one[OpKind.GEMM], rel=1e-12)
    assert flops_of("num_microbatches=8", GPT)[OpKind.GEMM] == pytest.approx(one[OpKind.GEMM], rel=1e-12)


def test_full_recomputation_adds_one_forward_of_the_layers_and_selective_only_attention() -> None:
    layers, hidden, seq, batch = 4, 256, 128, 16
    none, selective, full = (flops_of(f"recompute={r}", GPT) for r in ("none", "selective", "full"))
    assert selective[OpKind.GEMM] == none[OpKind.GEMM]
    again = layers * 4 * batch * hidden * seq * (seq + 1) / 2
    assert selective[OpKind.ATTENTION] - none[OpKind.ATTENTION] == pytest.approx(again, rel=1e-12)
    assert full[OpKind.ATTENTION] == selective[OpKind.ATTENTION]
    assert full[OpKind.GEMM] - none[OpKind.GEMM] == pytest.approx(layers * 2 * batch * seq * 12 * hidden**2, rel=1e-12)


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        (3, "tp=3 does not divide the 8 attention heads of layers.0.attention; choose a divisor of 8"),
        (5, "tp=5 does not divide the 768 outputs of layers.0.attention.qkv; choose a divisor of 768"),
        (16, "tp=16 does not divide the 8 attention heads of layers.0.attention; choose a divisor of 8"),
    ],
)
def test_degrees_that_do_not_divide_are_refused_with_the_numbers(ways: int, said: str) -> None:
    with pytest.raises(StrategyError) as caught:
        lower(request_of(f"tp={ways}"))
    assert str(caught.value) == said
