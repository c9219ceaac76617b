"""How far the analytical cost model is from measured operators and collectives.

    python -m benchmarks.operators DATA [--rows N] [--source TEXT] [--op TEXT]

Reads ``operators.parquet`` and ``collectives.parquet`` of the folder DATA, at most N rows of
each source, device, operator and phase, and prints for each: rows, median and mean absolute percentage error,
median signed error (positive: predicted too long), and the share of rows inside the 90 % interval.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq

from traincast.cluster import Cluster, Link, find_device, load_cluster
from traincast.errors import TraincastError
from traincast.estimate import AnalyticalCostModel
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec
from traincast.work import Collective, Transfer, Work

Row = Mapping[str, Any]
Params = Mapping[str, Any]

HOST_BOUND_S: Final = {"neusight": 100e-6, "neusight_labels": 100e-6, "cdecatapult": 600e-6}
"""Sources that time the host as well: rows shorter than this say little of the kernel, and are left out."""


def _tensor(dtype: DType, *shape: float) -> TensorSpec:
    return TensorSpec(tuple(max(1, round(x)) for x in shape), dtype)


def _op(
    kind: OpKind,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    backward: bool = False,
    **attributes: int | float | bool,
) -> Operator:
    phase = Phase.BACKWARD if backward else Phase.FORWARD
    name = f"{kind.value}_backward" if backward else kind.value
    return Operator(
        name=name, kind=kind, phase=phase, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes
    )


def _product(dtype: DType, b: float, m: float, n: float, k: float) -> Operator:
    lead = (b,) if b > 1 else ()
    kind = OpKind.BATCHED_GEMM if b > 1 else OpKind.GEMM
    out = dtype if dtype in (DType.FP32, DType.FP16) else DType.BF16
    return _op(kind, [_tensor(dtype, *lead, m, k), _tensor(dtype, *lead, k, n)], [_tensor(out, *lead, m, n)])


def _gradients(dtype: DType, b: float, m: float, n: float, k: float) -> list[Operator]:
    return [_product(dtype, b, m, k, n), _product(dtype, b, k, n, m)]


def gemm(row: Row, p: Params, dtype: DType) -> list[Operator]:
    """GEMM rows, by phase; a layer's update is an optimizer step on its weight."""
    b, m, n, k = (float(row[x]) for x in "bmnk")
    if row["phase"] == "bwd":
        return _gradients(dtype, b, m, n, k)
    if row["phase"] == "fwd+bwd+update":
        weight = _tensor(dtype, n, k)
        update = _op(OpKind.OPTIMIZER, [weight] * 3, [weight] * 2)
        return [_product(dtype, b, m, n, k), *_gradients(dtype, b, m, n, k), update]
    return [_product(dtype, b, m, n, k)]


def head_products(row: Row, p: Params, dtype: DType) -> list[Operator]:
    """Scores (``baddbmm``) and weighted values (``bmm``) of an unfused attention."""
    b, seq, d = p["b"] * p["h"] / p["mp"], p["l"], p["dim"] / p["h"]
    dims = (b, seq, seq, d) if row["op"] == "baddbmm" else (b, seq, d, seq)
    return _gradients(dtype, *dims) if row["phase"] == "bwd" else [_product(dtype, *dims)]


def attention(row: Row, p: Params, dtype: DType) -> list[Operator]:
    """Fused attention of both sources."""
    if row["op"] == "flash_atten":
        b, h, s, d = p["b"], p["h"] / p["mp"], p["l"], p["dim"] / p["h"]
        kv, causal = h, True
    else:
        b, h, s, d = p["batch"], p["heads"], p["seq"], p["head_dim"]
        kv, causal = p.get("kv_heads", h), row["op"].endswith("causal")
    q, k = _tensor(dtype, b, h, s, d), _tensor(dtype, b, kv, s, d)
    if row["phase"] == "bwd":
        return [_op(OpKind.ATTENTION, [q, q, q, k, k], [q, k, k], backward=True, causal=causal)]
    return [_op(OpKind.ATTENTION, [q, k, k], [q], causal=causal)]


