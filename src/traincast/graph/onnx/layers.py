"""Operators with weights and other kernels of their own: products, convolutions, norms, pools, recurrences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from traincast.graph.onnx.shapes import reshaped
from traincast.graph.onnx.values import Call, UnsupportedError, as_tensor

if TYPE_CHECKING:
    import torch


def _gemm(call: Call) -> torch.Tensor:
    import torch

    left, right, bias = call.tensor(0), call.tensor(1), call.optional(2)
    left = left.t() if call.get("transA", 0) else left
    right = right if call.get("transB", 0) else right.t()
    return torch.nn.functional.linear(left, right, bias)


def _matmul(call: Call) -> torch.Tensor:
    import torch

    return torch.matmul(call.tensor(0), call.tensor(1))


def _linear(call: Call) -> torch.Tensor:
    """A product with a matrix of weights and its bias, one kernel; a fourth input is the shape of the result."""
    import torch

    bias = call.optional(2)
    bias = bias.reshape(-1) if bias is not None else None
    out = torch.nn.functional.linear(call.tensor(0), call.tensor(1).t(), bias)
    return reshaped(replace(call, values=(out, call.values[3]))) if call.has(3) else out


def _einsum(call: Call) -> torch.Tensor:
    import torch

    return torch.einsum(call.get("equation", ""), *(call.tensor(i) for i in range(len(call))))


def paddings(call: Call, data: torch.Tensor, kernel: list[int], stride: list[int], dilation: list[int]) -> list[int]:
    """Padding before each spatial dim, then behind each."""
    mode = call.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return [int(p) for p in call.get("pads", [0] * 2 * len(kernel))]
    if mode == "VALID":
        return [0] * 2 * len(kernel)
    before, behind = [], []
    for size, k, s, d in zip(data.shape[2:], kernel, stride, dilation, strict=True):
        total = max(0, (-(-int(size) // s) - 1) * s + (k - 1) * d + 1 - int(size))
        small, large = total // 2, total - total // 2
        before.append(large if mode == "SAME_LOWER" else small)
        behind.append(small if mode == "SAME_LOWER" else large)
    return before + behind


def padded(data: torch.Tensor, pads: list[int], value: float = 0.0) -> tuple[torch.Tensor, list[int]]:
    """Pad ``data`` on the side that needs more padding; return it, and the padding that both sides still need.

    The kernel applies the latter.
    """
    import torch

    half = len(pads) // 2
    if pads[:half] == pads[half:]:
        return data, pads[:half]
    even = [min(pair) for pair in zip(pads[:half], pads[half:], strict=True)]
    pairs = [p - even[n] for n in reversed(range(half)) for p in (pads[n], pads[half + n])]
    return torch.nn.functional.pad(data, pairs, value=value), even


def _bias(call: Call, position: int) -> torch.Tensor | None:
    """A bias; exporters write zeros for a layer that has none."""
    value = call.values[position] if call.has(position) else None
    if isinstance(value, np.ndarray) and not value.any():
        return None
    return None if value is None else as_tensor(value)


def _conv(call: Call) -> torch.Tensor:
    import torch

    data, weight = call.tensor(0), call.tensor(1)
    spatial = data.ndim - 2
    stride = [int(s) for s in call.get("strides", [1] * spatial)]
    dilation = [int(d) for d in call.get("dilations", [1] * spatial)]
    kernel = [int(k) for k in weight.shape[2:]]
    data, padding = padded(data, paddings(call, data, kernel, stride, dilation))
    run = _by_dims(call, spatial, (torch.conv1d, torch.conv2d, torch.conv3d))
    out: torch.Tensor = run(data, weight, _bias(call, 2), stride, padding, dilation, int(call.get("group", 1)))
    return out


def _conv_transpose(call: Call) -> torch.Tensor:
    import torch

    data, weight = call.tensor(0), call.tensor(1)
    spatial = data.ndim - 2
    stride = [int(s) for s in call.get("strides", [1] * spatial)]
    dilation = [int(d) for d in call.get("dilations", [1] * spatial)]
    extra = [int(p) for p in call.get("output_padding", [0] * spatial)]
    pads = [int(p) for p in call.get("pads", [0] * 2 * spatial)]
    if call.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        need = [(k - 1) * d + 1 - s for k, d, s in zip(weight.shape[2:], dilation, stride, strict=True)]
        pads = [max(0, n) // 2 for n in need] + [max(0, n) - max(0, n) // 2 for n in need]
    extra = [e + max(0, pads[n] - pads[spatial + n]) for n, e in enumerate(extra)]
    functions = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
    run = _by_dims(call, spatial, functions)
    group = int(call.get("group", 1))
    out: torch.Tensor = run(data, weight, _bias(call, 2), stride, pads[:spatial], extra, group, dilation)
    return out


def _by_dims(call: Call, spatial: int, functions: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    if not 1 <= spatial <= len(functions):
        raise UnsupportedError(f"it has {spatial} spatial dims; one to {len(functions)} are known")
    return functions[spatial - 1]


def _max_pool(call: Call) -> torch.Tensor:
    import torch
    from torch.nn import functional as f

    data = call.tensor(0)
    kernel, stride, dilation = _window(call)
    data, padding = padded(data, paddings(call, data, kernel, stride, dilation), -torch.inf)
    run = _by_dims(call, len(kernel), (f.max_pool1d, f.max_pool2d, f.max_pool3d))
    out: torch.Tensor = run(data, kernel, stride, padding, dilation, bool(call.get("ceil_mode", 0)))
    return out


def _average_pool(call: Call) -> torch.Tensor:
    from torch.nn import functional as f

    data = call.tensor(0)
    kernel, stride, dilation = _window(call)
    data, padding = padded(data, paddings(call, data, kernel, stride, dilation))
    run = _by_dims(call, len(kernel), (f.avg_pool1d, f.avg_pool2d, f.avg_pool3d))
    included = bool(call.get("count_include_pad", 0))
    out: torch.Tensor = run(data, kernel, stride, padding, bool(call.get("ceil_mode", 0)), included)
    return out


def _window(call: Call) -> tuple[list[int], list[int], list[int]]:
    kernel = [int(k) for k in call.get("kernel_shape", [])]
    stride = [int(s) for s in call.get("strides", [1] * len(kernel))]
    return kernel, stride, [int(d) for d in call.get("dilations", [1] * len(kernel))]


def _global_average(call: Call) -> torch.Tensor:
    data = call.tensor(0)
    return data.mean(dim=list(range(2, data.ndim)), keepdim=True)


def _global_max(call: Call) -> torch.Tensor:
    data = call.tensor(0)
    return data.amax(dim=list(range(2, data.ndim)), keepdim=True)


def _batch_norm(call: Call) -> torch.Tensor:
    """Training normalises by the batch, also if the file was written for inference."""
    import torch

    data, channel = call.tensor(0), int(call.get("channel", 1))
    out = torch.nn.functional.batch_norm(
        data if channel == 1 else data.movedim(channel, 1),
        call.optional(3),
        call.optional(4),
        call.tensor(1).reshape(-1),
        call.tensor(2).reshape(-1),
        True,
        0.1,
        float(call.get("epsilon", 1e-5)),
    )
    turn = call.get("turn", None)
    out = out if channel == 1 else out.movedim(1, channel)
    return out.permute(turn) if turn is not None else out


def _layer_norm(call: Call) -> torch.Tensor:
    import torch

    data, epsilon = call.tensor(0), float(call.get("epsilon", 1e-5))
    shape = [int(s) for s in data.shape[int(call.get("axis", -1)) :]]
    weight, bias = call.optional(1), call.optional(2)
    return torch.nn.functional.layer_norm(data, shape, _flat(weight, shape), _flat(bias, shape), epsilon)


def _flat(weight: torch.Tensor | None, shape: list[int]) -> torch.Tensor | None:
    return None if weight is None else weight.view(shape)


def _rms_norm(call: Call) -> torch.Tensor:
    import torch

    data = call.tensor(0)
    shape = [int(s) for s in data.shape[int(call.get("axis", -1)) :]]
    return torch.nn.functional.rms_norm(data, shape, call.optional(1), float(call.get("epsilon", 1e-5)))


def _group_norm(call: Call) -> torch.Tensor:
    import torch

    groups = int(call.known(3).shape[0]) if call.has(3) else int(call.get("num_groups", 1))
    epsilon = float(call.get("epsilon", 1e-5))
    weight, bias = (None if t is None else t.reshape(-1) for t in (call.optional(1), call.optional(2)))
    return torch.nn.functional.group_norm(call.tensor(0), groups, weight, bias, epsilon)


def _instance_norm(call: Call) -> torch.Tensor:
    import torch

    data = call.tensor(0)
    return torch.nn.functional.instance_norm(data, weight=call.optional(1), bias=call.optional(2))


def _local_response(call: Call) -> torch.Tensor:
    import torch

    return torch.nn.functional.local_response_norm(call.tensor(0), int(call.get("size", 5)))


def _dropout(call: Call) -> torch.Tensor:
    """Training drops, also if the file was written for inference."""
    import torch

    share = call.number(1) if call.has(1) else float(call.get("ratio", 0.5))
    return torch.nn.functional.dropout(call.tensor(0), share, training=True)


def _attention(call: Call) -> torch.Tensor:
    """Fused attention on queries, keys and values of shape [batch, heads, length, width]."""
    import torch

    q, k, v = (call.tensor(i) for i in range(3))
    if q.ndim != 4:
        heads, groups = int(call.get("q_num_heads", 1)), int(call.get("kv_num_heads", 1))
        parts = zip((q, k, v), (heads, groups, groups), strict=True)
        q, k, v = (t.view(t.shape[0], t.shape[1], n, -1).transpose(1, 2) for t, n in parts)
    grouped = k.shape[1] != q.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=call.optional(3),
        dropout_p=float(call.get("dropout", 0.0)),
        is_causal=bool(call.get("is_causal", 0)),
        enable_gqa=grouped,
    )
    if call.tensor(0).ndim != 4:
        out = out.transpose(1, 2).reshape(call.tensor(0).shape[0], call.tensor(0).shape[1], -1)
    return out


def _fused_attention(call: Call) -> torch.Tensor:
    """PyTorch's fused attention, which its exporter took apart."""
    import torch

    q, k, v = (call.tensor(i) for i in range(3))
    return torch.nn.functional.scaled_dot_product_attention(
        q,
        k.transpose(-1, -2) if call.get("transposed", False) else k,
        v,
        attn_mask=call.optional(3),
        dropout_p=float(call.get("dropout", 0.0)),
        is_causal=bool(call.get("is_causal", 0)),
    )


