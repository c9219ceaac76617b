"""Carries measured operators to sizes that were not measured, such as another batch.

Two operators are alike if they have the same name, phase and dtypes, and all sizes that differ do so by one factor:
that of the batch. A measured time t(m) then gives the time of the wanted operator w by

    t(w) = f + (t(m) − f) · e(w) / e(m)

where e is the estimate of the cost model behind the events (on a processor, a plain roofline), and f the part that does
not grow: what the host takes beside the operator, if the events state it, and at least the least time of any measured
operator. Two measured sizes give both ends: between them the results of both are mixed by the logarithm
of the size. What is special about a machine and a kernel is in t(m)/e(m), which is only carried, never assumed.

If no measured operator is alike, the estimate is corrected: it is multiplied by the ratio of measured to estimated time
of operators of about the same size and of the same class (products, or memory-bound operators, of one dtype).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.cluster.hardware import PROCESSOR
from traincast.estimate.events.keys import PHASES
from traincast.estimate.protocol import CostModel
from traincast.graph import Operator, OpKind, TensorSpec
from traincast.graph.tensor import DType
from traincast.graph.vocabulary import PRODUCTS, spelled

Floats = npt.NDArray[np.float64]
Shapes = tuple[tuple[int, ...], ...]

_LEAST: Final = 8
"""Fewest measured operators whose least time, or whose ratios to estimates, are applied to other operators."""
_NEAR: Final = 1.5
"""Width, in factors of two of the estimate, within which operators of a class count for one another."""
_SHARE: Final = 0.9
"""Most of an operator's time that may be a part that does not grow."""
_PER_DOUBLING: Final = 0.08
_ANYWAY: Final = 0.06
_OTHERS: Final = 0.5
"""Half widths of the 90 % interval, in logarithms: per doubling of the size, at least, and by class alone."""
_PHASES: Final = {text: phase for phase, text in PHASES.items()}


@dataclass(frozen=True, slots=True)
class Anchor:
    """A measured operator: its mean time and interval, and the part of the mean that does not grow with its size."""

    operator: Operator
    seconds: float
    low: float
    high: float
    fixed: float


@dataclass(frozen=True, slots=True)
class CarriedTime:
    """Seconds of an operator and the ends of their 90 % interval; ``same``: it was measured at just this size."""

    seconds: float
    low: float
    high: float
    same: bool = False


