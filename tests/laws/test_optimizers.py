"""Optimizers of matrices against closed forms: FLOPs of their products, states, and how replicas share them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import GPT, collective_bytes, graph_of, request_of, tasks_per_work
from traincast.graph import Operator, OpKind, Phase
from traincast.strategy import lower

HIDDEN, LAYERS = 256, 4
SIDES = [(HIDDEN, 3 * HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 4 * HIDDEN), (HIDDEN, 4 * HIDDEN)]
"""Matrices of one layer of GPT: the shorter side, and the longer one."""
MATRICES = LAYERS * sum(m * n for m, n in SIDES)


def products(optimizer: str, strategy: str) -> float:
    """FLOPs of the products in the update of one rank."""
    request = request_of(strategy, model=GPT, precision="bf16", global_batch=16)
    plan = lower(replace(request, graph=request.graph.with_optimizer(optimizer)), grain="operator").plan
    return sum(
        work.flops * count
        for work, count in tasks_per_work(plan, row=0)
        if isinstance(work, Operator) and (work.phase, work.kind) == (Phase.OPTIMIZER, OpKind.BATCHED_GEMM)
    )


def states(optimizer: str, strategy: str = "dp=1") -> float:
    request = request_of(strategy, model=GPT, precision="bf16", global_batch=16)
    (found, *_) = lower(replace(request, graph=request.graph.with_optimizer(optimizer))).memory
    return found.parts["optimizer states"]


def newton_schulz(m: int, n: int) -> float:
    """FLOPs of five iterations of A = X·Xᵀ, A·A and (b·A + c·A²)·X on a matrix of m rows and n columns, m ≤ n."""
    return 5 * (2 * m * m * n + 2 * m**3 + 2 * m * m * n)


@pytest.mark.parametrize(("strategy", "sharers"), [("dp=1", 1), ("dp=4", 1), ("dp=4,zero=1", 4), ("dp=4,zero=3", 4)])
def test_muon_computes_newton_schulz_on_the_matrices_that_a_rank_owns(strategy: str, sharers: int) -> None:
    assert products("muon", strategy) == LAYERS * sum(newton_schulz(m, n) for m, n in SIDES) / sharers


def test_adamw_lion_and_adafactor_multiply_nothing() -> None:
    assert [products(name, "dp=1") for name in ("adamw", "lion", "adafactor")] == [0.0, 0.0, 0.0]


def test_muon_keeps_one_state_of_matrices_and_two_of_other_weights() -> None:
    others = graph_of(GPT).num_parameters - MATRICES
    assert states("muon") == pytest.approx(4 * (MATRICES + 2 * others), rel=1e-12)
    assert states("muon", "dp=4,zero=1") == pytest.approx(states("muon") / 4, rel=1e-12)


def test_soap_keeps_averages_and_bases_of_both_sides() -> None:
    squares = LAYERS * sum(2 * (m * m + n * n) for m, n in SIDES)
    assert states("soap") == pytest.approx(states("adamw") + 4 * squares, rel=1e-12)


def test_adafactor_keeps_a_number_per_row_and_column() -> None:
    """It has no optimizer beside it: embeddings are matrices too, and a vector is a matrix of one column."""
    weights = [(op.parameters[0], n) for op, n in graph_of(GPT) if op.phase is Phase.OPTIMIZER]
    sides = sum(n * (sum(w.shape) if len(w.shape) > 1 else w.numel + 1) for w, n in weights)
    assert states("adafactor") == pytest.approx(4 * sides, rel=1e-12)


def test_only_zero_3_gathers_matrices_for_their_products() -> None:
    def sent(optimizer: str, strategy: str) -> float:
        request = request_of(strategy, model=GPT, precision="bf16", global_batch=16)
        plan = lower(replace(request, graph=request.graph.with_optimizer(optimizer)), grain="operator").plan
        return collective_bytes(plan, "all_gather")

    assert sent("muon", "dp=4,zero=1") == sent("adamw", "dp=4,zero=1")
    assert sent("muon", "dp=4,zero=3") - sent("adamw", "dp=4,zero=3") == 2 * MATRICES
