"""Fused kernels that PyTorch lacks on the CPU, as operators of our own, so that a trace shows one each.

* ``traincast::rms_norm``: PyTorch decomposes it into six operators, and its backward into eighteen;
* ``traincast::rotary``: seven operators on slices, where training frameworks launch one kernel;
* ``traincast::grouped_mm``: PyTorch's accepts bf16 on a GPU only;
* ``traincast::attention``: PyTorch's fused CPU kernel wants value heads as wide as query heads;
* ``traincast::table_lookup``: PyTorch's gradient of an embedding is as large as its table, or sparse, which fake
  tensors cannot follow. Here the backward operator updates the rows that were read, and the table has no gradient;
* ``traincast::index_scores``: scores of sparse attention's indexer, summed over heads without being written per head.

Each has a plain implementation for real tensors, shapes for fake ones, and a backward operator. Scores of an indexer
choose keys and have no gradient.
"""

from __future__ import annotations

from typing import Any

import torch


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    rstd = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return x * rstd * weight, rstd


def _rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    unit = x * rstd
    scaled = grad * weight
    grad_x = rstd * (scaled - unit * (scaled * unit).mean(dim=-1, keepdim=True))
    return grad_x, (grad * unit).reshape(-1, weight.shape[0]).sum(dim=0)


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


