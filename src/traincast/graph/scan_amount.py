"""FLOPs and bytes of state-space and linear-attention operators, as their chunked kernels run them.

A kernel cuts the sequence into chunks. Inside a chunk it multiplies matrices as attention does; from chunk to chunk it
passes a state. Both take time in proportion to the sequence. Backward makes two products for each of forward's and
computes what forward did not keep a second time.

* Mamba-2 (Dao and Gu 2024, arXiv:2405.21060, section 6), per token with chunks of Q, H heads of width P, state N and
  G groups: ``(Q+1)·(G·N + H·P)`` inside a chunk, where masked blocks are skipped, and ``4·H·P·N`` for states.
* Gated delta rule (Yang et al. 2024, arXiv:2412.06464, section 3.3), per token and head with chunks of C:
  ``2·C·(3·dk + 2·dv) + 2·C²/3`` inside a chunk (a chunk is one tile, nothing is skipped), ``6·dk·dv`` for states.
* Mamba (Gu and Dao 2023, arXiv:2312.00752): 9 FLOPs per token, channel and state, none of them a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from traincast.graph.vocabulary import Sized

_FP32: Final = 4.0
_HALF: Final = 2.0
_SELECTIVE_FLOPS: Final = 9.0
_SELECTIVE_BACKWARD: Final = 3.0
"""Backward of the selective scan runs forward again and makes two gradients for each of its steps."""


class ScanAmount(NamedTuple):
    """FLOPs of forward, FLOPs that backward repeats, and bytes beyond inputs and outputs, each read and written."""

    flops: float
    again: float
    inner_bytes: float


def _ssd(op: Sized) -> ScanAmount:
    x, _, b = (t.shape for t in op.inputs[_first(op) : _first(op) + 3])
    batch, heads, seq, width = x
    groups, state = b[1], b[3]
    chunk = min(float(op.attributes.get("chunk", 256)), seq)
    tokens = float(batch) * seq
    scores = tokens * (chunk + 1) * groups * state
    states = 2.0 * tokens * heads * width * state
    flops = scores + tokens * (chunk + 1) * heads * width + 2.0 * states
    stored = tokens / chunk * heads * width * state * _FP32
    # States are written, passed on and written again; scores of a chunk are written once; x and b are read twice.
    inner = 2.0 * stored + tokens * chunk * groups * _FP32
    return ScanAmount(flops, scores + states, inner)


def _delta(op: Sized) -> ScanAmount:
    _, k, v = (t.shape for t in op.inputs[_first(op) : _first(op) + 3])
    batch, heads, seq, wide = v
    narrow = k[3]
    chunk = min(float(op.attributes.get("chunk", 64)), seq)
    rows = float(batch) * heads * seq
    inside = rows * (2.0 * chunk * (3 * narrow + 2 * wide) + 2.0 * chunk**2 / 3)
    states = 6.0 * rows * narrow * wide
    repeated = rows * (2.0 * chunk * (narrow + wide) + 4.0 * narrow * wide)
    # One state per chunk, the rows that update it (w, u and the new v), and the inverse of each chunk.
    inner = rows * (narrow * wide / chunk * _HALF + (narrow + 2 * wide) * _HALF + chunk * (_FP32 + _HALF))
    return ScanAmount(inside + states, repeated, inner)


def _selective(op: Sized) -> ScanAmount:
    x, b = op.inputs[_first(op)].shape, op.inputs[_first(op) + 2].shape
    flops = _SELECTIVE_FLOPS * x[0] * x[1] * x[2] * b[2]
    return ScanAmount(flops, (_SELECTIVE_BACKWARD - 2.0) * flops, 0.0)


_AMOUNTS: Final[Mapping[str, Callable[[Sized], ScanAmount]]] = {
    "ssd_scan": _ssd,
    "gated_delta_rule": _delta,
    "selective_scan": _selective,
}
WITHOUT_PRODUCTS: Final = frozenset({"selective_scan", "selective_scan_backward"})
"""Scans that tensor cores cannot help."""


def _first(op: Sized) -> int:
    return 1 if op.is_gradient else 0


def _amount(op: Sized) -> ScanAmount:
    return _AMOUNTS[op.name.removesuffix("_backward")](op)


def scan_flops(op: Sized) -> float:
    """Floating-point operations of a scan."""
    amount = _amount(op)
    return 2.0 * amount.flops + amount.again if _first(op) else amount.flops


def scan_model_flops(op: Sized) -> float:
    """FLOPs of a scan without those that backward repeats."""
    return _amount(op).flops * (2.0 if _first(op) else 1.0)


def scan_inner_bytes(op: Sized) -> float:
    """Bytes that the kernels of a scan write for one another and read again; backward moves those of forward too."""
    return _amount(op).inner_bytes * (3.0 if _first(op) else 1.0)