def _recurrent(call: Call) -> tuple[torch.Tensor, ...]:
    """A recurrent layer with the weights of its directions stacked, as ONNX has them."""
    if int(call.get("layout", 0)):
        raise UnsupportedError("its layout is batch first")
    weights = []
    stacked = [call.tensor(n) for n in (1, 2, 3) if call.has(n)]
    parts = [[t.squeeze(0)] if t.shape[0] == 1 else list(t.unbind(0)) for t in stacked]
    for own in zip(*parts, strict=True):
        weights += [*own[:2], *(half for bias in own[2:] for half in bias.chunk(2))]
    return _layer(call, call.node.op, weights, call.has(3), int(call.tensor(1).shape[0]))


def _recurrent_layer(call: Call) -> tuple[torch.Tensor, ...]:
    """A recurrent layer with its weights one by one; ``turned`` ones as TensorFlow has them, both biases in one."""
    weights = [call.tensor(i) for i in range(1, len(call))]
    if call.get("turned", 0):
        biases = [part for pair in weights[2:] for part in (pair.unbind(0) if pair.ndim == 2 else (pair, pair))]
        out, *last = _layer(call, call.get("cell", ""), [w.t() for w in weights[:2]] + biases, bool(biases), 1)
        return (out.squeeze(1), *(state.squeeze(0) for state in last))
    return _layer(call, call.get("cell", ""), weights, call.get("biases", True), call.get("directions", 1))


