"""Learned times of collectives and transfers: measured curves over the message size, and laws beyond them.

For one route, collective, software and number of ranks, time over bytes is nearly deterministic and has cliffs that no
smooth formula has: protocols and algorithms change. So the model is a family of curves, log seconds at knots over
log₂ bytes, fitted by :mod:`traincast.fitting.collectives`. What was not measured follows physics:

- between two measured numbers of ranks, log time is linear in log ranks;
- beyond the largest one, across nodes: a *ring* of n ranks takes n − 1 steps of S/n bytes, so t(S, n) / (n − 1) is a
  function of S/n alone; a *tree* gains the same for every doubling of the ranks. All-reduce is a tree below a number of
  bytes per rank and a ring above it (NCCL's choice: the ring's n − 1 latencies against the tree's traffic), all others
  are rings or pairwise exchanges;
- beyond the measured sizes, and wherever else nothing was measured, time goes as the analytical baseline does. So it
  does on a device that was not measured itself, but a sibling of its architecture with the same kind of links was.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.errors import FileFormatError
from traincast.estimate.collective_features import (
    KINDS,
    Condition,
    Message,
    Messages,
    Route,
    baseline_seconds,
    messages,
)
from traincast.work import Transfer

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

FORMAT: Final = 1
WEIGHTS: Final = (
    "curve_route", "curve_kind", "curve_condition", "curve_ranks", "curve_islands", "curve_sound", "curve_start",
    "knot_log2_bytes", "knot_log_seconds",
)  # fmt: skip
RING_BYTES_PER_RANK: Final = float(2**20)
"""Bytes per rank from which an all-reduce is a ring, where the measured curves do not tell."""
MOST_BYTES: Final = 1e30
"""Messages larger than this count as this."""
FARTHEST_SIBLING: Final = 1.5
"""Octaves of bandwidth up to which a sibling's curves are scaled; farther routes are not learned."""
RING_KINDS: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
UNKNOWN_INTERVAL: Final = (0.5, 2.0)
"""Interval factors of works that were not learned: the caller has better ones."""
_PER_OCTAVE_OF_BYTES: Final = 0.03
_PER_DOUBLING_OF_RANKS: Final = 0.15
_OTHER_VERSION: Final = 0.05
_OTHER_SOFTWARE: Final = 0.15
_SIBLING: Final = 0.1
_PER_OCTAVE_OF_BANDWIDTH: Final = 0.2
"""What is added to both ends of an interval, as a logarithm, for each step away from what was measured."""


