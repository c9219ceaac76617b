"""Transformers on sound: wav2vec 2.0, Whisper, and the Audio Spectrogram Transformer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import UnknownNameError
from traincast.graph.zoo.language.translation import SeqLayer, seq_config
from traincast.graph.zoo.parts.layers import (
    Layer,
    LayerConfig,
    check_choices,
    check_divides,
    check_sizes,
    cross_entropy,
)
from traincast.graph.zoo.traceable import Traceable

FEATURE_CONVS: Final = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
"""Kernel and stride of the convolutions on the waveform: 320 samples a frame (Baevski et al. 2020, section 4.2)."""
FEATURE_WIDTH: Final = 512
POSITION_KERNEL, POSITION_GROUPS = 128, 16
TASKS: Final = ("letters", "classes")


def _encoder(*, hidden: int, heads: int, ffn: int, seq: int, post_norm: bool, dropout: float = 0.1) -> LayerConfig:
    return LayerConfig(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
        seq=seq,
        post_norm=post_norm,
        causal=False,
        dropout=dropout,
    )


class WaveformFeatures(nn.Module):  # type: ignore[misc]
    """Seven convolutions on the waveform. ``layered`` norms each over its channels, otherwise only the first."""

    def __init__(self, *, layered: bool) -> None:
        super().__init__()
        inputs = (1, *(FEATURE_WIDTH for _ in FEATURE_CONVS[1:]))
        self.convs = nn.ModuleList(
            nn.Conv1d(width, FEATURE_WIDTH, kernel, stride=stride, bias=layered)
            for width, (kernel, stride) in zip(inputs, FEATURE_CONVS, strict=True)
        )
        count = len(FEATURE_CONVS) if layered else 0
        self.norms = nn.ModuleList(nn.LayerNorm(FEATURE_WIDTH) for _ in range(count))
        self.group = None if layered else nn.GroupNorm(FEATURE_WIDTH, FEATURE_WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, 1, samples]`` to ``[batch, frames, 512]``."""
        for index, conv in enumerate(self.convs):
            x = conv(x)
            if len(self.norms):
                x = self.norms[index](x.transpose(1, 2)).transpose(1, 2)
            elif index == 0 and self.group is not None:
                x = self.group(x)
            x = functional.gelu(x)
        return x.transpose(1, 2)


class Wav2Vec2(nn.Module):  # type: ignore[misc]
    """Features of the waveform, a wide convolution for positions, transformer layers, and a head."""

    def __init__(self, config: LayerConfig, *, layers: int, outputs: int, task: str) -> None:
        super().__init__()
        hidden = config.hidden
        self.task, self.post_norm = task, config.post_norm
        self.features = WaveformFeatures(layered=not config.post_norm).requires_grad_(False)
        self.enter_norm = nn.LayerNorm(FEATURE_WIDTH)
        self.enter = nn.Linear(FEATURE_WIDTH, hidden)
        self.positions = nn.Conv1d(
            hidden, hidden, POSITION_KERNEL, padding=POSITION_KERNEL // 2, groups=POSITION_GROUPS
        )
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(layers))
        self.narrow = nn.Linear(hidden, 256) if task == "classes" else None
        self.head = nn.Linear(256 if task == "classes" else hidden, outputs)

    def forward(self, waveform: Tensor) -> Tensor:
        """``[batch, samples]`` to logits, of each frame or of the whole."""
        x = self.enter(self.enter_norm(self.features(waveform[:, None])))
        x = x + functional.gelu(self.positions(x.transpose(1, 2))[:, :, :-1]).transpose(1, 2)
        x = self.dropout(self.norm(x) if self.post_norm else x)
        for layer in self.layers:
            x = layer(x)
        x = x if self.post_norm else self.norm(x)
        return self.head(x if self.narrow is None else self.narrow(x).mean(dim=1))