def _rotary_backward(grad: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return _rotary(grad, cos, -sin)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    scores = _scores(q, k, causal)
    return scores.softmax(dim=-1) @ v, scores.logsumexp(dim=-1)


def _attention_backward(  # noqa: PLR0917  (an operator's schema)
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    weights = (_scores(q, k, causal) - lse[..., None]).exp()
    inner = (grad * out).sum(dim=-1, keepdim=True)
    grad_scores = weights * (grad @ v.mT - inner) * q.shape[-1] ** -0.5
    return grad_scores @ k, grad_scores.mT @ q, weights.mT @ grad


def _scores(q: torch.Tensor, k: torch.Tensor, causal: bool) -> torch.Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if not causal:
        return scores
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf"))


def _grouped_mm(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    parts = rows.tensor_split(ends[:-1].cpu())
    return torch.cat([part @ weight for part, weight in zip(parts, weights, strict=True)])


def _grouped_mm_backward(rows: torch.Tensor, grad: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    cuts = ends[:-1].cpu()
    pairs = zip(rows.tensor_split(cuts), grad.tensor_split(cuts), strict=True)
    return torch.stack([a.mT @ b for a, b in pairs])


def _table_lookup(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return table[ids]


def _table_lookup_backward(grad: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return grad.neg()


def _index_scores(queries: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    scores = (queries @ keys).relu().unflatten(1, weights.shape[1:])
    return (scores * weights[..., None]).sum(dim=2)


_rms_norm_op = torch.library.custom_op("traincast::rms_norm", _rms_norm, mutates_args=())
_rms_norm_backward_op = torch.library.custom_op("traincast::rms_norm_backward", _rms_norm_backward, mutates_args=())
_rotary_op = torch.library.custom_op("traincast::rotary", _rotary, mutates_args=())
_rotary_backward_op = torch.library.custom_op("traincast::rotary_backward", _rotary_backward, mutates_args=())
_attention_op = torch.library.custom_op("traincast::attention", _attention, mutates_args=())
_attention_backward_op = torch.library.custom_op("traincast::attention_backward", _attention_backward, mutates_args=())
_grouped_mm_op = torch.library.custom_op("traincast::grouped_mm", _grouped_mm, mutates_args=())
_grouped_mm_backward_op = torch.library.custom_op(
    "traincast::grouped_mm_backward", _grouped_mm_backward, mutates_args=()
)
_table_lookup_op = torch.library.custom_op("traincast::table_lookup", _table_lookup, mutates_args=())
_table_lookup_backward_op = torch.library.custom_op(
    "traincast::table_lookup_backward", _table_lookup_backward, mutates_args=()
)
_index_scores_op = torch.library.custom_op("traincast::index_scores", _index_scores, mutates_args=())

_rms_norm_op.register_fake(lambda x, weight, eps: (torch.empty_like(x), x.new_empty((*x.shape[:-1], 1))))
_rms_norm_backward_op.register_fake(lambda grad, x, weight, rstd: (torch.empty_like(x), torch.empty_like(weight)))
_rotary_op.register_fake(lambda x, cos, sin: torch.empty_like(x, memory_format=torch.contiguous_format))
_rotary_backward_op.register_fake(lambda grad, cos, sin: torch.empty_like(grad, memory_format=torch.contiguous_format))
_attention_op.register_fake(
    lambda q, k, v, causal: (q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1]))
)
_attention_backward_op.register_fake(
    lambda grad, q, k, v, out, lse, causal: (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
)
_grouped_mm_op.register_fake(lambda rows, weights, ends: rows.new_empty((rows.shape[0], weights.shape[2])))
_grouped_mm_backward_op.register_fake(
    lambda rows, grad, ends: rows.new_empty((ends.shape[0], rows.shape[1], grad.shape[1]))
)

_table_lookup_op.register_fake(lambda table, ids: table.new_empty((*ids.shape, table.shape[1])))
_table_lookup_backward_op.register_fake(lambda grad, ids: torch.empty_like(grad))
_index_scores_op.register_fake(lambda queries, keys, weights: keys.new_empty((*weights.shape[:2], keys.shape[2])))


def _keep_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _differentiate_rms_norm(ctx: Any, grad: torch.Tensor | None, _: object) -> tuple[Any, ...]:
    if grad is None:
        return None, None, None
    return (*_rms_norm_backward_op(grad, *ctx.saved_tensors), None)


def _keep_rotary(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _differentiate_rotary(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return _rotary_backward_op(grad, *ctx.saved_tensors), None, None


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    q, k, v, ctx.causal = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output)


def _differentiate_attention(ctx: Any, grad: torch.Tensor | None, _: object) -> tuple[Any, ...]:
    if grad is None:
        return None, None, None, None
    return (*_attention_backward_op(grad, *ctx.saved_tensors, ctx.causal), None)


def _keep_grouped_mm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_grouped_mm(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    rows, weights, ends = ctx.saved_tensors
    return _grouped_mm_op(grad, weights.mT, ends), _grouped_mm_backward_op(rows, grad, ends), None


def _keep_table_lookup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _differentiate_table_lookup(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    _table_lookup_backward_op(grad, *ctx.saved_tensors)
    return None, None


_rms_norm_op.register_autograd(_differentiate_rms_norm, setup_context=_keep_rms_norm)
_rotary_op.register_autograd(_differentiate_rotary, setup_context=_keep_rotary)
_attention_op.register_autograd(_differentiate_attention, setup_context=_keep_attention)
_grouped_mm_op.register_autograd(_differentiate_grouped_mm, setup_context=_keep_grouped_mm)

_table_lookup_op.register_autograd(_differentiate_table_lookup, setup_context=_keep_table_lookup)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x²) + eps) · weight`` over the last dim."""
    return _rms_norm_op(x, weight, eps)[0]


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn pairs of elements of ``x`` [batch, seq, heads, d] by angles whose cosines are [seq, 1, ≤ d/2]."""
    return _rotary_op(x, cos, sin)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """``softmax(q·kᵀ/√d)·v``; q, k [batch, heads, seq, d], v [batch, heads, seq, any]."""
    return _attention_op(q, k, v, causal)[0]


def grouped_mm(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """One GEMM per expert: ``rows`` [rows, k] sorted by expert, times ``weights`` [experts, k, n].

    ``ends`` [experts] are the rows at which each expert's share ends.
    """
    return _grouped_mm_op(rows, weights, ends)


def table_lookup(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows ``ids`` of ``table`` [rows, width]; backward updates these rows by plain SGD and returns no gradient."""
    return _table_lookup_op(table, ids)


def index_scores(queries: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """``Σ relu(q·k)·w`` over heads, [batch, seq, keys].

    ``queries`` are [batch, seq · heads, d], ``keys`` [batch, d, keys], ``weights`` [batch, seq, heads]. All pairs count
    as work, as in kernels that mask the future afterwards.
    """
    return _index_scores_op(queries, keys, weights)
