"""Fit the learned model of collectives to a table, test it on held-out rows, and compare it with rivals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.errors import MissingDependencyError, RequestError
from traincast.estimate.collectives.features import KINDS
from traincast.estimate.collectives.learned import FORMAT, CollectiveModel
from traincast.fitting.collectives.curves import FittedCurve, fit_curves
from traincast.fitting.collectives.table import CollectiveTable, read_collectives
from traincast.fitting.split import Split, protocol_split

__all__ = [
    "HeldOutScore",
    "compare_collectives",
    "fit_collectives",
    "held_out_split",
    "predict_rows",
    "read_collectives",
]

Floats: TypeAlias = npt.NDArray[np.float64]
Progress: TypeAlias = Callable[[int, int], None]
Weights: TypeAlias = dict[str, npt.NDArray[Any]]
Card: TypeAlias = dict[str, Any]

COVERAGE: Final = 0.9
MIN_CALIBRATION: Final = 20
"""Held-out cells that an interval of its own needs; with fewer, the interval of all cells is used."""
DEFAULT_INTERVAL: Final = (0.8, 1.25)
"""The interval if a table is too small to hold rows out."""


def held_out_split(table: CollectiveTable, *, seed: int = 0) -> Split:
    """swPredictor's partition by configuration; examples are medians over repeats of one version and dtype."""
    return protocol_split(table.key, table.condition, table.seconds, seed=seed)


def fit_collectives(table: CollectiveTable, *, seed: int = 0, progress: Progress | None = None) -> tuple[Weights, Card]:
    """Fit the curves of a table; weights and card make a :class:`CollectiveModel`.

    Intervals are split-conformal (Lei et al., 2018): the curves are first fitted without the configurations that
    ``seed`` holds out, which then tell how far off they are.
    """
    if not len(table):
        raise RequestError(f"there is no row to fit: all {len(table.problems)} rows have problems")
    split = held_out_split(table, seed=seed)
    intervals, scores = {"all": list(DEFAULT_INTERVAL)}, dict[str, float]()
    if len(split.test) and len(split.train):
        first = CollectiveModel(**_packed(table, fit_curves(table.take(split.train.rows)), intervals))
        held = split.test.first
        measured = split.test.median(table.seconds)
        predicted = predict_rows(first, table.take(held))
        intervals |= _intervals(table.take(held), measured, predicted)
        scores = _scores(measured, predicted)
    fitted = _packed(table, fit_curves(table, progress=progress), intervals)
    fitted["card"]["held_out"] = scores
    fitted["card"]["rows"] = len(table)
    fitted["card"]["seed"] = seed
    return fitted["weights"], fitted["card"]


def predict_rows(model: CollectiveModel, table: CollectiveTable, *, interval: bool = False) -> Floats:
    """Predict seconds for every row of a table on its cluster and software; with ``interval``, also low and high."""
    result = np.zeros((3, len(table)))
    for number, cluster in enumerate(table.clusters):
        rows = np.flatnonzero(table.cluster == number)
        if len(rows):
            conditions = [table.conditions[i] for i in table.condition[rows]]
            found = model.estimate(table.works(rows), cluster, conditions=conditions)
            result[:, rows] = found.seconds, found.low, found.high
    return result if interval else result[0]


def _packed(table: CollectiveTable, curves: Sequence[FittedCurve], intervals: Mapping[str, Any]) -> dict[str, Any]:
    weights = {
        "curve_route": np.array([c.route for c in curves], dtype=np.int32),
        "curve_kind": np.array([c.kind for c in curves], dtype=np.int32),
        "curve_condition": np.array([c.condition for c in curves], dtype=np.int32),
        "curve_ranks": np.array([c.ranks for c in curves], dtype=np.int32),
        "curve_islands": np.array([c.islands for c in curves], dtype=np.int32),
        "curve_sound": np.array([c.sound for c in curves], dtype=np.int32),
        "curve_start": np.concatenate([[0], np.cumsum([len(c.log2_bytes) for c in curves])]).astype(np.int32),
        "knot_log2_bytes": np.concatenate([c.log2_bytes for c in curves]).astype(np.float32),
        "knot_log_seconds": np.concatenate([c.log_seconds for c in curves]).astype(np.float32),
    }
    card = {
        "format": FORMAT,
        "kinds": list(KINDS),
        "routes": [asdict(route) for route in table.routes],
        "conditions": [asdict(condition) for condition in table.conditions],
        "intervals": {name: list(factors) for name, factors in intervals.items()},
        "systems": _systems(table),
    }
    return {"weights": weights, "card": card}


