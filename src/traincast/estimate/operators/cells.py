"""A cell: the fitted model of one family of operators, on one device, in one dtype, measured in one setting.

A cell corrects the roofline: seconds = roofline × exp(output of trees and network). For sizes outside the measured
range, the correction is that of the nearest measured size, while the roofline is that of the true size. So beyond the
data the efficiency stays that of the nearest measured operator, and time never falls when work grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Device
from traincast.estimate.operators.families import FAMILIES, Rates
from traincast.estimate.operators.features import (
    BOTH_GRADIENTS,
    INTERCHANGEABLE,
    WIDTHS,
    Features,
    Shapes,
    features,
    roofline,
)
from traincast.estimate.operators.network import Network
from traincast.estimate.operators.points import MeasuredPoints
from traincast.estimate.operators.trees import Trees

Floats = npt.NDArray[np.float64]

COLUMNS: Final = ("name", "act", "optimizer", "layout", "setting", "dtype")
"""Texts that a model distinguishes. Each has a vocabulary, whose first entry stands for unknown texts."""
WIDENING: Final = 0.1
"""How much an interval widens, in logarithm, for every factor e that a size is outside the measured range."""
PLAUSIBLE: Final = (-3.0, 7.0)
"""Range of log(time / roofline) in which a measurement is believed; a framework may take many times the roofline."""
RAMP: Final = 0.4
"""Waves whose time a convolution loses while a device fills and drains; chosen by larger batches than trained on."""
_TILE: Final = 128.0 * 64.0
ANY: Final = "any"
"""The device name of a cell for all devices, which reads the datasheet instead."""
_SERVING: Final = ("vllm", "sglang", "trtllm")


@lru_cache(maxsize=4096)
def setting_of(framework: str) -> str:
    """The setting of a framework: its name without version. All serving engines share one setting."""
    text = framework.lower()
    if any(engine in text for engine in _SERVING):
        return "serving"
    return text.split(" ")[0] or "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds and interval of each operator, and its distance from the measured range (in factors of e; 0 inside)."""

    seconds: Floats
    low: Floats
    high: Floats
    outside: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a bundle; ``device`` and ``setting`` are :data:`ANY` for a model of all of them.

    ``vocabulary`` has the texts of each of :data:`COLUMNS`. ``domain`` has the smallest and largest sizes that were
    measured, and ``interval`` the 5 % and 95 % quantiles of log(measured / estimated), both by name. ``share`` is the
    network's part in the mean with the trees, or, on a device without trees of its own, with ``neighbours``: the cells
    of measured devices that are like it, each with its weight. A cell with ``points`` has neither, and answers for
    every device that is kin to a measured one.
    """

    family: str
    setting: str
    dtype: str
    device: str
    vocabulary: Mapping[str, Sequence[str]]
    domain: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    interval: Mapping[str, tuple[float, float]]
    share: float
    trees: Trees | None = None
    network: Network | None = None
    points: MeasuredPoints | None = None
    neighbours: tuple[tuple[float, Cell], ...] = ()

    @property
    def id(self) -> str:
        """Its name in files and reports."""
        return f"{self.family}/{self.setting}/{self.dtype}/{self.device}"

    def knows(self, shapes: Shapes) -> npt.NDArray[np.bool_]:
        """Returns for each operator whether its name was measured, and its window if it is a convolution.

        Libraries have other kernels for other windows and strides, which reach another efficiency. Points need no such
        rule: far ones hardly speak for an operator.
        """
        known = set(self.vocabulary["name"])
        named = [name in known or known.issuperset(self._both(name)) for name, *_ in shapes.details]
        found = np.array(named, dtype=bool)[shapes.which]
        if self.points is not None:
            return found & like_bare(shapes)
        if self.family == "conv":
            low, high = self._domains(shapes)
            own = [FAMILIES["conv"].sizes.index(name) for name in ("kh", "kw", "stride")]
            found &= ((low <= shapes.sizes) & (shapes.sizes <= high))[:, own].all(axis=1)
        return found

    def _both(self, name: str) -> tuple[str, ...]:
        """The names of the two gradients that an operator computes, or its own."""
        return BOTH_GRADIENTS.get(name, (name,)) if name not in self.vocabulary["name"] else (name,)

    def estimate(
        self, shapes: Shapes, rates: Rates, *, framework: str = "", dtype: str = "", device: Device | None = None
    ) -> Estimate:
        """Returns seconds and intervals of operators that the cell knows.

        Where it knows only the two gradients that an operator computes, it adds them up. ``device`` is needed by
        cells with points.
        """
        both = {name: self._both(name) for name, *_ in shapes.details}
        if all(len(parts) == 1 for parts in both.values()):
            return self._estimate(shapes, rates, framework, dtype, device)
        first, second = ({name: parts[i] for name, parts in both.items()} for i in (0, -1))
        found = self._estimate(shapes.named(first), rates, framework, dtype, device)
        twice = np.array([len(both[name]) == 2 for name, *_ in shapes.details], dtype=bool)[shapes.which]
        rest = self._estimate(shapes.named(second), rates, framework, dtype, device)
        return Estimate(
            **{
                name: getattr(found, name) + np.where(twice, getattr(rest, name), 0.0)
                for name in ("seconds", "low", "high")
            },
            outside=found.outside,
        )

    def _estimate(self, shapes: Shapes, rates: Rates, framework: str, dtype: str, device: Device | None) -> Estimate:
        low, high = self._domains(shapes)
        inside = shapes.as_wide_as(dtype).within(low, high)
        apart = np.abs(np.log(np.maximum(shapes.sizes, 1e-9) / np.maximum(inside.sizes, 1e-9)))
        outside = apart[:, [name not in WIDTHS for name in FAMILIES[self.family].sizes]].max(axis=1)
        if self.points is None:
            said = self.says(inside, features(inside, rates), framework, dtype or self.dtype)
        else:
            assert device is not None, "points speak for a device"
            said = self.points_say(inside, framework, dtype, device) + filling(shapes, rates.num_sms)
        seconds = roofline(shapes, rates) * np.exp(np.clip(said, *PLAUSIBLE))
        of_names = [self.interval.get(name, self.interval[ANY]) for name, *_ in shapes.details]
        bounds = np.array(of_names).reshape(-1, 2)[shapes.which]
        return Estimate(
            seconds=seconds,
            low=seconds * np.exp(bounds[:, 0] - WIDENING * outside),
            high=seconds * np.exp(bounds[:, 1] + WIDENING * outside),
            outside=outside,
        )

    def points_say(self, shapes: Shapes, framework: str, dtype: str, device: Device) -> Floats:
        """Log of time over roofline by the points of the cell, on ``device``."""
        assert self.points is not None
        own, known = setting_of(framework), self.vocabulary["setting"]
        stated = dtype if dtype in self.vocabulary["dtype"] else INTERCHANGEABLE.get(dtype, dtype)
        return self.points(
            places_of(shapes), shapes.names, dtype=stated, setting=own if own in known else known[0], device=device
        )

    def says(
        self, shapes: Shapes, found: Features, framework: str | Sequence[str], dtype: str | Sequence[str]
    ) -> Floats:
        """Log of time over roofline; ``framework`` and ``dtype`` are those of all operators, or of each."""
        codes = encode(shapes, framework, dtype, self.vocabulary)
        others, known = np.zeros(len(shapes)), np.zeros(len(shapes))
        if self.trees is not None and self.share < 1.0:
            others, known = self.trees(trees_table(found, codes)), np.ones(len(shapes))
        elif self.share < 1.0:
            for weight, cell in self.neighbours:
                heeded = weight * cell.knows(shapes)
                others += heeded * cell.says(shapes, found, framework, dtype)
                known += heeded
        share = np.where(known > 0, self.share, 1.0)
        said: Floats = (1.0 - share) * others / np.where(known > 0, known, 1.0)
        if self.network is not None:
            said += self.network(found.flat, found.tiles, one_hot(codes, self.vocabulary), share=share)
        return said

    def _domains(self, shapes: Shapes) -> tuple[Floats, Floats]:
        width = shapes.sizes.shape[1]
        unlimited = ([0.0] * width, [np.inf] * width)  # of names that only other operators than these have
        own = [self.domain.get(name, unlimited) for name, *_ in shapes.details]
        low, high = (np.array([sides[i] for sides in own]).reshape(-1, width)[shapes.which] for i in (0, 1))
        return low, high


def places_of(shapes: Shapes) -> npt.NDArray[np.float32]:
    """The coordinates of operators among points [operator, axis]."""
    place = FAMILIES[shapes.family].place
    assert place is not None, f"{shapes.family} has no places"
    return np.stack(place(shapes.sizes), axis=1).astype(np.float32)


def filling(shapes: Shapes, num_sms: Floats) -> Floats:
    """Log of 1 + :data:`RAMP` / waves, for convolutions: the loss while an operator is too small to fill the device.

    Waves are output tiles per SM. Forward writes rows · channels. The gradient of the inputs writes the input. The
    gradient of the weights writes the weight once for every 1,024 rows, because thread blocks divide the sum over the
    rows.
    """
    if shapes.family != "conv":
        return np.zeros(len(shapes))
    batch, channels, per_group, out_channels, h, w, kh, kw, _, ho, wo, _, _ = shapes.sizes.T
    rows, phases = batch * ho * wo, np.array([name.rpartition(".")[2] for name, *_ in shapes.details])[shapes.which]
    written = np.where(phases == "bwd_data", batch * h * w * channels, rows * out_channels)
    written = np.where(phases == "bwd_weight", out_channels * per_group * kh * kw * rows / 1024.0, written)
    waves = written / (_TILE * num_sms)
    return np.asarray(np.log1p(RAMP / waves))


def like_bare(shapes: Shapes) -> npt.NDArray[np.bool_]:
    """Whether bare kernels were measured for operators of this kind: convolutions of images, without groups."""
    if shapes.family != "conv":
        return np.ones(len(shapes), dtype=bool)
    columns = dict(zip(FAMILIES["conv"].sizes, shapes.sizes.T, strict=True))
    found: npt.NDArray[np.bool_] = (columns["channels"] == columns["per_group"]) & (columns["h"] > 1)
    return found


def encode(
    shapes: Shapes, framework: str | Sequence[str], dtype: str | Sequence[str], vocabulary: Mapping[str, Sequence[str]]
) -> npt.NDArray[np.int64]:
    """The texts of operators as numbers [operator, column of :data:`COLUMNS`]; an unknown text has the first."""
    places = {column: {text: i for i, text in enumerate(vocabulary[column])} for column in COLUMNS}
    codes = np.zeros((len(shapes), len(COLUMNS)), dtype=np.int64)
    for i, column in enumerate(COLUMNS[:4]):
        codes[:, i] = np.array([places[column].get(d[i], 0) for d in shapes.details], dtype=np.int64)[shapes.which]
    for place, texts in ((4, framework), (5, dtype)):
        known = places[COLUMNS[place]]
        codes[:, place] = known.get(texts, 0) if isinstance(texts, str) else [known.get(text, 0) for text in texts]
    return codes


def one_hot(codes: npt.NDArray[np.int64], vocabulary: Mapping[str, Sequence[str]]) -> npt.NDArray[np.float32]:
    """The numbers as zeros and ones, for a network. Columns with a single text are left out."""
    parts = [
        np.eye(len(vocabulary[column]), dtype=np.float32)[codes[:, i]]
        for i, column in enumerate(COLUMNS)
        if len(vocabulary[column]) > 1
    ]
    return np.concatenate([*parts, np.zeros((len(codes), 0), dtype=np.float32)], axis=1)


def trees_table(found: Features, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """The features that trees split on, one row per operator."""
    return found.table(codes.astype(np.float32))


def cell_from(card: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Cell:
    """A cell from its entry in a card and its arrays (``trees.…``, ``network.…``, ``scale.…``, ``near0.…``)."""
    near = card.get("neighbours", [])
    parts: dict[str, dict[str, npt.NDArray[Any]]] = {
        name: {} for name in ("trees", "network", "scale", "points", *(f"near{i}" for i in range(len(near))))
    }
    for name, array in arrays.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = array
    network = None
    if parts["network"]:
        adapted = parts["network"].pop("adapted", None)
        weights = {k: v.astype(np.float32) for k, v in parts["network"].items()}
        network = Network(config=card["network"], weights=weights, scale=parts["scale"], adapted=adapted)
    return Cell(
        **{name: card[name] for name in ("family", "setting", "dtype", "device", "vocabulary", "domain", "share")},
        interval={name: (float(a), float(b)) for name, (a, b) in card["interval"].items()},
        trees=Trees.from_arrays(parts["trees"]) if parts["trees"] else None,
        network=network,
        points=MeasuredPoints.from_arrays(card["points"], card["vocabulary"], parts["points"])
        if parts["points"]
        else None,
        neighbours=tuple(
            (float(weight), cell_from(entry, parts[f"near{i}"])) for i, (weight, entry) in enumerate(near)
        ),
    )


def arrays_of(cell: Cell) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a cell, named as :func:`cell_from` expects them."""
    result: dict[str, npt.NDArray[Any]] = {}
    if cell.trees is not None:
        result |= {f"trees.{name}": array for name, array in cell.trees.arrays().items()}
    if cell.network is not None:
        result |= {f"network.{name}": array.astype(np.float16) for name, array in cell.network.weights.items()}
        if cell.network.adapted is not None:
            result["network.adapted"] = cell.network.adapted
        result |= {f"scale.{name}": np.asarray(array) for name, array in cell.network.scale.items()}
    if cell.points is not None:
        result |= {f"points.{name}": array for name, array in cell.points.arrays().items()}
    for i, (_, near) in enumerate(cell.neighbours):
        result |= {f"near{i}.{name}": array for name, array in arrays_of(near).items()}
    return result


