"""Measured fine-tuning runs: tables that ``validate finetune`` reads.

A row names the model, the method (full, LoRA, QLoRA or another adapter), the machine and the batch, and states the time
of a step, its memory, or both. Time and memory may depend on different lengths: time on the mean length of a batch,
memory on its longest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from traincast.graph import DType
from traincast.measured.finetune_graph import extra_tokens
from traincast.measured.finetune_habits import USUAL, Habits
from traincast.measured.finetune_lengths import batch_lengths, batches_of, varied
from traincast.measured.finetune_rows import as_steps, completed, recomputes_to_host, replicas
from traincast.measured.finetune_words import MemoryKind, Tuning, memory_of, tuning_of
from traincast.measured.run import Measured, Reading, affirms
from traincast.measured.steps import read_row
from traincast.strategy import Request, Runtime, load_precision
from traincast.strategy.program.precision import Precision
from traincast.strategy.strategy import Offload
from traincast.tables import Row, RowError, figure, text, whole

NEEDS: Final = ("model", "method", "gpu", "n_gpus", "seq", "micro_batch")
"""Columns that a table of fine-tuning runs must have."""

_SHORT: Final = 200
"""Number of steps up to which a run counts as short."""
_WIDE_RANK: Final = 512
"""Rank from which the states of a low-rank optimizer are as large as if each took a byte."""
_SHARDED: Final = 3
_TRAINS_WEIGHTS: Final = ("full", "freeze", "bitfit")
"""Methods that train weights of the model itself, in their own dtype."""
_UPCASTS: Final = re.compile(r"llama[-_ ]?factory")
"""Programs that train fp32 copies of 16-bit weights unless told otherwise."""
_RESHARDS: Final = 2024
"""The year from which FSDP frees gathered parameters that are frozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTuning:
    """One measured fine-tuning run.

    ``run`` has the request and the time of a step. ``longest`` is the request for the batch whose memory was measured;
    ``kind`` says how it was counted. ``batches`` are lengths of consecutive batches, relative to that one, of one or
    more runs whose reserved memory is averaged.
    """

    run: Measured
    longest: Request
    kind: MemoryKind
    batches: tuple[tuple[float, ...], ...]
    tuning: Tuning


def group_of(row: Row) -> str:
    """Return what errors are grouped by: the source of the row."""
    return text(row, "source") or "unknown"


def read_tuning(index: int, row: Row, *, habits: Habits = USUAL) -> MeasuredTuning:
    """Read one row; it must state a time or a memory that can be judged."""
    assumed: list[str] = []
    row = completed(row, assumed)
    tuning = habits.of(row, tuning_of(row))
    memory = memory_of(row, assumed)
    seconds = _seconds(row)
    if seconds is None and memory is None:
        raise RowError("neither a time nor a memory is stated")
    mean, high = batch_lengths(row, tuning, habits, timed=seconds is not None, assumed=assumed)
    only_high = memory is not None and memory.high
    longest_length = high if only_high else whole(row, "seq") + extra_tokens(row, tuning)
    reading = _reading(row, tuning, mean, habits)
    longest = reading if longest_length == mean else _reading(row, tuning, longest_length, habits)
    assumed += reading.assumed
    batches = batches_of(row, high=only_high, assumed=assumed) if memory and memory.kind != "allocated" else ()
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
        batches=batches,
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
    batch = figure(row, "global_batch") or replicas(row) * whole(row, "micro_batch") * whole(row, "grad_accum", 1)
    if seconds is None and rate:
        seconds = batch / rate
    tokens, total, steps = (figure(row, key) for key in ("tokens_per_s", "train_time_s", "num_steps"))
    if seconds is None and tokens and (figure(row, "avg_tokens_per_step") or not varied(row)):
        seconds = (figure(row, "avg_tokens_per_step") or batch * whole(row, "seq")) / tokens
    if seconds is None and total and steps:
        seconds = total / steps
    if seconds is not None and seconds <= 0.0:
        raise RowError(f"step_time_s is {seconds:g}: expected seconds above 0")
    return seconds


def _reading(row: Row, tuning: Tuning, length: int, habits: Habits) -> Reading:
    assumed: list[str] = []
    reading = read_row(as_steps(row, length, assumed), tuning=tuning)
    request, assumed = reading.request, assumed + list(reading.assumed)
    precision = _precision(row, tuning, request)
    runtime = _kept_twice(row, tuning, request, _habits(row, request.runtime))
    if habits.update_passes and runtime.kernels.update_passes > 1:
        runtime = runtime.patched(kernels={"update_passes": habits.update_passes})
    name = _optimizer(row, assumed)
    if name:
        runtime = runtime.patched(
            memory={"update_share": 0.0}, kernels={"update_passes": 1}
        )  # one kernel updates everything in place
        request = replace(request, graph=request.graph.with_optimizer(name))
    request = replace(request, precision=precision, runtime=runtime)
    request = replace(request, strategy=replace(request.strategy, offload=_offload(row, request, assumed)))
    if (
        tuning.method != "full"
        and request.strategy.zero == 3
        and runtime.memory.frees_gradients
        and _year(row) < _RESHARDS
    ):
        assumed.append("frozen parameters stay gathered: FSDP of that year does not free them after backward")
        request = replace(request, strategy=replace(request.strategy, reshard=False))
    return Reading(request=request, assumed=tuple(assumed))


