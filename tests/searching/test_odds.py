"""How likely a step is to take so long: laws of the distribution behind a forecast."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.searching.odds import UNCALIBRATED_MEDIAN, Odds, odds

SIDES = st.floats(1.001, 20.0)


@given(below=SIDES, above=SIDES, median=st.floats(1e-6, 1e6))
def test_one_run_in_twenty_ends_beyond_each_end_of_the_interval(below: float, above: float, median: float) -> None:
    made = Odds(median_s=median, low_s=median / below, high_s=median * above)
    assert made.chance(made.low_s) == pytest.approx(0.05)
    assert made.chance(made.median_s) == pytest.approx(0.5)
    assert made.chance(made.high_s) == pytest.approx(0.95)


@given(below=SIDES, above=SIDES, chance=st.floats(0.001, 0.999), more=st.floats(0.001, 0.999))
def test_quantiles_invert_chances_and_grow_with_them(below: float, above: float, chance: float, more: float) -> None:
    made = Odds(median_s=1.0, low_s=1.0 / below, high_s=above)
    assert made.chance(made.quantile(chance)) == pytest.approx(chance, abs=1e-6)
    first, second = sorted((chance, more))
    assert made.quantile(first) <= made.quantile(second)


def test_an_interval_without_width_is_a_certainty() -> None:
    made = Odds(median_s=2.0, low_s=2.0, high_s=2.0)
    assert (made.chance(1.99), made.chance(2.01), made.chance(0.0)) == (0.0, 1.0, 0.0)
    assert made.chance(float("inf")) == 1.0


def test_half_of_all_runs_take_longer_than_the_median_of_those_nobody_calibrated() -> None:
    usual = odds(1.0, 0.8, 2.3, calibrated=False)
    assert usual.chance(UNCALIBRATED_MEDIAN) == pytest.approx(0.5)
    assert usual.chance(1.0) < 0.5
    assert odds(3.0, 2.0, 5.0, calibrated=True).median_s == 3.0
