"""The network that a row of data-parallel steps trained, from its name, its task and the size of its inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from traincast.graph import Operator, OperatorGraph, Phase, TensorSpec, zoo
from traincast.measured.dialect import Meanings, Pattern, Said, meaning, vocabulary
from traincast.measured.models.language import model, zoo_name
from traincast.measured.programs import Strategies
from traincast.measured.recipes import recipe_of, speech_of
from traincast.measured.run import contradiction, unstated
from traincast.tables import Row, RowError, figure, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Dimensions that models of a ``family`` have if this is ``said``."""

    family: str
    said: Said
    set: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """What tables call networks and what scripts train them on; comments in ``networks.toml`` explain each entry.

    ``same``, ``variants``, ``similar`` and ``unsized`` have names without punctuation as keys. A variant is ``like`` a
    model of the zoo, with other dimensions.
    """

    same: dict[str, str]
    variants: dict[str, dict[str, int | str]]
    similar: dict[str, str]
    unsized: dict[str, str]
    words: Pattern
    details: Pattern
    tasks: Meanings[str]
    by_task: dict[str, dict[str, str]]
    classified: Said
    second_phase: Said
    second_length: int
    masked: dict[str, int]
    masked_share: float
    most_positions: dict[str, int]
    position_step: int
    with_masks: tuple[str, ...]
    with_task: tuple[str, ...]
    split_tables: tuple[str, ...]
    with_answers: tuple[str, ...]
    patches: tuple[str, ...]
    variations: tuple[Variation, ...]
    sides: tuple[str, ...]
    no_sequence: tuple[str, ...]
    binned_length: dict[str, int]
    binned_since: dict[str, float]


_SIZE_POINT: Final = re.compile(r"(?<=\d)[._](?=\d+gf)")
"""The decimal point of a RegNet's size, without which 3.2 GF would be 32 GF."""


class Named(NamedTuple):
    """A model of the zoo, the dimensions in which a table's model differs from it, and what was assumed."""

    name: str
    differs: Mapping[str, int | str] = {}
    assumed: str = ""


def plain_name(written: str) -> str:
    """Return a model's name without punctuation, remarks in brackets and words of a task."""
    return re.sub(r"[^a-z0-9]", "", _SIZE_POINT.sub("point", vocabulary(Networks).words.sub("", written.lower())))


def named_network(written: str) -> Named | None:
    """Return the model of the zoo that a table names; ``None`` if there is none.

    >>> named_network("DeiT-Small").differs
    {'hidden': 384, 'heads': 6}
    """
    known = vocabulary(Networks)
    bare = known.details.sub("", known.words.sub("", written.lower()))
    for plain in dict.fromkeys((plain_name(written), plain_name(bare))):
        if plain in known.variants:
            differs = dict(known.variants[plain])
            return Named(str(differs.pop("like")), differs)
        if plain in known.same:
            return Named(known.same[plain])
        if plain in known.similar:
            name = known.similar[plain]
            return Named(name, assumed=f"model {written!r} is not in the zoo: {name}")
        if plain in known.unsized:
            name = known.unsized[plain]
            return Named(name, assumed=f"size of model {written!r} not stated: {name}")
    found = zoo_name(written) or zoo_name(bare)
    return None if found is None else Named(found)


_LOGITS: Final = "head.logits"
_CLASSES: Final = 2


def classifier_of(row: Row, graph: OperatorGraph) -> OperatorGraph:
    """Return ``graph`` with a head of two classes if the row's dataset has classes and the model's head is its own.

    A decoder whose head shares the embedding's weights stays as it is, and so does a model without such a head.
    """
    head = [op for op in graph.operators if op.scope == _LOGITS and op.phase is Phase.OPTIMIZER]
    if not head or not vocabulary(Networks).classified(row):
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


def network_of(row: Row, assumed: list[str]) -> OperatorGraph:
    """Return the graph of a row's model; ``assumed`` gets a sentence for each thing that is not stated."""
    written, words = text(row, "model"), vocabulary(Networks)
    found = named_network(written)
    if found is None:
        raise RowError(f"model {written!r} is not in the zoo")
    name = found.name
    if found.assumed:
        assumed.append(found.assumed)
    task = _task(row)
    name = words.by_task.get(name, {}).get(task, name)
    card = zoo.card(name)
    seq = _length(row, card, assumed) if "seq" in card.parameters and card.family not in words.no_sequence else None
    changes = {**found.differs, **_changes(row, card, task, seq, assumed)}
    graph = classifier_of(row, model(_changed(card, changes) if changes else name, seq))
    _say_input(row, replace(card, parameters={**card.parameters, **changes}), graph, assumed)
    return graph


