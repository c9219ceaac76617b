"""The probability that one strategy beats another, on the same cluster or on another one.

All candidates are simulated in many draws. In each draw, matrix products, memory, links and hosts are faster or slower
by random factors. Candidates share the factors of what they share: hosts have one factor everywhere, because it is a
property of the framework; products and memory have one per device; links have one per cluster. So errors of strategies
on one cluster are correlated, and errors of different devices are not. The spread of a factor is that of measured
clusters around their forecasts. On a device without measurements it is wider: it includes the errors of estimates for
devices left out of the fit. A further factor covers the part of a step's 90 % interval that these do not explain, so
that the steps of a search are spread as widely as a forecast of the strategy alone says: one for all uncalibrated
clusters, and one per calibrated cluster with the spread that its calibration leaves. Where runs may stall, each
candidate stalls in its share of the draws. The last factor is the spread of repeated runs. A technique that no measured
run near a strategy has used adds a factor of its own, which strategies with that technique share (see
:mod:`traincast.searching.doubts`). The chance of a candidate is the share of draws in which it is the fastest.
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
from traincast.report import Report
from traincast.searching.doubts import TECHNIQUE
from traincast.searching.odds import Odds, odds
from traincast.simulate.timeline import Evaluator

Floats = npt.NDArray[np.float64]

DRAWS: Final = 128
REPEATS: Final = 0.03
"""Standard deviation of the logarithm of repeated runs of one strategy on one cluster."""
MESH: Final = 0.1
"""Standard deviation of the logarithm of the factor that strategies of one mesh share, on uncalibrated clusters."""
DOUBLING: Final = 0.04
"""Scale of the growth of a step beyond its forecast per doubling of devices, on uncalibrated clusters; never negative.

``MESH`` and ``DOUBLING`` were chosen on pairs of measured runs; ``benchmarks.chances`` tests them on the same pairs.
"""
FEW_DEVICES: Final = 8
"""Doublings are counted from this number of devices, on which most measurements were made."""
_NINETY: Final = 2.0 * 1.645
"""Width of a 90 % interval, in standard deviations."""
_LINKS: Final = ("intra", "inter", "send")
_HOSTS: Final = ("kernels", "blocks", "collectives", "handshakes", "waits")


@lru_cache(maxsize=1)
def spreads() -> dict[str, float]:
    """Return the spread of the logarithm of each factor over all calibrated clusters of the catalog.

    A cluster with few runs has its factors to the power of what its offsets leave them, and counts accordingly.
    """
    found = [cluster.calibration for cluster in calibrated_clusters() if cluster.calibration]
    table = np.log([[getattr(calibration, name) for name in FACTORS] for calibration in found])
    left = np.array([1.0 - calibration.few.share if calibration.few else 1.0 for calibration in found])
    return dict(zip(FACTORS, np.sqrt((table**2).sum(axis=0) / (left**2).sum()).tolist(), strict=True))


class Draws:
    """Random factors on forecasts, ``count`` draws of each; candidates that share a property share its draws."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self._seed = seed
        self._drawn = 0
        self._unexplained: list[float] = self._random("unexplained").uniform(1e-6, 1.0 - 1e-6, count).tolist()

    def seconds(self, forecast: Forecast, without: Sequence[str] = ()) -> Floats:
        """Return the step time of ``forecast`` in every draw, in seconds.

        ``without`` names its techniques without evidence.
        """
        calibration = forecast.request.cluster.calibration
        if calibration is None:
            drawn = self._uncalibrated(forecast)
            rest = _rest(forecast, drawn)
            factors: Floats = np.array([rest.quantile(chance) for chance in self._unexplained])
            return drawn * factors * self._repeats(REPEATS) * self._techniques(without)
        report = forecast.report
        own = max(REPEATS, math.log(calibration.high / calibration.low) / _NINETY)
        step, whole = self._in_a_mode(report), math.log(report.high_s / report.low_s) / _NINETY
        if report.modes:  # the interval spans both modes; below the usual one it has what the calibration leaves open
            whole = 2.0 * math.log(report.modes[0].step_s / report.low_s) / _NINETY
        left_open = math.sqrt(max(0.0, whole**2 - own**2))
        place = self._normal("calibrated", forecast.request.cluster.name)
        found: Floats = step * np.exp(left_open * place) * self._repeats(own)
        return found * self._techniques(without)

    def _in_a_mode(self, report: Report) -> Floats:
        """Return the step of a run in every draw: in one of its modes, each drawn with its probability."""
        if not report.modes:
            return np.full(self.count, report.step_s)
        chosen = self._random("modes", str(self._drawn)).uniform(size=self.count)
        ends = np.cumsum([mode.probability for mode in report.modes])
        steps = np.array([mode.step_s for mode in report.modes])
        found: Floats = steps[np.minimum(np.searchsorted(ends, chosen), len(steps) - 1)]
        return found

    def _uncalibrated(self, forecast: Forecast) -> Floats:
        """Return the step times on an uncalibrated cluster: every factor is drawn."""
        cluster, estimates, plan = forecast.request.cluster, forecast.estimates, forecast.lowered.plan
        evaluate, parts = Evaluator(plan), Parts(plan.works, cluster)
        usual = evaluate(estimates.seconds)
        ratio = forecast.report.step_s / usual if usual else 1.0
        doubts = parts.unmeasured_spreads(estimates, plan.work_counts())
        factors = {
            name: np.exp(math.hypot(spread, doubts.get(name, 0.0)) * self._normal(name, *owner_of(name, cluster)))
            for name, spread in spreads().items()
        }
        drawn = [Calibration(**{name: float(f[n]) for name, f in factors.items()}) for n in range(self.count)]  # type: ignore[arg-type]
        doublings = math.log2(cluster.num_devices / FEW_DEVICES)
        degrees = (f"{name}={getattr(forecast.request.strategy, name)}" for name in ("tp", "cp", "pp", "ep"))
        other = DOUBLING * doublings * np.abs(self._normal("scaling")) + MESH * self._normal("mesh", *degrees)
        steps = np.array([evaluate(parts.scaled(estimates.seconds, each)) for each in drawn])
        found: Floats = ratio * np.exp(other) * steps
        return found

    def _techniques(self, without: Sequence[str]) -> Floats:
        """Return the factors of the techniques without evidence; strategies that share one share its draws."""
        return np.exp(TECHNIQUE * sum((np.abs(self._normal("technique", name)) for name in without), np.zeros(1)))

    def _normal(self, *what: str) -> Floats:
        """Return standard normal draws for the property ``what``; equal names always give equal draws."""
        return self._random(*what).normal(size=self.count)

    def _repeats(self, spread: float) -> Floats:
        """Return factors of repeated runs, independent for each candidate."""
        self._drawn += 1
        found: Floats = np.exp(spread * self._normal("repeats", str(self._drawn)))
        return found

    def _random(self, *what: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(" ".join(what).encode())])


