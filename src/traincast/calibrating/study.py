"""How good a calibration is on runs that it was not fitted to: folds, a learning curve, and runs that stand out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.calibrating.ask import CURVE
from traincast.calibrating.correction import fit_correction
from traincast.calibrating.few import offsets, share_of_few, with_few
from traincast.calibrating.fit import CalibrationFit, fit
from traincast.calibrating.parameters import Prior
from traincast.calibrating.runs import MeasuredRun
from traincast.cluster import MOST_LIKELY, Calibration, Correction, SeenModel
from traincast.report.outlook import correction_at

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Key = Callable[[MeasuredRun], Hashable]

FOLDS: Final = 5
_ODD: Final = 3.5
_ODD_AT_LEAST: Final = 0.15
_CURVE_REPEATS: Final = 8
_FEWEST_TO_TEST: Final = 4
_FEW_FOLDS: Final = 3
_CURVE_JUDGED: Final = 120
_MOST_OWN: Final = 0.7
"""The largest error of a run, in logarithm, that counts for the factor of its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Forecasts of runs by fits to other runs only, in the order of the runs.

    ``measured`` is in seconds. ``usual`` and ``stalled`` are the seconds without and with a stall, ``factor`` is the
    correction, ``own`` the factor of the run's own model beside a correction, ``own_plain`` the same without one, and
    ``chance`` the probability of a stall. ``fold`` is −1, and the forecasts are NaN, for a run that was
    in every fit.
    """

    measured: Floats
    usual: Floats
    stalled: Floats
    factor: Floats
    own: Floats
    own_plain: Floats
    chance: Floats
    fold: Ints

    def _factor(self, *, corrected: bool) -> Floats:
        """Return what the seconds are multiplied by."""
        return self.factor * self.own if corrected else self.own_plain

    def as_lists(self) -> dict[str, list[float]]:
        """Return its columns as plain values."""
        return {name: getattr(self, name).tolist() for name in type(self).__slots__}

    @classmethod
    def from_lists(cls, columns: Mapping[str, Sequence[float]]) -> HeldOut:
        """Build it from the plain values of :meth:`as_lists`."""
        numbers = {name: np.array(values, np.float64) for name, values in columns.items() if name != "fold"}
        return cls(**numbers, fold=np.array(columns["fold"], np.int64))

    def forecast(self, *, corrected: bool = True) -> Floats:
        """Return the seconds in the more likely mode."""
        base = np.where(self.chance >= MOST_LIKELY, np.maximum(self.stalled, self.usual), self.usual)
        result: Floats = base * self._factor(corrected=corrected)
        return result

    def errors(self, *, corrected: bool = True) -> Floats:
        """Return the relative errors of the forecasts."""
        result: Floats = self.forecast(corrected=corrected) / self.measured - 1.0
        return result

    def left_over(self, *, corrected: bool = True) -> Floats:
        """Return the logarithms of measured over forecast; of two possible modes, the nearer one counts."""
        factor = self._factor(corrected=corrected)
        usual = np.log(self.measured / (self.usual * factor))
        slow = np.log(self.measured / (np.maximum(self.stalled, self.usual) * factor))
        both = self.chance > 0.0
        result: Floats = np.where(both & (np.abs(slow) < np.abs(usual)), slow, usual)
        return result


def fold_numbers(runs: Sequence[MeasuredRun], key: Key, *, folds: int = FOLDS, seed: int = 0) -> Ints:
    """Return a fold for every run, drawn at random; runs with the same ``key`` are in the same fold."""
    keys = [key(run) for run in runs]
    distinct = sorted(set(keys), key=repr)
    order = np.random.default_rng(seed).permutation(len(distinct))
    number = {distinct[k]: place % folds for place, k in enumerate(order.tolist())}
    return np.array([number[k] for k in keys], dtype=np.int64)


def held_out(
    runs: Sequence[MeasuredRun],
    fold: Ints,
    *,
    prior: Prior | None = None,
    modes: bool = True,
    done: Callable[[], None] | None = None,
) -> HeldOut:
    """Forecast every run by a fit to the runs of the other folds."""
    names = ("usual", "stalled", "factor", "chance", "own", "own_plain")
    columns = {name: np.full(len(runs), np.nan) for name in names}
    numbers = np.unique(fold[fold >= 0]).tolist()
    for number in numbers if len(numbers) > 1 else []:
        inside = np.flatnonzero(fold == number).tolist()
        others = [runs[i] for i in np.flatnonzero(fold != number).tolist()]
        made = fit(others, prior, modes=modes)
        calibration = replace(made.calibration, correction=corrected(others, made))
        seen, plain = (seen_models(others, left_after(others, made, c)) for c in (calibration.correction, None))
        for i in inside:
            own = (_own(runs[i], seen), _own(runs[i], plain))
            for name, value in zip(columns, (*_forecast(runs[i], calibration), *own), strict=True):
                columns[name][i] = value
        if done is not None:
            done()
    measured = np.array([run.seconds for run in runs])
    return HeldOut(measured=measured, **columns, fold=fold if len(numbers) > 1 else np.full(len(runs), -1))


def corrected(runs: Sequence[MeasuredRun], made: CalibrationFit) -> Correction:
    """Return the correction fitted to the errors that a fit leaves."""
    return fit_correction(runs, left_after(runs, made))


def left_after(runs: Sequence[MeasuredRun], made: CalibrationFit, correction: Correction | None = None) -> Floats:
    """Return the logarithms of measured over forecast time that a fit, and a correction, leave of its own runs."""
    times = [run.simulated(made.calibration, stalled=bool(s)) for run, s in zip(runs, made.stalled, strict=True)]
    factors = [correction_at(correction, run.look.features) for run in runs]
    left: Floats = np.log(np.array([run.seconds for run in runs]) / (np.array(times) * factors))
    return left


def seen_models(runs: Sequence[MeasuredRun], left: Floats) -> tuple[SeenModel, ...]:
    """Return the factor of each model and precision: the mean of its runs' errors ``left``, in logarithms.

    One run without error is added to each mean, so that few runs give a factor near 1.
    """
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run, error in zip(runs, np.clip(left, -_MOST_OWN, _MOST_OWN).tolist(), strict=True):
        groups[run.look.model, run.look.precision].append(error)
    return tuple(
        SeenModel(
            model=model, precision=precision, runs=len(errors), factor=float(np.exp(sum(errors) / (len(errors) + 1)))
        )
        for (model, precision), errors in sorted(groups.items())
    )


def _own(run: MeasuredRun, seen: tuple[SeenModel, ...]) -> float:
    return Calibration(seen=seen).factor_of(run.look.model, run.look.precision)


def models_alone(runs: Sequence[MeasuredRun], fold: Ints) -> HeldOut:
    """Forecast every run without parameters, by the factor of its model in the other folds."""
    measured = np.array([run.seconds for run in runs])
    usual = np.array([run.simulated(Calibration()) for run in runs])
    own = np.full(len(runs), np.nan)
    for number in np.unique(fold[fold >= 0]).tolist():
        others = np.flatnonzero(fold != number).tolist()
        seen = seen_models([runs[i] for i in others], np.log(measured[others] / usual[others]))
        for i in np.flatnonzero(fold == number).tolist():
            own[i] = _own(runs[i], seen)
    none = np.ones(len(runs))
    usual = np.where(fold >= 0, usual, np.nan)
    return HeldOut(
        measured=measured, usual=usual, stalled=usual, factor=none, own=own, own_plain=own, chance=none * 0.0, fold=fold
    )


def _forecast(run: MeasuredRun, calibration: Calibration) -> tuple[float, float, float, float]:
    usual = run.simulated(calibration)
    chance = run.look.stalls(calibration)
    stalled = run.simulated(calibration, stalled=True) if chance > 0.0 else usual
    return usual, stalled, correction_at(calibration.correction, run.look.features), chance


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Errors on other runs after a calibration with ``runs`` runs, in per cent.

    ``mean_error`` and ``median_error`` are over all draws of the runs, ``best`` and ``worst`` are the means of single
    draws.
    """

    runs: int
    mean_error: float
    median_error: float
    best: float
    worst: float


