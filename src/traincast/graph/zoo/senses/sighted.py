"""Language models that see: Llama 3.2 Vision, whose text attends to images; Idefics2, which reads them as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.graph.zoo.parts.layers import (
    MLP,
    Layer,
    LayerConfig,
    RMSNorm,
    check_divides,
    check_sizes,
    cross_entropy,
    share_tables,
    token_ids,
)
from traincast.graph.zoo.traceable import Traceable

_RATIOS: Final = 9
"""Arrangements of up to four tiles, with the one of no image."""
_SEEN: Final = 6
"""The eye's last layer and five before it, side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eye:
    """An encoder of images: ``patch`` and ``image`` are sides in pixels."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    patch: int
    image: int
    bias: bool

    @property
    def places(self) -> int:
        """Patches of an image."""
        return (self.image // self.patch) ** 2

    def layer(self, seq: int) -> LayerConfig:
        """One layer for ``seq`` tokens."""
        head_dim = self.hidden // self.heads
        return LayerConfig(
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=head_dim,
            ffn=self.ffn,
            seq=seq,
            causal=False,
            qkv_bias=self.bias,
            out_bias=self.bias,
        )


def text_layer(*, hidden: int, heads: int, kv_heads: int, ffn: int, seq: int) -> LayerConfig:
    """A layer of Llama or Mistral."""
    return LayerConfig(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        ffn=ffn,
        seq=seq,
        norm="rmsnorm",
        activation="swiglu",
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        rope_dim=hidden // heads,
    )


class GatedLayer(nn.Module):  # type: ignore[misc]
    """A layer of the eye over all tiles of an image, whose two parts are scaled by trained gates."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.layer = Layer(config)
        self.gates = nn.Parameter(torch.empty(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` [batch, tokens, hidden] to the same shape."""
        one, two = self.gates.tanh().unbind(0)
        x = x + one * self.layer.attention(self.layer.norm1(x))
        return x + two * self.layer.mlp(self.layer.norm2(x))


class TiledEye(nn.Module):  # type: ignore[misc]
    """Tiles of an image as patches, layers over each tile, then layers over all of them."""

    def __init__(self, eye: Eye, *, tiles: int, most_tiles: int, joint_layers: int) -> None:
        super().__init__()
        hidden, tokens = eye.hidden, eye.places + 1
        self.tiles, self.layers_seen = tiles, _SEEN - 1
        self.patches = nn.Conv2d(3, hidden, eye.patch, stride=eye.patch, bias=False)
        self.class_token = nn.Parameter(torch.empty(hidden))
        self.positions = nn.Parameter(torch.empty(tokens, hidden))
        self.tile_positions = nn.Embedding(_RATIOS, most_tiles * tokens * hidden)
        self.before, self.behind = (nn.Embedding(_RATIOS, most_tiles * hidden) for _ in range(2))
        self.gates = nn.Parameter(torch.empty(3))
        self.first_norm, self.last_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(Layer(eye.layer(tiles * tokens)) for _ in range(eye.layers))
        self.joint = nn.ModuleList(GatedLayer(eye.layer(tiles * tokens)) for _ in range(joint_layers))

    def forward(self, images: Tensor, ratio: Tensor) -> Tensor:
        """``[batch, tiles, 3, side, side]`` to ``[batch, tokens of all tiles, 6 hidden]``."""
        batch, tiles = images.shape[:2]
        gate = self.gates.tanh()
        x = self.patches(images.flatten(0, 1)).flatten(2).transpose(1, 2).unflatten(0, (batch, tiles))
        x = x + gate[0] * self.before(ratio).view(batch, -1, 1, x.shape[-1])[:, :tiles]
        x = torch.cat((self.class_token.expand(batch, tiles, 1, -1), x), dim=2) + (1 - gate[1]) * self.positions
        x = x + gate[1] * self.tile_positions(ratio).view(batch, -1, *x.shape[2:])[:, :tiles]
        x = self.first_norm(x).flatten(1, 2)
        for layer in self.layers:
            x = layer(x)
        # Five of the layers' outputs are kept; which ones does not change the cost.
        kept = [x] * self.layers_seen
        x = self.last_norm(x).unflatten(1, (tiles, -1))
        x = (x + gate[2] * self.behind(ratio).view(batch, -1, 1, x.shape[-1])[:, :tiles]).flatten(1, 2)
        for layer in self.joint:
            x = layer(x)
        return torch.cat((x, *kept), dim=-1)


class CrossLayer(nn.Module):  # type: ignore[misc]
    """Text attends to the image, and an MLP follows; both are scaled by trained gates."""

    is_layer = True

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        c = config
        self.heads, self.kv_heads = c.heads, c.kv_heads
        self.norm1, self.norm2 = RMSNorm(c.hidden), RMSNorm(c.hidden)
        self.q = nn.Linear(c.hidden, c.hidden, bias=False)
        self.kv = nn.Linear(c.hidden, 2 * c.kv_heads * c.head_dim, bias=False)
        self.q_norm, self.k_norm = RMSNorm(c.head_dim), RMSNorm(c.head_dim)
        self.out = nn.Linear(c.hidden, c.hidden, bias=False)
        self.mlp = MLP(hidden=c.hidden, ffn=c.ffn, activation=c.activation, bias=False)
        self.gates = nn.Parameter(torch.empty(2))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        one, two = self.gates.tanh().unbind(0)
        q = self.q_norm(self.q(self.norm1(x)).unflatten(-1, (self.heads, -1)))
        k, v = self.kv(seen).unflatten(-1, (2 * self.kv_heads, -1)).chunk(2, dim=2)
        q, k, v = (t.transpose(1, 2) for t in (q, self.k_norm(k), v))
        mixed = functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.heads != self.kv_heads)
        x = x + one * self.out(mixed.transpose(1, 2).flatten(2))
        return x + two * self.mlp(self.norm2(x))


class LlamaVision(nn.Module):  # type: ignore[misc]
    """Llama's layers; before every ``period``-th stands one that attends to what the eye saw."""

    def __init__(self, eye: TiledEye, seen: int, config: LayerConfig, *, layers: int, period: int, vocab: int) -> None:
        super().__init__()
        self.eye, self.period = eye, period
        self.enter = nn.Linear(seen, config.hidden)
        self.tokens = nn.Embedding(vocab + 8, config.hidden)  # eight more for images, which are never predicted
        self.layers = nn.ModuleList(
            CrossLayer(config) if n % period == period - 2 else Layer(config) for n in range(layers)
        )
        share_tables(self.layers)
        self.norm = RMSNorm(config.hidden)
        self.logits = nn.Linear(config.hidden, vocab, bias=False)

    def forward(self, ids: Tensor, images: Tensor, ratio: Tensor) -> Tensor:
        """Logits [batch, seq, vocab]."""
        seen, x = self.enter(self.eye(images, ratio)), self.tokens(ids)
        for layer in self.layers:
            x = layer(x, seen) if isinstance(layer, CrossLayer) else layer(x)
        return self.logits(self.norm(x))


def llama_vision(
    *,
    layers: int = 40,
    hidden: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    ffn: int = 14336,
    vocab: int = 128256,
    seq: int = 4096,
    image: int = 560,
    tiles: int = 4,
) -> Traceable:
    """Llama 3.2 Vision (Grattafiori et al. 2024, arXiv:2407.21783, section 7), all of it trained.

    One of five ``layers`` attends to the image, which is cut into ``tiles`` of ``image`` pixels square (up to four).
    """
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "ffn": ffn, "vocab": vocab}
    check_sizes("llama-vision", sizes | {"seq": seq, "image": image, "tiles": tiles})
    check_divides(
        "llama-vision", whole=("hidden", hidden), parts=("heads", heads), remedy="choose heads that divide it"
    )
    check_divides("llama-vision", whole=("image", image), parts=("patch", 14), remedy="choose a multiple of 14")
    eye = Eye(layers=32, hidden=1280, heads=16, ffn=5120, patch=14, image=image, bias=False)
    config = text_layer(hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn, seq=seq)
    with torch.device("meta"):
        tower = TiledEye(eye, tiles=tiles, most_tiles=max(4, tiles), joint_layers=8)
        module = LlamaVision(tower, _SEEN * eye.hidden, config, layers=layers, period=5, vocab=vocab)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = module.norm.weight
        images = torch.empty(batch, tiles, 3, image, image, dtype=like.dtype, device=like.device)
        return token_ids(module, batch, seq), images, torch.zeros(batch, dtype=torch.int64, device=like.device)

    return Traceable(module=module, inputs=inputs, loss=cross_entropy, tokens_per_sample=seq)


class Resampler(nn.Module):  # type: ignore[misc]
    """A trained set of latents attends to the image and to itself (Jaegle et al. 2021, arXiv:2103.03206)."""

    is_layer = True

    def __init__(self, *, hidden: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.norm1, self.norm2, self.norm3 = (RMSNorm(hidden) for _ in range(3))
        self.q = nn.Linear(hidden, heads * head_dim, bias=False)
        self.kv = nn.Linear(hidden, 2 * kv_heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, hidden, bias=False)
        self.mlp = MLP(hidden=hidden, ffn=4 * hidden, activation="swiglu", bias=False)

    def forward(self, latents: Tensor, seen: Tensor) -> Tensor:
        """Map ``latents`` [batch, count, hidden] to the same shape."""
        own = self.norm1(latents)
        q = self.q(own).unflatten(-1, (self.heads, -1))
        joint = self.kv(torch.cat((self.norm2(seen), own), dim=1))
        k, v = joint.unflatten(-1, (2 * self.kv_heads, -1)).chunk(2, dim=2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.heads != self.kv_heads)
        x = latents + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm3(x))


class Idefics2(nn.Module):  # type: ignore[misc]
    """An eye, a projection, a resampler to 64 tokens per image, and Mistral, which reads them among its text."""

    def __init__(self, eye: Eye, config: LayerConfig, *, layers: int, vocab: int, images: int, latents: int) -> None:
        super().__init__()
        self.images = images
        self.patches = nn.Conv2d(3, eye.hidden, eye.patch, stride=eye.patch)
        self.positions = nn.Parameter(torch.empty((980 // eye.patch) ** 2, eye.hidden))
        self.eye = nn.ModuleList(Layer(eye.layer(eye.places)) for _ in range(eye.layers))
        self.eye_norm = nn.LayerNorm(eye.hidden)
        self.enter = nn.Linear(eye.hidden, 2 * config.ffn, bias=False)
        self.leave = nn.Linear(config.ffn, config.hidden, bias=False)
        self.latents = nn.Parameter(torch.empty(latents, config.hidden))
        self.resampler = nn.ModuleList(
            Resampler(hidden=config.hidden, heads=16, kv_heads=4, head_dim=96) for _ in range(3)
        )
        self.latent_norm = RMSNorm(config.hidden)
        self.tokens = nn.Embedding(vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(layers))
        share_tables(self.layers)
        self.norm = RMSNorm(config.hidden)
        self.logits = nn.Linear(config.hidden, vocab, bias=False)

    def forward(self, ids: Tensor, images: Tensor) -> Tensor:
        """Logits [batch, seq, vocab]; the first tokens of a sample are its images'."""
        x = self.patches(images.flatten(0, 1)).flatten(2).transpose(1, 2)
        x = x + self.positions[: x.shape[1]]
        for layer in self.eye:
            x = layer(x)
        gate, up = self.enter(self.eye_norm(x)).chunk(2, dim=-1)
        seen = self.leave(functional.silu(gate) * up)
        read = self.latents.expand(seen.shape[0], -1, -1)
        for layer in self.resampler:
            read = layer(read, seen)
        read = self.latent_norm(read).reshape(ids.shape[0], -1, read.shape[-1])
        x = torch.cat((read, self.tokens(ids)[:, read.shape[1] :]), dim=1)
        for layer in self.layers:
            x = layer(x)
        return self.logits(self.norm(x))


def idefics2(*, layers: int = 32, vocab: int = 32003, seq: int = 2048, image: int = 980, images: int = 1) -> Traceable:
    """Idefics2 8B (Laurençon et al. 2024, arXiv:2405.02246), all of it trained; an image is 64 of ``seq`` tokens."""
    sizes = {"layers": layers, "vocab": vocab, "seq": seq, "image": image, "images": images}
    check_sizes("idefics2", sizes)
    check_divides("idefics2", whole=("image", image), parts=("patch", 14), remedy="choose a multiple of 14")
    eye = Eye(layers=27, hidden=1152, heads=16, ffn=4304, patch=14, image=image, bias=True)
    config = text_layer(hidden=4096, heads=32, kv_heads=8, ffn=14336, seq=seq)
    with torch.device("meta"):
        module = Idefics2(eye, config, layers=layers, vocab=vocab, images=images, latents=64)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = module.norm.weight
        pixels = torch.empty(batch, images, 3, image, image, dtype=like.dtype, device=like.device)
        return token_ids(module, batch, seq), pixels

    return Traceable(module=module, inputs=inputs, loss=cross_entropy, tokens_per_sample=seq)
