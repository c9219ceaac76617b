"""The catalog of known models: one TOML file each, and a builder per family.

A model file has ``family``, ``description``, ``[parameters]`` (keyword arguments of the family's
builder), and ``[published]`` (``parameters``, ``flops`` where known, ``source``).
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from traincast.errors import RequestError, UnknownNameError
from traincast.graph.vocabulary import Scalar
from traincast.graph.zoo.known_models import known_model, known_names, spelled

if TYPE_CHECKING:
    from traincast.graph.zoo.traceable import Traceable

FAMILIES: Final[dict[str, str]] = {
    "gpt": "traincast.graph.zoo.language.transformer:gpt",
    "llama": "traincast.graph.zoo.language.transformer:llama",
    "mpt": "traincast.graph.zoo.language.transformer:mpt",
    "bert": "traincast.graph.zoo.language.transformer:bert",
    "moe": "traincast.graph.zoo.language.transformer:moe",
    "deepseek": "traincast.graph.zoo.language.transformer:deepseek",
    "deepseek-v4": "traincast.graph.zoo.language.deepseek_v4:deepseek_v4",
    "gpt-oss": "traincast.graph.zoo.language.transformer:gpt_oss",
    "decoder": "traincast.graph.zoo.language.decoder:decoder",
    "vit": "traincast.graph.zoo.language.transformer:vit",
    "t5": "traincast.graph.zoo.language.t5:t5",
    "transformer-xl": "traincast.graph.zoo.language.transformer_xl:transformer_xl",
    "nmt": "traincast.graph.zoo.language.nmt:nmt",
    "alexnet": "traincast.graph.zoo.images.plain_cnn:alexnet",
    "vgg": "traincast.graph.zoo.images.plain_cnn:vgg",
    "squeezenet": "traincast.graph.zoo.images.plain_cnn:squeezenet",
    "googlenet": "traincast.graph.zoo.images.inception:googlenet",
    "inception-v3": "traincast.graph.zoo.images.inception:inception_v3",
    "resnet": "traincast.graph.zoo.images.resnet:resnet",
    "resnet-cifar": "traincast.graph.zoo.images.resnet:resnet_cifar",
    "mobilenet-v1": "traincast.graph.zoo.images.mobile:mobilenet_v1",
    "mobilenet-v2": "traincast.graph.zoo.images.mobile:mobilenet_v2",
    "mobilenet-v3": "traincast.graph.zoo.images.mobile:mobilenet_v3",
    "mnasnet": "traincast.graph.zoo.images.mobile:mnasnet",
    "proxylessnas": "traincast.graph.zoo.images.mobile:proxylessnas",
    "efficientnet": "traincast.graph.zoo.images.mobile:efficientnet",
    "shufflenet-v2": "traincast.graph.zoo.images.shufflenet:shufflenet_v2",
    "densenet": "traincast.graph.zoo.images.densenet:densenet",
    "nasbench": "traincast.graph.zoo.images.nasbench:nasbench",
    "ssd": "traincast.graph.zoo.scenes.ssd:ssd300",
    "unet": "traincast.graph.zoo.scenes.unet:unet",
    "nnunet": "traincast.graph.zoo.scenes.volumetric:nnunet",
    "vnet": "traincast.graph.zoo.scenes.volumetric:vnet",
    "unet-industrial": "traincast.graph.zoo.scenes.volumetric:unet_industrial",
    "jasper": "traincast.graph.zoo.sound.speech:jasper",
    "quartznet": "traincast.graph.zoo.sound.speech:quartznet",
    "electra": "traincast.graph.zoo.language.electra:electra",
    "ncf": "traincast.graph.zoo.tables.recommend:ncf",
    "wide-and-deep": "traincast.graph.zoo.tables.click:wide_and_deep",
    "dlrm": "traincast.graph.zoo.tables.click:dlrm",
    "sim": "traincast.graph.zoo.tables.recommend:sim",
    "vae-cf": "traincast.graph.zoo.tables.recommend:vae_cf",
    "tft": "traincast.graph.zoo.tables.forecasting:tft",
    "retinanet": "traincast.graph.zoo.scenes.retinanet:retinanet",
    "rcnn": "traincast.graph.zoo.scenes.rcnn:rcnn",
    "efficientdet": "traincast.graph.zoo.scenes.efficientdet:efficientdet",
    "gpunet": "traincast.graph.zoo.images.gpunet:gpunet",
    "moflow": "traincast.graph.zoo.molecules.moflow:moflow",
    "se3-transformer": "traincast.graph.zoo.molecules.se3:se3_transformer",
    "unet3plus": "traincast.graph.zoo.scenes.unet:unet3plus",
    "densenet-cifar": "traincast.graph.zoo.images.densenet:densenet_cifar",
    "nmt-luong": "traincast.graph.zoo.language.nmt:nmt_luong",
    "transformer": "traincast.graph.zoo.language.translation:transformer",
    "encoder": "traincast.graph.zoo.language.encoder:encoder",
    "swin": "traincast.graph.zoo.images.swin:swin",
    "wav2vec2": "traincast.graph.zoo.sound.audio:wav2vec2",
    "whisper": "traincast.graph.zoo.sound.audio:whisper",
    "ast": "traincast.graph.zoo.sound.audio:spectrogram_transformer",
    "clip": "traincast.graph.zoo.senses.pairs:clip",
    "bridgetower": "traincast.graph.zoo.senses.pairs:bridgetower",
    "detr": "traincast.graph.zoo.scenes.detr:detr",
    "bit": "traincast.graph.zoo.images.resnet:bit",
    "perceiver": "traincast.graph.zoo.senses.perceiver:perceiver",
    "imagen": "traincast.graph.zoo.diffusion.imagen:imagen",
    "tacotron2": "traincast.graph.zoo.sound.tacotron:tacotron2",
    "wan": "traincast.graph.zoo.diffusion.wan:wan",
    "llama-vision": "traincast.graph.zoo.senses.sighted:llama_vision",
    "idefics2": "traincast.graph.zoo.senses.sighted:idefics2",
    "convnext": "traincast.graph.zoo.images.convnext:convnext",
    "regnet": "traincast.graph.zoo.images.regnet:regnet",
    "segmentation": "traincast.graph.zoo.scenes.segmentation:segmentation",
    "yolo": "traincast.graph.zoo.scenes.yolo:yolo",
    "conformer": "traincast.graph.zoo.sound.conformer:conformer",
    "latent-unet": "traincast.graph.zoo.diffusion.latent_unet:latent_unet",
    "deepfm": "traincast.graph.zoo.tables.click:deepfm",
    "lstm": "traincast.graph.zoo.language.lstm:lstm",
}
"""The function that builds each family, imported only when needed because it needs PyTorch."""
PREDICTS_FURTHER: Final = ("deepseek", "deepseek-v4", "decoder")
"""Families that can be trained to predict tokens after the next one."""
_FURTHER: Final = re.compile(r"\+mtp(?:=(\d+))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What is known about a model before it is traced."""

    name: str
    family: str
    description: str
    parameters: Mapping[str, Any] = field(hash=False)
    published: Mapping[str, Scalar] = field(hash=False)


