"""How rows of fine-tuning runs spell methods, targets, quantisation and kinds of memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, TypeAlias

from traincast.measured.run import unstated
from traincast.measured.tuned import METHODS
from traincast.strategy import find_runtime
from traincast.tables import Row, RowError, figure, number, text
from traincast.units import GB, GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How fine-tuning runs behave where a row does not say.

    ``padded``: tokens computed per token counted, if batches of similar lengths are padded to their longest sequence.
    ``start_s``: seconds that the first step takes longer than others, if the time of a step is that of a short run.
    ``update_passes``: how often an update that is not fused reads and writes its tensors;
    0 leaves it to the runtime. ``targets``: layers that Megatron's recipes adapt by default; none leaves it to the
    reader. With ``methods``, the extra kernels of adapter methods other than LoRA are counted.
    """

    padded: float = 1.08
    start_s: float = 2.0
    update_passes: int = 0
    targets: tuple[str, ...] = ()
    methods: bool = True

    def of(self, row: Row, tuning: Tuning) -> Tuning:
        """Return what a row says of its fine-tuning, with the targets and methods of these habits."""
        if self.targets and not tuning.targets and tuning.method != "full" and _megatron(row):
            tuning = replace(tuning, targets=self.targets)
        if not self.methods and tuning.method not in ("full", "lora"):
            tuning = replace(tuning, method="lora", targets=(), rank=0 if tuning.trainable else tuning.rank)
        return tuning


USUAL: Final = Habits()
"""The habits of forecasts."""
NEUTRAL: Final = Habits(padded=1.0, start_s=0.0, update_passes=1, targets=("q", "v"), methods=False)
"""What one would take who has seen no run.

Nothing is padded or slower at first, and all adapters are LoRA.
"""
NAMES: Final = tuple(field.name for field in fields(Habits))


def _megatron(row: Row) -> bool:
    return find_runtime(text(row, "framework")).name.startswith("megatron") if text(row, "framework") else False


MemoryKind: TypeAlias = Literal["allocated", "reserved", "nvidia-smi"]

_ADAPTER_WORDS: Final = re.compile(r"(?<![a-z])(q?lora|dora|adapters?|peft)(?![a-z])")
_COLUMNS: Final = ("method", "model", "notes", "strategy", "framework", "task", "lora_rank", "lora_targets")
"""Columns in which a row of training steps may say that it trains adapters."""
_DENIED: Final = re.compile(
    r"lora (?:rank|targets)[^;]*not in table|\bno (?:q?lora|adapters?|peft)\b|without (?:q?lora|adapters?)"
)
_FULL: Final = frozenset({"", "full", "sft", "full-finetuning", "finetune", "fine-tuning", "none"})
_METHODS: Final = (
    (r"galore|lomo|badam|full|^sft|all_param|continued?_pre|^pre-?train", "full"),
    (r"\(?ia\)?[_^]*3", "ia3"),
    (r"dora", "dora"),
    (r"prefix", "prefix_tuning"),
    (r"p[-_]?tuning", "p_tuning"),
    (r"prompt", "prompt_tuning"),
    (r"llama[-_]adapter|adapter[-_]?v\d|^adapter$|adaption", "adaption_prompt"),
    (r"ln[-_]?tuning|layer_?norm", "ln_tuning"),
    (r"bit-?fit", "bitfit"),
    (r"freeze|frozen|last_\d*_?layers", "freeze"),
    (r"lora", "lora"),
)
"""How methods are spelt that are not in the table of methods, in the order in which spellings count."""
_LAST: Final[dict[str, str]] = {
    **dict.fromkeys(("q", "q_proj", "query", "wq", "linear_q"), "q"),
    **dict.fromkeys(("k", "k_proj", "key", "wk", "linear_k"), "k"),
    **dict.fromkeys(("v", "v_proj", "value", "wv", "linear_v"), "v"),
    **dict.fromkeys(("o", "o_proj", "out_proj", "wo", "linear_proj", "proj", "dense"), "o"),
    **dict.fromkeys(("qkv", "c_attn", "query_key_value", "w_pack", "linear_qkv", "attention_qkv", "wqkv"), "qkv"),
    **dict.fromkeys(("gate", "gate_proj", "w1"), "gate"),
    **dict.fromkeys(("up", "up_proj", "w3", "linear_fc1", "fc1"), "up"),
    **dict.fromkeys(("down", "down_proj", "w2", "linear_fc2", "fc2"), "down"),
    **dict.fromkeys(("attention", "attn", "self_attn"), "attention"),
    **dict.fromkeys(("mlp", "ffn"), "mlp"),
    **dict.fromkeys(("all", "all-linear", "all linear", "all_linear"), "all"),
}
"""Words of fine-tuning by the names that modules have."""
_UNITS: Final = {"gib": GIB, "gb": GB, "mib": GIB / 1024, "mb": 1e6, "b": 1.0, "byte": 1.0, "bytes": 1.0}


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
    return _ADAPTER_WORDS.search(_DENIED.sub("", said)) is not None


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
    if written in _FULL:
        return "full"
    if written in METHODS:
        return written
    return next((name for pattern, name in _METHODS if re.search(pattern, written)), written)


