"""Capture: the operators that PyTorch runs, tied together, folded without loss."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from tests.conftest import GPT, AnalyticalCostModel, devices, graph_of
from traincast import CaptureError, OperatorGraph, TensorSpec
from traincast.graph import DType, OpKind, Phase
from traincast.graph.capture.capture import capture
from traincast.graph.capture.recorder import BATCH
from traincast.graph.vocabulary import MATRIX_KINDS
from traincast.graph.zoo import Traceable, build


def traceable(module: nn.Module, *shape: int, loss: Any = None, optimizer: str = "adamw") -> Traceable:
    return Traceable(module=module, inputs=lambda batch: (torch.empty(batch, *shape),), loss=loss, optimizer=optimizer)


def traced(module: nn.Module, *shape: int) -> OperatorGraph:
    return capture(traceable(module, *shape), name="test")


def kinds(graph: OperatorGraph, phase: Phase) -> Counter[str]:
    seen: Counter[str] = Counter()
    for op, count in graph:
        if op.phase is phase:
            seen[op.kind.value] += count
    return seen


class TwoLinear(nn.Module):  # type: ignore[misc]
    """Two linear layers with a ReLU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def test_a_step_of_two_linear_layers_has_the_operators_one_would_write_down() -> None:
    graph = traced(TwoLinear(), 8)
    assert [op.name for op in graph.operators if op.phase is Phase.FORWARD] == ["addmm", "relu", "mm", "sum"]
    backward = [op for op in graph.operators if op.phase is Phase.BACKWARD]
    # Gradients by weight of both layers, by input of the second alone: the batch needs none.
    assert sorted(op.name for op in backward if op.kind is OpKind.GEMM) == ["mm", "mm", "mm"]
    assert [op.name for op in backward if op.kind is OpKind.ACTIVATION] == ["threshold_backward"]
    assert [op.parameters[0].shape for op in graph.operators if op.phase is Phase.OPTIMIZER] == [
        (32, 8),
        (32,),
        (4, 32),
    ]
    assert graph.num_parameters == 8 * 32 + 32 + 32 * 4


def test_inputs_of_a_biased_product_come_in_canonical_order() -> None:
    op = traced(TwoLinear(), 8).operators[0]
    assert [t.shape for t in op.inputs] == [(1, 8), (8, 32), (32,)]
    assert [t.batch_dim for t in op.inputs] == [0, None, None]
    assert [p.shape for p in op.parameters] == [(32,), (8, 32)]
    assert op.scope == "up"
    assert op.attributes["module"] == "Linear"


def test_backward_operators_know_their_forward_and_have_its_scope() -> None:
    graph = traced(TwoLinear(), 8)
    for index, op in enumerate(graph.operators):
        source = graph.forward_of[index]
        if op.phase is not Phase.BACKWARD:
            assert source == -1
        elif op.kind in (OpKind.GEMM, OpKind.ACTIVATION):
            assert graph.operators[source].phase is Phase.FORWARD
            assert graph.operators[source].kind is op.kind
            assert graph.operators[source].scope == op.scope


def test_every_product_of_a_transformer_has_two_gradients_tied_to_it() -> None:
    graph = graph_of(GPT)
    for block in graph.blocks:
        for index in block.forward:
            op = graph.operators[index]
            if op.kind is OpKind.GEMM:
                tied = [graph.operators[i] for i in block.backward if graph.forward_of[i] == index]
                products = [b for b in tied if b.kind is OpKind.GEMM]
                assert len(products) == 2
                assert {b.flops for b in products} == {op.flops}


def test_the_gradient_of_a_convolution_before_a_batch_norm_is_tied_to_the_convolution() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    graph = traced(module, 3, 16, 16)
    (backward,) = [i for i, op in enumerate(graph.operators) if op.name == "convolution_backward"]
    assert graph.operators[graph.forward_of[backward]].name == "convolution"
    assert graph.operators[backward].scope == "0"


