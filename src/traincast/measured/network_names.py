"""Names that tables give to the networks of the zoo: other spellings, published variants, and similar models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from traincast.measured.models import zoo_name

SAME: Final = {
    "resnet50v15": "resnet50",
    "resnext10132x4d": "resnext101-32x4d",
    "unetmedical": "unet",
    "unetindustrial": "unet-industrial",
    "gnmt": "nmt",
    "gnmtv2": "nmt",
    "vit": "vit-base",
    "vitb16": "vit-base",
    "vitbase": "vit-base",
    "vitbasepatch16224in21k": "vit-base",
    "vitl16": "vit-large",
    "vitg14": "vit-giant",
    "mobilenet": "mobilenet-v1",
    "inception": "inception-v3",
    "biobert": "bert-base",
    "electrabase": "electra-base",
    "temporalfusiontransformer": "tft",
    "fasterrcnn": "faster-rcnn-r50-fpn",
    "maskrcnn": "mask-rcnn-r50-fpn",
    "retinanet": "retinanet-resnet50-fpn",
    "densenet4012": "densenet40-k12",
    "densenet40": "densenet40-k12",
    "swinbasepatch4window7224in22k": "swin-base",
    "distilbert": "distilbert-base",
    "distilbertbaseuncased": "distilbert-base",
    "albertlargev2": "albert-large",
    "albertxxlargev1": "albert-xxlarge",
    "bertlargeuncasedwholewordmasking": "bert-large",
    "bertlargeph2": "bert-large",
    "berthf": "bert-large",
    "clipbase": "clip-base",
    "wav2vec2largelv60": "wav2vec2-large",
    "astfinetunedspeechcommandsv2": "ast",
    "bridgetowerlargeitmmlmitc": "bridgetower-large",
    "protstesm1bforsequentialclassification": "esm-1b",
    "detr": "detr-r50",
    "bigtransfer": "bit-r152x2",
    "flant5xxl": "t5-v1.1-xxl",
    "llama7b": "llama2-7b",
    "llama318b": "llama3-8b",
    "metallama318b": "llama3-8b",
    "gptneox20b": "neox-20b",
    "codellama13binstructhf": "codellama-13b",
    "llamaguard7b": "llama2-7b",
    "gemma2bit": "gemma-2b",
    "longformer": "longformer-base",
    "languageperceiver": "perceiver-language",
    "languageperveriver": "perceiver-language",  # as one table spells it
    "visionperceiverconv": "perceiver-vision-conv",
    "imagensr1430munet": "imagen-sr1-430m",
    "imagensr1600meffunet": "imagen-sr1-600m",
    "vitbpatch16": "vit-base",
    "vitlarge": "vit-large",
    "vith14": "vit-huge",
    "deitbase": "vit-base",
    "deitb": "vit-base",
    "swint": "swin-tiny",
    "swinb": "swin-base",
    "shufflenetv2x10": "shufflenet-v2",
    "unet3d": "unet-3d",
    "3dunet": "unet-3d",
    "neumf": "ncf",
    "neuralcollaborativefiltering": "ncf",
    "widedeep": "wide-and-deep",
    "wideanddeeplearning": "wide-and-deep",
    "dlrmdcnv2": "dcnv2-small",
    "dlrmv2": "dcnv2-small",
    "googlenetv1": "googlenet",
    "inceptionv1": "googlenet",
    "convnextt": "convnext-tiny",
    "convnexts": "convnext-small",
    "convnextb": "convnext-base",
    "convnextl": "convnext-large",
    "tfefficientnetv2s": "efficientnet-v2-s",
    "tfefficientnetv2m": "efficientnet-v2-m",
    "tfefficientnetv2l": "efficientnet-v2-l",
    "regnety004": "regnety-400mf",
    "regnety008": "regnety-800mf",
    "regnety016": "regnety-1.6gf",
    "regnety032": "regnety-3.2gf",
    "regnety080": "regnety-8gf",
    "regnety160": "regnety-16gf",
    "regnety320": "regnety-32gf",
    "regnety1point6gf": "regnety-1.6gf",
    "regnety3point2gf": "regnety-3.2gf",
    "regnety16gf": "regnety-16gf",
    "regnety32gf": "regnety-32gf",
    "regnetx004": "regnetx-400mf",
    "regnetx008": "regnetx-800mf",
    "regnetx016": "regnetx-1.6gf",
    "regnetx032": "regnetx-3.2gf",
    "regnetx080": "regnetx-8gf",
    "regnetx160": "regnetx-16gf",
    "regnetx320": "regnetx-32gf",
    "regnetx1point6gf": "regnetx-1.6gf",
    "regnetx3point2gf": "regnetx-3.2gf",
    "regnetx16gf": "regnetx-16gf",
    "regnetx32gf": "regnetx-32gf",
    "deeplabv3r50": "deeplabv3-resnet50",
    "deeplabv3r101": "deeplabv3-resnet101",
    "resnet50deeplabv3": "deeplabv3-resnet50",
    "resnet101deeplabv3": "deeplabv3-resnet101",
    "fcnr50": "fcn-resnet50",
    "fcnr101": "fcn-resnet101",
    "conformers": "conformer-small",
    "conformerm": "conformer-medium",
    "conformerl": "conformer-large",
    "conformerctcsmall": "conformer-small",
    "conformerctcmedium": "conformer-medium",
    "conformerctclarge": "conformer-large",
    "stablediffusion15": "stable-diffusion-v1-5",
    "stablediffusion14": "stable-diffusion-v1-5",  # the same network, trained for longer
    "stablediffusionv14": "stable-diffusion-v1-5",
    "stablediffusionv1": "stable-diffusion-v1-5",
    "sd15": "stable-diffusion-v1-5",
    "sdv15": "stable-diffusion-v1-5",
    "stablediffusion2": "stable-diffusion-v2",
    "stablediffusion2base": "stable-diffusion-v2",
    "stablediffusionv2base": "stable-diffusion-v2",
    "sd2": "stable-diffusion-v2",
    "sdxl": "stable-diffusion-xl",
    "sdxlbase": "stable-diffusion-xl",
    "stablediffusionxlbase10": "stable-diffusion-xl",
    "ptblstmmedium": "lstm-ptb-medium",
    "ptblstmlarge": "lstm-ptb-large",
    "awdlstm": "awd-lstm-wikitext2",
    "awdlstmwt2": "awd-lstm-wikitext2",
    "hubertbase": "wav2vec2-base",  # the same network, trained with another loss (Hsu et al. 2021)
    "hubertbasels960": "wav2vec2-base",
    "hubertlarge": "wav2vec2-large",
    "hubertlargell60k": "wav2vec2-large",
}
"""Other names of models of the zoo, without punctuation."""
VARIANTS: Final[Mapping[str, tuple[str, Mapping[str, int | str]]]] = {
    "vittiny": ("vit-base", {"hidden": 192, "heads": 3}),
    "vits16": ("vit-base", {"hidden": 384, "heads": 6}),
    "vitsmall": ("vit-base", {"hidden": 384, "heads": 6}),
    "vitb32": ("vit-base", {"patch": 32}),
    "deittiny": ("vit-base", {"hidden": 192, "heads": 3}),
    "deits": ("vit-base", {"hidden": 384, "heads": 6}),
    "deitsmall": ("vit-base", {"hidden": 384, "heads": 6}),
    "swins": ("swin-tiny", {"depths": "2x2x18x2"}),
    "swinsmall": ("swin-tiny", {"depths": "2x2x18x2"}),
    "swinl": ("swin-base", {"width": 192, "heads": 6}),
    "swinlarge": ("swin-base", {"width": 192, "heads": 6}),
    "wideresnet502": ("resnext50-32x4d", {"groups": 1, "group_width": 128}),
    "wideresnet1012": ("resnext101-32x4d", {"groups": 1, "group_width": 128}),
    "resnext10164x4d": ("resnext101-32x4d", {"groups": 64, "group_width": 4}),
    "convnextxlarge": ("convnext-large", {"width": 256}),
    "convnextxl": ("convnext-large", {"width": 256}),
}
"""Published models that differ from one of the zoo in a few dimensions: its name, and these dimensions.