_MODELS: Final = "models"
_ENDING: Final = ".toml"


def names() -> list[str]:
    """Names of all models of the zoo."""
    return list(_names())


@cache
def _names() -> tuple[str, ...]:
    entries = resources.files("traincast.graph.zoo").joinpath(_MODELS).iterdir()
    return tuple(sorted(e.name.removesuffix(_ENDING) for e in entries if e.name.endswith(_ENDING)))


@cache
def _card(name: str) -> ModelCard:
    entry = resources.files("traincast.graph.zoo").joinpath(_MODELS, name + _ENDING)
    data = tomllib.loads(entry.read_text(encoding="utf-8"))
    return ModelCard(
        name=name,
        family=data["family"],
        description=data["description"],
        parameters=data.get("parameters", {}),
        published=data.get("published", {}),
    )


def card(spec: str) -> ModelCard:
    """Returns the card of a zoo model (``resnet50``) or of a family by dimensions (``gpt:layers=24,hidden=2048``).

    A name may be spelled ``ResNet-50`` or ``mobilenet_v2``: the card has the name of the zoo. Well-known language
    models that have no card (``qwen3-14b``) are families by the dimensions that their publishers released. Either may
    end in ``+mtp`` or ``+mtp=2``: see :func:`with_further`.
    """
    plain, further = split_further(spec)
    if further is not None:
        known = card(plain)
        depths = further or int(known.published.get("mtp", 1))
        name = known.name + spec.removeprefix(plain)
        return replace(known, name=name, parameters=with_further(spec, known.family, known.parameters, depths))
    if ":" not in spec:
        return _named(spec.strip())
    family, _, text = spec.partition(":")
    if family not in FAMILIES:
        raise UnknownNameError("model family", family, FAMILIES)
    return ModelCard(
        name=spec,
        family=family,
        description=f"{family} by its dimensions",
        parameters=_dimensions(spec, text),
        published={},
    )


