"""Fused operators of ONNX Runtime (domain ``com.microsoft``), which its optimizers put into files of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from traincast.graph.onnx.values import Call, UnsupportedError

if TYPE_CHECKING:
    import torch

DOMAIN: Final = "com.microsoft"
CONTRIB_WEIGHTS: Final[Mapping[str, tuple[int, ...]]] = {
    f"{DOMAIN}.BiasGelu": (1,),
    f"{DOMAIN}.FastGelu": (1,),
    f"{DOMAIN}.FusedMatMul": (0, 1),
    f"{DOMAIN}.SimplifiedLayerNormalization": (1,),
    f"{DOMAIN}.SkipLayerNormalization": (2, 3, 4),
    f"{DOMAIN}.SkipSimplifiedLayerNormalization": (2, 3),
    f"{DOMAIN}.Attention": (1, 2),
    f"{DOMAIN}.MultiHeadAttention": (3,),
}
"""Inputs of each operator that a network trains."""


def _gelu(call: Call) -> torch.Tensor:
    """GELU, of the sum with a bias if there is one."""
    import torch

    data = call.tensor(0) + call.tensor(1) if call.has(1) else call.tensor(0)
    return torch.nn.functional.gelu(data, approximate="tanh" if "Fast" in call.node.op else "none")


def _quick_gelu(call: Call) -> torch.Tensor:
    """``x · sigmoid(α x)``, one kernel like SiLU."""
    import torch

    return torch.nn.functional.silu(call.tensor(0))


def _product(call: Call) -> torch.Tensor:
    left, right = call.tensor(0), call.tensor(1)
    left = left.mT if call.get("transA", 0) else left
    return left @ (right.mT if call.get("transB", 0) else right)


def _simplified_norm(call: Call) -> torch.Tensor:
    import torch

    data = call.tensor(0)
    return torch.nn.functional.rms_norm(data, [int(data.shape[-1])], call.optional(1))


def _skip_norm(call: Call) -> tuple[Any, ...]:
    """The norm of a sum; the sum itself is the last output."""
    import torch

    total = call.tensor(0) + call.tensor(1)
    width = [int(total.shape[-1])]
    if "Simplified" in call.node.op:
        total = total + call.tensor(3) if call.has(3) else total
        out = torch.nn.functional.rms_norm(total, width, call.optional(2))
    else:
        total = total + call.tensor(4) if call.has(4) else total
        out = torch.nn.functional.layer_norm(total, width, call.optional(2), call.optional(3))
    return out, None, None, total


def _attend(call: Call, parts: list[torch.Tensor], heads: int, groups: int, causal: bool) -> torch.Tensor:
    """Fused attention of queries, keys and values [batch, length, width]."""
    import torch

    counts = (heads, groups, groups)
    q, k, v = (
        t if t.ndim == 4 else t.unflatten(-1, (n, -1)).transpose(1, 2) for t, n in zip(parts, counts, strict=True)
    )
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != groups)
    return out.transpose(1, 2).flatten(2)


def _attention(call: Call) -> torch.Tensor:
    """A joint projection to queries, keys and values, and attention."""
    import torch

    heads = int(call.get("num_heads", 0))
    if heads < 1 or call.has(4):
        raise UnsupportedError("it has no num_heads, or keys of the past, which training has none of")
    bias = call.optional(2)
    joint = torch.nn.functional.linear(call.tensor(0), call.tensor(1).t(), bias)
    sizes = [int(s) for s in call.get("qkv_hidden_sizes", [joint.shape[-1] // 3] * 3)]
    return _attend(call, list(joint.split(sizes, dim=-1)), heads, heads, bool(call.get("unidirectional", 0)))


def _multi_head(call: Call) -> torch.Tensor:
    """Attention of queries, keys and values; a bias is that of all three."""
    heads = int(call.get("num_heads", 1))
    if not (call.has(1) and call.has(2)):
        raise UnsupportedError("its queries, keys and values are packed in one tensor")
    parts = [call.tensor(n) for n in range(3)]
    if call.has(3):
        offsets = call.tensor(3).split([int(t.shape[-1]) for t in parts])
        parts = [t + offset for t, offset in zip(parts, offsets, strict=True)]
    return _attend(call, parts, heads, heads, bool(call.get("unidirectional", 0)))


def _grouped(call: Call) -> torch.Tensor:
    """Causal attention whose queries share keys and values."""
    if not (call.has(1) and call.has(2)):
        raise UnsupportedError("its queries, keys and values are packed in one tensor")
    heads, groups = int(call.get("num_heads", 1)), int(call.get("kv_num_heads", 1))
    return _attend(call, [call.tensor(n) for n in range(3)], heads, groups, causal=True)


CONTRIB: Final[dict[str, Callable[[Call], Any]]] = {
    f"{DOMAIN}.Gelu": _gelu,
    f"{DOMAIN}.BiasGelu": _gelu,
    f"{DOMAIN}.FastGelu": _gelu,
    f"{DOMAIN}.QuickGelu": _quick_gelu,
    f"{DOMAIN}.FusedMatMul": _product,
    f"{DOMAIN}.SimplifiedLayerNormalization": _simplified_norm,
    f"{DOMAIN}.SkipLayerNormalization": _skip_norm,
    f"{DOMAIN}.SkipSimplifiedLayerNormalization": _skip_norm,
    f"{DOMAIN}.Attention": _attention,
    f"{DOMAIN}.MultiHeadAttention": _multi_head,
    f"{DOMAIN}.GroupQueryAttention": _grouped,
}
"""How each operator runs in PyTorch."""
