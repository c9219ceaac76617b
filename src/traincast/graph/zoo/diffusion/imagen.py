"""Imagen (Saharia et al. 2022, arXiv:2205.11487): U-Nets that remove noise from an image, told what it shows by text.

Shapes are those of NVIDIA's JAX-Toolbox. The text is given encoded, as T5-XXL makes it beforehand. ``efficient`` builds
the U-Net of the super-resolution models: it changes resolution first where it shrinks and last where it grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.language.translation import MemoryAttention
from traincast.graph.zoo.parts.layers import check_choices, check_sizes
from traincast.graph.zoo.traceable import Traceable

_GROUPS: Final = 32
_HEAD: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionSizes:
    """Sizes of what conditions all blocks: the vector of time and text, the words, and heads that attend to them."""

    vector: int
    words: int
    heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Levels of a U-Net: ``width`` times each of ``multiples``, ``blocks`` in each, and the levels with attention."""

    width: int
    multiples: tuple[int, ...]
    blocks: tuple[int, ...]
    attention: tuple[int, ...]
    text: int

    @property
    def widths(self) -> list[int]:
        """Channels of each level."""
        return [self.width * multiple for multiple in self.multiples]

    def attends(self, level: int) -> bool:
        """Whether pixels attend to one another at ``level``."""
        return level in self.attention