class NearbyOperators:
    """The measured operators of one table, by what makes two alike."""

    def __init__(self, anchors: Iterable[Anchor]) -> None:
        self._alike: dict[tuple[Any, ...], list[Anchor]] = defaultdict(list)
        self._classes: dict[tuple[bool, DType | None], list[Anchor]] = defaultdict(list)
        for anchor in anchors:
            self._alike[_family(anchor.operator)].append(anchor)
            self._classes[_class(anchor.operator)].append(anchor)
        times = [a.seconds for group in self._classes.values() for a in group]
        self._floor = min(times) if len(times) >= _LEAST else 0.0

    def __bool__(self) -> bool:
        return bool(self._classes)

    def carried(self, works: Sequence[Operator], fallback: CostModel, cluster: Cluster) -> list[CarriedTime | None]:
        """Return the time of each operator, or ``None`` where nothing measured says anything about it."""
        pairs = [self._both_ends(work) for work in works]
        asked: list[Operator] = [*works, *(counterpart for pair in pairs for _, _, counterpart in pair)]
        estimate = _estimated(asked, fallback, cluster)
        at = len(works)
        found: list[CarriedTime | None] = []
        alone: list[int] = []
        for number, pair in enumerate(pairs):
            ends = []
            for anchor, distance, _ in pair:
                ends.append((distance, self._scaled(anchor, float(estimate[number]), float(estimate[at]), distance)))
                at += 1
            found.append(_mixed(ends) if ends else None)
            if not ends:
                alone.append(number)
        if alone:
            ratios = self._ratios(fallback, cluster)
            for number in alone:
                found[number] = _by_class(float(estimate[number]), ratios.get(_class(works[number])))
        return found

    def _both_ends(self, work: Operator) -> list[tuple[Anchor, float, Operator]]:
        """Return the nearest smaller and the nearest larger measured operator that are alike.

        Each has its distance (the logarithm to base 2 of wanted over measured size) and ``work`` at the measured size.
        """
        found = []
        for anchor in self._alike.get(_family(work), ()):
            factor = common_factor(work, anchor.operator)
            if factor is not None:
                found.append((anchor, math.log2(factor)))
        above = min((f for f in found if f[1] >= 0), key=lambda f: f[1], default=None)
        below = max((f for f in found if f[1] < 0), key=lambda f: f[1], default=None)
        if above is not None and above[1] == 0:
            below = None
        ends = [end for end in (above, below) if end is not None]
        return [(anchor, distance, _resized(work, anchor.operator)) for anchor, distance in ends]

    def _scaled(self, anchor: Anchor, wanted: float, measured: float, distance: float) -> CarriedTime:
        ratio = wanted / measured if measured > 0 and wanted > 0 else 2.0**distance
        fixed = min(max(anchor.fixed, self._floor), _SHARE * anchor.seconds)
        seconds = fixed + (anchor.seconds - fixed) * ratio
        if not anchor.seconds > 0:
            return CarriedTime(0.0, 0.0, 0.0)
        far = math.hypot(_PER_DOUBLING * distance, _ANYWAY if distance else 0.0)
        down = math.hypot(math.log(anchor.seconds / max(anchor.low, 1e-3 * anchor.seconds)), far)
        up = math.hypot(math.log(max(anchor.high, anchor.seconds) / anchor.seconds), far)
        return CarriedTime(seconds, seconds * math.exp(-down), seconds * math.exp(up), same=not distance)

    def _ratios(self, fallback: CostModel, cluster: Cluster) -> dict[tuple[bool, DType | None], tuple[Floats, Floats]]:
        """Return, for each class, the estimates of its measured operators and measured over estimated time."""
        ratios = {}
        for alike, group in self._classes.items():
            anchors = [a for a in group if a.seconds > 0]
            if len(anchors) >= _LEAST:
                told = _estimated([a.operator for a in anchors], fallback, cluster)
                took = np.array([a.seconds for a in anchors])
                ratios[alike] = told[told > 0], took[told > 0] / told[told > 0]
        return ratios


def _estimated(operators: Sequence[Operator], fallback: CostModel, cluster: Cluster) -> Floats:
    """Return how the times of operators grow with their sizes.

    On a processor this is the plain roofline, arithmetic and traffic one after the other: what a few cores take for
    small operators has little to do with the whole sockets that cost models know.
    """
    device = cluster.device
    if device.architecture != PROCESSOR:
        return fallback.estimate(operators, cluster).seconds
    return np.array(
        [o.flops / device.peak(o.dtype.value) + o.nbytes / device.memory_bandwidth for o in operators],
        dtype=np.float64,
    )