class Learned(NamedTuple):
    """Seconds, 90 % interval, whether each was learned, and sentences for the user."""

    seconds: Floats
    low: Floats
    high: Floats
    learned: Mask
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Log seconds at knots over log₂ bytes, for a number of ranks on a number of islands."""

    ranks: int
    islands: int
    log2_bytes: Floats
    log_seconds: Floats

    def at(self, log2_bytes: Floats) -> Floats:
        """Log seconds between the knots, and those of the first or last knot outside."""
        return np.interp(log2_bytes, self.log2_bytes, self.log_seconds)


@dataclass(frozen=True, kw_only=True)
class CollectiveModel:
    """Fitted curves of collectives: ``weights`` are arrays (see :data:`WEIGHTS`), ``card`` says what they mean.

    ``card`` has ``routes`` and ``conditions`` (what the numbers of the curves stand for) and ``intervals`` (factors
    around the estimate that hold 90 % of held-out measurements). ``path`` is the bundle's; of one that a user has
    ``given``, a series far slower than its links allow answers too where there is no other: it was measured there.
    """

    weights: Mapping[str, npt.NDArray[Any]]
    card: Mapping[str, Any]
    path: Path | None = None
    given: bool = False

    def __post_init__(self) -> None:
        if self.card.get("format") != FORMAT:
            raise FileFormatError(
                f"fitted collectives of format {self.card.get('format')!r}: this version reads {FORMAT}; fit them again"
            )
        missing = [name for name in WEIGHTS if name not in self.weights]
        if missing:
            raise FileFormatError(f"fitted collectives lack {', '.join(missing)}: fit them again")
        starts, knots = self.weights["curve_start"], len(self.weights["knot_log2_bytes"])
        if len(starts) != len(self.weights["curve_route"]) + 1 or starts[-1] != knots or (np.diff(starts) < 1).any():
            raise FileFormatError(f"fitted collectives are damaged: {len(starts)} starts for {knots} knots")
        if not all(np.isfinite(self.weights[name]).all() for name in ("knot_log2_bytes", "knot_log_seconds")):
            raise FileFormatError("fitted collectives hold knots that are no numbers: fit them again")
        counts = {"route": len(self.card["routes"]), "kind": len(KINDS), "condition": len(self.card["conditions"])}
        for name, count in counts.items():
            numbers = self.weights[f"curve_{name}"]
            if len(numbers) != len(starts) - 1 or (numbers < 0).any() or (numbers >= count).any():
                raise FileFormatError(f"fitted collectives are damaged: curve_{name} goes beyond {count} of them")

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The software that was measured, by number."""
        return tuple(Condition(**entry) for entry in self.card["conditions"])

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """The routes that were measured, by number."""
        return tuple(Route(**entry) for entry in self.card["routes"])

    @cached_property
    def _families(self) -> dict[tuple[Route, str], dict[Condition, _Family]]:
        """Curves by route and kind, then by condition; within one, by number of ranks."""
        w = self.weights
        found: dict[tuple[Route, str], dict[Condition, list[Curve]]] = defaultdict(lambda: defaultdict(list))
        sound: dict[tuple[Route, str, Condition], bool] = {}
        for i, route in enumerate(w["curve_route"].tolist()):
            key = (self.routes[route], KINDS[int(w["curve_kind"][i])])
            condition = self.conditions[int(w["curve_condition"][i])]
            knots = slice(int(w["curve_start"][i]), int(w["curve_start"][i + 1]))
            curve = Curve(
                ranks=int(w["curve_ranks"][i]),
                islands=int(w["curve_islands"][i]),
                log2_bytes=w["knot_log2_bytes"][knots].astype(np.float64),
                log_seconds=w["knot_log_seconds"][knots].astype(np.float64),
            )
            found[key][condition].append(curve)
            sound[*key, condition] = sound.get((*key, condition), True) and bool(w["curve_sound"][i])
        return {
            key: {
                condition: _Family(
                    kind=key[1],
                    curves=tuple(sorted(curves, key=lambda c: (c.ranks, c.islands))),
                    sound=sound[*key, condition],
                )
                for condition, curves in sorted(by_condition.items(), key=lambda item: item[0].preference)
            }
            for key, by_condition in found.items()
        }

    def estimate(
        self, works: Sequence[Message], cluster: Cluster, *, conditions: Sequence[Condition] | None = None
    ) -> Learned:
        """Seconds of ``works`` on ``cluster``; never NaN, never negative.

        ``conditions`` names the software of each work, to compare with measurements that state theirs; without it,
        the software that training most likely runs is taken. Works of routes that were not measured are not learned:
        their seconds are the baseline's.
        """
        works = [work if 0.0 <= work.nbytes <= MOST_BYTES else _with_possible_bytes(work) for work in works]
        m = messages(works, cluster)
        seconds = baseline_seconds(works, cluster)
        learned = ~((m.nbytes > 0) & (m.ranks > 1))
        seconds[learned] = 0.0
        low, high = seconds * UNKNOWN_INTERVAL[0], seconds * UNKNOWN_INTERVAL[1]
        warnings: dict[str, None] = {}
        for where, (family, route, away) in self._groups(m, conditions):
            group, here = [works[i] for i in where], m.routes[int(m.route[where[0]])]
            found = family.estimate(
                group,
                cluster,
                measured_on=_with_links(cluster, here, route),
                ranks=int(m.ranks[where[0]]),
                islands=int(m.islands[where[0]]),
            )
            factors = self._interval(family.kind, route)
            wider = np.exp(away + found.away)
            seconds[where] = found.seconds
            low[where] = found.seconds * factors[0] / wider
            high[where] = found.seconds * factors[1] * wider
            learned[where] = True
            if found.warning:
                warnings[f"{family.kind} on {cluster.name}: {found.warning}"] = None
            if conditions is None and not family.sound:
                warnings[f"{family.kind} on {cluster.name}: as measured, far slower than its links allow"] = None
            if route.key != here.key:
                warnings[f"{family.kind} on {cluster.name}: as measured on {route.device}, scaled"] = None
        return Learned(seconds, low, high, learned, tuple(warnings))

    def knows(self, works: Sequence[Message], cluster: Cluster) -> Mask:
        """Which of ``works`` would be learned, without estimating them."""
        m = messages(works, cluster)
        known = ~((m.nbytes > 0) & (m.ranks > 1))
        for where, _ in self._groups(m, None):
            known[where] = True
        return known

    def reaches(self, route: Route) -> bool:
        """Whether curves of any collective answer for this route."""
        return any(self._nearest_route(kind, route) is not None for kind in KINDS)

    def _groups(
        self, m: Messages, conditions: Sequence[Condition] | None
    ) -> list[tuple[npt.NDArray[np.intp], _Chosen]]:
        """Works that one family of curves answers alike: their positions, and what was chosen for them."""
        rows: dict[tuple[int, int, int, int, Condition | None], list[int]] = defaultdict(list)
        columns = (m.kind.tolist(), m.route.tolist(), m.ranks.tolist(), m.islands.tolist(), m.nbytes.tolist())
        for i, (kind, route, ranks, islands, nbytes) in enumerate(zip(*columns, strict=True)):
            if nbytes > 0 and ranks > 1:
                rows[kind, route, ranks, islands, conditions[i] if conditions else None].append(i)
        groups = []
        for (kind, route, ranks, _, condition), where in rows.items():
            chosen = self._choose(KINDS[kind], m.routes[route], ranks, condition)
            if chosen is not None:
                groups.append((np.array(where, dtype=np.intp), chosen))
        return groups

    def _choose(self, kind: str, route: Route, ranks: int, condition: Condition | None) -> _Chosen | None:
        """The curves nearest to what is asked for: route before software; ``None`` if no route is near."""
        near = self._nearest_route(kind, route)
        if near is None:
            return None
        families = self._families[near, kind]
        away = 0.0 if near.key == route.key else _SIBLING + _PER_OCTAVE_OF_BANDWIDTH * route.likeness(near)
        alike = {} if condition is None else {c: f for c, f in families.items() if c.family == condition.family}
        if condition is not None and alike:
            agreement = {
                c: (f.has(ranks), c.dtype == condition.dtype, c.version == condition.version) for c, f in alike.items()
            }
            best = max(agreement, key=lambda c: agreement[c])
            return _Chosen(alike[best], near, away + (0.0 if all(agreement[best]) else _OTHER_VERSION))
        sound = [family for family in families.values() if family.sound]
        if not sound and self.given:
            sound = list(families.values())
        if not sound:
            return None
        family = next((f for f in sound if f.has(ranks)), sound[0])
        return _Chosen(family, near, away + (0.0 if condition is None else _OTHER_SOFTWARE))

    def _nearest_route(self, kind: str, route: Route) -> Route | None:
        """The measured route that is equal, or that of the nearest sibling."""
        measured = [known for known, of_kind in self._families if of_kind == kind]
        equal = [known for known in measured if known.key == route.key]
        if equal:
            return equal[0]
        away = {known: route.likeness(known) for known in measured}
        best = min(away, key=lambda known: (away[known], known.key), default=None)
        return best if best is not None and away[best] <= FARTHEST_SIBLING else None

    def _interval(self, kind: str, route: Route) -> tuple[float, float]:
        intervals = self.card["intervals"]
        for name in (f"{kind} on {route.key}", f"{kind} {'across' if route.crosses else 'inside'}", "all"):
            if name in intervals:
                low, high = intervals[name]
                return float(low), float(high)
        return UNKNOWN_INTERVAL


