"""Activity error: closed forms on a few spans, and laws that hold for every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from traincast.testbed.activity import (
    ActivitySpans,
    activities,
    busy_seconds,
    class_of,
    compared_figures,
)


def spans_of(rows: Sequence[tuple[int, int, str, int, float, float]]) -> ActivitySpans:
    """Spans from rows of rank, step, class, microbatch, start and end."""
    classes = tuple(sorted({row[2] for row in rows}))
    return ActivitySpans(
        classes=classes,
        rank=np.array([row[0] for row in rows], dtype=np.int64),
        step=np.array([row[1] for row in rows], dtype=np.int64),
        kind=np.array([classes.index(row[2]) for row in rows], dtype=np.int64),
        labels=("",),
        label=np.zeros(len(rows), dtype=np.int64),
        microbatch=np.array([row[3] for row in rows], dtype=np.int64),
        start=np.array([row[4] for row in rows]),
        end=np.array([row[5] for row in rows]),
    )


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("tp all_reduce layers.*.mlp.down", "tp all_reduce"),
        ("tp all_gather_into_tensor", "tp all_gather"),
        ("tp reduce_scatter_tensor", "tp reduce_scatter"),
        ("dp gradients", "dp gradients"),
        ("pp send activations", "pp send activations"),
        ("push layers.3", "push"),
        ("pull", "pull"),
    ],
)
def test_a_label_names_the_class_without_the_module(label: str, name: str) -> None:
    assert class_of(label) == name


def test_busy_time_is_the_length_of_the_union() -> None:
    start, end = np.array([0.0, 1.0, 1.5, 5.0]), np.array([2.0, 4.0, 2.0, 6.0])
    assert busy_seconds(start, end) == pytest.approx(5.0)
    assert busy_seconds(np.zeros(0), np.zeros(0)) == 0.0


def test_errors_are_shares_of_the_measured_step() -> None:
    measured = spans_of([(0, 0, "forward", -1, 1.0, 3.0), (0, 1, "forward", -1, 1.0, 5.0)])
    predicted = spans_of([(0, 0, "forward", -1, 2.0, 4.0)])
    ((device,),) = (activities(measured, predicted, step_s=10.0),)
    (only,) = device.classes
    assert only.measured is not None
    assert (only.measured.start_s, only.measured.end_s, only.measured.busy_s) == (1.0, 4.0, 3.0)
    assert only.errors == pytest.approx({"start": 0.1, "end": 0.0, "busy": -0.1})
    assert device.error == only.error == pytest.approx(0.2 / 3)


def test_noise_is_the_error_of_one_step_against_the_mean_of_all() -> None:
    measured = spans_of([(0, 0, "forward", -1, 1.0, 3.0), (0, 1, "forward", -1, 1.0, 5.0)])
    (device,) = activities(measured, measured.taken(measured.step == 0), step_s=10.0)
    assert device.noise == pytest.approx((0.0 + 0.1 + 0.1) / 3)


def test_a_class_of_one_side_counts_with_its_busy_share() -> None:
    measured = spans_of([(0, 0, "forward", -1, 0.0, 4.0), (0, 0, "dp gradients", -1, 4.0, 7.0)])
    predicted = spans_of([(0, 0, "forward", -1, 0.0, 4.0), (0, 0, "optimizer", -1, 4.0, 5.0)])
    (device,) = activities(measured, predicted, step_s=10.0)
    by_name = {each.name: each for each in device.classes}
    assert by_name["dp gradients"].errors == pytest.approx({"missing": -0.3})
    assert by_name["optimizer"].errors == pytest.approx({"missing": 0.1})
    assert device.error == pytest.approx((0.0 + 0.3 + 0.1) / 3)


def test_passes_are_matched_by_order_if_their_numbers_agree() -> None:
    rows = [(0, 0, "forward", m, 2.0 * m + part, 2.0 * m + part + 1.0) for m in range(3) for part in (0, 1)]
    predicted = spans_of(rows)
    late = replace(predicted, start=predicted.start + 0.5, end=predicted.end + 0.5)
    (device,) = activities(late, predicted, step_s=10.0)
    assert device.classes[0].measured is not None
    assert device.classes[0].measured.spans == 3  # one for each microbatch
    assert device.span_shift == pytest.approx(0.05)
    (fewer,) = activities(late.taken(late.microbatch < 2), predicted, step_s=10.0)
    assert fewer.span_shift is None


def test_idle_time_is_what_no_span_covers() -> None:
    measured = spans_of([
        (0, 0, "forward", -1, 0.0, 4.0), (0, 0, "dp gradients", -1, 3.0, 6.0), (0, 1, "forward", -1, 1.0, 3.0),
    ])  # fmt: skip
    predicted = spans_of([(0, 0, "forward", -1, 0.0, 4.0)])
    (device,) = activities(measured, predicted, step_s=10.0, predicted_s=5.0)
    assert device.measured_idle_s == pytest.approx(10.0 - (6.0 + 2.0) / 2)
    assert device.predicted_idle_s == pytest.approx(1.0)


def test_traffic_of_servers_is_compared_by_its_busy_time() -> None:
    assert compared_figures("push", servers=True) == ("busy",)
    assert compared_figures("forward", servers=True) == ("start", "end", "busy")
    assert compared_figures("forward", servers=True, synchronous=False) == ("busy",)
    assert compared_figures("dp gradients", servers=False) == ("start", "end", "busy")
