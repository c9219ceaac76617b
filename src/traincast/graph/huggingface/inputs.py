"""The inputs of a model that ``transformers`` builds: tokens, images, sound, and what goes with them."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from traincast.errors import RequestError
from traincast.graph.huggingface.fields import DEFAULT_SEQ

if TYPE_CHECKING:
    import torch

_CLIP: Final = 80_000
"""Samples of sound, 5 s at 16 kHz, of a model whose configuration states no length."""
_TEXT: Final = 128
"""Tokens of text that belong to a clip, if no length is given."""
_FRAMES: Final = 1_000
"""Frames of features of sound, 10 s, of a model whose configuration states no length."""
_LENGTHS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
_WIDTHS: Final = (
    "input_feat_per_channel",
    "feature_projection_input_dim",
    "num_mel_bins",
    "input_channels",
    "input_dim",
)
_SENSES: Final = ("input_values", "input_features", "pixel_values")


class ModelInput(NamedTuple):
    """One input of a sample: ``rows`` rows of ``shape``, of whole numbers or not."""

    shape: tuple[int, ...]
    whole: bool
    rows: int = 1

    def tensor(self, batch: int) -> torch.Tensor:
        """An empty tensor for ``batch`` samples."""
        import torch

        return torch.empty((batch * self.rows, *self.shape), dtype=torch.int64 if self.whole else torch.float32)


def inputs_of(model: Any, seq: int | None) -> tuple[dict[str, ModelInput], int, list[str]]:
    """Inputs of a sample by name; the tokens of a sample; and what was assumed about them, in words."""
    taken = inspect.signature(model.forward).parameters
    main = "input_ids" if "input_ids" in taken else model.main_input_name
    if main not in (*_SENSES, "input_ids"):  # a model of two parts may pass on what its encoder takes
        first = getattr(getattr(model, "encoder", None), "main_input_name", None)
        main = next((name for name in (first, *_SENSES) if name in taken), main)
    if main == "input_ids":
        return _text(model, seq)
    if main in ("input_values", "input_features") and (seq is None or model.config.is_encoder_decoder):
        return _sound(model, main, seq), 0, []
    if seq is not None:
        raise RequestError(f"{type(model).__name__} has no sequence: leave the sequence length of {seq} out")
    if main == "pixel_values":
        eye = getattr(model.config, "vision_config", model.config)
        side = getattr(eye, "image_size", 224)
        sides = tuple(side) if isinstance(side, list | tuple) else (side, side)
        return {"pixel_values": ModelInput((getattr(eye, "num_channels", 3), *sides), whole=False)}, 0, []
    raise RequestError(
        f"{type(model).__name__} takes {main}: only text, images and sound can be traced from a configuration; "
        "give it with its inputs as a module of your own (package.module:factory)"
    )


def _text(model: Any, seq: int | None) -> tuple[dict[str, ModelInput], int, list[str]]:
    """Tokens of text, or of the text that sound is made from."""
    config = model.config
    lengths = (getattr(config.get_text_config(), name, None) for name in _LENGTHS)
    longest = next((n for n in lengths if isinstance(n, int) and n > 0), DEFAULT_SEQ)
    tokens = seq or min(DEFAULT_SEQ, longest)
    names = ("input_ids", "decoder_input_ids") if config.is_encoder_decoder else ("input_ids",)
    inputs = dict.fromkeys(names, ModelInput((tokens,), whole=True))
    inputs[names[-1]] = _codes(model, tokens)
    patch = getattr(config, "patch_size", None)
    taken = inspect.signature(model.base_model.forward).parameters
    if "patch_lengths" not in taken or not isinstance(patch, int | float):
        return inputs, tokens, []
    inputs["patch_lengths"] = ModelInput((math.ceil(tokens / patch),), whole=True)
    said = f"patches, which entropies decide, are taken to be {patch:g} bytes long and to come with the data"
    return inputs, tokens, [said]


def _codes(model: Any, tokens: int) -> ModelInput:
    """What is predicted: tokens of text; or of sound, which have several codebooks."""
    books = getattr(model, "num_codebooks", None)
    if books:
        return ModelInput((tokens,), whole=True, rows=books)
    offsets = [buffer for name, buffer in model.named_buffers() if name.endswith("audio_tokens_offsets")]
    width = len(offsets[0]) if offsets else getattr(getattr(model.config, "decoder_config", None), "num_channels", None)
    return ModelInput((tokens, width) if width else (tokens,), whole=True)


def _sound(model: Any, main: str, seq: int | None) -> dict[str, ModelInput]:
    """Inputs of a model of sound: a waveform, or features; and ``seq`` tokens of text, if it writes text."""
    config = model.config
    bands = getattr(config, "num_mel_bins", None)
    if main == "input_values":
        wave = bands is None or hasattr(config, "conv_stride")  # convolutions read the waveform itself
        shape: tuple[int, ...] = (_CLIP,) if wave or not bands else (getattr(config, "max_length", _FRAMES), bands)
    elif bands is not None and hasattr(config, "max_source_positions"):
        shape = (bands, 2 * config.max_source_positions)
    else:
        encoder = getattr(config, "encoder_config", config)
        width = next((w for n in _WIDTHS if isinstance(w := getattr(encoder, n, None), int)), 80)
        shape = (_FRAMES, _stacked(model, width))
    inputs = {main: ModelInput(shape, whole=False)}
    return (
        inputs | {"decoder_input_ids": ModelInput((seq or _TEXT,), whole=True)} if config.is_encoder_decoder else inputs
    )


def _stacked(model: Any, width: int) -> int:
    """Width of a frame of features: several of ``width`` side by side, if the model's first layer takes so many."""
    import torch

    leaves = (m for m in model.modules() if next(m.parameters(recurse=False), None) is not None)
    first = next(leaves, None)
    if isinstance(first, torch.nn.Linear) and first.in_features % width == 0:
        return int(first.in_features)
    return width