def _systems(table: CollectiveTable) -> dict[str, list[int]]:
    """The routes that each system was measured on, by number."""
    pairs = set(zip(table.system.tolist(), table.route.tolist(), strict=True))
    return {name: sorted(route for system, route in pairs if system == name) for name in sorted({s for s, _ in pairs})}


def _intervals(table: CollectiveTable, measured: Floats, predicted: Floats) -> dict[str, list[float]]:
    """Factors around the estimate that cover 90 % of held-out cells: by collective and route, or wider classes.

    In a wider class, all curves have the same weight, so that the curve with the most sizes does not dominate.
    """
    ratio = measured / predicted
    curve = np.unique(
        np.stack([table.route, table.kind, table.condition, table.ranks, table.islands]), axis=1, return_inverse=True
    )[1].reshape(-1)
    weight = 1.0 / np.bincount(curve)[curve]
    crosses = np.array([route.crosses for route in table.routes])[table.route]
    classes = {"all": np.ones(len(table), dtype=bool)}
    for kind, name in enumerate(KINDS):
        of_kind = table.kind == kind
        classes[f"{name} inside"], classes[f"{name} across"] = of_kind & ~crosses, of_kind & crosses
        for number, route in enumerate(table.routes):
            classes[f"{name} on {route.key}"] = of_kind & (table.route == number)
    return {
        name: _quantiles(ratio[where], weight[where])
        for name, where in classes.items()
        if where.sum() >= MIN_CALIBRATION
    }


def _quantiles(ratio: Floats, weight: Floats) -> list[float]:
    """Both ends of an interval, corrected for a finite sample; the estimate itself is always inside."""
    order = np.argsort(ratio)
    below = np.cumsum(weight[order]) / weight.sum()
    tail = max(0.0, (1.0 - COVERAGE) / 2.0 - 1.0 / len(ratio))
    low, high = ratio[order][np.searchsorted(below, [tail, min(1.0 - tail, below[-1])])]
    return [float(min(1.0, low)), float(max(1.0, high))]


def _scores(measured: Floats, predicted: Floats) -> dict[str, float]:
    error = 100.0 * np.abs(predicted / measured - 1.0)
    return {
        "cells": len(error),
        "mape": float(error.mean()),
        "median_ape": float(np.median(error)),
        "p90_ape": float(np.quantile(error, 0.9)),
    }


# Rivals


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScore:
    """The result of one model on held-out configurations: errors in per cent, times in seconds."""

    name: str
    cells: int
    mape: float
    median_ape: float
    p90_ape: float
    train_s: float
    predict_s: float


_Regressor: TypeAlias = Callable[[Floats, Floats, int], Callable[[Floats], Floats]]