class ConditionedBlock(nn.Module):  # type: ignore[misc]
    """Two convolutions, the second on what the vector of conditions shifts and scales; ``scale`` halves or doubles."""

    def __init__(
        self, inputs: int, outputs: int, told: ConditionSizes, *, scale: str = "", always: bool = False
    ) -> None:
        super().__init__()
        self.vector = nn.Linear(told.vector, 2 * outputs)
        self.norm1 = nn.GroupNorm(_GROUPS, inputs)
        self.resize = {"": nn.Identity, "down": Shrink, "up": Grow}[scale](inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(_GROUPS, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if always or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, vector: Tensor) -> Tensor:
        """Map ``x`` [batch, channels, height, width]."""
        shift, scale = self.vector(functional.silu(vector))[:, :, None, None].chunk(2, dim=1)
        h = self.conv1(self.resize(functional.silu(self.norm1(x))))
        h = self.conv2(functional.silu(self.norm2(h) * (scale + 1) + shift))
        return h + self.skip(self.resize(x))


class Shrink(nn.Module):  # type: ignore[misc]
    """Four pixels become one, by a product."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Halve both sides of ``x``."""
        return self.conv(functional.pixel_unshuffle(x, 2))


class Grow(nn.Module):  # type: ignore[misc]
    """One pixel becomes four, by a product and a norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4 * channels, 1)
        self.norm = nn.GroupNorm(_GROUPS, 4 * channels)

    def forward(self, x: Tensor) -> Tensor:
        """Double both sides of ``x``."""
        return functional.pixel_shuffle(functional.silu(self.norm(self.conv(x))), 2)


class ImageAttention(nn.Module):  # type: ignore[misc]
    """Pixels attend to all pixels and to the words."""

    def __init__(self, channels: int, told: ConditionSizes) -> None:
        super().__init__()
        inner = told.heads * _HEAD
        self.heads = told.heads
        self.q_norm, self.kv_norm = nn.GroupNorm(_GROUPS, channels), nn.GroupNorm(_GROUPS, channels)
        self.word_norm = nn.GroupNorm(_GROUPS, told.words)
        self.q = nn.Linear(channels, inner)
        self.kv = nn.Linear(channels, 2 * inner)
        self.word_kv = nn.Linear(told.words, 2 * inner)
        self.out = nn.Linear(inner, channels)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """Map ``x`` [batch, channels, height, width], told ``words`` [batch, text, width]."""
        flat = x.flatten(2)
        told = self.word_kv(self.word_norm(words.transpose(1, 2)).transpose(1, 2))
        pairs = torch.cat((self.kv(self.kv_norm(flat).transpose(1, 2)), told), dim=1)
        q = self.q(self.q_norm(flat).transpose(1, 2))
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in (q, *pairs.chunk(2, dim=-1)))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(mixed).transpose(1, 2).reshape(x.shape)


class TextPool(nn.Module):  # type: ignore[misc]
    """The text as one vector: its mean attends to it."""

    def __init__(self, text: int, heads: int, *, middle: int, vector: int) -> None:
        super().__init__()
        inner = heads * _HEAD
        self.attention = MemoryAttention(text, heads)
        self.attention.q = nn.Linear(text, inner, bias=False)
        self.attention.kv = nn.Linear(text, 2 * inner, bias=False)
        self.attention.out = nn.Linear(inner, text, bias=False)
        self.places = nn.Parameter(torch.empty(heads, 32))
        self.rest = nn.Sequential(nn.LayerNorm(text), nn.Linear(text, middle), nn.LayerNorm(middle))
        self.last = nn.Sequential(nn.Linear(middle, vector), nn.SiLU(), nn.Linear(vector, vector))

    def forward(self, text: Tensor) -> Tensor:
        """``text`` [batch, length, width] to [batch, vector]."""
        mean = text.mean(dim=1, keepdim=True)
        pooled = self.attention(mean, torch.cat((mean, text), dim=1))[:, 0]
        return self.last(self.rest(pooled))


class ConditionedStage(nn.Module):  # type: ignore[misc]
    """Residual blocks of one resolution, each or only the last followed by attention."""

    def __init__(self, blocks: Sequence[ConditionedBlock], attentions: Sequence[ImageAttention | None]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.attentions = nn.ModuleList(nn.Identity() if a is None else a for a in attentions)

    def step(self, index: int, x: Tensor, vector: Tensor, words: Tensor) -> Tensor:
        """Run block ``index``."""
        x, attention = self.blocks[index](x, vector), self.attentions[index]
        return attention(x, words) if isinstance(attention, ImageAttention) else x


class Conditioned(nn.Module):  # type: ignore[misc]
    """What both U-Nets share: time, the noise of a small image, and text as a vector and as words."""

    def __init__(self, told: ConditionSizes, *, width: int, text: int, middle: int, enlarges: bool) -> None:
        super().__init__()
        self.times = nn.ModuleList(
            nn.Sequential(nn.Linear(width, told.vector), nn.SiLU(), nn.Linear(told.vector, told.vector))
            for _ in range(2 if enlarges else 1)
        )
        self.pool = TextPool(text, told.heads, middle=middle, vector=told.vector)
        self.words = nn.Linear(text, told.words)

    def forward(self, times: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """The vector of ``times`` [batch, width] and ``text`` [batch, length, width], and its words."""
        vector = self.pool(text)
        for part in self.times:
            vector = vector + part(times)
        return vector, self.words(text)


class DenoisingUNet(nn.Module):  # type: ignore[misc]
    """The U-Net of the base model: every block keeps its output for the way up (Nichol and Dhariwal 2021)."""

    def __init__(self, told: ConditionSizes, shape: Shape, *, enlarges: bool) -> None:
        super().__init__()
        widths = shape.widths
        self.conditions = Conditioned(told, width=shape.width, text=shape.text, middle=told.words, enlarges=enlarges)
        self.enter = nn.Conv2d(6 if enlarges else 3, widths[0], 3, padding=1)
        kept, now = [widths[0]], widths[0]
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        for level, (width, count) in enumerate(zip(widths, shape.blocks, strict=True)):
            self.down.append(_stage([now, *[width] * (count - 1)], width, told, shape.attends(level)))
            kept, now = kept + [width] * count, width
            if level < len(widths) - 1:
                self.shrink.append(ConditionedBlock(width, width, told, scale="down"))
                kept.append(width)
        self.middle = _stage([now, now], now, told, False)
        self.middle_attention = ImageAttention(now, told)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for level in reversed(range(len(widths))):
            width, inputs = widths[level], []
            for _ in range(shape.blocks[level] + 1):
                inputs.append(now + kept.pop())
                now = width
            self.up.append(_stage(inputs, width, told, shape.attends(level)))
            if level:
                self.grow.append(ConditionedBlock(width, width, told, scale="up"))
        self.norm = nn.GroupNorm(_GROUPS, now)
        self.leave = nn.Conv2d(now, 3, 3, padding=1)

    def forward(self, images: Tensor, times: Tensor, text: Tensor) -> Tensor:
        """The noise of ``images`` [batch, channels, side, side]."""
        vector, words = self.conditions(times, text)
        x = self.enter(images)
        kept = [x]
        for level, stage in enumerate(self.down):
            for index in range(len(stage.blocks)):
                x = stage.step(index, x, vector, words)
                kept.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](x, vector)
                kept.append(x)
        x = self.middle_attention(self.middle.step(0, x, vector, words), words)
        x = self.middle.step(1, x, vector, words)
        for level, stage in enumerate(self.up):
            for index in range(len(stage.blocks)):
                x = stage.step(index, torch.cat((x, kept.pop()), dim=1), vector, words)
            if level < len(self.grow):
                x = self.grow[level](x, vector)
        return self.leave(functional.silu(self.norm(x)))


class EfficientUNet(nn.Module):  # type: ignore[misc]
    """The U-Net of super-resolution: one output kept for each level, attention behind the last block of a level."""

    def __init__(self, told: ConditionSizes, shape: Shape, *, enlarges: bool) -> None:
        super().__init__()
        widths = shape.widths
        self.conditions = Conditioned(told, width=shape.width, text=shape.text, middle=told.vector, enlarges=enlarges)
        self.enter = nn.Conv2d(6 if enlarges else 3, widths[0], 3, padding=1)
        now, last = widths[0], len(widths) - 1
        self.shrink, self.down = nn.ModuleList(), nn.ModuleList()
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for level, width in enumerate(widths):
            self.shrink.append(nn.Conv2d(now, width, 3, stride=1 if level == last else 2, padding=1))
            self.down.append(self._level(width, width, told, shape, level))
            now = width
        for level in reversed(range(len(widths))):
            width, skipped = widths[level], 0 if level == last else widths[level]
            self.up.append(self._level(now + skipped, width, told, shape, level))
            stride = 1 if level == last else 2
            grow = nn.ConvTranspose2d(width, width, 3, stride=stride, padding=1, output_padding=stride - 1)
            self.grow.append(grow)
            now = width
        self.leave = nn.Conv2d(now, 3, 3, padding=1)

    @staticmethod
    def _level(inputs: int, width: int, told: ConditionSizes, shape: Shape, level: int) -> ConditionedStage:
        count = shape.blocks[level]
        blocks = [ConditionedBlock(inputs if i == 0 else width, width, told, always=True) for i in range(count)]
        attention = ImageAttention(width, told) if shape.attends(level) else None
        return ConditionedStage(blocks, [*[None] * (count - 1), attention])

    def forward(self, images: Tensor, times: Tensor, text: Tensor) -> Tensor:
        """The noise of ``images`` [batch, channels, side, side]."""
        vector, words = self.conditions(times, text)
        x, kept = self.enter(images), []
        for shrink, stage in zip(self.shrink, self.down, strict=True):
            x = shrink(x)
            for index in range(len(stage.blocks)):
                x = stage.step(index, x, vector, words)
            kept.append(x)
        kept.pop()
        for level, (stage, grow) in enumerate(zip(self.up, self.grow, strict=True)):
            x = torch.cat((x, kept.pop()), dim=1) if level else x
            for index in range(len(stage.blocks)):
                x = stage.step(index, x, vector, words)
            x = grow(x)
        return self.leave(x)


def _stage(inputs: list[int], width: int, told: ConditionSizes, attends: bool) -> ConditionedStage:
    blocks = [ConditionedBlock(size, width, told) for size in inputs]
    return ConditionedStage(blocks, [ImageAttention(width, told) if attends else None for _ in inputs])


def _numbers(name: str, text: str, count: int | None = None) -> tuple[int, ...]:
    """The whole numbers of ``1x2x4``; one number stands for all levels."""
    parts = str(text).split("x") if str(text) else []
    if not all(part.isdecimal() for part in parts) or len(parts) > 16:
        raise RequestError(f"imagen: {name}={text!r} must be whole numbers such as 1x2x4")
    numbers = tuple(int(part) for part in parts)
    if count is not None and len(numbers) == 1:
        numbers *= count
    if count is not None and len(numbers) != count:
        raise RequestError(f"imagen: {name}={text!r} has {len(numbers)} numbers for {count} levels")
    return numbers


def imagen(
    *,
    width: int = 512,
    multiples: str = "1x2x3x4",
    blocks: str = "3",
    attention: str = "1x2x3",
    vector: int = 2048,
    words: int = 2048,
    heads: int = 8,
    image: int = 64,
    enlarges: bool = False,
    efficient: bool = False,
    text: int = 4096,
    length: int = 128,
) -> Traceable:
    """Imagen's U-Nets: levels of ``width`` times ``multiples`` channels, residual ``blocks`` in each.

    ``attention`` names the levels (from 0) at which pixels attend; ``enlarges`` gives the small image as an input too.
    """
    check_choices("imagen", {"enlarges": enlarges, "efficient": efficient})
    sizes = {"width": width, "vector": vector, "words": words, "heads": heads, "image": image, "text": text}
    many = _numbers("multiples", multiples)
    check_sizes("imagen", sizes | {"length": length, "levels": len(many)})
    if width % _GROUPS or words % _GROUPS or image % 2 ** len(many) or 0 in many:
        raise RequestError(
            f"imagen: width={width} and words={words} must be multiples of {_GROUPS}, image={image} of {2 ** len(many)}"
        )
    shape = Shape(
        width=width,
        multiples=many,
        blocks=_numbers("blocks", blocks, len(many)),
        attention=_numbers("attention", attention),
        text=text,
    )
    told = ConditionSizes(vector=vector, words=words, heads=heads)
    with torch.device("meta"):
        module = (EfficientUNet if efficient else DenoisingUNet)(told, shape, enlarges=enlarges)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = module.leave.weight

        def empty(*shape: int) -> Tensor:
            return torch.empty(batch, *shape, dtype=like.dtype, device=like.device)

        return empty(6 if enlarges else 3, image, image), empty(width), empty(length, text)

    return Traceable(module=module, inputs=inputs, loss=lambda noise: noise.square().mean())
