"""Learned times of collectives and transfers: measured curves over the message size, and laws beyond them.

For one route, collective, software and number of ranks, time over bytes is nearly deterministic. It has cliffs where
protocols and algorithms change, which no smooth formula has. So the model is a set of curves, log seconds at knots over
log₂ bytes, fitted by :mod:`traincast.fitting.collectives.fit`. :mod:`traincast.estimate.collectives.curves` extends
them to other numbers of ranks and bytes. A device that was not measured takes the curves of a device of its
architecture with the same kind of links, scaled as the analytical baseline scales. Where there is none, nothing is
learned.
"""

from __future__ import annotations

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
from traincast.estimate.collectives.adapted import AdaptedSystem, adapted_from, link_of
from traincast.estimate.collectives.curves import Curve, CurveFamily
from traincast.estimate.collectives.features import (
    KINDS,
    Condition,
    Message,
    Messages,
    Route,
    baseline_seconds,
    messages,
)
from traincast.estimate.collectives.prior import SystemPrior, unpacked

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

FORMAT: Final = 1
WEIGHTS: Final = (
    "curve_route", "curve_kind", "curve_condition", "curve_ranks", "curve_islands", "curve_sound", "curve_start",
    "knot_log2_bytes", "knot_log_seconds",
)  # fmt: skip
MOST_BYTES: Final = 1e30
"""Larger messages are estimated as messages of this size."""
FARTHEST_SIBLING: Final = 1.5
"""The largest difference in bandwidth, in octaves, at which the curves of a similar device are used."""
UNKNOWN_INTERVAL: Final = (0.5, 2.0)
"""Interval factors of works that were not learned. Callers replace them by better ones."""
_OTHER_VERSION: Final = 0.05
_OTHER_SOFTWARE: Final = 0.15
_SIBLING: Final = 0.1
_PER_OCTAVE_OF_BANDWIDTH: Final = 0.2
"""Each is added to both ends of an interval, as a logarithm, for one kind of difference from what was measured."""


