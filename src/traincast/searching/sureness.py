"""How sure it is that one strategy beats another, on the same cluster or on another one.

Candidates are simulated together, again and again, with products, memory, links and hosts drawn faster or slower. What
candidates share is drawn once for all of them: what hosts do is a habit of the framework and the same everywhere, what
products and memory do belongs to a device, what links do to a cluster. So strategies on one cluster err together, and
devices err apart. Each is drawn by as much as measured clusters were found to differ from their forecasts, or by what
the interval of its estimates says where that is wider: on a device that nobody measured, the interval is what
estimates missed on devices that were left out. On top comes what no factor explains: on all clusters that were not
calibrated the same, on a calibrated one what its calibration leaves open. Last come repeats of the same run. The share
of draws in which a candidate is first is how likely it is the best.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import FACTORS, Calibration, Cluster
from traincast.cluster.calibrated import calibrated_clusters
from traincast.estimate.calibrated import Parts
from traincast.forecast import Forecast
from traincast.report.odds import usual_odds
from traincast.simulate.evaluate import Evaluator

Floats = npt.NDArray[np.float64]

DRAWS: Final = 128
REPEATS: Final = 0.03
"""The spread of the logarithm of repeated runs of one strategy on one cluster, beside what all of them share."""
MESH: Final = 0.1
"""The spread of the logarithm of what strategies of one mesh share and those of another do not, uncalibrated."""
DOUBLING: Final = 0.04
"""How fast steps may grow beyond their forecast with every doubling of devices, uncalibrated: they never shrink.

These two were chosen on pairs of measured runs, the same that ``benchmarks.chances`` judges them by.
"""
_FEW_DEVICES: Final = 8
"""Devices from which doublings count: most of what was measured ran on so many."""
_NINETY: Final = 2.0 * 1.645
"""A 90 % interval is so many standard deviations wide."""
_LINKS: Final = ("intra", "inter", "send")
_HOSTS: Final = ("kernels", "blocks", "collectives", "handshakes", "waits")


@lru_cache(maxsize=1)
def spreads() -> dict[str, float]:
    """The spread of the logarithm of each factor over all clusters that were calibrated."""
    found = [cluster.calibration for cluster in calibrated_clusters() if cluster.calibration]
    table = np.log([[getattr(calibration, name) for name in FACTORS] for calibration in found])
    return dict(zip(FACTORS, np.sqrt((table**2).mean(axis=0)).tolist(), strict=True))


class Draws:
    """What may be otherwise than forecast, drawn so many times; candidates that share something share its draws."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self._seed = seed
        self._drawn = 0
        usual = usual_odds()
        uniform = self._random("unexplained").uniform(1e-6, 1.0 - 1e-6, count)
        self._unexplained = np.array([usual.quantile(chance) for chance in uniform.tolist()])

    def seconds(self, forecast: Forecast) -> Floats:
        """The step time of ``forecast`` in every draw."""
        calibration = forecast.request.cluster.calibration
        if calibration is None:
            drawn: Floats = self._uncalibrated(forecast) * self._unexplained * self._repeats(REPEATS)
            return drawn
        report = forecast.report
        own = max(REPEATS, math.log(calibration.high / calibration.low) / _NINETY)
        whole = math.log(report.high_s / report.low_s) / _NINETY
        left_open = math.sqrt(max(0.0, whole**2 - own**2))
        place = self._normal("calibrated", forecast.request.cluster.name)
        found: Floats = report.step_s * np.exp(left_open * place) * self._repeats(own)
        return found

    def _uncalibrated(self, forecast: Forecast) -> Floats:
        """Steps of a cluster that nobody calibrated: every part of it is drawn."""
        cluster, estimates, plan = forecast.request.cluster, forecast.estimates, forecast.lowered.plan
        evaluate, parts = Evaluator(plan), Parts(plan.works, cluster)
        usual = evaluate(estimates.seconds)
        ratio = forecast.report.step_s / usual if usual else 1.0
        doubts = parts.unmeasured_spreads(estimates, plan.work_counts())
        factors = {
            name: np.exp(math.hypot(spread, doubts.get(name, 0.0)) * self._normal(name, *_owner(name, cluster)))
            for name, spread in spreads().items()
        }
        drawn = [Calibration(**{name: float(f[n]) for name, f in factors.items()}) for n in range(self.count)]  # type: ignore[arg-type]
        doublings = math.log2(cluster.num_devices / _FEW_DEVICES)
        degrees = (f"{name}={getattr(forecast.request.strategy, name)}" for name in ("tp", "cp", "pp", "ep"))
        other = DOUBLING * doublings * np.abs(self._normal("scaling")) + MESH * self._normal("mesh", *degrees)
        steps = np.array([evaluate(parts.scaled(estimates.seconds, each)) for each in drawn])
        found: Floats = ratio * np.exp(other) * steps
        return found

    def _normal(self, *what: str) -> Floats:
        """Standard normal draws of something: the same for all who ask for it, whoever asks first."""
        return self._random(*what).normal(size=self.count)

    def _repeats(self, spread: float) -> Floats:
        """What one candidate has to itself."""
        self._drawn += 1
        found: Floats = np.exp(spread * self._normal("repeats", str(self._drawn)))
        return found

    def _random(self, *what: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(" ".join(what).encode())])


def _owner(factor: str, cluster: Cluster) -> tuple[str, ...]:
    """Whose a factor is: all runs of a framework have the same hosts, clusters have links, devices the rest."""
    if factor in _HOSTS:
        return ()
    return (cluster.name,) if factor in _LINKS else (cluster.device.name,)


def drawn_seconds(forecasts: Sequence[Forecast], *, draws: int = DRAWS, seed: int = 0) -> Floats:
    """Step times of all forecasts (columns) in every draw (rows)."""
    source = Draws(draws, seed)
    return np.stack([source.seconds(forecast) for forecast in forecasts], axis=1)


def chances(seconds: Floats) -> Floats:
    """How often each column is the least."""
    return np.bincount(seconds.argmin(axis=1), minlength=seconds.shape[1]) / len(seconds)


def ties(seconds: Floats) -> npt.NDArray[np.bool_]:
    """Which columns may be as good as the first: the 90 % interval of their ratio to it holds 1."""
    ratio = seconds / seconds[:, :1]
    found: npt.NDArray[np.bool_] = np.quantile(ratio, 0.05, axis=0) <= 1.0
    found[0] = False
    return found


def ratios(seconds: Floats) -> Floats:
    """Between what and what times the first each column lies in 90 % of draws: one row of (low, high) each."""
    found: Floats = np.quantile(seconds / seconds[:, :1], (0.05, 0.95), axis=0).T
    return found
