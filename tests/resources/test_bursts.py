"""Bursts and pauses of one resource."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.resources.told import told
from traincast.resources.bursts import Samples, resampled, two_means, use_of


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
    """A sample of 0.4 between 0.8 and 0 is half burst, and has no part in the level of a burst."""
    use = use_of(np.tile([0.4, *[0.8] * 5, *[0.0] * 4], 20), period_s=1.0, repeats=True)
    assert [use.burst_amount, use.burst_s, use.idle_s] == pytest.approx([0.8, 5.5, 4.5])


@pytest.mark.parametrize("dip", [0.41, 0.39, 0.0])
def test_a_dip_of_one_sample_is_no_pause(dip: float) -> None:
    """Labels of groups would jump from one burst to two when the dip crosses the border at 0.4."""
    seen = np.tile([*[0.8] * 6, dip, *[0.8] * 6, *[0.0] * 6], 10)
    use = use_of(seen, period_s=1.0)
    assert use.burst_s == pytest.approx(13.0, rel=0.05)
    assert use.burst_amount == pytest.approx((12 * 0.8 + dip) / 13, rel=0.05)  # the dip is part of the burst
    assert told(use.burst_amount) * told(use.burst_s) == pytest.approx(12 * 0.8 + dip)


def sampled_pulses(burst_s: float, pause_s: float, *, level: float = 1.0, shift_s: float = 0.0) -> Samples:
    """Twelve seconds of bursts, sampled fifty times a second: each sample is the mean over its period."""
    edges = shift_s + 0.02 * np.arange(601)
    cycles = np.floor(edges / (burst_s + pause_s))
    drawn = cycles * burst_s + np.minimum(edges - cycles * (burst_s + pause_s), burst_s)
    samples: Samples = level * np.diff(drawn) / 0.02
    return samples


@settings(deadline=None, max_examples=40)
@given(
    st.floats(0.06, 0.8), st.floats(0.07, 0.8), st.floats(0.05, 1.0), st.floats(0.0, 1.0),
)  # fmt: skip
def test_figures_do_not_depend_on_where_samples_fall(burst: float, pause: float, level: float, shift: float) -> None:
    use = use_of(sampled_pulses(burst, pause, level=level, shift_s=shift), period_s=0.02)
    if burst >= 0.95 * (burst + pause):
        return
    assert use.pattern == "bursts"
    assert use.refused == {}
    assert [use.burst_amount, use.burst_s, use.idle_s] == pytest.approx([level, burst, pause], rel=0.1)


@pytest.mark.parametrize("shift", [0.0, 0.007, 0.013])
def test_bursts_of_two_samples_are_refused_and_their_pause_is_told(shift: float) -> None:
    """35 ms at 50 samples per second: no sample need be burst alone, so 100 % cannot be told from 60 %."""
    use = use_of(sampled_pulses(0.035, 0.4, shift_s=shift), period_s=0.02)
    assert use.pattern == "bursts"
    assert use.burst_amount is use.burst_s is None
    assert set(use.refused) == {"burst_amount", "burst_s"}
    assert "bursts last less than 2.5 samples of 20 ms: take" in use.refused["burst_s"]
    assert use.idle_s == pytest.approx(0.4, rel=0.05)
    often = use_of(sampled_pulses(0.07, 0.8, shift_s=2 * shift), period_s=0.01)  # the same, sampled twice as often
    assert [often.burst_amount, often.burst_s] == pytest.approx([1.0, 0.035], rel=0.02)


def test_a_resource_with_gaps_of_one_sample_is_busy() -> None:
    """Busy for 95 % of the time: such gaps made bursts of 0.4 s, and of as long as one looked where they fell apart."""
    seen = np.full(600, 0.98)
    seen[np.random.default_rng(0).choice(np.arange(0, 600, 4), 30, replace=False)] = 0.1
    use = use_of(seen, period_s=0.02)
    assert use.pattern == "busy"
    assert use.burst_amount == pytest.approx(0.936)


def test_a_number_of_bursts_that_depends_on_the_samples_is_refused() -> None:
    use = use_of(sampled_pulses(0.2, 0.042), period_s=0.02)
    assert use.pattern == "bursts"
    assert use.burst_amount == pytest.approx(1.0, abs=0.05)
    assert set(use.refused) == {"burst_s", "idle_s"}
    assert "about two samples" in use.refused["burst_s"]


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
