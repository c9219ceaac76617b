"""Measured fine-tuning runs: tables that ``validate finetune`` reads.

A row names the model, the method (full, LoRA, QLoRA or another adapter), the machine and the batch, and states the time
of a step, its memory, or both. Time and memory may depend on different lengths: time on the mean length of a batch,
memory on its longest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from traincast.errors import UnknownNameError
from traincast.graph import DType
from traincast.graph.zoo.known_models import known_model
from traincast.measured.dialect import meaning, vocabulary
from traincast.measured.memory import MemoryKind, memory_of, usual_kind
from traincast.measured.models.language import zoo_name
from traincast.measured.run import Measured, Reading, affirms, unstated
from traincast.measured.steps import read_row
from traincast.measured.tuning.graph import adapter_dtype, extra_tokens
from traincast.measured.tuning.lengths import batch_lengths, batches_of, varied
from traincast.measured.tuning.words import Tuning, Tunings, tuning_of
from traincast.strategy import Request, Runtime, find_runtime, load_precision, load_runtime
from traincast.strategy.program.losses import with_loss
from traincast.strategy.program.precision import Precision
from traincast.strategy.strategy import Offload
from traincast.tables import Row, RowError, figure, text, whole

NEEDS: Final = ("model", "method", "gpu", "n_gpus", "seq", "micro_batch")
"""Columns that a table of fine-tuning runs must have."""
_SHARDED: Final = 3
_TRAINS_WEIGHTS: Final = ("full", "freeze", "bitfit")
"""Methods that train weights of the model itself, in their own dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTuning:
    """One measured fine-tuning run.

    ``run`` has the request and the time of a step. ``longest`` is the request for the batch whose memory was measured;
    ``kind`` says how it was counted, as stated or (``kind_stated`` false) as usual. ``batches`` are lengths of
    consecutive batches, relative to that one, of one or more runs whose reserved memory is averaged.
    """

    run: Measured
    longest: Request
    kind: MemoryKind
    kind_stated: bool
    batches: tuple[tuple[float, ...], ...]
    tuning: Tuning


def group_of(row: Row) -> str:
    """Return what errors are grouped by: the source of the row."""
    return text(row, "source") or "unknown"


def read_tuning(index: int, row: Row, *, tuning: Tuning | None = None, padded: float | None = None) -> MeasuredTuning:
    """Read one row; it must state a time or a memory that can be judged.

    ``tuning`` replaces what the row says of its fine-tuning, and ``padded`` the usual number of tokens computed per
    token counted: a study varies them.
    """
    assumed: list[str] = []
    row = completed(row, assumed)
    tuning = tuning_of(row) if tuning is None else tuning
    padded = vocabulary(Tunings).padded if padded is None else padded
    memory = memory_of(row)
    seconds = _seconds(row)
    if seconds is None and memory is None:
        raise RowError("neither a time nor a memory is stated")
    mean, high = batch_lengths(row, tuning, padded=padded, timed=seconds is not None, assumed=assumed)
    only_high = memory is not None and memory.high
    longest_length = high if only_high else whole(row, "seq") + extra_tokens(row, tuning)
    reading = _reading(row, tuning, mean)
    longest = reading if longest_length == mean else _reading(row, tuning, longest_length)
    assumed += reading.assumed
    kind: MemoryKind = "allocated"
    if memory is not None:
        kind = memory.kind or usual_kind(longest.request.runtime, assumed)
    batches = batches_of(row, high=only_high, assumed=assumed) if kind != "allocated" else ()
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
        kind=kind,
        kind_stated=memory is None or memory.kind != "",
        batches=batches,
        tuning=tuning,
    )


def start_up(row: Row, start_s: float | None = None) -> float:
    """Return the seconds that the start of a short run adds to the mean time of its steps; 0 if steps were timed.

    ``start_s`` is how much longer the first step takes than others, if not as usual.
    """
    usual = vocabulary(Tunings)
    steps, total, step = (figure(row, key) for key in ("num_steps", "train_time_s", "step_time_s"))
    if not steps or not total or not step or steps > usual.short_run:
        return 0.0
    first = usual.start_s if start_s is None else start_s
    return first / steps if abs(total / steps / step - 1.0) < 0.01 else 0.0


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


def _reading(row: Row, tuning: Tuning, length: int) -> Reading:
    assumed: list[str] = []
    reading = read_row(as_steps(row, length, assumed), tuning=tuning)
    request, assumed = reading.request, assumed + list(reading.assumed)
    precision = _precision(row, tuning, request)
    runtime = _kept_twice(row, tuning, request, _habits(row, request.runtime))
    name = _optimizer(row, assumed)
    if name:
        # One kernel updates everything in place
        runtime = runtime.patched(memory={"update_share": 0.0}, kernels={"update_passes": 1})
        request = replace(request, graph=request.graph.with_optimizer(name))
    request = replace(request, precision=precision, runtime=runtime)
    request = replace(request, strategy=replace(request.strategy, offload=_offload(row, request, assumed)))
    if (
        tuning.method != "full"
        and request.strategy.zero == 3
        and runtime.memory.frees_gradients
        and _year(row) < vocabulary(Tunings).reshards_since
    ):
        assumed.append("frozen parameters stay gathered: FSDP of that year does not free them after backward")
        request = replace(request, strategy=replace(request.strategy, reshard=False))
    return Reading(request=request, assumed=tuple(assumed))


