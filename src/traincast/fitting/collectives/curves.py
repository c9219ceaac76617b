"""Fit curves of time over message size to measured collectives, all curves of a library at once.

The time of a collective over its message size has cliffs, where protocols and algorithms change. Curves of one library
on similar hardware have the same cliffs, so a size missing on one curve can be inferred from the others. Therefore
log(measured / baseline) of all curves of a library is one Gaussian process (Rasmussen and Williams, 2006) whose
covariance is a sum of :data:`PARTS`, each shared by some of the curves. Noise follows Student's t, by reweighting, so
that single runs with congestion do not distort a curve. Only the posterior mean at knots is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.estimate.collectives.features import KINDS, baseline_seconds, message_of
from traincast.fitting.collectives.table import CollectiveTable

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]


class Part(NamedTuple):
    """One part of the covariance: σ² k(Δ log₂ bytes / bytes_scale) exp(−Δ log₂ ranks / ranks_scale).

    It couples cells that agree in all of ``shared``; ``smooth`` parts have k = exp(−x²/2), others Matérn 3/2.
    """

    shared: tuple[str, ...]
    sigma: float
    bytes_scale: float
    ranks_scale: float
    smooth: bool = False


LIBRARY_PARTS: Final = (
    Part(("route",), 0.37, 9.5, 2.8, smooth=True),
    Part(("route", "version"), 0.05, 6.0, 3.0, smooth=True),
    Part((), 0.065, 3.0, 0.7),
    Part(("cohort",), 0.2, 1.2, 0.7),
    Part(("cohort",), 0.05, 0.3, 0.7),
    Part(("route",), 0.06, 1.6, 1.2),
    Part(("route", "version"), 0.03, 0.8, 0.45),
    Part(("version",), 0.025, 0.8, 0.4),
    Part(("dtype",), 0.02, 6.0, 2.0),
    Part(("route", "dtype"), 0.025, 2.0, 0.8),
    Part(("route", "version", "dtype"), 0.015, 20.0, 10.0),
)
KERNEL_PARTS: Final = (
    Part(("route",), 0.38, 11.0, 4.4, smooth=True),
    Part(("route", "version"), 0.25, 10.0, 3.0, smooth=True),
    Part((), 0.2, 5.0, 1.2),
    Part(("cohort",), 0.115, 1.5, 1.4),
    Part(("route",), 0.045, 2.0, 1.7),
    Part(("route", "version"), 0.078, 2.1, 2.3),
    Part(("version",), 0.057, 1.6, 1.2),
)
PARTS: Final = {True: LIBRARY_PARTS, False: KERNEL_PARTS}
"""For collective libraries (True), and for frameworks' own kernels, whose versions differ more. A cohort is an
architecture with one kind of links. The values come from marginal likelihood on NCCL 2.23–2.29 and the kernels of three
serving frameworks, then adjusted by hand on the error of held-out configurations."""
NOISE: Final = 0.03
"""Relative spread of a single measurement around its curve, outliers excluded."""
FREEDOM: Final = 4.0
"""Degrees of freedom of the noise's Student distribution."""
REWEIGHTINGS: Final = 4
DENSE_PER_OCTAVE: Final = 4
"""Curves with more sizes per factor of two than this have neighbouring sizes merged."""
MARGIN_OCTAVES: Final = 2.0
"""How far a curve is continued beyond its own sizes, if other curves were measured there."""
MAX_CELLS: Final = 4_000
"""Groups with more cells are fitted route by route: the time grows with the cube."""
UNTUNED_ACROSS: Final = 1.8
UNTUNED_INSIDE: Final = 8.0
"""Ratios of measured time to baseline at the largest sizes. A series above them did not run on the fabric that it names
(TCP instead of the NICs' own protocol, no peer access); it is used only for requests that name its software."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Medians over the repeats of each size on each curve, as columns; ``value`` is log(seconds / baseline).

    ``first`` is the number of one row of the table in the cell.
    """

    curve: Ints
    log2_bytes: Floats
    value: Floats
    variance: Floats
    first: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCurve:
    """The knots of one curve; ``route`` and ``condition`` index the tuples of the table."""

    route: int
    kind: int
    condition: int
    ranks: int
    islands: int
    sound: bool
    log2_bytes: Floats
    log_seconds: Floats


