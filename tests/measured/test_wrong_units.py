"""A column in the wrong unit is recognised, and real runs are not mistaken for one."""

from __future__ import annotations

import pytest

from traincast.measured.wrong_units import memory_unit, time_unit, wrong_time_unit

FORECAST_S = 0.05


@pytest.mark.parametrize(
    ("measured", "unit"),
    [
        (50e6, "nanoseconds"),
        (60e3, "microseconds"),
        (30.0, "milliseconds"),
        (200.0, "milliseconds"),
        (FORECAST_S / 60, "minutes"),
        (FORECAST_S / 900, "thousands of seconds"),
        (FORECAST_S / 5000, "hours"),
        (FORECAST_S, ""),
        (FORECAST_S * 20, ""),
        (FORECAST_S / 8, ""),
    ],
)
def test_a_unit_is_guessed_from_the_forecast(measured: float, unit: str) -> None:
    assert time_unit(measured, FORECAST_S) == unit


def test_memory_in_other_units_is_told_too() -> None:
    assert [memory_unit(x * 2**30, 10 * 2**30) for x in (9.0, 11e3, 10e9, 1e-2)] == ["", "MiB", "bytes", "TiB"]


def test_a_table_is_in_another_unit_if_most_of_it_is() -> None:
    assert "milliseconds" in wrong_time_unit([(50.0, 0.05), (60.0, 0.05), (0.05, 0.05)])
    assert wrong_time_unit([(50.0, 0.05), (0.06, 0.05), (0.05, 0.05)]) == ""
    assert wrong_time_unit([]) == ""