def _layer(
    call: Call, kind: str, weights: list[torch.Tensor], biases: bool, directions: int
) -> tuple[torch.Tensor, ...]:
    """The outputs [length, directions, batch, hidden] and the last states of a recurrent layer."""
    import torch

    data, hidden = call.tensor(0), int(weights[1].shape[-1])
    length, batch = int(data.shape[0]), int(data.shape[1])
    state = [data.new_empty((directions, batch, hidden)) for _ in range(2)]
    rest = (biases, 1, 0.0, True, directions == 2, False)
    if kind == "LSTM":
        out, *last = torch.lstm(data, state, weights, *rest)
    else:
        run = torch.gru if kind == "GRU" else torch.rnn_tanh
        out, *last = run(data, state[0], weights, *rest)
    return (out.view(length, batch, directions, hidden).transpose(1, 2), *last)


def _cross_entropy(call: Call) -> torch.Tensor:
    import torch

    reduction = call.get("reduction", "mean")
    run = torch.nn.functional.nll_loss if call.node.op.startswith("Neg") else torch.nn.functional.cross_entropy
    out: torch.Tensor = run(call.tensor(0), call.tensor(1).long(), reduction=reduction)
    return out


def _resize(call: Call) -> torch.Tensor:
    import torch

    data = call.tensor(0)
    mode = {"nearest": "nearest", "cubic": "bicubic"}.get(call.get("mode", "nearest"), "linear")
    if mode == "linear":
        mode = ("linear", "bilinear", "trilinear")[data.ndim - 3]
    if call.has(3):
        size = call.numbers(3)[-(data.ndim - 2) :]
    else:
        scales = call.known(2 if call.node.op == "Resize" and len(call) > 2 else 1).ravel()[-(data.ndim - 2) :]
        size = [int(s * float(f)) for s, f in zip(data.shape[2:], scales, strict=True)]
    return torch.nn.functional.interpolate(data, size=size, mode=mode)


LAYERS: Final[dict[str, Callable[[Call], Any]]] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Linear": _linear,
    "Einsum": _einsum,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _local_response,
    "Dropout": _dropout,
    "Attention": _attention,
    "FusedAttention": _fused_attention,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "RecurrentLayer": _recurrent_layer,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "NegativeLogLikelihoodLoss": _cross_entropy,
    "Resize": _resize,
    "Upsample": _resize,
}
"""How each operator of ONNX runs in PyTorch (``Linear`` is made of a product and the bias that follows)."""
