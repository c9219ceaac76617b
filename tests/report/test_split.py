"""The split of a step by what bounds it: its parts add up, for every strategy and with parameter servers."""

from __future__ import annotations

import pytest

from tests.conftest import CNN, GPT, AnalyticalCostModel, ChosenSeconds, graph_of, request_of
from traincast import Conditions, Operator, Report, predict
from traincast.work import HostCopy, Work

STRATEGIES = [
    ("dp=16", 2),
    ("dp=16,zero=3", 2),
    ("dp=2,tp=8", 2),
    ("dp=4,pp=4,num_microbatches=4", 2),
    ("tp=2,pp=4,num_microbatches=8,schedule=gpipe", 1),
    ("dp=8,offload=optimizer+activations", 1),
    ("dp=4,pp=2,vp=2,num_microbatches=8", 1),
    ("dp=8,zero=3,offload=optimizer", 1),
    ("dp=2,tp=4,sequence_parallel,recompute=full", 1),
    ("dp=16,servers=2", 2),
    ("dp=16,servers=2,async", 2),
]


def report_of(strategy: str, nodes: int = 1, *, conditions: Conditions | None = None) -> Report:
    model = CNN if "servers" in strategy else GPT
    return predict(
        graph_of(model), cluster=f"dgx-a100:{nodes}", strategy=strategy, global_batch=64,
        cost_model=AnalyticalCostModel(), conditions=conditions,
    ).report  # fmt: skip


@pytest.mark.parametrize(("strategy", "nodes"), STRATEGIES)
def test_the_parts_add_up_to_the_step_and_agree_with_its_breakdown(strategy: str, nodes: int) -> None:
    report = report_of(strategy, nodes)
    split = report.split
    assert sum(split.parts.values()) == pytest.approx(report.step_s, rel=1e-9)
    assert min(split.parts.values()) >= 0.0
    assert split.communication_s + split.host_copies_s == pytest.approx(report.exposed_communication_s)
    assert split.waiting_s == pytest.approx(report.bubble_s)
    assert split.host_s >= report.overhead_s


@pytest.mark.parametrize(("strategy", "nodes"), STRATEGIES)
def test_the_parts_of_every_operator_add_up_to_its_time(strategy: str, nodes: int) -> None:
    split = report_of(strategy, nodes).split
    assert split.operators
    for op in split.operators:
        parts = [op.computation_s, op.memory_access_s, op.communication_s, op.host_copies_s, op.host_s]
        assert sum(parts) == pytest.approx(op.seconds, rel=1e-9)
        assert getattr(op, f"{op.bound_by}_s") == max(parts)
    assert [op.seconds for op in split.operators] == sorted((op.seconds for op in split.operators), reverse=True)


@pytest.mark.parametrize(("strategy", "nodes"), STRATEGIES)
def test_the_parts_of_operators_add_up_to_those_of_the_step(strategy: str, nodes: int) -> None:
    """Nothing is stretched: the time of the step's operators is the time in which its devices compute.

    Asynchronous workers are at different places of a step when it is cut out of the run.
    """
    split = report_of(strategy, nodes).split
    for part in ("computation_s", "memory_access_s"):
        total = sum(getattr(op, part) for op in split.operators)
        assert total == pytest.approx(getattr(split, part), rel=0.02 if "async" in strategy else 1e-9)


def test_ranks_that_differ_have_a_split_too() -> None:
    report = report_of("dp=8", conditions=Conditions(slow=((1, 2.0),)))
    assert sum(report.split.parts.values()) == pytest.approx(report.step_s, rel=1e-9)
    assert report.split.waiting_s > 0.0


def test_an_operator_is_divided_as_its_flops_and_bytes_at_peak_rates() -> None:
    device = request_of("dp=1").cluster.device
    made = predict(
        graph_of(GPT), cluster="dgx-a100:1x1", strategy="dp=1", global_batch=1,
        cost_model=ChosenSeconds(lambda work: 1.0 if isinstance(work, Operator) else 0.0),
    )  # fmt: skip
    plan = made.lowered.plan
    share = made.report.split.computation_s / (made.report.compute_s + made.report.optimizer_s)
    amounts = [
        (work.flops / device.peak(work.dtype.value), work.nbytes / device.memory_bandwidth, count)
        for work, count in zip(plan.works, plan.work_counts().tolist(), strict=True)
        if isinstance(work, Operator)
    ]
    expected = sum(count * c / (c + m) for c, m, count in amounts) / sum(count for _, _, count in amounts)
    assert share == pytest.approx(expected, rel=1e-9)


def test_copies_to_the_host_are_a_part_of_their_own() -> None:
    def seconds(work: Work) -> float:
        return 1e-3 if isinstance(work, HostCopy) else 1e-6 if isinstance(work, Operator) else 0.0

    made = predict(
        graph_of(GPT), cluster="dgx-a100:1x1", strategy="dp=1,offload=activations", global_batch=8,
        cost_model=ChosenSeconds(seconds),
    )  # fmt: skip
    assert made.report.split.host_copies_s == pytest.approx(made.report.exposed_communication_s)
    assert made.report.split.host_copies_s > 0.5 * made.report.step_s
    assert made.report.split.operators[0].bound_by == "host_copies"
