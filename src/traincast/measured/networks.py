"""The network that a row of data-parallel steps trained, from its name, its task and the size of its inputs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from traincast.graph import OperatorGraph, zoo
from traincast.measured.classifiers import classifier_of
from traincast.measured.frames import SPEECH
from traincast.measured.models import model
from traincast.measured.network_names import named_network
from traincast.measured.recipes import recipe_of
from traincast.measured.run import contradiction, unstated
from traincast.tables import Row, RowError, figure, text

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
