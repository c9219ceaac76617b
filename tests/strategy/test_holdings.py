"""What frozen parameters and buffers cost: memory and gathers, and no gradient, state, update or exchange."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.conftest import AnalyticalCostModel, devices
from traincast import Forecast, OperatorGraph, Request, load_runtime, predict
from traincast.graph import OpKind
from traincast.graph.capture.capture import capture
from traincast.graph.zoo import Traceable
from traincast.strategy import Memory, load_precision, lower, parse_strategy
from traincast.strategy.prepare import exchanged_parts, memory_by_stage, prepare
from traincast.work import Collective

HIDDEN, LAYERS, BUFFER = 64, 4, 1000
LAYER = 2 * 4 * HIDDEN * HIDDEN  # two products, and an adapter of rank 8 to each block


class Layer(nn.Module):  # type: ignore[misc]
    """Two frozen products and a trained adapter beside them."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False).requires_grad_(not frozen)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False).requires_grad_(not frozen)
        self.adapter = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.register_buffer("table", torch.zeros(BUFFER))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(x))) + self.adapter(x)


class Model(nn.Module):  # type: ignore[misc]
    """Equal layers and a head."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(frozen=frozen) for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@cache
def graph(*, frozen: bool = True) -> OperatorGraph:
    made = Traceable(module=Model(frozen=frozen), inputs=lambda batch: (torch.empty(batch, 8, HIDDEN),))
    return capture(made, name="adapted")


def request(strategy: str, *, precision: str = "bf16", frozen: bool = True) -> Request:
    chosen = parse_strategy(strategy, global_batch=16)
    return Request(
        graph=graph(frozen=frozen),
        cluster=devices(chosen.num_ranks),
        strategy=chosen,
        runtime=load_runtime("pytorch"),
        precision=load_precision(precision),
        global_batch=16,
    )


def memories(strategy: str, **how: str) -> tuple[Memory, ...]:
    asked = request(strategy, **how)  # type: ignore[arg-type]
    return memory_by_stage(asked, prepare(asked))


TRAINED = LAYERS * HIDDEN * HIDDEN + 10 * HIDDEN


@pytest.mark.parametrize(("precision", "weight"), [("bf16", 2), ("fp32", 4), ("amp", 4)])
def test_frozen_weights_are_stored_as_weights_are_and_have_no_gradient_or_state(precision: str, weight: int) -> None:
    (memory,) = memories("dp=1", precision=precision)
    assert memory.parts["frozen weights"] == LAYERS * LAYER * weight
    assert memory.parts["buffers"] == LAYERS * BUFFER * 4
    assert memory.parts["weights"] == TRAINED * weight
    assert memory.optimizer == TRAINED * (8 if precision != "bf16" else 12)
    assert memory.parts["gradients"] == TRAINED * 4


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_three_shards_frozen_weights_and_never_buffers(zero: int) -> None:
    (memory,) = memories(f"dp=4,zero={zero}")
    assert memory.parts["frozen weights"] == LAYERS * LAYER * 2 / (4 if zero == 3 else 1)
    assert memory.parts["buffers"] == LAYERS * BUFFER * 4


def test_tensor_parallelism_cuts_frozen_weights_and_no_buffers() -> None:
    (memory,) = memories("tp=4")
    assert memory.parts["frozen weights"] == LAYERS * LAYER * 2 / 4
    assert memory.parts["buffers"] == LAYERS * BUFFER * 4


def test_every_stage_of_a_pipeline_holds_what_is_frozen_in_its_layers() -> None:
    parts = [memory.parts for memory in memories("pp=2,micro_batch=4")]
    assert [p["frozen weights"] for p in parts] == [LAYERS / 2 * LAYER * 2] * 2
    assert [p["buffers"] for p in parts] == [LAYERS / 2 * BUFFER * 4] * 2


def sent(strategy: str, kind: str, *, model: OperatorGraph | None = None) -> float:
    asked = request(strategy)
    plan = lower(replace(asked, graph=model) if model else asked).plan
    found = zip(plan.work_counts().tolist(), plan.works, strict=True)
    return float(sum(n * w.nbytes for n, w in found if isinstance(w, Collective) and w.kind == kind))


def test_gradients_of_frozen_weights_are_not_exchanged() -> None:
    assert sent("dp=4", "all_reduce") == TRAINED * 4


def test_zero_three_gathers_frozen_weights_and_reduces_trained_ones_alone() -> None:
    """Gathered in bf16 for forward and for backward; gradients are scattered once."""
    assert sent("dp=4,zero=3", "all_gather") == 2 * 2 * (TRAINED + LAYERS * LAYER)
    assert sent("dp=4,zero=3", "reduce_scatter") == TRAINED * 2


def test_parameter_servers_get_gradients_of_what_is_trained_alone() -> None:
    asked = request("dp=4,servers=2")
    assert sum(nbytes for _, nbytes in exchanged_parts(asked, prepare(asked))) == TRAINED * 4


def test_the_optimizer_updates_what_is_trained() -> None:
    plan = lower(request("dp=1")).plan
    (update,) = (w for w in plan.works if getattr(w, "kind", None) is OpKind.OPTIMIZER)
    assert update.inputs[0].numel == TRAINED  # type: ignore[union-attr]


def test_a_split_backward_has_no_products_for_frozen_weights() -> None:
    def products(frozen: bool) -> int:
        programs = prepare(request("pp=2,micro_batch=4,schedule=zb-h1", frozen=frozen)).programs
        return sum(len(p.backward_weights) for p in programs if p.footprint.kept)

    assert products(frozen=True) < products(frozen=False)
    deferred = [
        max(p.footprint.deferred for p in prepare(request("dp=1", frozen=frozen)).programs) for frozen in (True, False)
    ]
    assert deferred[0] < deferred[1]


def test_a_report_says_how_many_parameters_are_trained() -> None:
    said: Forecast = predict(
        graph(), cluster=devices(1), global_batch=4, strategy="dp=1", cost_model=AnalyticalCostModel()
    )
    assert said.report.num_parameters == TRAINED + LAYERS * LAYER
    assert said.report.num_trainable_parameters == TRAINED
    assert said.report.to_dict()["num_trainable_parameters"] == TRAINED


def head_alone() -> OperatorGraph:
    module = Model(frozen=True)
    for layer in module.layers:
        layer.requires_grad_(False)
    made = Traceable(module=module, inputs=lambda batch: (torch.empty(batch, 8, HIDDEN),))
    return capture(made, name="head alone")


def test_a_model_whose_first_layers_are_frozen_runs_no_backward_there() -> None:
    asked = replace(request("dp=4,zero=3,recompute=full"), graph=head_alone())
    programs = prepare(asked).programs
    assert [bool(p.backward) for p in programs if p.frozen.stored] == [False] * sum(
        bool(p.frozen.stored) for p in programs
    )
    assert all(not p.footprint.kept for p in programs if p.frozen.stored)
    frozen = LAYERS * (LAYER + HIDDEN * HIDDEN)
    gathered = sent("dp=4,zero=3,recompute=full", "all_gather", model=asked.graph)
    assert gathered == 2 * frozen + 2 * 2 * 10 * HIDDEN  # frozen layers for forward alone