def fit_curves(table: CollectiveTable, *, progress: Callable[[int, int], None] | None = None) -> list[FittedCurve]:
    """Fit all curves of a table; the order of its rows does not matter."""
    curves, curve_of_row = _curves(table)
    cells = _cells(table, curve_of_row)
    sound = _sound(table, curves, cells)
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, c in enumerate(curves):
        software = table.conditions[c.condition]
        groups[c.kind, software.family, software.pattern, table.routes[c.route].crosses].append(i)
    fitted: list[FittedCurve] = []
    for done, (_, members) in enumerate(sorted(groups.items(), key=lambda item: repr(item[0]))):
        inside = np.isin(cells.curve, members)
        batches = [members]
        if inside.sum() > MAX_CELLS:
            by_route = defaultdict(list)
            for i in members:
                by_route[curves[i].route].append(i)
            batches = list(by_route.values())
        for batch in batches:
            fitted += _fit_group(table, curves, batch, cells, sound)
        if progress is not None:
            progress(done + 1, len(groups))
    return sorted(fitted, key=lambda c: (c.route, c.kind, c.condition, c.ranks, c.islands))


class _Curve(NamedTuple):
    route: int
    kind: int
    condition: int
    ranks: int
    islands: int
    row: int


def _curves(table: CollectiveTable) -> tuple[list[_Curve], Ints]:
    """The distinct curves of a table, and the number of each row's curve."""
    columns = np.stack([table.route, table.kind, table.condition, table.ranks, table.islands], axis=1)
    distinct, first, number = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    curves = [_Curve(*(int(x) for x in (*ids, row))) for ids, row in zip(distinct, first, strict=True)]
    return curves, number.reshape(-1)


