"""A whole calibration: fit, test on unseen runs, decide what to keep, and derive intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from traincast.calibrating.ask import CURVE
from traincast.calibrating.correction import domain
from traincast.calibrating.few import offsets, share_of_few, with_few
from traincast.calibrating.fit import CalibrationFit, fit
from traincast.calibrating.intervals import bounds
from traincast.calibrating.parameters import PARAMETERS, Prior, calibration_at
from traincast.calibrating.runs import MeasuredRun
from traincast.calibrating.study import (
    FOLDS,
    CurvePoint,
    HeldOut,
    Odd,
    corrected,
    fold_numbers,
    forecast_by,
    held_out,
    helps,
    learning_curve,
    left_after,
    models_alone,
    odd_runs,
    seen_models,
)
from traincast.cluster import Calibration, Correction, Stall
from traincast.errors import RequestError
from traincast.journal import Journal, key_of
from traincast.report.outlook import UNCALIBRATED
from traincast.strategy.model_kind import model_kind

_FEWEST_FOR_FOLDS: Final = 4
_STAGES: Final = 2
"""The form of what a journal keeps of a stage; counted up when it changes, so that older journals are not used."""
_PAYS: Final = 0.98
_COSTS: Final = 1.03
"""A correction is kept if at most these shares of the error remain on unseen runs, and on unseen models."""
_ONLY_REPEATS: Final = (
    "the calibration forecasts repeats of measured runs better, but no other configurations: it has only factors of "
    "the measured models"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A parameter before and after; ``unsure`` and ``sure`` are the standard deviations of its logarithm."""

    name: str
    meaning: str
    before: float
    after: float
    sure: float
    unsure: float

    @property
    def taught(self) -> float:
        """By which share the runs reduced its uncertainty, from 0 to 1."""
        return max(0.0, 1.0 - self.sure / self.unsure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A calibration with its errors: relative, before and after the fit; ``held`` on runs that a fit had not seen."""

    calibration: Calibration
    moves: tuple[Move, ...]
    before: tuple[float, ...]
    fitted: tuple[float, ...]
    held: HeldOut
    held_by_model: HeldOut
    helped: bool
    correction_kept: bool
    curve: tuple[CurvePoint, ...]
    odd: tuple[Odd, ...]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        errors = {
            "before": self.before,
            "fitted": self.fitted,
            "unseen runs": self.held.errors(corrected=self.correction_kept).tolist(),
            "unseen models": self.held_by_model.errors(corrected=self.correction_kept).tolist(),
        }
        return {
            "runs": self.calibration.runs,
            "calibration": asdict(self.calibration),
            "parameters": [{**asdict(move), "taught": move.taught} for move in self.moves],
            "errors": {name: _figures(list(values)) for name, values in errors.items()},
            "helped": self.helped,
            "correction": self.correction_kept,
            "learning_curve": [asdict(point) for point in self.curve],
            "odd": [asdict(odd) for odd in self.odd],
            "warnings": list(self.warnings),
        }


def _figures(errors: Sequence[float]) -> dict[str, float | int | None]:
    known = 100.0 * np.abs([e for e in errors if np.isfinite(e)])
    if not len(known):
        return {"n": 0, "mape": None, "median_ape": None}
    return {"n": len(known), "mape": float(known.mean()), "median_ape": float(np.median(known))}


def calibrate_runs(
    runs: Sequence[MeasuredRun],
    *,
    prior: Prior | None = None,
    curve: Sequence[int] = CURVE,
    journal: Path | None = None,
    save: Callable[[Calibrated], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Calibrated:
    """Calibrate a cluster to ``runs``, all measured on it.

    Finished stages are kept in the file ``journal``: a call that was stopped resumes from it. It is removed once
    ``save`` has returned. A journal of other runs is emptied, with a warning in the result.
    """
    if not runs:
        raise RequestError("there is no run to calibrate with: give a table with at least one row that can be forecast")
    believed = prior or Prior.usual()
    with Journal(journal, kind="a calibration", key=_key(runs, believed), restart=True) as kept:
        result = _calibrated(runs, believed, curve, kept, progress)
        result = replace(result, warnings=(*result.warnings, *_mixed(runs)))
        if save is not None:
            save(result)
        kept.remove()
    return result


def _mixed(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a warning if models of several kinds ran: one set of parameters cannot fit all."""
    kinds = sorted({model_kind(run.measured.request.graph) for run in runs})
    if len(kinds) == 1:
        return []
    return [f"models that read {' and '.join(kinds)} ran: what decides their steps differs; calibrate each kind alone"]


def _key(runs: Sequence[MeasuredRun], prior: Prior) -> str:
    """The key of everything that the stages depend on: the prior, the runs, and their estimates by the cost model."""

    def about(run: MeasuredRun) -> tuple[object, ...]:
        measured, request = run.measured, run.measured.request
        asked = request.graph.name, request.strategy, request.runtime, request.precision, request.global_batch
        return measured.index, measured.seconds, measured.memory_bytes, asked, request.cluster, run.look

    estimates = [run.estimates.tobytes() for run in runs]
    return key_of(_STAGES, prior.mean.tolist(), prior.spread.tolist(), [about(run) for run in runs], estimates)


def _calibrated(
    runs: Sequence[MeasuredRun],
    believed: Prior,
    curve: Sequence[int],
    kept: Journal,
    progress: Callable[[int, int], None] | None,
) -> Calibrated:
    """Run all stages, except those that the journal ``kept`` from a stopped run."""
    steps = _Steps(progress, 1 + 2 * FOLDS + 8 * len([n for n in curve if 0 < n < len(runs)]))
    whole = _fit_from(kept.part("fit", lambda: _fit_to(fit(runs, believed))), believed)
    steps.done()

    def left_out(key: Callable[[MeasuredRun], object]) -> dict[str, list[float]]:
        folds = fold_numbers(runs, key) if len(runs) >= _FEWEST_FOR_FOLDS else np.full(len(runs), -1)
        modes = whole.calibration.stall is not None
        return held_out(runs, folds, prior=believed, modes=modes, done=steps.done).as_lists()

    def curve_points() -> list[dict[str, float]]:
        return [asdict(p) for p in learning_curve(runs, sizes=curve, prior=believed, done=steps.done)]

    held = HeldOut.from_lists(kept.part("held out runs", lambda: left_out(_configuration)))
    by_model = HeldOut.from_lists(kept.part("held out models", lambda: left_out(_model)))
    points = tuple(CurvePoint(**point) for point in kept.part(f"curve {list(curve)}", curve_points))
    result = _between(runs, _judged(runs, whole, held, by_model, points))
    return replace(result, warnings=(*result.warnings, *kept.warnings))


def _between(runs: Sequence[MeasuredRun], made: Calibrated) -> Calibrated:
    """Return a calibration between the offsets that a few runs show and what was fitted to many (``made``).

    Runs that show a slow mode are not few, and offsets cannot tell who stalled: then the fit decides alone.
    """
    share = share_of_few(len(runs))
    if share <= 0.0 or made.calibration.stall is not None:
        return made
    calibration = with_few(made.calibration, offsets(runs), share)
    held, by_model = (
        _held_between(runs, h, share, corrected=made.correction_kept) for h in (made.held, made.held_by_model)
    )
    moves = [replace(move, after=float(getattr(calibration, move.name))) for move in made.moves]
    return replace(
        made,
        calibration=calibration,
        moves=tuple(moves) if share < 1.0 else (),
        fitted=tuple(forecast_by(calibration, run) / run.seconds - 1.0 for run in runs),
        held=held,
        held_by_model=by_model,
        helped=made.helped or helps(runs, held),
        odd=tuple(odd_runs(runs, held)),
    )


def _held_between(runs: Sequence[MeasuredRun], held: HeldOut, share: float, *, corrected: bool) -> HeldOut:
    """Return forecasts of held-out runs between those by the offsets of the other runs and those of ``held``."""
    usual = held.forecast(corrected=corrected)
    for number in np.unique(held.fold[held.fold >= 0]).tolist():
        others = offsets([run for run, fold in zip(runs, held.fold.tolist(), strict=True) if fold != number])
        for i in np.flatnonzero(held.fold == number).tolist():
            few = runs[i].simulated(Calibration()) * math.exp(others.at(runs[i]))
            usual[i] = usual[i] ** (1.0 - share) * few**share
    ones = np.where(np.isfinite(usual), 1.0, np.nan)
    return replace(held, usual=usual, stalled=usual, factor=ones, own=ones, own_plain=ones, chance=0.0 * ones)


def _judged(
    runs: Sequence[MeasuredRun], whole: CalibrationFit, held: HeldOut, by_model: HeldOut, points: tuple[CurvePoint, ...]
) -> Calibrated:
    """Decide what to keep of a fit from its errors on unseen runs and models, and derive the intervals."""
    before = np.array([run.simulated(Calibration()) for run in runs]) / [run.seconds for run in runs]
    held, by_model, own = _with_own(held, by_model)
    better, pays = helps(runs, held), _pays(held, by_model)
    alone = models_alone(runs, held.fold)
    if _alone_is_better(runs, held, by_model, alone, better=better, pays=pays):
        return _by_models_alone(runs, before, alone, _as_before(runs, by_model), points)
    if not better and (repeats := _repeats(runs)) is not None:
        found = _by_models_alone(runs, before, repeats, _as_before(runs, by_model), points)
        return replace(found, held=_as_before(runs, held), warnings=(_ONLY_REPEATS,))
    errors = np.concatenate([h.left_over(corrected=pays) for h in (held, by_model)])
    errors = errors[np.isfinite(errors)]
    if not better:
        pays, held, by_model, errors = False, _as_before(runs, held), _as_before(runs, by_model), -np.log(before)
    elif not len(errors):  # too few runs to leave any out
        errors = np.log([run.seconds / run.simulated(whole.calibration) for run in runs])
    correction = corrected(runs, whole) if pays else domain(runs)
    calibration = _described(runs, errors, correction, whole.calibration if better else None)
    if own and better:
        seen = seen_models(runs, left_after(runs, whole, correction if pays else None))
        calibration = replace(calibration, seen=seen)
    fitted = [
        run.simulated(whole.calibration, stalled=bool(stalled)) / run.seconds - 1.0
        for run, stalled in zip(runs, whole.stalled, strict=True)
    ]
    return Calibrated(
        calibration=calibration,
        moves=_moves(whole) if better else (),
        before=tuple((before - 1.0).tolist()),
        fitted=tuple(fitted),
        held=held,
        held_by_model=by_model,
        helped=better,
        correction_kept=pays,
        curve=points,
        odd=tuple(odd_runs(runs, held)),
    )


def _with_own(held: HeldOut, by_model: HeldOut) -> tuple[HeldOut, HeldOut, bool]:
    """Decide whether the factors of models are kept: they must lower the error on unseen runs.

    Returns both sets of forecasts, with the factors if they are kept and without them otherwise, and the decision.
    """
    without, none = (replace(h, own=_ones_of(h), own_plain=_ones_of(h)) for h in (held, by_model))
    best = [min(_mean(h.left_over(corrected=c)) for c in (True, False)) for h in (held, without)]
    pays = bool(np.isfinite(held.usual).any()) and best[0] <= _PAYS * best[1]
    return (held, by_model, True) if pays else (without, none, False)


def _ones_of(held: HeldOut) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.where(np.isfinite(held.usual), 1.0, np.nan)


def _alone_is_better(
    runs: Sequence[MeasuredRun], held: HeldOut, by_model: HeldOut, alone: HeldOut, *, better: bool, pays: bool
) -> bool:
    """Whether factors of models, without parameters, forecast unseen runs and models better than all together do."""
    plain = _as_before(runs, held), _as_before(runs, by_model)
    if not _mean(alone.left_over()) <= _PAYS * _mean(plain[0].left_over()):
        return False
    fitted = (held, by_model) if better else plain
    scores = [
        sum(m for h in pair if np.isfinite(m := _mean(h.left_over(corrected=pays))))
        for pair in (fitted, (alone, plain[1]))
    ]
    return scores[1] < scores[0]


def _repeats(runs: Sequence[MeasuredRun]) -> HeldOut | None:
    """Forecast each run by the factor that its model has in other runs, repeats of the same configuration included.

    Returns ``None`` if no configuration was measured twice, or if these forecasts are no better than uncalibrated ones.
    """
    if len(runs) < _FEWEST_FOR_FOLDS or len({_configuration(run) for run in runs}) == len(runs):
        return None
    found = models_alone(runs, fold_numbers(runs, lambda run: run.measured.index))
    return found if _mean(found.left_over()) <= _PAYS * _mean(_as_before(runs, found).left_over()) else None


def _by_models_alone(
    runs: Sequence[MeasuredRun],
    before: np.ndarray[Any, np.dtype[np.float64]],
    held: HeldOut,
    by_model: HeldOut,
    points: tuple[CurvePoint, ...],
) -> Calibrated:
    """Return a calibration that leaves all parameters as they are and has the factors of the models that ran."""
    seen = seen_models(runs, -np.log(before))
    errors = np.concatenate([h.left_over() for h in (held, by_model)])
    calibration = replace(_described(runs, errors[np.isfinite(errors)], domain(runs)), seen=seen)
    own = [calibration.factor_of(run.look.model, run.look.precision) for run in runs]
    return Calibrated(
        calibration=calibration,
        moves=(),
        before=tuple((before - 1.0).tolist()),
        fitted=tuple((before * own - 1.0).tolist()),
        held=held,
        held_by_model=by_model,
        helped=True,
        correction_kept=False,
        curve=points,
        odd=tuple(odd_runs(runs, held)),
    )


def _described(
    runs: Sequence[MeasuredRun],
    errors: np.ndarray[Any, np.dtype[np.float64]],
    correction: Correction,
    like: Calibration | None = None,
) -> Calibration:
    """Return ``like`` with its interval, computed from ``errors``, and with the runtimes and nodes of ``runs``."""
    low, high = bounds(errors, otherwise=UNCALIBRATED)
    return replace(
        like or Calibration(),
        correction=correction,
        memory_share=_memory_share(runs),
        low=low,
        high=high,
        unknown=float(np.log(UNCALIBRATED[1])),
        runtimes=tuple(sorted({run.measured.request.runtime.name for run in runs})),
        nodes=(min(run.nodes for run in runs), max(run.nodes for run in runs)),
        runs=len(runs),
    )


class _Steps:
    """Counts finished steps for a progress bar."""

    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self._progress, self._total, self._at = progress, total, 0

    def done(self) -> None:
        self._at = min(self._at + 1, self._total)
        if self._progress is not None:
            self._progress(self._at, self._total)


def _configuration(run: MeasuredRun) -> tuple[object, ...]:
    """The configuration of a run: equal for repeats of the same run."""
    request = run.measured.request
    return (_model(run), str(request.strategy), request.global_batch, request.cluster.num_nodes, request.precision.name)


def _model(run: MeasuredRun) -> str:
    return run.measured.request.graph.name


def _as_before(runs: Sequence[MeasuredRun], held: HeldOut) -> HeldOut:
    """The same held-out runs, forecast without calibration."""
    usual = np.where(np.isfinite(held.usual), [run.simulated(Calibration()) for run in runs], np.nan)
    none = np.ones(len(runs))
    return replace(held, usual=usual, stalled=usual, factor=none, own=none, own_plain=none, chance=np.zeros(len(runs)))


def _pays(held: HeldOut, by_model: HeldOut) -> bool:
    """Whether a correction lowers the error on unseen runs and hardly raises the error on unseen models."""
    share = [_mean(h.left_over()) / max(_mean(h.left_over(corrected=False)), 1e-9) for h in (held, by_model)]
    seen = np.isfinite(by_model.factor).any()
    return bool(np.isfinite(held.factor).any()) and share[0] <= _PAYS and (not seen or share[1] <= _COSTS)


def _mean(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    known = np.abs(values[np.isfinite(values)])
    return float(known.mean()) if len(known) else float("inf")


def _memory_share(runs: Sequence[MeasuredRun]) -> float:
    known = [
        run.measured.memory_bytes / run.predicted_memory
        for run in runs
        if run.measured.memory_bytes and run.predicted_memory > 0.0
    ]
    return float(np.clip(np.median(known), 0.5, 2.0)) if known else 1.0


def _moves(whole: CalibrationFit) -> tuple[Move, ...]:
    """All parameters, those that the runs determined best first."""
    before, after = np.exp(whole.prior.mean), np.exp(whole.values)
    moves = [
        Move(
            name=p.name,
            meaning=p.meaning,
            before=float(before[i]),
            after=float(after[i]),
            sure=float(whole.spread[i]),
            unsure=float(whole.prior.spread[i]),
        )
        for i, p in enumerate(PARAMETERS)
    ]
    return tuple(sorted(moves, key=lambda move: -move.taught))


def _fit_to(made: CalibrationFit) -> dict[str, Any]:
    stall = made.calibration.stall
    return {
        "values": made.values.tolist(),
        "spread": made.spread.tolist(),
        "stalled": made.stalled.tolist(),
        "stall": asdict(stall) if stall else None,
    }


def _fit_from(data: dict[str, Any], prior: Prior) -> CalibrationFit:
    values = np.array(data["values"])
    stall = Stall(**data["stall"]) if data["stall"] else None
    return CalibrationFit(
        calibration=replace(calibration_at(values), stall=stall),
        values=values,
        spread=np.array(data["spread"]),
        prior=prior,
        stalled=np.array(data["stalled"], dtype=bool),
    )
