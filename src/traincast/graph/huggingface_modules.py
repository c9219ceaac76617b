"""Builds a Hugging Face ``config.json`` with an installed ``transformers``, if Traincast does not read its type itself.

Only code that ships with ``transformers`` runs; code beside a configuration never does. Weights are neither loaded nor
made. Traced as they are, its models would run their norms, rotary positions, experts and scans as dozens of small
operators, since the fused kernels exist on GPUs only. :func:`fused` replaces them by the operators that the zoo uses.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from traincast.errors import CaptureError, MissingDependencyError, RequestError
from traincast.graph.huggingface_fields import DEFAULT_SEQ, show
from traincast.imports import described

if TYPE_CHECKING:
    import torch

    from traincast.graph.zoo.traceable import Traceable

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
_CLIP: Final = 80_000
"""Samples of sound, 5 s at 16 kHz, of a model whose configuration states no length."""
_TEXT: Final = 128
"""Tokens of text that belong to a clip, if no length is given."""
_FRAMES: Final = 1_000
"""Frames of features of sound, 10 s, of a model whose configuration states no length."""
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
_LENGTHS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")


def transformers_model(data: Mapping[str, object], *, seq: int | None = None, eager: bool = False) -> Traceable:
    """Returns the model that ``transformers`` builds from the content of a ``config.json``, ready to be traced.

    ``eager`` models write attention out, for those whose other parts need the mask that fused attention goes without.
    Raises ``MissingDependencyError`` if ``transformers`` is not installed, and ``RequestError`` if it does not know the
    type or cannot build the model.
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
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            model = _built(transformers, transformers.AutoConfig.for_model(**dict(data)), eager=eager)
    except Exception as error:  # a configuration may hold anything
        raise RequestError(f"transformers cannot build model_type {show(model_type)}: {described(error)}") from error
    model.config.use_cache = model.config.get_text_config().use_cache = False  # caches serve decoding
    for module in model.modules():
        if isinstance(module, transformers.modeling_layers.GradientCheckpointingLayer):
            module.is_layer = True
    shapes, tokens = _inputs(model, seq)
    return Traceable(
        module=_wrapper(model, list(shapes)),
        inputs=lambda batch: tuple(
            torch.empty((batch, *shape), dtype=torch.int64 if whole else torch.float32)
            for shape, whole in shapes.values()
        ),
        loss=_loss,
        tokens_per_sample=tokens,
    )


def _built(transformers: Any, config: Any, *, eager: bool) -> Any:
    """The model of ``config``, by the first automatic class that knows it, with fused attention where it can be.

    A class that the configuration names under ``architectures`` comes first, then encoders with decoders.
    """
    autos = [getattr(transformers, name) for name in _AUTO]
    autos = [auto for auto in autos if type(config) in auto._model_mapping]
    named = (config.architectures or [""])[0]
    both = [getattr(transformers, name) for name in _BOTH_SIDES] if config.is_encoder_decoder else []
    autos.sort(key=lambda auto: (_class_name(auto, config) != named, auto not in both))
    for auto in autos:
        failure: Exception | None = None
        for settings in _WRITTEN_OUT if eager else _IMPLEMENTATIONS:
            try:
                return auto.from_config(config, **settings)
            except (ValueError, KeyError, ImportError) as error:  # not every model knows every implementation
                failure = failure or error
        assert failure is not None, "there are implementations to try"
        raise failure
    raise ValueError("it has no model that can be trained")


def _class_name(auto: Any, config: Any) -> str:
    """The name of the model that ``auto`` makes of ``config``."""
    kind = auto._model_mapping[type(config)]
    return str((kind[0] if isinstance(kind, tuple) else kind).__name__)


def _inputs(model: Any, seq: int | None) -> tuple[dict[str, tuple[tuple[int, ...], bool]], int]:
    """Inputs of a sample by name, each a shape and whether it holds whole numbers; and the tokens of a sample."""
    text = model.config.get_text_config()
    main = "input_ids" if "input_ids" in inspect.signature(model.forward).parameters else model.main_input_name
    if main == "input_ids":
        lengths = (getattr(text, name, None) for name in _LENGTHS)
        longest = next((n for n in lengths if isinstance(n, int) and n > 0), DEFAULT_SEQ)
        tokens = seq or min(DEFAULT_SEQ, longest)
        names = ("input_ids", "decoder_input_ids") if model.config.is_encoder_decoder else ("input_ids",)
        return dict.fromkeys(names, ((tokens,), True)), tokens
    if main in ("input_values", "input_features") and (seq is None or model.config.is_encoder_decoder):
        return _sound(model, main, seq), 0
    if seq is not None:
        raise RequestError(f"{type(model).__name__} has no sequence: leave the sequence length of {seq} out")
    if main == "pixel_values":
        eye = getattr(model.config, "vision_config", model.config)
        side = getattr(eye, "image_size", 224)
        sides = tuple(side) if isinstance(side, list | tuple) else (side, side)
        return {"pixel_values": ((getattr(eye, "num_channels", 3), *sides), False)}, 0
    raise RequestError(
        f"{type(model).__name__} takes {main}: only text, images and sound can be traced from a configuration"
    )


