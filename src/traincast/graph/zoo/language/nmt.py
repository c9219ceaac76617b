"""Translation by stacked LSTMs: GNMT (Wu et al. 2016, arXiv:1609.08144), and Luong's attention (Luong et al. 2015)."""

from __future__ import annotations

import torch
from torch import nn

from traincast.graph.zoo.parts.layers import check_divides, check_sizes, cross_entropy, token_ids
from traincast.graph.zoo.traceable import Traceable


class AdditiveAttention(nn.Module):  # type: ignore[misc]
    """Normalised additive attention (Bahdanau et al. 2014, arXiv:1409.0473; Salimans and Kingma 2016)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, hidden, bias=False)
        self.direction = nn.Parameter(torch.empty(hidden))
        self.length = nn.Parameter(torch.empty(1))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Context [target, batch, hidden] for ``x`` over ``memory`` [source, batch, hidden]."""
        q, k = self.q(x).transpose(0, 1), self.k(memory).transpose(0, 1)
        hidden = torch.tanh(q[:, :, None] + k[:, None] + self.bias)
        scores = hidden @ (self.direction / self.direction.norm() * self.length)
        return (scores.softmax(dim=-1) @ memory.transpose(0, 1)).transpose(0, 1)


class Recurrent(nn.Module):  # type: ignore[misc]
    """One LSTM layer (Hochreiter and Schmidhuber 1997), with a residual around it where asked."""

    def __init__(self, *, inputs: int, hidden: int, residual: bool, bidirectional: bool = False) -> None:
        super().__init__()
        self.residual = residual
        self.lstm = nn.LSTM(inputs, hidden, bidirectional=bidirectional)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        """Map ``x`` [seq, batch, inputs]; ``context`` is appended to its features."""
        out = self.lstm(x if context is None else torch.cat((x, context), dim=-1))[0]
        return out + x if self.residual else out


class LuongNMT(nn.Module):  # type: ignore[misc]
    """A bidirectional encoder, and a decoder whose last layer attends to it (Luong et al. 2015, arXiv:1508.04025)."""

    def __init__(self, *, layers: int, hidden: int, vocab: int, dropout: float) -> None:
        super().__init__()
        self.source = nn.Embedding(vocab, hidden)
        self.target = nn.Embedding(vocab, hidden)
        self.encoder = nn.LSTM(hidden, hidden // 2, num_layers=layers, bidirectional=True, dropout=dropout)
        self.decoder = nn.LSTM(hidden, hidden, num_layers=layers, dropout=dropout)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)
        self.logits = nn.Linear(hidden, vocab)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Logits [target, batch, vocab] for ``source`` [batch, seq] and ``target`` [batch, target]."""
        memory = self.encoder(self.source(source.t()))[0].transpose(0, 1)
        x = self.decoder(self.target(target.t()))[0]
        weights = torch.bmm(self.query(x).transpose(0, 1), memory.transpose(1, 2)).softmax(dim=2)
        context = torch.bmm(weights, memory).transpose(0, 1)
        return self.logits(torch.tanh(self.combine(torch.cat((x, context), dim=2))))


class GNMT(nn.Module):  # type: ignore[misc]
    """One bidirectional and further LSTM layers encode; attention feeds every decoder layer but the first."""

    def __init__(self, *, layers: int, hidden: int, vocab: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.bidirectional = Recurrent(inputs=hidden, hidden=hidden, residual=False, bidirectional=True)
        self.encoder = nn.ModuleList(
            Recurrent(inputs=2 * hidden if i == 0 else hidden, hidden=hidden, residual=i > 0) for i in range(layers - 1)
        )
        self.query = Recurrent(inputs=hidden, hidden=hidden, residual=False)
        self.attention = AdditiveAttention(hidden)
        self.decoder = nn.ModuleList(
            Recurrent(inputs=2 * hidden, hidden=hidden, residual=i > 0) for i in range(layers - 1)
        )
        self.logits = nn.Linear(hidden, vocab)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Logits [target, batch, vocab] for ``source`` [batch, seq] and ``target`` [batch, target]."""
        memory = self.bidirectional(self.embedding(source.t()))
        for layer in self.encoder:
            memory = layer(memory)
        x = self.query(self.embedding(target.t()))
        context = self.attention(x, memory)
        for layer in self.decoder:
            x = layer(x, context)
        return self.logits(x)


def nmt_luong(
    *, layers: int = 4, hidden: int = 512, vocab: int = 32000, seq: int = 50, dropout: float = 0.3
) -> Traceable:
    """OpenNMT's recurrent translator: ``layers`` LSTMs of ``hidden`` on each side, half of it in each direction.

    The attended context is not fed to the next step's input, so that every layer is one kernel.
    """
    check_sizes("nmt-luong", {"layers": layers, "hidden": hidden, "vocab": vocab, "seq": seq})
    check_divides("nmt-luong", whole=("hidden", hidden), parts=("directions", 2), remedy="choose an even width")
    with torch.device("meta"):
        module = LuongNMT(layers=layers, hidden=hidden, vocab=vocab, dropout=dropout)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return token_ids(module, batch, seq), token_ids(module, batch, seq)

    return Traceable(module=module, inputs=inputs, loss=cross_entropy, tokens_per_sample=seq, optimizer="adam")


def nmt(
    *,
    layers: int = 4,
    hidden: int = 1024,
    vocab: int = 32320,
    seq: int = 50,
    target_seq: int | None = None,
) -> Traceable:
    """GNMT v2 as NVIDIA trains it: ``layers`` LSTMs on each side, one embedding for both languages."""
    targets = seq if target_seq is None else target_seq
    sizes = {"layers": layers, "hidden": hidden, "vocab": vocab, "seq": seq, "target_seq": targets}
    check_sizes("nmt", sizes)
    with torch.device("meta"):
        module = GNMT(layers=layers, hidden=hidden, vocab=vocab)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return token_ids(module, batch, seq), token_ids(module, batch, targets)

    return Traceable(module=module, inputs=inputs, loss=cross_entropy, tokens_per_sample=seq, optimizer="adam")
