"""The blocks that sequence models are made of: norms, rotary positions, attention, MLPs, experts.

Every block runs on meta and fake tensors for any batch: no data-dependent shapes and no ``.item()``.
Projections that frameworks fuse are fused here: one GEMM for q, k and v, one for gate and up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from traincast.errors import RequestError, UnknownNameError
from traincast.graph.zoo.parts.indexer import Indexer, IndexSizes
from traincast.graph.zoo.parts.kernels import attention, grouped_mm, rms_norm, rotary

LIMITS: Final[Mapping[str, int]] = {
    "layers": 2_000,
    "first_dense": 2_000,
    "experts": 2**16,
    "heads": 2**16,
    "kv_heads": 2**16,
    "vocab": 2**26,
    "seq": 2**24,
    "max_positions": 2**24,
    "window": 2**24,
}
"""The largest accepted value of each size; sizes that are not listed may be up to ``LARGEST``."""
LARGEST: Final = 2**20
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "norm": ("layernorm", "rmsnorm", "plain"),
    "activation": ("gelu", "gelu_new", "relu", "relu2", "swiglu", "geglu"),
    "positions": ("learned", "rope", "alibi", "none"),
    "router": ("softmax", "sigmoid"),
    "norms": ("before", "after", "around", "parallel", "shared"),
    "qk": ("none", "head", "heads", "width", "unit"),
}
"""The accepted words of each setting; settings that are not listed are true or false."""


def check_sizes(family: str, sizes: Mapping[str, object], *, may_be_zero: frozenset[str] = frozenset()) -> None:
    """Raise ``RequestError`` for sizes that are not whole numbers, not positive, or too large for any machine."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise RequestError(f"{family}: {name}={value!r} is not a whole number")
        low = 0 if name in may_be_zero else 1
        high = LIMITS.get(name, LARGEST)
        if not low <= value <= high:
            raise RequestError(f"{family}: {name}={value} must be between {low} and {high:,}")


def check_choices(family: str, choices: Mapping[str, object]) -> None:
    """Raise ``RequestError`` for a setting that is not one of its words, or a flag that is not true or false."""
    for name, value in choices.items():
        known = CHOICES.get(name, ())
        if known and isinstance(value, str) and value not in known:
            raise UnknownNameError(f"{family} {name}", value, known)
        if not isinstance(value, str if known else bool):
            raise RequestError(f"{family}: {name}={value!r} must be {' or '.join(known or ('true', 'false'))}")


def check_divides(family: str, *, whole: tuple[str, int], parts: tuple[str, int], remedy: str) -> None:
    """Raise ``RequestError`` if a size cannot be divided evenly."""
    if whole[1] % parts[1]:
        raise RequestError(
            f"{family}: {whole[0]}={whole[1]} is not divisible by {parts[0]}={parts[1]} "
            f"(remainder {whole[1] % parts[1]}); {remedy}"
        )


def token_ids(module: nn.Module, batch: int, seq: int) -> torch.Tensor:
    """Token ids of ``batch`` samples, [batch, seq], on the module's device."""
    return torch.empty(batch, seq, dtype=torch.int64, device=next(module.parameters()).device)


def cross_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over the last dim, every other position having one target."""
    flat = logits.reshape(-1, logits.shape[-1])
    return functional.cross_entropy(flat, torch.empty(flat.shape[0], dtype=torch.int64, device=flat.device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the MLP (Shazeer et al. 2017, arXiv:1701.06538).

    ``ffn`` is the width of one expert, ``shared_ffn`` of the MLP that every token passes (0: none).
    A ``sigmoid`` router has DeepSeek-V3's balancing offset per expert, which is no trained parameter.
    """

    count: int
    top_k: int
    ffn: int
    shared_ffn: int = 0
    router: str = "softmax"
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434): low-rank q and joint k, v.

    A head's query and key have ``nope_dim`` plus ``rope_dim`` elements, its value ``v_dim``; ``q_rank`` 0 projects
    queries directly. With an ``index``, each query attends only to the keys that the indexer chooses.
    """

    q_rank: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    index: IndexSizes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """One transformer layer: everything that its cost depends on."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    seq: int
    norm: str = "layernorm"
    norm_bias: bool = True
    post_norm: bool = False
    parallel: bool = False
    activation: str = "gelu"
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    rope_dim: int = 0
    causal: bool = True
    window: int = 0
    qk_norm: bool = False
    sinks: bool = False
    dropout: float = 0.0
    latent: Latent | None = None
    experts: Experts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackConfig:
    """What every language model has: ``layers`` like ``layer``, between a table of ``vocab`` tokens and its logits.

    ``tied``: one table serves both. ``mtp`` is the number of tokens after the next one that the model is trained to
    predict as well.
    """

    layers: int
    layer: LayerConfig
    vocab: int
    tied: bool = False
    mtp: int = 0


