"""Conformer (Gulati et al. 2020, arXiv:2005.08100): transformer layers with a convolution, for speech.

Sizes and the head are those of NVIDIA's NeMo: letters or word pieces of every frame, trained by CTC. The paper's own
head is a transducer, whose loss over all pairs of frames and words is not built here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.layers import check_divides, check_sizes, cross_entropy
from traincast.graph.zoo.traceable import Traceable

STRIDE = 4
"""Frames that become one, by two convolutions of stride 2."""


class DistanceAttention(nn.Module):  # type: ignore[misc]
    """Attention whose scores add a term of the distance (Dai et al. 2019, arXiv:1901.02860, section 3.3)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.places = nn.Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.empty(heads, 1, width // heads))
        self.place_bias = nn.Parameter(torch.empty(heads, 1, width // heads))
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        """``x`` [batch, seq, width] to the same shape; ``places`` [2 · seq - 1, width] are those of all distances."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        p = self.places(places).unflatten(1, (self.heads, -1)).permute(1, 2, 0)
        near = _shifted(torch.matmul(q + self.place_bias, p))
        scores = (torch.matmul(q + self.content_bias, k.transpose(2, 3)) + near) * q.shape[-1] ** -0.5
        mixed = torch.matmul(self.dropout(scores.softmax(dim=3)), v)
        return self.out(mixed.transpose(1, 2).flatten(2))


def _shifted(scores: Tensor) -> Tensor:
    """Scores [batch, heads, seq, 2 · seq - 1] by distance to scores [batch, heads, seq, seq] by place."""
    batch, heads, seq, distances = scores.shape
    padded = functional.pad(scores, (1, 0)).view(batch, heads, distances + 1, seq)
    return padded[:, :, 1:].reshape(batch, heads, seq, distances)[..., :seq]


class GatedConvolution(nn.Module):  # type: ignore[misc]
    """Gate, depthwise convolution over time, batch normalisation, projection (figure 2)."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.enter = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.BatchNorm1d(width)
        self.leave = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [batch, seq, width] to the same shape."""
        y = functional.glu(self.enter(x.transpose(1, 2)), dim=1)
        return self.leave(functional.silu(self.norm(self.depthwise(y)))).transpose(1, 2)


def _feed_forward(width: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 4 * width),
        nn.SiLU(),
        nn.Dropout(dropout),
        nn.Linear(4 * width, width),
        nn.Dropout(dropout),
    )


class ConformerLayer(nn.Module):  # type: ignore[misc]
    """Half an MLP, attention, convolution, half an MLP, and a norm (figure 1, equation 1)."""

    def __init__(self, width: int, heads: int, *, kernel: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = _feed_forward(width, dropout), _feed_forward(width, dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.attention = DistanceAttention(width, heads, dropout)
        self.conv_norm = nn.LayerNorm(width)
        self.conv = GatedConvolution(width, kernel)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        """``x`` [batch, seq, width] to the same shape."""
        x = x + 0.5 * self.first(x)
        x = x + self.dropout(self.attention(self.attention_norm(x), places))
        x = x + self.dropout(self.conv(self.conv_norm(x)))
        return self.norm(x + 0.5 * self.second(x))


class Conformer(nn.Module):  # type: ignore[misc]
    """Two convolutions that leave a quarter of the frames, Conformer layers, and a score of each word piece."""

    def __init__(
        self, *, layers: int, width: int, heads: int, kernel: int, bands: int, frames: int, vocab: int, dropout: float
    ) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
        )
        self.enter = nn.Linear(width * (bands // STRIDE), width)
        self.register_buffer("places", torch.empty(2 * (frames // STRIDE) - 1, width), persistent=False)
        self.layers = nn.ModuleList(ConformerLayer(width, heads, kernel=kernel, dropout=dropout) for _ in range(layers))
        self.scores = nn.Linear(width, vocab + 1)

    def forward(self, mel: Tensor) -> Tensor:
        """Mel features ``[batch, frames, bands]`` to logits ``[batch, frames / 4, vocab + 1]``; the last is blank."""
        x = self.enter(self.convs(mel[:, None]).transpose(1, 2).flatten(2))
        for layer in self.layers:
            x = layer(x, self.places)
        return self.scores(x)


def conformer(
    *,
    layers: int = 18,
    hidden: int = 512,
    heads: int = 8,
    kernel: int = 31,
    bands: int = 80,
    frames: int = 1680,
    vocab: int = 128,
    dropout: float = 0.1,
) -> Traceable:
    """Conformer-CTC: ``frames`` of 10 ms of ``bands`` mel bands, ``vocab`` word pieces.

    The loss is a cross-entropy of each frame in place of CTC's sum over alignments, which costs as little.
    """
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kernel": kernel, "bands": bands}
    check_sizes("conformer", sizes | {"frames": frames, "vocab": vocab})
    for name, whole, parts in (("hidden", hidden, heads), ("bands", bands, STRIDE), ("frames", frames, STRIDE)):
        by = "heads" if name == "hidden" else "stride"
        check_divides("conformer", whole=(name, whole), parts=(by, parts), remedy=f"choose a multiple of {parts}")
    if kernel % 2 == 0:
        raise RequestError(f"conformer: kernel={kernel} must be odd, so that the convolution keeps the frames")
    with torch.device("meta"):
        module = Conformer(
            layers=layers,
            width=hidden,
            heads=heads,
            kernel=kernel,
            bands=bands,
            frames=frames,
            vocab=vocab,
            dropout=dropout,
        )

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = module.enter.weight
        return (torch.empty(batch, frames, bands, dtype=like.dtype, device=like.device),)

    return Traceable(module=module, inputs=inputs, loss=cross_entropy)