def _cells(table: CollectiveTable, curve: Ints) -> Cells:
    size = np.log2(table.nbytes)
    bins = size.copy()
    for i in range(int(curve.max()) + 1 if len(curve) else 0):
        rows = curve == i
        span = max(1.0, np.ptp(size[rows]))
        if len(np.unique(size[rows])) > DENSE_PER_OCTAVE * span + 1:
            bins[rows] = np.round(size[rows] * DENSE_PER_OCTAVE) / DENSE_PER_OCTAVE
    value = np.log(table.seconds / table.baseline)
    order = np.lexsort((value, bins, curve))
    new = (np.diff(curve[order]) != 0) | (np.diff(bins[order]) != 0)
    starts = np.concatenate([[0], np.flatnonzero(new) + 1]) if len(order) else np.zeros(0, dtype=np.int64)
    counts = np.diff(np.append(starts, len(order)))
    middle = (value[order][starts + (counts - 1) // 2] + value[order][starts + counts // 2]) / 2
    own = np.add.reduceat(table.variance[order], starts) if len(order) else np.zeros(0)
    return Cells(
        curve=curve[order][starts],
        log2_bytes=np.add.reduceat(size[order], starts) / counts if len(order) else np.zeros(0),
        value=middle,
        variance=NOISE**2 / counts + own / counts**2 + 1e-6,
        first=order[starts],
    )


def _sound(table: CollectiveTable, curves: Sequence[_Curve], cells: Cells) -> list[bool]:
    """Whether each curve is as fast at its largest sizes as its links allow; curves inside a host always pass."""
    result = []
    for i, c in enumerate(curves):
        where = cells.curve == i
        largest = cells.log2_bytes[where] > cells.log2_bytes[where].max() - 1.5
        route = table.routes[c.route]
        limit = UNTUNED_ACROSS if route.crosses else UNTUNED_INSIDE
        unknown = not route.crosses and route.inside == "host"
        result.append(unknown or bool(np.median(cells.value[where][largest]) < np.log(limit)))
    return result


def _fit_group(
    table: CollectiveTable, curves: Sequence[_Curve], members: Sequence[int], cells: Cells, sound: Sequence[bool]
) -> list[FittedCurve]:
    """Fit one library and collective; return the posterior mean at the knots of each curve."""
    rows = np.flatnonzero(np.isin(cells.curve, members))
    names = _names(table, [curves[i] for i in members])
    position = {curve: n for n, curve in enumerate(members)}
    own = np.array([position[int(i)] for i in cells.curve[rows]])
    parts = PARTS[table.conditions[curves[members[0]].condition].is_library]
    size, value, variance = cells.log2_bytes[rows], cells.value[rows], cells.variance[rows]
    knots, knot_owner = _knots(own, size, len(members))
    at_cells = {name: column[own] for name, column in names.items()}
    at_knots = {name: column[knot_owner] for name, column in names.items()}
    center = float(np.median(value))
    alpha, left = _solve(_covariance(parts, at_cells, size, at_cells, size), value - center, variance)
    mean = _covariance(parts, at_knots, knots, at_cells, size) @ alpha + center
    fitted = []
    for n, i in enumerate(members):
        c, here = curves[i], own == n
        at, residual = knots[knot_owner == n], mean[knot_owner == n]
        residual = residual + _kept(at, size[here], left[here], variance[here])
        cluster = table.clusters[table.cluster[c.row]]
        works = [message_of(KINDS[c.kind], float(2.0**x), c.ranks, int(table.nodes[c.row])) for x in at]
        fitted.append(
            FittedCurve(
                route=c.route,
                kind=c.kind,
                condition=c.condition,
                ranks=c.ranks,
                islands=c.islands,
                sound=sound[i],
                log2_bytes=at,
                log_seconds=residual + np.log(baseline_seconds(works, cluster)),
            )
        )
    return fitted


def _names(table: CollectiveTable, curves: Sequence[_Curve]) -> dict[str, Numbers]:
    """The properties that parts of the covariance share, as numbers; ``ranks`` is log₂ of the ranks."""
    texts: dict[str, list[str]] = {"route": [], "cohort": [], "version": [], "dtype": []}
    for c in curves:
        route, condition = table.routes[c.route], table.conditions[c.condition]
        architecture = table.clusters[table.cluster[c.row]].device.architecture
        texts["route"].append(route.key)
        texts["cohort"].append(f"{architecture} {route.inside}")
        texts["version"].append(condition.version)
        texts["dtype"].append(condition.dtype)
    result: dict[str, Numbers] = {
        name: np.unique(values, return_inverse=True)[1].reshape(-1) for name, values in texts.items()
    }
    result["ranks"] = np.log2([c.ranks for c in curves])
    return result


def _knots(owner: Ints, size: Floats, count: int) -> tuple[Floats, Ints]:
    """The knots of each curve: its own sizes, and powers of two; beyond its sizes only where other curves are."""
    least, most = size.min(), size.max()
    knots, owners = [], []
    for n in range(count):
        own = size[owner == n]
        low, high = max(least, own.min() - MARGIN_OCTAVES), min(most, own.max() + MARGIN_OCTAVES)
        at = np.unique(np.round(np.concatenate([own, np.arange(np.ceil(low), high + 1e-9)]), 6))
        knots.append(at)
        owners.append(np.full(len(at), n))
    return np.concatenate(knots), np.concatenate(owners)


def _covariance(
    parts: Sequence[Part], a: dict[str, Ints], size_a: Floats, b: dict[str, Ints], size_b: Floats
) -> Floats:
    apart = np.abs(size_a[:, None] - size_b[None, :])
    ranks = np.abs(a["ranks"][:, None] - b["ranks"][None, :])
    same = {name: a[name][:, None] == b[name][None, :] for name in a if name != "ranks"}
    total: Floats = np.zeros_like(apart)
    for part in parts:
        x = apart / part.bytes_scale
        near = np.exp(-0.5 * x * x) if part.smooth else (1.0 + np.sqrt(3.0) * x) * np.exp(-np.sqrt(3.0) * x)
        near *= part.sigma**2 * np.exp(-ranks / part.ranks_scale)
        for name in part.shared:
            near *= same[name]
        total += near
    return total


def _solve(covariance: Floats, value: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """(K + V/w)⁻¹ value with Student weights w, found by iteration; and the residuals of the values."""
    weight = np.ones(len(value))
    for step in range(REWEIGHTINGS + 1):
        matrix = covariance.copy()
        matrix[np.diag_indices(len(value))] += variance / weight
        alpha = np.asarray(np.linalg.solve(matrix, value), dtype=np.float64)
        left = alpha * variance / weight
        if step < REWEIGHTINGS:
            weight = (FREEDOM + 1.0) / (FREEDOM + left**2 / variance)
    return alpha, left


def _kept(knots: Floats, size: Floats, left: Floats, variance: Floats) -> Floats:
    """The residuals at measured sizes, shrunk by the noise of the curve: cliffs that no other curve has."""
    spread = np.median(left**2) / 0.455
    share = np.maximum(0.0, spread - variance) / np.maximum(spread, variance)
    result = np.zeros(len(knots))
    result[np.searchsorted(knots, np.round(size, 6) - 1e-9)] = share * left
    return result
