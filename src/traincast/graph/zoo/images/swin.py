"""Swin Transformer (Liu et al. 2021, arXiv:2103.14030): attention within windows that shift from layer to layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from traincast.errors import RequestError
from traincast.graph.zoo.parts.convolution import image_model
from traincast.graph.zoo.parts.layers import MLP, check_sizes
from traincast.graph.zoo.traceable import Traceable

STAGES = 4


class WindowAttention(nn.Module):  # type: ignore[misc]
    """Attention within windows of ``window`` × ``window`` patches, with a learned bias of relative positions."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.side = heads, window
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        self.register_buffer("places", torch.empty(window**4, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """``x`` [windows, patches, width] to the same shape; ``mask`` [windows of an image, 1, patches, patches]."""
        patches = x.shape[1]
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        bias = self.bias.index_select(0, self.places).view(patches, patches, self.heads).permute(2, 0, 1)
        scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(2, 3)) + bias
        if mask is not None:
            scores = (scores.unflatten(0, (-1, mask.shape[0])) + mask).flatten(0, 1)
        return self.out(torch.matmul(scores.softmax(dim=3), v).transpose(1, 2).flatten(2))


class SwinBlock(nn.Module):  # type: ignore[misc]
    """Attention in windows, shifted by half of one if ``shifted``, and an MLP (section 3.1, figure 3)."""

    def __init__(self, width: int, heads: int, *, side: int, window: int, shifted: bool) -> None:
        super().__init__()
        self.side = side
        self.span = min(window, side)
        self.shift = self.span // 2 if shifted and side > window else 0
        self.norm1 = nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, self.span)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(hidden=width, ffn=4 * width, activation="gelu", bias=True)
        windows, patches = (side // self.span) ** 2, self.span**2
        self.register_buffer(
            "mask", torch.empty(windows, 1, patches, patches) if self.shift else None, persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [batch, side, side, width] to the same shape."""
        count, span, width = self.side // self.span, self.span, x.shape[-1]
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), dims=(1, 2))
        y = y.view(-1, count, span, count, span, width).transpose(2, 3).reshape(-1, span * span, width)
        y = self.attention(y, self.mask)
        y = y.view(-1, count, count, span, span, width).transpose(2, 3).reshape(x.shape)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), dims=(1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class Merge(nn.Module):  # type: ignore[misc]
    """Four neighbouring patches become one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [batch, side, side, width] to [batch, side / 2, side / 2, 2 · width]."""
        parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduce(self.norm(torch.cat(parts, dim=-1)))


class Swin(nn.Module):  # type: ignore[misc]
    """Patches of 4, four stages of halved resolution and doubled width, and a classifier."""

    def __init__(
        self, *, width: int, depths: list[int], heads: int, window: int, patch: int, resolution: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.norm = nn.LayerNorm(width)
        side, stages = resolution // patch, []
        for stage, depth in enumerate(depths):
            parts: list[nn.Module] = []
            if stage:
                parts.append(Merge(width))
                width, heads, side = 2 * width, 2 * heads, side // 2
            parts += [SwinBlock(width, heads, side=side, window=window, shifted=bool(i % 2)) for i in range(depth)]
            stages.append(nn.Sequential(*parts))
        self.stages = nn.ModuleList(stages)
        self.last_norm = nn.LayerNorm(width)
        self.classes = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images to logits [batch, classes]."""
        x = self.norm(self.patches(images).permute(0, 2, 3, 1))
        for stage in self.stages:
            x = stage(x)
        return self.classes(self.last_norm(x).mean(dim=(1, 2)))


def swin(
    *,
    width: int = 96,
    depths: str = "2x2x6x2",
    heads: int = 3,
    window: int = 7,
    patch: int = 4,
    resolution: int = 224,
    classes: int = 1000,
) -> Traceable:
    """Swin Transformer: ``depths`` are the layers of the four stages, ``width`` and ``heads`` those of the first."""
    sizes = {"width": width, "heads": heads, "window": window, "patch": patch, "resolution": resolution}
    check_sizes("swin", sizes | {"classes": classes})
    texts = str(depths).split("x")
    if len(texts) != STAGES or not all(t.isdecimal() and 0 < int(t) <= 200 for t in texts):
        raise RequestError(f"swin: depths={depths!r} must be the layers of four stages, such as 2x2x6x2")
    if width % heads or resolution % (8 * patch * window):
        raise RequestError(
            f"swin: heads={heads} must divide width={width}, and resolution={resolution} must be a multiple of "
            f"{8 * patch * window}, so that every stage is a whole number of windows"
        )
    with torch.device("meta"):
        module = Swin(
            width=width,
            depths=[int(t) for t in texts],
            heads=heads,
            window=window,
            patch=patch,
            resolution=resolution,
            classes=classes,
        )
    return image_model(module, resolution=resolution)