class RMSNorm(nn.Module):  # type: ignore[misc]
    """Root-mean-square norm (Zhang and Sennrich 2019, arXiv:1910.07467) as one operator."""

    def __init__(self, size: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x / rms(x) · weight`` over the last dim."""
        return rms_norm(x, self.weight, self.eps)


def norm(kind: str, size: int, *, bias: bool = True) -> nn.Module:
    """The norm named ``kind`` over the last dim of ``size`` elements; a ``plain`` layer norm has no weights."""
    if kind == "plain":
        return nn.LayerNorm(size, elementwise_affine=False)
    return RMSNorm(size) if kind == "rmsnorm" else nn.LayerNorm(size, bias=bias)


class Rotary(nn.Module):  # type: ignore[misc]
    """Rotary positions (Su et al. 2021, arXiv:2104.09864) on the first ``size`` elements of each head."""

    def __init__(self, *, size: int, seq: int, theta: float = 10000.0) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(seq), theta ** (torch.arange(0, size, 2) / -size))
        self.register_buffer("cos", angles.cos()[:, None], persistent=False)
        self.register_buffer("sin", angles.sin()[:, None], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate ``x`` [batch, seq, heads, head dim]."""
        return rotary(x, self.cos, self.sin)


def share_tables(layers: nn.Module) -> None:
    """Let all rotary positions of one kind below ``layers`` use the same tables, as training frameworks do."""
    tables: dict[tuple[int, ...], Rotary] = {}
    for module in layers.modules():
        if isinstance(module, Rotary):
            first = tables.setdefault(tuple(module.cos.shape), module)
            module.cos, module.sin = first.cos, first.sin


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, grouped: bool, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Fused attention of ``q`` [batch, seq, heads, d] to as many heads of ``k`` and ``v``, or to fewer if ``grouped``.

    ``sinks`` [heads] are logits of a key that all queries see and that has no value.
    """
    mixed = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=causal,
        enable_gqa=grouped,
    ).transpose(1, 2)
    # The exact factor is sigmoid(logsumexp(scores) - sink): same operator, same cost.
    return mixed if sinks is None else mixed * torch.sigmoid(-sinks)[:, None]


class Attention(nn.Module):  # type: ignore[misc]
    """Multi-head or grouped-query attention (Vaswani et al. 2017; Ainslie et al. 2023, arXiv:2305.13245).

    ALiBi's bias and the mask of a sliding ``window`` are applied inside a fused kernel, so neither
    shows as an operator: a cost model reads ``window`` (0: none) from this module.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        c = config
        self.heads, self.kv_heads, self.head_dim = c.heads, c.kv_heads, c.head_dim
        self.causal, self.window = c.causal, c.window if c.window < c.seq else 0
        self.qkv = nn.Linear(c.hidden, (c.heads + 2 * c.kv_heads) * c.head_dim, bias=c.qkv_bias)
        self.q_norm = RMSNorm(c.head_dim) if c.qk_norm else None
        self.k_norm = RMSNorm(c.head_dim) if c.qk_norm else None
        self.rotary = Rotary(size=c.rope_dim, seq=c.seq) if c.rope_dim else None
        self.sinks = nn.Parameter(torch.zeros(c.heads)) if c.sinks else None
        self.out = nn.Linear(c.heads * c.head_dim, c.hidden, bias=c.out_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend within ``x`` [batch, seq, hidden]."""
        batch, seq, _ = x.shape
        joint = self.qkv(x).view(batch, seq, self.heads + 2 * self.kv_heads, self.head_dim)
        q, k, v = joint.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        mixed = attend(q, k, v, causal=self.causal, grouped=self.kv_heads != self.heads, sinks=self.sinks)
        return self.out(mixed.reshape(batch, seq, self.heads * self.head_dim))


class LatentAttention(nn.Module):  # type: ignore[misc]
    """Attention through low-rank latents (DeepSeek-AI 2024, arXiv:2405.04434), as in training.

    Its value heads are narrower than its query heads, which PyTorch's fused CPU kernel refuses and GPU
    kernels support: hence an attention operator of our own.
    """

    def __init__(self, config: LayerConfig, latent: Latent) -> None:
        super().__init__()
        self.heads, self.causal, self.window = config.heads, config.causal, 0
        index = latent.index
        self.indexer = None if index is None else Indexer(config.hidden, q_rank=latent.q_rank, sizes=index)
        if index is not None and index.top_k < config.seq:
            self.window = index.top_k  # a query reads as many keys as in a window, wherever they stand
        self.rope_dim, self.nope_dim, self.v_dim = latent.rope_dim, latent.nope_dim, latent.v_dim
        self.kv_rank = latent.kv_rank
        qk_dim = latent.nope_dim + latent.rope_dim
        hidden, rank = config.hidden, latent.q_rank
        self.q_down = nn.Linear(hidden, rank, bias=False) if rank else None
        self.q_norm = RMSNorm(rank) if rank else None
        self.q_up = nn.Linear(rank or hidden, config.heads * qk_dim, bias=False)
        self.kv_down = nn.Linear(hidden, latent.kv_rank + latent.rope_dim, bias=False)
        self.kv_norm = RMSNorm(latent.kv_rank)
        self.kv_up = nn.Linear(latent.kv_rank, config.heads * (latent.nope_dim + latent.v_dim), bias=False)
        self.rotary = Rotary(size=latent.rope_dim, seq=config.seq)
        self.out = nn.Linear(config.heads * latent.v_dim, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend within ``x`` [batch, seq, hidden]."""
        batch, seq, _ = x.shape
        latent = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        q = self.q_up(latent).view(batch, seq, self.heads, self.nope_dim + self.rope_dim)
        q_nope, q_rope = q.split([self.nope_dim, self.rope_dim], dim=-1)
        compressed, k_rope = self.kv_down(x).split([self.kv_rank, self.rope_dim], dim=-1)
        kv = self.kv_up(self.kv_norm(compressed)).view(batch, seq, self.heads, self.nope_dim + self.v_dim)
        k_nope, v = kv.split([self.nope_dim, self.v_dim], dim=-1)
        k_rope = self.rotary(k_rope[:, :, None]).expand(batch, seq, self.heads, self.rope_dim)
        if self.indexer is not None:
            self.indexer(x, latent, self.rotary)
        q = torch.cat((q_nope, self.rotary(q_rope)), dim=-1)
        k = torch.cat((k_nope, k_rope), dim=-1)
        mixed = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, self.heads * self.v_dim))


