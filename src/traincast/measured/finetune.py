"""Measured fine-tuning runs: tables that ``validate finetune`` reads.

A row names the model, the method (full, LoRA, QLoRA or another adapter), the machine and the batch, and states the time
of a step, its memory, or both. Time and memory may depend on different lengths: time on the mean length of a batch,
memory on its longest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from traincast.graph import DType
from traincast.graph.optimizers import with_optimizer
from traincast.measured.finetune_graph import extra_tokens
from traincast.measured.finetune_habits import USUAL, Habits
from traincast.measured.finetune_words import MemoryKind, Tuning, memory_of, tuning_of
from traincast.measured.run import Measured, Reading, unstated
from traincast.measured.steps import read_row
from traincast.strategy import Request, Runtime, load_precision
from traincast.strategy.precision import Precision
from traincast.strategy.strategy import Offload
from traincast.tables import Row, RowError, figure, text, whole

NEEDS: Final = ("model", "method", "gpu", "n_gpus", "seq", "micro_batch")
"""Columns that a table of fine-tuning runs must have."""

Cache: TypeAlias = Literal["grown", "steady", "emptied"]
_SHORT: Final = 200
"""Number of steps up to which a run counts as short."""
_RESHARDS: Final = 2024
"""The year from which FSDP frees gathered parameters that are frozen."""
_SUFFIX: Final = re.compile(
    r"[-_ ](?:gptq|awq|bnb|[48]bit|hf|chat|instruct|base|it|v\d[\d.]*)(?=$|[-_ ])|^(?:gpt_bigcode-)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTuning:
    """One measured fine-tuning run.

    ``run`` has the request and the time of a step. ``longest`` is the request for the batch whose memory was measured;
    ``kind`` says how it was counted. ``cache`` says what the allocator's cache is like: it has ``grown`` because
    batches differ in length, it is ``steady``, or it is ``emptied`` between steps.
    """

    run: Measured
    longest: Request
    kind: MemoryKind
    cache: Cache
    tuning: Tuning


def group_of(row: Row) -> str:
    """Return what errors are grouped by: the source of the row."""
    return text(row, "source") or "unknown"


def read_tuning(index: int, row: Row, *, habits: Habits = USUAL) -> MeasuredTuning:
    """Read one row; it must state a time or a memory that can be judged."""
    assumed: list[str] = []
    tuning = habits.of(row, tuning_of(row))
    memory = memory_of(row, assumed)
    seconds = _seconds(row)
    if seconds is None and memory is None:
        raise RowError("neither a time nor a memory is stated")
    mean, high = _lengths(row, tuning, assumed, habits)
    longest_length = high if memory is not None and memory.high else whole(row, "seq") + extra_tokens(row, tuning)
    reading = _reading(row, tuning, mean, habits)
    longest = reading if longest_length == mean else _reading(row, tuning, longest_length, habits)
    assumed += reading.assumed
    return MeasuredTuning(
        run=Measured(
            index=index,
            source=text(row, "source"),
            request=reading.request,
            seconds=seconds,
            memory_bytes=memory.nbytes if memory else None,
            assumed=tuple(dict.fromkeys(assumed)),
        ),
        longest=longest.request,
        kind=memory.kind if memory else "allocated",
        cache="emptied" if memory is not None and memory.high else "grown" if _varied(row) else "steady",
        tuning=tuning,
    )


def start_up(row: Row, habits: Habits = USUAL) -> float:
    """Return the seconds that the start of a short run adds to the mean time of its steps; 0 if steps were timed."""
    steps, total, step = (figure(row, key) for key in ("num_steps", "train_time_s", "step_time_s"))
    if not steps or not total or not step or steps > _SHORT:
        return 0.0
    return habits.start_s / steps if abs(total / steps / step - 1.0) < 0.01 else 0.0


def _seconds(row: Row) -> float | None:
    """Return the time of one step, as stated or from samples per second; ``None`` if the row cannot be judged by it."""
    if text(row, "judge_time").lower() in ("false", "0"):
        return None
    seconds, rate = figure(row, "step_time_s"), figure(row, "samples_per_s")
    if seconds is None and rate:
        batch = figure(row, "global_batch")
        seconds = batch / rate if batch else None
    if seconds is not None and seconds <= 0.0:
        raise RowError(f"step_time_s is {seconds:g}: expected seconds above 0")
    return seconds


def _varied(row: Row) -> bool:
    """Return whether batches have different lengths: the sequence length is a cap, and sequences are not packed."""
    notes = text(row, "notes").lower()
    if "packed" in notes or "packing" in notes:
        return False
    return bool(figure(row, "avg_tokens_per_step")) or "max_length" in notes or "cap" in notes


def _lengths(row: Row, tuning: Tuning, assumed: list[str], habits: Habits) -> tuple[int, int]:
    """Return the length of a sequence that sets the time of a step, and the length of the longest batches."""
    cap, more = whole(row, "seq"), extra_tokens(row, tuning)
    tokens = figure(row, "avg_tokens_per_step")
    if not tokens:
        if _varied(row) and _seconds(row) is not None:
            assumed.append(unstated("tokens of a step", f"{cap} per sequence"))
        return cap + more, cap + more
    samples = figure(row, "global_batch") or whole(row, "micro_batch") * (figure(row, "grad_accum") or 1.0)
    each = tokens / samples
    if "packed" in text(row, "notes").lower():
        return round(each) + more, cap + more
    if "padding" in text(row, "notes").lower():
        each *= habits.padded
        assumed.append(f"padded tokens not stated: {habits.padded:g} times the counted ones")
    return max(1, min(cap, round(each))) + more, min(cap, round(tokens / samples * habits.long)) + more


def _reading(row: Row, tuning: Tuning, length: int, habits: Habits) -> Reading:
    reading = read_row(_plain(row, length), tuning=tuning)
    request, assumed = reading.request, list(reading.assumed)
    precision = _precision(row, tuning, request)
    runtime = _kept_twice(row, tuning, request, _habits(row, request.runtime))
    if habits.update_passes and runtime.update_passes > 1:
        runtime = replace(runtime, update_passes=habits.update_passes)
    name = _optimizer(row)
    if name:
        assumed = [said for said in assumed if not said.startswith("optimizer ")]
        runtime = replace(runtime, update_share=0.0, update_passes=1)  # one kernel updates everything in place
        request = replace(request, graph=with_optimizer(request.graph, name))
    request = replace(request, precision=precision, runtime=runtime)
    request = replace(request, strategy=replace(request.strategy, offload=_offload(row)))
    if tuning.method != "full" and request.strategy.zero == 3 and runtime.frees_gradients and _year(row) < _RESHARDS:
        assumed.append("frozen parameters stay gathered: FSDP of that year does not free them after backward")
        request = replace(request, strategy=replace(request.strategy, reshard=False))
    return Reading(request=request, assumed=tuple(assumed))


def _optimizer(row: Row) -> str:
    """Return the optimizer of a row if it keeps its states in bytes or in paged memory, or is SGD; else ""."""
    plain = re.sub(r"[^a-z0-9]", "", text(row, "optimizer").lower())
    byte, paged = "8bit" in plain, "paged" in plain
    if byte or paged:
        return ("paged-" if paged else "") + ("adamw8bit" if byte else "adamw")
    return "sgd" if "sgd" in plain else ""


def _offload(row: Row) -> tuple[Offload, ...]:
    """Return what a row keeps in the memory of its host; parameters are refused."""
    written = text(row, "offload").lower()
    if not written or written in ("no", "none", "false", "0"):
        return ()
    found: list[Offload] = []
    if "optim" in written:
        found.append("optimizer")
    if "activ" in written:
        found.append("activations")
    if not found:
        raise RowError(f"offload is {written[:40]!r}: only optimizer and activations are modelled")
    return tuple(found)


def _year(row: Row) -> int:
    found = re.match(r"\d{4}", text(row, "date"))
    return int(found[0]) if found else _RESHARDS


def _kept_twice(row: Row, tuning: Tuning, request: Request, runtime: Runtime) -> Runtime:
    """Return ``runtime``, with two copies of the inputs of recomputed layers where plain PyTorch keeps two.

    FSDP holds the inputs of modules whose parameters are frozen, beside those that recomputation keeps. PEFT's
    preparation of 4- and 8-bit models makes norms fp32, and with them the inputs of layers.
    """
    if tuning.method == "full" or not runtime.frees_gradients:
        return runtime
    prepared = tuning.quantize in ("nf4", "nf4-single", "int8") and "accelerated" not in text(row, "notes").lower()
    sharded = request.strategy.zero == 3 and request.strategy.dp > 1
    return replace(runtime, kept_inputs=2.0) if sharded or (prepared and runtime.name == "hf-trainer") else runtime


def _plain(row: Row, length: int) -> Mapping[str, Any]:
    """Return a row of fine-tuning as a row of training steps, with names and texts as these have them."""
    name = text(row, "model").rpartition("/")[2]
    while _SUFFIX.search(name):
        name = _SUFFIX.sub("", name)
    gpu = text(row, "gpu")
    zero = text(row, "zero").lower()
    plain = {**row, "model": name, "seq": length, "strategy": ""}
    plain["gpu"] = gpu
    plain["zero"] = 1 if "distributed optimizer" in zero else 3 if "fsdp" in zero else row.get("zero")
    plain["precision"] = re.sub(r"\(.*?\)", "", text(row, "precision")).strip()
    plain["recompute"] = "" if text(row, "recompute").lower() == "unknown" else row.get("recompute")
    plain["framework"] = _framework(row)
    found = re.search(r"virtual pipeline (\d+)", text(row, "notes"))
    if found:
        plain["vp"] = int(found[1])
    if not figure(row, "global_batch"):
        plain["global_batch"] = whole(row, "dp", 1) * whole(row, "micro_batch") * whole(row, "grad_accum", 1)
    return plain


def _framework(row: Row) -> str:
    """Return the framework of a row; NVIDIA's containers with tensor or context groups run Megatron-Core."""
    written = text(row, "framework")
    spread = any((figure(row, axis) or 1) > 1 for axis in ("tp", "pp", "cp"))
    return "NeMo" if spread and re.search(r"nvidia|\bngc\b", written.lower()) else written