def _rest(forecast: Forecast, drawn: Floats) -> Odds:
    """Return the odds of a further factor, with which ``drawn`` times spread as widely as the forecast's interval."""
    report = forecast.report
    whole = odds(report.step_s, report.low_s, report.high_s, calibrated=False)
    low, middle, high = np.quantile(drawn, (0.05, 0.5, 0.95)).tolist()
    median = whole.median_s / report.step_s
    below, above = (
        math.sqrt(max(0.0, math.log(max(wide, 1.0)) ** 2 - math.log(known) ** 2))
        for wide, known in (
            (whole.median_s / whole.low_s, middle / low),
            (whole.high_s / whole.median_s, high / middle),
        )
    )
    return Odds(median_s=median, low_s=median * math.exp(-below), high_s=median * math.exp(above))


def owner_of(factor: str, cluster: Cluster) -> tuple[str, ...]:
    """Return the owner of a factor: nobody for hosts, the cluster for links, the device for all others."""
    if factor in _HOSTS:
        return ()
    return (cluster.name,) if factor in _LINKS else (cluster.device.name,)


def drawn_seconds(
    forecasts: Sequence[Forecast],
    *,
    without: Sequence[Sequence[str]] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Floats:
    """Return the step times of all forecasts (columns) in every draw (rows), in seconds.

    ``without`` names the techniques of each that have no evidence.
    """
    source = Draws(draws, seed)
    names = without or [()] * len(forecasts)
    return np.stack([source.seconds(made, lacking) for made, lacking in zip(forecasts, names, strict=True)], axis=1)


def chances(seconds: Floats) -> Floats:
    """Return the share of rows in which each column is the least."""
    return np.bincount(seconds.argmin(axis=1), minlength=seconds.shape[1]) / len(seconds)


def regrets(seconds: Floats) -> Floats:
    """Return the expected loss of each column against the best of each row, as a share of the best."""
    found: Floats = (seconds / seconds.min(axis=1, keepdims=True)).mean(axis=0) - 1.0
    return found


def median_regrets(seconds: Floats) -> Floats:
    """Return the loss of each column against the best of the row that half of the rows exceed.

    Of the ways to pick a strategy by its losses, this one lost least on measured runs of sources that may guide choices
    (``python -m benchmarks.regret``). Means are ruled by the few draws in which one mesh is much slower than forecast.
    """
    found: Floats = np.median(seconds / seconds.min(axis=1, keepdims=True), axis=0) - 1.0
    return found


def ties(seconds: Floats) -> npt.NDArray[np.bool_]:
    """Return which columns may be as good as the first: the 90 % interval of their ratio to it contains 1."""
    ratio = seconds / seconds[:, :1]
    found: npt.NDArray[np.bool_] = np.quantile(ratio, 0.05, axis=0) <= 1.0
    found[0] = False
    return found


def ratios(seconds: Floats) -> Floats:
    """Return the 90 % interval of the ratio of each column to the first: one row (low, high) per column."""
    found: Floats = np.quantile(seconds / seconds[:, :1], (0.05, 0.95), axis=0).T
    return found
