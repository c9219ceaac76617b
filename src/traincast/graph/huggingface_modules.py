"""Builds a Hugging Face ``config.json`` with an installed ``transformers``, if Traincast does not read its type itself.

Only code that ships with ``transformers`` runs; code beside a configuration never does. Weights are neither loaded nor
made. Traced as they are, its models would run their norms, rotary positions, experts and scans as dozens of small
operators, since the fused kernels exist on GPUs only. :func:`fused` replaces them by the operators that the zoo uses.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    "AutoModelForPreTraining",
    "AutoModel",
)
"""Classes that choose a model by its configuration, the one that trains first."""
_NAME: Final = "traincast"
_IMPLEMENTATIONS: Final = (
    {"attn_implementation": _NAME, "experts_implementation": _NAME},
    {"attn_implementation": _NAME},
    {"attn_implementation": "sdpa", "experts_implementation": _NAME},
    {"attn_implementation": "sdpa"},
    {"attn_implementation": "eager"},
)
"""How attention and experts may run, those with the fewest operators first."""
_LENGTHS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")


def transformers_model(data: Mapping[str, object], *, seq: int | None = None) -> Traceable:
    """Returns the model that ``transformers`` builds from the content of a ``config.json``, ready to be traced.

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
            model = _built(transformers, transformers.AutoConfig.for_model(**dict(data)))
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


def _built(transformers: Any, config: Any) -> Any:
    """The model of ``config``, by the first automatic class that knows it, with fused attention where it can be."""
    for name in _AUTO:
        auto = getattr(transformers, name)
        if type(config) not in auto._model_mapping:
            continue
        failure: Exception | None = None
        for settings in _IMPLEMENTATIONS:
            try:
                return auto.from_config(config, **settings)
            except (ValueError, KeyError, ImportError) as error:  # not every model knows every implementation
                failure = failure or error
        assert failure is not None, "there are implementations to try"
        raise failure
    raise ValueError("it has no model that can be trained")


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
    if seq is not None:
        raise RequestError(f"{type(model).__name__} has no sequence: leave the sequence length of {seq} out")
    if main == "pixel_values":
        eye = getattr(model.config, "vision_config", model.config)
        side = getattr(eye, "image_size", 224)
        sides = tuple(side) if isinstance(side, list | tuple) else (side, side)
        return {"pixel_values": ((getattr(eye, "num_channels", 3), *sides), False)}, 0
    raise RequestError(f"{type(model).__name__} takes {main}: only text and images can be traced from a configuration")


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
def fused(module: torch.nn.Module) -> Iterator[None]:
    """A context in which parts of a ``transformers`` model run as the operators that GPUs run them as."""
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
            if forward is not None:
                replace(kind, "forward", forward)
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def _register(transformers: Any) -> None:
    """Make attention and experts of our own known to ``transformers`` under our name."""
    from traincast.graph.zoo import huggingface_kernels as kernels

    transformers.AttentionInterface.register(_NAME, kernels.attention_forward)
    moe = sys.modules.get("transformers.integrations.moe")
    if moe is not None:
        moe.ALL_EXPERTS_FUNCTIONS.register(_NAME, kernels.experts_forward)
