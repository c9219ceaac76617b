"""What public fine-tuning scripts do where a row names only their dataset: lengths, frozen parts and loaders.

Lengths are the defaults of Hugging Face's example scripts, which cut or pad every sample to them. A loader is a process
beside the training process of each device: it prepares the next batch while the device computes, so a step takes the
longer of the two times.
"""

from __future__ import annotations

from dataclasses import dataclass

from traincast.measured.dialect import Pattern, Said, vocabulary
from traincast.tables import Row, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a script does with the dataset whose name matches ``dataset``; 0 and "" mean that it has no such habit.

    ``tokens`` is the longest text and ``mean`` the mean length of texts before padding, ``target`` the longest answer
    of a model with two texts and ``seconds`` the longest sound. With ``frozen``, only the head of the model is trained.
    One loader prepares a sample in ``load_s`` seconds; with ``on_device``, units of the device itself decode images.
    """

    dataset: Pattern
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
        return round(self.seconds * vocabulary(Recipes).sound_hz)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """The dataset that public scripts train a family of models of speech on, which make sounds frame by frame.

    ``mean_frames`` is the mean length of its samples. ``symbols`` and ``frames`` are the lengths of the longest text
    and of the longest sound in a batch of some dozens, to which the whole batch is padded.
    """

    dataset: str
    mean_frames: float
    symbols: int
    frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipes:
    """What scripts do; comments in ``recipes.toml`` explain each entry."""

    recipes: tuple[Recipe, ...]
    tuned: Said
    grouped: Said
    packed: Said
    image_s: float
    images: tuple[str, ...]
    decoders: tuple[str, ...]
    sound_hz: int
    speech: dict[str, Speech]


def recipe_of(row: Row) -> Recipe | None:
    """Return the recipe whose dataset a row names in its task or in its notes; ``None`` if it names none."""
    said = " ".join(text(row, key) for key in ("task", "notes")).lower()
    return next((recipe for recipe in vocabulary(Recipes).recipes if recipe.dataset.search(said)), None)


def speech_of(family: str) -> Speech | None:
    """Return the dataset of a family whose scripts report frames per second; ``None`` for other families."""
    return vocabulary(Recipes).speech.get(family)


def packed_tokens(row: Row) -> int:
    """Return the mean length of the texts that a row packs into each sequence; 0 if it packs none that are known."""
    recipe = recipe_of(row)
    return recipe.mean if recipe is not None and vocabulary(Recipes).packed(row) else 0


def grouped_by_length(row: Row) -> str:
    """Return the sentence for a loader that groups texts by length, so that fewer tokens are computed; usually "".

    LDDL pads a batch to its longest text, and takes the texts of a batch from one bin. By its documentation, bins of 32
    to 256 tokens make BERT's steps with 512 tokens 1.76 to 1.40 times as fast; rows say nothing of their bins.
    """
    if not vocabulary(Recipes).grouped(row):
        return ""
    return "bins of the loader that groups texts by length not stated: all texts as long as the row says"


def loading_s(row: Row, *, family: str, architecture: str, batch: int) -> float:
    """Return the seconds in which the loader of one device prepares ``batch`` samples; 0 if it does not matter.

    Scripts of fine-tuning start one loader per device. Benchmarks tune their loaders or leave loading out, so rows that
    do not say that they fine-tune a model have none here.
    """
    habits = vocabulary(Recipes)
    if not habits.tuned(row):
        return 0.0
    recipe = recipe_of(row)
    if recipe is not None and recipe.on_device and architecture in habits.decoders:
        return 0.0
    each = recipe.load_s if recipe is not None else 0.0
    return batch * (each or (habits.image_s if family in habits.images else 0.0))
