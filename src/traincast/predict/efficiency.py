"""Fractions of datasheet rates that kernels reach, per architecture, and how sure we are of them.

Fitted on the operator measurements named in NOTICE (``benchmarks/operators.py`` shows the residuals). A
device's own ``achievable`` mapping wins, by these names:

``gemm``                what a large GEMM reaches of the peak of its dtype
``gemm_<dtype>``        the same for one dtype (``gemm_fp32``, ``gemm_fp8``, ``gemm_nvfp4``, …)
``attention``           fused attention, forward, head dim 128, long sequences
``attention_backward``  the same, backward
``conv``                implicit-GEMM convolutions
``memory``              device memory, large tensors
``kernel_floor_s``      seconds of the shortest kernel (not a fraction)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from traincast.cluster import Device
from traincast.graph import OpKind, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Achievable:
    """What an architecture reaches of its peaks; ``gemm`` by dtype, with ``gemm[""]`` for the others.

    ``extra_dims`` is the cost of a score's exponential in head dims; ``measured`` is whether the
    fractions come from measurements of the architecture itself.
    """

    gemm: Mapping[str, float] = field(hash=False)
    attention: float
    attention_backward: float
    extra_dims: float
    conv: float
    memory: float
    floor_s: float
    measured: bool = True

    def gemm_fraction(self, dtype: str) -> float:
        """Fraction of the peak in ``dtype`` that a large GEMM reaches."""
        return self.gemm.get(dtype, self.gemm[""])


DEFAULT: Final = Achievable(
    gemm={"": 0.7},
    attention=0.5,
    attention_backward=0.4,
    extra_dims=30.0,
    conv=0.55,
    memory=0.8,
    floor_s=4e-6,
    measured=False,
)

ARCHITECTURES: Final[dict[str, Achievable]] = {
    "ampere": Achievable(
        gemm={"": 0.80, "fp32": 0.95}, attention=0.62, attention_backward=0.50, extra_dims=30.0, conv=0.6, memory=0.80, floor_s=3.5e-6
    ),
    "hopper": Achievable(
        gemm={"": 0.83, "fp32": 0.78, "fp8": 0.69}, attention=0.62, attention_backward=0.50, extra_dims=60.0, conv=0.5, memory=0.92, floor_s=2.5e-6
    ),
}


def achievable(device: Device) -> Achievable:
    """What ``device`` reaches: its own measured fractions over its architecture's."""
    base = ARCHITECTURES.get(device.architecture, DEFAULT)
    own = device.achievable
    if not own:
        return base
    return replace(base, memory=own.get("memory", base.memory))
