"""Where a step's time goes, on timelines small enough to add up by hand."""

from __future__ import annotations

import pytest

from tests.conftest import ChosenSeconds, request_of
from traincast.forecast import forecast
from traincast.graph import Operator, OpKind, Phase
from traincast.report import Breakdown, Report
from traincast.report.breakdown import mean_breakdown
from traincast.work import Collective, Launch, Transfer, Work

LAYERS = 4


def report(
    strategy: str,
    *,
    layer: float = 1.0,
    collective: float = 0.0,
    transfer: float = 0.0,
    launch: float = 0.0,
    update: float = 0.0,
    runtime: str = "pytorch",
    global_batch: int = 16,
) -> Report:
    """A report where a layer's GELU takes ``layer`` forward and again backward, and other works as given."""

    def rule(work: Work) -> float:
        if isinstance(work, Collective):
            return collective
        if isinstance(work, Transfer):
            return transfer
        if isinstance(work, Launch):
            return launch
        assert isinstance(work, Operator)
        if work.phase is Phase.OPTIMIZER:
            return update
        return layer if work.kind is OpKind.ACTIVATION else 0.0

    request = request_of(strategy, runtime=runtime, global_batch=global_batch)
    return forecast(request, cost_model=ChosenSeconds(rule)).report


def test_compute_and_optimizer_are_what_they_take() -> None:
    made = report("dp=1,num_microbatches=2", update=3.0)
    assert made.step_s == 2 * 2 * LAYERS + 3.0
    assert (made.compute_s, made.optimizer_s) == (2 * 2 * LAYERS, 3.0)
    assert made.exposed_communication_s == made.bubble_s == made.overhead_s == 0.0


def test_collectives_in_line_are_exposed() -> None:
    made = report("tp=4", collective=0.5)
    count = 4 * LAYERS + 2
    assert made.exposed_communication_s == pytest.approx(0.5 * count, rel=1e-12)
    assert made.step_s == pytest.approx(2 * LAYERS + 0.5 * count, rel=1e-12)


def test_gradient_traffic_behind_compute_is_hidden_and_only_its_end_shows() -> None:
    # One bucket per step (the model's gradients are below 25 MiB): it starts when backward has ended.
    made = report("dp=4", collective=5.0)
    assert made.compute_s == 2 * LAYERS
    assert made.exposed_communication_s == pytest.approx(made.step_s - 2 * LAYERS, rel=1e-12)
    assert made.step_s == pytest.approx(2 * LAYERS + 5.0, rel=1e-12)


def test_a_pipeline_waits_in_the_bubble() -> None:
    made = report("pp=2,num_microbatches=4")
    assert made.step_s == (4 + 1) * 2 * LAYERS / 2
    assert made.bubble_s == 2 * LAYERS / 2
    assert made.compute_s == 4 * 2 * LAYERS / 2


def test_waiting_for_the_host_is_overhead() -> None:
    made = report("dp=1", layer=0.0, launch=0.25)
    assert made.compute_s == made.exposed_communication_s == 0.0
    assert made.overhead_s == pytest.approx(made.step_s, rel=1e-12)
    assert made.step_s > 0


def test_every_rank_has_its_own_parts() -> None:
    made = report("pp=4,num_microbatches=1")
    assert [r.stage for r in made.ranks] == [0, 1, 2, 3]
    assert [r.rank for r in made.ranks] == [0, 1, 2, 3]
    assert [r.breakdown.compute_s for r in made.ranks] == [2.0] * 4
    assert [r.utilization for r in made.ranks] == [0.25] * 4


def test_the_mean_is_over_ranks() -> None:
    def parts(value: float) -> Breakdown:
        return Breakdown(
            compute_s=value, exposed_communication_s=2 * value, bubble_s=0.0, optimizer_s=1.0, overhead_s=3.0
        )

    mean = mean_breakdown([parts(1.0), parts(3.0)])
    assert mean == parts(2.0)
    assert mean.total_s == 2.0 + 4.0 + 1.0 + 3.0
