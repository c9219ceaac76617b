"""Families of operators: operators that share a list of sizes, and what those sizes amount to.

Every family says how its sizes are read from an operator, which matrix product they amount to, how many FLOPs and bytes
one pass has, and which features it has beyond those of all families. Whoever changes the meaning of a size or a feature
counts up ``FEATURES_VERSION`` in :mod:`traincast.estimate.operators.features`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Device
from traincast.graph import Operator, OpKind
from traincast.graph.work_amount import attention_dims, attention_fraction, gemm_dims, grouped_gemm_dims

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Datasheet rates of a device, for one dtype: scalars, or columns for operators of several devices."""

    peak: Floats
    bandwidth: Floats
    num_sms: Floats
    l2_bytes: Floats

    @staticmethod
    def of(device: Device, dtype: str) -> Rates:
        """The rates of ``device``."""
        values = (device.peak(dtype), device.memory_bandwidth, device.num_sms, device.l2_bytes)
        return Rates(**{name: np.asarray(float(v)) for name, v in zip(Rates.__slots__, values, strict=True)})


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFamily:
    """Operators that share a list of sizes.

    ``sizes`` name the columns; ``product`` turns them into the matrix product (b, m, n, k) that the family amounts
    to, ``amounts`` into FLOPs and bytes of one pass, ``own`` into features of this family alone, ``place`` into the
    coordinates of :mod:`traincast.estimate.operators.points`, in units over which an efficiency may change.
    """

    sizes: tuple[str, ...]
    of: Callable[[Operator], tuple[float, ...]]
    product: Callable[[Floats], tuple[Floats, Floats, Floats, Floats]]
    amounts: Callable[[Floats], tuple[Floats, Floats]]
    own: Callable[[Floats, Rates], list[Floats]] = lambda sizes, rates: []
    place: Callable[[Floats], list[Floats]] | None = None


def log2(x: Floats) -> Floats:
    """Logarithm of base 2; of zero, that of 1e-30."""
    result: Floats = np.log2(np.maximum(x, 1e-30))
    return result


def fill(x: Floats, step: int) -> Floats:
    """Share of padded positions that are used where ``x`` is padded to a multiple of ``step``."""
    result: Floats = x / (np.ceil(x / step) * step)
    return result


def _sizes_of_product(op: Operator) -> tuple[float, ...]:
    return (*gemm_dims(op), op.inputs[0].dtype.nbytes, op.outputs[0].dtype.nbytes)


