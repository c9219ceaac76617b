"""Convolutional acoustic models: Jasper and QuartzNet, from mel features to characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from traincast.errors import RequestError
from traincast.graph.zoo.parts.convolution import cross_entropy
from traincast.graph.zoo.parts.layers import check_choices, check_sizes
from traincast.graph.zoo.traceable import Traceable

FRAMES: Final = 1680
"""16.7 s in steps of 10 ms, to the next multiple of 16: the length to which NVIDIA's benchmarks pad.

Utterances of LibriSpeech have 12.3 s on average, but a batch is padded to its longest.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """The convolutions of a block: output channels, kernel, and share of features dropped."""

    width: int
    kernel: int
    dropout: float = 0.0


JASPER: Final = (
    BlockShape(width=256, kernel=11, dropout=0.2),
    BlockShape(width=384, kernel=13, dropout=0.2),
    BlockShape(width=512, kernel=17, dropout=0.2),
    BlockShape(width=640, kernel=21, dropout=0.3),
    BlockShape(width=768, kernel=25, dropout=0.3),
)
"""The five kinds of blocks (Li et al. 2019, arXiv:1904.03288, table 1)."""

QUARTZNET: Final = (
    BlockShape(width=256, kernel=33),
    BlockShape(width=256, kernel=39),
    BlockShape(width=512, kernel=51),
    BlockShape(width=512, kernel=63),
    BlockShape(width=512, kernel=75),
)
"""The five kinds of blocks (Kriman et al. 2019, arXiv:1910.10261, table 1)."""


class MaskedConv(nn.Module):  # type: ignore[misc]
    """A convolution over time that does not see what lies behind the end of an utterance."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv1d(
            inputs,
            outputs,
            kernel,
            stride=stride,
            padding=kernel // 2 * dilation,
            dilation=dilation,
            groups=groups,
            bias=False,
        )

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """``x`` of ``[batch, inputs, frames]``; ``padding`` of ``[batch, 1, frames]`` is true behind the end."""
        return self.conv(x.masked_fill(padding, 0))


class SubBlock(nn.Module):  # type: ignore[misc]
    """Convolution, normalisation, and unless it is the last of a block activation and dropout.

    A ``separable`` one convolves each channel over time, then mixes channels (Kriman et al. 2019, section 2.1).
    """

    def __init__(
        self,
        inputs: int,
        stage: BlockShape,
        *,
        separable: bool = False,
        activated: bool = True,
        stride: int = 1,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        width, kernel = stage.width, stage.kernel
        if separable:
            depthwise = MaskedConv(inputs, inputs, kernel, stride=stride, dilation=dilation, groups=inputs)
            self.convs = nn.ModuleList([depthwise, MaskedConv(inputs, width, 1)])
        else:
            self.convs = nn.ModuleList([MaskedConv(inputs, width, kernel, stride=stride, dilation=dilation)])
        self.norm = nn.BatchNorm1d(width)
        self.output = _activation(stage.dropout) if activated else nn.Identity()

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """``[batch, inputs, frames]`` to ``[batch, width, frames / stride]``."""
        for conv in self.convs:
            x = conv(x, padding)
            padding = padding[:, :, :: conv.stride]
        return self.output(self.norm(x))


def _activation(dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.ReLU(), nn.Dropout(dropout)) if dropout else nn.Sequential(nn.ReLU())


class ResidualBlock(nn.Module):  # type: ignore[misc]
    """``repeats`` sub-blocks, to whose last normalisation the shortcuts from ``sources`` are added."""

    def __init__(self, sources: Sequence[int], stage: BlockShape, *, repeats: int, separable: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            SubBlock(
                sources[-1] if index == 0 else stage.width,
                stage,
                separable=separable,
                activated=index < repeats - 1,
            )
            for index in range(repeats)
        )
        # By name, because each has its own input: a list of equal ones would be traced as a chain.
        pointwise = BlockShape(width=stage.width, kernel=1)
        self.shortcuts = nn.ModuleDict(
            {str(index): SubBlock(width, pointwise, activated=False) for index, width in enumerate(sources)}
        )
        self.output = _activation(stage.dropout)

    def forward(self, x: Tensor, padding: Tensor, sources: Sequence[Tensor] = ()) -> Tensor:
        """``x`` is the last source; ``sources`` are given where there are others too."""
        y = x
        for part in self.parts:
            y = part(y, padding)
        for shortcut, source in zip(self.shortcuts.values(), sources or (x,), strict=True):
            y = y + shortcut(source, padding)
        return self.output(y)


class AcousticModel(nn.Module):  # type: ignore[misc]
    """A strided convolution, blocks with residuals, and a head with dilation (Li et al. 2019, figure 1).

    ``ends`` are the convolutions before the blocks, and the dilated and the pointwise one after them. With
    ``dense`` residuals, every block also gets what all blocks before it got.
    """

    def __init__(
        self,
        stages: Sequence[BlockShape],
        ends: tuple[BlockShape, BlockShape, BlockShape],
        *,
        repeats: int,
        dense: bool,
        separable: bool,
        features: int,
        symbols: int,
    ) -> None:
        super().__init__()
        first, dilated, last = ends
        self.dense = dense
        self.first = SubBlock(features, first, separable=separable, stride=2)
        sources = [first.width]
        self.blocks = nn.ModuleList()
        for stage in stages:
            given = sources if dense else sources[-1:]
            self.blocks.append(ResidualBlock(given, stage, repeats=repeats, separable=separable))
            sources.append(stage.width)
        self.dilated = SubBlock(sources[-1], dilated, separable=separable, dilation=2)
        self.last = SubBlock(dilated.width, last)
        self.symbols = nn.Conv1d(last.width, symbols, 1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Features ``[batch, features, frames]`` to symbol logits ``[batch, symbols, frames / 2]``."""
        frames = torch.arange(x.shape[2], device=x.device)
        padding = (frames[None] >= lengths[:, None])[:, None]
        x = self.first(x, padding)
        padding = padding[:, :, ::2]
        sources = [x]
        for block in self.blocks:
            x = block(x, padding, sources if self.dense else ())
            sources.append(x)
        return self.symbols(self.last(self.dilated(x, padding), padding))