@cache
def _named(written: str) -> ModelCard:
    """Return the card of the one model that ``written`` spells."""
    if written in _names():
        return _card(written)
    found = [name for name in _names() if _spells(written, name)]
    if len(found) == 1:
        return _card(found[0])
    spec = known_model(written)
    if spec is None:
        raise UnknownNameError(
            "model", written, found or {*_names(), *known_names()}, hint="`traincast models` lists all"
        )
    known = card(spec)
    if ":" not in spec:
        return known
    return replace(known, name=spelled(written), description=f"{known.family} by its released dimensions")


def _spells(written: str, name: str) -> bool:
    """Return whether ``written`` differs from the ``name`` of a model only in case and in marks between its parts.

    ``_``, ``-`` and a space are the same; they may be left out, and added except between two digits: ``gpt3_1_3b`` is
    not ``gpt3-13b``. They may stand for the point of ``name``, which cannot be left out.
    """
    marks = {"-": "[-_ ]?", ".": "[-_ .]"}
    pattern = "".join(marks.get(letter, re.escape(letter)) for letter in name)
    pattern = re.sub(r"(?<=[a-z])(?=[a-z0-9])|(?<=[0-9])(?=[a-z])", marks["-"], pattern)
    return re.fullmatch(pattern, written.strip(), re.IGNORECASE) is not None


def split_further(spec: str) -> tuple[str, int | None]:
    """Returns a spec without ``+mtp``, and the number after it: 0 if there is none, ``None`` without ``+mtp``."""
    found = _FURTHER.search(spec)
    return (spec, None) if found is None else (spec[: found.start()], int(found[1] or 0))


def with_further(spec: str, family: str, parameters: Mapping[str, Any], depths: int) -> dict[str, Any]:
    """Returns the dimensions of a model that is trained to predict ``depths`` tokens after the next one as well."""
    if family not in PREDICTS_FURTHER:
        raise RequestError(
            f"model {spec!r}: only models of the families {', '.join(PREDICTS_FURTHER)} can predict further tokens "
            f"(+mtp), and this one is of the family {family}"
        )
    return {**parameters, "mtp": depths}


def _dimensions(spec: str, text: str) -> dict[str, Scalar]:
    parameters: dict[str, Scalar] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise RequestError(f"model {spec!r}: {item!r} is not of the form name=value")
        parameters[key.strip()] = _scalar(value.strip())
    return parameters


def _scalar(text: str) -> Scalar:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def build(spec: str, *, seq: int | None = None, layers: int | None = None) -> Traceable:
    """Build a model of the zoo on the ``meta`` device; ``seq`` sets the tokens per sample, if the model has a sequence.

    ``layers`` replaces the number of layers of a family that has such a dimension.
    """
    known = card(spec)
    builder = _builder(known.family)
    parameters = dict(known.parameters)
    if seq is not None:
        if "seq" not in inspect.signature(builder).parameters:
            raise no_sequence(spec, seq)
        parameters["seq"] = seq
    if layers is not None:
        parameters["layers"] = layers
    try:
        return builder(**parameters)
    except TypeError as error:
        raise RequestError(f"model {spec!r}: {str(error).replace('()', '')}") from error


def no_sequence(spec: str, seq: int) -> RequestError:
    """The error for a sequence length given to a model that has none."""
    return RequestError(f"model {spec!r} has no sequence: leave the sequence length of {seq} out")


def defaults_of(family: str) -> dict[str, Any]:
    """The default dimensions of ``family``. Needs PyTorch."""
    dimensions = inspect.signature(_builder(family)).parameters.values()
    return {d.name: d.default for d in dimensions if d.default is not d.empty}


def _builder(family: str) -> Callable[..., Traceable]:
    module_name, _, function_name = FAMILIES[family].partition(":")
    builder: Callable[..., Traceable] = getattr(importlib.import_module(module_name), function_name)
    return builder
