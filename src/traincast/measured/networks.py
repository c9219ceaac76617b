"""The network that a row of data-parallel steps trained, from its name, its task and the size of its inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from traincast.graph import Operator, OperatorGraph, Phase, TensorSpec, zoo
from traincast.measured.models import model, zoo_name
from traincast.measured.rates import SPEECH
from traincast.measured.recipes import recipe_of
from traincast.measured.run import contradiction, unstated
from traincast.tables import Row, RowError, figure, text

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


_CLASSIFIED: Final = re.compile(r"\b(?:mrpc|glue|sst-?2)\b", re.IGNORECASE)
"""Datasets whose scripts train classifiers (Hugging Face, ``AutoModelForSequenceClassification``)."""
_LOGITS: Final = "head.logits"
_CLASSES: Final = 2


def classifier_of(row: Row, graph: OperatorGraph) -> OperatorGraph:
    """Return ``graph`` with a head of two classes if the row's dataset has classes and the model's head is its own.

    A decoder whose head shares the embedding's weights stays as it is, and so does a model without such a head.
    """
    said = " ".join(text(row, key) for key in ("task", "notes"))
    head = [op for op in graph.operators if op.scope == _LOGITS and op.phase is Phase.OPTIMIZER]
    if not head or not _CLASSIFIED.search(said):
        return graph
    vocab = head[0].parameters[0].shape[0]
    changed = tuple(_with_classes(op, vocab) if op.scope in (_LOGITS, "") else op for op in graph.operators)
    return replace(graph, name=f"{graph.name}:classes={_CLASSES}", operators=changed)


def _with_classes(op: Operator, vocab: int) -> Operator:
    """Return ``op`` with the dims of the vocabulary as small as the number of classes."""

    def small(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(t, shape=tuple(_CLASSES if dim == vocab else dim for dim in t.shape)) for t in tensors)

    return replace(
        op,
        inputs=small(op.inputs),
        outputs=small(op.outputs),
        parameters=small(op.parameters),
        saved=small(op.saved),
    )


_TASKS: Final = (
    ("spans", re.compile(r"squad")),
    ("masked", re.compile(r"wikitext|wikipedia|openwebtext|masked|pre-?train")),
    ("classes", re.compile(r"mrpc|sst|glue|classif|fine-?tun")),
)
"""What an encoder learns, by the dataset or the task that a row names; the first that matches counts."""
_ENTITIES: Final = {"electricity": 369, "traffic": 963}
"""Households and sensors of the datasets that TFT is trained on (NVIDIA DeepLearningExamples)."""
_BINNED_SINCE: Final = {"pytorch": 21.11, "paddlepaddle": 22.12}
"""The first container in which BERT's sequences are grouped by length in bins of 64 (NVIDIA's LDDL), by framework."""
_BINNED_LENGTH: Final = {512: 288}
"""The average padded length of grouped sequences: half of Wikipedia's 512 tokens are text (Krell et al. 2021,
arXiv:2107.02027), and half a bin is padding."""
_MASKED: Final = {128: 20, 512: 80}
_SECOND: Final = re.compile(r"\bph(?:ase)?[ -]?2\b")
_SECOND_LENGTH: Final = 512
"""Tokens of BERT's second phase of pre-training, by which it is defined (Devlin et al. 2019)."""
_MASKED_SHARE: Final = 0.15
"""Tokens that BERT's recipes predict in a sequence of each length, and their share in sequences of other lengths."""
_SHORT_SOUND: Final = re.compile(r"speech-?_?commands")
_SHORT_FRAMES: Final = 128
"""Frames that models of spoken commands read: sounds of about a second."""
_MOST_POSITIONS: Final = 512
"""Tokens that encoders of text read at most if they do not say otherwise (Devlin et al. 2019)."""
_POSITION_STEP: Final = 16
"""Longest texts are multiples of this; RoBERTa has two positions more, which are not for tokens."""
_VIDEOS: Final = {32_760: (480, 832), 75_600: (720, 1280)}
"""Height and width of Wan's videos of 81 frames by their tokens, for the two sizes that it is published for."""
_SIDES: Final = ("resolution", "image")
"""Names that families give to the side of their square images."""
_NO_SEQUENCE: Final = ("vit", "clip", "bridgetower", "whisper", "nmt", "nmt-luong", "transformer")
"""Families whose tokens are patches, or text of a usual length beside something else."""


def network_of(row: Row, assumed: list[str]) -> OperatorGraph:
    """Return the graph of a row's model; ``assumed`` gets a sentence for each thing that is not stated."""
    written = text(row, "model")
    found = named_network(written)
    if found is None:
        raise RowError(f"model {written!r} is not in the zoo")
    name = found.name
    if found.assumed:
        assumed.append(found.assumed)
    task = _task(row)
    if name == "electra-base" and task == "spans":
        name = "electra-base-squad"
    card = zoo.card(name)
    seq = _length(row, card, assumed) if "seq" in card.parameters and card.family not in _NO_SEQUENCE else None
    changes = {**found.differs, **_changes(row, card, task, seq, assumed)}
    graph = classifier_of(row, model(_changed(card, changes) if changes else name, seq))
    _say_input(row, replace(card, parameters={**card.parameters, **changes}), graph, assumed)
    return graph


