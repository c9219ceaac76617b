"""Measured spans are drawn as a forecast draws them: without waiting."""

from __future__ import annotations

import pytest

from tests.testbed.runs import forecast_for
from tests.testbed.test_activity import spans_of
from traincast.testbed.activity import aligned, blocking_classes, groups_of, predicted_spans, without_waiting


def test_a_collective_begins_when_its_last_rank_calls_it() -> None:
    measured = spans_of([
        (0, 0, "dp gradients", -1, 1.0, 6.0), (1, 0, "dp gradients", -1, 4.0, 6.0),
        (0, 0, "dp gradients", -1, 6.0, 8.0), (1, 0, "dp gradients", -1, 6.5, 8.0),
        (2, 0, "dp gradients", -1, 0.0, 8.0), (0, 0, "forward", -1, 0.0, 1.0),
    ])  # fmt: skip
    found = aligned(measured, {("dp gradients", rank): (0, 1) for rank in (0, 1)})
    assert found.start.tolist() == [4.0, 4.0, 6.5, 6.5, 0.0, 0.0]
    assert found.end is measured.end


def test_collectives_that_ranks_counted_differently_stay_as_they_are() -> None:
    measured = spans_of([(0, 0, "dp gradients", -1, 1.0, 6.0), (0, 0, "dp gradients", -1, 6.0, 7.0),
                      (1, 0, "dp gradients", -1, 4.0, 6.0)])  # fmt: skip
    found = aligned(measured, {("dp gradients", rank): (0, 1) for rank in (0, 1)})
    assert found.start.tolist() == measured.start.tolist()


def test_waits_and_blocking_communication_are_cut_out_of_a_pass() -> None:
    measured = spans_of([
        (0, 0, "forward", 3, 0.0, 10.0), (0, 0, "tp all_reduce", -1, 2.0, 3.0), (0, 0, "dp gradients", -1, 4.0, 5.0),
        (0, 1, "forward", 3, 0.0, 10.0), (1, 0, "forward", 3, 0.0, 10.0),
    ])  # fmt: skip
    waits = spans_of([(0, 0, "wait", -1, 2.5, 4.0), (0, 0, "wait", -1, 9.0, 12.0), (1, 0, "wait", -1, 10.0, 12.0)])
    found = without_waiting(measured, waits, {"tp all_reduce"})
    forward = found.taken(found.kind == found.classes.index("forward"))
    rows = sorted(zip(*(column.tolist() for column in (forward.rank, forward.step, forward.start, forward.end)),
                      strict=True))  # fmt: skip
    assert rows == [(0, 0, 0.0, 2.0), (0, 0, 4.0, 9.0), (0, 1, 0.0, 10.0), (1, 0, 0.0, 10.0)]
    assert set(forward.microbatch.tolist()) == {3}
    assert len(found) == 6


def test_a_message_that_ends_late_leaves_the_update_after_it_whole() -> None:
    measured = spans_of([(0, 0, "pp send gradients", -1, 1.0, 8.2), (0, 0, "optimizer", -1, 8.0, 8.1)])
    found = without_waiting(measured, spans_of([]), {"pp send gradients"})
    assert found.start.tolist() == [1.0, 8.0]
    assert found.end.tolist() == [8.2, 8.1]


@pytest.mark.parametrize(
    ("strategy", "ranks", "runtime", "blocking"),
    [
        ("tp=2", 2, "pytorch", {"tp all_reduce"}),
        ("dp=2,zero=3", 2, "fsdp", set()),
        ("dp=2", 2, "pytorch", {"dp gradients"}),
    ],
)
def test_a_forecast_says_which_communication_never_runs_beside_compute(
    strategy: str, ranks: int, runtime: str, blocking: set[str]
) -> None:
    model = "gpt:layers=6,hidden=256,heads=4,vocab=512,seq=256"
    timeline = forecast_for(strategy, ranks, runtime=runtime, model=model).detailed(all_ranks=True)
    assert blocking_classes(predicted_spans(timeline)) == blocking


def test_the_ranks_of_a_collective_are_those_of_its_group() -> None:
    timeline = forecast_for("dp=2,tp=2", 4, runtime="pytorch").detailed(all_ranks=True)
    groups = groups_of(timeline)
    assert groups["tp all_reduce", 2] == groups["tp all_reduce", 3] == (2, 3)
    assert groups["dp gradients", 0] == groups["dp gradients", 2] == (0, 2)
