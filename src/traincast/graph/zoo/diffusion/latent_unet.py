"""The U-Nets of latent diffusion (Rombach et al. 2022, arXiv:2112.10752): Stable Diffusion 1, 2 and XL.

The encoders of images and of text, which are not trained, are left out: latents and words are given, as training on
latents that were computed beforehand has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.layers import check_divides, check_sizes
from traincast.graph.zoo.traceable import Traceable

GROUPS: Final = 32
LATENT: Final = 4
PIXELS: Final = 8
"""Groups of the norms, channels of a latent, and pixels of an image for each of its sides."""
BLOCKS: Final = 2
"""Residual blocks of a level on the way down; on the way up there is one more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """Channels of the levels, transformer layers of each and of the middle, and what attention reads."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    middle: int
    heads: int
    head_width: int
    text: int
    added: int

    @property
    def vector(self) -> int:
        """Width of the vector that tells the time."""
        return 4 * self.widths[0]

    def heads_of(self, width: int) -> int:
        """Heads of attention on ``width`` channels."""
        return width // self.head_width if self.head_width else self.heads


class TimedBlock(nn.Module):  # type: ignore[misc]
    """Two convolutions, between which the vector of time is added, and a residual."""

    def __init__(self, inputs: int, outputs: int, vector: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(vector, outputs)
        self.norm2 = nn.GroupNorm(GROUPS, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, vector: Tensor) -> Tensor:
        """``x`` [batch, inputs, h, w] to [batch, outputs, h, w]."""
        h = self.conv1(functional.silu(self.norm1(x)))
        h = h + self.time(functional.silu(vector))[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(h)))


class WordAttention(nn.Module):  # type: ignore[misc]
    """Attention of ``width`` channels to ``memory`` of another width; q, k and v have no bias."""

    def __init__(self, width: int, memory: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(memory, width, bias=False)
        self.v = nn.Linear(memory, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """``x`` [batch, pixels, width] to the same shape."""
        parts = (self.q(x), self.k(memory), self.v(memory))
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in parts)
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ToldLayer(nn.Module):  # type: ignore[misc]
    """Pixels attend to one another and to the words, and pass a gated MLP."""

    def __init__(self, width: int, text: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.own = WordAttention(width, width, heads)
        self.words = WordAttention(width, text, heads)
        self.up = nn.Linear(width, 8 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """``x`` [batch, pixels, width] to the same shape."""
        y = self.norm1(x)
        x = x + self.own(y, y)
        x = x + self.words(self.norm2(x), words)
        y, gate = self.up(self.norm3(x)).chunk(2, dim=-1)
        return x + self.down(y * functional.gelu(gate))


class PixelTransformer(nn.Module):  # type: ignore[misc]
    """Transformer layers on all pixels, between two products, with a residual around them."""

    def __init__(self, width: int, depth: int, shape: LatentShape) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width)
        self.enter = nn.Linear(width, width)
        self.layers = nn.ModuleList(ToldLayer(width, shape.text, shape.heads_of(width)) for _ in range(depth))
        self.leave = nn.Linear(width, width)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """``x`` [batch, width, h, w] to the same shape."""
        y = self.enter(self.norm(x).flatten(2).transpose(1, 2))
        for layer in self.layers:
            y = layer(y, words)
        return x + self.leave(y).transpose(1, 2).reshape(x.shape)


class TimedLevel(nn.Module):  # type: ignore[misc]
    """Blocks of one resolution, each followed by attention if the level has any, and a change of resolution."""

    def __init__(self, inputs: list[int], width: int, depth: int, shape: LatentShape, resize: nn.Module | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TimedBlock(size, width, shape.vector) for size in inputs)
        self.attention = nn.ModuleList(PixelTransformer(width, depth, shape) for _ in inputs if depth)
        self.resize = resize

    def step(self, index: int, x: Tensor, vector: Tensor, words: Tensor) -> Tensor:
        """Run block ``index``."""
        x = self.blocks[index](x, vector)
        return self.attention[index](x, words) if len(self.attention) else x


class LatentUNet(nn.Module):  # type: ignore[misc]
    """Every block on the way down keeps its output for the way up."""

    def __init__(self, shape: LatentShape) -> None:
        super().__init__()
        widths, vector = shape.widths, shape.vector
        self.time = nn.Sequential(nn.Linear(widths[0], vector), nn.SiLU(), nn.Linear(vector, vector))
        self.added = (
            nn.Sequential(nn.Linear(shape.added, vector), nn.SiLU(), nn.Linear(vector, vector)) if shape.added else None
        )
        self.enter = nn.Conv2d(LATENT, widths[0], 3, padding=1)
        kept, now, down, last = [widths[0]], widths[0], [], len(widths) - 1
        for level, width in enumerate(widths):
            shrink = nn.Conv2d(width, width, 3, stride=2, padding=1) if level < last else None
            down.append(TimedLevel([now, *[width] * (BLOCKS - 1)], width, shape.depths[level], shape, shrink))
            kept += [width] * (BLOCKS if shrink is None else BLOCKS + 1)
            now = width
        self.down = nn.ModuleList(down)
        self.middle = nn.ModuleList(TimedBlock(now, now, vector) for _ in range(2))
        self.middle_attention = PixelTransformer(now, shape.middle, shape)
        up = []
        for level in reversed(range(len(widths))):
            width, inputs = widths[level], []
            for _ in range(BLOCKS + 1):
                inputs.append(now + kept.pop())
                now = width
            grow = nn.Conv2d(width, width, 3, padding=1) if level else None
            up.append(TimedLevel(inputs, width, shape.depths[level], shape, grow))
        self.up = nn.ModuleList(up)
        self.norm = nn.GroupNorm(GROUPS, now)
        self.leave = nn.Conv2d(now, LATENT, 3, padding=1)

    def forward(self, latents: Tensor, times: Tensor, words: Tensor, added: Tensor | None = None) -> Tensor:
        """The noise of ``latents`` [batch, 4, side, side], told ``words`` [batch, length, width]."""
        vector = self.time(times)
        if self.added is not None:
            vector = vector + self.added(added)
        x = self.enter(latents)
        kept = [x]
        for level in self.down:
            for index in range(len(level.blocks)):
                x = level.step(index, x, vector, words)
                kept.append(x)
            if level.resize is not None:
                x = level.resize(x)
                kept.append(x)
        x = self.middle[1](self.middle_attention(self.middle[0](x, vector), words), vector)
        for level in self.up:
            for index in range(len(level.blocks)):
                x = level.step(index, torch.cat((x, kept.pop()), dim=1), vector, words)
            if level.resize is not None:
                x = level.resize(functional.interpolate(x, scale_factor=2.0))
        return self.leave(functional.silu(self.norm(x)))


def _numbers(name: str, text: str) -> tuple[int, ...]:
    parts = str(text).split("x")
    if not all(part.isdecimal() and int(part) < 100 for part in parts) or not 2 <= len(parts) <= 8:
        raise RequestError(f"latent-unet: {name}={text!r} must be a number below 100 for each level, such as 1x2x4x4")
    return tuple(int(part) for part in parts)


def latent_unet(
    *,
    width: int = 320,
    multiples: str = "1x2x4x4",
    depths: str = "1x1x1x0",
    middle: int = 1,
    heads: int = 8,
    head_width: int = 0,
    text: int = 768,
    length: int = 77,
    added: int = 0,
    image: int = 512,
) -> Traceable:
    """Levels of ``width`` times ``multiples`` channels; ``depths`` and ``middle`` count transformer layers.

    Attention has ``heads``, or heads of ``head_width`` channels if given. ``text`` is the width of ``length`` words.
    ``added`` numbers describe the image beside the time (XL). ``image`` is the side in pixels, eight for each latent.
    """
    many, layers = _numbers("multiples", multiples), _numbers("depths", depths)
    sizes = {"width": width, "middle": middle, "heads": heads, "text": text, "length": length, "image": image}
    check_sizes(
        "latent-unet",
        sizes | {"head_width": head_width, "added": added},
        may_be_zero=frozenset({"head_width", "added"}),
    )
    if len(many) != len(layers) or 0 in many:
        raise RequestError(
            f"latent-unet: multiples={multiples} and depths={depths} must have as many levels, none of 0"
        )
    check_divides(
        "latent-unet", whole=("width", width), parts=("groups", GROUPS), remedy=f"choose a multiple of {GROUPS}"
    )
    check_divides(
        "latent-unet", whole=("width", width), parts=("heads", head_width or heads), remedy="choose other heads"
    )
    stride = PIXELS * 2 ** (len(many) - 1)
    check_divides(
        "latent-unet", whole=("image", image), parts=("stride", stride), remedy=f"choose a multiple of {stride}"
    )
    shape = LatentShape(
        widths=tuple(width * multiple for multiple in many),
        depths=layers,
        middle=middle,
        heads=heads,
        head_width=head_width,
        text=text,
        added=added,
    )
    with torch.device("meta"):
        module = LatentUNet(shape)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = module.leave.weight
        side = image // PIXELS
        shapes = [(LATENT, side, side), (width,), (length, text), *([(added,)] if added else [])]
        return tuple(torch.empty(batch, *each, dtype=like.dtype, device=like.device) for each in shapes)

    return Traceable(module=module, inputs=inputs, loss=lambda noise: noise.square().mean())
