"""The unknowns behind the forecasts of steps, and what a measurement leaves of them.

The draws of a search (:mod:`traincast.searching.sureness`) are worlds: in each, products, memory, links, hosts, meshes
and techniques are faster or slower than forecast. To first order, the logarithm of a step is a sum of these unknowns,
each a standard normal variable times the effect of one standard deviation. A measurement sees such a sum as well, with
noise. So what is left of the unknowns follows from Gaussian conditioning:

    P = 1 - H' (H H' + R)^-1 H

with a row of H for every figure that is measured, and the variances of the noise on the diagonal of R. A step whose
effects are the row j has the standard deviation sqrt(j P j') afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import FACTORS, Calibration
from traincast.estimate.calibrated import Parts
from traincast.forecast import Forecast
from traincast.searching.doubts import TECHNIQUE
from traincast.searching.odds import UNCALIBRATED_MEDIAN
from traincast.searching.sureness import DOUBLING, FEW_DEVICES, MESH, REPEATS, owner_of, spreads
from traincast.simulate.timeline import Evaluator

Floats = npt.NDArray[np.float64]
Unknown: TypeAlias = tuple[str, ...]
"""The name of an unknown: what it is, and whose."""
Effects: TypeAlias = Mapping[Unknown, float]
"""How much one standard deviation of each unknown changes the logarithm of a time."""

OWN: Final = 0.045
"""Standard deviation of the error (logarithm) that belongs to one strategy, whatever the number of its replicas."""
RUN: Final = 0.05
"""Standard deviation of the error that belongs to one strategy at one scale.

Runs of one model on the same devices differ from their common error by 0.076 in the median of the sources that may
guide choices. ``benchmarks.doubt_left`` compares the doubt that follows from both with measured runs.
"""
DRAWN: Final = 4096
"""Number of worlds in which a decision is judged."""
_NINETY: Final = 2.0 * 1.645
_HALF: Final = math.sqrt(1.0 - 2.0 / math.pi)
"""Standard deviation of the absolute value of a standard normal variable, whose mean is sqrt(2/pi)."""
_MEAN: Final = math.sqrt(2.0 / math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStep:
    """The logarithm of a step's seconds: its median, and the effects of what is unknown."""

    median: float
    effects: Effects = field(repr=False)

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm."""
        return math.sqrt(sum(effect**2 for effect in self.effects.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One figure that a measurement yields: the effects of the unknowns on its logarithm, and its noise."""

    effects: Effects
    noise: float


def step_of(made: Forecast, without: Sequence[str] = ()) -> DrawnStep:
    """Return the step of a forecast with all that is unknown about it.

    ``without`` names its techniques without evidence. Without them, the spread is that of the 90 % interval in the
    report, and of repeats.
    """
    report, request = made.report, made.request
    whole = math.log(report.high_s / report.low_s) / _NINETY
    own: dict[Unknown, float] = {("repeats", str(request.strategy), str(request.cluster.num_nodes)): REPEATS}
    if request.cluster.calibration is None:
        found = _uncalibrated(made, whole)
        median = math.log(report.step_s * UNCALIBRATED_MEDIAN)
    else:
        calibration = request.cluster.calibration
        inside = min(whole, max(REPEATS, math.log(calibration.high / calibration.low) / _NINETY))
        rest = math.sqrt(max(0.0, whole**2 - inside**2))
        found = {("run", _scale(made)): inside, ("calibrated", request.cluster.name): rest}
        median = math.log(report.step_s)
    for name in without:
        own["technique", name] = TECHNIQUE * _HALF
        median += TECHNIQUE * _MEAN
    return DrawnStep(median=median, effects={name: effect for name, effect in (found | own).items() if effect})


def _kind(made: Forecast) -> str:
    """Return what runs of a strategy at several scales share: everything but the number of replicas."""
    s, request = made.request.strategy, made.request
    micro = s.micro_batch(request.global_batch)
    return (
        f"tp={s.tp} cp={s.cp} pp={s.pp} ep={s.ep} {s.schedule} {s.virtual_stages} {micro:g} {s.zero} {s.recompute} "
        f"{s.recompute_every} {s.offload} {s.sequence_parallel}"
    )


def _scale(made: Forecast) -> str:
    """Return what only repeats of one run share."""
    request = made.request
    return f"{request.strategy.complete_text} {request.global_batch} {request.graph.tokens_per_sample}"


