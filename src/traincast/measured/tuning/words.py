"""What a row says of its fine-tuning: the method, the adapted layers and the storage of frozen weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from traincast.measured.dialect import Meanings, Pattern, meaning, vocabulary
from traincast.strategy.program.losses import LossName
from traincast.tables import Row, RowError, figure, number, text

_COLUMNS: Final = ("method", "model", "notes", "strategy", "framework", "task", "lora_rank", "lora_targets")
"""Columns in which a row of training steps may say that it trains adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What a method runs for each adapted layer, and what it keeps for backward.

    ``base`` is ``lora`` (an adapter at each target), ``scale`` (a lighter one: results are scaled, nothing is cast to
    fp32), ``norms`` (norm weights are trained), ``layers`` (the last layers are trained) or ``prompt`` (the input is
    lengthened, nothing beside the layers).
    ``products``: products of the input with a weight made on the fly. ``weight``, ``tokens``: passes over tensors of
    the size of the weight and of the result. ``small``: kernels on tensors too small to count. ``kept_weights``,
    ``kept_tokens``: tensors of these sizes that wait for backward. ``says`` explains the figures.
    """

    says: str
    base: Literal["lora", "scale", "norms", "layers", "prompt"] = "lora"
    products: int = 0
    weight: int = 0
    tokens: int = 0
    small: int = 0
    kept_weights: int = 0
    kept_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedMethod:
    """One of ``methods`` that runs as ``method`` if the notes of a row match."""

    notes: Pattern
    methods: tuple[str, ...]
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedOptimizer:
    """An optimizer, the one that it is ``counted`` as, and what this ``says``; with 8-bit states, as another one."""

    pattern: Pattern
    counted: str
    says: str = ""
    byte_counted: str = ""
    byte_says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunings:
    """How rows spell fine-tuning and what its programs do; comments in ``tunings.toml`` explain each entry."""

    adapters: Pattern
    no_adapters: Pattern
    full: tuple[str, ...]
    spellings: Meanings[str]
    noted_methods: tuple[NotedMethod, ...]
    methods: dict[str, Method]
    targets: dict[str, tuple[str, ...]]
    bits: Pattern
    four_bits: Pattern
    gptq: Pattern
    quantised: Pattern
    unquantised: Pattern
    keeps_inputs: Pattern
    usual_rank: int
    usual_targets: tuple[str, ...]
    joint_runtimes: str
    joint_targets: tuple[str, ...]
    adapts_all: Pattern
    prompt: int
    prompt_tokens: Pattern
    dropout: float
    last_layers: int
    frozen_part: str
    trained_embeddings: str
    embedding_parts: tuple[str, ...]
    wide_adapters: str
    narrow_adapters: tuple[str, str]
    converts_all: Pattern
    no_wide_adapters: Pattern
    endings: Pattern
    sizes: Pattern
    zero: Meanings[int]
    no_recompute: Pattern
    recompute: Pattern
    recompute_to_host: Pattern
    virtual_stages: Pattern
    containers: Pattern
    container_as: str
    plain_as: str
    plain_runtime: str
    sharders: tuple[str, ...]
    unprepared: Pattern
    upcasts: Pattern
    keeps_copies: Pattern
    fused_kernels: str
    fused_adapters: str
    losses: dict[LossName, str]
    in_backward: str
    compiled: str
    compiled_as: str
    reshards_since: int
    keeps_once: tuple[str, ...]
    low_rank: Pattern
    low_rank_methods: Pattern
    wide_rank: float
    optimizers: tuple[CountedOptimizer, ...]
    other_figure: Pattern
    prefer_other: Pattern
    high_figure: Pattern
    memory_kinds: Meanings[Literal["allocated", "reserved", "nvidia-smi"]]
    spread: float
    high_share: float
    stated_lengths: Pattern
    capped: Pattern
    usual_seq: int
    short_run: int
    padded: float
    start_s: float


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
    if number(row, "lora_rank"):
        return True
    said = " ; ".join(text(row, key) for key in _COLUMNS).lower()
    words = vocabulary(Tunings)
    return words.adapters.search(words.no_adapters.sub("", said)) is not None


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
    words = vocabulary(Tunings)
    if written in words.full:
        return "full"
    return written if written in words.methods else meaning(words.spellings, written) or written


def _storage(row: Row, method: str) -> str:
    """Return the format of quantised weights that a row states; "" if none."""
    bits, words = figure(row, "quant_bits"), vocabulary(Tunings)
    said = " ".join(text(row, key) for key in ("notes", "model", "precision", "framework")).lower()
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
    if words.gptq.search(said):
        return "gptq"
    return "nf4-single" if re.search(r"nf4(?!-dq)\b", said) and "nf4-dq" not in said else "nf4"


def _targets(written: str) -> tuple[str, ...]:
    """Return the words of fine-tuning in a list of module names such as ``q_proj+v_proj``."""
    if not written or written.lower() == "default":
        return ()
    plain = re.sub(r"\(.*?\)", lambda m: m[0] if written.lower().startswith("default") else "", written)
    names = [n.strip().lower() for n in re.split(r"[+,/;()]|\bdefault\b|:", plain) if n.strip()]
    known = {name: word for word, modules in vocabulary(Tunings).targets.items() for name in modules}
    return tuple(dict.fromkeys(known.get(name.rpartition(".")[2], name) for name in names))