class Learned(NamedTuple):
    """Seconds and 90 % interval of each work, whether it was learned, and warnings for the user."""

    seconds: Floats
    low: Floats
    high: Floats
    learned: Mask
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CollectiveModel:
    """Fitted curves of collectives: ``weights`` are arrays (see :data:`WEIGHTS`), ``card`` says what they mean.

    ``card`` has ``routes`` and ``conditions`` (what the numbers of the curves stand for) and ``intervals`` (factors
    around the estimate that hold 90 % of held-out measurements). ``path`` is the bundle's. If the user
    named the bundle (``given``), curves far slower than their links allow are used where there are no others.

    A bundle that was adapted to a few points of a system (``adapted``) estimates all collectives over the links of
    these points.
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
            raise FileFormatError("fitted collectives hold knots that are not finite: fit them again")
        counts = {"route": len(self.card["routes"]), "kind": len(KINDS), "condition": len(self.card["conditions"])}
        for name, count in counts.items():
            numbers = self.weights[f"curve_{name}"]
            if len(numbers) != len(starts) - 1 or (numbers < 0).any() or (numbers >= count).any():
                raise FileFormatError(f"fitted collectives are damaged: curve_{name} goes beyond {count} of them")
        if "adapted" in self.card and self.adapted is None:
            raise FileFormatError("fitted collectives are damaged: they were adapted, but have no prior")

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The software that was measured, by number."""
        return tuple(Condition(**entry) for entry in self.card["conditions"])

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """The routes that were measured, by number."""
        return tuple(Route(**entry) for entry in self.card["routes"])

    @cached_property
    def prior(self) -> SystemPrior | None:
        """What to expect of systems that were not measured, if the bundle has it."""
        return unpacked(self.weights, self.card["prior"]) if "prior" in self.card else None

    @cached_property
    def adapted(self) -> AdaptedSystem | None:
        """The system whose few points the bundle was adapted to, if it was."""
        if self.prior is None or "adapted" not in self.card:
            return None
        return adapted_from(self.prior, self.weights, self.card["adapted"])

    def has_system(self, system: str, route: Route) -> bool:
        """Whether curves were fitted to this system on this route; without names of systems, the route decides."""
        routes = [number for number, known in enumerate(self.routes) if known.key == route.key]
        systems = self.card.get("systems")
        return bool(routes) if systems is None else any(number in systems.get(system, ()) for number in routes)

    @cached_property
    def _several_groups(self) -> bool:
        """Whether any curve was measured while several groups ran at once."""
        return any(condition.concurrent_groups > 1 for condition in self.conditions)

    @cached_property
    def _families(self) -> dict[tuple[Route, str], dict[Condition, CurveFamily]]:
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
                condition: CurveFamily(
                    kind=key[1],
                    curves=tuple(sorted(curves, key=lambda c: (c.ranks, c.islands))),
                    sound=sound[*key, condition],
                    groups=condition.concurrent_groups,
                )
                for condition, curves in sorted(by_condition.items(), key=lambda item: item[0].preference)
            }
            for key, by_condition in found.items()
        }

    def estimate(
        self, works: Sequence[Message], cluster: Cluster, *, conditions: Sequence[Condition] | None = None
    ) -> Learned:
        """Seconds of ``works`` on ``cluster``; never NaN, never negative.

        ``conditions`` names the software of each work, for comparison with measurements that state theirs. Without
        it, the software that training most likely runs is assumed. Works on routes that were not measured take the
        seconds of the baseline, and are marked as not learned.
        """
        works = [work if 0.0 <= work.nbytes <= MOST_BYTES else _with_possible_bytes(work) for work in works]
        m = messages(works, cluster)
        seconds = baseline_seconds(works, cluster)
        learned = ~((m.nbytes > 0) & (m.ranks > 1))
        seconds[learned] = 0.0
        low, high = seconds * UNKNOWN_INTERVAL[0], seconds * UNKNOWN_INTERVAL[1]
        warnings: dict[str, None] = {}
        for where, (family, route, away) in self._groups(m, conditions, sharing=[work.sharing for work in works]):
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
                text = "the measured times are used, though they are far longer than its links allow"
                warnings[f"{family.kind} on {cluster.name}: {text}"] = None
            if route.key != here.key:
                warnings[f"{family.kind} on {cluster.name}: times measured on {route.device} are used, scaled"] = None
        if self.adapted is not None and not learned.all():
            found_here = self.adapted.estimate(works, cluster, conditions=conditions)
            new = found_here.known & ~learned
            seconds, low, high = (
                np.where(new, adapted, column)
                for adapted, column in zip(found_here[:3], (seconds, low, high), strict=True)
            )
            learned |= new
            warnings |= dict.fromkeys(found_here.warnings)
        return Learned(seconds, low, high, learned, tuple(warnings))

    def knows(self, works: Sequence[Message], cluster: Cluster) -> Mask:
        """Returns for each work whether :meth:`estimate` would learn it."""
        m = messages(works, cluster)
        known = ~((m.nbytes > 0) & (m.ranks > 1))
        for where, _ in self._groups(m, None):
            known[where] = True
        if self.adapted is not None:
            links = self.adapted.links
            covered = np.array([links is None or link_of(route) in links for route in m.routes], dtype=bool)
            known |= covered[m.route]
        return known

    def reaches(self, route: Route) -> bool:
        """Whether there are curves of any collective for this route, or points over its links."""
        if self.adapted is not None and link_of(route) in (self.adapted.links or ()):
            return True
        return any(self._nearest_route(kind, route) is not None for kind in KINDS)

    def _groups(
        self, m: Messages, conditions: Sequence[Condition] | None, *, sharing: Sequence[int] = ()
    ) -> list[tuple[npt.NDArray[np.intp], _Chosen]]:
        """Positions of works that share one family of curves, with that family.

        ``sharing`` is the number of groups that share the NICs, where curves of several groups at once were measured.
        """
        together = sharing if self._several_groups else ()
        rows: dict[tuple[int, int, int, int, Condition | None, int], list[int]] = defaultdict(list)
        columns = (m.kind.tolist(), m.route.tolist(), m.ranks.tolist(), m.islands.tolist(), m.nbytes.tolist())
        for i, (kind, route, ranks, islands, nbytes) in enumerate(zip(*columns, strict=True)):
            if nbytes > 0 and ranks > 1:
                condition = conditions[i] if conditions else None
                rows[kind, route, ranks, islands, condition, together[i] if together else 1].append(i)
        groups = []
        for (kind, route, ranks, _, condition, at_once), where in rows.items():
            chosen = self._choose(KINDS[kind], m.routes[route], ranks, condition, sharing=at_once)
            if chosen is not None:
                groups.append((np.array(where, dtype=np.intp), chosen))
        return groups

    def _choose(
        self, kind: str, route: Route, ranks: int, condition: Condition | None, *, sharing: int
    ) -> _Chosen | None:
        """The curves of the nearest route, and among these of the nearest software; ``None`` if no route is near.

        Without a condition, curves of isolated collectives come first. If ``sharing`` groups share the NICs, curves of
        at most as many groups at once are preferred, those of the most groups first.
        """
        near = self._nearest_route(kind, route)
        if near is None:
            return None
        families = self._families[near, kind]
        away = 0.0 if near.key == route.key else _SIBLING + _PER_OCTAVE_OF_BANDWIDTH * route.likeness(near)
        alike = {} if condition is None else {c: f for c, f in families.items() if c.family == condition.family}
        if condition is not None and alike:
            agreement = {
                c: (
                    c.pattern == condition.pattern,
                    f.has(ranks),
                    c.dtype == condition.dtype,
                    c.version == condition.version,
                )
                for c, f in alike.items()
            }
            best = max(agreement, key=lambda c: agreement[c])
            return _Chosen(alike[best], near, away + (0.0 if all(agreement[best]) else _OTHER_VERSION))
        sound = [family for family in families.values() if family.sound]
        if not sound and self.given:
            sound = list(families.values())
        if sharing > 1:
            sound.sort(key=lambda family: (family.groups > sharing, -family.groups))
        if not sound:
            return None
        family = next((f for f in sound if f.has(ranks)), sound[0])
        return _Chosen(family, near, away + (0.0 if condition is None else _OTHER_SOFTWARE))

    def _nearest_route(self, kind: str, route: Route) -> Route | None:
        """The measured route that equals ``route``, or else the nearest one of the same architecture and links."""
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
    """Curves, the route they were measured on, and what a difference of routes adds to the interval, as a logarithm."""

    family: CurveFamily
    route: Route
    away: float


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
