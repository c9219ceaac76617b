"""Learn from measured systems what to expect of one that nobody measured (see
:mod:`traincast.estimate.collectives.prior`).

Everything here is judged by leaving out one system at a time: the scales of the covariances (:data:`SHARED` and
:data:`OWN`) minimise the error on systems left out, and the intervals are conformal over them: wide enough that 90 % of
the points of a system left out lie inside, with none, ten or thirty of its points known.

The few points of a system that the rest is estimated from lie evenly over its curves and sizes. Which they are depends
on what was measured, never on the times, and is the same for every order of the rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.estimate.collectives.adapted import AdaptedSystem
from traincast.estimate.collectives.features import KINDS
from traincast.estimate.collectives.prior import (
    CollectiveSetting,
    IntervalEnds,
    Points,
    SystemPart,
    SystemPrior,
    covariance,
    setting_of,
)
from traincast.fitting.collectives.table import CollectiveTable

TURNS: Final = (1.0, 0.0, 0.5)
"""Sizes of curves that get a single point, one after the other: the largest, the smallest, the middle."""


def choose_points(
    curves: Sequence[Hashable], log2_bytes: npt.NDArray[np.float64], count: int, *, names: Sequence[str] = ()
) -> list[int]:
    """The positions of ``count`` points, or of all if there are fewer.

    ``curves`` says which points lie on one curve (the same collective, links, software and number of ranks). Curves
    take turns, those with the most sizes first. On a curve, sizes are chosen evenly between the smallest and the
    largest. Curves with a single point take turns with its size (:data:`TURNS`), because small messages tell latencies
    and large ones bandwidths. Among points of equal size, ``names`` decides, and then the position.

    >>> choose_points(["a"] * 5, np.arange(5.0), 3)
    [0, 2, 4]
    >>> choose_points(["a", "a", "a", "b", "b"], np.array([1.0, 2.0, 3.0, 1.0, 2.0]), 3)
    [0, 2, 4]
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for i, curve in enumerate(curves):
        members[curve].append(i)
    ordered = [
        _by_size(sorted(rows, key=lambda i: (log2_bytes[i], names[i] if names else "", i)), log2_bytes)
        for _, rows in sorted(members.items(), key=lambda item: repr(item[0]))
    ]
    ordered.sort(key=lambda sizes: -len(sizes))
    shares = [0] * len(ordered)
    left = min(count, len(curves))
    while left:
        for i, sizes in enumerate(ordered):
            if left and shares[i] < sum(map(len, sizes)):
                shares[i] += 1
                left -= 1
    chosen, singles = [], 0
    for sizes, share in zip(ordered, shares, strict=True):
        chosen += _evenly(sizes, share, TURNS[singles % len(TURNS)])
        singles += share == 1
    return sorted(chosen)


def _by_size(rows: Sequence[int], log2_bytes: npt.NDArray[np.float64]) -> list[list[int]]:
    """The rows of each size of a curve, smallest size first."""
    sizes: dict[float, list[int]] = defaultdict(list)
    for i in rows:
        sizes[round(float(log2_bytes[i]), 6)].append(i)
    return list(sizes.values())


def _evenly(sizes: Sequence[Sequence[int]], count: int, place: float = 0.5) -> list[int]:
    """``count`` rows of a curve: one of each of evenly spaced sizes; of all sizes again if there are too few.

    A single row has the size at ``place``, from 0 for the smallest to 1 for the largest.
    """
    if count > len(sizes):
        rest = [list(rows[1:]) for rows in sizes if len(rows) > 1]
        return [rows[0] for rows in sizes] + _evenly(rest, count - len(sizes))
    if count == 1:
        return [sizes[math.ceil(place * (len(sizes) - 1))][0]]
    return [sizes[round(float(i))][0] for i in np.linspace(0, len(sizes) - 1, count)]


Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