def _acoustic(
    family: str,
    kinds: tuple[BlockShape, ...],
    ends: tuple[BlockShape, BlockShape, BlockShape],
    *,
    blocks: int,
    repeats: int,
    dense: bool,
    separable: bool,
    frames: int,
    features: int,
    symbols: int,
) -> Traceable:
    sizes = {"blocks": blocks, "repeats": repeats, "frames": frames, "features": features, "symbols": symbols}
    check_sizes(family, sizes)
    check_choices(family, {"dense": dense})
    each, rest = divmod(blocks, len(kinds))
    if rest:
        raise RequestError(f"{family}: blocks={blocks} is not a multiple of its {len(kinds)} kinds of blocks")
    with torch.device("meta"):
        module = AcousticModel(
            [kind for kind in kinds for _ in range(each)],
            ends,
            repeats=repeats,
            dense=dense,
            separable=separable,
            features=features,
            symbols=symbols,
        )

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = next(module.parameters())
        lengths = torch.empty(batch, dtype=torch.int64, device=like.device)
        return torch.empty(batch, features, frames, dtype=like.dtype, device=like.device), lengths

    # CTC needs lengths that a trace without data does not have. It costs little beside the convolutions:
    # cross-entropy per frame reads and writes the same logits. NovoGrad keeps one state, as SGD does.
    return Traceable(module=module, inputs=inputs, loss=cross_entropy, optimizer="sgd")


def jasper(
    *,
    blocks: int = 10,
    repeats: int = 5,
    dense: bool = True,
    frames: int = FRAMES,
    features: int = 64,
    symbols: int = 29,
) -> Traceable:
    """Jasper (Li et al. 2019, arXiv:1904.03288): ``blocks`` of ``repeats`` convolutions over time."""
    ends = (
        BlockShape(width=256, kernel=11, dropout=0.2),
        BlockShape(width=896, kernel=29, dropout=0.4),
        BlockShape(width=1024, kernel=1, dropout=0.4),
    )
    return _acoustic(
        "jasper",
        JASPER,
        ends,
        blocks=blocks,
        repeats=repeats,
        dense=dense,
        separable=False,
        frames=frames,
        features=features,
        symbols=symbols,
    )


def quartznet(
    *,
    blocks: int = 15,
    repeats: int = 5,
    frames: int = FRAMES,
    features: int = 64,
    symbols: int = 29,
) -> Traceable:
    """QuartzNet (Kriman et al. 2019, arXiv:1910.10261): Jasper with separable convolutions."""
    ends = (BlockShape(width=256, kernel=33), BlockShape(width=512, kernel=87), BlockShape(width=1024, kernel=1))
    return _acoustic(
        "quartznet",
        QUARTZNET,
        ends,
        blocks=blocks,
        repeats=repeats,
        dense=False,
        separable=True,
        frames=frames,
        features=features,
        symbols=symbols,
    )