def card_of(cell: Cell) -> dict[str, Any]:
    """The entry of a cell in a card."""
    entry: dict[str, Any] = {
        name: getattr(cell, name) for name in ("family", "setting", "dtype", "device", "vocabulary", "share")
    }
    entry["domain"] = {name: [list(low), list(high)] for name, (low, high) in cell.domain.items()}
    entry["interval"] = {name: list(bounds) for name, bounds in cell.interval.items()}
    if cell.network is not None:
        entry["network"] = dict(cell.network.config)
    if cell.points is not None:
        entry["points"] = cell.points.card()
    if cell.neighbours:
        entry["neighbours"] = [[weight, card_of(near)] for weight, near in cell.neighbours]
    return entry


# Devices that are alike

_LIKENESS: Final = (1.0, 1.0, 0.5, 0.75, 0.6, 0.25)
"""Usual differences between devices, in octaves: bandwidth, bandwidth per SM, ridge, peak per SM, L2, SMs."""
_NEAR: Final = 0.3
"""How near a device must be to count, in these units; chosen by leaving out one measured device at a time."""
_MOST: Final = 4


def likeness(one: Device, other: Device, dtype: str) -> float:
    """Similarity of two devices from 0 to 1, by their datasheets."""
    scaled = (_signature(one, dtype) - _signature(other, dtype)) / np.array(_LIKENESS)
    return float(np.exp(-np.mean(scaled**2) / (2.0 * _NEAR**2)))


def _signature(device: Device, dtype: str) -> Floats:
    peak, bandwidth, sms = device.peak(dtype), device.memory_bandwidth, float(device.num_sms)
    values = (bandwidth, bandwidth / sms, peak / bandwidth, peak / sms, device.l2_bytes, sms)
    return np.asarray(np.log2(values))


def beside(general: Cell, device: Device, dtype: str, measured: Sequence[tuple[Device, Cell]]) -> Cell:
    """The mean of the network of all devices and the cells of the measured devices most like ``device``."""
    weights = [(likeness(device, other, dtype), cell) for other, cell in measured]
    ranked = sorted(weights, key=lambda pair: (pair[0], pair[1].id), reverse=True)[:_MOST]
    total = sum(weight for weight, _ in ranked)
    if total <= 0.0:
        return general
    return replace(general, neighbours=tuple((weight / total, cell) for weight, cell in ranked))
