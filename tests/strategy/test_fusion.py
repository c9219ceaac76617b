"""Fused kernels: what is passed among the members never reaches memory."""

from __future__ import annotations

import pytest

from tests.conftest import CNN, GPT, LLAMA, graph_of
from traincast import OperatorGraph
from traincast.graph import OpKind, Phase
from traincast.graph.vocabulary import MATRIX_KINDS
from traincast.strategy.program.fusion import fuse
from traincast.strategy.runtime import Fusion

ALL: tuple[Fusion, ...] = ("norm", "elementwise", "loss")
BERT = "bert:layers=3,hidden=64,heads=4,vocab=100,seq=32"


def traffic(graph: OperatorGraph) -> float:
    return sum(op.nbytes * n for op, n in graph)


CASES = [(spec, f) for spec in (GPT, LLAMA, BERT) for f in (("norm",), ("elementwise",), ("loss",), ALL)]


@pytest.mark.long(but=5)
@pytest.mark.parametrize(
    ("spec", "fusions"),
    [
        *CASES,
        (CNN, ("elementwise",)),
        (CNN, ("norm",)),
        (CNN, ("batch_norm",)),
        (CNN, ("batch_norm", "elementwise")),
        (CNN, ALL),
        (GPT, ("batch_norm",)),
    ],
)
def test_fusing_keeps_products_and_parameters_and_never_adds_traffic(spec: str, fusions: tuple[Fusion, ...]) -> None:
    graph = graph_of(spec)
    fused = fuse(graph, fusions)
    assert fused.num_parameters == graph.num_parameters
    assert fused.num_operators <= graph.num_operators
    assert traffic(fused) <= traffic(graph)
    for phase in Phase:
        before, after = (
            sum(op.flops * n for op, n in g if op.phase is phase and op.kind in MATRIX_KINDS) for g in (graph, fused)
        )
        assert after == before
    indices = sorted(i for b in fused.blocks for i in (*b.forward, *b.backward, *b.optimizer))
    assert indices == list(range(len(fused.operators)))
    assert len(fused.forward_of) == len(fused.operators)
    assert all(0 <= a < len(fused.operators) and 0 <= b < len(fused.operators) for a, b in fused.edges)


def test_nothing_is_fused_that_was_not_asked_for() -> None:
    assert fuse(graph_of(GPT), ()) is graph_of(GPT)
    assert fuse(graph_of(GPT), ("gradients",)) == graph_of(GPT)


def test_batch_norm_joins_additions_and_activations_across_single_layers() -> None:
    graph = graph_of("resnet50")
    fused = fuse(graph, ("batch_norm",))
    kinds = {(op.kind, op.phase) for op in fused.operators if max(t.numel for t in op.outputs) > 1000}
    assert (OpKind.ACTIVATION, Phase.FORWARD) not in kinds
    assert (OpKind.ACTIVATION, Phase.BACKWARD) not in kinds
    first = next(op for op in fused.operators if op.name == "fused_batch_norm")
    whole = first.outputs[0].numel
    assert [t.numel for t in first.inputs].count(whole) == 1  # reads its input once in this count, writes one result
    assert [t.numel for t in first.outputs].count(whole) == 1
    joined = next(op for op in fused.operators if op.attributes.get("fused") == 3 and op.phase is Phase.FORWARD)
    assert [t.numel for t in joined.inputs].count(joined.outputs[0].numel) == 2  # and the residual
    back = next(op for op in fused.operators if op.name == "fused_batch_norm_backward")
    assert [t.numel for t in back.inputs].count(back.outputs[0].numel) == 3  # gradient, mask and input
    assert sum(t.numel for op in fused.operators for t in op.saved) == sum(
        t.numel for op in graph.operators for t in op.saved
    )


def test_softmax_and_loss_become_one_kernel() -> None:
    fused = fuse(graph_of(GPT), ("loss",))
    forward = [op for op in fused.operators if op.phase is Phase.FORWARD and op.kind in (OpKind.LOSS, OpKind.SOFTMAX)]
    before = [
        op for op in graph_of(GPT).operators if op.phase is Phase.FORWARD and op.kind in (OpKind.LOSS, OpKind.SOFTMAX)
    ]
    assert len(before) == 2
    # They stand in blocks of their own, so they are merged only where one block holds both.
    assert 1 <= len(forward) <= 2
    assert sum(op.nbytes for op in forward) <= sum(op.nbytes for op in before)


def test_a_chain_of_pointwise_operators_is_one_kernel_with_the_outer_tensors() -> None:
    fused = fuse(graph_of(LLAMA), ("elementwise",))
    made = [op for op in fused.operators if op.attributes.get("fused")]
    assert made
    for op in made:
        assert op.kind is OpKind.ELEMENTWISE
        assert int(op.attributes["fused"]) >= 2
        assert op.outputs


def test_a_fused_gate_keeps_its_inputs_and_computes_the_rest_again() -> None:
    """SwiGLU in one kernel: gate and up are kept, the gate's activation is not."""
    fused = fuse(graph_of(LLAMA), ("elementwise",))
    saved = [
        sum(t.numel for op in g.operators if op.phase is Phase.FORWARD and op.scope.endswith(".mlp") for t in op.saved)
        for g in (graph_of(LLAMA), fused)
    ]
    assert saved[1] == pytest.approx(saved[0] * 2 / 3)


@pytest.mark.parametrize("spec", [GPT, LLAMA, BERT])
def test_a_model_without_batch_norms_is_left_as_it_is_by_their_fusion(spec: str) -> None:
    graph = graph_of(spec)
    fused = fuse(graph, ("batch_norm",))
    assert [op.name for op, _ in fused] == [op.name for op, _ in graph]
    assert not any(op.kind is OpKind.BATCH_NORM for op in fuse(graph, ("batch_norm", "elementwise")).operators)
