"""What a learned cost model sees of an operator: its sizes, its roofline, and how it falls into tiles and waves.

Every operator belongs to one family, and a family has one list of sizes. From these and the rates of a device come
a roofline in seconds (the baseline that a model corrects), flat features, and a sequence of features over tile
shapes, from the smallest to the largest: how full the tiles are, and the waves in which they run. A device enters
through these alone, never by name or rate: what is learned on one holds on another as far as physics carries it. An
operator of a captured model and the same one in a table of measurements have the same features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Device
from traincast.graph import DType, Operator, OpKind, Phase
from traincast.graph.work_amount import attention_dims, attention_fraction, gemm_dims, grouped_gemm_dims

Floats: TypeAlias = npt.NDArray[np.float64]
Features32: TypeAlias = npt.NDArray[np.float32]

FEATURES_VERSION: Final = 1
"""Counts changes of what the features mean: a model fitted to others is refused."""
FLOOR_S: Final = 2e-6
"""What the shortest kernel takes; keeps the logarithm of an efficiency finite and smooth for tiny operators."""
SHARPNESS: Final = 4.0
"""How sharply the roofline bends from memory to compute."""

TILES: Final = tuple(
    sorted(((rows, columns) for rows in (16, 32, 64, 128, 256) for columns in (32, 64, 128, 256)), key=math.prod)
)
"""Shapes of output tiles that matrix kernels use, by area: the axis along which a network reads an operator."""
TILE_CHANNELS: Final = ("waves", "wave_fill", "tile_fill", "time", "depth")

DETAILS: Final = ("name", "act", "optimizer", "layout")
"""What tells apart operators of the same sizes, as texts."""

_PASSES: Final = {
    "fwd": 1.0, "bwd": 2.0, "bwd_data": 1.0, "bwd_weight": 1.0, "bwd_grad_act": 1.0, "bwd_grad_w": 1.0,
    "update": 1.0, "fwd+bwd+update": 3.0,
}  # fmt: skip
"""How many times the forward's products a phase makes, by the end of a measured operator's name."""
ATTENTION_BACKWARD: Final = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFamily:
    """Operators that share a list of sizes.

    ``sizes`` name the columns; ``product`` turns them into the matrix product (b, m, n, k) that the family amounts
    to, ``amounts`` into FLOPs and bytes of one pass, ``own`` into features of this family alone.
    """

    sizes: tuple[str, ...]
    of: Callable[[Operator], tuple[float, ...]]
    product: Callable[[Floats], tuple[Floats, Floats, Floats, Floats]]
    amounts: Callable[[Floats], tuple[Floats, Floats]]
    own: Callable[[Floats, Rates], list[Floats]] = lambda sizes, rates: []


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Operators of one family as columns: sizes, passes, and which of ``details`` each has.

    One of ``details`` has the texts of :data:`DETAILS`.
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

    @property
    def names(self) -> list[str]:
        """The name of each operator."""
        distinct = [details[0] for details in self.details]
        return [distinct[i] for i in self.which.tolist()]


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
class Features:
    """What a model is given: flat features, :data:`TILE_CHANNELS` over :data:`TILES`, and the baseline."""

    flat: Features32
    tiles: Features32
    baseline_s: Floats

    def table(self, *others: Features32) -> Features32:
        """Everything as one flat row per operator, with columns of ``others`` at its end."""
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
        *(_log(shapes.sizes[:, i]) for i in range(shapes.sizes.shape[1])),
        _log(shapes.passes),
        *(_log(x) for x in (m, n, k, b * m * n)),
        _log(compute),
        _log(memory),
        _log(compute / np.maximum(memory, 1e-30)),
        _log(baseline),
        _log(nbytes / rates.l2_bytes),
        _log(b * k * n * size / rates.l2_bytes),
        _log(b * m * k * size / rates.l2_bytes),
        *(_fill(m, step) for step in (8, 16, 32, 64, 128, 256)),
        *(_fill(x, step) for x in (n, k) for step in (8, 64, 128, 256)),
        m % 2.0,
        *family.own(shapes.sizes, rates),
    ]
    flat = np.stack(columns, axis=1).astype(np.float32)
    tiles = _tiles((b, m, n, k), size=size, baseline=baseline, passes=shapes.passes, rates=rates)
    return Features(flat=flat, tiles=tiles, baseline_s=baseline)


def _tiles(
    product: tuple[Floats, Floats, Floats, Floats], *, size: Floats, baseline: Floats, passes: Floats, rates: Rates
) -> Features32:
    """For each shape of tile: waves, how full the last of them and the tiles are, time over the baseline, depth."""
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
        result[:, i, 0] = _log(waves)
        result[:, i, 1] = waves / whole
        result[:, i, 2] = b * m * n / (tiles * rows * columns)
        result[:, i, 3] = _log((passes * np.maximum(compute, traffic) + FLOOR_S) / baseline)
        result[:, i, 4] = _log(k * np.minimum(1.0, waves))
    return result


def _log(x: Floats) -> Floats:
    result: Floats = np.log2(np.maximum(x, 1e-30))
    return result


def _fill(x: Floats, step: int) -> Floats:
    """Share of padded positions that are used where ``x`` is padded to a multiple of ``step``."""
    result: Floats = x / (np.ceil(x / step) * step)
    return result


# Families


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
        _log(heads / kv_heads),
        _log(batch * heads),
        _log(batch * queries),
        _log(batch * queries * heads * dims),
        _log(batch * heads * keys),
        _log(batch * kv_heads * keys * dims * size / rates.l2_bytes),
    ]
    for block in (64, 128, 192, 256):
        waves = batch * heads * np.ceil(queries / block) / rates.num_sms
        columns += [_log(waves), waves / np.ceil(waves), np.ceil(waves) - waves]
    return columns


def _grouped_features(s: Floats, rates: Rates) -> list[Floats]:
    """Rows per expert, and how many experts see any row where each token draws its own."""
    experts, rows, n, k, _, tokens, topk, of_experts, skew, size = s.T
    seen = experts * -np.expm1(np.minimum(tokens, 1e6) * np.log1p(-np.minimum(topk / of_experts, 0.999)))
    per_expert = rows / np.maximum(seen, 1.0)
    columns = [
        _log(seen),
        _log(per_expert),
        _log(rows / experts),
        _log(seen * n * k * size / rates.bandwidth),
        _log(of_experts / experts),
        _log(np.maximum(1.0, rows * (skew - 1.0) / experts)),
    ]
    for rows_of_tile in (16, 64, 128):
        waves = seen * np.ceil(per_expert / rows_of_tile) * np.ceil(n / 128.0) / rates.num_sms
        columns += [_log(waves), waves / np.ceil(waves)]
    return columns


def _conv_features(s: Floats, rates: Rates) -> list[Floats]:
    """The tensors' own traffic, how channels and images fit the tiles of direct and Winograd kernels."""
    batch, channels, per_group, out_channels, h, w, kh, kw, stride, ho, wo, _, size = s.T
    taken, made = batch * channels * h * w, batch * out_channels * ho * wo
    window = per_group * kh * kw
    lowered = batch * ho * wo * window
    columns = [
        _log(taken * size / rates.bandwidth),
        _log(made * size / rates.bandwidth),
        _log(taken / made),
        _log(out_channels * window * size / rates.l2_bytes),
        _log(lowered * size / rates.bandwidth),
        _log(batch * ho * wo),
        _log(ho * wo),
        _log(batch * np.ceil(ho / 4) * np.ceil(wo / 4) * out_channels * per_group),
        _log(2.0 * taken * out_channels * kh * kw / rates.peak),
        (h - stride * (ho - 1.0) - kh) / np.maximum(h, 1.0),
        h / (ho * stride),
        ((kh == 3) & (stride == 1)).astype(np.float64),
        ((kh == 1) & (stride == 1)).astype(np.float64),
        *(_fill(channels, step) for step in (4, 8, 16, 32, 64)),
        *(_fill(out_channels, step) for step in (4, 16, 32)),
        *(_fill(wo, step) for step in (2, 4, 8, 16, 32)),
        *(_fill(batch, step) for step in (8, 16, 32)),
        channels % 2.0,
        out_channels % 2.0,
    ]
    for tile in (32, 64, 128):
        waves = np.ceil(batch * ho * wo / 128.0) * np.ceil(out_channels / tile) / rates.num_sms
        columns += [_log(waves), waves / np.ceil(waves)]
    return columns


