"""What decoders mix tokens with besides plain attention: state spaces, the gated delta rule, attention with options."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from traincast.graph.zoo.parts.kernels import rms_norm
from traincast.graph.zoo.parts.layers import LayerConfig, RMSNorm, Rotary, attend
from traincast.graph.zoo.parts.scans import causal_conv1d, gated_delta_rule, gated_rms_norm, selective_scan, ssd_scan


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """Sizes of a Mamba-2 layer, or of a Mamba layer where ``heads`` is 0.

    ``inner`` channels have a state of ``state`` elements each. Mamba-2 splits the channels into ``heads``; the heads of
    each of ``groups`` share their inputs. Mamba computes its step widths through a projection of ``rank``.
    """

    inner: int
    state: int
    heads: int = 0
    groups: int = 1
    taps: int = 4
    chunk: int = 256
    rank: int = 0
    bias: bool = False
    conv_bias: bool = True
    norm_groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Sizes of a gated delta rule: heads of keys and of values, and their widths."""

    key_heads: int
    value_heads: int
    key_dim: int = 128
    value_dim: int = 128
    taps: int = 4
    chunk: int = 64


class ShortConvolution(nn.Module):  # type: ignore[misc]
    """A causal convolution per channel with SiLU, one fused kernel."""

    def __init__(self, channels: int, taps: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, taps))
        if bias:
            self.bias = nn.Parameter(torch.zeros(channels))
        else:
            self.register_buffer("bias", torch.zeros(channels), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, seq, channels] to the same shape."""
        return causal_conv1d(x, self.weight, self.bias)


class Mamba2(nn.Module):  # type: ignore[misc]
    """Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): one projection, a short convolution, the scan, a gated norm."""

    def __init__(self, hidden: int, sizes: StateSpace) -> None:
        super().__init__()
        s = self.sizes = sizes
        self.mixed = s.inner + 2 * s.groups * s.state
        self.into = nn.Linear(hidden, s.inner + self.mixed + s.heads, bias=s.bias)
        self.conv = ShortConvolution(self.mixed, s.taps, bias=s.conv_bias)
        self.step_bias = nn.Parameter(torch.zeros(s.heads))
        self.a_log = nn.Parameter(torch.zeros(s.heads))
        self.skip = nn.Parameter(torch.zeros(s.heads))
        self.norm_weight = nn.Parameter(torch.ones(s.inner))
        self.out = nn.Linear(s.inner, hidden, bias=s.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        s, (batch, seq, _) = self.sizes, x.shape
        gate, mixed, step = self.into(x).split([s.inner, self.mixed, s.heads], dim=-1)
        of_state = s.groups * s.state
        value, b, c = self.conv(mixed).split([s.inner, of_state, of_state], dim=-1)
        b, c = (t.reshape(batch, seq, s.groups, s.state).transpose(1, 2) for t in (b, c))
        value = value.reshape(batch, seq, s.heads, s.inner // s.heads).transpose(1, 2)
        y = ssd_scan(value, step.transpose(1, 2), b, c, self.a_log, self.skip, self.step_bias, s.chunk)
        # A norm over all heads has no dim of groups: it mixes what tensor parallelism would split.
        groups = (batch, seq, s.norm_groups, s.inner // s.norm_groups) if s.norm_groups > 1 else (batch, seq, s.inner)
        y = gated_rms_norm(y.transpose(1, 2).reshape(groups), gate.reshape(groups), self.norm_weight)
        return self.out(y.reshape(batch, seq, s.inner))


class Mamba(nn.Module):  # type: ignore[misc]
    """Mamba (Gu and Dao 2023, arXiv:2312.00752): the selective scan, its steps, inputs and outputs made of its data."""

    def __init__(self, hidden: int, sizes: StateSpace) -> None:
        super().__init__()
        s = self.sizes = sizes
        self.into = nn.Linear(hidden, 2 * s.inner, bias=s.bias)
        self.conv = ShortConvolution(s.inner, s.taps, bias=s.conv_bias)
        self.select = nn.Linear(s.inner, s.rank + 2 * s.state, bias=False)
        self.step = nn.Linear(s.rank, s.inner, bias=False)
        self.step_bias = nn.Parameter(torch.zeros(s.inner))
        self.a_log = nn.Parameter(torch.zeros(s.inner, s.state))
        self.skip = nn.Parameter(torch.zeros(s.inner))
        self.out = nn.Linear(s.inner, hidden, bias=s.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        s = self.sizes
        value, gate = self.into(x).chunk(2, dim=-1)
        value = self.conv(value)
        step, b, c = self.select(value).split([s.rank, s.state, s.state], dim=-1)
        y = selective_scan(value, self.step(step), b, c, gate, self.a_log, self.skip, self.step_bias)
        return self.out(y)


class GatedDelta(nn.Module):  # type: ignore[misc]
    """Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464), with the projections of Qwen3-Next."""

    def __init__(self, hidden: int, sizes: DeltaNet) -> None:
        super().__init__()
        s = self.sizes = sizes
        self.keys, self.values = s.key_heads * s.key_dim, s.value_heads * s.value_dim
        self.into = nn.Linear(hidden, 2 * self.keys + 2 * self.values, bias=False)
        self.rates = nn.Linear(hidden, 2 * s.value_heads, bias=False)
        self.conv = ShortConvolution(2 * self.keys + self.values, s.taps, bias=False)
        self.step_bias = nn.Parameter(torch.ones(s.value_heads))
        self.a_log = nn.Parameter(torch.zeros(s.value_heads))
        self.norm_weight = nn.Parameter(torch.ones(s.value_dim))
        self.out = nn.Linear(self.values, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        s, (batch, seq, _) = self.sizes, x.shape
        mixed, gate = self.into(x).split([2 * self.keys + self.values, self.values], dim=-1)
        q, k, v = self.conv(mixed).split([self.keys, self.keys, self.values], dim=-1)
        q, k = (t.reshape(batch, seq, s.key_heads, s.key_dim).transpose(1, 2) for t in (q, k))
        v = v.reshape(batch, seq, s.value_heads, s.value_dim).transpose(1, 2)
        step, strength = self.rates(x).transpose(1, 2).chunk(2, dim=1)
        y = gated_delta_rule(q, k, v, step, strength, self.a_log, self.step_bias, s.chunk).transpose(1, 2)
        y = gated_rms_norm(y, gate.reshape(y.shape), self.norm_weight)
        return self.out(y.reshape(batch, seq, self.values))


class UnitNorm(nn.Module):  # type: ignore[misc]
    """A norm of each head without weights (Llama 4)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(size), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x / rms(x)`` over the last dim."""
        return rms_norm(x, self.weight, 1e-5)


class HeadsNorm(nn.Module):  # type: ignore[misc]
    """A layer norm of each head with weights of its own (Cohere's Command R+)."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Norm of ``x`` [batch, seq, heads, size] over its last dim."""
        return functional.layer_norm(x, x.shape[-1:]) * self.weight


class OptionalAttention(nn.Module):  # type: ignore[misc]
    """Grouped-query attention with the options of recent decoders.

    ``qk`` norms queries and keys: ``head`` with weights that all heads share, ``heads`` with weights of each, ``unit``
    without weights, ``width`` over all heads together (OLMo 2). ``gate`` multiplies the output by a sigmoid that the
    query projection makes along with the queries (Qwen3-Next). Soft caps of scores are applied in the fused kernel.
    """

    def __init__(self, config: LayerConfig, *, qk: str, gate: bool) -> None:
        super().__init__()
        c = config
        self.heads, self.kv_heads, self.head_dim, self.gate, self.qk = c.heads, c.kv_heads, c.head_dim, gate, qk
        self.causal, self.window = c.causal, c.window if c.window < c.seq else 0
        self.queries = c.heads * c.head_dim * (2 if gate else 1)
        self.qkv = nn.Linear(c.hidden, self.queries + 2 * c.kv_heads * c.head_dim, bias=c.qkv_bias)
        self.q_norm, self.k_norm = (self._norm(heads) for heads in (c.heads, c.kv_heads))
        self.rotary = Rotary(size=c.rope_dim, seq=c.seq) if c.rope_dim else None
        self.sinks = nn.Parameter(torch.zeros(c.heads)) if c.sinks else None
        self.out = nn.Linear(c.heads * c.head_dim, c.hidden, bias=c.out_bias)

    def _norm(self, heads: int) -> nn.Module | None:
        match self.qk:
            case "head":
                return RMSNorm(self.head_dim)
            case "heads":
                return HeadsNorm(heads, self.head_dim)
            case "unit":
                return UnitNorm(self.head_dim)
            case "width":
                return RMSNorm(heads * self.head_dim)
            case _:
                return None

    def _normed(self, norm: nn.Module | None, x: torch.Tensor) -> torch.Tensor:
        """Norm ``x`` [batch, seq, heads · head dim] and split it into heads."""
        split = (*x.shape[:2], -1, self.head_dim)
        if norm is None:
            return x.reshape(split)
        return norm(x).reshape(split) if self.qk == "width" else norm(x.reshape(split))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend within ``x`` [batch, seq, hidden]."""
        batch, seq, _ = x.shape
        pair = self.kv_heads * self.head_dim
        joint = self.qkv(x)
        gate = None
        if self.gate:
            q, gate, k, v = joint.split([self.queries // 2, self.queries // 2, pair, pair], dim=-1)
        else:
            q, k, v = joint.split([self.queries, pair, pair], dim=-1)
        q, k = self._normed(self.q_norm, q), self._normed(self.k_norm, k)
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        v = v.reshape(batch, seq, self.kv_heads, self.head_dim)
        mixed = attend(q, k, v, causal=self.causal, grouped=self.kv_heads != self.heads, sinks=self.sinks)
        mixed = mixed.reshape(batch, seq, self.heads * self.head_dim)
        return self.out(mixed if gate is None else mixed * torch.sigmoid(gate))
