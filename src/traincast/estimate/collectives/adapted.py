"""A system that was hardly measured: the prior of all systems, corrected by the few points that are known of it.

The correction is the posterior mean of a Gaussian process on log(measured / prior), so that it is exact where points
are dense and vanishes far from them. Noise follows Student's t, by reweighting: one congested point moves the estimate
little. The time never falls when bytes grow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.errors import FileFormatError
from traincast.estimate.collectives.curves import isotonic
from traincast.estimate.collectives.features import KINDS, Condition, Message, Route, baseline_seconds, messages
from traincast.estimate.collectives.prior import (
    CollectiveSetting,
    Points,
    SystemPrior,
    packed_settings,
    setting_of,
    transport_of,
    unpacked_settings,
)
from traincast.work import Transfer

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

GRID: Final = np.arange(2.0, 41.0, 0.5)
"""log₂ of the bytes at which a curve is computed, beside the sizes of the own points."""
NCCL: Final = Condition(family="NCCL")
FREEDOM: Final = 4.0
"""Degrees of freedom of the noise's Student distribution."""
REWEIGHTINGS: Final = 3


class LinkKind(NamedTuple):
    """The links that a system's own points ran over: a device, and its kind of network or of links inside a node."""

    device: str
    crosses: bool
    name: str

    def __str__(self) -> str:
        return (
            f"{f'between nodes over {self.name}' if self.crosses else f'inside a node ({self.name})'} on {self.device}"
        )


def link_of(route: Route) -> LinkKind:
    """The links of a route."""
    return LinkKind(route.device, route.crosses, transport_of(route.network) if route.crosses else route.inside)


class AdaptedEstimate(NamedTuple):
    """Seconds and 90 % interval of each work, whether it was estimated, and warnings for the user."""

    seconds: Floats
    low: Floats
    high: Floats
    known: Mask
    warnings: tuple[str, ...]


class _AdaptedCurve(NamedTuple):
    """Log seconds over log₂ bytes, and their standard deviation for one further measurement."""

    log2_bytes: Floats
    log_seconds: Floats
    deviation: Floats


