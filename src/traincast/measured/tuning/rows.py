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
from traincast.measured.dialect import Meanings, Pattern, Said, meaning, vocabulary
from traincast.measured.memory import MemoryKind, memory_of, usual_kind
from traincast.measured.models.language import Models, zoo_name
from traincast.measured.run import Measured, Reading, unstated
from traincast.measured.steps import read_row
from traincast.measured.tuning.graph import adapter_dtype, extra_tokens
from traincast.measured.tuning.lengths import Lengths, batch_lengths, batches_of, varied
from traincast.measured.tuning.words import Adapters, Methods, Quantized, Tuning, tuning_of
from traincast.strategy import Request, Runtime, find_runtime, load_precision, load_runtime
from traincast.strategy.program.losses import LossName, with_loss
from traincast.strategy.program.precision import Precision
from traincast.strategy.strategy import Offload
from traincast.tables import Row, RowError, figure, text, whole

NEEDS: Final = ("model", "method", "gpu", "n_gpus", "seq", "micro_batch")
"""Columns that a table of fine-tuning runs must have."""
_SHARDED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What programs that fine-tune do where a row does not say; comments in ``tunings.toml`` explain each entry."""

    containers: Said
    container_as: str
    plain_as: str
    plain_runtime: str
    sharders: tuple[str, ...]
    fused_kernels: Said
    compiled: Said
    compiled_as: str
    in_backward: Said
    losses: dict[LossName, Said]
    eager: Said
    keeps_once: tuple[str, ...]
    reshards_since: int
    virtual_stages: Said
    mixed: Said
    upcasts: Said
    pure: Said
    casts: Said
    keeps_copies: Said
    zero: Meanings[int]
    recompute: Meanings[str]
    recompute_to_host: Said


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloads:
    """How rows say what is kept on the host; comments in ``tunings.toml`` explain each entry."""

    nothing: tuple[str, ...]
    host: Pattern
    optimizer: Pattern
    activations: Pattern
    parameters: Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedOptimizer:
    """An optimizer that is ``counted`` as another one, and what this ``says``.

    It is known by ``words`` of its name or by the ``method`` of its row, whose rank is not below ``least_rank``.
    """

    words: Pattern
    counted: str
    says: str = ""
    method: Pattern | None = None
    least_rank: float = 0.0

    def holds(self, row: Row) -> bool:
        """Return whether a row has this optimizer."""
        name, method = (text(row, column).lower() for column in ("optimizer", "method"))
        by_method = self.method is not None and self.method.search(method) is not None
        named = self.words.search(re.sub(r"[^a-z0-9]", "", name)) is not None
        return (named or by_method) and (figure(row, "lora_rank") or 0.0) >= self.least_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizers:
    """Optimizers that are not AdamW with ordinary states; the first that holds counts."""

    counted: tuple[CountedOptimizer, ...]


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


def read_tuning(index: int, row: Row, *, tuning: Tuning | None = None, padded: float | None = None) -> MeasuredTuning:
    """Read one row; it must state a time or a memory that can be judged.

    ``tuning`` replaces what the row says of its fine-tuning, and ``padded`` the usual number of tokens computed per
    token counted: a study varies them.
    """
    assumed: list[str] = []
    row = completed(row, assumed)
    tuning = tuning_of(row) if tuning is None else tuning
    padded = vocabulary(Lengths).padded if padded is None else padded
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
    usual = vocabulary(Lengths)
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
        and _year(row) < vocabulary(Programs).reshards_since
    ):
        assumed.append("frozen parameters stay gathered: FSDP of that year does not free them after backward")
        request = replace(request, strategy=replace(request.strategy, reshard=False))
    return Reading(request=request, assumed=tuple(assumed))


def _optimizer(row: Row, assumed: list[str]) -> str:
    """Return the optimizer of a row if it is not AdamW with ordinary states; else ""."""
    found = next((rule for rule in vocabulary(Optimizers).counted if rule.holds(row)), None)
    if found is None:
        return ""
    assumed[:] = [said for said in assumed if not said.startswith("optimizer ")]
    if found.says:
        assumed.append(f"optimizer {text(row, 'optimizer') or 'of the method'!r} counted with {found.says}")
    return found.counted


def _offload(row: Row, request: Request, assumed: list[str]) -> tuple[Offload, ...]:
    """Return what a row keeps in the memory of its host; parameters are counted on the device, and this is said."""
    written, words = text(row, "offload").lower(), vocabulary(Offloads)
    found: list[Offload] = []
    if written and written not in words.nothing:
        host, optimizer, activations, parameters = (
            pattern.search(written) is not None
            for pattern in (words.host, words.optimizer, words.activations, words.parameters)
        )
        if optimizer or (host and not activations and not parameters):
            found.append("optimizer")
        if activations:
            found.append("activations")
        if parameters or (host and request.strategy.zero == _SHARDED and not found):
            assumed.append("parameters kept on the host are counted on the device")
        if not found and not parameters:
            raise RowError(f"offload is {written[:40]!r}: only optimizer and activations are modelled")
    if recomputes_to_host(row) and "activations" not in found and request.strategy.pp == 1:
        found.append("activations")
    return tuple(found)


def _year(row: Row) -> int:
    found = re.match(r"\d{4}", text(row, "date"))
    return int(found[0]) if found else vocabulary(Programs).reshards_since


def _kept_twice(row: Row, tuning: Tuning, request: Request, runtime: Runtime) -> Runtime:
    """Return ``runtime``, with two copies of the inputs of recomputed layers where plain PyTorch keeps two.

    FSDP holds the inputs of modules whose parameters are frozen, beside those that recomputation keeps; FSDP2 does not.
    PEFT's preparation of 4- and 8-bit models makes norms fp32, and with them the inputs of layers.
    """
    if tuning.method == "full" or not runtime.memory.frees_gradients:
        return runtime
    words, programs = vocabulary(Quantized), vocabulary(Programs)
    prepared = tuning.quantize in words.prepared and not words.unprepared(row)
    sharded = request.strategy.zero == _SHARDED and request.strategy.dp > 1
    twice = (sharded and runtime.name not in programs.keeps_once) or (
        prepared and runtime.name == programs.plain_runtime
    )
    return runtime.patched(memory={"kept_inputs": 2.0}) if twice else runtime


def _precision(row: Row, tuning: Tuning, request: Request) -> Precision:
    """Return the dtypes of a run.

    Plain PyTorch trains all weights of a 16-bit model in 16 bits, states included; FSDP with automatic mixed precision
    trains fp32 copies of them. Adapters are fp32 beside 16-bit weights, unless they have 16 bits themselves.
    """
    found, runtime, words = request.precision, request.runtime, vocabulary(Programs)
    if not runtime.memory.frees_gradients or found.activations is DType.FP32 or found.linear is not found.products:
        return found
    half = load_precision("fp16" if found.activations is DType.FP16 else "bf16")
    pure = replace(half, name=f"{half.name} (pure)", gradients=half.weights, master=None, states=half.weights)
    copied = words.keeps_copies(row) or request.strategy.zero in (1, 2)
    method = vocabulary(Methods).known.get(tuning.method)
    if tuning.method != "full" and not (method and method.trains_weights):
        return pure if adapter_dtype(row, runtime, tuning) == "model" and not copied else half
    if copied:
        return half  # the optimizer keeps fp32 copies of 16-bit weights
    stored_wide = words.mixed(row) or (words.upcasts(row) and not words.pure(row))
    spread = request.strategy.zero == _SHARDED and request.strategy.dp > 1
    if stored_wide and tuning.method != "full":
        return half  # only trained weights get fp32 copies
    if stored_wide or (spread and words.casts(row)):
        return load_precision("amp" if found.activations is DType.FP16 else "amp-bf16")
    return pure


def _habits(row: Row, runtime: Runtime) -> Runtime:
    """Return ``runtime`` with what a row says of compiled and fused kernels, losses, updates and attention."""
    words = vocabulary(Programs)
    if not runtime.kernels.written_out:
        return runtime
    if words.compiled(row):
        compiled = load_runtime(words.compiled_as)
        runtime = runtime.patched(
            kernels={"fusions": compiled.kernels.fusions, "written_out": False},
            launches={"operator": compiled.launches.operator, "backward": compiled.launches.backward},
        )
    if words.fused_kernels(row):
        runtime = runtime.patched(kernels={"written_out": False})
    loss = next((name for name, said in words.losses.items() if said(row)), None)
    if loss is not None:
        runtime = with_loss(runtime, loss)
    if whole(row, "grad_accum", 1) == 1 and words.in_backward(row):
        runtime = runtime.patched(memory={"updates_in_backward": True})
    if words.eager(row):
        runtime = runtime.patched(kernels={"attention": "eager"})
    return runtime


def completed(row: Row, assumed: list[str]) -> Mapping[str, Any]:
    """Return a row with usual figures for its length, batch and devices where it states none."""
    found, usual, adapters = dict(row), vocabulary(Lengths).usual, vocabulary(Adapters)
    if not figure(row, "n_gpus"):
        found["n_gpus"] = int(figure(row, "dp") or 1)
        assumed.append(unstated("number of GPUs", found["n_gpus"]))
    if not figure(row, "seq"):
        found["seq"] = usual
        assumed.append(unstated("sequence length", usual))
    if not figure(row, "micro_batch"):
        each = replicas(found) * whole(row, "grad_accum", 1)
        found["micro_batch"] = max(1, int((figure(row, "global_batch") or each) // each))
        assumed.append(unstated("batch of a GPU", found["micro_batch"]))
    if adapters.adapts(row) and adapters.adapts_all(row) and not text(row, "lora_targets"):
        found["lora_targets"] = "all-linear"
        assumed.append(unstated("adapted layers", "all linear layers, the default of this program"))
    return found


def as_steps(row: Row, length: int, assumed: list[str]) -> Mapping[str, Any]:
    """Return a row of fine-tuning as a row of training steps, with names and texts as these have them."""
    plain = {**row, "model": model_name(row), "seq": length, "strategy": ""}
    plain["zero"] = _spelled(row, "zero", vocabulary(Programs).zero)
    plain["precision"] = _stated_precision(row)
    plain["recompute"] = _spelled(row, "recompute", vocabulary(Programs).recompute)
    plain["framework"], plain["program"] = _framework(row, assumed), text(row, "framework")
    found = vocabulary(Programs).virtual_stages.find(row)
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
    words = vocabulary(Models)
    names = [words.sizes.sub("", text(row, "model").rpartition("/")[2])]
    while words.endings.search(names[-1]):
        names.append(words.endings.sub("", names[-1], count=1))
    if all(figure(row, key) for key in ("n_layers", "hidden", "heads")):
        return names[-1]
    return next(filter(None, (find(name) for find in (known_model, zoo_name) for name in names)), names[-1])


def recomputes_to_host(row: Row) -> bool:
    """Return whether a run keeps the inputs of recomputed layers on the host."""
    return vocabulary(Programs).recompute_to_host(row)


def _spelled(row: Row, column: str, spellings: Meanings[Any]) -> Any:
    """Return what a cell means; the cell itself if it matches no spelling."""
    found = meaning(spellings, text(row, column).lower())
    return row.get(column) if found is None else found


def _stated_precision(row: Row) -> str:
    """Return the precision of a row; formats of stored weights in this column say nothing of the step's."""
    written = re.sub(r"\(.*?\)", "", text(row, "precision")).strip()
    words = vocabulary(Quantized)
    if not words.quantised.search(written.lower()):
        return written
    found = words.unquantised.search(written.lower())
    return found[0] if found else ""


def _framework(row: Row, assumed: list[str]) -> str:
    """Return the framework of a row: a container with tensor or context groups runs one program.

    Others that are not known train plain modules, as most programs for fine-tuning do. So do those that name only the
    library that shards them.
    """
    written, words = text(row, "framework"), vocabulary(Programs)
    spread = any((figure(row, axis) or 1) > 1 for axis in ("tp", "pp", "cp"))
    if spread and words.containers(row):
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
