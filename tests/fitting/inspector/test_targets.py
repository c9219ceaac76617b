"""The twelve figures as targets: scaling is undone exactly, and unknown figures are left out."""

from __future__ import annotations

import numpy as np
import pytest

from traincast import ResourceUse
from traincast.estimate.inspector.targets import PATTERNS, TARGETS, Scaling, TargetScale, use_from
from traincast.fitting.inspector.scores import by_resource, score, spread, uses_of_runs

BURSTS = ResourceUse(burst_amount=0.4, burst_s=0.2, idle_s=0.1, pattern="bursts")
BUSY = ResourceUse(burst_amount=0.9, burst_s=5.0, idle_s=0.0, pattern="busy")
IDLE = ResourceUse(burst_amount=0.001, burst_s=0.0, idle_s=5.0, pattern="idle")
RUN = {"compute": BUSY, "memory": BURSTS, "receive": IDLE, "send": BURSTS}


def test_figures_that_say_nothing_about_a_run_are_unknown() -> None:
    uses = uses_of_runs([RUN])
    assert uses.values[0, :6].tolist() == pytest.approx([0.9, np.nan, np.nan, 0.4, 0.2, 0.1], nan_ok=True)
    assert np.isnan(uses.values[0, 6:9]).all()
    assert [PATTERNS[p] for p in uses.pattern[0]] == ["busy", "bursts", "idle", "bursts"]


def test_uses_come_back_from_values_and_patterns() -> None:
    uses = uses_of_runs([RUN])
    back = use_from(uses.values[0], uses.pattern[0], seen_s=5.0)
    assert back["memory"] == BURSTS
    assert back["compute"] == BUSY
    assert (back["receive"].burst_s, back["receive"].idle_s) == (0.0, 5.0)


@pytest.mark.parametrize("method", ["log", "maximum"])
def test_scaling_is_undone_exactly(method: Scaling) -> None:
    values = np.random.default_rng(0).uniform(0.01, 1.0, (20, len(TARGETS)))
    reference = np.random.default_rng(1).uniform(0.01, 1.0, (20, len(TARGETS)))
    scale = TargetScale.of(values, reference, method)
    assert scale.values(scale.targets(values, reference), reference) == pytest.approx(values, rel=1e-9)


def test_durations_scale_with_their_references() -> None:
    values = np.random.default_rng(0).uniform(0.01, 1.0, (20, len(TARGETS)))
    scale = TargetScale.of(values, np.ones_like(values))
    reference = np.array([1.0, 10.0, 7.0] * 4)
    one, other = (scale.values(np.zeros((1, len(TARGETS))), each[None, :]) for each in (np.ones(12), reference))
    assert (other / one)[0] == pytest.approx(reference)


def test_errors_count_only_runs_that_have_the_figure() -> None:
    measured = np.full((4, len(TARGETS)), np.nan)
    measured[:2, 1] = 1.0, 3.0
    predicted = np.full((4, len(TARGETS)), 1.5)
    found = score(predicted, measured)
    assert set(found) == {("compute", "burst_s")}
    assert found["compute", "burst_s"].n == 2
    assert found["compute", "burst_s"].mape == pytest.approx(50.0)
    assert found["compute", "burst_s"].nrmse == pytest.approx(np.sqrt((0.25 + 2.25) / 2) / 2.0)
    assert by_resource(found) == {"compute": pytest.approx(50.0)}


def test_nine_of_ten_values_lie_within_the_spread() -> None:
    measured = np.tile(np.linspace(0.1, 1.0, 101)[:, None], (1, len(TARGETS)))
    factors = spread(np.full_like(measured, 0.4), measured)
    inside = (measured <= 0.4 * factors) & (measured >= 0.4 / factors)
    assert inside.mean() == pytest.approx(0.9, abs=0.02)