def gated(activation: str) -> bool:
    """Whether ``activation`` multiplies by a gate (GLU variants, Shazeer 2020, arXiv:2002.05202)."""
    return activation in ("swiglu", "geglu")


def activate(activation: str, x: torch.Tensor) -> torch.Tensor:
    """Apply ``activation``; the gated ones halve the last dim, whose first half is the gate."""
    match activation:
        case "swiglu":
            gate, up = x.chunk(2, dim=-1)
            return functional.silu(gate) * up
        case "geglu":
            gate, up = x.chunk(2, dim=-1)
            return functional.gelu(gate) * up
        case "relu":
            return functional.relu(x)
        case "relu2":  # squared (So et al. 2021, arXiv:2109.08668)
            return functional.relu(x).square()
        case "gelu_new":  # as Hugging Face writes it out, eight kernels where nothing fuses them
            return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
        case _:
            return functional.gelu(x)


class MLP(nn.Module):  # type: ignore[misc]
    """Two linear layers with an activation, or a gated unit, between."""

    def __init__(self, *, hidden: int, ffn: int, activation: str, bias: bool) -> None:
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(hidden, 2 * ffn if gated(activation) else ffn, bias=bias)
        self.down = nn.Linear(ffn, hidden, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [..., hidden] to the same shape."""
        return self.down(activate(self.activation, self.up(x)))


class MoE(nn.Module):  # type: ignore[misc]
    """Dropless mixture of experts: rows sorted by expert, grouped GEMMs, rows summed back.

    As in MegaBlocks (Gale et al. 2022, arXiv:2211.15841), without padding to a capacity.
    """

    def __init__(self, *, hidden: int, experts: Experts, activation: str) -> None:
        super().__init__()
        e = experts
        self.experts, self.top_k, self.routing, self.activation = e.count, e.top_k, e.router, activation
        width = 2 * e.ffn if gated(activation) else e.ffn
        self.router = nn.Linear(hidden, e.count, bias=e.bias)
        self.up = nn.Parameter(torch.empty(e.count, hidden, width))
        self.down = nn.Parameter(torch.empty(e.count, e.ffn, hidden))
        self.up_bias = nn.Parameter(torch.empty(e.count, width)) if e.bias else None
        self.down_bias = nn.Parameter(torch.empty(e.count, hidden)) if e.bias else None
        if e.router == "sigmoid":
            self.register_buffer("balance", torch.zeros(e.count))
        self.shared = MLP(hidden=hidden, ffn=e.shared_ffn, activation=activation, bias=False) if e.shared_ffn else None

    def _route(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and experts of each row, both [rows, top k]."""
        logits = self.router(rows)
        if self.routing == "sigmoid":
            scores = logits.sigmoid()
            choice = (scores + self.balance).topk(self.top_k, dim=-1).indices
            weights = scores.gather(-1, choice)
        else:
            weights, choice = logits.softmax(dim=-1).topk(self.top_k, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True), choice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape, each token through ``top_k`` experts."""
        rows = x.reshape(-1, x.shape[-1])
        combined = self._mixed(rows, *self._route(rows)).view(x.shape)
        return combined if self.shared is None else combined + self.shared(x)

    def _mixed(self, rows: torch.Tensor, weights: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the experts that each of ``rows`` is sent to."""
        expert, order = choice.reshape(-1).sort(stable=True)
        token = order // self.top_k
        ends = torch.searchsorted(expert, torch.arange(self.experts, device=rows.device), right=True)
        inner = grouped_mm(rows.index_select(0, token), self.up, ends)
        if self.up_bias is not None:
            inner = inner + self.up_bias.index_select(0, expert)
        outer = grouped_mm(activate(self.activation, inner), self.down, ends)
        if self.down_bias is not None:
            outer = outer + self.down_bias.index_select(0, expert)
        outer = outer * weights.reshape(-1).index_select(0, order)[:, None]
        return torch.zeros_like(rows).index_add(0, token, outer)


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and MLP with residuals; norm before (GPT-2), after (BERT), or both in parallel (GPT-NeoX)."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        c = config
        self.post_norm, self.parallel = c.post_norm, c.parallel
        self.norm1 = norm(c.norm, c.hidden, bias=c.norm_bias)
        self.attention = Attention(c) if c.latent is None else LatentAttention(c, c.latent)
        self.norm2 = norm(c.norm, c.hidden, bias=c.norm_bias)
        self.mlp = (
            MLP(hidden=c.hidden, ffn=c.ffn, activation=c.activation, bias=c.mlp_bias)
            if c.experts is None
            else MoE(hidden=c.hidden, experts=c.experts, activation=c.activation)
        )
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        if self.post_norm:
            x = self.norm1(x + self.dropout(self.attention(x)))
            return self.norm2(x + self.dropout(self.mlp(x)))
        if self.parallel:
            return x + self.dropout(self.attention(self.norm1(x))) + self.dropout(self.mlp(self.norm2(x)))
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))