def test_edges_run_from_producers_to_consumers() -> None:
    graph = traced(TwoLinear(), 8)
    forward = {(graph.operators[a].name, graph.operators[b].name) for a, b in graph.edges if b < 4}
    assert forward == {("addmm", "relu"), ("relu", "mm"), ("mm", "sum")}
    assert all(a != b for a, b in graph.edges)


def test_a_tensor_is_saved_once_however_many_operators_keep_it() -> None:
    class Shared(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.sigmoid(x)
            return self.first(hidden) * self.second(hidden)

    saved = [t for op in traced(Shared(), 16).operators for t in op.saved]
    # The sigmoid's output serves both layers; the product keeps its two factors.
    assert saved == [TensorSpec((1, 16), DType.FP32, 0)] * 3


def test_the_batch_and_the_weights_are_not_activations() -> None:
    assert [t for op in traced(nn.Linear(8, 8), 8).operators for t in op.saved] == []


def test_a_view_that_is_saved_keeps_the_whole_tensor_alive() -> None:
    class Slices(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Linear(4, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.wide(x)[:, :8].square()

    saved = [t for op in traced(Slices(), 4).operators for t in op.saved]
    assert sum(t.nbytes for t in saved) == 32 * 4


def test_views_cost_nothing() -> None:
    class Views(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(6, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.view(-1, 2, 3, 4).permute(0, 2, 1, 3)[:, :, 0].unsqueeze(1).transpose(1, 2).squeeze(2)
            return y.expand(-1, 3, 4) @ self.weight.t().chunk(2, dim=1)[0]

    graph = traced(Views(), 6, 4)
    assert {op.kind for op in graph.operators if op.phase is Phase.FORWARD} <= {
        OpKind.GEMM,
        OpKind.BATCHED_GEMM,
        OpKind.REDUCTION,
        OpKind.COPY,
    }
    assert not {"view", "permute", "expand", "transpose", "slice", "t"} & {op.name for op in graph.operators}


def test_the_captured_sizes_are_those_of_one_sample() -> None:
    graph = traced(nn.Conv2d(3, 8, 3, padding=1), 3, 16, 16)
    conv = graph.operators[0]
    assert [t.shape for t in conv.inputs] == [(1, 3, 16, 16), (8, 3, 3, 3), (8,)]
    assert conv.outputs[0] == TensorSpec((1, 8, 16, 16), DType.FP32, 0)
    assert conv.with_batch(32).outputs[0].shape == (32, 8, 16, 16)
    assert not any(BATCH in t.shape for op in graph.operators for t in (*op.inputs, *op.outputs, *op.saved))


EXACT = [
    "gpt:layers=6,hidden=64,heads=4,vocab=100,seq=32",
    "llama:layers=5,hidden=64,heads=4,kv_heads=2,vocab=100,seq=32",
    "llama:layers=8,hidden=64,heads=4,vocab=100,seq=32,window=8,window_period=2",
    "moe:layers=4,hidden=64,heads=4,experts=4,top_k=2,expert_ffn=32,vocab=100,seq=32",
    "vit:layers=4,hidden=64,heads=4,patch=4,image=16,classes=10",
    "resnet:layers=50",
    "bert:layers=4,hidden=64,heads=4,vocab=100,seq=32",
    "resnet-cifar:layers=32",
    "t5:layers=4,hidden=64,heads=4,vocab=100,seq=32",
]


@cache
def folded_and_whole(spec: str) -> tuple[OperatorGraph, OperatorGraph]:
    model = build(spec)
    with mock.patch("traincast.graph.capture.capture.folded", side_effect=lambda *_: nullcontext([])):
        whole = capture(model, name=spec)
    return capture(model, name=spec), whole


def products(graph: OperatorGraph, phase: Phase) -> float:
    return sum(op.flops * n for op, n in graph if op.phase is phase and op.kind in MATRIX_KINDS)


@pytest.mark.long(but=2)
@pytest.mark.parametrize("spec", EXACT)
def test_folding_repeated_blocks_keeps_flops_parameters_and_saved_bytes(spec: str) -> None:
    folded, whole = folded_and_whole(spec)
    assert len(folded.operators) < len(whole.operators)
    assert folded.num_parameters == whole.num_parameters == sum(p.numel() for p in build(spec).module.parameters())
    for phase in Phase:
        assert products(folded, phase) == pytest.approx(products(whole, phase), rel=1e-12)
        assert folded.flops(phase) == pytest.approx(whole.flops(phase), rel=1e-3)
    saved, wanted = (sum(t.nbytes * n for op, n in g for t in op.saved) for g in (folded, whole))
    assert saved == pytest.approx(wanted, rel=1e-12)


@pytest.mark.long(but=2)
@pytest.mark.parametrize("spec", EXACT)
def test_folding_repeated_blocks_keeps_every_operator(spec: str) -> None:
    folded, whole = folded_and_whole(spec)
    assert folded.num_operators == whole.num_operators
    for phase in Phase:
        assert kinds(folded, phase) == kinds(whole, phase)


def test_a_repeated_block_is_stored_once() -> None:
    graph = graph_of("gpt:layers=96,hidden=64,heads=4,vocab=100,seq=32")
    counts = [block.count for block in graph.blocks]
    assert sorted(set(counts)) == [1, 96]
    assert counts.count(96) == 1
    assert len(graph.operators) == len(graph_of("gpt:layers=4,hidden=64,heads=4,vocab=100,seq=32").operators)


def test_every_operator_belongs_to_one_block_and_indices_are_dense() -> None:
    graph = graph_of(GPT)
    indices = [i for b in graph.blocks for i in (*b.forward, *b.backward, *b.optimizer)]
    assert sorted(indices) == list(range(len(graph.operators)))
    for block in graph.blocks:
        assert all(graph.operators[i].phase is Phase.FORWARD for i in block.forward)
        assert all(graph.operators[i].phase is Phase.BACKWARD for i in block.backward)
        assert all(graph.operators[i].phase is Phase.OPTIMIZER for i in block.optimizer)


def test_what_crosses_to_the_next_layer_is_the_residual_stream() -> None:
    graph = graph_of(GPT)
    (layer,) = [b for b in graph.blocks if b.count == 4]
    assert layer.boundary == (TensorSpec((1, 128, 256), DType.FP32, 0),)
    assert layer.scope == "layers.0"


@pytest.mark.parametrize(("optimizer", "inputs", "outputs"), [("adamw", 4, 3), ("sgd", 3, 2), ("sgd-plain", 2, 1)])
def test_an_update_reads_and_writes_its_states(optimizer: str, inputs: int, outputs: int) -> None:
    graph = capture(traceable(nn.Linear(4, 4), 4, optimizer=optimizer), name="test")
    updates = [op for op in graph.operators if op.phase is Phase.OPTIMIZER]
    assert [(op.name, len(op.inputs), len(op.outputs)) for op in updates] == [(optimizer, inputs, outputs)] * 2


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(CaptureError, match="unknown optimizer 'rmsprop': known are adamw"):
        capture(traceable(nn.Linear(4, 4), 4, optimizer="rmsprop"), name="test")


class Branches(nn.Module):  # type: ignore[misc]
    """Looks at its data to decide what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if x.sum() > 0 else x


class Picky(nn.Module):  # type: ignore[misc]
    """Works for one batch size only."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.view(2, 2, 4))


@pytest.mark.parametrize("module", [Branches(), Picky()])
def test_a_model_that_cannot_be_traced_is_refused_in_one_line(module: nn.Module) -> None:
    with pytest.raises(CaptureError, match="tracing 'mine' failed") as caught:
        capture(traceable(module, 4), name="mine")
    assert "\n" not in str(caught.value)
    assert "the module must run on any batch size" in str(caught.value)


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(CaptureError, match="no trainable parameter"):
        capture(traceable(nn.ReLU(), 4), name="mine")


def test_capture_leaves_the_module_as_it_was() -> None:
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    before = {name: p.clone() for name, p in module.named_parameters()}
    assert traced(module, 4).num_parameters == 5 * 20
    assert len(module) == 5
    assert all(torch.equal(before[name], p) for name, p in module.named_parameters())
    assert all(p.grad is None for p in module.parameters())


def test_frozen_parameters_are_not_updated() -> None:
    module = TwoLinear()
    module.up.requires_grad_(False)
    graph = traced(module, 8)
    assert graph.num_trainable_parameters == 32 * 4
    assert graph.num_parameters == 8 * 32 + 32 + 32 * 4
    assert sum(op.kind is OpKind.GEMM for op in graph.operators if op.phase is Phase.BACKWARD) == 1


def test_an_operator_without_a_formula_says_so() -> None:
    class Odd(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.i0(self.linear(x))

    unknown = {op.name for op in traced(Odd(), 4).operators if op.attributes.get("unknown")}
    assert "i0" in unknown or "special_i0" in unknown


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_has_the_flops_of_its_gates(layer: type[nn.Module]) -> None:
    inputs, hidden, seq = 8, 16, 10
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[layer]
    graph = traced(layer(inputs, hidden, batch_first=True), seq, inputs)
    forward = sum(op.flops * n for op, n in graph if op.phase is Phase.FORWARD and op.kind in (OpKind.RNN, OpKind.GEMM))
    assert forward == pytest.approx(2 * seq * gates * hidden * (inputs + hidden), rel=0.01)


def test_gru_and_rnn_are_the_same_graph_as_an_lstm_but_for_their_gates() -> None:
    def shape_of(kind: type[nn.Module], **options: Any) -> tuple[list[str], list[float]]:
        graph = traced(kind(8, 16, batch_first=True, **options), 10, 8)
        layers = [(op, n) for op, n in graph if op.kind is OpKind.RNN]
        gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
        assert len([op for op in graph.operators if op.kind is OpKind.GEMM]) == 0
        return [op.phase.value for op, n in layers for _ in range(n)], [op.flops / gates for op, n in layers]

    for options in ({}, {"num_layers": 3}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}):
        wanted = shape_of(nn.LSTM, **options)
        assert shape_of(nn.GRU, **options) == wanted
        assert shape_of(nn.RNN, **options) == wanted
        assert shape_of(nn.RNN, nonlinearity="relu", bias=False, **options) == wanted


def test_a_gru_gives_what_it_gives_elsewhere_and_trains_every_parameter() -> None:
    class Last(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(8, 16, num_layers=2, bidirectional=True, dropout=0.1)
            self.head = nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs, state = self.gru(x.transpose(0, 1))
            assert outputs.shape == (10, x.shape[0], 32)
            assert state.shape == (4, x.shape[0], 16)
            return self.head(state[-1])

    module = Last()
    graph = traced(module, 10, 8)
    updated = [op.parameters[0].numel * n for op, n in graph if op.phase is Phase.OPTIMIZER]
    assert sum(updated) == sum(p.numel() for p in module.parameters())
    backward = [op for op in graph.operators if op.name == "gru_layer_backward"]
    assert {op.scope for op in backward} == {"gru"}
    assert kinds(graph, Phase.FORWARD)["dropout"] == 1


@pytest.mark.long(guard="test_a_recurrent_layer_has_the_flops_of_its_gates")
def test_a_gru_costs_three_quarters_of_an_lstm() -> None:
    """Where products decide; what a step of the recurrence costs beside them is the same."""
    cluster = devices(1)
    times = []
    for kind in (nn.GRU, nn.LSTM):
        works = [
            op.with_batch(256) for op in traced(kind(2048, 2048, batch_first=True), 32, 2048).operators
            if op.kind is OpKind.RNN
        ]  # fmt: skip
        times.append(AnalyticalCostModel().estimate(works, cluster).seconds.sum())
    assert times[0] / times[1] == pytest.approx(0.75, rel=0.02)
