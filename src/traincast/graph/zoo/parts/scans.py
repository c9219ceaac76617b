"""Operators of state-space and linear-attention layers, which fused kernels run in chunks of the sequence.

* ``traincast::causal_conv1d``: a short convolution per channel over the past, with SiLU;
* ``traincast::selective_scan``: Mamba (Gu and Dao 2023, arXiv:2312.00752), one recurrence per channel and state;
* ``traincast::ssd_scan``: Mamba-2's state-space duality (Dao and Gu 2024, arXiv:2405.21060);
* ``traincast::gated_delta_rule``: Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464);
* ``traincast::gated_rms_norm``: the norm behind them, of the output times SiLU of a gate.

Each computes token after token on real tensors, gives shapes on fake ones, and has a backward operator.
:mod:`traincast.graph.scan_amount` counts the FLOPs and bytes of the chunked kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    channels, taps = weight.shape
    padded = functional.pad(x.mT, (taps - 1, 0))
    return functional.silu(functional.conv1d(padded, weight[:, None], bias, groups=channels)).mT.contiguous()


def _gated_rms_norm(y: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    x = y * functional.silu(gate)
    unit = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5)
    return unit * (weight.view(x.shape[-2:]) if weight.numel() > x.shape[-1] else weight)


def _selective_scan(  # noqa: PLR0917  (an operator's schema)
    x: Tensor, step: Tensor, b: Tensor, c: Tensor, gate: Tensor, a_log: Tensor, skip: Tensor, bias: Tensor
) -> Tensor:
    delta = functional.softplus(step + bias)
    state = x.new_zeros((x.shape[0], *a_log.shape))
    outputs = []
    for t in range(x.shape[1]):
        decay = torch.exp(-a_log.exp() * delta[:, t, :, None])
        state = state * decay + (delta[:, t] * x[:, t])[..., None] * b[:, t, None]
        outputs.append((state * c[:, t, None]).sum(dim=-1))
    return (torch.stack(outputs, dim=1) + x * skip) * functional.silu(gate)


def _ssd_scan(  # noqa: PLR0917
    x: Tensor, step: Tensor, b: Tensor, c: Tensor, a_log: Tensor, skip: Tensor, bias: Tensor, chunk: int
) -> Tensor:
    heads = x.shape[1]
    b, c = (t.repeat_interleave(heads // t.shape[1], dim=1) for t in (b, c))
    delta = functional.softplus(step + bias[:, None])
    state = x.new_zeros((*x.shape[:2], x.shape[3], b.shape[3]))
    outputs = []
    for t in range(x.shape[2]):
        decay = torch.exp(-a_log.exp() * delta[:, :, t])[..., None, None]
        state = state * decay + (delta[:, :, t, None] * x[:, :, t])[..., None] * b[:, :, t, None]
        outputs.append((state * c[:, :, t, None]).sum(dim=-1))
    return torch.stack(outputs, dim=2) + x * skip[:, None, None]


def _gated_delta_rule(  # noqa: PLR0917
    q: Tensor, k: Tensor, v: Tensor, step: Tensor, strength: Tensor, a_log: Tensor, bias: Tensor, chunk: int
) -> Tensor:
    heads, width = v.shape[1], q.shape[3]
    q, k = (functional.normalize(t.repeat_interleave(heads // t.shape[1], dim=1), dim=-1) for t in (q, k))
    decay = torch.exp(-a_log.exp()[:, None] * functional.softplus(step + bias[:, None]))
    beta = strength.sigmoid()
    state = v.new_zeros((*v.shape[:2], width, v.shape[3]))
    outputs = []
    for t in range(v.shape[2]):
        state = state * decay[:, :, t, None, None]
        change = beta[:, :, t, None] * (v[:, :, t] - (state * k[:, :, t, :, None]).sum(dim=2))
        state = state + k[:, :, t, :, None] * change[:, :, None]
        outputs.append((state * q[:, :, t, :, None]).sum(dim=2) * width**-0.5)
    return torch.stack(outputs, dim=2)


def _autograd_inside() -> Any:
    """A context in which autograd works inside an operator, where PyTorch switches it off."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU) | torch._C.DispatchKeySet(
        torch._C.DispatchKey.ADInplaceOrView
    )
    excluded = torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded - keys)


def differentiable(
    name: str, function: Callable[..., Tensor], *, like: int | Callable[..., Tensor], settings: int = 0
) -> Any:
    """Register ``function`` as an operator with its backward.

    Its output has the shape of argument ``like``, or is what the function ``like`` makes of fake arguments. The last
    ``settings`` arguments are whole numbers; all others are tensors and are kept for backward.
    """

    def fake(*given: Any) -> Tensor:
        if callable(like):
            return like(*given)
        return torch.empty_like(given[like], memory_format=torch.contiguous_format)

    count = function.__code__.co_argcount - settings
    run = torch.library.custom_op(f"traincast::{name}", function, mutates_args=())
    run.register_fake(fake)
    tensors = ", ".join(f"Tensor {argument}" for argument in function.__code__.co_varnames[:count])
    numbers = "".join(f", int n{i}" for i in range(settings))
    schema = f"(Tensor grad, {tensors}{numbers}) -> ({', '.join(['Tensor'] * count)})"

    def differentiate(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
        with torch.enable_grad(), _autograd_inside():
            leaves = [t.detach().requires_grad_() for t in given[:count]]
            return tuple(torch.autograd.grad(function(*leaves, *given[count:]), leaves, grad))

    back = torch.library.custom_op(f"traincast::{name}_backward", differentiate, mutates_args=(), schema=schema)
    back.register_fake(lambda grad, *given: tuple(torch.empty_like(t) for t in given[:count]))

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.settings = inputs[count:]
        ctx.save_for_backward(*inputs[:count])

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return (*back(grad, *ctx.saved_tensors, *ctx.settings), *(None for _ in ctx.settings))

    run.register_autograd(backward, setup_context=keep)
    return run


causal_conv1d = differentiable("causal_conv1d", _causal_conv1d, like=0)
"""``silu(conv(x))``: x [batch, seq, channels], weight [channels, taps], bias [channels]."""
gated_rms_norm = differentiable("gated_rms_norm", _gated_rms_norm, like=0)
"""RMS norm of ``y·silu(gate)`` over the last dim; y and gate [batch, seq, groups, width]."""
selective_scan = differentiable("selective_scan", _selective_scan, like=0)
"""Mamba's recurrence: x, step and gate [batch, seq, channels], b and c [batch, seq, state], a_log [channels, state]."""
ssd_scan = differentiable("ssd_scan", _ssd_scan, like=0, settings=1)
"""Mamba-2's recurrence in chunks: x [batch, heads, seq, width], step [batch, heads, seq], b and c [batch, groups,
seq, state]; a_log, skip and bias [heads]."""
gated_delta_rule = differentiable("gated_delta_rule", _gated_delta_rule, like=2, settings=1)
"""The gated delta rule in chunks: q and k [batch, key heads, seq, key width], v [batch, heads, seq, value width],
step and strength [batch, heads, seq]; a_log and bias [heads]."""