def _task(row: Row) -> str:
    """Return what an encoder learns in a row: masked tokens, spans or classes; "" if the row does not say."""
    said = " ".join(text(row, key) for key in ("task", "notes", "model")).lower()
    return next((task for task, words in _TASKS if words.search(said)), "")


def _changes(row: Row, card: zoo.ModelCard, task: str, seq: int | None, assumed: list[str]) -> dict[str, int | str]:
    """Return the dimensions in which a row's model differs from the model of the zoo."""
    changes: dict[str, int | str] = {}
    if card.family == "bert":
        if not task and not text(row, "task"):
            assumed.append(unstated("task", "pre-training"))
        if seq:
            tuned = task in ("spans", "classes")
            changes["predictions"] = 1 if tuned else _MASKED.get(seq, round(_MASKED_SHARE * seq))
    if card.family == "encoder":
        if not task:
            assumed.append(unstated("task", card.parameters["task"]))
        elif task != card.parameters["task"]:
            changes["task"] = task
    if card.family == "tft":
        entities = _ENTITIES.get(text(row, "task").lower(), card.parameters["entities"])
        if entities != card.parameters["entities"]:
            changes["entities"] = entities
    if card.family == "wan" and (video := _VIDEOS.get(int(figure(row, "seq_len") or 0))):
        changes["height"], changes["width"] = video
    changes |= _by_recipe(row, card)
    parallelism = text(row, "parallelism")
    if "embedding" in parallelism and card.family != "dlrm":
        raise RowError(f"parallelism is {parallelism[:40]!r}: expected data parallelism only")
    side = _side(row)
    changes |= {key: side for key in _SIDES if side and card.parameters.get(key, side) != side}
    return changes


def _say_input(row: Row, card: zoo.ModelCard, graph: OperatorGraph, assumed: list[str]) -> None:
    """Add a sentence to ``assumed`` for each size of input that a row does not state, or that cannot be read."""
    if graph.tokens_per_sample and card.family not in ("vit",) and not figure(row, "seq_len"):
        assumed.append(unstated("sequence length", graph.tokens_per_sample))
    written = text(row, "input_resolution").lower()
    for key in (*_SIDES, "size", "frames", "samples"):
        usual = card.parameters.get(key)
        if usual is None or (key == "size" and "x" not in str(usual)):
            continue
        if not written:
            assumed.append(unstated("size of inputs", usual))
        elif (_side(row) is None) if key in _SIDES else not written.startswith(str(usual)):
            assumed.append(f"size of inputs {written!r} cannot be read: {usual}")


def _by_recipe(row: Row, card: zoo.ModelCard) -> dict[str, int | str]:
    """Return the lengths of answers and of sounds that the script of a row's dataset, or its checkpoint, sets."""
    recipe = recipe_of(row)
    found: dict[str, int | str] = {}
    if recipe is not None and recipe.target and card.family == "t5":
        found["target_seq"] = recipe.target
    if card.family in SPEECH and not text(row, "input_resolution"):
        found["frames"] = SPEECH[card.family].frames
    if recipe is not None and recipe.seconds and "samples" in card.parameters:
        found["samples"] = recipe.sound_samples
    if card.family == "ast" and _SHORT_SOUND.search(text(row, "model").lower()):
        found["frames"] = _SHORT_FRAMES
    return found


def _length(row: Row, card: zoo.ModelCard, assumed: list[str]) -> int | None:
    """Return the tokens of a sequence after padding: pre-training may group sequences by length.

    A length that is not stated is the one that the script of the row's dataset cuts or pads to.
    """
    seq = figure(row, "seq_len")
    if not seq and card.family in SPEECH:
        return SPEECH[card.family].symbols
    recipe = recipe_of(row)
    if not seq and recipe is not None and recipe.tokens:
        most = int(card.parameters.get("max_positions", 0)) or (
            _MOST_POSITIONS if card.family == "bert" else recipe.tokens
        )
        return min(recipe.tokens, most - most % _POSITION_STEP)
    if seq and seq < _SECOND_LENGTH and _SECOND.search(f"{text(row, 'model')} {text(row, 'task')}".lower()):
        said = f"{_SECOND_LENGTH}, the length of the second phase of pre-training, not {seq:g}"
        assumed.append(contradiction("seq_len", "the name of the model", said))
        return _SECOND_LENGTH
    since = _BINNED_SINCE.get(text(row, "framework").lower())
    released = figure(row, "container")
    if seq and since and released and released >= since and "pre-training" in text(row, "task").lower():
        binned = _BINNED_LENGTH.get(int(seq), int(seq))
        if binned != seq:
            assumed.append(f"seq_len {seq:g} is the longest of sequences grouped by length: {binned} on average")
        return binned
    return int(seq) if seq else None


def _side(row: Row) -> int | None:
    """Return the side of square images, stated as ``300x300`` or ``572x572x1``; ``None`` otherwise."""
    sides = text(row, "input_resolution").lower().split("x")
    same = len(sides) > 1 and sides[0] == sides[1] and sides[0].isdecimal()
    return int(sides[0]) if same and (len(sides) == 2 or int(sides[2]) < int(sides[0])) else None


def _changed(card: zoo.ModelCard, changes: dict[str, int | str]) -> str:
    """Return the spec of a model of the zoo with some of its dimensions changed."""
    parts = {**card.parameters, **changes}
    return f"{card.family}:" + ",".join(f"{k}={str(v).lower()}" for k, v in parts.items() if k != "seq")