def _optimizer(row: Row, assumed: list[str]) -> str:
    """Return the optimizer of a row if it is not AdamW with ordinary states; else ""."""
    written = text(row, "optimizer")
    plain = re.sub(r"[^a-z0-9]", "", written.lower())
    byte, paged = "8bit" in plain or "int8" in plain, "paged" in plain
    low_rank = "galore" in plain or "galore" in text(row, "method").lower() or "apollo" in plain
    found, says = "", ""
    if low_rank:
        wide = (figure(row, "lora_rank") or 0.0) >= _WIDE_RANK
        found, says = ("adamw8bit", "a byte per state") if wide else ("sgd-plain", "no states")
    elif re.search(r"adafactor|lomo|came\b|adammini", plain):
        found, says = "sgd-plain", "no states, because those of rows and columns are small"
    elif re.search(r"lion|muon|signsgd", plain):
        found, says = ("adamw8bit", "two states of a byte") if byte else ("sgd", "one state per weight")
    elif "sgd" in plain:
        found = "sgd" if "momentum" in text(row, "optimizer").lower() else "sgd-plain"
    elif byte or paged:
        found = ("paged-" if paged else "") + ("adamw8bit" if byte else "adamw")
    if found:
        assumed[:] = [said for said in assumed if not said.startswith("optimizer ")]
    if says:
        assumed.append(f"optimizer {written or 'of the method'!r} counted with {says}")
    return found


def _offload(row: Row, request: Request, assumed: list[str]) -> tuple[Offload, ...]:
    """Return what a row keeps in the memory of its host; parameters are counted on the device, and this is said."""
    written = text(row, "offload").lower()
    found: list[Offload] = []
    if written and written not in ("no", "none", "false", "0", "nan", "-", "gpu"):
        both = re.search(r"cpu|host|true|yes|nvme", written) is not None
        if "optim" in written or (both and not re.search(r"activ|param", written)):
            found.append("optimizer")
        if "activ" in written:
            found.append("activations")
        if "param" in written or (both and request.strategy.zero == _SHARDED and not found):
            assumed.append("parameters kept on the host are counted on the device")
        if not found and "param" not in written:
            raise RowError(f"offload is {written[:40]!r}: only optimizer and activations are modelled")
    if recomputes_to_host(row) and "activations" not in found and request.strategy.pp == 1:
        found.append("activations")
    return tuple(found)


def _year(row: Row) -> int:
    found = re.match(r"\d{4}", text(row, "date"))
    return int(found[0]) if found else _RESHARDS


def _kept_twice(row: Row, tuning: Tuning, request: Request, runtime: Runtime) -> Runtime:
    """Return ``runtime``, with two copies of the inputs of recomputed layers where plain PyTorch keeps two.

    FSDP holds the inputs of modules whose parameters are frozen, beside those that recomputation keeps. PEFT's
    preparation of 4- and 8-bit models makes norms fp32, and with them the inputs of layers.
    """
    if tuning.method == "full" or not runtime.memory.frees_gradients:
        return runtime
    prepared = tuning.quantize in ("nf4", "nf4-single", "int8") and "accelerated" not in text(row, "notes").lower()
    sharded = request.strategy.zero == 3 and request.strategy.dp > 1
    return (
        runtime.patched(memory={"kept_inputs": 2.0})
        if sharded or (prepared and runtime.name == "hf-trainer")
        else runtime
    )


def _precision(row: Row, tuning: Tuning, request: Request) -> Precision:
    """Return the dtypes of a run.

    Plain PyTorch trains all weights of a 16-bit model in 16 bits, states included; FSDP with automatic mixed precision
    trains fp32 copies of them. Adapters are fp32 beside 16-bit weights.
    """
    found, runtime = request.precision, request.runtime
    if not runtime.memory.frees_gradients or found.activations is DType.FP32 or found.linear is not found.products:
        return found
    half = load_precision("fp16" if found.activations is DType.FP16 else "bf16")
    if tuning.method not in _TRAINS_WEIGHTS:
        return half
    said = " ".join(text(row, key) for key in ("framework", "zero", "notes")).lower()
    if re.search(r"deepspeed|zero[-_ ]?\d|stage", said) or request.strategy.zero in (1, 2):
        return half  # DeepSpeed's optimizer keeps fp32 copies of 16-bit weights
    written = text(row, "precision").lower()
    stored_wide = re.search(r"\bamp\b|mixed", written) or (_UPCASTS.search(said) and "pure" not in f"{written} {said}")
    spread = request.strategy.zero == _SHARDED and request.strategy.dp > 1
    if stored_wide and tuning.method != "full":
        return half  # only trained weights get fp32 copies
    if stored_wide or (spread and re.search(r"autocast|amp", written)):
        return load_precision("amp" if found.activations is DType.FP16 else "amp-bf16")
    return replace(half, name=f"{half.name} (pure)", gradients=half.weights, master=None, states=half.weights)


def _habits(row: Row, runtime: Runtime) -> Runtime:
    """Return ``runtime`` with what a row says of fused kernels, chunked losses and attention."""
    notes = " ".join(text(row, key) for key in ("notes", "framework", "attention")).lower()
    if not runtime.kernels.written_out:
        return runtime
    if affirms(notes, "liger|foak|fast-kernels|fused cross|unsloth|chunked"):
        runtime = runtime.patched(memory={"logits_copies": 0.0}, kernels={"fusions": ("loss",), "written_out": False})
    if "eager" in text(row, "attention").lower():
        runtime = runtime.patched(kernels={"attention": "eager"})
    return runtime
