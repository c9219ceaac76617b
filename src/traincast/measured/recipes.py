"""What public fine-tuning scripts do where a row names only their dataset: lengths, frozen parts and loaders.

Lengths are the defaults of Hugging Face's example scripts, which cut or pad every sample to them. A loader is a process
beside the training process of each device: it prepares the next batch while the device computes, so a step takes the
longer of the two times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from traincast.measured.run import affirms
from traincast.tables import Row, text

_TUNED: Final = re.compile(r"hugging ?face|fine-?tun", re.IGNORECASE)
_GROUPED: Final = re.compile(r"\bwith lddl\b")
_RATE_HZ: Final = 16_000
"""Samples of sound in a second, as models of speech read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a script does with the dataset whose name matches ``dataset``; 0 and "" mean that it has no such habit.

    ``tokens`` is the longest text and ``mean`` the mean length of texts before padding, ``target`` the longest answer
    of a model with two texts and ``seconds`` the longest sound. With ``frozen``, only the head of the model is trained.
    One loader prepares a sample in ``load_s`` seconds; with ``on_device``, units of the device itself decode images.
    """

    dataset: str
    tokens: int = 0
    mean: int = 0
    target: int = 0
    seconds: float = 0.0
    frozen: bool = False
    load_s: float = 0.0
    on_device: bool = False

    @property
    def sound_samples(self) -> int:
        """Samples of the longest sound."""
        return round(self.seconds * _RATE_HZ)


_RECIPES: Final = (
    Recipe(dataset=r"wikitext|openwebtext", tokens=1024),
    Recipe(dataset=r"cnn[_ -]?daily", tokens=1024, target=128),
    Recipe(dataset=r"squad", tokens=384, mean=200, target=30),
    Recipe(dataset=r"mrpc|glue|sst-?2", tokens=128),
    Recipe(dataset=r"alpaca|dolly|guanaco|openassistant", tokens=512),
    Recipe(dataset=r"(?:multitask-)?prompt-tuning", target=16),
    Recipe(dataset=r"poly-tuning", target=2),
    Recipe(dataset=r"prost-sequence", tokens=1024, frozen=True),
    Recipe(dataset=r"cifar", load_s=1.1e-3),
    Recipe(dataset=r"coco|caption_contest", load_s=5.5e-3, on_device=True),
    Recipe(dataset=r"common_language", seconds=8.0, load_s=4.0e-3),
    Recipe(dataset=r"librispeech|common_voice|mozilla-foundation", load_s=27e-3),
)
"""The first recipe whose dataset a row names counts.

Images of 32 × 32 pixels are enlarged in 1.1 ms, and sounds of 8 s are decoded and transformed in 4 ms. Scripts of
speech recognition store features or samples beforehand, and read them as lists of numbers: 0.11 µs for each of the
240,000 numbers of a Whisper input, or of 15 s of sound.
"""
_IMAGE_S: Final = 5.5e-3
"""Time in which one loader decodes and cuts an image of the usual size."""
_IMAGES: Final = ("vit", "swin", "clip")
"""Families of models whose fine-tuning reads images from files."""
_DECODERS: Final = ("gaudi",)
"""Architectures whose devices can decode images themselves."""


def recipe_of(row: Row) -> Recipe | None:
    """Return the recipe whose dataset a row names in its task or in its notes; ``None`` if it names none."""
    said = " ".join(text(row, key) for key in ("task", "notes")).lower()
    return next((recipe for recipe in _RECIPES if re.search(recipe.dataset, said)), None)


def packed_tokens(row: Row) -> int:
    """Return the mean length of the texts that a row packs into each sequence; 0 if it packs none that are known."""
    recipe = recipe_of(row)
    return recipe.mean if recipe is not None and affirms(text(row, "notes"), r"\bpack(?:ed|ing)\b") else 0


def grouped_by_length(row: Row) -> str:
    """Return the sentence for a loader that groups texts by length, so that fewer tokens are computed; usually "".

    LDDL pads a batch to its longest text, and takes the texts of a batch from one bin. By its documentation, bins of 32
    to 256 tokens make BERT's steps with 512 tokens 1.76 to 1.40 times as fast; rows say nothing of their bins.
    """
    if not _GROUPED.search(text(row, "notes").lower()):
        return ""
    return "bins of the loader that groups texts by length not stated: all texts as long as the row says"


def loading_s(row: Row, *, family: str, architecture: str, batch: int) -> float:
    """Return the seconds in which the loader of one device prepares ``batch`` samples; 0 if it does not matter.

    Scripts of fine-tuning start one loader per device. Benchmarks tune their loaders or leave loading out, so rows that
    do not say that they fine-tune a model have none here.
    """
    if not _TUNED.search(" ".join(text(row, key) for key in ("family", "model", "notes"))):
        return 0.0
    recipe = recipe_of(row)
    if recipe is not None and recipe.on_device and architecture in _DECODERS:
        return 0.0
    each = recipe.load_s if recipe is not None else 0.0
    return batch * (each or (_IMAGE_S if family in _IMAGES else 0.0))