def _uncalibrated(made: Forecast, whole: float) -> dict[Unknown, float]:
    """Return the effects of the unknowns of an uncalibrated cluster; together they are as wide as ``whole``."""
    cluster, estimates, plan, s = made.request.cluster, made.estimates, made.lowered.plan, made.request.strategy
    evaluate, parts = Evaluator(plan), Parts(plan.works, cluster)
    doubts = parts.unmeasured_spreads(estimates, plan.work_counts())
    found: dict[Unknown, float] = {}
    spent = parts.seconds_by_part(estimates.seconds, plan.work_counts())
    for name in FACTORS:
        spread = math.hypot(spreads()[name], doubts.get(name, 0.0))
        if spent.get(name, 0.0) > 0.0 and spread > 0.0:
            longer, shorter = (
                evaluate(parts.scaled(estimates.seconds, Calibration(**{name: math.exp(sign * spread)})))  # type: ignore[arg-type]
                for sign in (1.0, -1.0)
            )
            found[name, *owner_of(name, cluster)] = 0.5 * math.log(longer / shorter)
    doublings = max(0.0, math.log2(cluster.num_devices / FEW_DEVICES))
    found["scaling",] = DOUBLING * doublings * _HALF
    found["mesh", f"tp={s.tp},cp={s.cp},pp={s.pp},ep={s.ep}"] = MESH
    found["own", _kind(made)] = OWN
    found["run", _scale(made)] = RUN
    known = math.sqrt(sum(effect**2 for effect in found.values()))
    if known > whole:  # the works were measured here: the interval is narrower than that of other clusters
        return {name: effect * whole / known for name, effect in found.items()}
    found["unexplained",] = math.sqrt(whole**2 - known**2)
    return found


class Worlds:
    """What is unknown about several steps, and what is left of it after a measurement."""

    def __init__(self, steps: Sequence[DrawnStep], seed: int = 0) -> None:
        self.steps = tuple(steps)
        self._names = list(dict.fromkeys(name for step in steps for name in step.effects))
        self._rows = self._matrix([step.effects for step in steps])
        self._medians = np.array([step.median for step in steps])
        random = np.random.default_rng(seed)
        self._drawn: Floats = random.normal(size=(DRAWN, len(self._names)))
        self._noise: Floats = random.normal(size=(DRAWN, 64))
        times: Floats = self._medians + self._drawn @ self._rows.T
        self._loss: Floats = np.exp(times - times.min(axis=1, keepdims=True)) - 1.0

    def spread(self, number: int, seen: Sequence[Seen] = ()) -> float:
        """Return the standard deviation of the logarithm of a step, after what was seen."""
        row = self._rows[number]
        left = float(row @ row)
        if seen:
            here, gain, _ = self._gain(seen)
            left -= float(row @ (gain @ (here @ row)))
        return math.sqrt(max(0.0, left))

    def mean(self, number: int, seen: Sequence[Seen], logarithms: Sequence[float]) -> float:
        """Return the expected logarithm of a step, after figures were ``seen`` this far from their medians."""
        _, gain, _ = self._gain(seen)
        return float(self._medians[number] + self._rows[number] @ (gain @ np.array(logarithms)))

    def regret(self, seen: Sequence[Seen] = ()) -> float:
        """Return the expected loss of the step chosen after what was seen, against the best, as a share of the best.

        The chosen step is that with the shortest expected time in the light of what was seen.
        """
        every = range(len(self.steps))
        before = self._regret(np.zeros((1, len(self._names))), np.array([self.spread(n) for n in every]))
        if not seen:
            return before
        here, gain, noise = self._gain(seen)
        figures = self._drawn @ here.T + noise * self._noise[:, : len(seen)]
        after = self._regret(figures @ gain.T, np.array([self.spread(n, seen) for n in every]))
        return min(before, after)  # more knowledge is no loss; a finite number of draws may say so

    def _regret(self, believed: Floats, spreads_left: Floats) -> float:
        expected = self._medians + believed @ self._rows.T + 0.5 * spreads_left**2
        chosen = np.broadcast_to(expected.argmin(axis=1), len(self._loss))
        return float(self._loss[np.arange(len(self._loss)), chosen].mean())

    def _gain(self, seen: Sequence[Seen]) -> tuple[Floats, Floats, Floats]:
        """Return H, the gain H' (H H' + R)^-1, and the noise of each figure.

        An unknown that no step depends on is noise of the figures, too: it may be the same in several of them.
        """
        here = self._matrix([each.effects for each in seen])
        noise = np.array([each.noise for each in seen])
        others = list(dict.fromkeys(name for each in seen for name in each.effects if name not in set(self._names)))
        beside = np.array([[each.effects.get(name, 0.0) for name in others] for each in seen]).reshape(len(seen), -1)
        covariance = here @ here.T + beside @ beside.T + np.diag(noise**2 + 1e-12)
        gain: Floats = here.T @ np.linalg.inv(covariance)
        return here, gain, np.sqrt(noise**2 + (beside**2).sum(axis=1))

    def _matrix(self, rows: Sequence[Effects]) -> Floats:
        return np.array([[row.get(name, 0.0) for name in self._names] for row in rows]).reshape(len(rows), -1)
