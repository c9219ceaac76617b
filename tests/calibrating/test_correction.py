"""A correction learns what is left over near its points, and nothing far from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traincast.calibrating.correction import SCALES, domain, features, fit_correction
from traincast.calibrating.runs import MeasuredRun
from traincast.cluster import FEATURES
from traincast.report.outlook import correction_at


def test_there_is_a_scale_for_every_feature() -> None:
    assert len(SCALES) == len(FEATURES)


def test_it_learns_what_depends_on_a_feature(plain_runs: list[MeasuredRun]) -> None:
    x = features(plain_runs)
    left = 0.1 * np.sin(x[:, 1])
    made = fit_correction(plain_runs, left)
    found = np.log([correction_at(made, run.look.features) for run in plain_runs])
    assert np.abs(found - left).mean() < 0.5 * np.abs(left).mean()


def test_it_fades_to_nothing(plain_runs: list[MeasuredRun]) -> None:
    made = fit_correction(plain_runs, np.full(len(plain_runs), 0.1))
    far = tuple(value + 20.0 * scale for value, scale in zip(plain_runs[0].look.features, SCALES, strict=True))
    assert correction_at(made, far) == pytest.approx(1.0, abs=1e-9)
    assert correction_at(made, plain_runs[0].look.features) > 1.03


def test_a_few_runs_are_a_domain_and_no_correction(plain_runs: list[MeasuredRun]) -> None:
    made = fit_correction(plain_runs[:5], np.full(5, 0.3))
    assert made == domain(plain_runs[:5])
    assert set(made.weights) == {0.0}


def test_points_are_runs_and_no_two_are_one(plain_runs: list[MeasuredRun]) -> None:
    twice = [*plain_runs, *(replace(run, measured=replace(run.measured, index=99)) for run in plain_runs)]
    made = domain(twice)
    assert len(set(made.points)) == len(made.points) <= len(plain_runs)