Touvron et al. 2021 (DeiT), Dosovitskiy et al. 2021 (ViT), Liu et al. 2021 (Swin), Zagoruyko and Komodakis 2016,
Liu et al. 2022 (ConvNeXt).
"""
LIKE: Final = {
    "efficientnetwideseb0": "efficientnet-b0",
    "efficientnetwideseb4": "efficientnet-b4",
    "nnunet": "nnunet-2d",
    "seresnext10132x4d": "resnext101-32x4d",
    "quartznet10x5": "quartznet-15x5",  # the only one that NVIDIA's recipe has a configuration of
}
"""Models that are not in the zoo, and the most similar one that is."""
UNSIZED: Final = {
    "mobilenetv3": "mobilenet-v3-large",
    "ssd": "ssd300",
    "unet2d": "unet",
    "efficientnet": "efficientnet-b0",
    "efficientnetv2": "efficientnet-v2-s",
    "convnext": "convnext-tiny",
    "deeplabv3": "deeplabv3-resnet50",
    "deeplab": "deeplabv3-resnet50",
    "fcn": "fcn-resnet50",
    "conformer": "conformer-large",
    "stablediffusion": "stable-diffusion-v1-5",
    "lstmptb": "lstm-ptb-large",
    "ptblstm": "lstm-ptb-large",
    "lstmlm": "lstm-ptb-large",
    "yolov5": "yolov5s",
    "yolov8": "yolov8s",
    "hubert": "wav2vec2-base",
    "wav2vec2": "wav2vec2-base",
    "whisper": "whisper-small",
    "transformerxl": "transformer-xl-base",
    "transformer": "transformer-base",
    "bert": "bert-base",
    "roberta": "roberta-base",
    "t5": "t5-base",
    "electra": "electra-base",
    "albert": "albert-large",
    "jasper": "jasper-10x5",
    "quartznet": "quartznet-15x5",
    "densenet": "densenet121",
    "vgg": "vgg16",
    "resnext101": "resnext101-32x8d",
    "resnext50": "resnext50-32x4d",
    "dlrm": "dlrm-small",
}
"""Models named without their size, and the size that most published steps of them have."""
_WORDS: Final = re.compile(r"\(.*?\)|\bhugging ?face\b|\b(?:fine|pre)-?(?:tun|train)ing\b")
_DETAILS: Final = re.compile(
    r"[-_ ](?:(?:un)?cased|patch\d+|in\d+k|imagenet|224|tf|pytorch|keras|torchvision|timm|v1\.5)\b"
)
"""Words of checkpoints and libraries that change no dimension that matters here."""
_SIZE_POINT: Final = re.compile(r"(?<=\d)[._](?=\d+gf)")
"""The decimal point of a RegNet's size, without which 3.2 GF would be 32 GF."""