def anchor_of(key: str, seconds: float, low: float, high: float, *, fixed: float) -> Anchor | None:
    """Return the measured operator of a row, or ``None`` if its key is not that of an operator."""
    try:
        kind, name, phase, inputs, outputs, attributes = json.loads(key)
        operator = Operator(
            name=name, kind=OpKind(kind), phase=_PHASES[phase], inputs=_specs(inputs), outputs=_specs(outputs),
            attributes=attributes,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return None
    return Anchor(operator, seconds, low, high, fixed)


def common_factor(wanted: Operator, measured: Operator) -> float | None:
    """Return the one factor between all sizes that differ, or ``None`` if they differ by several factors.

    >>> small = Operator(name="mm", kind=OpKind.GEMM, phase=Phase.FORWARD, outputs=(), inputs=(
    ...     TensorSpec((8, 32), DType.FP32), TensorSpec((32, 16), DType.FP32)))
    >>> large = replace(small, inputs=(TensorSpec((24, 32), DType.FP32), TensorSpec((32, 16), DType.FP32)))
    >>> common_factor(large, small), common_factor(small, small)
    (3.0, 1.0)
    """
    factor = 1.0
    for one, other in zip(_main(wanted), _main(measured), strict=False):
        if len(one) != len(other):
            return None
        for a, b in zip(one, other, strict=True):
            if a == b:
                continue
            if a <= 0 or b <= 0 or (factor != 1.0 and not math.isclose(a / b, factor, rel_tol=1e-9)):
                return None
            factor = a / b
    return factor


def _resized(wanted: Operator, measured: Operator) -> Operator:
    """Return the wanted operator at the size of the measured one, with the outputs that it would have there."""
    pairs = dict(zip(_main(wanted), _main(measured), strict=False))
    changed: dict[tuple[int, int], int] = {}
    kept: set[int] = set()
    for one, other in pairs.items():
        for place, (a, b) in enumerate(zip(one, other, strict=False)):
            if a == b:
                kept.add(a)
            else:
                changed[place, a] = b
    by_value = {a: b for (_, a), b in changed.items() if a not in kept}

    def resized(spec: TensorSpec) -> TensorSpec:
        if spec.shape in pairs:
            return replace(spec, shape=pairs[spec.shape])
        shape = tuple(changed.get((place, n), by_value.get(n, n)) for place, n in enumerate(spec.shape))
        return replace(spec, shape=shape)

    return replace(
        wanted, inputs=tuple(map(resized, wanted.inputs)), outputs=tuple(map(resized, wanted.outputs)), saved=()
    )


def _mixed(ends: list[tuple[float, CarriedTime]]) -> CarriedTime:
    """Return the geometric mean of both ends, each weighted by its nearness; one end as it is."""
    if len(ends) == 1:
        return ends[0][1]
    (above, first), (below, second) = ends
    share = above / (above - below)

    def between(a: float, b: float) -> float:
        return math.exp((1 - share) * math.log(max(a, 1e-12)) + share * math.log(max(b, 1e-12)))

    return CarriedTime(
        between(first.seconds, second.seconds), between(first.low, second.low), between(first.high, second.high)
    )


def _by_class(estimate: float, known: tuple[Floats, Floats] | None) -> CarriedTime | None:
    if known is None or not estimate > 0:
        return None
    sizes, ratios = known
    weight = np.exp(-0.5 * (np.log2(sizes / estimate) / _NEAR) ** 2) + 1e-9
    order = np.argsort(ratios)
    at = np.searchsorted(np.cumsum(weight[order]), 0.5 * weight.sum())
    seconds = estimate * float(ratios[order][min(int(at), len(order) - 1)])
    return CarriedTime(seconds, seconds * math.exp(-_OTHERS), seconds * math.exp(_OTHERS))


def _class(operator: Operator) -> tuple[bool, DType | None]:
    """Return whether an operator is a product, and its dtype: times say nothing about those of another class."""
    tensors = (*operator.inputs, *operator.outputs)
    return operator.kind in PRODUCTS, next((t.dtype for t in tensors if t.dtype.is_floating), None)


def _family(operator: Operator) -> tuple[Any, ...]:
    """Return what two operators that are alike have in common."""
    return (_spelt(operator), operator.phase, operator.dtype, tuple(map(len, _main(operator)))[:2])


def _spelt(operator: Operator) -> str:
    if operator.kind is OpKind.ATTENTION:
        return "attention_backward" if operator.is_gradient else "attention"
    return spelled(operator.name)


def _main(operator: Operator) -> Shapes:
    """Return the shapes that tell operators of a name apart: those of the inputs, without scalars.

    Norms, look-ups and element-wise operators have tensors that only some releases state; two are enough.
    """
    shapes = tuple(t.shape for t in operator.inputs if t.numel > 1)
    return shapes if operator.kind in PRODUCTS else shapes[:2]


def _specs(tensors: list[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tuple(shape), DType(dtype)) for shape, dtype in tensors)
