"""Grouped products of training: the products of all experts of a layer, from the time of one product of all their rows.

With E experts that have R rows together and weights [k, n] each:

    seconds = √((c · product)² + (bytes of weights / bandwidth)²) + E · start

``product`` is the time of one plain product of R rows. All weights are read; the gradient of the weights writes them,
or reads and writes the sums that it is added to. So few rows per expert are slow: weights are read for little work,
and each expert's product starts and drains by itself.

The constants are fitted to products of Transformer Engine on B200 and A100, forward and both gradients; ``python -m
benchmarks.grouped`` fits them again and shows the error on shapes, experts, rows and devices that were left out.
"""

from __future__ import annotations

import math
from typing import Final

from traincast.cluster import Device
from traincast.cluster.architecture import load_architecture
from traincast.estimate.operators.efficiency import achievable
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec
from traincast.graph.work_amount import grouped_gemm_dims

SLOWDOWN: Final = {"looped": 1.44, "fused": 1.37}
"""c, by kernels, over products measured in inference.

On B200, the plain products of training themselves take 1.37 times as long as those of inference. So a loop over the
experts costs 5 %, which a fused kernel saves. Hopper was not measured.
"""
OLDER_SLOWDOWN: Final = {"looped": 1.03, "fused": 1.0}
"""The same up to Ampere, measured on A100."""
START_S: Final = {"looped": 4.5e-6, "fused": 0.0}
"""Seconds that each expert adds."""
_WIDE_BYTES: Final = 2.0
"""Bytes of the elements that are cast to narrower dtypes."""
SHARPNESS: Final = 2.0
"""How products and the traffic of weights overlap; 2 in the formula above."""
INTERVAL: Final = (0.83, 1.25)
"""Measured over estimated time, 5th and 95th percentile of products whose shape was left out."""


def of_training(op: Operator) -> bool:
    """Whether ``op`` is a grouped product that runs by one of these kernels."""
    return op.kind is OpKind.GROUPED_GEMM and op.attributes.get("kernel") in SLOWDOWN


def makes_weights(op: Operator) -> bool:
    """Whether a grouped product makes the gradients of the experts' weights."""
    return len(op.inputs[1].shape) < 3


def dims_of_product(op: Operator) -> tuple[float, float, float]:
    """``(m, n, k)`` of one plain product of the rows of all experts."""
    _, rows, n, k = grouped_gemm_dims(op)
    return (k, n, rows) if makes_weights(op) else (rows, n, k)


def as_product(op: Operator) -> Operator:
    """One plain product of the rows of all experts."""
    m, n, k = (max(1, round(size)) for size in dims_of_product(op))
    dtype = op.inputs[0].dtype
    return Operator(
        name="mm",
        kind=OpKind.GEMM,
        phase=Phase.FORWARD,
        inputs=(TensorSpec((m, k), dtype), TensorSpec((k, n), dtype)),
        outputs=(TensorSpec((m, n), op.outputs[0].dtype),),
    )


def slowdown(op: Operator, device: Device) -> float:
    """c of the formula."""
    of = OLDER_SLOWDOWN if load_architecture(device.architecture).older_grouped else SLOWDOWN
    return of[str(op.attributes["kernel"])]


def weight_bytes(op: Operator) -> float:
    """Bytes of weights that a grouped product reads, or of gradients that it writes or adds to their sums.

    The attribute ``adds_to`` is the dtype of the sums, if the product adds to them itself.
    """
    if not makes_weights(op):
        return float(op.inputs[1].nbytes)
    sums = op.attributes.get("adds_to")
    return 2.0 * op.outputs[0].numel * DType(str(sums)).nbytes if sums else float(op.outputs[0].nbytes)


def casts_bytes(op: Operator) -> float:
    """Bytes that move while the rows of a product are cast to its narrow dtype; 0 in 16 bits and in fused kernels.

    A kernel reads rows in bf16 and writes them twice, by rows for this product and by columns for the gradient of the
    weights. A 4-bit product first reads them once more for the scale of the whole tensor. The gradient of the weights
    finds both its inputs cast.
    """
    rows = op.inputs[0]
    if op.attributes.get("kernel") != "looped" or makes_weights(op) or rows.dtype.nbytes >= _WIDE_BYTES:
        return 0.0
    reads = _WIDE_BYTES if rows.dtype.nbytes >= 1 else 2 * _WIDE_BYTES
    return float(rows.numel * (reads + 2 * rows.dtype.nbytes))


def starts_s(op: Operator) -> float:
    """Seconds in which the products of the experts start."""
    return grouped_gemm_dims(op)[0] * START_S[str(op.attributes["kernel"])]


def grouped_seconds(op: Operator, device: Device, *, product_s: float) -> float:
    """Seconds of a grouped product on ``device``, where one product of all its rows takes ``product_s``."""
    bandwidth = device.memory_bandwidth * achievable(device).memory
    products = math.hypot(slowdown(op, device) * product_s, weight_bytes(op) / bandwidth)
    return products + casts_bytes(op) / bandwidth + starts_s(op)
