"""Operators from rows that measured products, attention, convolutions and recurrent layers."""

from __future__ import annotations

import re
from typing import Final

from traincast.fitting.rows.values import (
    BOTH,
    FORWARD,
    Built,
    Operation,
    Params,
    ParsedRow,
    dtype_of,
    head_sizes,
    size_of,
    stated,
    tensor,
)
from traincast.graph import DType, Scalar, TensorSpec
from traincast.tables import RowError


def _gemm(row: ParsedRow) -> Built:
    b = 1 if row.b is None else size_of(row.b, "b")
    m, n, k = size_of(row.m, "m"), size_of(row.n, "n"), size_of(row.k, "k")
    dtype, p = row.dtype, row.params
    out = dtype if dtype in _FULL_WIDTH else DType.BF16
    if "out_dtype" in p:
        out = dtype_of(p["out_dtype"])
    attributes: dict[str, Scalar] = {}
    if "layout" in p:
        attributes["layout"] = str(p["layout"])
    elif "tA" in p and "tB" in p:
        attributes["layout"] = f"{p['tA']}{p['tB']}"
    if "accumulate" in p:
        attributes["accumulate"] = str(p["accumulate"]).lower() == "true"
    if row.op.startswith("gemm_bias"):
        attributes["bias"] = True
        if row.op == "gemm_bias_act":
            attributes["act"] = str(p.get("act") or "none").lower()
            attributes["optimizer"] = str(p.get("optimizer") or "none").lower()
    if b > 1 or row.op == "bmm":
        lead = tensor(dtype, b, m, k), tensor(dtype, b, k, n)
        return lead, (tensor(out, b, m, n),), attributes
    return (tensor(dtype, m, k), tensor(dtype, k, n)), (tensor(out, m, n),), attributes


_FULL_WIDTH: Final = frozenset({DType.FP64, DType.FP32, DType.TF32, DType.FP16})


def _bmm(row: ParsedRow) -> Built:
    """A batched product. If the row states heads, it is the weighted values of an unfused attention."""
    return _head_product(row) if "h" in row.params else _gemm(row)


def _head_product(row: ParsedRow) -> Built:
    """Scores (``baddbmm``) or weighted values (``bmm``) of an unfused attention."""
    b, heads, seq, dim = head_sizes(row.params)
    lead = b * heads
    m, n, k = (seq, seq, dim) if row.op == "baddbmm" else (seq, dim, seq)
    t = row.dtype
    return (tensor(t, lead, m, k), tensor(t, lead, k, n)), (tensor(t, lead, m, n),), None


def _grouped_gemm(row: ParsedRow) -> Built:
    """One product for each of ``b`` experts, with ``m`` rows each."""
    groups, m, n, k = size_of(row.b, "b"), size_of(row.m, "m"), size_of(row.n, "n"), size_of(row.k, "k")
    p, t = row.params, row.dtype
    attributes: dict[str, Scalar] = {
        name: str(p[name]).lower() == "true"
        for name in ("accumulate", "use_split_accumulator", "single_output")
        if name in p
    }
    if "main_grad_dtype" in p:
        attributes["main_grad_dtype"] = dtype_of(p["main_grad_dtype"]).value
    out = dtype_of(p["out_dtype"]) if "out_dtype" in p else t
    inputs = tensor(t, groups * m, k), tensor(t, groups, k, n)
    return inputs, (tensor(out, groups * m, n),), attributes


_POWER_LAW: Final = re.compile(r"power_law_(\d+(?:\.\d+)?)")