class Named(NamedTuple):
    """A model of the zoo, the dimensions in which a table's model differs from it, and what was assumed."""

    name: str
    differs: Mapping[str, int | str] = {}
    assumed: str = ""


def plain_name(written: str) -> str:
    """Return a model's name without punctuation, remarks in brackets and words of a task."""
    return re.sub(r"[^a-z0-9]", "", _SIZE_POINT.sub("point", _WORDS.sub("", written.lower())))


def named_network(written: str) -> Named | None:
    """Return the model of the zoo that a table names; ``None`` if there is none.

    >>> named_network("DeiT-Small").differs
    {'hidden': 384, 'heads': 6}
    """
    bare = _DETAILS.sub("", _WORDS.sub("", written.lower()))
    for plain in dict.fromkeys((plain_name(written), plain_name(bare))):
        if plain in VARIANTS:
            return Named(*VARIANTS[plain])
        if plain in SAME:
            return Named(SAME[plain])
        if plain in LIKE:
            return Named(LIKE[plain], assumed=f"model {written!r} is not in the zoo: {LIKE[plain]}")
        if plain in UNSIZED:
            return Named(UNSIZED[plain], assumed=f"size of model {written!r} not stated: {UNSIZED[plain]}")
    name = zoo_name(written) or zoo_name(bare)
    return None if name is None else Named(name)
