"""Conformal intervals: nine in ten of what comes next, whatever the errors look like."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from traincast.calibrating.intervals import bounds, crossed


@pytest.mark.parametrize("kind", ["normal", "skewed", "heavy"])
def test_nine_in_ten_of_new_errors_are_covered(kind: str) -> None:
    rng = np.random.default_rng(0)
    draw: dict[str, Callable[[int], npt.NDArray[np.float64]]] = {
        "normal": rng.standard_normal,
        "skewed": lambda n: rng.standard_exponential(n) - 0.7,
        "heavy": lambda n: rng.standard_t(2, n),
    }
    covered: list[float] = []
    for _ in range(300):
        low, high = bounds(0.1 * draw[kind](100))
        new = np.exp(0.1 * draw[kind](20))
        covered.append(((new >= low) & (new <= high)).mean())
    assert 0.89 <= np.mean(covered) <= 0.95


def test_few_errors_are_held_by_what_others_showed() -> None:
    low, high = bounds([0.01, -0.01], otherwise=(0.5, 2.0))
    assert 0.5 < low < math.exp(-0.01) and math.exp(0.01) < high < 2.0
    assert bounds([], otherwise=(0.5, 2.0)) == (0.5, 2.0)
    assert bounds([0.05] * 30, otherwise=(0.5, 2.0)) == (1.0, math.exp(0.05))


def test_the_forecast_itself_is_always_inside() -> None:
    low, high = bounds([0.2] * 50)
    assert low == 1.0 and high == pytest.approx(math.exp(0.2))


def test_an_error_does_not_judge_itself() -> None:
    errors, fold = np.array([0.0] * 50 + [3.0] * 50), np.repeat([0, 1], 50)
    found = crossed(errors, fold)
    assert found[0].tolist() == pytest.approx([1.0, math.exp(3.0)])
    assert found[-1].tolist() == pytest.approx([1.0, 1.0])
