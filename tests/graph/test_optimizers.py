"""One table of optimizers: a line in it is all that a new one needs."""

from __future__ import annotations

import pytest
import torch

import traincast
from traincast.errors import UnknownNameError
from traincast.graph import OpKind, Phase
from traincast.graph.load import load_model
from traincast.graph.optimizers import OPTIMIZERS, Optimizer, optimizer_called, optimizer_of_class, optimizer_with
from traincast.graph.zoo.traceable import Traceable

MODEL = "gpt:layers=4,hidden=256,heads=4"


def test_an_optimizer_is_added_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "lion", Optimizer(states=1, flops=7.0, torch="Lion"))
    plain, lion = (
        traincast.predict(MODEL, cluster="dgx-h100", global_batch=8, precision="fp32", optimizer=name)
        for name in ("adamw", "lion")
    )
    assert lion.report.memory.optimizer == plain.report.memory.optimizer / 2  # one state instead of two
    assert lion.report.optimizer_s < plain.report.optimizer_s
    graph = load_model(MODEL).with_optimizer("lion")
    update = next(op for op in graph.operators if op.phase is Phase.OPTIMIZER)
    assert (update.kind, len(update.inputs), len(update.outputs)) == (OpKind.OPTIMIZER, 3, 2)
    assert update.flops == 7.0 * update.parameters[0].numel
    assert optimizer_of_class("Lion") == "lion"
    module = Traceable(module=torch.nn.Linear(4, 4), inputs=lambda batch: (torch.zeros(batch, 4),), optimizer="lion")
    assert {op.name for op in load_model(module).operators if op.phase is Phase.OPTIMIZER} == {"lion"}


def test_an_unknown_optimizer_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="adamw"):
        load_model(MODEL).with_optimizer("lion")


def test_what_names_an_optimizer_agrees_with_the_table() -> None:
    assert [optimizer_with(states) for states in (0, 1, 2)] == ["sgd-plain", "sgd", "adamw"]
    assert [optimizer_of_class(name) for name in ("AdamW", "SGD", "RMSprop")] == ["adamw", "sgd", "rmsprop"]
    assert optimizer_called("unheard of").states == optimizer_called("adamw").states