def compare_collectives(
    table: CollectiveTable,
    *,
    seed: int = 0,
    rivals: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> list[HeldOutScore]:
    """Train each rival and our model on the training side of one split, and test all on the other side.

    Rivals are trained on log(measured / baseline) with the same columns; ``rivals`` names some of :data:`RIVALS`.
    """
    names = list(RIVALS) if rivals is None else list(rivals)
    unknown = [name for name in names if name not in RIVALS]
    if unknown:
        raise RequestError(f"unknown rivals {', '.join(unknown)}: known are {', '.join(RIVALS)}")
    split = held_out_split(table, seed=seed)
    if not len(split.train) or not len(split.test):
        raise RequestError(f"{len(table)} rows are too few to compare models on")
    train, test = table.take(split.train.first), table.take(split.test.first)
    measured = split.test.median(table.seconds)
    features = _features(table)
    target = np.log(split.train.median(table.seconds) / train.baseline)
    result = [_judged("analytical", measured, 0.0, lambda: test.baseline)]
    for done, name in enumerate(names):
        begin = time.perf_counter()
        predict = RIVALS[name](features[split.train.first], target, seed)
        trained = time.perf_counter() - begin
        held = features[split.test.first]
        result.append(_judged(name, measured, trained, lambda p=predict, x=held: np.exp(p(x)) * test.baseline))  # type: ignore[misc]
        if progress is not None:
            progress(done + 1, len(names) + 1)
    begin = time.perf_counter()
    curves = fit_curves(table.take(split.train.rows))
    model = CollectiveModel(**_packed(table, curves, {"all": DEFAULT_INTERVAL}))
    result.append(_judged("traincast", measured, time.perf_counter() - begin, lambda: predict_rows(model, test)))
    if progress is not None:
        progress(len(names) + 1, len(names) + 1)
    return result


def _judged(name: str, measured: Floats, train_s: float, predict: Callable[[], Floats]) -> HeldOutScore:
    begin = time.perf_counter()
    predicted = predict()
    spent = time.perf_counter() - begin
    scores = _scores(measured, predicted)
    return HeldOutScore(
        name=name,
        cells=len(measured),
        mape=scores["mape"],
        median_ape=scores["median_ape"],
        p90_ape=scores["p90_ape"],
        train_s=train_s,
        predict_s=spent,
    )


def _features(table: CollectiveTable) -> Floats:
    """Features for the rivals: sizes, times from link rates, and codes of route, software and collective."""
    routes, conditions = table.routes, table.conditions
    families = sorted({c.family for c in conditions})
    versions = sorted({c.version for c in conditions})
    dtypes = sorted({c.dtype for c in conditions})
    of_route = np.array([[r.intra_bandwidth, r.nic_bandwidth, r.crosses] for r in routes], dtype=np.float64)
    of_condition = np.array(
        [[families.index(c.family), versions.index(c.version), dtypes.index(c.dtype)] for c in conditions],
        dtype=np.float64,
    )
    size = np.log2(table.nbytes)
    numbers = [size, np.log2(table.ranks), np.log2(table.islands), size - np.log2(table.ranks), np.log(table.baseline)]
    return np.column_stack([
        *numbers, np.log1p(of_route[table.route]), table.route, table.kind, of_condition[table.condition],
    ])  # fmt: skip


def _expanded(features: Floats) -> Callable[[Floats], Floats]:
    """One column per value of a code, and standardised numbers with a few powers: for linear models and networks."""
    numbers, codes = features[:, :8], features[:, 8:]
    mean, std = numbers.mean(axis=0), numbers.std(axis=0) + 1e-9
    values = [np.unique(column) for column in codes.T]

    def expand(x: Floats) -> Floats:
        z = (x[:, :8] - mean) / std
        hot = [(x[:, 8 + i, None] == known[None, :]).astype(np.float64) for i, known in enumerate(values)]
        return np.column_stack([z, z[:, :5] ** 2, z[:, :5] ** 3, *hot])

    return expand


def _ridge(features: Floats, target: Floats, seed: int) -> Callable[[Floats], Floats]:
    expand = _expanded(features)
    x = np.column_stack([expand(features), np.ones(len(features))])
    weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ target)
    return lambda new: np.column_stack([expand(new), np.ones(len(new))]) @ weights


def _forest(features: Floats, target: Floats, seed: int) -> Callable[[Floats], Floats]:
    try:
        from sklearn.ensemble import RandomForestRegressor  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise RequestError(
            "a random forest needs scikit-learn, which is not installed: pip install scikit-learn"
        ) from error
    model = RandomForestRegressor(n_estimators=200, min_samples_leaf=1, max_features=0.6, random_state=seed, n_jobs=1)
    model.fit(features, target)
    return lambda new: np.asarray(model.predict(new))


def _boosted(features: Floats, target: Floats, seed: int) -> Callable[[Floats], Floats]:
    try:
        import lightgbm  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise RequestError("boosted trees need LightGBM, which is not installed: pip install lightgbm") from error
    settings = {
        "objective": "l1", "learning_rate": 0.04, "num_leaves": 63, "min_data_in_leaf": 4, "seed": seed,
        "num_threads": 1, "verbose": -1, "deterministic": True, "force_row_wise": True,
    }  # fmt: skip
    model = lightgbm.train(settings, lightgbm.Dataset(features, target), num_boost_round=1500)
    return lambda new: np.asarray(model.predict(new, num_threads=1))


def _network(features: Floats, target: Floats, seed: int) -> Callable[[Floats], Floats]:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("PyTorch", "training a network", extra="torch") from error
    expand = _expanded(features)
    torch.manual_seed(seed)
    x = torch.tensor(expand(features), dtype=torch.float32)
    y = torch.tensor(target, dtype=torch.float32)
    net = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], 192), torch.nn.SiLU(), torch.nn.Linear(192, 192), torch.nn.SiLU(),
        torch.nn.Linear(192, 1),
    )  # fmt: skip
    epochs, batch = 120, 256
    steps = epochs * -(-len(x) // batch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            (net(x[rows])[:, 0] - y[rows]).abs().mean().backward()
            optimizer.step()
            schedule.step()

    def predict(new: Floats) -> Floats:
        with torch.no_grad():
            return np.asarray(net(torch.tensor(expand(new), dtype=torch.float32))[:, 0].numpy(), dtype=np.float64)

    return predict


RIVALS: Final[dict[str, _Regressor]] = {
    "ridge": _ridge,
    "random forest": _forest,
    "lightgbm": _boosted,
    "mlp": _network,
}
"""Rivals by name: each takes features, target and seed, and returns a function of features."""