def _product_of_product(s: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    return s[:, 0], s[:, 1], s[:, 2], s[:, 3]


def _product_amounts(s: Floats) -> tuple[Floats, Floats]:
    b, m, n, k, size, out_size = s.T
    return 2.0 * b * m * n * k, b * ((m * k + k * n) * size + m * n * out_size)


def _sizes_of_grouped(op: Operator) -> tuple[float, ...]:
    experts, rows, n, k = grouped_gemm_dims(op)
    a = op.attributes
    tokens, topk = float(a.get("num_tokens", rows)), float(a.get("topk", 1))
    of_all = float(a.get("num_experts", experts))
    # A whole gated MLP has a second product, from half of the first one's width back to where it came from.
    products = 1.5 if "topk" in a else 1.0
    skew = 1.0 + float(a.get("skew", 0.0))
    return experts, rows, n, k, products, tokens, topk, of_all, skew, op.inputs[0].dtype.nbytes


def _product_of_grouped(s: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    experts, rows, n, k = s.T[:4]
    active = np.minimum(experts, np.maximum(rows, 1.0))
    return active, rows / active, n, k


def _grouped_amounts(s: Floats) -> tuple[Floats, Floats]:
    experts, rows, n, k, products, *_, size = s.T
    active = np.minimum(experts, np.maximum(rows, 1.0))
    flops = 2.0 * rows * n * k * products
    return flops, size * (active * n * k * products + rows * (k + n) * (2.0 * products - 1.0))


def _sizes_of_attention(op: Operator) -> tuple[float, ...]:
    batch, heads, queries, keys, dim, dim_v = attention_dims(op)
    kv_heads = op.inputs[-2].shape[1]
    return batch, heads, kv_heads, queries, keys, dim + dim_v, attention_fraction(op), op.inputs[0].dtype.nbytes


def _product_of_attention(s: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    batch, heads, _, queries, keys, dims, share, _ = s.T
    return batch * heads, queries, dims / 2.0, keys * share


def _attention_amounts(s: Floats) -> tuple[Floats, Floats]:
    batch, heads, kv_heads, queries, keys, dims, share, size = s.T
    flops = 2.0 * batch * heads * queries * keys * share * dims
    return flops, size * batch * dims * (heads * queries + kv_heads * keys)


def _attention_features(s: Floats, rates: Rates) -> list[Floats]:
    """Groups of queries per key, and the waves of blocks of queries that attention kernels run."""
    batch, heads, kv_heads, queries, keys, dims, _, size = s.T
    columns = [
        log2(heads / kv_heads),
        log2(batch * heads),
        log2(batch * queries),
        log2(batch * queries * heads * dims),
        log2(batch * heads * keys),
        log2(batch * kv_heads * keys * dims * size / rates.l2_bytes),
    ]
    for block in (64, 128, 192, 256):
        waves = batch * heads * np.ceil(queries / block) / rates.num_sms
        columns += [log2(waves), waves / np.ceil(waves), np.ceil(waves) - waves]
    return columns


def _grouped_features(s: Floats, rates: Rates) -> list[Floats]:
    """Rows per expert, and how many experts see any row where each token draws its own."""
    experts, rows, n, k, _, tokens, topk, of_experts, skew, size = s.T
    seen = experts * -np.expm1(np.minimum(tokens, 1e6) * np.log1p(-np.minimum(topk / of_experts, 0.999)))
    per_expert = rows / np.maximum(seen, 1.0)
    columns = [
        log2(seen),
        log2(per_expert),
        log2(rows / experts),
        log2(seen * n * k * size / rates.bandwidth),
        log2(of_experts / experts),
        log2(np.maximum(1.0, rows * (skew - 1.0) / experts)),
    ]
    for rows_of_tile in (16, 64, 128):
        waves = seen * np.ceil(per_expert / rows_of_tile) * np.ceil(n / 128.0) / rates.num_sms
        columns += [log2(waves), waves / np.ceil(waves)]
    return columns


def _conv_features(s: Floats, rates: Rates) -> list[Floats]:
    """The tensors' own traffic, how channels and images fit the tiles of direct and Winograd kernels."""
    batch, channels, per_group, out_channels, h, w, kh, kw, stride, ho, wo, _, size = s.T
    taken, made = batch * channels * h * w, batch * out_channels * ho * wo
    window = per_group * kh * kw
    lowered = batch * ho * wo * window
    columns = [
        log2(taken * size / rates.bandwidth),
        log2(made * size / rates.bandwidth),
        log2(taken / made),
        log2(out_channels * window * size / rates.l2_bytes),
        log2(lowered * size / rates.bandwidth),
        log2(batch * ho * wo),
        log2(ho * wo),
        log2(batch * np.ceil(ho / 4) * np.ceil(wo / 4) * out_channels * per_group),
        log2(2.0 * taken * out_channels * kh * kw / rates.peak),
        (h - stride * (ho - 1.0) - kh) / np.maximum(h, 1.0),
        h / (ho * stride),
        ((kh == 3) & (stride == 1)).astype(np.float64),
        ((kh == 1) & (stride == 1)).astype(np.float64),
        *(fill(channels, step) for step in (4, 8, 16, 32, 64)),
        *(fill(out_channels, step) for step in (4, 16, 32)),
        *(fill(wo, step) for step in (2, 4, 8, 16, 32)),
        *(fill(batch, step) for step in (8, 16, 32)),
        channels % 2.0,
        out_channels % 2.0,
    ]
    for tile in (32, 64, 128):
        waves = np.ceil(batch * ho * wo / 128.0) * np.ceil(out_channels / tile) / rates.num_sms
        columns += [log2(waves), waves / np.ceil(waves)]
    return columns


def _sizes_of_conv(op: Operator) -> tuple[float, ...]:
    """The sizes of the forward; a captured gradient has the gradient of the output, the input and the weight."""
    if op.is_gradient:
        y, x, w = (tensor.shape for tensor in op.inputs[:3])
    else:
        x, w, y = op.inputs[0].shape, op.inputs[1].shape, op.outputs[0].shape
    a = op.attributes
    stride = float(a.get("stride", 1))
    bias = 2.0 if a.get("bias", False) else 1.0
    window = w[2:] if len(w) == 4 else (1, math.prod(w[2:]))
    image = x[2:] if len(x) == 4 else (1, math.prod(x[2:]))
    out = y[2:] if len(y) == 4 else (1, math.prod(y[2:]))
    return x[0], x[1], w[1], w[0], *image, *window, stride, *out, bias, op.inputs[0].dtype.nbytes


def _product_of_conv(s: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    batch, channels, per_group, out_channels, _, _, kh, kw, _, ho, wo, _, _ = s.T
    groups = np.maximum(1.0, channels / np.maximum(per_group, 1.0))
    return groups, batch * ho * wo, out_channels / groups, per_group * kh * kw


def _conv_amounts(s: Floats) -> tuple[Floats, Floats]:
    batch, channels, per_group, out_channels, h, w, kh, kw, _, ho, wo, _, size = s.T
    window = per_group * kh * kw
    flops = 2.0 * batch * ho * wo * out_channels * window
    return flops, size * (batch * (channels * h * w + out_channels * ho * wo) + out_channels * window)


def _place_of_conv(s: Floats) -> list[Floats]:
    """Sizes, padding, and what decides which kernel a library takes."""
    batch, channels, _, out_channels, h, w, kh, kw, stride, ho, _, _, _ = s.T
    padding = np.maximum(0.0, (ho - 1.0) * stride + kh - h)
    return [
        log2(batch) / 9.0,
        log2(channels) / 6.0,
        log2(out_channels) / 6.0,
        log2(h) / 6.0,
        log2(w) / 6.0,
        log2(kh),
        log2(kw) / 2.4,
        log2(stride) / 0.8,
        log2(1.0 + padding) / 8.0,
        ((kh == 1) & (kw == 1)) / 3.0,
    ]


def _sizes_of_recurrent(op: Operator) -> tuple[float, ...]:
    """The sizes of one layer in one direction: its input, its weights [gates · hidden, inner] and [.., hidden]."""
    data, weight, recurrent = op.inputs[:3]
    batch = data.shape[data.batch_dim or 0]
    steps = max(1.0, data.numel / (data.shape[-1] * batch))
    hidden = recurrent.numel / recurrent.shape[0]
    gates = recurrent.shape[0] / hidden
    return steps, batch, weight.numel / weight.shape[0], hidden, gates, data.dtype.nbytes


def _product_of_recurrent(s: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    steps, batch, inner, hidden, gates, _ = s.T
    return np.ones(len(s)), steps * batch, gates * hidden, inner + hidden


def _recurrent_amounts(s: Floats) -> tuple[Floats, Floats]:
    steps, batch, inner, hidden, gates, size = s.T
    weights = gates * hidden * (inner + hidden)
    return 2.0 * steps * batch * weights, size * (weights + steps * batch * (inner + hidden))


def _recurrent_features(s: Floats, rates: Rates) -> list[Floats]:
    """The product of one time step, which the next step waits for, and whether the weights stay on the chip."""
    steps, batch, _, hidden, gates, size = s.T
    return [
        log2(steps),
        log2(2.0 * batch * gates * hidden**2 / rates.peak),
        log2(gates * hidden**2 * size / rates.bandwidth),
        log2(gates * hidden**2 * size / rates.l2_bytes),
    ]


def _place_of_recurrent(s: Floats) -> list[Floats]:
    steps, batch, inner, hidden, gates, _ = s.T
    return [log2(steps) / 8.0, log2(batch) / 4.0, log2(inner) / 4.0, log2(hidden) / 4.0, log2(gates) / 4.0]


def _sizes_of_traffic(op: Operator) -> tuple[float, ...]:
    out = op.outputs[0] if op.outputs else op.inputs[0]
    shape = out.shape or (1,)
    a = op.attributes
    table = op.inputs[0].shape[0] if op.kind is OpKind.EMBEDDING and len(op.inputs) > 1 and op.inputs[0].shape else 1
    last = op.inputs[0].shape[-1] if op.kind is OpKind.LOSS and op.inputs and op.inputs[0].shape else shape[-1]
    pieces = float(a.get("layers", 1)) * float(a.get("tensors", 1))
    return out.numel, last, op.bytes_read, op.bytes_written, table, pieces, float(a.get("tp", 1))


def _product_of_traffic(s: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    elements, last = s[:, 0], s[:, 1]
    one = np.ones(len(s))
    return one, np.maximum(1.0, elements / np.maximum(last, 1.0)), last, one


def _traffic_amounts(s: Floats) -> tuple[Floats, Floats]:
    return s[:, 0] * 2.0, s[:, 2] + s[:, 3]


FAMILIES: Final = {
    "product": OperatorFamily(
        sizes=("b", "m", "n", "k", "bytes", "out_bytes"),
        of=_sizes_of_product, product=_product_of_product, amounts=_product_amounts,
    ),
    "grouped": OperatorFamily(
        sizes=("experts", "rows", "n", "k", "products", "tokens", "topk", "of_experts", "skew", "bytes"),
        of=_sizes_of_grouped, product=_product_of_grouped, amounts=_grouped_amounts,
        own=_grouped_features,
    ),
    "attention": OperatorFamily(
        sizes=("batch", "heads", "kv_heads", "queries", "keys", "dims", "share", "bytes"),
        of=_sizes_of_attention, product=_product_of_attention, amounts=_attention_amounts,
        own=_attention_features,
    ),
    "conv": OperatorFamily(
        sizes=(
            "batch", "channels", "per_group", "out_channels", "h", "w", "kh", "kw", "stride", "ho", "wo", "bias",
            "bytes",
        ),
        of=_sizes_of_conv, product=_product_of_conv, amounts=_conv_amounts, own=_conv_features, place=_place_of_conv,
    ),
    "recurrent": OperatorFamily(
        sizes=("steps", "batch", "inner", "hidden", "gates", "bytes"),
        of=_sizes_of_recurrent, product=_product_of_recurrent, amounts=_recurrent_amounts, own=_recurrent_features,
        place=_place_of_recurrent,
    ),
    "traffic": OperatorFamily(
        sizes=("elements", "last", "read", "written", "table", "pieces", "tp"),
        of=_sizes_of_traffic, product=_product_of_traffic, amounts=_traffic_amounts,
    ),
}  # fmt: skip