def learning_curve(
    runs: Sequence[MeasuredRun],
    *,
    sizes: Sequence[int] = CURVE,
    prior: Prior | None = None,
    seed: int = 0,
    done: Callable[[], None] | None = None,
) -> list[CurvePoint]:
    """Return the errors on other runs after calibrations with a growing number of runs."""
    rng = np.random.default_rng(seed)
    points = []
    for size in sizes:
        if size >= len(runs):
            break
        errors = []
        for _ in range(_CURVE_REPEATS if size else 1):
            order = rng.permutation(len(runs))
            seen = [runs[i] for i in order[:size].tolist()]
            judged = [runs[i] for i in order[size:][:_CURVE_JUDGED].tolist()] if size else list(runs)
            calibration = Calibration()
            if seen:
                calibration = with_few(_careful(seen, prior), offsets(seen), share_of_few(len(seen)))
            errors.append([abs(forecast_by(calibration, run) / run.seconds - 1.0) for run in judged])
            if done is not None:
                done()
        means = [100.0 * float(np.mean(e)) for e in errors]
        points.append(
            CurvePoint(
                runs=size,
                mean_error=float(np.mean(means)),
                median_error=100.0 * float(np.median(np.concatenate(errors))),
                best=min(means),
                worst=max(means),
            )
        )
    return points


