"""Language models of stacked LSTMs: Zaremba et al. 2014 (arXiv:1409.2329) and AWD-LSTM (Merity et al. 2017)."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.layers import check_choices, check_sizes, cross_entropy, token_ids
from traincast.graph.zoo.traceable import Traceable


class LSTMLanguageModel(nn.Module):  # type: ignore[misc]
    """Embeddings, LSTM layers with dropout between them, and scores; if ``tied``, by the embeddings."""

    def __init__(self, widths: list[int], *, vocab: int, tied: bool, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, widths[0])
        self.layers = nn.ModuleList(nn.LSTM(a, b) for a, b in itertools.pairwise(widths))
        self.dropout = nn.Dropout(dropout)
        self.bias = nn.Parameter(torch.empty(vocab))
        self.scores = None if tied else nn.Parameter(torch.empty(vocab, widths[-1]))

    def forward(self, ids: Tensor) -> Tensor:
        """Tokens [batch, seq] to logits [seq, batch, vocab]."""
        x = self.dropout(self.tokens(ids.t()))
        for layer in self.layers:
            x = self.dropout(layer(x)[0])
        return functional.linear(x, self.tokens.weight if self.scores is None else self.scores, self.bias)


def lstm(
    *,
    layers: int = 2,
    hidden: int = 1500,
    embedding: int | None = None,
    vocab: int = 10_000,
    seq: int = 35,
    tied: bool = False,
    dropout: float = 0.65,
) -> Traceable:
    """``layers`` LSTMs of ``hidden`` units; if ``tied``, the last has as many as the ``embedding``.

    A sample is one row of ``seq`` tokens, the length by which the text is cut; its state comes from the row before.
    Weights are dropped (AWD-LSTM) without a cost here.
    """
    first = hidden if embedding is None else embedding
    sizes = {"layers": layers, "hidden": hidden, "embedding": first, "vocab": vocab, "seq": seq}
    check_sizes("lstm", sizes)
    check_choices("lstm", {"tied": tied})
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise RequestError(f"lstm: dropout={dropout!r} must be at least 0 and less than 1")
    widths = [first, *[hidden] * (layers - 1), first if tied else hidden]
    with torch.device("meta"):
        module = LSTMLanguageModel(widths, vocab=vocab, tied=tied, dropout=dropout)
    return Traceable(
        module=module,
        inputs=lambda batch: (token_ids(module, batch, seq),),
        loss=cross_entropy,
        tokens_per_sample=seq,
        optimizer="sgd-plain",
    )