def wav2vec2(
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    ffn: int | None = None,
    samples: int = 240_000,
    outputs: int = 32,
    post_norm: bool = True,
    task: str = "letters",
) -> Traceable:
    """wav2vec 2.0 (Baevski et al. 2020, arXiv:2006.11477) in fine-tuning, its convolutions frozen.

    ``samples`` are those of one clip at 16 kHz; the task is letters of each frame (CTC) or classes of the clip.
    """
    inner = 4 * hidden if ffn is None else ffn
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": inner, "samples": samples, "outputs": outputs}
    check_sizes("wav2vec2", sizes)
    check_choices("wav2vec2", {"post_norm": post_norm})
    check_divides(
        "wav2vec2", whole=("hidden", hidden), parts=("heads", heads), remedy="choose heads that divide hidden"
    )
    if task not in TASKS:
        raise UnknownNameError("task of wav2vec2", task, TASKS)
    config = _encoder(hidden=hidden, heads=heads, ffn=inner, seq=samples // 320, post_norm=post_norm)
    with torch.device("meta"):
        module = Wav2Vec2(config, layers=layers, outputs=outputs, task=task)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = module.enter.weight
        return (torch.empty(batch, samples, dtype=like.dtype, device=like.device),)

    return Traceable(module=module, inputs=inputs, loss=cross_entropy)


class Whisper(nn.Module):  # type: ignore[misc]
    """Two convolutions on mel features, an encoder, and a decoder of text (Radford et al. 2022, figure 1)."""

    def __init__(self, encoder: LayerConfig, decoder: LayerConfig, *, layers: int, vocab: int, positions: int) -> None:
        super().__init__()
        hidden = encoder.hidden
        self.conv1 = nn.Conv1d(80, hidden, 3, padding=1)
        self.conv2 = nn.Conv1d(hidden, hidden, 3, stride=2, padding=1)
        self.register_buffer("places", torch.empty(encoder.seq, hidden), persistent=False)
        self.encoder = nn.ModuleList(SeqLayer(encoder, crosses=False, decoder="") for _ in range(layers))
        self.encoder_norm = nn.LayerNorm(hidden)
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(positions, hidden)
        self.decoder = nn.ModuleList(SeqLayer(decoder, crosses=True, decoder="") for _ in range(layers))
        self.decoder_norm = nn.LayerNorm(hidden)

    def forward(self, mel: Tensor, ids: Tensor) -> Tensor:
        """Mel features ``[batch, 80, frames]`` and text ``[batch, seq]`` to logits ``[batch, seq, vocab]``."""
        memory = functional.gelu(self.conv2(functional.gelu(self.conv1(mel)))).transpose(1, 2) + self.places
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.decoder:
            x = layer(x, memory)
        return functional.linear(self.decoder_norm(x), self.tokens.weight)


def whisper(
    *, layers: int = 12, hidden: int = 768, heads: int = 12, vocab: int = 51865, frames: int = 3000, seq: int = 128
) -> Traceable:
    """Whisper (Radford et al. 2022, arXiv:2212.04356): 30 s of sound are 3,000 ``frames``; ``seq`` tokens of text."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "frames": frames, "seq": seq}
    check_sizes("whisper", sizes)
    check_divides("whisper", whole=("hidden", hidden), parts=("heads", heads), remedy="choose heads that divide hidden")
    check_divides("whisper", whole=("frames", frames), parts=("stride", 2), remedy="choose an even number")
    one = seq_config(hidden=hidden, heads=heads, ffn=4 * hidden, seq=frames // 2, causal=False, dropout=0.0)
    one = replace(one, activation="gelu")
    two = replace(one, seq=seq, causal=True)
    with torch.device("meta"):
        module = Whisper(one, two, layers=layers, vocab=vocab, positions=max(448, seq))

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = module.conv1.weight
        mel = torch.empty(batch, 80, frames, dtype=like.dtype, device=like.device)
        return mel, torch.empty(batch, seq, dtype=torch.int64, device=like.device)

    return Traceable(module=module, inputs=inputs, loss=cross_entropy, tokens_per_sample=seq)


class SpectrogramTransformer(nn.Module):  # type: ignore[misc]
    """Overlapping patches of a spectrogram, two class tokens, and DeiT's layers (Gong et al. 2021, figure 1)."""

    def __init__(self, config: LayerConfig, *, layers: int, patch: int, stride: int, classes: int) -> None:
        super().__init__()
        hidden = config.hidden
        self.patches = nn.Conv2d(1, hidden, patch, stride=stride)
        self.class_tokens = nn.Parameter(torch.zeros(1, 2, hidden))
        self.positions = nn.Parameter(torch.zeros(1, config.seq, hidden))
        self.layers = nn.ModuleList(Layer(config) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head_norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """``[batch, bands, frames]`` to logits ``[batch, classes]``."""
        x = self.patches(spectrogram[:, None]).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_tokens.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.head_norm(self.norm(x)[:, :2].mean(dim=1)))


def spectrogram_transformer(
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    bands: int = 128,
    frames: int = 1024,
    patch: int = 16,
    stride: int = 10,
    classes: int = 527,
) -> Traceable:
    """AST (Gong et al. 2021, arXiv:2104.01778): ``frames`` of 10 ms of ``bands`` mel bands."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "bands": bands, "frames": frames, "patch": patch}
    check_sizes("ast", sizes | {"stride": stride, "classes": classes})
    check_divides("ast", whole=("hidden", hidden), parts=("heads", heads), remedy="choose heads that divide hidden")
    patches = ((bands - patch) // stride + 1) * ((frames - patch) // stride + 1)
    config = _encoder(hidden=hidden, heads=heads, ffn=4 * hidden, seq=patches + 2, post_norm=False, dropout=0.0)
    with torch.device("meta"):
        module = SpectrogramTransformer(config, layers=layers, patch=patch, stride=stride, classes=classes)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = module.head.weight
        return (torch.empty(batch, bands, frames, dtype=like.dtype, device=like.device),)

    return Traceable(module=module, inputs=inputs, loss=cross_entropy)
