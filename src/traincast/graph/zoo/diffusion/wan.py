"""Wan 2.1: a transformer that removes noise from video latents, told what to show by text."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.graph.zoo.parts.kernels import rotary
from traincast.graph.zoo.parts.layers import RMSNorm, Rotary, check_divides, check_sizes, share_tables
from traincast.graph.zoo.traceable import Traceable

_LATENT: Final = 16
_PATCH: Final = (1, 2, 2)
_TIMES: Final = 256
_SHRINKS: Final = (4, 8)
"""The video's autoencoder makes one latent of four frames, and of eight pixels each way."""


class VideoAttention(nn.Module):  # type: ignore[misc]
    """Attention within ``x`` or to ``text``, with queries and keys normed over their whole width."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.q_norm, self.k_norm = RMSNorm(hidden), RMSNorm(hidden)

    def forward(self, x: Tensor, text: Tensor | None, places: Rotary | None) -> Tensor:
        """Map ``x`` [batch, tokens, hidden] to the same shape."""
        source = x if text is None else text
        q, k, v = self.q_norm(self.q(x)), self.k_norm(self.k(source)), self.v(source)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (q, k, v))
        if places is not None:
            q, k = rotary(q, places.cos, places.sin), rotary(k, places.cos, places.sin)
        mixed = functional.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.out(mixed.transpose(1, 2).flatten(2))


class VideoLayer(nn.Module):  # type: ignore[misc]
    """Attention among latents, attention to text, and an MLP; the time sets shifts and scales of each part."""

    def __init__(self, *, hidden: int, heads: int, ffn: int, tokens: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(hidden, elementwise_affine=False) for _ in range(2))
        self.norm3 = nn.LayerNorm(hidden)
        self.within, self.across = VideoAttention(hidden, heads), VideoAttention(hidden, heads)
        self.rotary = Rotary(size=hidden // heads, seq=tokens)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
        self.modulation = nn.Parameter(torch.empty(1, 6, hidden))

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """Map ``x`` [batch, tokens, hidden] to the same shape; ``time`` [batch, 6, hidden]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.modulation + time).unsqueeze(2).unbind(1)
        x = x + gate1 * self.within(self.norm1(x) * (1 + scale1) + shift1, None, self.rotary)
        x = x + self.across(self.norm3(x), text, None)
        inner = functional.gelu(self.up(self.norm2(x) * (1 + scale2) + shift2), approximate="tanh")
        return x + gate2 * self.down(inner)


class VideoTransformer(nn.Module):  # type: ignore[misc]
    """Patches of latents, text and time embedded; layers; and the noise of each patch."""

    def __init__(self, *, layers: int, hidden: int, heads: int, ffn: int, text_width: int, tokens: int) -> None:
        super().__init__()
        self.patches = nn.Conv3d(_LATENT, hidden, _PATCH, stride=_PATCH)
        self.text = nn.Sequential(nn.Linear(text_width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, hidden))
        self.time = nn.Sequential(nn.Linear(_TIMES, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 6 * hidden))
        self.layers = nn.ModuleList(
            VideoLayer(hidden=hidden, heads=heads, ffn=ffn, tokens=tokens) for _ in range(layers)
        )
        share_tables(self.layers)
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.modulation = nn.Parameter(torch.empty(1, 2, hidden))
        self.head = nn.Linear(hidden, _LATENT * _PATCH[1] * _PATCH[2])

    def forward(self, latents: Tensor, text: Tensor, times: Tensor) -> Tensor:
        """The noise [batch, tokens, elements of a patch]."""
        x = self.patches(latents).flatten(2).transpose(1, 2)
        time, words = self.time(times), self.text(text)
        parts = self.modulate(time).unflatten(-1, (6, -1))
        for layer in self.layers:
            x = layer(x, parts, words)
        shift, scale = (self.modulation + time[:, None]).unsqueeze(2).unbind(1)
        return self.head(self.norm(x) * (1 + scale) + shift)


def wan(
    *,
    layers: int = 30,
    hidden: int = 1536,
    heads: int = 12,
    ffn: int = 8960,
    text_width: int = 4096,
    words: int = 512,
    frames: int = 81,
    height: int = 480,
    width: int = 832,
) -> Traceable:
    """Wan 2.1 from text to video (Wan Team 2025, arXiv:2503.20314), trained on latents that are made beforehand.

    ``frames`` of ``height`` × ``width`` pixels; one latent stands for the first frame and one for every four others.
    """
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "text_width": text_width, "words": words}
    check_sizes("wan", sizes | {"frames": frames, "height": height, "width": width})
    check_divides("wan", whole=("hidden", hidden), parts=("heads", heads), remedy="choose heads that divide hidden")
    pixels = _SHRINKS[1] * _PATCH[1]
    for name, size in (("height", height), ("width", width)):
        check_divides("wan", whole=(name, size), parts=("pixels of a patch", pixels), remedy="choose a multiple of 16")
    shape = (1 + (frames - 1) // _SHRINKS[0], height // _SHRINKS[1], width // _SHRINKS[1])
    tokens = shape[0] * (shape[1] // _PATCH[1]) * (shape[2] // _PATCH[2])
    with torch.device("meta"):
        module = VideoTransformer(
            layers=layers, hidden=hidden, heads=heads, ffn=ffn, text_width=text_width, tokens=tokens
        )

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = module.head.weight
        sizes = ((batch, _LATENT, *shape), (batch, words, text_width), (batch, _TIMES))
        return tuple(torch.empty(size, dtype=like.dtype, device=like.device) for size in sizes)

    return Traceable(
        module=module, inputs=inputs, loss=lambda noise: functional.mse_loss(noise, torch.empty_like(noise))
    )
