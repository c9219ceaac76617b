"""Tacotron 2: text to mel frames, one frame after the other."""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.graph.zoo.parts.layers import check_sizes, token_ids
from traincast.graph.zoo.traceable import Traceable

_TAPS: Final = 5
_PLACES: Final = 32
_PLACE_TAPS: Final = 31
_WIDTH: Final = 128
_PRENET: Final = 256


def _conv_norm(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(inputs, outputs, _TAPS, padding=_TAPS // 2), nn.BatchNorm1d(outputs))


class Text(NamedTuple):
    """What every frame attends to: states and keys, [batch, seq, width], and where text has ended, [batch, seq]."""

    memory: Tensor
    keys: Tensor
    mask: Tensor


class SpeechState(NamedTuple):
    """What one frame hands to the next, [batch, ...]."""

    attention: tuple[Tensor, Tensor]
    decoder: tuple[Tensor, Tensor]
    context: Tensor
    weights: Tensor
    total: Tensor


class FrameStep(nn.Module):  # type: ignore[misc]
    """One frame. All frames use the weights of the network, so that a step has none of its own."""

    def forward(self, frame: Tensor, text: Text, state: SpeechState, net: list[Tensor]) -> object:
        """The frame's mel bands and stop logit, and the next state."""
        hidden, cell = _cell(torch.cat((frame, state.context), dim=-1), state.attention, net[:4])
        places = functional.conv1d(torch.stack((state.weights, state.total), dim=1), net[8], padding=_PLACE_TAPS // 2)
        query, place = functional.linear(hidden, net[9]), functional.linear(places.transpose(1, 2), net[10])
        scores = functional.linear(torch.tanh(query[:, None] + place + text.keys), net[11])[..., 0]
        weights = scores.masked_fill(text.mask, -torch.inf).softmax(dim=-1)
        context = torch.bmm(weights[:, None], text.memory)[:, 0]
        out, kept = _cell(torch.cat((hidden, context), dim=-1), state.decoder, net[4:8])
        joint = torch.cat((out, context), dim=-1)
        made = functional.linear(joint, *net[12:14]), functional.linear(joint, *net[14:])
        return made, SpeechState((hidden, cell), (out, kept), context, weights, state.total + weights)


def _cell(x: Tensor, state: tuple[Tensor, Tensor], weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    """One turn of an LSTM, the kernel of a layer of length one; its state is dropped at random."""
    before = [t[None] for t in state]
    _, hidden, cell = torch.lstm(x[None], before, weights, True, 1, 0.0, True, False, False)
    return functional.dropout(hidden[0], 0.1), cell[0]


class Tacotron2(nn.Module):  # type: ignore[misc]
    """Encoder of text, attention with places, decoder of frames, and a network that corrects them (figure 1)."""

    def __init__(self, *, symbols: int, hidden: int, decoder: int, bands: int, frames: int) -> None:
        super().__init__()
        self.bands, self.size = bands, decoder
        self.tokens = nn.Embedding(symbols, hidden)
        self.convs = nn.ModuleList(_conv_norm(hidden, hidden) for _ in range(3))
        self.encoder = nn.LSTM(hidden, hidden // 2, bidirectional=True, batch_first=True)
        self.keys = nn.Linear(hidden, _WIDTH, bias=False)
        sizes = (bands, _PRENET, _PRENET)
        self.prenet = nn.ModuleList(nn.Linear(i, o, bias=False) for i, o in itertools.pairwise(sizes))
        self.attention_cell = nn.LSTM(_PRENET + hidden, decoder)
        self.decoder_cell = nn.LSTM(decoder + hidden, decoder)
        self.places = nn.Conv1d(2, _PLACES, _PLACE_TAPS, bias=False)
        self.query = nn.Linear(decoder, _WIDTH, bias=False)
        self.place = nn.Linear(_PLACES, _WIDTH, bias=False)
        self.score = nn.Linear(_WIDTH, 1, bias=False)
        self.steps = nn.ModuleList(FrameStep() for _ in range(frames - 1))
        self.last = FrameStep()  # on its own: backward begins here, so there are no gradients of later frames to add
        self.mel = nn.Linear(decoder + hidden, bands)
        self.stop = nn.Linear(decoder + hidden, 1)
        widths = (bands, 512, 512, 512, 512, bands)
        self.postnet = nn.ModuleList(_conv_norm(i, o) for i, o in itertools.pairwise(widths))

    def forward(self, ids: Tensor, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mel frames before and after correction, and stop logits, for text [batch, seq] and frames before."""
        x = self.tokens(ids).transpose(1, 2)
        for conv in self.convs:
            x = functional.dropout(functional.relu(conv(x)), 0.5)
        memory = self.encoder(x.transpose(1, 2))[0]
        keys = self.keys(memory)
        inputs = frames.transpose(1, 2)
        for layer in self.prenet:
            inputs = functional.dropout(functional.relu(layer(inputs)), 0.5)
        net = [*self.attention_cell.parameters(), *self.decoder_cell.parameters()]
        net += [self.places.weight, self.query.weight, self.place.weight, self.score.weight]
        net += [*self.mel.parameters(), *self.stop.parameters()]
        zero = memory.new_zeros(memory.shape[0], self.size)
        none = memory.new_zeros(memory.shape[:2])
        state = SpeechState((zero, zero), (zero, zero), memory.new_zeros(memory[:, 0].shape), none, none)
        text = Text(memory, keys, ids == 0)
        steps = [*self.steps, self.last]
        outputs = []
        for step, frame in zip(steps, inputs[:, : len(steps)].unbind(1), strict=True):
            out, state = step(frame, text, state, net)
            outputs.append(out)
        mel, stop = (torch.stack(parts, dim=-1) for parts in zip(*outputs, strict=True))
        missing = frames.shape[2] - len(outputs)
        if missing:  # a capture runs three frames and counts them for all; what follows still sees all
            mel, stop = (torch.cat((x, x[..., -1:].detach().expand(-1, -1, missing)), dim=-1) for x in (mel, stop))
        y = mel
        for n, conv in enumerate(self.postnet):
            y = conv(y)
            y = functional.dropout(torch.tanh(y) if n < len(self.postnet) - 1 else y, 0.5)
        return mel, mel + y, stop


def _loss(output: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    before, after, stop = output
    target = torch.empty_like(before)
    ends = functional.binary_cross_entropy_with_logits(stop, torch.empty_like(stop))
    return functional.mse_loss(before, target) + functional.mse_loss(after, target) + ends


def tacotron2(
    *, symbols: int = 148, hidden: int = 512, decoder: int = 1024, bands: int = 80, seq: int = 128, frames: int = 800
) -> Traceable:
    """Tacotron 2 (Shen et al. 2018, arXiv:1712.05884) as NVIDIA trains it: ``seq`` symbols of text, ``frames`` of mel.

    A frame of 256 samples at 22.05 kHz is 11.6 ms. Frames are made one after the other, each from the one before.
    """
    sizes = {"symbols": symbols, "hidden": hidden, "decoder": decoder, "bands": bands, "seq": seq, "frames": frames}
    check_sizes("tacotron2", sizes)
    with torch.device("meta"):
        module = Tacotron2(symbols=symbols, hidden=hidden, decoder=decoder, bands=bands, frames=frames)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        like = module.mel.weight
        return token_ids(module, batch, seq), torch.empty(batch, bands, frames, dtype=like.dtype, device=like.device)

    return Traceable(module=module, inputs=inputs, loss=_loss, tokens_per_sample=seq, optimizer="adam")
