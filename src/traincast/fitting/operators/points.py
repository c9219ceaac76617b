"""Fit a Gaussian process to the bare kernels of a family, measured on many devices, a few hundred on each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.estimate.learned import BARE
from traincast.estimate.operators.cells import ANY, Cell, filling, like_bare, places_of
from traincast.estimate.operators.points import Covariance, Kin, MeasuredPoints, Places, covariance
from traincast.fitting.operators.examples import CellKey, Rows, joined_rows, rows_of, vocabulary_of
from traincast.fitting.operators.scores import Score, conformal
from traincast.fitting.rows.dataset import OperatorTable
from traincast.fitting.split import Merged, Split

Floats = npt.NDArray[np.float64]

LAWS: Final = {
    "conv": Covariance(architecture=0.97, generation=0.8, strangers=0.2, names=0.25, dtypes=0.15, bias=0.0),
    "recurrent": Covariance(),
}
"""The covariance of each family that is fitted in this way, chosen on rows that were left out."""
SETTINGS: Final = ("cudnn/miopen/mkl",)
"""Settings that time kernels of a library without a framework around them."""
MOST: Final = 6000
"""Rows beyond this many are thinned out evenly: the fit solves a system of that size."""


class FittedPoints(NamedTuple):
    """A cell of points, the number of its rows, its errors on test rows, and the seconds that the fit took."""

    cell: Cell
    rows: int
    scores: dict[str, Score]
    seconds: float


def bare_name(family: str) -> str:
    """The name of the cell of bare kernels of ``family``."""
    return "/".join((family, BARE, ANY, ANY))


def bare_rows(
    family: str, table: OperatorTable, side: Merged, cells: Mapping[CellKey, npt.NDArray[np.int64]]
) -> Rows | None:
    """The examples of one side that are bare kernels of ``family``, or ``None`` if there are none."""
    inside = np.zeros(len(table), dtype=bool)
    for key, rows in cells.items():
        if key[0] == family and key[1] in SETTINGS:
            inside[rows] = True
    examples = np.flatnonzero(inside[side.first])
    if len(examples) > MOST:
        examples = examples[np.linspace(0, len(examples) - 1, MOST).astype(np.int64)]
    if not len(examples):
        return None
    found = rows_of(family, table, side.take(examples), by_setting=True)
    return found.take(np.flatnonzero(like_bare(found.shapes)).astype(np.int64))


def fit_bare(
    family: str, table: OperatorTable, split: Split, cells: Mapping[CellKey, npt.NDArray[np.int64]]
) -> FittedPoints | None:
    """Fit the cell of bare kernels of ``family``; ``None`` if the table has none.

    Errors are those of a fit without the test rows; the cell itself is fitted to all rows. Its interval comes from
    leaving out one operator at a time.
    """
    begun = time.perf_counter()
    train, test = (bare_rows(family, table, side, cells) for side in (split.train, split.test))
    if train is None:
        return None
    scores: dict[str, Score] = {}
    whole = train
    if test is not None:
        judged, _ = points_of(train, table, LAWS[family], leave_out=False)
        said = np.zeros(len(test))
        for i, (dtype, device) in enumerate(zip(test.dtype, test.device, strict=True)):
            one = test.take(np.array([i]))
            said[i] = judged(
                places_of(one.shapes), one.names, dtype=dtype, setting=one.setting[0], device=table.devices[device]
            )[0]
        said += filling(test.shapes, _sms(test, table))
        scores = _scores(test, said)
        whole = joined_rows([train, test])
    points, left = points_of(whole, table, LAWS[family])
    names = np.array(whole.names, dtype=object)
    interval = conformal(left, whole.names)
    sizes = {name: whole.shapes.sizes[names == name] for name in sorted(set(whole.names))}
    cell = Cell(
        family=family, setting=BARE, dtype=ANY, device=ANY, vocabulary=points.vocabulary, interval=interval, share=0.0,
        domain={name: (own.min(axis=0).tolist(), own.max(axis=0).tolist()) for name, own in sizes.items()},
        points=points,
    )  # fmt: skip
    if not scores:
        scores = {"all": Score.of(whole.target, whole.target - left, np.tile(interval[ANY], (len(whole), 1)))}
    return FittedPoints(cell=cell, rows=len(whole), scores=scores, seconds=time.perf_counter() - begun)


def points_of(
    rows: Rows, table: OperatorTable, law: Covariance, *, leave_out: bool = True
) -> tuple[MeasuredPoints, Floats]:
    """Fit the process to ``rows``; returns it and log(measured / estimated) of each row, estimated from the others.

    Without ``leave_out``, which takes most of the time, the latter are zeros.
    """
    vocabulary = vocabulary_of(rows)
    kin = tuple(Kin.of(table.devices[name]) for name in sorted(set(rows.device)))
    number = {k.name: i for i, k in enumerate(kin)}
    texts = {"name": rows.names, "dtype": rows.dtype, "setting": rows.setting}
    codes = {
        column: np.array([vocabulary[column].index(text) for text in found], dtype=np.int64)
        for column, found in texts.items()
    }
    places = Places(
        sizes=places_of(rows.shapes),
        names=codes["name"],
        dtypes=codes["dtype"],
        settings=codes["setting"],
        devices=np.array([number[name] for name in rows.device], dtype=np.int64),
    )
    kinship = np.array([[law.kinship(a, b) for b in kin] for a in kin])
    target = rows.target - filling(rows.shapes, _sms(rows, table))
    mean = float(np.median(target))
    own = covariance(law, places, places, kinship)
    own[np.diag_indices(len(own))] += law.noise**2
    inverse = np.linalg.inv(own) if leave_out else None
    solved = np.linalg.solve(own, target - mean) if inverse is None else inverse @ (target - mean)
    weights: Floats = np.asarray(solved, dtype=np.float64)
    points = MeasuredPoints(law=law, kin=kin, vocabulary=vocabulary, places=places, weights=weights, mean=mean)
    return points, weights / np.diag(inverse) if inverse is not None else np.zeros(len(weights))


def _sms(rows: Rows, table: OperatorTable) -> Floats:
    return np.array([float(table.devices[name].num_sms) for name in rows.device])


def _scores(rows: Rows, said: Floats) -> dict[str, Score]:
    interval = conformal(rows.target - said, rows.names)
    names = np.array(rows.names, dtype=object)
    bounds = np.array([interval.get(name, interval[ANY]) for name in names])
    found = {"all": Score.of(rows.target, said, bounds)}
    for name in sorted(set(rows.names)):
        own = names == name
        found[name] = Score.of(rows.target[own], said[own], bounds[own])
    return found
