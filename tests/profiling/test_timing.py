"""Median, least and spread of repeated runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.profiling.timing import HostClock, Timing, measure


class ScriptedClock:
    """Gives the seconds it was told to, and counts the runs."""

    def __init__(self, seconds: Iterator[float]) -> None:
        self.seconds_left = seconds
        self.inner: list[int] = []

    def seconds(self, call: Callable[[], object], inner: int) -> float:
        self.inner.append(inner)
        for _ in range(inner):
            call()
        return next(self.seconds_left)


def test_a_timing_has_median_least_and_relative_interquartile_range() -> None:
    timing = Timing.of([4.0, 1.0, 2.0, 3.0, 10.0])
    assert (timing.median_s, timing.min_s, timing.count) == (3.0, 1.0, 5)
    assert timing.dispersion == pytest.approx((4.0 - 2.0) / 3.0)


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=30), st.floats(1e-3, 1e3))
def test_dispersion_does_not_depend_on_the_unit(samples: list[float], unit: float) -> None:
    timing, scaled = Timing.of(samples), Timing.of([s * unit for s in samples])
    assert scaled.dispersion == pytest.approx(timing.dispersion, rel=1e-6, abs=1e-9)
    assert min(samples) <= timing.median_s <= max(samples)
    assert timing.dispersion >= 0


def test_warm_up_runs_are_not_counted() -> None:
    clock = ScriptedClock(iter([9.0, 5.0, 5.0, 1.0, 1.0, 1.0, 1.0]))
    timing = measure(lambda: None, clock=clock, repeats=4, warmup=3, seconds=1000)
    assert (timing.median_s, timing.count) == (1.0, 4)
    assert clock.inner == [1] * 7


def test_a_short_call_is_run_several_times_per_sample() -> None:
    clock = ScriptedClock(iter([1e-5] * 10))
    measure(lambda: None, clock=clock, repeats=5, warmup=2)
    assert clock.inner == [1, 1] + [10] * 5


def test_a_long_call_is_run_at_least_three_times_and_no_more() -> None:
    clock = ScriptedClock(iter([100.0] * 10))
    timing = measure(lambda: None, clock=clock, repeats=20, warmup=3, seconds=10)
    assert timing.count == 3
    assert len(clock.inner) == 4


def test_fewer_repeats_than_three_are_kept_to() -> None:
    assert measure(lambda: None, clock=HostClock(), repeats=1).count == 1
