"""Estimates for the scheduler: true durations, users' estimates, noisy ones, or forecasts by Traincast.

::

    load_estimates("noisy:0.3", log, cluster)
    load_estimates("predicted", log, cluster)            # jobs with model, batch and steps
    load_estimates("predicted:gavel", log, cluster)      # models of the log by stand-ins of the zoo
"""

from __future__ import annotations

import numpy as np

from traincast.errors import RequestError
from traincast.scheduling.estimates.beliefs import Beliefs, Given, load_beliefs
from traincast.scheduling.estimates.forecasts import Progress, forecast_seconds
from traincast.scheduling.estimates.stand_ins import StandIns, load_stand_ins
from traincast.scheduling.joblogs.read import JobLog
from traincast.scheduling.joblogs.table import Bools, Floats, Texts, jobs
from traincast.scheduling.sharing.step_times import StepTimes
from traincast.scheduling.space.cluster import SharedCluster


def load_estimates(
    text: str,
    log: JobLog,
    cluster: SharedCluster,
    *,
    seed: int = 0,
    steps: StepTimes | None = None,
    history: JobLog | None = None,
    progress: Progress | None = None,
) -> Beliefs:
    """Return the estimates called ``exact``, ``user``, ``noisy:SIGMA``, ``predicted`` or ``predicted:STAND-INS``.

    Forecasts come from ``steps``, unless the stand-ins have a precision and a runtime of their own. ``history`` has
    jobs that ended earlier; forecasts are scaled by their durations, see `predicted_seconds`.
    """
    kind, _, name = text.partition(":")
    if kind != "predicted":
        try:
            return load_beliefs(text, seed=seed)
        except RequestError as error:
            if kind in ("noisy", "exact", "user"):
                raise
            raise RequestError(
                f"estimates {text!r}: expected exact, user, noisy:SIGMA, predicted or predicted:STAND-INS"
            ) from error
    stand_ins = load_stand_ins(name) if name else None
    seconds = predicted_seconds(log, cluster, steps=steps, stand_ins=stand_ins, history=history, progress=progress)
    by_job = dict(zip(log.texts["job_id"].tolist(), seconds.tolist(), strict=True))
    return Given(by_job, _refusals(log, stand_ins, history))


def predicted_seconds(
    log: JobLog,
    cluster: SharedCluster,
    *,
    steps: StepTimes | None = None,
    stand_ins: StandIns | None = None,
    history: JobLog | None = None,
    progress: Progress | None = None,
) -> Floats:
    """Forecast how long every job of a log takes on its reference placement.

    With ``history``, the forecasts of a model are multiplied by the median of duration over forecast of its jobs in
    the history; a model without jobs there takes the median of all jobs. The history must have ended before the log
    begins: otherwise the scheduler would know the future.

    Jobs that the stand-ins refuse count as typical: as long as the median forecast of the others. Jobs of a refused
    model that the history has are forecast from their own past.
    """
    steps = _steps(cluster, steps, stand_ins)
    seconds = _forecast(log, stand_ins, steps, progress)
    refused = _refused(log, stand_ins, history)
    if refused.all() and len(refused):
        assert stand_ins is not None, "only stand-ins refuse jobs"
        raise RequestError(f"{log.path}: no job can be forecast: {stand_ins.refusals(log)[0]}")
    if history is None:
        seconds[refused] = np.median(seconds[~refused]) if refused.any() else 0.0
        return seconds
    timed = history.select(history.numbers["duration_s"] > 0)
    if not len(timed):
        raise RequestError(f"{history.path} has no job with a duration to learn from: give a history of finished jobs")
    ratios = timed.numbers["duration_s"] / _forecast(timed, stand_ins, steps)
    scales = _medians(timed.texts["model"], ratios)
    usual = float(np.median(ratios))
    scaled: Floats = seconds * np.array([scales.get(name, usual) for name in log.texts["model"].tolist()])
    if refused.any():
        scaled[refused] = np.median(scaled[~refused])
    return scaled


def _forecast(log: JobLog, stand_ins: StandIns | None, steps: StepTimes, progress: Progress | None = None) -> Floats:
    """Forecast the time of all jobs: that of their devices, and that of their hosts while the devices wait."""
    if stand_ins is None:
        return forecast_seconds(log, steps, progress=progress)
    seconds: Floats = forecast_seconds(stand_ins.described(log), steps, progress=progress)
    return seconds + stand_ins.host_seconds(log)


def _refused(log: JobLog, stand_ins: StandIns | None, history: JobLog | None) -> Bools:
    """Return which jobs have no forecast: their stand-in is refused, and the history has none of their kind."""
    if stand_ins is None:
        return np.zeros(len(log), dtype=bool)
    timed = set() if history is None else set(history.texts["model"][history.numbers["duration_s"] > 0].tolist())
    names = log.texts["model"].tolist()
    return np.array([bool(why) and name not in timed for why, name in zip(stand_ins.refusals(log), names, strict=True)])


def _refusals(log: JobLog, stand_ins: StandIns | None, history: JobLog | None) -> tuple[str, ...]:
    """Return one sentence for each model whose jobs have no forecast."""
    if stand_ins is None:
        return ()
    names = log.texts["model"][_refused(log, stand_ins, history)].tolist()
    return tuple(
        f"{jobs(names.count(name))} of {name} not forecast, and taken as typical: {stand_ins.models[name].refused}"
        for name in dict.fromkeys(names)
    )


def _steps(cluster: SharedCluster, steps: StepTimes | None, stand_ins: StandIns | None) -> StepTimes:
    """Forecasts with the settings of the request, or with those of the stand-ins."""
    own = (stand_ins.precision, stand_ins.runtime) if stand_ins else (None, None)
    if steps is not None and own in ((None, None), (steps.precision, steps.runtime)):
        return steps
    return StepTimes(
        cluster,
        hardware=steps.hardware if steps else None,
        precision=own[0],
        runtime=own[1],
        oversubscription=steps.oversubscription if steps else None,
        use_cache=steps.use_cache if steps else False,
        allow_code=steps.allow_code if steps else False,
    )


def _medians(names: Texts, values: Floats) -> dict[str, float]:
    return {name: float(np.median(values[names == name])) for name in dict.fromkeys(names.tolist())}
