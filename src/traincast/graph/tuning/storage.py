"""Bytes of quantised weights: packed values and the constants that dequantisation needs.

A quantised weight is stored in 4 or 8 bits and dequantised whenever a product reads it. Each format has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from traincast.errors import UnknownNameError
from traincast.graph.tensor import TensorSpec

_BLOCK: Final = 64
"""Elements that share one constant in NF4."""
_NESTED: Final = 256
"""Constants that share one constant of their own, with double quantisation."""
_GROUP: Final = 128
"""Elements that share a scale and a zero point in GPTQ."""
_CODE_BYTES: Final = 16 * 4.0
"""The 16 values of NF4 in fp32, which every weight keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A format of quantised weights: its bits per element, and the function that returns the bytes of a weight."""

    name: str
    bits: int
    nbytes: Callable[[TensorSpec], float]


def _nf4(spec: TensorSpec) -> float:
    """NF4 with double quantisation (Dettmers et al. 2023, arXiv:2305.14314).

    4 bits per element; one byte per block of 64; one fp32 per 256 blocks; the mean of the constants in fp32.
    """
    blocks = math.ceil(spec.numel / _BLOCK)
    return spec.numel / 2 + blocks + 4.0 * math.ceil(blocks / _NESTED) + 4.0 + _CODE_BYTES


def _nf4_single(spec: TensorSpec) -> float:
    """NF4 without double quantisation: 4 bits per element and one fp32 per block of 64."""
    return spec.numel / 2 + 4.0 * math.ceil(spec.numel / _BLOCK) + _CODE_BYTES


def _int8(spec: TensorSpec) -> float:
    """LLM.int8() (Dettmers et al. 2022, arXiv:2208.07339): a byte per element, one fp32 per output."""
    return spec.numel + 4.0 * _features(spec)[1]


def _gptq(spec: TensorSpec) -> float:
    """GPTQ with groups of 128: 4 bits per element; per group an fp16 scale and a 4-bit zero; an int32 per input."""
    groups = math.ceil(spec.numel / _GROUP)
    return spec.numel / 2 + 2.0 * groups + groups / 2 + 4.0 * _features(spec)[0]


def _features(spec: TensorSpec) -> tuple[int, int]:
    """Inputs and outputs of a weight [outputs, inputs]; those of experts [experts, inputs, outputs] are summed."""
    if len(spec.shape) == 3:
        experts, inputs, outputs = spec.shape
        return experts * inputs, experts * outputs
    return spec.shape[-1], spec.shape[0]


STORAGES: Final[dict[str, Storage]] = {
    s.name: s
    for s in (
        Storage(name="nf4", bits=4, nbytes=_nf4),
        Storage(name="nf4-single", bits=4, nbytes=_nf4_single),
        Storage(name="gptq", bits=4, nbytes=_gptq),
        Storage(name="int8", bits=8, nbytes=_int8),
    )
}
"""Formats by name; the first with a number of bits is the one that the number alone means."""


def find_storage(asked: str) -> Storage:
    """The format called ``asked``, or the usual one for a number of bits; raises :class:`UnknownNameError`."""
    for storage in STORAGES.values():
        if asked in (storage.name, str(storage.bits)):
            return storage
    raise UnknownNameError("quantisation", asked, ["4", "8", *STORAGES])
