"""Bursts and pauses of one resource."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.resources.bursts import resampled, two_means, use_of


def square(high: float, low: float, *, on: int, off: int, times: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.tile(np.concatenate((np.full(on, high), np.full(off, low))), times)


def test_a_square_wave_gives_its_level_and_lengths() -> None:
    use = use_of(square(0.8, 0.1, on=30, off=20, times=6), period_s=0.02)
    assert use.pattern == "bursts"
    assert [use.burst_amount, use.burst_s, use.idle_s] == pytest.approx([0.8, 0.6, 0.4])


@pytest.mark.parametrize("turn", range(0, 50, 7))
def test_a_step_that_repeats_has_the_same_bursts_wherever_it_is_cut(turn: int) -> None:
    once = np.roll(square(0.8, 0.0, on=30, off=20, times=1), turn)
    use = use_of(once, period_s=0.02, repeats=True)
    assert [use.burst_s, use.idle_s] == pytest.approx([0.6, 0.4])


def test_runs_cut_by_the_observation_do_not_count() -> None:
    seen = square(1.0, 0.0, on=10, off=10, times=5)[5:]
    assert use_of(seen, period_s=1.0).burst_s == 10.0
    assert use_of(seen[:-3], period_s=1.0).idle_s == 10.0


def test_a_period_in_which_a_burst_ends_counts_in_part() -> None:
    """The sample of 0.4 lies in the lower group, whose mean is (0.4 + 4 · 0) / 5 = 0.08; the higher one has 0.8."""
    use = use_of(np.tile([0.4, *[0.8] * 5, *[0.0] * 4], 20), period_s=1.0, repeats=True)
    share = (0.4 - 0.08) / (0.8 - 0.08)
    assert [use.burst_s, use.idle_s] == pytest.approx([5 + share, 5 - share])
    assert use.burst_amount == pytest.approx((5 * 0.8 + share * 0.4) / (5 + share))


def test_a_shallow_dip_cuts_no_burst_in_two() -> None:
    """Labels of groups would jump from one burst to two when the dip crosses the border at 0.4."""
    found = []
    for dip in (0.41, 0.39):
        seen = np.tile([*[0.8] * 4, dip, *[0.8] * 4, *[0.0] * 6], 10)
        found.append(use_of(seen, period_s=1.0).burst_s)
    assert found[0] == pytest.approx(found[1], rel=0.12)
    assert 4.5 < found[0] < 9.0


def test_ripples_are_no_bursts() -> None:
    seen = np.tile([*[0.8, 0.74] * 4, *[0.0] * 6], 10)
    assert use_of(seen, period_s=1.0).burst_s == pytest.approx(8.0, rel=0.05)


def test_an_observation_of_one_burst_counts_one() -> None:
    use = use_of(np.repeat([0.0, 1.0], [30, 10]), period_s=0.1)
    assert [use.burst_s, use.idle_s] == pytest.approx([1.0, 3.0])


def test_a_resource_that_is_never_used_is_idle() -> None:
    use = use_of(np.full(50, 0.002), period_s=0.1)
    assert use.pattern == "idle"
    assert [use.burst_amount, use.burst_s, use.idle_s] == pytest.approx([0.002, 0.0, 5.0])


@pytest.mark.parametrize("samples", [np.full(40, 0.5), 0.9 + 0.02 * np.sin(np.arange(40.0))])
def test_a_resource_that_is_always_used_is_busy(samples: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    use = use_of(samples, period_s=0.1)
    assert use.pattern == "busy"
    assert [use.burst_amount, use.burst_s, use.idle_s] == pytest.approx([samples.mean(), 4.0, 0.0])


@settings(deadline=None)
@given(st.lists(st.floats(0, 1, width=16), min_size=2, max_size=9))
def test_no_other_division_has_less_variance(values: list[float]) -> None:
    samples = np.array(values)
    level = two_means(samples)
    within = [g.var() * len(g) for g in (samples[samples <= level], samples[samples > level]) if len(g)]
    for chosen in itertools.product((False, True), repeat=len(values)):
        picked = np.array(chosen)
        other = [g.var() * len(g) for g in (samples[picked], samples[~picked]) if len(g)]
        assert sum(within) <= sum(other) + 1e-9


def test_a_late_sampler_makes_no_peak() -> None:
    times = np.array([0.0, 0.1, 0.2, 0.45, 0.46, 0.5, 0.6])  # late once, then two readings at once
    assert resampled(times, 3.0 * times, period_s=0.1).tolist() == pytest.approx([3.0] * 6)