def _optimizer(row: Row, assumed: list[str]) -> str:
    """Return the optimizer of a row if it is not AdamW with ordinary states; else ""."""
    written, words = text(row, "optimizer"), vocabulary(Tunings)
    plain = re.sub(r"[^a-z0-9]", "", written.lower())
    byte, paged = "8bit" in plain or "int8" in plain, "paged" in plain
    low_rank = words.low_rank.search(plain) or words.low_rank_methods.search(text(row, "method").lower())
    other = next((each for each in words.optimizers if each.pattern.search(plain)), None)
    found, says = "", ""
    if low_rank:
        wide = (figure(row, "lora_rank") or 0.0) >= words.wide_rank
        found, says = ("adamw8bit", "a byte per state") if wide else ("sgd-plain", "no states")
    elif other is not None:
        in_bytes = byte and other.byte_counted
        found, says = (other.byte_counted, other.byte_says) if in_bytes else (other.counted, other.says)
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
    return int(found[0]) if found else vocabulary(Tunings).reshards_since


def _kept_twice(row: Row, tuning: Tuning, request: Request, runtime: Runtime) -> Runtime:
    """Return ``runtime``, with two copies of the inputs of recomputed layers where plain PyTorch keeps two.

    FSDP holds the inputs of modules whose parameters are frozen, beside those that recomputation keeps; FSDP2 does not.
    PEFT's preparation of 4- and 8-bit models makes norms fp32, and with them the inputs of layers.
    """
    if tuning.method == "full" or not runtime.memory.frees_gradients:
        return runtime
    words, notes = vocabulary(Tunings), text(row, "notes").lower()
    prepared = tuning.quantize in ("nf4", "nf4-single", "int8") and not words.unprepared.search(notes)
    sharded = request.strategy.zero == 3 and request.strategy.dp > 1 and runtime.name not in words.keeps_once
    twice = sharded or (prepared and runtime.name == words.plain_runtime)
    return runtime.patched(memory={"kept_inputs": 2.0}) if twice else runtime


def _precision(row: Row, tuning: Tuning, request: Request) -> Precision:
    """Return the dtypes of a run.

    Plain PyTorch trains all weights of a 16-bit model in 16 bits, states included; FSDP with automatic mixed precision
    trains fp32 copies of them. Adapters are fp32 beside 16-bit weights.
    """
    found, runtime, words = request.precision, request.runtime, vocabulary(Tunings)
    if not runtime.memory.frees_gradients or found.activations is DType.FP32 or found.linear is not found.products:
        return found
    half = load_precision("fp16" if found.activations is DType.FP16 else "bf16")
    pure = replace(half, name=f"{half.name} (pure)", gradients=half.weights, master=None, states=half.weights)
    said = " ".join(text(row, key) for key in ("framework", "zero", "notes")).lower()
    copied = words.keeps_copies.search(said) is not None or request.strategy.zero in (1, 2)
    if tuning.method not in _TRAINS_WEIGHTS:
        return pure if adapter_dtype(row, runtime, tuning) == "model" and not copied else half
    if copied:
        return half  # the optimizer keeps fp32 copies of 16-bit weights
    written = text(row, "precision").lower()
    stored_wide = re.search(r"\bamp\b|mixed", written) or (
        words.upcasts.search(said) and "pure" not in f"{written} {said}"
    )
    spread = request.strategy.zero == _SHARDED and request.strategy.dp > 1
    if stored_wide and tuning.method != "full":
        return half  # only trained weights get fp32 copies
    if stored_wide or (spread and re.search(r"autocast|amp", written)):
        return load_precision("amp" if found.activations is DType.FP16 else "amp-bf16")
    return pure


