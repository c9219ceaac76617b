"""Collectives of systems that nobody measured: what other systems suggest, corrected by the system's own points.

The unknown is the *residual*, log(seconds / baseline), where the baseline follows from latencies and bandwidths alone.
It is one Gaussian process (Rasmussen and Williams, 2006) in which systems are random effects. Its covariance
is a sum of parts:

- The *shared* parts say how the residuals of different systems resemble each other: systems with the same transport,
  the same kind of links inside a node or a device of the same era err in the same direction. Their posterior mean,
  given all measured systems, is the estimate for a system without any measurement (:meth:`SystemPrior.residual`).
- The *own* parts say how far a system deviates from what systems share, over bytes, ranks and collectives. Systems with
  a switch deviate little, others much. (For the measured systems, this deviation has the parts *among*.)

What measured systems leave open of the shared parts, and the own parts, are the doubt about a new system
(:meth:`SystemPrior.covariance`): small where many alike were measured, large for a collective or a network that nobody
measured. Points of the system itself reduce it (:class:`traincast.estimate.collectives.adapted.AdaptedSystem`).

The scales of all parts were chosen by leaving out one system at a time (:mod:`traincast.fitting.collectives.prior`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster.architecture import load_architecture
from traincast.errors import FileFormatError
from traincast.estimate.collectives.features import Condition, Route

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

FEATURES: Final = (
    "crosses",
    "kind",
    "transport",
    "offload",
    "alone",
    "inside",
    "era",
    "library",
    "pair",
    "route",
    "pattern",
    "links",
)
"""What two measurements may share. ``offload`` says whether NICs move the bytes without the processor's help, ``alone``
whether each node has one rank, ``pair`` whether there are two ranks, ``pattern`` what else ran at the same time;
``links`` is ``switch``, ``inside`` (other links in a node) or ``across``."""
_TRANSPORTS: Final = (
    (r"\bipoib\b", "tcp"),
    (r"\befa\b", "efa"),
    (r"roce", "roce"),
    (r"slingshot", "slingshot"),
    (r"omni|\bopa\b", "omni-path"),
    (r"tcpx", "tcpx"),
    (r"infiniband", "infiniband"),
    (r"ethernet|tcp", "tcp"),
)
_OFFLOADED: Final = frozenset({"infiniband", "roce", "omni-path", "slingshot"})
_LIBRARIES: Final = ("NCCL", "RCCL", "oneCCL", "gloo")
_LEAST_RATE: Final = 1e9
_NEGLIGIBLE: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSetting:
    """Where and how a collective runs, as the covariances see it: texts by :data:`FEATURES`, and two numbers."""

    texts: tuple[str, ...]
    log2_ranks: float
    log2_rate: float

    @property
    def crosses(self) -> bool:
        """Whether the group leaves its island."""
        return self.texts[0] == "across"

    @property
    def links(self) -> str:
        """The class of links: ``switch``, ``inside`` or ``across``."""
        return self.texts[FEATURES.index("links")]


def setting_of(kind: str, route: Route, ranks: int, condition: Condition) -> CollectiveSetting:
    """The setting of a collective among ``ranks`` ranks on ``route``, moved by the software of ``condition``."""
    transport = transport_of(route.network)
    offload = "inside" if not route.crosses else "nic" if transport in _OFFLOADED else "processor"
    words = condition.family.split()
    texts = {
        "crosses": "across" if route.crosses else "inside",
        "kind": kind,
        "transport": transport,
        "offload": offload,
        "alone": "alone" if route.crosses and route.per_node == 1 else "several",
        "inside": route.inside,
        "era": load_architecture(route.architecture).era or route.architecture,
        "library": words[0] if words and words[0] in _LIBRARIES else "other",
        "pair": "pair" if ranks == 2 else "many",
        "route": route.key,
        "pattern": condition.pattern,
        "links": "across" if route.crosses else "switch" if route.inside == "switch" else "inside",
    }
    rate = route.nic_bandwidth if route.crosses else route.intra_bandwidth
    return CollectiveSetting(
        texts=tuple(texts[name] for name in FEATURES),
        log2_ranks=math.log2(max(2, ranks)),
        log2_rate=math.log2(max(rate, _LEAST_RATE) / _LEAST_RATE),
    )


def transport_of(network: str) -> str:
    """The kind of network that a link's name means: ``infiniband``, ``roce``, ``efa``, …; ``inside`` for none.

    >>> transport_of("NDR InfiniBand"), transport_of("EFA 100G"), transport_of("")
    ('infiniband', 'efa', 'inside')
    """
    lower = network.lower()
    return next((name for pattern, name in _TRANSPORTS if re.search(pattern, lower)), lower) or "inside"


class SystemPart(NamedTuple):
    """One part of a covariance, σ² k(Δ log₂ bytes) exp(−Δ log₂ ranks / r) exp(−Δ log₂ rate / b).

    It couples points that agree in all of ``shared``. ``smooth`` parts have k = exp(−x²/2), others Matérn 3/2. A scale
    of 0 means that the part does not depend on this number. With ``only``, the part is that of one class of links.
    """

    shared: tuple[str, ...]
    sigma: float
    bytes_scale: float
    ranks_scale: float = 0.0
    rate_scale: float = 0.0
    smooth: bool = True
    only: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Positions of measurements: a setting for each, by number, and log₂ of its bytes."""

    settings: tuple[CollectiveSetting, ...]
    setting: Ints
    log2_bytes: Floats

    def __len__(self) -> int:
        return len(self.setting)

    def take(self, where: npt.NDArray[Any]) -> Points:
        """Some of the points, by position or mask."""
        return Points(settings=self.settings, setting=self.setting[where], log2_bytes=self.log2_bytes[where])


