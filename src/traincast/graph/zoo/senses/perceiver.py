"""Perceiver IO (Jaegle et al. 2021, arXiv:2107.14795): a few latents read a long input, and an output reads them.

Shapes are those of the released ``language-perceiver`` and ``vision-perceiver-conv`` as ``transformers`` builds them.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import UnknownNameError
from traincast.graph.zoo.parts.kernels import attention
from traincast.graph.zoo.parts.layers import MLP, check_divides, check_sizes, cross_entropy
from traincast.graph.zoo.traceable import Traceable

INPUTS: Final = ("text", "images")
_CHANNELS: Final = 64
_BANDS: Final = 64


class LatentLayer(nn.Module):  # type: ignore[misc]
    """Attention to itself, or to a ``memory`` of another width, and an MLP that is as wide as the layer."""

    def __init__(self, width: int, heads: int, *, qk: int, v: int, memory: int = 0, residual: bool = True) -> None:
        super().__init__()
        self.heads, self.widths, self.residual = heads, (qk, v), residual
        self.norm = nn.LayerNorm(width)
        self.memory_norm = nn.LayerNorm(memory) if memory else None
        self.q = nn.Linear(width, qk) if memory else None
        self.kv = nn.Linear(memory or width, (qk if memory else 2 * qk) + v)
        self.out = nn.Linear(v, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(hidden=width, ffn=width, activation="gelu", bias=True)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """``x`` [batch, queries, width], which attends to itself or to ``memory`` [batch, keys, any]."""
        qk, v = self.widths
        normed = self.norm(x)
        if self.q is None or self.memory_norm is None or memory is None:
            parts = self.kv(normed).split([qk, qk, v], dim=-1)
        else:
            parts = (self.q(normed), *self.kv(self.memory_norm(memory)).split([qk, v], dim=-1))
        q, k, value = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in parts)
        mixed = self.out(attention(q, k, value, False).transpose(1, 2).flatten(2))
        x = x + mixed if self.residual else mixed
        return x + self.mlp(self.mlp_norm(x))


class TextInput(nn.Module):  # type: ignore[misc]
    """Bytes and their positions."""

    def __init__(self, *, vocab: int, width: int, seq: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(seq, width)

    def forward(self, ids: Tensor) -> Tensor:
        """Embed ``ids`` [batch, seq]."""
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))


class ImageInput(nn.Module):  # type: ignore[misc]
    """A convolution and a pool of stride 2, each pixel with Fourier features of its place."""

    def __init__(self, *, image: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, _CHANNELS, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(_CHANNELS)
        self.register_buffer("places", torch.empty((image // 4) ** 2, 4 * _BANDS + 2), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """``images`` [batch, 3, side, side] to [batch, pixels, channels and places]."""
        x = functional.max_pool2d(torch.relu(self.norm(self.conv(images))), 3, stride=2, padding=1)
        x = x.flatten(2).transpose(1, 2)
        return torch.cat((x, self.places.expand(x.shape[0], -1, -1)), dim=-1)


class Perceiver(nn.Module):  # type: ignore[misc]
    """Latents read the input, pass ``blocks`` times through the same layers, and the output reads them.

    Without a ``head`` the logits are those of bytes, by the embedding's own matrix.
    """

    def __init__(
        self,
        enter: nn.Module,
        layers: tuple[LatentLayer, nn.ModuleList, LatentLayer],
        *,
        blocks: int,
        latents: Tensor,
        queries: Tensor,
        head: nn.Module | None,
    ) -> None:
        super().__init__()
        self.enter, self.blocks = enter, blocks
        self.read, self.layers, self.write = layers
        self.latents, self.queries = nn.Parameter(latents), nn.Parameter(queries)
        self.head = head
        self.bias = nn.Parameter(torch.empty(enter.tokens.num_embeddings)) if head is None else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of each byte, or of the classes."""
        batch = inputs.shape[0]
        x = self.read(self.latents.expand(batch, -1, -1), self.enter(inputs))
        for _ in range(self.blocks):
            for layer in self.layers:
                x = layer(x)
        x = self.write(self.queries.expand(batch, -1, -1), x)
        return functional.linear(x, self.enter.tokens.weight, self.bias) if self.head is None else self.head(x)


def perceiver(
    *,
    layers: int = 26,
    hidden: int = 1280,
    heads: int = 8,
    latents: int = 256,
    blocks: int = 1,
    qk: int = 256,
    inputs: str = "text",
    width: int = 768,
    vocab: int = 262,
    seq: int = 2048,
    image: int = 224,
    classes: int = 1000,
) -> Traceable:
    """Perceiver IO: ``latents`` of width ``hidden``, on bytes of text (masked ones predicted) or on images (classes).

    ``qk`` is the width of queries and keys in all heads together, ``width`` that of embedded bytes.
    """
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "latents": latents, "blocks": blocks, "qk": qk}
    check_sizes("perceiver", sizes | {"width": width, "vocab": vocab, "seq": seq, "image": image, "classes": classes})
    if inputs not in INPUTS:
        raise UnknownNameError("inputs of perceiver", inputs, INPUTS)
    for name, size in {"hidden": hidden, "qk": qk, "width": width}.items():
        check_divides("perceiver", whole=(name, size), parts=("heads", heads), remedy="all heads are equally wide")
    check_divides("perceiver", whole=("image", image), parts=("stride", 4), remedy="images shrink four times")
    text = inputs == "text"
    with torch.device("meta"):
        stack = nn.ModuleList(LatentLayer(hidden, heads, qk=qk, v=hidden) for _ in range(layers))
        if text:
            enter: nn.Module = TextInput(vocab=vocab, width=width, seq=seq)
            read = LatentLayer(hidden, heads, qk=qk, v=hidden, memory=width)
            write = LatentLayer(width, heads, qk=qk, v=width, memory=hidden, residual=False)
        else:
            enter, seen = ImageInput(image=image), _CHANNELS + 4 * _BANDS + 2
            read = LatentLayer(hidden, 1, qk=seen, v=seen, memory=seen)
            write = LatentLayer(hidden, 1, qk=hidden, v=hidden, memory=hidden)
        module = Perceiver(
            enter,
            (read, stack, write),
            blocks=blocks,
            latents=torch.empty(latents, hidden),
            queries=torch.empty(seq, width) if text else torch.empty(1, hidden),
            head=None if text else nn.Linear(hidden, classes),
        )

    def examples(batch: int) -> tuple[Tensor, ...]:
        like = module.latents
        if text:
            return (torch.empty(batch, seq, dtype=torch.int64, device=like.device),)
        return (torch.empty(batch, 3, image, image, dtype=like.dtype, device=like.device),)

    return Traceable(module=module, inputs=examples, loss=cross_entropy, tokens_per_sample=seq if text else 0)