def moe(row: Row, p: Params, dtype: DType) -> list[Operator]:
    """Gate and up, activation, down: what one rank computes of a mixture of experts."""
    experts = max(1, p["num_experts"] // p["moe_ep_size"])
    rows = max(1, p["num_tokens"] * p["topk"] // p["moe_ep_size"])
    h, i = p["hidden_size"], max(1, p["inter_size"] // p["moe_tp_size"])
    a, mid, wide = (_tensor(dtype, rows, x) for x in (h, i, 2 * i))
    return [
        _op(OpKind.GROUPED_GEMM, [a, _tensor(dtype, experts, h, 2 * i)], [wide]),
        _op(OpKind.ACTIVATION, [wide], [mid]),
        _op(OpKind.GROUPED_GEMM, [mid, _tensor(dtype, experts, i, h)], [a]),
    ]


def grouped(row: Row, p: Params, dtype: DType) -> list[Operator]:
    """One GEMM per expert; the gradient of the weights sums over each expert's rows."""
    b, m, n, k = (float(row[x]) for x in "bmnk")
    a, out, experts = _tensor(dtype, b * m, k), _tensor(dtype, b * m, n), _tensor(dtype, b, k, n)
    if row["phase"] == "bwd_grad_w":
        return [_op(OpKind.GROUPED_GEMM, [a, out], [experts])]
    return [_op(OpKind.GROUPED_GEMM, [a, experts], [out])]


def conv(row: Row, p: Params, dtype: DType) -> list[Operator]:
    """Convolutions of the three sources, by phase; TensorFlow 1 also turns NHWC into NCHW and back."""
    if "batchsize" in p:
        b, ci, co, kh, kw = p["batchsize"], p["channels_in"], p["channels_out"], p["kernelsize"], p["kernelsize"]
        h = w = p["matsize"]
        stride = p["strides"]
        ho = wo = -(-h // stride) if p["padding"] == 1 else -(-(h - kh + 1) // stride)
    else:
        b, ci, co = p["batch"], p["c_in"], p["c_out"]
        kh, kw = p.get("kh", p.get("kernel")), p.get("kw", p.get("kernel"))
        h, w = p.get("h", p.get("hw")), p.get("w", p.get("hw"))
        stride = p.get("stride_h", p.get("stride"))
        ho = (h + 2 * p.get("pad_h", p.get("padding")) - kh) // stride + 1
        wo = (w + 2 * p.get("pad_w", p.get("padding")) - kw) // p.get("stride_w", stride) + 1
    x, f, y = _tensor(dtype, b, ci, h, w), _tensor(dtype, co, ci, kh, kw), _tensor(dtype, b, co, ho, wo)
    forward = _op(OpKind.CONV, [x, f], [y], stride=stride)
    turns = [_op(OpKind.COPY, [t], [t]) for t in (x, y)] if "batchsize" in p else []
    if turns and p["act"] != "none":
        turns.append(_op(OpKind.ACTIVATION, [y], [y]))
    match row["phase"]:
        case "fwd":
            return [forward, *turns]
        case "bwd_data":
            return [_op(OpKind.CONV, [y, f], [x], stride=stride, transposed=True)]
        case "bwd_weight":
            return [_op(OpKind.CONV, [y, x, f], [f], backward=True, stride=stride, products=1)]
    both = _op(OpKind.CONV, [y, x, f], [x, f], backward=True, stride=stride, products=2)
    return [forward, both, *turns, *turns, _op(OpKind.OPTIMIZER, [f] * 3, [f] * 2)]


def pointwise(kind: OpKind, inputs: int) -> Callable[[Row, Params, DType], list[Operator]]:
    """A point-wise or row-wise operator on ``inputs`` tensors."""

    def build(row: Row, p: Params, dtype: DType) -> list[Operator]:
        backward = row["phase"] == "bwd"
        x = _tensor(dtype, *_extent(row["op"], p))
        reads = 2 if backward and kind is not OpKind.ELEMENTWISE else inputs
        return [_op(kind, [x] * reads, [x], backward=backward)]

    return build


def _extent(op: str, p: Params) -> tuple[float, ...]:
    if "rows" in p:
        return (p["rows"], p["cols"])
    if "softmax" in op.lower():
        return (p["b"] * p["h"] / p["mp"], p["l"], p["l"])
    return (p["b"], p["l"], p["dim"] * (4 / p["mp"] if op == "gelu" else 1))


def recurrent(row: Row, p: Params, dtype: DType) -> list[Operator]:
    """A layer of a recurrent network, its input as wide as its state; halves of a backward are left out."""
    if row["phase"] not in ("fwd", "bwd"):
        return []
    gates = {"rnn:LSTM": 4, "rnn:GRU": 3, "rnn:Vanilla": 1}[row["op"]]
    hidden = p.get("Hidden_units", p.get("Hidden_Units"))
    x = replace(_tensor(dtype, p["Timesteps"], p["N"], hidden), batch_dim=1)
    weight = _tensor(dtype, gates * hidden, hidden)
    return [_op(OpKind.RNN, [x, weight, weight], [x], backward=row["phase"] == "bwd")]


BUILDERS: Final[dict[str, Callable[[Row, Params, DType], list[Operator]]]] = {
    **dict.fromkeys(("gemm", "gemm_bias", "gemm_bias_act"), gemm),
    **dict.fromkeys(("flash_attn_causal", "flash_attn_full", "flash_atten"), attention),
    **dict.fromkeys(("add", "mul", "div", "pow", "res_add"), pointwise(OpKind.ELEMENTWISE, 2)),
    **dict.fromkeys(("addu", "mulu", "divu", "powu"), pointwise(OpKind.ELEMENTWISE, 1)),
    **dict.fromkeys(("relu", "gelu", "tanh"), pointwise(OpKind.ACTIVATION, 1)),
    **dict.fromkeys(("ln", "layernorm"), pointwise(OpKind.LAYER_NORM, 1)),
    **dict.fromkeys(("softmax", "ScaledUpperTriangMaskedSoftmax"), pointwise(OpKind.SOFTMAX, 1)),
    **dict.fromkeys(("rnn:LSTM", "rnn:GRU", "rnn:Vanilla"), recurrent),
    "bmm": lambda row, p, dtype: head_products(row, p, dtype) if "h" in p else gemm(row, p, dtype),
    "baddbmm": head_products,
    "conv2d": conv,
    "grouped_gemm": grouped,
    "moe_mlp": moe,
}
"""How to make operators of a row, by its ``op``; rows of other operators (several unfused kernels) are left out."""


def read(path: Path, columns: Sequence[str], keys: Sequence[str], rows: int) -> dict[tuple[Any, ...], list[Row]]:
    """At most ``rows`` rows of a table per value of ``keys``, spread evenly; suspect ones dropped."""
    table = pq.read_table(path, columns=[*columns, "suspect"])
    table = table.filter(pc.invert(pc.fill_null(table["suspect"], False))).drop_columns(["suspect"])
    groups = defaultdict(list)
    key_columns = [table[key].to_pylist() for key in keys]
    for i, key in enumerate(zip(*key_columns, strict=True)):
        groups[key].append(i)
    result = {}
    for key, where in groups.items():
        kept = np.asarray(where)[np.linspace(0, len(where) - 1, min(rows, len(where))).astype(int)]
        result[key] = table.take(np.unique(kept)).to_pylist()
    return result


def _line(name: str, measured: npt.NDArray[np.float64], low: Any, mid: Any, high: Any) -> str:
    error = mid / measured - 1
    inside = np.mean((low <= measured) & (measured <= high))
    return (
        f"{name:<92} {len(measured):>6} {100 * np.median(abs(error)):>7.1f} {100 * np.mean(abs(error)):>7.1f} "
        f"{100 * np.median(error):>+7.1f} {inside:>6.2f}"
    )


_HEAD: Final = f"{'':<92} {'n':>6} {'median':>7} {'MAPE':>7} {'bias':>7} {'inside':>6}"


def _host(device_text: str) -> Cluster:
    """One node with the device that a measurement names."""
    link = Link(name="none", bandwidth=1e9, latency_s=1e-6)
    return Cluster(
        name="one", device=find_device(device_text), num_nodes=1, devices_per_node=1, intra_node=link,
        inter_node=link, nics_per_node=1, intra_topology="none", inter_topology="none",
    )  # fmt: skip


def study_operators(path: Path, *, rows: int, source: str, op: str) -> Iterable[str]:
    """One line per source, device, dtype, operator and phase."""
    keys = ("source", "device", "dtype", "op", "phase")
    groups = read(path, [*keys, "b", "m", "n", "k", "params", "time_us"], keys, rows)
    model = AnalyticalCostModel()
    for key in sorted(groups):
        if key[3] not in BUILDERS or source not in key[0] or op not in key[3]:
            continue
        try:
            cluster = _host(key[1])
        except TraincastError as error:
            yield f"{' | '.join(key):<92} skipped: {error}"
            continue
        works: list[Work] = []
        owner: list[int] = []
        measured: list[float] = []
        for row in groups[key]:
            params = json.loads(row["params"]) if row["params"] else {}
            if (
                row["m"] == 0
                or row["time_us"] * 1e-6 < HOST_BOUND_S.get(row["source"], 0.0)
                or (row["source"] == "estimate-train-time" and params.get("mp", 1) > params.get("h", 1e9))
            ):
                continue
            made = BUILDERS[row["op"]](row, params, DType(row["dtype"]))
            if not made:
                continue
            works.extend(made)
            owner.extend([len(measured)] * len(made))
            measured.append(row["time_us"] * 1e-6)
        if not measured:
            continue
        estimates = model.estimate(works, cluster)
        parts = [np.bincount(owner, weights=x) for x in (estimates.low, estimates.seconds, estimates.high)]
        yield _line(" | ".join(key), np.array(measured), *parts)


SYSTEMS: Final = {
    "a100_sxm": "dgx-a100", "h100_sxm": "dgx-h100", "h200_sxm": "dgx-h200", "b200_sxm": "dgx-b200",
    "b300_sxm": "dgx-b300", "gb200": "dgx-gb200:2", "gb300": "dgx-gb300:2", "l40s": "pcie-l40s",
    "rtx_pro_6000_server": "pcie-rtx-pro-6000", "b60": "pcie-arc-b60", "CSCS Alps": "alps:64",
    "a100_dgx": "dgx-a100:2", "h100_dgx": "dgx-h100:2", "a100_pairwise_nvlink": "pcie-a100-nvlink:2",
    "h100_pairwise_nvlink": "pcie-h100-nvlink:2", "a40_pairwise_nvlink": "pcie-a40-nvlink:2",
    "Perlmutter": "perlmutter-node-80gb:8", "Vista": "vista-node:8",
}  # fmt: skip
"""Catalog cluster of each system of the collective measurements."""


def study_collectives(path: Path, *, rows: int, source: str) -> Iterable[str]:
    """One line per source, system, collective and group; NCCL and oneCCL rows, median over repeats."""
    keys = ("source", "system", "collective", "n_nodes", "n_ranks")
    groups = read(path, [*keys, "bytes", "library", "time_us"], keys, max(rows, 100_000))
    model = AnalyticalCostModel()
    for key in sorted(groups):
        if key[1] not in SYSTEMS or source not in key[0]:
            continue
        times = defaultdict(list)
        for row in groups[key]:
            if "CCL" in row["library"]:
                times[row["bytes"]].append(row["time_us"] * 1e-6)
        if not times:
            continue
        _, _, kind, nodes, ranks = key
        works: list[Work] = [
            Transfer(nbytes=float(n), crosses_nodes=nodes > 1)
            if kind == "p2p"
            else Collective(kind=kind, nbytes=float(n), num_ranks=ranks, num_nodes=nodes)
            for n in times
        ]
        estimates = model.estimate(works, load_cluster(SYSTEMS[key[1]]))
        measured = np.array([np.median(x) for x in times.values()])
        name = f"{key[0]} | {key[1]} | {kind} | {ranks} ranks on {nodes} nodes"
        yield _line(name, measured, estimates.low, estimates.seconds, estimates.high)


def main() -> None:
    """Print both tables, or one line for a file that is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--source", default="")
    parser.add_argument("--op", default="")
    args = parser.parse_args()
    for name in ("operators.parquet", "collectives.parquet"):
        path = args.data / name
        if not path.is_file():
            print(f"{path} is not there: skipped")
            continue
        print(_HEAD)
        if name.startswith("operators"):
            lines = study_operators(path, rows=args.rows, source=args.source, op=args.op)
        else:
            lines = study_collectives(path, rows=args.rows, source=args.source)
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