def _storage(row: Row, method: str) -> str:
    """Return the format of quantised weights that a row states; "" if none."""
    bits = figure(row, "quant_bits")
    said = " ".join(text(row, key) for key in ("notes", "model", "precision", "framework")).lower()
    if not bits:
        stored = " ".join((method, text(row, "model").lower(), text(row, "precision").lower()))
        found = re.search(r"lora[-_]?(4|8)(?![\d])|(?:int|nf)(4|8)|(?<![a-z0-9])(4|8)[-_ ]?bit", stored)
        if found is None and not re.search(r"q[-_]?(?:lora|dora)|gptq|awq", stored):
            return ""
        bits = float(found[1] or found[2] or found[3]) if found else 4.0
    if bits in (16, 32):
        return ""
    if bits not in (4, 8):
        raise RowError(f"quant_bits is {bits:g}: expected 4 or 8")
    if bits == 8:
        return "int8"
    if "gptq" in said or "awq" in said:
        return "gptq"
    return "nf4-single" if re.search(r"nf4(?!-dq)\b", said) and "nf4-dq" not in said else "nf4"


def _targets(written: str) -> tuple[str, ...]:
    """Return the words of fine-tuning in a list of module names such as ``q_proj+v_proj``."""
    if not written or written.lower() == "default":
        return ()
    plain = re.sub(r"\(.*?\)", lambda m: m[0] if written.lower().startswith("default") else "", written)
    names = [n.strip().lower() for n in re.split(r"[+,/;()]|\bdefault\b|:", plain) if n.strip()]
    return tuple(dict.fromkeys(_LAST.get(name.rpartition(".")[2], name) for name in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigure:
    """The memory that a row states, in bytes, and how it was counted.

    ``high`` says that it is a high percentile over training steps, not the maximum.
    """

    nbytes: float
    kind: MemoryKind
    high: bool = False


def memory_of(row: Row, assumed: list[str]) -> MemoryFigure | None:
    """Return the memory that a row states for training; ``None`` if it states none.

    A maximum that covers evaluation as well is replaced by the figure in ``mem_other_gb``.
    """
    if text(row, "judge_memory").lower() in ("false", "0"):
        return None
    other, other_kind = number(row, "mem_other_gb"), text(row, "mem_other_kind").lower()
    if other and ("train step" in other_kind or "prefer mem_other" in text(row, "notes").lower()):
        return MemoryFigure(nbytes=other * _unit(row), kind=_kind(other_kind), high="pct" in other_kind)
    amount = number(row, "mem_gb")
    if not amount or amount <= 0.0:
        return None
    if not text(row, "mem_kind"):
        assumed.append(unstated("kind of memory", "allocated"))
    return MemoryFigure(nbytes=amount * _unit(row), kind=_kind(text(row, "mem_kind").lower()))


def _unit(row: Row) -> float:
    written = text(row, "mem_unit").lower() or "gib"
    found = _UNITS.get(re.sub(r"[^a-z].*$", "", written))
    if found is None:
        raise RowError(f"mem_unit is {written[:40]!r}: expected one of {', '.join(_UNITS)}")
    return found


def _kind(written: str) -> MemoryKind:
    if "smi" in written or "nvml" in written or "device" in written or "process" in written:
        return "nvidia-smi"
    return "reserved" if "reserved" in written else "allocated"
