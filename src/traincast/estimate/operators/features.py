"""The features of an operator for a learned cost model: its sizes, its roofline, and its tiles and waves.

Every operator belongs to one family, and a family has one list of sizes. Sizes and the rates of a device give a
roofline in seconds (the baseline that a model corrects), flat features, and a sequence of features over tile shapes
from the smallest to the largest: how full the tiles are, and in how many waves they run. A device enters only through
these, never by its name or its rates alone, so that a model can be used on another device. An operator of a captured
model and the same operator in a table of measurements have the same features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.estimate.operators.families import FAMILIES, Floats, Rates, fill, log2
from traincast.graph import DType, Operator, OpKind, Phase
from traincast.graph.vocabulary import PRODUCTS
from traincast.graph.work_amount import attention_dims

Features32: TypeAlias = npt.NDArray[np.float32]

FEATURES_VERSION: Final = 2
"""Counts changes in the meaning of features."""
CHANGED: Final = {"recurrent": 2}
"""The version that last changed the features of a family; 1 where absent. Cells fitted to earlier ones are refused."""
FLOOR_S: Final = 2e-6
"""Seconds of the shortest kernel; keeps the logarithm of an efficiency finite and smooth for tiny operators."""
SHARPNESS: Final = 4.0
"""How sharply the roofline bends from memory to compute."""

TILES: Final = tuple(
    sorted(((rows, columns) for rows in (16, 32, 64, 128, 256) for columns in (32, 64, 128, 256)), key=math.prod)
)
"""Shapes of output tiles that matrix kernels use, by area: the axis along which a network reads an operator."""
TILE_CHANNELS: Final = ("waves", "wave_fill", "tile_fill", "time", "depth")

_PASSES: Final = {
    "fwd": 1.0, "bwd": 2.0, "bwd_data": 1.0, "bwd_weight": 1.0, "bwd_grad_act": 1.0, "bwd_grad_w": 1.0,
    "update": 1.0, "fwd+bwd+update": 3.0,
}  # fmt: skip
"""Products of a phase, in units of those of forward, by the end of a measured operator's name."""
ATTENTION_BACKWARD: Final = 2.5
WIDTHS: Final = ("bytes", "out_bytes")
"""Sizes that are widths of elements: they belong to a dtype, and nothing is extrapolated over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Operators of one family as columns: sizes, passes, and which of ``details`` each has.

    An entry of ``details`` has the texts that distinguish operators of the same sizes: ``name``, ``act``, ``optimizer``
    and ``layout``.
    """

    family: str
    sizes: Floats
    passes: Floats
    details: tuple[tuple[str, ...], ...]
    which: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, chosen: npt.NDArray[np.intp]) -> Shapes:
        """Some of the operators."""
        return replace(self, sizes=self.sizes[chosen], passes=self.passes[chosen], which=self.which[chosen])

    def within(self, low: Floats, high: Floats) -> Shapes:
        """The same with every size moved into a range."""
        return replace(self, sizes=np.clip(self.sizes, low, high))

    def as_wide_as(self, dtype: str) -> Shapes:
        """The same operators with narrower elements converted to ``dtype``; unchanged if it is empty."""
        least = DType(dtype).nbytes if dtype else 0.0
        columns = [i for i, name in enumerate(FAMILIES[self.family].sizes) if name in WIDTHS]
        if not columns or (self.sizes[:, columns[0]] >= least).all():
            return self
        sizes = self.sizes.copy()
        sizes[:, columns] = np.maximum(sizes[:, columns], least)
        return replace(self, sizes=sizes)

    @property
    def names(self) -> list[str]:
        """The name of each operator."""
        distinct = [details[0] for details in self.details]
        return [distinct[i] for i in self.which.tolist()]

    def named(self, names: Mapping[str, str]) -> Shapes:
        """The same operators under other names, with the passes of those."""
        details = tuple((names.get(name, name), *rest) for name, *rest in self.details)
        passes = np.array([_passes(self.family, name) for name, *_ in details])[self.which]
        return replace(self, details=details, passes=passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The input of a model: flat features, :data:`TILE_CHANNELS` over :data:`TILES`, and the baseline."""

    flat: Features32
    tiles: Features32
    baseline_s: Floats

    def table(self, *others: Features32) -> Features32:
        """All features as one flat row per operator, followed by the columns of ``others``."""
        positions = self.tiles.reshape(len(self.tiles), len(TILES) * len(TILE_CHANNELS))
        return np.concatenate([self.flat, positions, *others], axis=1)


def roofline(shapes: Shapes, rates: Rates) -> Floats:
    """Seconds at the datasheet's rates, the memory and compute bounds joined smoothly, plus the shortest kernel's."""
    flops, nbytes = FAMILIES[shapes.family].amounts(shapes.sizes)
    compute, memory = shapes.passes * flops / rates.peak, shapes.passes * nbytes / rates.bandwidth
    longer, shorter = np.maximum(compute, memory), np.minimum(compute, memory)
    ratio = shorter / np.maximum(longer, 1e-300)
    seconds: Floats = longer * (1.0 + ratio**SHARPNESS) ** (1.0 / SHARPNESS) + FLOOR_S
    return seconds


def features(shapes: Shapes, rates: Rates) -> Features:
    """The features of ``shapes`` on a device with ``rates``."""
    family = FAMILIES[shapes.family]
    b, m, n, k = family.product(shapes.sizes)
    flops, nbytes = family.amounts(shapes.sizes)
    baseline = roofline(shapes, rates)
    compute, memory = shapes.passes * flops / rates.peak, shapes.passes * nbytes / rates.bandwidth
    size = nbytes / np.maximum(b * (m * k + k * n + m * n), 1.0)
    columns = [
        *(log2(shapes.sizes[:, i]) for i in range(shapes.sizes.shape[1])),
        log2(shapes.passes),
        *(log2(x) for x in (m, n, k, b * m * n)),
        log2(compute),
        log2(memory),
        log2(compute / np.maximum(memory, 1e-30)),
        log2(baseline),
        log2(nbytes / rates.l2_bytes),
        log2(b * k * n * size / rates.l2_bytes),
        log2(b * m * k * size / rates.l2_bytes),
        *(fill(m, step) for step in (8, 16, 32, 64, 128, 256)),
        *(fill(x, step) for x in (n, k) for step in (8, 64, 128, 256)),
        m % 2.0,
        *family.own(shapes.sizes, rates),
    ]
    flat = np.stack(columns, axis=1).astype(np.float32)
    tiles = _tiles((b, m, n, k), size=size, baseline=baseline, passes=shapes.passes, rates=rates)
    return Features(flat=flat, tiles=tiles, baseline_s=baseline)


def _tiles(
    product: tuple[Floats, Floats, Floats, Floats], *, size: Floats, baseline: Floats, passes: Floats, rates: Rates
) -> Features32:
    """For each tile shape: waves, fill of the last wave, fill of the tiles, time over the baseline, depth."""
    b, m, n, k = product
    result = np.empty((len(m), len(TILES), len(TILE_CHANNELS)), dtype=np.float32)
    per_sm = rates.peak / rates.num_sms
    for i, (rows, columns) in enumerate(TILES):
        down, across = np.ceil(m / rows), np.ceil(n / columns)
        tiles = b * down * across
        waves = tiles / rates.num_sms
        whole = np.ceil(waves)
        compute = whole * (2.0 * rows * columns) * k / per_sm
        # Every row of tiles reads all of the second operand, mostly from L2, several times as fast as memory.
        traffic = b * (across * m * k + down * k * n + m * n) * size / (3.0 * rates.bandwidth)
        result[:, i, 0] = log2(waves)
        result[:, i, 1] = waves / whole
        result[:, i, 2] = b * m * n / (tiles * rows * columns)
        result[:, i, 3] = log2((passes * np.maximum(compute, traffic) + FLOOR_S) / baseline)
        result[:, i, 4] = log2(k * np.minimum(1.0, waves))
    return result


_FAMILY_OF_FORMULA: Final = {
    OpKind.GEMM: "product",
    OpKind.GROUPED_GEMM: "grouped",
    OpKind.ATTENTION: "attention",
    OpKind.CONV: "conv",
    OpKind.RNN: "recurrent",
}
_FAMILY_OF_KIND: Final = {kind: _FAMILY_OF_FORMULA[kind.formula] for kind in PRODUCTS}


def family_of(op: Operator) -> str | None:
    """The family of ``op``, or ``None`` if there is none (transposed convolutions).

    Attention whose queries are wider than its values has no family: it was only measured in serving, before kernels
    were tuned for training.
    """
    if op.kind is OpKind.ATTENTION and _unlike_dims(op):
        return None
    if op.kind is OpKind.SCAN:
        return None
    family = _FAMILY_OF_KIND.get(op.kind, "traffic")
    needs = {"conv": 3 if op.is_gradient else 2, "recurrent": 3}.get(family, 0)
    if len(op.inputs) < needs or (family == "conv" and op.attributes.get("transposed", False)):
        return None
    return family


def shapes_of(family: str, operators: Sequence[Operator]) -> Shapes:
    """Returns ``operators``, which must be of one family, as columns."""
    of = FAMILIES[family].of
    width = len(FAMILIES[family].sizes)
    sizes = np.array([of(op) for op in operators], dtype=np.float64).reshape(len(operators), width)
    places: dict[tuple[str, ...], int] = {}
    which = np.array([places.setdefault(_details(op), len(places)) for op in operators], dtype=np.intp)
    passes = np.array([_passes(family, name) for name, *_ in places])[which]
    return Shapes(family=family, sizes=sizes, passes=passes, details=tuple(places), which=which)


_MEASURED_NAME: Final = {
    (OpKind.GEMM, Phase.FORWARD): "gemm.fwd",
    (OpKind.GEMM, Phase.BACKWARD): "gemm.fwd",  # a gradient of a product is a product
    (OpKind.BATCHED_GEMM, Phase.FORWARD): "bmm.fwd",
    (OpKind.BATCHED_GEMM, Phase.BACKWARD): "bmm.fwd",
    (OpKind.GROUPED_GEMM, Phase.FORWARD): "grouped_gemm.fwd",
    (OpKind.ATTENTION, Phase.FORWARD): "attention.fwd",
    (OpKind.ATTENTION, Phase.BACKWARD): "attention.bwd",
    (OpKind.CONV, Phase.FORWARD): "conv2d.fwd",
    (OpKind.CONV, Phase.BACKWARD): "conv2d.bwd",
    (OpKind.RNN, Phase.FORWARD): "rnn.fwd",
    (OpKind.RNN, Phase.BACKWARD): "rnn.bwd",
}
"""Names in tables of measurements, by kind and phase of an operator of a captured model."""


def _details(op: Operator) -> tuple[str, ...]:
    name = op.name if _phase_in_name(op.name) else _MEASURED_NAME.get((op.kind, op.phase), op.name)
    a = op.attributes
    if name == "conv2d.bwd" and a.get("products", 2) == 1:
        name = "conv2d.bwd_weight"  # the first layer: nothing waits for the gradient of its input
    if not a:
        return (name, "none", "none", "none")
    layout = a.get("layout", a.get("stage", "none"))
    return (name, str(a.get("act", "none")), str(a.get("optimizer", "none")), str(layout))


def _unlike_dims(op: Operator) -> bool:
    *_, dims_qk, dims_v = attention_dims(op)
    return dims_qk != dims_v


@lru_cache(maxsize=4096)
def _phase_in_name(name: str) -> str | None:
    phase = name.rpartition(".")[2]
    return phase if phase in _PASSES else None


@lru_cache(maxsize=4096)
def _passes(family: str, name: str) -> float:
    if family == "attention" and name.endswith((".bwd", "backward")):
        return ATTENTION_BACKWARD
    return _PASSES.get(_phase_in_name(name) or "fwd", 1.0)


BOTH_GRADIENTS: Final = {
    "conv2d.bwd": ("conv2d.bwd_data", "conv2d.bwd_weight"),
    "rnn.bwd": ("rnn.bwd_data", "rnn.bwd_weight"),
}
"""Operators that compute both gradients, and the kernels that libraries run for them one after the other."""
INTERCHANGEABLE: Final = {DType.BF16.value: DType.FP16.value, DType.FP16.value: DType.BF16.value}
"""Dtypes of the same width and rate: if only one was measured, it stands for the other."""
