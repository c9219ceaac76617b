"""Error figures against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from traincast.validating.metrics import f1, spearman, summarize


def test_errors_are_relative_to_the_measurement_and_in_per_cent() -> None:
    figures = summarize([1.0, 2.0, 4.0], [1.1, 1.0, 4.0], [0.9, 1.5, 3.0], [1.2, 2.5, 3.5])
    assert figures.n == 3
    assert figures.mape == pytest.approx((10 + 50 + 0) / 3)
    assert figures.median_ape == pytest.approx(10)
    assert figures.bias == pytest.approx(0)
    assert figures.coverage_90 == pytest.approx(2 / 3)


def test_no_rows_give_no_figures() -> None:
    figures = summarize([], [], [], [])
    assert figures.n == 0
    assert math.isnan(figures.mape)


def test_rank_correlation_sees_order_only() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(a, a**5) == pytest.approx(1)
    assert spearman(a, -a) == pytest.approx(-1)
    assert math.isnan(spearman(a, np.ones(4)))
    assert math.isnan(spearman(a[:1], a[:1]))


def test_ties_share_their_ranks() -> None:
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: correlation 4.5 / sqrt(4.5 · 5).
    assert spearman(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 4])) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_f1_weighs_misses_and_false_alarms() -> None:
    assert f1([True, True, False, False], [True, False, True, False]) == pytest.approx(0.5)
    assert f1([True, False], [True, False]) == 1.0
    assert math.isnan(f1([False, False], [False, True]))
