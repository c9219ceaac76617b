"""How sure it is that one strategy beats another.

Strategies on the same cluster share most of what a forecast may get wrong: if its network is slower than thought, it is
slower for all of them, and hurts those most that wait for it. So the candidates are simulated together, again and
again, on clusters whose products, memory, links and hosts are drawn faster or slower, by as much as measured clusters
were found to differ from their forecasts; on top comes what repeats of the same run differ by. The share of draws in
which a candidate is first is how likely it is the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import FACTORS, Calibration, Cluster
from traincast.cluster.calibrated import calibrated_clusters
from traincast.estimate.calibrated import Parts
from traincast.forecast import Forecast
from traincast.simulate.evaluate import Evaluator

Floats = npt.NDArray[np.float64]

DRAWS: Final = 128
REPEATS: Final = 0.03
"""The spread of the logarithm of repeated runs of one strategy on one cluster, beside what all of them share."""
_NINETY: Final = 2.0 * 1.645
"""A 90 % interval is so many standard deviations wide."""


@lru_cache(maxsize=1)
def spreads() -> dict[str, float]:
    """The spread of the logarithm of each factor over all clusters that were calibrated."""
    found = [cluster.calibration for cluster in calibrated_clusters() if cluster.calibration]
    table = np.log([[getattr(calibration, name) for name in FACTORS] for calibration in found])
    return dict(zip(FACTORS, np.sqrt((table**2).mean(axis=0)).tolist(), strict=True))


def drawn_seconds(forecasts: Sequence[Forecast], *, draws: int = DRAWS, seed: int = 0) -> Floats:
    """Step times of all forecasts (columns) in every draw (rows); forecasts of one cluster share its draws."""
    random = np.random.default_rng(seed)
    result = np.empty((draws, len(forecasts)))
    shared: dict[str, list[Calibration]] = {}
    for n, forecast in enumerate(forecasts):
        cluster = forecast.request.cluster
        if cluster.device.name not in shared:
            shared[cluster.device.name] = [_draw(random, cluster) for _ in range(draws)]
        plan, estimates = forecast.lowered.plan, forecast.estimates
        evaluate, parts = Evaluator(plan), Parts(plan.works, cluster)
        usual = evaluate(estimates.seconds)
        ratio = forecast.report.step_s / usual if usual else 1.0
        for draw, calibration in enumerate(shared[cluster.device.name]):
            result[draw, n] = ratio * evaluate(parts.scaled(estimates.seconds, calibration))
    own = np.array([_own_spread(forecast.request.cluster) for forecast in forecasts])
    found: Floats = result * np.exp(random.normal(size=result.shape) * own)
    return found


def _draw(random: np.random.Generator, cluster: Cluster) -> Calibration:
    """A cluster as it may be, relative to its forecast: unlike others if it was never measured."""
    if cluster.calibration is not None:
        return Calibration()
    factors = {name: math.exp(random.normal() * spread) for name, spread in spreads().items()}
    return Calibration(**factors)  # type: ignore[arg-type]


def _own_spread(cluster: Cluster) -> float:
    """What each strategy has alone: repeats, or on a calibrated cluster what its calibration did not explain."""
    calibration = cluster.calibration
    if calibration is None:
        return REPEATS
    return max(REPEATS, math.log(calibration.high / calibration.low) / _NINETY)


def chances(seconds: Floats) -> Floats:
    """How often each column is the least."""
    return np.bincount(seconds.argmin(axis=1), minlength=seconds.shape[1]) / len(seconds)


def ties(seconds: Floats) -> npt.NDArray[np.bool_]:
    """Which columns may be as good as the first: the 90 % interval of their ratio to it holds 1."""
    ratio = seconds / seconds[:, :1]
    found: npt.NDArray[np.bool_] = np.quantile(ratio, 0.05, axis=0) <= 1.0
    found[0] = False
    return found