def _moe_mlp(row: ParsedRow) -> Built:
    """The part of a gated mixture of experts that one rank computes.

    The attribute ``skew`` is the exponent of the power law of the experts' popularity; 0 is uniform.
    """
    p, t = row.params, row.dtype
    tokens, topk, experts = stated(p, "num_tokens"), stated(p, "topk"), stated(p, "num_experts")
    hidden, inter = stated(p, "hidden_size"), stated(p, "inter_size")
    tp, ep = stated(p, "moe_tp_size"), stated(p, "moe_ep_size")
    if ep > experts:
        raise RowError("moe_ep_size is larger than num_experts")
    if topk > experts:
        raise RowError("topk is larger than num_experts")
    distribution = p.get("distribution", "balanced")
    skew = _POWER_LAW.fullmatch(distribution) if isinstance(distribution, str) else None
    if skew is None and distribution not in ("balanced", "uniform"):
        raise RowError(f"unknown distribution {distribution!r}")
    x = tensor(t, max(1, tokens * topk // ep), hidden)
    weight = tensor(t, experts // ep, hidden, 2 * max(1, inter // tp))
    attributes: dict[str, Scalar] = {
        "num_tokens": tokens,
        "topk": topk,
        "num_experts": experts,
        "ep": ep,
        "tp": tp,
        "skew": float(skew.group(1)) if skew else 0.0,
    }
    return (x, weight), (x,), attributes


def _attention(row: ParsedRow) -> Built:
    p, t = row.params, row.dtype
    if "mp" in p:
        batch, heads, seq, dim = head_sizes(p)
        kv_heads = heads
    else:
        batch, heads, seq, dim = (stated(p, name) for name in ("batch", "heads", "seq", "head_dim"))
        kv_heads = stated(p, "kv_heads") if "kv_heads" in p else heads
        if kv_heads > heads:
            raise RowError("kv_heads is larger than heads")
    q, kv = tensor(t, batch, heads, seq, dim), tensor(t, batch, kv_heads, seq, dim)
    # ``flash_atten`` does not say so, but with a mask its kernels would reach half the rate of others on one device.
    return (q, kv, kv), (q,), {"causal": row.op == "flash_attn_causal"}


def _conv2d(row: ParsedRow) -> Built:
    """Convolutions: TensorFlow's parameters (``batchsize`` …; NHWC, padding "same" or "valid") or explicit ones."""
    p, t = row.params, row.dtype
    attributes: dict[str, Scalar]
    if "batchsize" in p:
        batch, c_in, c_out = (stated(p, name) for name in ("batchsize", "channels_in", "channels_out"))
        h = w = stated(p, "matsize")
        kh = kw = stated(p, "kernelsize")
        stride = stride_w = stated(p, "strides")
        same = bool(p.get("padding"))
        ho = wo = -(-h // stride) if same else -(-(h - kh + 1) // stride)
        padding = padding_w = (max(0, (ho - 1) * stride + kh - h) + 1) // 2 if same else 0
        attributes = {"data_format": "nhwc"}
    else:
        batch, c_in, c_out = stated(p, "batch"), stated(p, "c_in"), stated(p, "c_out")
        h, w = stated(p, "h", "hw"), stated(p, "w", "hw")
        kh, kw = stated(p, "kh", "kernel"), stated(p, "kw", "kernel")
        stride, stride_w = stated(p, "stride_h", "stride"), stated(p, "stride_w", "stride")
        padding, padding_w = (_padding(p, name) for name in ("pad_h", "pad_w"))
        ho, wo = (h + 2 * padding - kh) // stride + 1, (w + 2 * padding_w - kw) // stride_w + 1
        attributes = {}
    if ho < 1 or wo < 1:
        raise RowError("the kernel is larger than the padded image")
    attributes["stride"], attributes["padding"] = stride, padding
    if stride_w != stride:
        attributes["stride_w"] = stride_w
    if padding_w != padding:
        attributes["padding_w"] = padding_w
    attributes["bias"] = bool(p.get("use_bias", False))
    attributes["act"] = str(p.get("act") or "none").lower()
    attributes["optimizer"] = str(p.get("optimizer") or "none").lower()
    inputs = tensor(t, batch, c_in, h, w), tensor(t, c_out, c_in, kh, kw)
    return inputs, (tensor(t, batch, c_out, ho, wo),), attributes


def _padding(p: Params, name: str) -> int:
    value = p.get(name, p.get("padding", 0))
    return 0 if value == 0 else size_of(value, name)


_GATES: Final = {"rnn:LSTM": ("lstm", 4), "rnn:GRU": ("gru", 3), "rnn:Vanilla": ("vanilla", 1)}


def _rnn(row: ParsedRow) -> Built:
    """A recurrent layer whose input is as wide as its state."""
    p, t = row.params, row.dtype
    cell, gates = _GATES[row.op]
    hidden = stated(p, "Hidden_units", "Hidden_Units")
    x = TensorSpec((stated(p, "Timesteps"), stated(p, "N"), hidden), t, batch_dim=1)
    weight = tensor(t, gates * hidden, hidden)
    return (x, weight, weight), (x,), {"cell": cell}


_PRODUCTS: Final = frozenset({"fwd", "bwd", "bwd_data", "bwd_weight", "fwd+bwd+update"})
_EACH_GRADIENT: Final = frozenset({"fwd", "bwd", "bwd_data", "bwd_weight"})

PRODUCT_OPERATIONS: Final[dict[str, Operation]] = {
    "gemm": Operation("gemm", _gemm, _PRODUCTS),
    "gemm_bias": Operation("gemm_bias", _gemm, _PRODUCTS),
    "gemm_bias_act": Operation("gemm_bias_act", _gemm, _PRODUCTS),
    "bmm": Operation("bmm", _bmm, _PRODUCTS),
    "baddbmm": Operation("baddbmm", _head_product, BOTH),
    "grouped_gemm": Operation("grouped_gemm", _grouped_gemm, frozenset({"fwd", "bwd_grad_act", "bwd_grad_w"})),
    "moe_mlp": Operation("moe_mlp", _moe_mlp, FORWARD),
    **dict.fromkeys(("flash_attn_causal", "flash_attn_full", "flash_atten"), Operation("attention", _attention, BOTH)),
    "conv2d": Operation("conv2d", _conv2d, _PRODUCTS),
    **dict.fromkeys(_GATES, Operation("rnn", _rnn, _EACH_GRADIENT)),
}
"""How to make an operator from a row, by its ``op``."""