def _task(row: Row) -> str:
    """Return what an encoder learns in a row: masked tokens, spans or classes; "" if the row does not say."""
    said = " ".join(text(row, key) for key in ("task", "notes", "model")).lower()
    return meaning(vocabulary(Networks).tasks, said) or ""


def _changes(row: Row, card: zoo.ModelCard, task: str, seq: int | None, assumed: list[str]) -> dict[str, int | str]:
    """Return the dimensions in which a row's model differs from the model of the zoo."""
    words = vocabulary(Networks)
    changes: dict[str, int | str] = {}
    if card.family in words.with_masks:
        if not task and not text(row, "task"):
            assumed.append(unstated("task", "pre-training"))
        if seq:
            tuned = task in ("spans", "classes")
            changes["predictions"] = 1 if tuned else words.masked.get(str(seq), round(words.masked_share * seq))
    if card.family in words.with_task:
        if not task:
            assumed.append(unstated("task", card.parameters["task"]))
        elif task != card.parameters["task"]:
            changes["task"] = task
    changes |= _by_recipe(row, card)
    for variation in words.variations:
        if variation.family == card.family and variation.said(row):
            changes |= {key: value for key, value in variation.set.items() if card.parameters.get(key) != value}
    if vocabulary(Strategies).split_tables(row) and card.family not in words.split_tables:
        raise RowError(f"parallelism is {text(row, 'parallelism')[:40]!r}: expected data parallelism only")
    side = _side(row)
    changes |= {key: side for key in words.sides if side and card.parameters.get(key, side) != side}
    return changes


def _say_input(row: Row, card: zoo.ModelCard, graph: OperatorGraph, assumed: list[str]) -> None:
    """Add a sentence to ``assumed`` for each size of input that a row does not state, or that cannot be read."""
    if graph.tokens_per_sample and card.family not in vocabulary(Networks).patches and not figure(row, "seq_len"):
        assumed.append(unstated("sequence length", graph.tokens_per_sample))
    written, sides = text(row, "input_resolution").lower(), vocabulary(Networks).sides
    for key in (*sides, "size", "frames", "samples"):
        usual = card.parameters.get(key)
        if usual is None or (key == "size" and "x" not in str(usual)):
            continue
        if not written:
            assumed.append(unstated("size of inputs", usual))
        elif (_side(row) is None) if key in sides else not written.startswith(str(usual)):
            assumed.append(f"size of inputs {written!r} cannot be read: {usual}")


def _by_recipe(row: Row, card: zoo.ModelCard) -> dict[str, int | str]:
    """Return the lengths of answers and of sounds that the script of a row's dataset, or its checkpoint, sets."""
    recipe, speech = recipe_of(row), speech_of(card.family)
    found: dict[str, int | str] = {}
    if recipe is not None and recipe.target and card.family in vocabulary(Networks).with_answers:
        found["target_seq"] = recipe.target
    if speech is not None and not text(row, "input_resolution"):
        found["frames"] = speech.frames
    if recipe is not None and recipe.seconds and "samples" in card.parameters:
        found["samples"] = recipe.sound_samples
    return found


def _length(row: Row, card: zoo.ModelCard, assumed: list[str]) -> int | None:
    """Return the tokens of a sequence after padding: pre-training may group sequences by length.

    A length that is not stated is the one that the script of the row's dataset cuts or pads to.
    """
    seq, words = figure(row, "seq_len"), vocabulary(Networks)
    speech = speech_of(card.family)
    if not seq and speech is not None:
        return speech.symbols
    recipe = recipe_of(row)
    if not seq and recipe is not None and recipe.tokens:
        usual = words.most_positions.get(card.family, recipe.tokens)
        most = int(card.parameters.get("max_positions", 0)) or usual
        return min(recipe.tokens, most - most % words.position_step)
    if seq and seq < words.second_length and words.second_phase(row):
        said = f"{words.second_length}, the length of the second phase of pre-training, not {seq:g}"
        assumed.append(contradiction("seq_len", "the name of the model", said))
        return words.second_length
    since = words.binned_since.get(text(row, "framework").lower())
    released = figure(row, "container")
    if seq and since and released and released >= since and "pre-training" in text(row, "task").lower():
        binned = words.binned_length.get(str(int(seq)), int(seq))
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
