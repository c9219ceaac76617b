"""Temporal Fusion Transformer (Lim et al. 2019, arXiv:1912.09363): quantiles of a time series."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.layers import check_divides, check_sizes
from traincast.graph.zoo.traceable import Traceable

QUANTILES = 3


class Gate(nn.Module):  # type: ignore[misc]
    """A gated linear unit, added to what it skips, and a norm (equations 2 and 5)."""

    def __init__(self, inputs: int, outputs: int, *, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.gate = nn.Linear(inputs, 2 * outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        """``[..., inputs]`` and ``[..., outputs]`` to ``[..., outputs]``."""
        return self.norm(functional.glu(self.gate(self.dropout(x)), dim=-1) + skipped)


class GRN(nn.Module):  # type: ignore[misc]
    """Gated residual network: two linear layers that may be skipped (equations 2 to 4)."""

    def __init__(self, inputs: int, hidden: int, outputs: int, *, context: bool = False, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.context = nn.Linear(hidden, hidden, bias=False) if context else None
        self.second = nn.Linear(hidden, hidden)
        self.gate = Gate(hidden, outputs, dropout=dropout)
        self.skip = nn.Linear(inputs, outputs) if inputs != outputs else None

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``; ``context`` is ``[batch, hidden]``."""
        hidden = self.first(x)
        if self.context is not None and context is not None:
            added = self.context(context)
            hidden = hidden + (added[:, None] if hidden.ndim > added.ndim else added)
        hidden = self.second(functional.elu(hidden))
        return self.gate(hidden, x if self.skip is None else self.skip(x))


class VariableSelection(nn.Module):  # type: ignore[misc]
    """A weight for each variable, and a residual network for each of them (section 4.2)."""

    def __init__(self, variables: int, hidden: int, *, context: bool = True, dropout: float) -> None:
        super().__init__()
        self.weights = GRN(variables * hidden, hidden, variables, context=context, dropout=dropout)
        self.variables = nn.ModuleList(GRN(hidden, hidden, hidden, dropout=dropout) for _ in range(variables))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """``[batch, ..., hidden, variables]`` to ``[batch, ..., hidden]``."""
        weights = self.weights(x.flatten(-2), context).softmax(dim=-1)
        each = torch.stack([net(x[..., i]) for i, net in enumerate(self.variables)], dim=-1)
        return torch.matmul(each, weights[..., None]).squeeze(-1)


class InterpretableAttention(nn.Module):  # type: ignore[misc]
    """Causal attention whose heads share one value, so that their weights can be averaged (section 4.4)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.joint = nn.Linear(hidden, (2 * heads + 1) * self.width, bias=False)
        self.out = nn.Linear(self.width, hidden, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``[batch, steps, hidden]`` to the same shape; ``mask`` [steps, steps] is added to the scores."""
        batch, steps, _ = x.shape
        q, k, v = self.joint(x).split([self.heads * self.width, self.heads * self.width, self.width], dim=-1)
        q, k = (t.view(batch, steps, self.heads, self.width).transpose(1, 2) for t in (q, k))
        scores = torch.matmul(q, k.transpose(2, 3)) * self.width**-0.5 + mask
        mixed = torch.matmul(scores.softmax(dim=3), v[:, None])
        return self.out(mixed.mean(dim=1))


class TFT(nn.Module):  # type: ignore[misc]
    """Selected variables, an LSTM over past and future, static enrichment, and attention (figure 2)."""

    def __init__(
        self,
        *,
        hidden: int,
        heads: int,
        known: int,
        observed: int,
        entities: int,
        past: int,
        steps: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.past = past
        self.entity = nn.Embedding(entities, hidden)
        self.scales = nn.Parameter(torch.empty(known + observed, hidden))
        self.shifts = nn.Parameter(torch.empty(known + observed, hidden))
        self.static = VariableSelection(1, hidden, context=False, dropout=dropout)
        self.contexts = nn.ModuleList(GRN(hidden, hidden, hidden, dropout=dropout) for _ in range(4))
        self.history = VariableSelection(known + observed, hidden, dropout=dropout)
        self.future = VariableSelection(known, hidden, dropout=dropout)
        self.known = known
        self.encoder = nn.LSTM(hidden, hidden, batch_first=True)
        self.decoder = nn.LSTM(hidden, hidden, batch_first=True)
        self.local = Gate(hidden, hidden, dropout=dropout)
        self.enrichment = GRN(hidden, hidden, hidden, context=True, dropout=dropout)
        self.attention = InterpretableAttention(hidden, heads)
        self.attended = Gate(hidden, hidden, dropout=dropout)
        self.feed_forward = GRN(hidden, hidden, hidden, dropout=dropout)
        self.decoded = Gate(hidden, hidden, dropout=0.0)
        self.quantiles = nn.Linear(hidden, QUANTILES)
        self.register_buffer("mask", torch.empty(steps, steps), persistent=False)

    def forward(self, series: Tensor, entity: Tensor) -> Tensor:
        """Variables ``[batch, steps, known + observed]`` and entity ids to ``[batch, future steps, quantiles]``."""
        static = self.static(self.entity(entity)[:, :, None])
        select, enrich, hidden, cell = (context(static) for context in self.contexts)
        embedded = torch.einsum("bsv,vh->bshv", series, self.scales) + self.shifts.t()
        past = self.history(embedded[:, : self.past], select)
        future = self.future(embedded[:, self.past :, :, : self.known], select)
        encoded, state = self.encoder(past, (hidden[None], cell[None]))
        decoded, _ = self.decoder(future, state)
        x = self.local(torch.cat([encoded, decoded], dim=1), torch.cat([past, future], dim=1))
        enriched = self.enrichment(x, enrich)
        attended = self.attention(enriched, self.mask)
        attended = self.attended(attended[:, self.past :], enriched[:, self.past :])
        return self.quantiles(self.decoded(self.feed_forward(attended), x[:, self.past :]))


def _quantile_loss(outputs: Tensor) -> Tensor:
    """Errors above and below a target, weighted by the quantile (equation 24)."""
    errors = torch.empty_like(outputs[..., :1]) - outputs
    return torch.maximum(0.9 * errors, -0.1 * errors).mean(dim=(0, 1)).sum()


def tft(
    *,
    hidden: int = 128,
    heads: int = 4,
    known: int = 3,
    observed: int = 1,
    entities: int = 369,
    past: int = 168,
    future: int = 24,
    dropout: float = 0.1,
) -> Traceable:
    """TFT: a sample is ``past`` and ``future`` steps of ``known`` and ``observed`` variables of one entity."""
    sizes = {"hidden": hidden, "heads": heads, "known": known, "observed": observed, "past": past, "future": future}
    check_sizes("tft", sizes | {"entities": entities})
    check_divides("tft", whole=("hidden", hidden), parts=("heads", heads), remedy="choose heads that divide hidden")
    if isinstance(dropout, bool) or not 0 <= dropout < 1:
        raise RequestError(f"tft: dropout={dropout} must be a number from 0 to below 1")
    with torch.device("meta"):
        module = TFT(
            hidden=hidden,
            heads=heads,
            known=known,
            observed=observed,
            entities=entities,
            past=past,
            steps=past + future,
            dropout=dropout,
        )

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = next(module.parameters())
        series = torch.empty(batch, past + future, known + observed, dtype=like.dtype, device=like.device)
        return series, torch.empty(batch, dtype=torch.int64, device=like.device)

    return Traceable(module=module, inputs=inputs, loss=_quantile_loss, optimizer="adam")
