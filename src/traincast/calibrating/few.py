"""What a handful of runs says of a cluster: offsets, shrunk by how much clusters are known to differ.

One run alone says little: its error may be that of the cluster, of its model, of its strategy, or chance. With m the
measured and p the uncalibrated time of run i, errors are modelled as

    log(mᵢ/pᵢ) = cluster + model(i) + near(xᵢ) + noise

where all four are normal with mean zero. Runs of one cluster share the first; runs of one model in one precision also
share the second; the third is a Gaussian process over the features x of a step, which runs with similar strategies and
sizes share. Given the runs, the means of the first three are linear in the errors (the best linear unbiased prediction
of a mixed model: Henderson 1975, *Biometrics* 31, 423–447). Without runs they are zero; the more runs agree, the more
of their common error is taken over. A run unlike all others gets the offset of the cluster alone.

The spreads were fitted to the errors of forecasts on the clusters of guiding sources with at least twenty runs;
``python -m benchmarks.few`` shows what they gain there, and on sources that only judge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.calibrating.correction import SCALES, features
from traincast.calibrating.runs import MeasuredRun
from traincast.cluster import FACTORS, Calibration, Correction, Few, SeenModel

Floats = npt.NDArray[np.float64]

CLUSTER: Final = 0.10
"""Spread of the error that all runs of a cluster share: a standard deviation of logarithms, as those below."""
MODEL: Final = 0.15
"""Spread of the error that the runs of one model in one precision share beyond that."""
NEAR: Final = 0.15
"""Spread of the error that runs with nearly the same features share beyond that."""
NOISE: Final = 0.056
"""Spread of what is left, which repeats of one run show as well."""
MOST: Final = 0.5
"""The largest error of a run, as a logarithm, that counts: a larger one says more about the run than about others."""
ONLY_FEW: Final = 3
"""With up to this many runs, the offsets decide alone."""
ENOUGH: Final = 60
"""From this many runs on, the parameters decide alone.

On 32 clusters of guiding sources, the errors with 5, 10 and 15 runs are 0.75, 0.66 and 0.60 of those without a
calibration by offsets alone, 0.85, 0.70 and 0.66 by parameters alone, and 0.75, 0.65 and 0.59 by three parts of the
first and one of the second.
"""


def share_of_few(runs: int) -> float:
    """Return how much the offsets count beside the parameters: 1 up to three runs, 0 from sixty on, smooth between.

    The share falls with the logarithm of the number of runs, and is one half at thirteen.
    """
    if runs <= ONLY_FEW:
        return 1.0
    way = min(1.0, math.log(runs / ONLY_FEW) / math.log(ENOUGH / ONLY_FEW))
    return 1.0 - way * way * (3.0 - 2.0 * way)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """The offsets of a cluster, of its models and of runs near ``points``, as logarithms.

    ``cluster_doubt`` and ``doubts`` are the standard deviation that a run of another model, or of each of the models in
    a configuration unlike those measured, has around its forecast: shares of that without any run.
    """

    cluster: float
    models: dict[tuple[str, str], float]
    near: Correction
    cluster_doubt: float
    doubts: dict[tuple[str, str], float]
    counts: dict[tuple[str, str], int]

    def at(self, run: MeasuredRun) -> float:
        """Return the logarithm of the factor on the uncalibrated forecast of a run."""
        x = np.array(run.look.features) / SCALES
        near = np.exp(-0.5 * ((np.array(self.near.points) / SCALES - x) ** 2).sum(axis=1)) @ np.array(self.near.weights)
        return self.cluster + self.models.get(_of(run), 0.0) + float(near)


def offsets(runs: Sequence[MeasuredRun], errors: Floats | None = None) -> Offsets:
    """Return the offsets that ``runs`` show; ``errors`` are log(measured/forecast), by default of uncalibrated ones."""
    if errors is None:
        errors = np.log([run.seconds / run.simulated(Calibration()) for run in runs])
    names = [_of(run) for run in runs]
    models = sorted(set(names))
    of_model = np.array([[float(name == model) for name in names] for model in models]).reshape(len(models), len(runs))
    points = np.round(features(runs), 3).reshape(len(runs), len(SCALES))
    x = points / SCALES
    alike = np.exp(-0.5 * ((x[:, None, :] - x[None, :, :]) ** 2).sum(axis=2))
    together = CLUSTER**2 + MODEL**2 * of_model.T @ of_model + NEAR**2 * alike + NOISE**2 * np.eye(len(runs))
    weights = np.linalg.solve(together, np.clip(errors, -MOST, MOST))
    targets = CLUSTER**2 + MODEL**2 * np.vstack([np.zeros(len(runs)), of_model])
    whole = CLUSTER**2 + MODEL**2 + NEAR**2 + NOISE**2
    known = (targets * np.linalg.solve(together, targets.T).T).sum(axis=1)
    doubts = np.sqrt(np.maximum(0.0, 1.0 - known / whole)).tolist()
    return Offsets(
        cluster=float(CLUSTER**2 * weights.sum()),
        models=dict(zip(models, (MODEL**2 * of_model @ weights).tolist(), strict=True)),
        near=Correction(
            points=tuple(map(tuple, points.tolist())), weights=tuple((NEAR**2 * weights).tolist()), scales=SCALES
        ),
        cluster_doubt=doubts[0],
        doubts=dict(zip(models, doubts[1:], strict=True)),
        counts=dict(zip(models, of_model.sum(axis=1).astype(int).tolist(), strict=True)),
    )


def _of(run: MeasuredRun) -> tuple[str, str]:
    return run.look.model, run.look.precision


def with_few(many: Calibration, found: Offsets, share: float) -> Calibration:
    """Return a calibration between the offsets (``share`` 1) and ``many`` (``share`` 0), whose parameters were fitted.

    A forecast by it is the geometric mean of the two, with these weights, as far as the step is linear in its parts.
    """
    if share <= 0.0:
        return many
    rest = 1.0 - share
    plain = Calibration()
    numbers = {name: getattr(many, name) ** rest for name in (*FACTORS, "low", "high")}
    added = ("interference", "intra_latency_s", "inter_latency_s", "jitter", "step_s", "unknown")
    numbers |= {name: rest * getattr(many, name) + share * getattr(plain, name) for name in added}
    seen = tuple(
        SeenModel(
            model=model,
            precision=precision,
            runs=found.counts[model, precision],
            factor=math.exp(share * offset) * many.factor_of(model, precision) ** rest,
            doubt=found.doubts[model, precision],
        )
        for (model, precision), offset in found.models.items()
    )
    few = Few(share=share, offset=math.exp(share * found.cluster), doubt=found.cluster_doubt)
    return replace(many, **numbers, seen=seen, correction=_both(many.correction, found.near, share), few=few)


def _both(many: Correction | None, near: Correction, share: float) -> Correction:
    """Return the sum of two corrections, weighted: the runs of ``near`` are among the points of both."""
    weights = tuple(round(share * weight, 5) for weight in near.weights)
    if many is None or not any(many.weights):
        return replace(near, weights=weights)
    kept = tuple(round((1.0 - share) * weight, 5) for weight in many.weights)
    return Correction(points=near.points + many.points, weights=weights + kept, scales=near.scales)