class _Chosen(NamedTuple):
    """Curves, the route they were measured on, and what that adds to the logarithm of both ends of an interval."""

    family: _Family
    route: Route
    away: float


class _Found(NamedTuple):
    seconds: Floats
    away: Floats
    warning: str


@dataclass(frozen=True, kw_only=True)
class _Family:
    """Curves of one route, kind and condition, by ranks."""

    kind: str
    curves: tuple[Curve, ...]
    sound: bool

    def has(self, ranks: int) -> bool:
        """Whether this number of ranks was measured."""
        return any(curve.ranks == ranks for curve in self.curves)

    def estimate(
        self, works: Sequence[Message], cluster: Cluster, *, measured_on: Cluster, ranks: int, islands: int
    ) -> _Found:
        """Seconds of works that differ in bytes (and sharing) alone; ``measured_on`` has the links of the curves."""
        size = np.log2([work.nbytes for work in works])
        near = self._nearest(ranks)
        first = max(curve.log2_bytes[0] for curve in near)
        last = min(curve.log2_bytes[-1] for curve in near)
        inside = np.clip(size, first, max(first, last))
        asked = baseline_seconds(works, cluster)
        alone = [replace(work, nbytes=float(2.0**x), sharing=1) for work, x in zip(works, inside, strict=True)]
        known = baseline_seconds(alone, measured_on)
        log_seconds = self._at(alone, measured_on, inside, ranks=ranks, islands=islands, baseline=known)
        seconds = np.exp(log_seconds) * asked / known
        beyond = max(0.0, math.log2(ranks / self.curves[-1].ranks))
        away = _PER_OCTAVE_OF_BYTES * np.abs(size - inside) + _PER_DOUBLING_OF_RANKS * beyond
        warning = ""
        if beyond:
            warning = f"{ranks} ranks are beyond the {self.curves[-1].ranks} measured"
        elif (np.abs(size - inside) > 1).any():
            warning = f"sizes are beyond the 2^{first:.0f} to 2^{last:.0f} bytes of the fit"
        return _Found(seconds, away, warning)

    def _nearest(self, ranks: int) -> tuple[Curve, ...]:
        """The curve of this number of ranks, or those next to it."""
        same = tuple(curve for curve in self.curves if curve.ranks == ranks)
        if same:
            return same[-1:]
        below = [curve for curve in self.curves if curve.ranks < ranks]
        above = [curve for curve in self.curves if curve.ranks > ranks]
        return (*below[-1:], *above[:1])

    def _at(
        self, works: Sequence[Message], cluster: Cluster, size: Floats, *, ranks: int, islands: int, baseline: Floats
    ) -> Floats:
        """Log seconds at sizes that were measured."""
        near = self._nearest(ranks)
        if len(near) == 2:
            share = math.log(ranks / near[0].ranks) / math.log(near[1].ranks / near[0].ranks)
            return (1.0 - share) * near[0].at(size) + share * near[1].at(size)
        (curve,) = near
        if curve.ranks == ranks:
            return curve.at(size)
        if islands > 1 and ranks > curve.ranks and curve.islands > 1:
            if self.kind in RING_KINDS:
                return _ring(curve, size, ranks)
            across = [c for c in self.curves if c.islands > 1]
            if self.kind == "all_reduce" and len(across) > 1 and curve.islands > 2:
                return _tree_then_ring(across, size, ranks)
        there = [_with_ranks(work, curve.ranks, curve.islands) for work in works]
        return curve.at(size) + np.log(baseline / baseline_seconds(there, cluster))


