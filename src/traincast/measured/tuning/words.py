"""What a row says of its fine-tuning: the method, the adapted layers and the storage of frozen weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from traincast.measured.dialect import Meanings, Pattern, Said, meaning, vocabulary
from traincast.tables import Row, RowError, figure, number, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What a method runs for each adapted layer, and what it keeps for backward.

    ``base`` is ``lora`` (an adapter at each target), ``scale`` (a lighter one: results are scaled, nothing is cast to
    fp32), ``norms`` (norm weights are trained), ``layers`` (the last layers are trained) or ``prompt`` (the input is
    lengthened, nothing beside the layers).
    ``products``: products of the input with a weight made on the fly. ``weight``, ``tokens``: passes over tensors of
    the size of the weight and of the result. ``small``: kernels on tensors too small to count. ``kept_weights``,
    ``kept_tokens``: tensors of these sizes that wait for backward. ``trains_weights``: weights of the model itself are
    trained, in their own dtype. ``lengthens``: tokens stand in front of each sequence, as many as the row states or, by
    its parameters, as embeddings have as many as are trained. ``says`` explains the figures.
    """

    says: str
    base: Literal["lora", "scale", "norms", "layers", "prompt"] = "lora"
    products: int = 0
    weight: int = 0
    tokens: int = 0
    small: int = 0
    kept_weights: int = 0
    kept_tokens: int = 0
    trains_weights: bool = False
    lengthens: Literal["", "as stated", "by its parameters"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedMethod:
    """One of ``methods`` that runs as ``method`` if this is ``said``."""

    said: Said
    methods: tuple[str, ...]
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """How rows spell methods of fine-tuning, and what each runs; comments in ``tunings.toml`` explain each entry."""

    adapters: Said
    full: tuple[str, ...]
    spellings: Meanings[str]
    noted: tuple[NotedMethod, ...]
    prompt_tokens: Said
    prompt: int
    last_layers: int
    known: dict[str, Method]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """How rows spell formats of frozen weights; comments in ``tunings.toml`` explain each entry."""

    bits: Pattern
    four_bits: Pattern
    gptq: Said
    single: Said
    quantised: Pattern
    unquantised: Pattern
    prepared: tuple[str, ...]
    unprepared: Said
    keeps_inputs: Said
    keeps_inputs_as: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterHabit:
    """How programs whose ``runtime`` matches adapt layers.

    They adapt ``targets`` if a row names none. With ``joint``, q, k and v are one layer with one adapter. Inputs of
    adapters are dropped with the probability ``dropout``. With ``wide``, adapters are computed in fp32.
    """

    runtime: Pattern
    targets: tuple[str, ...] = ("q", "v")
    joint: bool = False
    dropout: float = 0.0
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Which layers are adapted where a row does not say; comments in ``tunings.toml`` explain each entry."""

    rank: int
    frozen_part: str
    adapts: Said
    adapts_all: Said
    narrow: Said
    fused: Said
    embeddings: Said
    embedding_parts: tuple[str, ...]
    narrow_dates: tuple[str, str]
    converts_all: Said
    joined: dict[str, tuple[str, ...]]
    habits: tuple[AdapterHabit, ...]
    modules: dict[str, tuple[str, ...]]

    def habit_of(self, runtime: str) -> AdapterHabit:
        """Return the first habit of a runtime; the usual one if it has none."""
        found = next((habit for habit in self.habits if habit.runtime.fullmatch(runtime)), None)
        return found or AdapterHabit(runtime=re.compile(runtime))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a row says of its fine-tuning.

    ``method`` is "full" or the name of an adapter method. ``targets`` are words or module paths; "" words were not
    stated. ``rank`` is 0 and ``trainable`` is 0 if not stated. ``quantize`` is a storage format of the frozen weights,
    or "".
    """

    method: str
    rank: int = 0
    targets: tuple[str, ...] = ()
    trainable: float = 0.0
    quantize: str = ""


def trains_adapters(row: Row) -> bool:
    """Return whether any column of a row says that the run trains adapters beside frozen weights."""
    return bool(number(row, "lora_rank")) or vocabulary(Methods).adapters(row)


def tuning_of(row: Row, *, method: str = "") -> Tuning:
    """Return what a row says of its fine-tuning; ``method`` stands in for a column that it lacks."""
    written = (text(row, "method") or method).lower().strip().replace(" ", "_")
    name = _method(written)
    storage = "" if name == "full" else _storage(row, written)
    return Tuning(
        method=name,
        rank=round(figure(row, "lora_rank") or 0),
        targets=_targets(text(row, "lora_targets")),
        trainable=figure(row, "trainable_params") or 0.0,
        quantize=storage,
    )


def _method(written: str) -> str:
    """Return "full" or the name of an adapter method, as PEFT spells it where it has the method."""
    words = vocabulary(Methods)
    if written in words.full:
        return "full"
    return written if written in words.known else meaning(words.spellings, written) or written


def _storage(row: Row, method: str) -> str:
    """Return the format of quantised weights that a row states; "" if none."""
    bits, words = figure(row, "quant_bits"), vocabulary(Quantized)
    if not bits:
        stored = " ".join((method, text(row, "model").lower(), text(row, "precision").lower()))
        found = words.bits.search(stored)
        if found is None and not words.four_bits.search(stored):
            return ""
        bits = float(found[1] or found[2] or found[3]) if found else 4.0
    if bits in (16, 32):
        return ""
    if bits not in (4, 8):
        raise RowError(f"quant_bits is {bits:g}: expected 4 or 8")
    if bits == 8:
        return "int8"
    return "gptq" if words.gptq(row) else "nf4-single" if words.single(row) else "nf4"


def _targets(written: str) -> tuple[str, ...]:
    """Return the words of fine-tuning in a list of module names such as ``q_proj+v_proj``."""
    if not written or written.lower() == "default":
        return ()
    plain = re.sub(r"\(.*?\)", lambda m: m[0] if written.lower().startswith("default") else "", written)
    names = [n.strip().lower() for n in re.split(r"[+,/;()]|\bdefault\b|:", plain) if n.strip()]
    known = {name: word for word, modules in vocabulary(Adapters).modules.items() for name in modules}
    return tuple(dict.fromkeys(known.get(name.rpartition(".")[2], name) for name in names))
