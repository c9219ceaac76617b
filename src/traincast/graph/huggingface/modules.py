"""Builds a Hugging Face ``config.json`` with an installed ``transformers``, if Traincast does not read its type itself.

Only code that ships with ``transformers`` runs; code beside a configuration never does. Weights are neither loaded nor
made.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from traincast.errors import CaptureError, MissingDependencyError, RequestError
from traincast.graph.huggingface.fields import show
from traincast.graph.huggingface.inputs import inputs_of
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
