"""Rows of fine-tuning runs as tables of many sources state them, brought to the spellings that readers know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from traincast.errors import UnknownNameError
from traincast.graph.zoo.known_models import known_model
from traincast.measured.models import zoo_name
from traincast.measured.run import unstated
from traincast.strategy import find_runtime
from traincast.tables import Row, figure, text, whole

_SUFFIX: Final = re.compile(
    r"[-_ ](?:gptq|awq|bnb|int[48]|nf4|[48]-?bit|hf|chat|instruct|base|it|v0\.\d[\d.]*|v\d[\d.]*)(?=$|[-_ ])"
    r"|^(?:gpt_bigcode-|meta-(?=llama))",
    re.IGNORECASE,
)
_SIZES: Final = re.compile(r"(?<=\d) (?=b\b)", re.IGNORECASE)
_ZERO: Final = (
    (r"distributed optimizer", 1),
    (r"shard_grad_op|zero\D{0,3}2|stage\D{0,3}2", 2),
    (r"fsdp|full_shard|gemini|zero\D{0,3}3|stage\D{0,3}3", 3),
    (r"zero\D{0,3}1|stage\D{0,3}1", 1),
    (r"zero\D{0,3}0|stage\D{0,3}0|^(?:no|none|false|off|ddp|-|n/a)$", 0),
)
_OFF: Final = re.compile(r"^(?:no|none|false|off|0|0\.0|disabled|without.*|w/o.*|not .*|-|n/a)$")
_ON: Final = re.compile(r"checkpoint|unsloth|reentrant|recompute|recomputation|enabled|every layer|^gc$|^ac$|w/|^with")
_QUANTISED: Final = re.compile(r"nf4|int4|int8|fp4(?!_)|(?<![a-z0-9])[48][-_ ]?bit")
_USUAL_SEQ: Final = 2048
_ADAPTS_ALL: Final = re.compile(r"unsloth|llama[-_ ]?factory|^qlora")
"""Programs that adapt all linear layers by default."""


def completed(row: Row, assumed: list[str]) -> Mapping[str, Any]:
    """Return a row with usual figures for its length, batch and devices where it states none."""
    found = dict(row)
    if not figure(row, "n_gpus"):
        found["n_gpus"] = int(figure(row, "dp") or 1)
        assumed.append(unstated("number of GPUs", found["n_gpus"]))
    if not figure(row, "seq"):
        found["seq"] = _USUAL_SEQ
        assumed.append(unstated("sequence length", _USUAL_SEQ))
    if not figure(row, "micro_batch"):
        each = replicas(found) * whole(row, "grad_accum", 1)
        found["micro_batch"] = max(1, int((figure(row, "global_batch") or each) // each))
        assumed.append(unstated("batch of a GPU", found["micro_batch"]))
    adapts = re.search(r"lora|dora", text(row, "method").lower()) is not None
    if adapts and not text(row, "lora_targets") and _ADAPTS_ALL.search(text(row, "framework").lower()):
        found["lora_targets"] = "all-linear"
        assumed.append(unstated("adapted layers", "all linear layers, the default of this program"))
    return found


def as_steps(row: Row, length: int, assumed: list[str]) -> Mapping[str, Any]:
    """Return a row of fine-tuning as a row of training steps, with names and texts as these have them."""
    plain = {**row, "model": model_name(row), "seq": length, "strategy": ""}
    plain["zero"] = _zero(row)
    plain["precision"] = _precision(row)
    plain["recompute"] = _recompute(row)
    plain["framework"] = _framework(row, assumed)
    found = re.search(r"virtual pipeline (\d+)", text(row, "notes"))
    if found:
        plain["vp"] = int(found[1])
    if not figure(row, "global_batch"):
        plain["global_batch"] = replicas(row) * whole(row, "micro_batch") * whole(row, "grad_accum", 1)
    return plain


def replicas(row: Row) -> int:
    """Return how many groups of devices train on samples of their own: as stated, or all that the other axes leave."""
    sharers = whole(row, "tp", 1) * whole(row, "pp", 1) * whole(row, "cp", 1)
    return whole(row, "dp", max(1, whole(row, "n_gpus", 1) // sharers))


def model_name(row: Row) -> str:
    """Return the model of a row: a spec if its dimensions are not stated but known, else its name without endings."""
    names = [_SIZES.sub("", text(row, "model").rpartition("/")[2])]
    while _SUFFIX.search(names[-1]):
        names.append(_SUFFIX.sub("", names[-1], count=1))
    if all(figure(row, key) for key in ("n_layers", "hidden", "heads")):
        return names[-1]
    return next(filter(None, (find(name) for find in (known_model, zoo_name) for name in names)), names[-1])


def recomputes_to_host(row: Row) -> bool:
    """Return whether a run keeps the inputs of recomputed layers on the host, as Unsloth's checkpoints do."""
    return "unsloth" in text(row, "recompute").lower()


def _zero(row: Row) -> Any:
    written = text(row, "zero").lower()
    return next((stage for pattern, stage in _ZERO if re.search(pattern, written)), row.get("zero"))


def _precision(row: Row) -> str:
    """Return the precision of a row; formats of stored weights in this column say nothing of the step's."""
    written = re.sub(r"\(.*?\)", "", text(row, "precision")).strip()
    if not _QUANTISED.search(written.lower()):
        return written
    found = re.search(r"bf16|bfloat16|fp16|float16|fp32", written.lower())
    return found[0] if found else ""


def _recompute(row: Row) -> Any:
    written = text(row, "recompute").strip().lower()
    if written in ("unknown", "nan"):
        return ""
    if _OFF.match(written):
        return "none"
    return "full" if _ON.search(written) and "selective" not in written else row.get("recompute")


def _framework(row: Row, assumed: list[str]) -> str:
    """Return the framework of a row; NVIDIA's containers with tensor or context groups run Megatron-Core.

    Others that are not known train plain modules of Hugging Face, as most programs for fine-tuning do.
    """
    written = text(row, "framework")
    spread = any((figure(row, axis) or 1) > 1 for axis in ("tp", "pp", "cp"))
    if spread and re.search(r"nvidia|\bngc\b", written.lower()):
        if "nemo" not in written.lower():
            assumed.append(f"framework {written!r} is a container, whose program with tp, pp or cp is: NeMo")
        return "NeMo"
    if spread:
        return written
    try:
        find_runtime(written)
    except UnknownNameError:
        said = f"framework {written!r} not known: hf-trainer" if written else unstated("framework", "hf-trainer")
        assumed.append(said)
        return "HF Trainer"
    return written
