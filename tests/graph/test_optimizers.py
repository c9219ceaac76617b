"""One table of optimizers: a line in it is all that a new one needs."""

from __future__ import annotations

import pytest
import torch

import traincast
from traincast.errors import UnknownNameError
from traincast.graph import OpKind, Phase
from traincast.graph.load import load_model
from traincast.graph.optimizers import (
    OPTIMIZERS,
    SOAP_LARGEST,
    Optimizer,
    matrices_of,
    optimizer_called,
    optimizer_of_class,
    optimizer_with,
)
from traincast.graph.zoo.traceable import Traceable

MODEL = "gpt:layers=4,hidden=256,heads=4"


def test_an_optimizer_is_added_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "tiger", Optimizer(states=1, flops=7.0, torch="Tiger"))
    plain, tiger = (
        traincast.predict(MODEL, cluster="dgx-h100", global_batch=8, precision="fp32", optimizer=name)
        for name in ("adamw", "tiger")
    )
    assert tiger.report.memory.optimizer == plain.report.memory.optimizer / 2  # one state instead of two
    assert tiger.report.optimizer_s < plain.report.optimizer_s
    graph = load_model(MODEL).with_optimizer("tiger")
    update = next(op for op in graph.operators if op.phase is Phase.OPTIMIZER)
    assert (update.kind, len(update.inputs), len(update.outputs)) == (OpKind.OPTIMIZER, 3, 2)
    assert update.flops == 7.0 * update.parameters[0].numel
    assert optimizer_of_class("Tiger") == "tiger"
    module = Traceable(module=torch.nn.Linear(4, 4), inputs=lambda batch: (torch.zeros(batch, 4),), optimizer="tiger")
    assert {op.name for op in load_model(module).operators if op.phase is Phase.OPTIMIZER} == {"tiger"}


def test_an_unknown_optimizer_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="adamw"):
        load_model(MODEL).with_optimizer("tiger")


def test_what_names_an_optimizer_agrees_with_the_table() -> None:
    assert [optimizer_with(states) for states in (0, 1, 2)] == ["sgd-plain", "sgd", "adamw"]
    assert [optimizer_of_class(name) for name in ("AdamW", "SGD", "RMSprop")] == ["adamw", "sgd", "rmsprop"]
    assert optimizer_called("unheard of").states == optimizer_called("adamw").states


def test_optimizers_of_matrices_leave_embeddings_head_and_norms_to_adamw() -> None:
    graph = load_model(MODEL).with_optimizer("muon")
    updates = [op for op in graph.operators if op.phase is Phase.OPTIMIZER]
    muon = [op for op in updates if op.name == "muon"]
    assert {op.scope.partition(".")[0] for op in muon} == {"layers"}
    assert {len(op.parameters[0].shape) for op in muon} == {2}
    assert {op.name for op in updates} == {"muon", "adamw"}
    assert {(op.name, len(op.inputs)) for op in updates} == {("muon", 3), ("adamw", 4)}


@pytest.mark.parametrize("shape", [(64, 64), (64, 256), (256, 64)])
def test_newton_schulz_computes_4m2n_and_2m3_flops_per_iteration(shape: tuple[int, int]) -> None:
    m, n = min(shape), max(shape)
    matrix = OPTIMIZERS["muon"].matrix
    assert matrix is not None
    assert sum(p.flops for p in matrix(*shape).products) == 5 * (4 * m * m * n + 2 * m**3)
    assert matrix(*shape).states == 0


def test_soap_keeps_two_squares_per_side_unless_the_side_is_too_long() -> None:
    matrix = OPTIMIZERS["soap"].matrix
    assert matrix is not None
    assert matrix(64, 256).states == 2 * (64**2 + 256**2)
    assert matrix(64, SOAP_LARGEST + 1).states == 2 * 64**2


def test_stacks_of_experts_are_matrices_and_kernels_of_convolutions_are_one() -> None:
    assert [matrices_of(shape) for shape in ((4, 6), (8, 4, 6), (16, 3, 5, 5))] == [(1, 4, 6), (8, 4, 6), (1, 16, 75)]