def _with_links(cluster: Cluster, here: Route, there: Route) -> Cluster:
    """``cluster`` with the bandwidths of another route in place of its own."""
    inside = there.intra_bandwidth / here.intra_bandwidth if here.intra_bandwidth and there.intra_bandwidth else 1.0
    between = there.nic_bandwidth / here.nic_bandwidth if here.nic_bandwidth and there.nic_bandwidth else 1.0
    if max(abs(inside - 1.0), abs(between - 1.0)) < 0.05:
        return cluster
    return replace(
        cluster,
        intra_node=replace(cluster.intra_node, bandwidth=cluster.intra_node.bandwidth * inside),
        inter_node=replace(cluster.inter_node, bandwidth=cluster.inter_node.bandwidth * between),
        subset_bandwidth=tuple(bandwidth * inside for bandwidth in cluster.subset_bandwidth),
    )


def _with_possible_bytes(work: Message) -> Message:
    return replace(work, nbytes=MOST_BYTES if work.nbytes > 0 else 0.0)


def _with_ranks(work: Message, ranks: int, islands: int) -> Message:
    return work if isinstance(work, Transfer) else replace(work, num_ranks=ranks, num_nodes=islands)


def _ring(curve: Curve, size: Floats, ranks: int) -> Floats:
    """Log seconds of a ring of more ranks: (n − 1)/(n₀ − 1) · t(S n₀/n, n₀)."""
    steps = (ranks - 1) / (curve.ranks - 1)
    return curve.at(size - math.log2(ranks / curve.ranks)) + math.log(steps)


