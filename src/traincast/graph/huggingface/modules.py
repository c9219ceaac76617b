"""Builds a Hugging Face ``config.json`` with an installed ``transformers``, if Traincast does not read its type itself.

Its inputs follow from the configuration: tokens, images, sound, and the masks and labels that belong to them. Only code
that ships with ``transformers`` runs; code beside a configuration never does. Weights are neither loaded nor made.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from traincast.errors import CaptureError, MissingDependencyError, RequestError
from traincast.graph.huggingface.fields import DEFAULT_SEQ, show
from traincast.imports import described

if TYPE_CHECKING:
    import torch

    from traincast.graph.zoo.traceable import Traceable


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
    """Width of a frame of features: a multiple of ``width`` if the first layer of the model reads several at once."""
    import torch

    leaves = (m for m in model.modules() if next(m.parameters(recurse=False), None) is not None)
    first = next(leaves, None)
    if isinstance(first, torch.nn.Linear) and first.in_features % width == 0:
        return int(first.in_features)
    return width


_AUTO: Final = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageTextToText",
    "AutoModelForImageClassification",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForCTC",
    "AutoModelForAudioClassification",
    "AutoModelForPreTraining",
    "AutoModel",
)
"""Classes that choose a model by its configuration, the one that trains first."""
_BOTH_SIDES: Final = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq")
_PIP: Final = {"PIL": "pillow"}
_UNSIZED: Final = frozenset({"architectures", "bos_token_id", "eos_token_id", "dtype", "problem_type"})
"""Fields that may be empty."""
_NAME: Final = "traincast"
_IMPLEMENTATIONS: Final = (
    {"attn_implementation": _NAME, "experts_implementation": _NAME},
    {"attn_implementation": _NAME},
    {"attn_implementation": "sdpa", "experts_implementation": _NAME},
    {"attn_implementation": "sdpa"},
    {"attn_implementation": "eager"},
)
"""How attention and experts may run, those with the fewest operators first."""
_WRITTEN_OUT: Final = (
    {"attn_implementation": "eager", "experts_implementation": _NAME},
    {"attn_implementation": "eager"},
)


def transformers_model(
    data: Mapping[str, object], *, seq: int | None = None, eager: bool = False
) -> tuple[Traceable, list[str]]:
    """Returns the model that ``transformers`` builds from the content of a ``config.json``, and what was assumed.

    With ``eager``, attention runs as single operators: some models need its mask elsewhere, and fused attention makes
    none. Raises ``MissingDependencyError`` if ``transformers`` is not installed, and ``RequestError`` if it does not
    know the type or cannot build the model.
    """
    model_type = data.get("model_type")
    try:
        import transformers
    except ImportError as error:
        purpose = f"model_type {show(model_type)} is none that Traincast reads itself; building it"
        raise MissingDependencyError("transformers", purpose, extra="transformers") from error
    import torch

    from traincast.graph.zoo.traceable import Traceable

    _register(transformers)
    transformers.logging.set_verbosity_error()  # it warns that fused kernels are missing, which tracing does not need
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if not isinstance(model_type, str) or model_type not in known:
        raise RequestError(f"model_type {show(model_type)} is unknown to transformers {transformers.__version__}")
    config = None
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            config = transformers.AutoConfig.for_model(**dict(data))
            model = _built(transformers, config, eager=eager)
    except Exception as error:  # a configuration may hold anything
        raise RequestError(f"transformers cannot build model_type {show(model_type)}: {_why(error, config)}") from error
    model.config.use_cache = model.config.get_text_config().use_cache = False  # caches serve decoding
    for module in model.modules():
        if isinstance(module, transformers.modeling_layers.GradientCheckpointingLayer):
            module.is_layer = True
    inputs, tokens, assumed = inputs_of(model, seq)
    traceable = Traceable(
        module=_wrapper(model, list(inputs)),
        inputs=lambda batch: tuple(one.tensor(batch) for one in inputs.values()),
        loss=_loss,
        tokens_per_sample=tokens,
    )
    return traceable, assumed


def _built(transformers: Any, config: Any, *, eager: bool) -> Any:
    """The model of ``config``, by the first automatic class that knows it, with fused attention where it can be.

    A class that the configuration names under ``architectures`` comes first, then encoders with decoders.
    """
    autos = [getattr(transformers, name) for name in _AUTO]
    autos = [auto for auto in autos if type(config) in auto._model_mapping]
    named = (config.architectures or [""])[0]
    both = [getattr(transformers, name) for name in _BOTH_SIDES] if config.is_encoder_decoder else []
    autos.sort(key=lambda auto: (_class_of(auto, config).__name__ != named, auto not in both))
    if not autos:
        raise ValueError("it has no model that can be trained")
    kind = _class_of(autos[0], config)
    parts = (getattr(config, name, None) for name in config.sub_configs)
    whole = next((part for part in parts if part is not None and type(part) is kind.config_class), config)
    _complete(whole)
    failure: Exception | None = None
    for settings in _WRITTEN_OUT if eager else _IMPLEMENTATIONS:
        try:
            return kind._from_config(whole, **settings)
        except (ValueError, KeyError, ImportError) as error:  # not every model knows every implementation
            failure = failure or error
    assert failure is not None, "there are implementations to try"
    raise failure


def _class_of(auto: Any, config: Any) -> Any:
    """The class of models that ``auto`` makes of ``config``."""
    kind = auto._model_mapping[type(config)]
    return kind[0] if isinstance(kind, tuple) else kind


def _complete(config: Any) -> None:
    """Set what a configuration may leave open and what changes no size.

    Rotary positions by type of layer get the usual base, and samples whose language chooses an adapter are all in the
    first language, since the adapters of all languages are alike.
    """
    kinds, rotary = getattr(config, "layer_types", None), getattr(config, "rope_parameters", None)
    if kinds and rotary == {}:
        config.rope_parameters = {kind: {"rope_type": "default", "rope_theta": 10_000.0} for kind in set(kinds)}
    languages = getattr(config, "languages", None)
    if languages and getattr(config, "default_language", "") is None:
        config.default_language = languages[0]


def _why(error: Exception, config: Any) -> str:
    """Why a configuration cannot be built, and what to do, in one line."""
    package = re.search(r"requires the (\S+) library", str(error))
    if isinstance(error, ImportError) and package:
        what = f"it needs the package {package[1]}: pip install {_PIP.get(package[1], package[1])}"
        text = getattr(config, "text_config", None)
        alone = "" if text is None else f"; or give its text_config alone (model_type {text.model_type!r})"
        return what + alone
    if isinstance(error, AttributeError) and error.name and error.obj.__class__.__name__.endswith("Config"):
        return f"its configuration states no {error.name}: add it"
    if "NoneType" in str(error) and config is not None:
        parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
        open_ = {name for part in parts if part is not None for name, value in part.to_dict().items() if value is None}
        return f"{described(error)}; fields without a value: {', '.join(sorted(open_ - _UNSIZED))}"
    return described(error)


def _wrapper(model: Any, names: list[str]) -> torch.nn.Module:
    import torch

    class Trained(torch.nn.Module):  # type: ignore[misc]
        """A model of ``transformers`` that takes its inputs in order and returns what the loss needs."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> Any:
            output = self.model(**dict(zip(names, inputs, strict=True)))
            logits = getattr(output, "logits", None)
            return output[0] if logits is None else logits

    return Trained()


def _loss(output: Any) -> torch.Tensor:
    """Cross-entropy over the last dim of logits: of tokens or of classes."""
    import torch

    from traincast.graph.zoo.parts.layers import cross_entropy

    if not isinstance(output, torch.Tensor):
        raise CaptureError("the model returns no logits, so there is no loss to differentiate")
    return cross_entropy(output)


def _register(transformers: Any) -> None:
    """Make attention and experts of our own known to ``transformers`` under our name."""
    from traincast.graph.huggingface import kernels

    transformers.AttentionInterface.register(_NAME, kernels.attention_forward)
    moe = sys.modules.get("transformers.integrations.moe")
    if moe is not None:
        moe.ALL_EXPERTS_FUNCTIONS.register(_NAME, kernels.experts_forward)