@dataclass(frozen=True, kw_only=True)
class AdaptedSystem:
    """A system with few points or none: ``residual`` is log(measured / baseline) of each of ``points``.

    ``condition`` is the software that is assumed where a request names none. If ``links`` is not ``None``, only
    collectives over these links are estimated.
    """

    prior: SystemPrior
    points: Points
    residual: Floats
    condition: Condition = NCCL
    links: frozenset[LinkKind] | None = None
    _curves: dict[Any, _AdaptedCurve] = field(default_factory=dict, repr=False, compare=False)

    def estimate(
        self, works: Sequence[Message], cluster: Cluster, *, conditions: Sequence[Condition] | None = None
    ) -> AdaptedEstimate:
        """Seconds of ``works`` on ``cluster``; works over other links, of no bytes or of one rank are not known."""
        m = messages(works, cluster)
        asked = baseline_seconds(works, cluster)
        seconds, deviation = asked.copy(), np.zeros(len(works))
        known = np.zeros(len(works), dtype=bool)
        warnings: dict[str, None] = {}
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        columns = (m.kind.tolist(), m.route.tolist(), m.ranks.tolist(), m.nbytes.tolist())
        for i, (kind, route, ranks, nbytes) in enumerate(zip(*columns, strict=True)):
            if nbytes > 0 and ranks > 1 and (self.links is None or link_of(m.routes[route]) in self.links):
                work = works[i]
                nodes = 1 + work.crosses_nodes if isinstance(work, Transfer) else work.num_nodes
                groups[kind, route, ranks, nodes, conditions[i] if conditions else self.condition].append(i)
        for (kind, route, ranks, nodes, condition), where in groups.items():
            setting = setting_of(KINDS[kind], m.routes[route], ranks, condition)
            curve = self._curve(works[where[0]], cluster, setting, nodes)
            size = np.log2(m.nbytes[where])
            inside = np.clip(size, curve.log2_bytes[0], curve.log2_bytes[-1])
            alone = [replace(works[i], nbytes=float(2.0**x), sharing=1) for i, x in zip(where, inside, strict=True)]
            scale = asked[where] / baseline_seconds(alone, cluster)
            seconds[where] = np.exp(np.interp(inside, curve.log2_bytes, curve.log_seconds)) * scale
            deviation[where] = np.interp(inside, curve.log2_bytes, curve.deviation)
            known[where] = True
            if setting not in self.points.settings:
                text = (
                    f"{KINDS[kind]} on {cluster.name}: {len(self.points)} points were measured, none of {ranks} ranks"
                )
                warnings[f"{text} like this; the time follows from them and from other systems"] = None
        below, above = self.prior.spread
        low, high = seconds * np.exp(-below * deviation), seconds * np.exp(above * deviation)
        return AdaptedEstimate(seconds, low, high, known, tuple(warnings))

    def _curve(self, work: Message, cluster: Cluster, setting: CollectiveSetting, nodes: int) -> _AdaptedCurve:
        """Time over bytes in one setting; computed once."""
        key = (cluster, setting, nodes)
        if key not in self._curves:
            own = self.points.log2_bytes[[setting == self.points.settings[i] for i in self.points.setting.tolist()]]
            size = np.unique(np.concatenate([GRID, own]))
            at = Points(settings=(setting,), setting=np.zeros(len(size), dtype=np.int64), log2_bytes=size)
            works = [replace(work, nbytes=float(2.0**x), sharing=1) for x in size]
            residual, deviation = self.posterior(at)
            log_seconds = residual + np.log(baseline_seconds(works, cluster))
            self._curves[key] = _AdaptedCurve(size, isotonic(log_seconds, 1.0 / deviation**2), deviation)
        return self._curves[key]

    def posterior(self, at: Points) -> tuple[Floats, Floats]:
        """Expected residual and its standard deviation, for one further measurement.

        Without own points it is that of the prior. Own points never increase the deviation.
        """
        prior = self.prior
        mean, variance = prior.residual(at), prior.variance(at)
        if len(self.points):
            inverse, _, weights = self._solved
            between = prior.covariance(at, self.points)
            mean = mean + between @ weights
            variance = variance - np.einsum("ij,jk,ik->i", between, inverse, between)
        return mean, np.sqrt(np.maximum(variance, 0.0) + prior.scatter**2)

    @cached_property
    def _covariance(self) -> Floats:
        """The covariance of the own points, without noise."""
        return self.prior.covariance(self.points, self.points)

    @cached_property
    def _solved(self) -> tuple[Floats, Floats, Floats]:
        """The inverse of the own points' covariance, the same with Student's noise, and the weights of their residuals.

        Intervals follow from the first: a congested point must not widen those of other points.
        """
        missed = self.residual - self.prior.residual(self.points)
        noise, weight = self.prior.noise**2, np.ones(len(missed))
        plain = student = self._inverse(weight)
        for _ in range(REWEIGHTINGS):
            left = student @ missed * noise / weight
            weight = (FREEDOM + 1.0) / (FREEDOM + left**2 / noise)
            student = self._inverse(weight)
        return plain, student, student @ missed

    def _inverse(self, weight: Floats) -> Floats:
        """The inverse of the own points' covariance, where the noise of each point is divided by its weight."""
        return np.asarray(np.linalg.inv(self._covariance + np.diag(self.prior.noise**2 / weight)), dtype=np.float64)

    def leave_one_out(self) -> Floats:
        """log(estimate / measured) of each own point when the others are known."""
        _, student, weights = self._solved
        return -weights / np.diag(student)

    def packed(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and card entry of the own points, from which :func:`adapted_from` makes the same system."""
        settings, words = packed_settings(self.points.settings, "own")
        arrays: dict[str, npt.NDArray[Any]] = {
            **settings,
            "own_setting": self.points.setting.astype(np.int32),
            "own_log2_bytes": self.points.log2_bytes.astype(np.float32),
            "own_residual": self.residual.astype(np.float32),
        }
        card = {
            "words": words,
            "condition": asdict(self.condition),
            "links": [list(link) for link in sorted(self.links or ())],
        }
        return arrays, card


def adapted_from(prior: SystemPrior, arrays: Mapping[str, npt.NDArray[Any]], card: Mapping[str, Any]) -> AdaptedSystem:
    """Return the system from the arrays and the card entry that :meth:`AdaptedSystem.packed` returned."""
    try:
        settings = unpacked_settings(arrays, "own", card["words"])
        points = Points(
            settings=settings,
            setting=arrays["own_setting"].astype(np.int64),
            log2_bytes=arrays["own_log2_bytes"].astype(np.float64),
        )
        residual = arrays["own_residual"].astype(np.float64)
        if not len(points) == len(points.log2_bytes) == len(residual) or (points.setting >= len(settings)).any():
            raise ValueError(f"{len(points)} points have {len(residual)} residuals and {len(settings)} settings")
        return AdaptedSystem(
            prior=prior,
            points=points,
            residual=residual,
            condition=Condition(**card["condition"]),
            links=frozenset(LinkKind(str(device), bool(crosses), str(name)) for device, crosses, name in card["links"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileFormatError(f"fitted collectives: the points of an adapted system are damaged: {error}") from None
