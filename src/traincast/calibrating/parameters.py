"""The parameters that calibration fits: their usual values, and how much clusters differ in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import FACTORS, Calibration

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter: its usual value, and the standard deviation of its logarithm between clusters.

    Usual values come from datasheets and measured operators. Spreads are close to those of the calibrated clusters of
    the catalog: 0.18 of ``gemm``, 0.38 of ``memory``, 0.56 of ``intra``, 0.5 of ``inter``, 0.36 of ``kernels``.
    """

    name: str
    usual: float
    spread: float
    meaning: str


PARAMETERS: Final = (
    Parameter(name="gemm", usual=1.0, spread=0.25, meaning="time of matrix products"),
    Parameter(name="narrow_gemm", usual=1.0, spread=0.25, meaning="time of products in fp8 and below"),
    Parameter(name="attention", usual=1.0, spread=0.4, meaning="time of attention"),
    Parameter(name="memory", usual=1.0, spread=0.3, meaning="time of memory-bound operators"),
    Parameter(name="grouped", usual=1.0, spread=0.4, meaning="time of the experts' products"),
    Parameter(name="conv", usual=1.0, spread=0.3, meaning="time of convolutions"),
    Parameter(name="half_conv", usual=1.0, spread=0.3, meaning="time of convolutions in 16 bits"),
    Parameter(name="intra", usual=1.0, spread=0.4, meaning="time of collectives within a node"),
    Parameter(name="inter", usual=1.0, spread=0.5, meaning="time of collectives between nodes"),
    Parameter(name="send", usual=1.0, spread=0.5, meaning="time of messages between stages"),
    Parameter(name="kernels", usual=1.0, spread=0.4, meaning="host time per operator"),
    Parameter(name="blocks", usual=1.0, spread=0.5, meaning="host time per layer"),
    Parameter(name="collectives", usual=1.0, spread=0.5, meaning="host time per collective"),
    Parameter(name="handshakes", usual=1.0, spread=0.5, meaning="host time before a message"),
    Parameter(name="waits", usual=1.0, spread=0.5, meaning="time that hosts wait for one another"),
    Parameter(name="interference", usual=1.0, spread=0.7, meaning="slowdown of kernels by concurrent traffic"),
    Parameter(
        name="intra_latency_s", usual=0.3e-6, spread=1.0, meaning="latency per hop of a collective in a node, in s"
    ),
    Parameter(
        name="inter_latency_s", usual=3e-6, spread=1.5, meaning="latency per hop of a collective between nodes, in s"
    ),
    Parameter(name="jitter", usual=0.003, spread=1.0, meaning="share of a step lost per doubling of nodes"),
    Parameter(name="step_s", usual=2e-3, spread=1.5, meaning="fixed time added to every step, in s"),
)
NAMES: Final = tuple(p.name for p in PARAMETERS)
_ALWAYS: Final = frozenset({"step_s"})
_OF_SEVERAL_NODES: Final = frozenset({"jitter"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The parameters expected before any run: means and standard deviations of their logarithms."""

    mean: Floats
    spread: Floats

    @classmethod
    def usual(cls) -> Prior:
        """Return the usual values and spreads of all parameters."""
        return cls(
            mean=np.log([p.usual for p in PARAMETERS]),
            spread=np.array([p.spread for p in PARAMETERS]),
        )

    @classmethod
    def around(cls, calibration: Calibration, *, spread: Floats | None = None) -> Prior:
        """Return a prior centred on ``calibration``; a parameter that it leaves at 0 has its usual value."""
        usual = cls.usual()
        mean = np.array([_log(getattr(calibration, n), m) for n, m in zip(NAMES, usual.mean, strict=True)])
        return cls(mean=mean, spread=usual.spread if spread is None else spread)


def _log(value: float, otherwise: float) -> float:
    return float(np.log(value)) if value > 0.0 else float(otherwise)


def calibration_at(values: Floats, *, like: Calibration | None = None) -> Calibration:
    """Return a calibration whose parameters have the logarithms ``values``; everything else is taken from ``like``."""
    numbers = dict(zip(NAMES, np.exp(values).tolist(), strict=True))
    return replace(like or Calibration(), **numbers)


def matters(name: str, by_part: Mapping[str, float], *, nodes: int) -> bool:
    """Return whether the step time of a run depends on a parameter.

    ``by_part`` has the uncalibrated seconds of each part of the step, ``nodes`` is the number of nodes.
    """
    if name in (*FACTORS, "interference"):
        return by_part.get(name, 0.0) > 0.0
    if name == "intra_latency_s":
        return by_part.get("intra", 0.0) > 0.0
    if name == "inter_latency_s":
        return by_part.get("inter", 0.0) > 0.0
    return name in _ALWAYS or (name in _OF_SEVERAL_NODES and nodes > 1)