SHARED: Final = (
    SystemPart(("crosses",), 0.22, 12.0, 4.0),
    SystemPart(("crosses", "kind"), 0.12, 4.0, 3.0),
    SystemPart(("offload", "alone"), 0.2, 5.0, 3.0, 3.0),
    SystemPart(("transport",), 0.2, 7.0, 1.5, 5.0),
    SystemPart(("crosses", "inside", "library"), 0.18, 3.0, 3.0, 5.0),
    SystemPart(("crosses", "inside", "era"), 0.3, 8.0, 3.0, 4.0),
    SystemPart(("crosses", "inside", "kind"), 0.1, 1.7, 1.3),
    SystemPart(("links", "inside", "era", "kind"), 0.1, 2.0, 2.0, 3.3),
    SystemPart(("crosses", "inside", "pair"), 0.1, 5.0, 3.0, 3.0),
    SystemPart(("route",), 0.05, 6.0, 3.0),
)
AMONG: Final = (
    SystemPart((), 0.05, 0.0),
    SystemPart(("crosses",), 0.23, 2.0, 2.1),
    SystemPart(("crosses", "kind"), 0.23, 3.5, 5.4),
    SystemPart(("crosses", "kind", "library"), 0.1, 0.6, 1.2, smooth=False),
)
"""The deviation of each measured system from what systems share, while the shared part is learned. It follows single
sizes more closely than :data:`OWN`, so that the cliffs of one system are not taken for what systems share."""
OWN: Final = (
    SystemPart((), 0.04, 0.0),
    SystemPart(("links",), 0.09, 12.0, 8.0, only="switch"),
    SystemPart(("links", "pattern"), 0.06, 4.0, 2.0, smooth=False, only="switch"),
    SystemPart(("links", "kind"), 0.05, 6.0, 4.0, only="switch"),
    SystemPart(("links",), 0.26, 12.0, 4.5, only="inside"),
    SystemPart(("links", "pattern"), 0.1, 3.0, 1.5, smooth=False, only="inside"),
    SystemPart(("links", "kind"), 0.1, 7.0, 3.0, only="inside"),
    SystemPart(("links",), 0.25, 9.0, 4.0, only="across"),
    SystemPart(("links", "pattern"), 0.15, 3.0, 1.5, smooth=False, only="across"),
    SystemPart(("links", "kind"), 0.1, 5.0, 3.0, only="across"),
    SystemPart(("links", "kind", "library"), 0.06, 1.2, 0.7, smooth=False),
)
"""The deviation of a system from what systems share. A run-time pattern deviates from the isolated collective."""
NOISE: Final = 0.05
"""The relative spread of an own point around the system's curve, while the curve is fitted."""
SCATTER: Final = 0.1
"""The relative spread of single measurements around it, which intervals must hold."""
PRIOR_NOISE: Final = 0.08
FAR: Final = 0.3
DOUBT: Final = 10.0
"""A cell whose value is more than FAR from what other systems suggest gets DOUBT times the squared excess as additional
variance. So a system that is out of the ordinary, TCP instead of the fabric for instance, says little about others."""
MOST_CELLS: Final = 80
"""A system with more cells than this keeps every second, third or fourth octave of its sizes."""
COVERAGE: Final = 0.9
NORMAL: Final = 1.645
"""Standard deviations on each side that hold 90 % of a normal distribution."""
COUNTS: Final = (0, 5, 10, 20, 30)
"""Numbers of own points for which intervals are calibrated."""
ANCHORS: Final = 256
"""Cells that the doubt about a new system is computed from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemCells:
    """Medians over the variants of one size in one setting of a system; ``value`` is log(seconds / baseline).

    ``system`` indexes ``systems``; ``kept`` marks the cells that the prior is fitted to, ``variance`` is their noise.
    ``rows`` are the values of each cell's rows. ``matrix`` is the covariance of the cells that may be kept, without
    noise, and ``shared`` its shared part; ``place`` is the position of each cell in them.
    """

    systems: tuple[str, ...]
    system: Ints
    points: Points
    value: Floats
    kept: Mask
    variance: Floats
    rows: tuple[Floats, ...]
    matrix: Floats
    shared: Floats
    place: Ints

    def of(self, where: npt.NDArray[Any]) -> Points:
        """The positions of some cells."""
        return Points(
            settings=self.points.settings,
            setting=self.points.setting[where],
            log2_bytes=self.points.log2_bytes[where],
        )


def system_cells(tables: Sequence[CollectiveTable]) -> SystemCells:
    """The cells of all systems in some tables; rows of frameworks' own kernels and of busy machines are left out."""
    rows: dict[tuple[str, CollectiveSetting, int], list[tuple[float, float]]] = defaultdict(list)
    for table in tables:
        known: dict[tuple[int, ...], CollectiveSetting] = {}
        value, size = np.log(table.seconds / table.baseline), np.log2(table.nbytes)
        columns = (table.kind, table.route, table.ranks, table.condition)
        for i, key in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            condition = table.conditions[key[3]]
            if not condition.is_library or condition.pattern:
                continue
            if key not in known:
                known[key] = setting_of(KINDS[key[0]], table.routes[key[1]], key[2], condition)
            rows[str(table.system[i]), known[key], round(size[i])].append((size[i], value[i]))
    if not rows:
        raise RequestError("there is no row of a collective library to learn from")
    order = sorted(rows, key=lambda k: (k[0], k[1].texts, k[1].log2_ranks, k[1].log2_rate, k[2]))
    systems = tuple(dict.fromkeys(key[0] for key in order))
    settings = tuple(dict.fromkeys(key[1] for key in order))
    number = {setting: i for i, setting in enumerate(settings)}
    middle = np.array([np.median(rows[key], axis=0) for key in order])
    system = np.array([systems.index(key[0]) for key in order])
    points = Points(settings=settings, setting=np.array([number[key[1]] for key in order]), log2_bytes=middle[:, 0])
    octave = np.array([key[2] for key in order])
    step = np.minimum(4, -(-np.bincount(system) // MOST_CELLS))[system]
    kept = octave % step == 0
    thinned = Points(settings=settings, setting=points.setting[kept], log2_bytes=points.log2_bytes[kept])
    same = system[kept][:, None] == system[kept][None, :]
    shared = covariance(SHARED, thinned, thinned)
    return doubted(
        SystemCells(
            systems=systems,
            system=system,
            points=points,
            value=middle[:, 1],
            kept=kept,
            variance=np.full(len(order), PRIOR_NOISE**2),
            rows=tuple(np.array([value for _, value in rows[key]]) for key in order),
            matrix=shared + same * covariance(AMONG, thinned, thinned),
            shared=shared,
            place=np.cumsum(kept) - 1,
        )
    )


def doubted(cells: SystemCells) -> SystemCells:
    """The cells with more variance where a system is far from what all other systems suggest.

    One inverse leaves out each system in turn: the values of a block of a Gaussian process, less their mean given all
    other values, are the inverse of the block's precision times its part of the weights.
    """
    where = np.flatnonzero(cells.kept)
    matrix = _matrix(cells, where)
    matrix[np.diag_indices(len(where))] += PRIOR_NOISE**2
    precision = np.linalg.inv(matrix)
    weights = precision @ cells.value[where]
    variance = np.full(len(cells.value), PRIOR_NOISE**2)
    for number in set(cells.system[where].tolist()):
        block = np.flatnonzero(cells.system[where] == number)
        missed = np.linalg.solve(precision[np.ix_(block, block)], weights[block])
        variance[where[block]] += DOUBT * np.maximum(0.0, np.abs(missed) - FAR) ** 2
    return replace(cells, variance=variance)


def fit_prior(tables: Sequence[CollectiveTable]) -> SystemPrior:
    """Learn the prior from the systems of some tables; intervals are calibrated on systems left out."""
    cells = system_cells(tables)
    return prior_of(cells, list(left_out_systems(cells)))


def prior_of(cells: SystemCells, left_out: Sequence[LeftOut]) -> SystemPrior:
    """The prior of some cells, with intervals that hold 90 % of what was left out."""
    return replace(_fitted(cells), spread=spread_of(left_out))


def without_system(cells: SystemCells, system: int) -> SystemPrior:
    """The prior as it would be if one system had not been measured; its intervals are a normal distribution's."""
    return _fitted(doubted(replace(cells, kept=cells.kept & (cells.system != system))))


def _matrix(cells: SystemCells, where: npt.NDArray[Any]) -> Floats:
    """The covariance of some cells, without noise."""
    places = cells.place[where]
    return np.asarray(cells.matrix[np.ix_(places, places)], dtype=np.float64)


def _fitted(cells: SystemCells) -> SystemPrior:
    where = np.flatnonzero(cells.kept)
    points = cells.of(where)
    matrix = _matrix(cells, where)
    matrix[np.diag_indices(len(points))] += cells.variance[where]
    weights = np.linalg.solve(matrix, cells.value[where]).astype(np.float64)
    anchors = _anchors(cells.shared[np.ix_(cells.place[where], cells.place[where])])
    return SystemPrior(
        shared=SHARED,
        among=AMONG,
        own=OWN,
        noise=NOISE,
        scatter=SCATTER,
        points=points,
        weights=weights,
        anchors=anchors,
        anchor_system=cells.system[where[anchors]],
        anchor_variance=cells.variance[where[anchors]],
        spread=IntervalEnds(NORMAL, NORMAL),
        systems=tuple(cells.systems[i] for i in sorted(set(cells.system[where].tolist()))),
    )


def _anchors(shared: Floats) -> Ints:
    """The cells that settle most of the shared parts: the first pivots of a Cholesky factorisation."""
    left = np.diag(shared).copy()
    rows = np.zeros((min(ANCHORS, len(left)), len(left)))
    for i in range(len(rows)):
        pivot = int(np.argmax(left))
        if left[pivot] < PRIOR_NOISE**2:
            return np.flatnonzero(left < 0.0)
        rows[i] = (shared[pivot] - rows[:i, pivot] @ rows[:i]) / math.sqrt(left[pivot])
        left = np.where(left < 0.0, left, np.maximum(left - rows[i] ** 2, 0.0))
        left[pivot] = -1.0
    return np.flatnonzero(left < 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A system that was left out and is judged, with some of its rows known.

    ``missed`` is log(estimate / measured) of each cell without a known row. The columns that begin with ``row`` have
    one entry for each row that is not known: log(estimate / measured), and the standard deviation that the model
    states.
    """

    system: str
    own_points: int
    missed: Floats
    row_missed: Floats
    row_deviation: Floats


def left_out_systems(cells: SystemCells, counts: Sequence[int] = COUNTS) -> Iterator[LeftOut]:
    """Leave out one system at a time, and estimate it with some numbers of its own rows."""
    for number in range(len(cells.systems)):
        yield from judged_system(without_system(cells, number), cells, number, counts)


def judged_system(
    prior: SystemPrior, cells: SystemCells, number: int, counts: Sequence[int] = COUNTS
) -> Iterator[LeftOut]:
    """Estimate the cells of one system with some numbers of its own rows: one of each chosen cell."""
    mine = np.flatnonzero(cells.system == number)
    settings = [cells.points.settings[i] for i in cells.points.setting[mine].tolist()]
    curves = [(*setting.texts, str(setting.log2_ranks)) for setting in settings]
    for count in counts:
        known = np.isin(np.arange(len(mine)), choose_points(curves, cells.points.log2_bytes[mine], count))
        if known.all():
            continue
        first = np.array([cells.rows[i][0] for i in mine[known].tolist()], dtype=np.float64)
        system = AdaptedSystem(prior=prior, points=cells.of(mine[known]), residual=first)
        mean, deviation = system.posterior(cells.of(mine))
        rest = [cells.rows[i][1 if own else 0 :] for i, own in zip(mine.tolist(), known.tolist(), strict=True)]
        lengths = [len(values) for values in rest]
        yield LeftOut(
            system=cells.systems[number],
            own_points=count,
            missed=(mean - cells.value[mine])[~known],
            row_missed=np.repeat(mean, lengths) - np.concatenate(rest),
            row_deviation=np.repeat(deviation, lengths),
        )


def spread_of(judged: Sequence[LeftOut]) -> IntervalEnds:
    """The ends of the shortest interval that holds 90 % of the rows of systems left out, without own points and with.

    All systems have the same weight, however many rows they have. The wider end of both cases is taken, so that own
    points never widen an interval.
    """
    ends = []
    for adapted in (False, True):
        here = [entry for entry in judged if (entry.own_points > 0) == adapted and len(entry.row_missed)]
        if here:
            off = np.concatenate([-entry.row_missed / entry.row_deviation for entry in here])
            weight = np.concatenate([np.full(len(entry.row_missed), 1.0 / len(entry.row_missed)) for entry in here])
            ends.append(_shortest(off, weight))
    return IntervalEnds(*np.max(ends, axis=0).tolist())


def _shortest(off: Floats, weight: Floats) -> IntervalEnds:
    """The shortest interval around 0 with 90 % of the weight, as distances below and above 0."""
    order = np.argsort(off)
    value, share = off[order], np.cumsum(weight[order]) / weight.sum()
    before = np.concatenate([[0.0], share[:-1]])
    ends = np.searchsorted(share, np.minimum(before + COVERAGE, 1.0) - 1e-12)
    possible = np.flatnonzero(before + COVERAGE <= 1.0 + 1e-12)
    low = np.minimum(value[possible], 0.0)
    high = np.maximum(value[np.minimum(ends[possible], len(value) - 1)], 0.0)
    best = int(np.argmin(high - low))
    return IntervalEnds(float(-low[best]), float(high[best]))