def variance(parts: Sequence[SystemPart], at: Points) -> Floats:
    """The diagonal of :func:`covariance` of some points with themselves."""
    of_setting = np.array([
        sum(part.sigma**2 for part in parts if part.only in ("", setting.links)) for setting in at.settings
    ])  # fmt: skip
    return of_setting[at.setting] if len(at) else np.zeros(0)


def covariance(parts: Sequence[SystemPart], a: Points, b: Points) -> Floats:
    """The covariance of the residuals at ``a`` (rows) and ``b`` (columns)."""
    apart = np.abs(a.log2_bytes[:, None] - b.log2_bytes[None, :])
    total = np.zeros_like(apart)
    for part in parts:
        pairs = part.sigma**2 * _coupled(part, a.settings, b.settings)
        # Most points have nothing in common with a request for a single setting: they are left out early.
        columns = np.flatnonzero(pairs.max(axis=0)[b.setting] > _NEGLIGIBLE) if len(a.settings) else np.arange(0)
        near = pairs[np.ix_(a.setting, b.setting[columns])]
        if part.bytes_scale:
            x = apart[:, columns] / part.bytes_scale
            near = near * (np.exp(-0.5 * x * x) if part.smooth else (1 + math.sqrt(3) * x) * np.exp(-math.sqrt(3) * x))
        total[:, columns] += near
    return total


def _coupled(part: SystemPart, a: Sequence[CollectiveSetting], b: Sequence[CollectiveSetting]) -> Floats:
    """The factor of a part that depends on settings alone, for all pairs of them."""
    places = [FEATURES.index(name) for name in part.shared]
    numbers: dict[tuple[str, ...], int] = {}
    of_a, of_b = (
        np.array([numbers.setdefault(tuple(s.texts[i] for i in places), len(numbers)) for s in side]) for side in (a, b)
    )
    pairs: Floats = (of_a[:, None] == of_b[None, :]).astype(np.float64)
    if part.only:
        pairs *= np.array([s.links == part.only for s in a], dtype=bool)[:, None]
    for scale, name in ((part.ranks_scale, "log2_ranks"), (part.rate_scale, "log2_rate")):
        if scale:
            x, y = (np.array([getattr(s, name) for s in side]) for side in (a, b))
            pairs *= np.exp(-np.abs(x[:, None] - y[None, :]) / scale)
    return pairs


class IntervalEnds(NamedTuple):
    """The ends of an interval below and above the estimate, in standard deviations of the logarithm."""

    below: float
    above: float


