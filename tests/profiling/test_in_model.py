"""Operators timed while their model runs are those that capture found."""

from __future__ import annotations

import pytest

from tests.conftest import graph_of
from traincast.estimate.events.keys import operator_key
from traincast.graph import Phase
from traincast.profiling.operators.in_model import CannotRunModelError, run_model

MODELS = [
    "resnet-cifar:layers=8",
    "llama:layers=4,hidden=32,heads=4,kv_heads=2,vocab=100,seq=16",
    "moe:layers=2,hidden=32,heads=4,experts=4,top_k=2,expert_ffn=32,vocab=100,seq=16",
    "bert:layers=2,hidden=32,heads=4,vocab=100,seq=16",
]


@pytest.mark.parametrize("model", MODELS)
def test_every_captured_operator_is_timed_in_the_run(model: str) -> None:
    timed = run_model(model, batch=3, seq=None, precision="fp32", device="cpu", steps=2)
    captured = {operator_key(op.with_batch(3)) for op in graph_of(model).operators}
    assert {operator_key(op) for op, _ in timed} == captured
    assert all(timing.count % 2 == 0 and timing.min_s > 0 for _, timing in timed)
    assert {op.phase for op, _ in timed} == set(Phase)


def test_a_model_that_does_not_fit_is_not_run() -> None:
    with pytest.raises(CannotRunModelError, match="are free"):
        run_model("llama3-405b", batch=1, seq=None, precision="fp32", device="cpu", steps=1, memory=1e9)


def test_a_saved_graph_cannot_be_run() -> None:
    with pytest.raises(CannotRunModelError, match="no module"):
        run_model("graph.json", batch=1, seq=None, precision="fp32", device="cpu", steps=1)