def _precision(row: Row, tuning: Tuning, request: Request) -> Precision:
    """Return the dtypes of a run.

    Plain PyTorch trains all weights of a 16-bit model in 16 bits, states included; FSDP with automatic mixed precision
    trains fp32 copies of them. Adapters are fp32 beside 16-bit weights.
    """
    found, runtime = request.precision, request.runtime
    if not runtime.frees_gradients or found.activations is DType.FP32 or found.linear is not found.products:
        return found
    half = load_precision("fp16" if found.activations is DType.FP16 else "bf16")
    if tuning.method != "full":
        return half
    mixed = re.search(r"autocast|amp|mixed", text(row, "precision").lower()) is not None
    if mixed and request.strategy.zero == 3 and request.strategy.dp > 1:
        return load_precision("amp" if found.activations is DType.FP16 else "amp-bf16")
    return replace(half, name=f"{half.name} (pure)", gradients=half.weights, master=None, states=half.weights)


def _habits(row: Row, runtime: Runtime) -> Runtime:
    """Return ``runtime`` with what a row says of fused kernels, chunked losses and attention."""
    notes = " ".join(text(row, key) for key in ("notes", "framework", "attention")).lower()
    if not runtime.written_out:
        return runtime
    if re.search(r"liger|foak|fast-kernels|fused cross|unsloth|chunked", notes):
        runtime = replace(runtime, logits_copies=0.0, fusions=("loss",), written_out=False)
    if "eager" in text(row, "attention").lower():
        runtime = replace(runtime, attention="eager")
    return runtime