def _tree_then_ring(curves: Sequence[Curve], size: Floats, ranks: int) -> Floats:
    """Log seconds of an all-reduce among more ranks than measured: a tree for small messages, a ring for large ones.

    The tree's seconds per doubling are those between the two largest measured numbers of ranks. Where time fell
    there, a slow protocol was left behind, and the neighbouring sizes tell. Such windows of slow protocols close as
    ranks grow and are not carried on: within the tree, no message takes longer than a larger one.
    """
    before, last = curves[-2], curves[-1]
    ring_from = ring_threshold(curves)
    knots = last.log2_bytes
    now, then = np.exp(last.at(knots)), np.exp(before.at(knots))
    gain = (now - then) / math.log2(last.ranks / before.ranks)
    is_tree = 2.0**knots < ring_from * last.ranks
    usable = (gain > 0) & is_tree
    if not usable.any():
        return _ring(last, size, ranks)
    gain = _isotonic(np.interp(knots, knots[usable], gain[usable]), 1.0 / now**2)
    tree = now + gain * math.log2(ranks / last.ranks)
    tree_knots = 2.0**knots < ring_from * ranks
    tree[tree_knots] = np.minimum.accumulate(tree[tree_knots][::-1])[::-1]
    log_tree = np.interp(size, knots, np.log(tree))
    return np.where(2.0**size < ring_from * ranks, log_tree, _ring(last, size, ranks))


def ring_threshold(curves: Sequence[Curve]) -> float:
    """Bytes per rank from which the curve of most ranks follows from the one before it as a ring.

    Needs three numbers of ranks, the two largest on four islands or more (two islands exchange each byte once, which
    is no ring): the tree is told from the first two. Otherwise :data:`RING_BYTES_PER_RANK`.
    """
    if len(curves) < 3 or curves[-2].islands < 4:
        return RING_BYTES_PER_RANK
    first, before, last = curves[-3:]
    knots = last.log2_bytes
    ring = np.abs(_ring(before, knots, last.ranks) - last.log_seconds)
    start, then = np.exp(first.at(knots)), np.exp(before.at(knots))
    gain = np.maximum(0.0, then - start) / math.log2(before.ranks / first.ranks)
    tree = np.abs(np.log(then + gain * math.log2(last.ranks / before.ranks)) - last.log_seconds)
    wrong = [tree[:k].sum() + ring[k:].sum() for k in range(len(knots) + 1)]
    k = int(np.argmin(wrong))
    return float(2.0 ** knots[k] / last.ranks) if k < len(knots) else np.inf


def _isotonic(values: Floats, weight: Floats) -> Floats:
    """The non-decreasing column nearest to ``values`` (pool adjacent violators)."""
    blocks: list[list[float]] = []
    for value, w in zip(values.tolist(), weight.tolist(), strict=True):
        blocks.append([value, w, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            b, a = blocks.pop(), blocks.pop()
            total = a[1] + b[1]
            blocks.append([(a[0] * a[1] + b[0] * b[1]) / total, total, a[2] + b[2]])
    return np.repeat([block[0] for block in blocks], [int(block[2]) for block in blocks])