def forecast_by(calibration: Calibration, run: MeasuredRun) -> float:
    """Return the seconds of a run that does not stall, with the correction and the factors of ``calibration``."""
    factor = calibration.factor_of(run.look.model, run.look.precision)
    return run.simulated(calibration) * correction_at(calibration.correction, run.look.features) * factor


def _careful(seen: Sequence[MeasuredRun], prior: Prior | None) -> Calibration:
    """Return the calibration fitted to ``seen``; an empty one if it does not help on runs left out of the fit."""
    made = fit(seen, prior, modes=False)
    if len(seen) >= _FEWEST_TO_TEST:
        fold = fold_numbers(seen, lambda run: run.measured.index, folds=_FEW_FOLDS)
        held = held_out(seen, fold, prior=prior, modes=False)
        if not helps(seen, held):
            return Calibration()
    return replace(made.calibration, correction=corrected(seen, made)) if seen else made.calibration


def helps(runs: Sequence[MeasuredRun], held: HeldOut) -> bool:
    """Return whether calibrated forecasts of runs that were left out are better than uncalibrated ones.

    If no run was left out, calibration is taken to help.
    """
    left = held.left_over()
    known = np.isfinite(left)
    if not known.any():
        return True
    before = np.log([run.seconds / run.simulated(Calibration()) for run in runs])
    return float(np.abs(left[known]).mean()) < float(np.abs(before[known]).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """A run that stands out: its time is far from the forecast by fits to the other runs."""

    index: int
    measured_s: float
    forecast_s: float
    stalled: bool


def odd_runs(runs: Sequence[MeasuredRun], held: HeldOut) -> list[Odd]:
    """Return the runs whose errors are far outside those of the others, stalled ones included; the largest first."""
    left = held.left_over()
    known = np.isfinite(left)
    if known.sum() < 3:
        return []
    centre = float(np.median(left[known]))
    scale = max(1.4826 * float(np.median(np.abs(left[known] - centre))), 0.02)
    usual = np.log(held.measured / (held.usual * held.factor * held.own))
    slow = known & (held.chance < MOST_LIKELY) & (usual > _ODD * scale) & (np.abs(usual) > _ODD_AT_LEAST)
    odd = known & (np.abs(left - centre) > _ODD * scale) & (np.abs(left) > _ODD_AT_LEAST)
    found = np.flatnonzero(odd | slow)
    order = found[np.argsort(-np.abs(usual[found]))].tolist()
    forecast = held.forecast()
    return [
        Odd(
            index=runs[i].measured.index,
            measured_s=float(held.measured[i]),
            forecast_s=float(forecast[i]),
            stalled=bool(slow[i] and not odd[i]),
        )
        for i in order
    ]
