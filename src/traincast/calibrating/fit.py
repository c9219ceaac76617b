"""Fitting a calibration: robust least squares on logarithms of times, held by a prior.

With parameters θ (logarithms), forecast times p and measured times m, the fit minimises

    Σᵢ ρ(log(pᵢ(θ)/mᵢ)/σ) + Σⱼ ((θⱼ − θ⁰ⱼ)/sⱼ)²/2

by Gauss–Newton steps. ρ grows linearly beyond one σ, so that odd runs do not distort the fit. σ is the spread of
repeated runs of one configuration. A run whose time differs from the prior forecast by a factor of several, while the
other runs do not, says more about itself than about the cluster: it gets a small weight from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.calibrating.parameters import NAMES, Prior, calibration_at, matters
from traincast.calibrating.runs import MeasuredRun
from traincast.cluster import Calibration, Stall

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NOISE: Final = 0.06
"""Spread of repeated runs of one configuration: the standard deviation of the logarithm of their time."""
_BEND: Final = 1.0
"""Errors above this many standard deviations count linearly instead of squared."""
_STEP: Final = 1e-3
_ROUNDS: Final = 12
_ATTEMPTS: Final = 4
_CLOSE: Final = 2e-3
_STALL_S: Final = 0.3
_MODE_ROUNDS: Final = 4
_FAR: Final = float(np.log(2.0))
_STALLS: Final = float(np.log(1.5))
_FEWEST_STALLED: Final = 8
_FEWEST_TO_COMPARE: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFit:
    """A fitted calibration: logarithms of its parameters, their standard deviations, and which runs stalled."""

    calibration: Calibration
    values: Floats
    spread: Floats
    prior: Prior
    stalled: Bools


def fit(
    runs: Sequence[MeasuredRun],
    prior: Prior | None = None,
    *,
    modes: bool = True,
) -> CalibrationFit:
    """Fit a calibration to ``runs``; without runs, the result is the prior.

    With ``modes``, runs that a stalled network explains far better count as stalled, if there are enough of them.
    """
    believed = prior or Prior.usual()
    values = believed.mean.copy()
    if modes and len(runs) >= 4 * _FEWEST_STALLED:
        found = _with_modes(runs, believed, values)
        if found is not None:
            return found
    none = np.zeros(len(runs), dtype=bool)
    return _descend(runs, believed, values, none, Calibration(), rounds=_ROUNDS)


def _descend(
    runs: Sequence[MeasuredRun],
    prior: Prior,
    values: Floats,
    stalled: Bools,
    like: Calibration,
    *,
    rounds: int,
) -> CalibrationFit:
    problem = _Problem(runs, prior, stalled, like)
    if not stalled.any():
        problem.distrust(prior.mean)
    errors = problem.errors(values)
    loss = problem.loss(values, errors)
    damping = 0.0
    hessian = np.diag(prior.spread**-2.0)
    for _ in range(rounds if len(runs) else 0):
        jacobian = problem.jacobian(values, errors)
        weights = problem.weights(errors)
        hessian = (jacobian.T * weights) @ jacobian + np.diag(prior.spread**-2.0)
        gradient = jacobian.T @ (weights * errors) + (values - prior.mean) * prior.spread**-2.0
        moved = False
        for _attempt in range(_ATTEMPTS):
            step = -np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
            step = np.clip(step, -1.0, 1.0)
            tried = problem.errors(values + step)
            new = problem.loss(values + step, tried)
            if new < loss:
                moved = loss - new > 1e-4 * (1.0 + loss) and bool(np.abs(step).max() > _CLOSE)
                values, errors, loss, damping = values + step, tried, new, damping / 4.0
                break
            damping = max(0.05, 4.0 * damping)
        if not moved:
            break
    return CalibrationFit(
        calibration=calibration_at(values, like=like),
        values=values,
        spread=np.sqrt(np.diag(np.linalg.inv(hessian))),
        prior=prior,
        stalled=stalled,
    )


class _Problem:
    """The errors of the runs as a function of the parameters, with derivatives, weights and loss."""

    def __init__(self, runs: Sequence[MeasuredRun], prior: Prior, stalled: Bools, like: Calibration) -> None:
        self._runs = runs
        self._prior = prior
        self._stalled = stalled.tolist()
        self._like = like
        self._measured = np.log([run.seconds for run in runs]) if len(runs) else np.zeros(0)
        self._trust = np.ones(len(runs))
        self._matter = [
            [i for i, run in enumerate(runs) if matters(name, run.by_part, nodes=run.nodes)] for name in NAMES
        ]

    def distrust(self, values: Floats) -> None:
        """Lower the weight of runs far from the forecast at ``values``, relative to the median run if there are several."""
        errors = self.errors(values)
        usual = float(np.median(errors)) if len(errors) >= _FEWEST_TO_COMPARE else 0.0
        self._trust = 1.0 / (1.0 + ((errors - usual) / _FAR) ** 4)

    def _logs(self, values: Floats, chosen: Sequence[int]) -> Floats:
        calibration = calibration_at(values, like=self._like)
        times = [self._runs[i].simulated(calibration, stalled=self._stalled[i]) for i in chosen]
        return np.log(times) if times else np.zeros(0)

    def errors(self, values: Floats) -> Floats:
        """Logarithm of forecast over measured time, for each run."""
        return self._logs(values, range(len(self._runs))) - self._measured

    def jacobian(self, values: Floats, errors: Floats) -> Floats:
        """Derivatives of the errors by finite differences; skips runs that a parameter does not affect."""
        result = np.zeros((len(self._runs), len(NAMES)))
        for j, chosen in enumerate(self._matter):
            if chosen:
                moved = values.copy()
                moved[j] += _STEP
                base = errors[chosen] + self._measured[chosen]
                result[chosen, j] = (self._logs(moved, chosen) - base) / _STEP
        return result

    def weights(self, errors: Floats) -> Floats:
        """Weight of each run in iteratively reweighted least squares."""
        scaled = errors / (NOISE * _BEND)
        weights: Floats = self._trust / (NOISE**2 * np.sqrt(1.0 + scaled**2))
        return weights

    def loss(self, values: Floats, errors: Floats) -> float:
        """The loss that the fit minimises."""
        scaled = errors / (NOISE * _BEND)
        held = (values - self._prior.mean) / self._prior.spread
        return float(self._trust @ (_BEND**2 * (np.sqrt(1.0 + scaled**2) - 1.0)) + 0.5 * (held**2).sum())


def _with_modes(runs: Sequence[MeasuredRun], prior: Prior, values: Floats) -> CalibrationFit | None:
    """The fit with a slow mode, or ``None`` if too few runs are far better explained by one."""
    measured = np.array([run.seconds for run in runs])
    calibration = calibration_at(values)
    seconds, best = _STALL_S, None
    for _ in range(_MODE_ROUNDS):
        like = replace(calibration, stall=Stall(seconds=seconds, base=0.0))
        usual = np.abs(np.log([run.simulated(like) for run in runs] / measured))
        slow = np.abs(np.log([run.simulated(like, stalled=True) for run in runs] / measured))
        stalled = slow < usual - NOISE
        if int((stalled & (usual > _STALLS)).sum()) < _FEWEST_STALLED:
            return None
        if best is not None and bool((stalled == best.stalled).all()):
            break
        best = _descend(runs, prior, values, stalled, like, rounds=_ROUNDS // 2)
        values, calibration = best.values, best.calibration
        waiting = replace(calibration, stall=Stall(seconds=0.0, base=0.0))
        left = [
            (run.seconds - run.simulated(waiting, stalled=True)) / run.look.messages
            for run, is_slow in zip(runs, stalled.tolist(), strict=True)
            if is_slow and run.look.messages
        ]
        seconds = max(0.0, float(np.median(left))) if left else 0.0
    assert best is not None
    return replace(best, calibration=replace(calibration, stall=_odds(runs, best.stalled, seconds)))


def _odds(runs: Sequence[MeasuredRun], stalled: Bools, seconds: float) -> Stall:
    """The odds of the slow mode: logistic regression on the fields of :class:`Stall`, with a penalty on slopes."""
    looks = [run.look for run in runs]
    columns = np.array([[1.0, k.nodes - 1.0, k.stages > 1, (k.tensor_nodes - 1.0) * (k.stages > 1)] for k in looks])
    held = np.diag([0.01, 1.0, 0.1, 0.1])
    weights = np.zeros(columns.shape[1])
    for _ in range(50):
        chance = 1.0 / (1.0 + np.exp(-columns @ weights))
        gradient = columns.T @ (stalled - chance) - held @ weights
        hessian = (columns.T * (chance * (1.0 - chance))) @ columns + held
        step = np.linalg.solve(hessian, gradient)
        weights += np.clip(step, -2.0, 2.0)
        if np.abs(step).max() < _CLOSE:
            break
    base, nodes, pipeline, tensor_nodes = weights.tolist()
    return Stall(seconds=seconds, base=base, per_node=nodes, pipeline=pipeline, per_tensor_node=tensor_nodes)