def _habits(row: Row, runtime: Runtime) -> Runtime:
    """Return ``runtime`` with what a row says of fused kernels, chunked losses and attention."""
    notes = " ".join(text(row, key) for key in ("notes", "framework", "attention")).lower()
    if not runtime.kernels.written_out:
        return runtime
    words = vocabulary(Tunings)
    if affirms(notes, words.compiled):
        compiled = load_runtime(words.compiled_as)
        runtime = runtime.patched(
            kernels={"fusions": compiled.kernels.fusions, "written_out": False},
            launches={"operator": compiled.launches.operator, "backward": compiled.launches.backward},
        )
    if affirms(notes, words.fused_kernels):
        runtime = runtime.patched(kernels={"written_out": False})
    loss = next((name for name, pattern in words.losses.items() if affirms(notes, pattern)), None)
    if loss is not None:
        runtime = with_loss(runtime, loss)
    if whole(row, "grad_accum", 1) == 1 and affirms(f"{notes} {text(row, 'optimizer').lower()}", words.in_backward):
        runtime = runtime.patched(memory={"updates_in_backward": True})
    if "eager" in text(row, "attention").lower():
        runtime = runtime.patched(kernels={"attention": "eager"})
    return runtime


def completed(row: Row, assumed: list[str]) -> Mapping[str, Any]:
    """Return a row with usual figures for its length, batch and devices where it states none."""
    found, words = dict(row), vocabulary(Tunings)
    if not figure(row, "n_gpus"):
        found["n_gpus"] = int(figure(row, "dp") or 1)
        assumed.append(unstated("number of GPUs", found["n_gpus"]))
    if not figure(row, "seq"):
        found["seq"] = words.usual_seq
        assumed.append(unstated("sequence length", words.usual_seq))
    if not figure(row, "micro_batch"):
        each = replicas(found) * whole(row, "grad_accum", 1)
        found["micro_batch"] = max(1, int((figure(row, "global_batch") or each) // each))
        assumed.append(unstated("batch of a GPU", found["micro_batch"]))
    adapts = re.search(r"lora|dora", text(row, "method").lower()) is not None
    if adapts and not text(row, "lora_targets") and words.adapts_all.search(text(row, "framework").lower()):
        found["lora_targets"] = "all-linear"
        assumed.append(unstated("adapted layers", "all linear layers, the default of this program"))
    return found


def as_steps(row: Row, length: int, assumed: list[str]) -> Mapping[str, Any]:
    """Return a row of fine-tuning as a row of training steps, with names and texts as these have them."""
    plain = {**row, "model": model_name(row), "seq": length, "strategy": ""}
    plain["zero"] = _zero(row)
    plain["precision"] = _stated_precision(row)
    plain["recompute"] = _recompute(row)
    plain["framework"] = _framework(row, assumed)
    found = vocabulary(Tunings).virtual_stages.search(text(row, "notes"))
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
    words = vocabulary(Tunings)
    names = [words.sizes.sub("", text(row, "model").rpartition("/")[2])]
    while words.endings.search(names[-1]):
        names.append(words.endings.sub("", names[-1], count=1))
    if all(figure(row, key) for key in ("n_layers", "hidden", "heads")):
        return names[-1]
    return next(filter(None, (find(name) for find in (known_model, zoo_name) for name in names)), names[-1])


def recomputes_to_host(row: Row) -> bool:
    """Return whether a run keeps the inputs of recomputed layers on the host."""
    return vocabulary(Tunings).recompute_to_host.search(text(row, "recompute").lower()) is not None


def _zero(row: Row) -> Any:
    found = meaning(vocabulary(Tunings).zero, text(row, "zero").lower())
    return row.get("zero") if found is None else found


def _stated_precision(row: Row) -> str:
    """Return the precision of a row; formats of stored weights in this column say nothing of the step's."""
    written = re.sub(r"\(.*?\)", "", text(row, "precision")).strip()
    words = vocabulary(Tunings)
    if not words.quantised.search(written.lower()):
        return written
    found = words.unquantised.search(written.lower())
    return found[0] if found else ""


def _recompute(row: Row) -> Any:
    written, words = text(row, "recompute").strip().lower(), vocabulary(Tunings)
    if written in ("unknown", "nan"):
        return ""
    if words.no_recompute.match(written):
        return "none"
    return "full" if words.recompute.search(written) and "selective" not in written else row.get("recompute")


def _framework(row: Row, assumed: list[str]) -> str:
    """Return the framework of a row: a container with tensor or context groups runs one program.

    Others that are not known train plain modules, as most programs for fine-tuning do. So do those that name only the
    library that shards them.
    """
    written, words = text(row, "framework"), vocabulary(Tunings)
    spread = any((figure(row, axis) or 1) > 1 for axis in ("tp", "pp", "cp"))
    if spread and words.containers.search(written.lower()):
        if words.container_as.lower() not in written.lower():
            said = f"framework {written!r} is a container, whose program with tp, pp or cp is: {words.container_as}"
            assumed.append(said)
        return words.container_as
    if spread:
        return written
    plain = words.plain_runtime
    try:
        found = find_runtime(written)
    except UnknownNameError:
        assumed.append(f"framework {written!r} not known: {plain}" if written else unstated("framework", plain))
        return words.plain_as
    if found.name in words.sharders:
        assumed.append(f"framework {written!r} shards modules of Hugging Face: {plain}")
        return words.plain_as
    return written
