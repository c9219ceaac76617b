"""Captured operators run alone, and give the shapes that were captured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.conftest import CNN, GPT, LLAMA, graph_of
from tests.profiling.running import reason_not_to_run
from traincast import Operator, TensorSpec
from traincast.graph import OpKind, Phase
from traincast.graph.capture.capture import capture
from traincast.graph.zoo import Traceable
from traincast.profiling.operators.executors import BUILDERS, executor_of, memory_of
from traincast.profiling.operators.measure import distinct_operators
from traincast.profiling.operators.moving import reduced_dims
from traincast.profiling.operators.tensors import CannotRunError

MOE = "moe:layers=2,hidden=32,heads=4,experts=4,top_k=2,expert_ffn=32,vocab=100,seq=16"
DEEPSEEK = (
    "deepseek:layers=2,hidden=32,heads=2,experts=4,top_k=2,expert_ffn=16,ffn=32,vocab=100,seq=16,q_lora=16,kv_lora=16,"
    "rope_dim=8,nope_dim=8,v_dim=16"
)
BERT = "bert:layers=2,hidden=32,heads=4,vocab=100,seq=16,predictions=4"
SMALL = [
    "gpt:layers=2,hidden=32,heads=4,vocab=100,seq=16",
    "llama:layers=2,hidden=32,heads=4,kv_heads=2,vocab=100,seq=16",
    "resnet-cifar:layers=8",
    MOE,
    DEEPSEEK,
    BERT,
]


@pytest.mark.long(but=2)
@pytest.mark.parametrize("model", SMALL)
def test_every_operator_of_a_small_model_really_runs(model: str) -> None:
    for operator in distinct_operators(op.with_batch(2) for op in graph_of(model).operators).values():
        result = executor_of(operator)()
        shapes = [tuple(t.shape) for t in ([result] if isinstance(result, torch.Tensor) else result) if t is not None]
        assert shapes[: len(operator.outputs)] == [t.shape for t in operator.outputs], operator


@pytest.mark.long(but=2)
@pytest.mark.parametrize("model", [GPT, LLAMA, CNN, "squeezenet", "shufflenet-v2", "nmt"])
def test_every_operator_of_a_model_can_be_run_whatever_its_size(model: str) -> None:
    for operator in distinct_operators(graph_of(model).operators).values():
        assert reason_not_to_run(operator) is None, operator


def test_an_operator_larger_than_any_memory_can_be_tried_on_fake_tensors() -> None:
    side = 1 << 22
    huge = Operator(
        name="mm",
        kind=OpKind.GEMM,
        phase=Phase.FORWARD,
        inputs=(TensorSpec((side, side)), TensorSpec((side, side))),
        outputs=(TensorSpec((side, side)),),
    )
    assert reason_not_to_run(huge) is None
    assert memory_of(huge) > 3 * 4 * side**2


def test_values_are_those_of_the_operator() -> None:
    update = Operator(
        name="sgd-plain",
        kind=OpKind.OPTIMIZER,
        phase=Phase.OPTIMIZER,
        inputs=(TensorSpec((4, 4)),) * 2,
        outputs=(TensorSpec((4, 4)),),
    )
    run = executor_of(update)
    before = run()[0].clone()
    assert not torch.equal(run()[0], before)
    softmax = Operator(
        name="_softmax",
        kind=OpKind.SOFTMAX,
        phase=Phase.FORWARD,
        inputs=(TensorSpec((3, 5)),),
        outputs=(TensorSpec((3, 5)),),
    )
    assert torch.allclose(executor_of(softmax)().sum(dim=-1), torch.ones(3))


def test_an_operator_that_changes_its_input_can_run_for_ever() -> None:
    for name in ("mul_", "add_", "div_", "relu_", "hardtanh_"):
        operator = Operator(
            name=name,
            kind=OpKind.ELEMENTWISE,
            phase=Phase.FORWARD,
            inputs=(TensorSpec((64,)),),
            outputs=(TensorSpec((64,)),),
        )
        run = executor_of(operator)
        first = run().clone()
        for _ in range(20):
            last = run()
        assert torch.equal(first, last), name


def test_what_cannot_be_run_says_why() -> None:
    known = next(op for op in graph_of(SMALL[0]).operators if op.name == "addmm")
    for change, said in (
        ({"name": "warp"}, "no operator of this name"),
        ({"outputs": (TensorSpec((3, 3)),)}, "were captured"),
        ({"inputs": (TensorSpec((2, 3)), TensorSpec((4, 5)), TensorSpec((5,)))}, "mat1 and mat2"),
    ):
        with pytest.raises(CannotRunError, match=said):
            executor_of(replace(known, **change))


def test_a_reduction_is_told_from_its_shapes() -> None:
    assert reduced_dims((2, 3, 4), (4,)) == ([0, 1], False)
    assert reduced_dims((2, 3, 4), (2, 4)) == ([1], False)
    assert reduced_dims((2, 3, 4), (2, 1, 4)) == ([1], True)
    assert reduced_dims((1, 7), (1, 7)) == ([0], True)
    assert reduced_dims((2, 3), (5,)) is None
    assert reduced_dims((2, 3), (2, 2)) is None


def test_every_kind_of_the_zoo_has_a_builder_or_a_schema() -> None:
    assert {"convolution", "mm", "embedding", "adamw", "grouped_mm", "native_batch_norm", "mkldnn_rnn_layer"} <= set(
        BUILDERS
    )


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_captured_recurrent_layer_can_be_run(kind: type[torch.nn.Module]) -> None:
    module = kind(4, 8, batch_first=True)
    graph = capture(Traceable(module=module, inputs=lambda batch: (torch.empty(batch, 5, 4),)), name="recurrent")
    layers = [op.with_batch(3) for op in graph.operators if op.kind is OpKind.RNN]
    assert len(layers) == 2
    for layer in layers:
        executor_of(layer)