@dataclass(frozen=True, kw_only=True)
class SystemPrior:
    """What the measured systems say about one that was not measured.

    ``weights`` belong to ``points`` of measured systems, so that the expected residual is a covariance times them.
    ``noise`` is the relative spread of an own point around its system's curve, ``scatter`` that of any further
    measurement. ``anchors`` are some of ``points``, by number: what they leave open is the doubt about a new system.
    ``anchor_system`` numbers their systems, and ``anchor_variance`` is their noise. ``spread`` are the ends of the
    interval that held 90 % of the measurements of systems left out. ``systems`` names the systems of ``points``.
    """

    shared: tuple[SystemPart, ...]
    among: tuple[SystemPart, ...]
    own: tuple[SystemPart, ...]
    noise: float
    scatter: float
    points: Points
    weights: Floats
    anchors: Ints
    anchor_system: Ints
    anchor_variance: Floats
    spread: IntervalEnds
    systems: tuple[str, ...] = ()

    def residual(self, at: Points) -> Floats:
        """The expected log(seconds / baseline) at some points of a system that was not measured."""
        found: Floats = covariance(self.shared, at, self.points) @ self.weights
        return found

    @cached_property
    def _anchored(self) -> tuple[Points, Floats]:
        """The anchors, and the inverse of the lower Cholesky factor of their covariance."""
        points = self.points.take(self.anchors)
        same = self.anchor_system[:, None] == self.anchor_system[None, :]
        matrix = covariance(self.shared, points, points) + same * covariance(self.among, points, points)
        matrix[np.diag_indices(len(points))] += self.anchor_variance
        return points, np.linalg.inv(np.linalg.cholesky(matrix))

    def _known(self, at: Points) -> Floats:
        """Rows whose products are the covariance of the shared parts that the anchors have settled."""
        points, root = self._anchored
        known: Floats = covariance(self.shared, at, points) @ root.T
        return known

    def covariance(self, a: Points, b: Points) -> Floats:
        """The covariance of the residuals of a system that was not measured around :meth:`residual`."""
        settled = self._known(a) @ self._known(b).T
        return covariance((*self.shared, *self.own), a, b) - settled

    def variance(self, at: Points) -> Floats:
        """The diagonal of :meth:`covariance` of some points with themselves."""
        settled = np.sum(self._known(at) ** 2, axis=1)
        left: Floats = np.maximum(variance(self.shared, at) - settled, 0.0)
        return left + variance(self.own, at)

    def packed(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and card entry, from which :func:`unpacked` makes the same prior."""
        settings, words = packed_settings(self.points.settings, "prior")
        arrays: dict[str, npt.NDArray[Any]] = {
            **settings,
            "prior_setting": self.points.setting.astype(np.int32),
            "prior_log2_bytes": self.points.log2_bytes.astype(np.float32),
            "prior_weight": self.weights.astype(np.float32),
            "prior_anchor": self.anchors.astype(np.int32),
            "prior_anchor_system": self.anchor_system.astype(np.int32),
            "prior_anchor_variance": self.anchor_variance.astype(np.float32),
        }
        card = {
            "features": list(FEATURES),
            "words": words,
            "shared": [[list(part.shared), *part[1:]] for part in self.shared],
            "among": [[list(part.shared), *part[1:]] for part in self.among],
            "own": [[list(part.shared), *part[1:]] for part in self.own],
            "noise": self.noise,
            "scatter": self.scatter,
            "spread": list(self.spread),
            "systems": list(self.systems),
        }
        return arrays, card


def unpacked(arrays: Mapping[str, npt.NDArray[Any]], card: Mapping[str, Any]) -> SystemPrior:
    """Return the prior from the arrays and the card entry that :meth:`SystemPrior.packed` returned."""
    try:
        if tuple(card["features"]) != FEATURES:
            raise ValueError(f"its features are {card['features']!r}: this version has {', '.join(FEATURES)}")
        settings = unpacked_settings(arrays, "prior", card["words"])
        points = Points(
            settings=settings,
            setting=arrays["prior_setting"].astype(np.int64),
            log2_bytes=arrays["prior_log2_bytes"].astype(np.float64),
        )
        weights = arrays["prior_weight"].astype(np.float64)
        if not len(points) == len(points.log2_bytes) == len(weights) or (points.setting >= len(settings)).any():
            raise ValueError(f"{len(points)} points have {len(weights)} weights and {len(settings)} settings")
        anchors, of_system, noise = (arrays[f"prior_anchor{end}"] for end in ("", "_system", "_variance"))
        if not len(anchors) == len(of_system) == len(noise) or (anchors >= len(points)).any():
            raise ValueError(f"{len(anchors)} anchors have {len(of_system)} systems and {len(noise)} variances")
        return SystemPrior(
            shared=tuple(SystemPart(tuple(names), *numbers) for names, *numbers in card["shared"]),
            among=tuple(SystemPart(tuple(names), *numbers) for names, *numbers in card["among"]),
            own=tuple(SystemPart(tuple(names), *numbers) for names, *numbers in card["own"]),
            noise=float(card["noise"]),
            scatter=float(card["scatter"]),
            points=points,
            weights=weights,
            anchors=anchors.astype(np.int64),
            anchor_system=of_system.astype(np.int64),
            anchor_variance=noise.astype(np.float64),
            spread=IntervalEnds(*map(float, card["spread"])),
            systems=tuple(map(str, card["systems"])),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileFormatError(f"fitted collectives: the prior of unmeasured systems is damaged: {error}") from None


def packed_settings(settings: Sequence[CollectiveSetting], name: str) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Settings as arrays whose names begin with ``name``, and the texts that the numbers in them stand for."""
    words = sorted({text for setting in settings for text in setting.texts})
    number = {word: i for i, word in enumerate(words)}
    texts = [[number[text] for text in setting.texts] for setting in settings]
    numbers = [[setting.log2_ranks, setting.log2_rate] for setting in settings]
    arrays: dict[str, npt.NDArray[Any]] = {
        f"{name}_texts": np.array(texts, dtype=np.int32).reshape(-1, len(FEATURES)),
        f"{name}_numbers": np.array(numbers, dtype=np.float64).reshape(-1, 2),
    }
    return arrays, words


def unpacked_settings(
    arrays: Mapping[str, npt.NDArray[Any]], name: str, words: Sequence[str]
) -> tuple[CollectiveSetting, ...]:
    """Return the settings from the arrays and texts that :func:`packed_settings` returned."""
    texts, numbers = arrays[f"{name}_texts"], arrays[f"{name}_numbers"]
    if texts.shape != (len(numbers), len(FEATURES)) or numbers.shape[1:] != (2,):
        raise ValueError(f"{name}_texts has the shape {texts.shape}: expected {len(FEATURES)} texts of each setting")
    return tuple(
        CollectiveSetting(texts=tuple(str(words[i]) for i in row), log2_ranks=ranks, log2_rate=rate)
        for row, (ranks, rate) in zip(texts.tolist(), numbers.tolist(), strict=True)
    )