def _sizes_of_conv(op: Operator) -> tuple[float, ...]:
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
        of=_sizes_of_conv, product=_product_of_conv, amounts=_conv_amounts, own=_conv_features,
    ),
    "traffic": OperatorFamily(
        sizes=("elements", "last", "read", "written", "table", "pieces", "tp"),
        of=_sizes_of_traffic, product=_product_of_traffic, amounts=_traffic_amounts,
    ),
}  # fmt: skip

_FAMILY_OF_KIND: Final = {
    OpKind.GEMM: "product",
    OpKind.BATCHED_GEMM: "product",
    OpKind.GROUPED_GEMM: "grouped",
    OpKind.ATTENTION: "attention",
    OpKind.CONV: "conv",
    OpKind.DEPTHWISE_CONV: "conv",
}


def family_of(op: Operator) -> str | None:
    """The family of ``op``; ``None`` for what no family describes (recurrent layers, gradients of convolutions).

    Attention whose queries are wider than its values was measured in serving alone, before it was tuned for training.
    """
    if op.kind is OpKind.RNN or (op.kind is OpKind.ATTENTION and _unlike_dims(op)):
        return None
    family = _FAMILY_OF_KIND.get(op.kind, "traffic")
    if family == "conv" and (op.attributes.get("transposed", False) or len(op.inputs) < 2):
        return None
    if family == "conv" and op.phase is Phase.BACKWARD and _phase_in_name(op.name) is None:
        return None
    return family


def shapes_of(family: str, operators: Sequence[Operator]) -> Shapes:
    """``operators``, all of one family, as columns."""
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
}
"""The name under which tables of measurements have an operator of a captured model."""


def _details(op: Operator) -> tuple[str, ...]:
    name = op.name if _phase_in_name(op.name) else _MEASURED_NAME.get((op.kind, op.phase), op.name)
    a = op.attributes
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


INTERCHANGEABLE: Final = {DType.BF16.value: DType.FP16.value, DType.FP16.value: DType.BF16.value}
"""Dtypes of the same width and rate: one stands in where only the other was measured."""