def _sound(model: Any, main: str, seq: int | None) -> dict[str, tuple[tuple[int, ...], bool]]:
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
        names = (
            "input_feat_per_channel",
            "feature_projection_input_dim",
            "num_mel_bins",
            "input_channels",
            "input_dim",
        )
        width = next((w for n in names if isinstance(w := getattr(encoder, n, None), int)), 80)
        shape = (_FRAMES, width)
    inputs = {main: (shape, False)}
    return inputs | {"decoder_input_ids": ((seq or _TEXT,), True)} if config.is_encoder_decoder else inputs


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

    from traincast.graph.zoo.layers import cross_entropy

    if not isinstance(output, torch.Tensor):
        raise CaptureError("the model returns no logits, so there is no loss to differentiate")
    return cross_entropy(output)


@contextmanager
def fused(module: torch.nn.Module) -> Iterator[set[str]]:
    """A context in which parts of a ``transformers`` model run as the operators that GPUs run them as.

    Yields the lines of code whose questions about data were answered by no, as they come.
    """
    from traincast.graph.zoo import huggingface_kernels as kernels

    undo: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Callable[..., Any]) -> None:
        undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    classes = {type(child) for child in module.modules()}
    try:
        for home in {sys.modules[kind.__module__] for kind in classes if kind.__module__.startswith("transformers.")}:
            for name, function in kernels.FUNCTIONS.items():
                if name in vars(home) and kernels.fits(vars(home)[name], function):
                    replace(home, name, function)
        for kind in classes:
            forward = kernels.norm_of(kind)
            if forward is not None and _keeps_shape(next(m for m in module.modules() if type(m) is kind)):
                replace(kind, "forward", forward)
            experts = kernels.experts_of(kind)
            if experts is not None:
                replace(kind, "forward", experts)
        asked: set[str] = set()
        with _answers(asked):
            yield asked
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def _keeps_shape(norm: Any) -> bool:
    """Whether a module that is called a norm and has no weight returns its input normed, not a factor for it."""
    import torch

    if getattr(norm, "weight", None) is not None:
        return True
    try:
        return bool(norm(torch.empty(2, 3, 8, device="meta")).shape == (2, 3, 8))
    except Exception:  # a norm of a width of its own
        return True


def _answers(asked: set[str]) -> Any:
    """A context that answers what a model asks of data, which a trace has not; ``asked`` gets the lines of code.

    Layers that training skips at random all run: LayerDrop draws one number per layer. An assertion holds. Anything
    else that is asked as yes or no (whether some token is padding, say) is answered by no. Where a mask chooses the
    elements that are set, as in SpecAugment, all are written, so that shapes do not depend on it.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.overrides import TorchFunctionMode

    class Answers(TorchFunctionMode):  # type: ignore[misc]
        """Draws 1 where a single number between 0 and 1 is drawn, which no chance of skipping reaches."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.rand and args in (([],), ((),)):
                return 1.0
            if func in (torch.Tensor.item, torch.Tensor.__bool__) and isinstance(args[0], FakeTensor):
                frame = _caller()
                place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                if linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("assert "):
                    return args[0].dtype is torch.bool
                if args[0].dtype is torch.bool:
                    asked.add(place)
                    return False
            if func is torch.Tensor.__setitem__ and _is_mask(args[1]) and args[1].ndim <= args[0].ndim:
                data, mask, value = args
                chosen = mask.reshape(*mask.shape, *[1] * (data.ndim - mask.ndim))
                return data.copy_(torch.where(chosen, torch.as_tensor(value, dtype=data.dtype), data))
            return func(*args, **(kwargs or {}))

    def _is_mask(index: Any) -> bool:
        return isinstance(index, FakeTensor) and index.dtype is torch.bool

    return Answers()


def _caller() -> FrameType:
    """The frame of the model's code that called PyTorch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "traincast"):
        frame = frame.f_back
    return frame


def _register(transformers: Any) -> None:
    """Make attention and experts of our own known to ``transformers`` under our name."""
    from traincast.graph.zoo import huggingface_kernels as kernels

    transformers.AttentionInterface.register(_NAME, kernels.attention_forward)
    moe = sys.modules.get("transformers.integrations.moe")
    if moe is not None:
        moe.ALL_EXPERTS_FUNCTIONS.register(_NAME, kernels.experts_forward)
