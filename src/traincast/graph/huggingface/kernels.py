"""The zoo's operators under the signatures of the functions in ``transformers`` that they replace."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.nn import functional

from traincast.graph.capture.recorder import BATCH
from traincast.graph.zoo.parts import kernels, scans


def attention_forward(  # noqa: PLR0917  (the arguments of the functions that they replace)
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """Fused attention; masks of windows, sinks and soft caps are applied inside the kernel."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and query.shape[2] == key.shape[2]
    length = key.shape[2]
    module.window = sliding_window if causal and sliding_window and sliding_window < length else 0
    groups = query.shape[1] // key.shape[1]
    if query.shape[-1] == value.shape[-1]:
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=groups > 1)
    else:
        key, value = (t.repeat_interleave(groups, dim=1) if groups > 1 else t for t in (key, value))
        mixed = kernels.attention(query, key, value, causal)
    return mixed.transpose(1, 2), None


def experts_forward(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Rows sorted by expert, grouped products, rows summed back, as in the zoo's mixtures of experts."""

    def weights(name: str) -> torch.Tensor:
        stored: torch.Tensor = getattr(module, name)
        return stored if module.is_transposed else stored.mT

    first = "gate_up_proj" if module.has_gate else "up_proj"
    up, down = weights(first), weights("down_proj")
    expert, order = top_k_index.reshape(-1).sort(stable=True)
    token = order // top_k_index.shape[-1]
    ends = torch.searchsorted(expert, torch.arange(up.shape[0], device=expert.device), right=True)
    inner = kernels.grouped_mm(hidden_states.index_select(0, token), up, ends)
    if module.has_bias:
        inner = inner + getattr(module, f"{first}_bias").index_select(0, expert)
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    outer = kernels.grouped_mm(inner, down, ends)
    if module.has_bias:
        outer = outer + module.down_proj_bias.index_select(0, expert)
    outer = outer * top_k_weights.reshape(-1).index_select(0, order)[:, None]
    return torch.zeros_like(hidden_states).index_add(0, token, outer)


def experts_of(kind: type[torch.nn.Module]) -> Callable[..., torch.Tensor] | None:
    """Returns a ``forward`` whose shapes do not depend on data, for experts that run one after the other.

    ``None`` for other modules. Each of these experts runs on the rows that are sent to it.
    """
    if not kind.__module__.startswith("transformers.") or "forward" not in vars(kind) or hasattr(kind, "_apply_gate"):
        return None
    taken = list(inspect.signature(kind.forward).parameters)[1:]
    if taken == list(inspect.signature(experts_forward).parameters)[1:]:
        return _experts
    if taken == ["inputs", "expert_size"]:
        return _grouped
    rows_chosen = (
        ["hidden_states", "selected_experts", "routing_weights"],
        ["hidden_states", "router_mask", "router_probs"],
    )
    return _in_turn if taken in rows_chosen else None


def _share(rows: int, part: int, whole: int) -> int:
    """The rows that go to ``part`` of ``whole`` equally used experts, as a multiple of the batch."""
    return max(1, round(rows // BATCH * part / whole)) * BATCH


def _experts(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Grouped products; experts that return their input (``total_experts`` counts them) take their share of rows."""
    inner = getattr(self, "mlp", self)
    if hasattr(inner, "v1"):
        split = (-1, inner.ffn_hidden_size, inner.hidden_size)
        ups, down = [w.view(split).mT for w in (inner.w1, inner.v1)], inner.w2.view(split)
    else:
        ups, down = [self.gate_up_proj[: len(self.down_proj)].mT], self.down_proj.mT
    act = inner.activation_fn if hasattr(inner, "activation_fn") else inner.act_fn
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    expert, order = top_k_index.reshape(-1).sort(stable=True)
    kept = _share(len(order), len(down), getattr(self, "total_experts", len(down)))
    order, expert = order[:kept], expert[:kept]
    token = order // top_k_index.shape[-1]
    ends = torch.searchsorted(expert, torch.arange(len(down), device=expert.device), right=True)
    rows = x.index_select(0, token)
    made = [kernels.grouped_mm(rows, up, ends) for up in ups]
    gate, up = made if len(made) == 2 else made[0].chunk(2, dim=-1)
    outer = kernels.grouped_mm(act(gate) * up, down, ends)
    outer = outer * top_k_weights.reshape(-1).index_select(0, order)[:, None]
    return torch.zeros_like(x).index_add(0, token, outer).view(hidden_states.shape)


def _grouped(self: Any, inputs: torch.Tensor, expert_size: torch.Tensor) -> torch.Tensor:
    """Rows sorted by expert, ``expert_size`` of them for each, times the weights of their expert."""
    return kernels.grouped_mm(inputs, self.weight.mT, expert_size.cumsum(0))


def _in_turn(
    self: Any, hidden_states: torch.Tensor, selected_experts: torch.Tensor, routing_weights: torch.Tensor
) -> torch.Tensor:
    """Each expert, a module of its own, on an equal share of the rows.

    A row goes to one expert (Switch Transformer), or to two if it has a weight for each expert (NLLB).
    """
    experts = [part for part in self.values() if next(part.parameters(), None) is not None]
    several = routing_weights.shape[-1] == len(experts) > 1
    share = _share(len(hidden_states), 2 if several else 1, len(experts))
    chosen = selected_experts.reshape(len(hidden_states), -1)
    total = torch.zeros_like(hidden_states)
    for number, expert in enumerate(experts):
        rows = chosen[:, number].sort(descending=True)[1][:share]
        weights = routing_weights[rows, number, None] if several else routing_weights[rows]
        total = total.index_add(0, rows, expert(hidden_states[rows]) * weights)
    return total


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads_dim: int) -> torch.Tensor:
    half = cos.shape[-1] // 2
    table, other = (t[0, :, :half][:, None] for t in (cos, sin))
    if heads_dim == 1:
        return kernels.rotary(x.transpose(1, 2), table, other).transpose(1, 2)
    return kernels.rotary(x, table, other)


def _rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *rest: Any, unsqueeze_dim: int = 1, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary positions of queries and keys, one kernel each."""
    return _turn(q, cos, sin, unsqueeze_dim), _turn(k, cos, sin, unsqueeze_dim)


def indexer_of(kind: type[torch.nn.Module]) -> Callable[..., torch.Tensor] | None:
    """What replaces ``forward`` of an indexer that scores blocks of keys query by query."""
    if not (kind.__module__.startswith("transformers.") and kind.__name__.endswith("QSAIndexer")):
        return None
    return _indexer


def _indexer(
    self: Any,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: torch.Tensor,
    past_key_values: None,
) -> torch.Tensor:
    """Scores of all queries with all blocks of keys at once, and a mask of those chosen; it has no gradient."""
    with torch.no_grad():
        batch, length, _ = hidden_states.shape
        heads, width, ratio = self.index_n_heads, self.index_head_dim, self.compress_ratio
        q, k = self.index_qk_proj(hidden_states).split([heads * width, self.index_kv_heads * width], dim=-1)
        blocks = max(1, length // ratio)
        k = self.k_layernorm(k[:, : blocks * ratio].reshape(batch, blocks, -1, width).mean(dim=2))
        cos, sin = position_embeddings
        q = _turn(self.q_layernorm(q.reshape(batch, length, heads, width)), cos, sin, 2)
        k = _turn(k[:, :, None], cos[:, :blocks], sin[:, :blocks], 2)[:, :, 0]
        scores = (q.flatten(1, 2) @ k.mT).view(batch, length, heads, blocks).relu().sum(dim=2)
        chosen = scores.topk(min(self.block_topk, blocks), dim=-1)[1]
        mask = torch.zeros(batch, length, blocks, dtype=torch.bool, device=scores.device).scatter(-1, chosen, True)
        mask = mask.repeat_interleave(ratio, dim=-1)
        mask = functional.pad(mask, (0, length - mask.shape[-1]), value=True)[:, None]
    if attention_mask.is_floating_point():
        return torch.where(mask, attention_mask.new_zeros(()), torch.finfo(attention_mask.dtype).min)
    return mask


def _conv(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> torch.Tensor:
    """The short convolution of state spaces; ``hidden_states`` [batch, channels, seq]."""
    offset = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return scans.causal_conv1d(hidden_states.mT, weight, offset).mT


def _chunk_scan(  # noqa: PLR0917  (the arguments of the function that it replaces)
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    return_final_states: bool = False,
    **_: Any,
) -> Any:
    """Mamba-2's scan; all tensors have heads or groups behind the tokens."""
    by_head = (t.transpose(1, 2) for t in (hidden_states, dt, B, C))
    skip = torch.zeros_like(A) if D is None else D
    y = scans.ssd_scan(*by_head, A, skip, A if dt_bias is None else dt_bias, chunk_size).transpose(1, 2).contiguous()
    return (y, None) if return_final_states else y


def _selective(  # noqa: PLR0917
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    """Mamba's scan; tensors have channels or states before the tokens."""
    x, step, b, c = (t.mT for t in (hidden_states, dt, B, C))
    gate = x if z is None else z.mT
    zeros = A.new_zeros(A.shape[0])
    skip, bias = (zeros if t is None else t for t in (D, delta_bias))
    y = scans.selective_scan(x, step, b, c, gate, A, skip, bias).mT
    return (y, None) if return_last_state else y


def _delta_rule(  # noqa: PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk_size: int = 64,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The gated delta rule; all tensors have heads behind the tokens."""
    by_head = (t.transpose(1, 2) for t in (query, key, value, g, beta))
    zeros = g.new_zeros(g.shape[-1])
    return scans.gated_delta_rule(*by_head, zeros, zeros, chunk_size).transpose(1, 2), None


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "apply_rotary_pos_emb": _rotary,
    "apply_rotary_pos_emb_interleave": _rotary,
    "causal_conv1d_fn": _conv,
    "mamba2_chunk_scan": _chunk_scan,
    "mamba_selective_scan": _selective,
    "torch_chunk_gated_delta_rule": _delta_rule,
}
"""What replaces functions of these names."""


def fits(theirs: Callable[..., Any], ours: Callable[..., Any]) -> bool:
    """Whether the first arguments of both functions have the same names."""
    own = inspect.signature(ours).parameters.values()
    needed = [p.name for p in own if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return list(inspect.signature(theirs).parameters)[: len(needed)] == needed


def norm_of(kind: type[torch.nn.Module]) -> Callable[..., torch.Tensor] | None:
    """What replaces ``forward`` of an RMS norm of ``transformers``, gated or not; ``None`` for other modules."""
    if not kind.__module__.startswith("transformers.") or "forward" not in vars(kind):
        return None
    if kind.__name__.endswith("RMSNormGated"):
        return _gated_norm
    return _norm if kind.__name__.endswith("RMSNorm") else None


def _norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    weight = getattr(self, "weight", None)
    weight = x.new_ones(x.shape[-1]) if weight is None else weight
    return kernels.rms_norm(x, weight, 1e-6)


def _gated_norm(self: Any, hidden_states: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
    if gate is None:
        return kernels.rms_norm(hidden_states, self.weight, 1e-6)
    width = getattr(self, "group_size", hidden_states.shape[-1])
    parts = hidden_states.shape[-1] // width
    groups = (*hidden_states.shape[:-1], parts, width) if parts > 1 else hidden_states.shape
    return scans.gated_rms_norm(hidden_states.reshape(groups), gate.reshape(groups), self.weight).view_as(hidden_states)
