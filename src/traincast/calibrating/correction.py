"""The learned correction: the error that a physical fit leaves, as a smooth function of the simulated step.

The correction is the mean of a Gaussian process with a squared-exponential kernel (kernel ridge regression), on a few
inducing points chosen far from one another. Far from all points it is zero: it changes no forecast of steps unlike
those that were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.calibrating.fit import NOISE
from traincast.calibrating.runs import MeasuredRun
from traincast.cluster import Correction

Floats = npt.NDArray[np.float64]

SCALES: Final = (2.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.5, 2.0, 2.0, 2.0, 1.0)
"""Length scale of each of :data:`traincast.report.outlook.FEATURES`: runs closer than this are similar."""
LEAST_LEFT: Final = 0.08
MOST_LEFT: Final = 0.25
"""Least and largest error assumed to remain after the physical fit: standard deviations of logarithms."""
MOST_POINTS: Final = 64
_FEWEST: Final = 20


def features(runs: Sequence[MeasuredRun]) -> Floats:
    """The features of each run, one row per run."""
    return np.array([run.look.features for run in runs], dtype=np.float64)


def domain(runs: Sequence[MeasuredRun]) -> Correction:
    """A correction of zero that records where runs were measured."""
    points = _spread_out(features(runs) / SCALES) * SCALES
    return Correction(
        points=tuple(tuple(round(float(v), 3) for v in point) for point in points),
        weights=(0.0,) * len(points),
        scales=SCALES,
    )


def fit_correction(runs: Sequence[MeasuredRun], left: Floats) -> Correction:
    """Fit the correction to ``left``, the logarithm of measured over forecast time of each run."""
    place = domain(runs)
    if len(runs) < _FEWEST:
        return place
    points = np.array(place.points)
    x, z = features(runs) / SCALES, points / SCALES
    near, among = _kernel(x, z), _kernel(z, z)
    amplitude = float(np.clip(1.4826 * np.median(np.abs(left)), LEAST_LEFT, MOST_LEFT))
    centre = np.clip(left, -3.0 * amplitude, 3.0 * amplitude)
    held = among * (NOISE / amplitude) ** 2 + 1e-9 * np.eye(len(z))
    weights = np.linalg.solve(near.T @ near + held, near.T @ centre)
    return Correction(
        points=place.points, weights=tuple(round(float(w), 5) for w in weights), scales=SCALES
    )  # fmt: skip


def _kernel(a: Floats, b: Floats) -> Floats:
    squares: Floats = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    return np.exp(-0.5 * squares)


def _spread_out(x: Floats) -> Floats:
    """Choose at most :data:`MOST_POINTS` rows of ``x``, each as far as possible from those before it."""
    centre = np.median(x, axis=0)
    chosen = [int(np.argmin(((x - centre) ** 2).sum(axis=1)))]
    nearest = ((x - x[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < min(MOST_POINTS, len(x)):
        farthest = int(np.argmax(nearest))
        if nearest[farthest] <= 1e-12:
            break
        chosen.append(farthest)
        nearest = np.minimum(nearest, ((x - x[farthest]) ** 2).sum(axis=1))
    return x[chosen]
