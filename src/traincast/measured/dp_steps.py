"""Measured data-parallel steps of convolutional and other models: tables that ``validate dp-steps`` reads."""

from __future__ import annotations

from typing import Final

from traincast.cluster import Cluster, Device
from traincast.graph import OperatorGraph, OpKind
from traincast.graph.tuning.tune import FineTuning, fine_tuned
from traincast.measured.dialect import vocabulary
from traincast.measured.machines import cluster_of
from traincast.measured.models.networks import network_of
from traincast.measured.programs import Strategies, contained_runtime
from traincast.measured.rates import as_samples
from traincast.measured.recipes import loading_s, recipe_of
from traincast.measured.room import in_room
from traincast.measured.run import Measured, Reading, contradiction, source_of, unstated
from traincast.measured.spellings import Spellings, precision_name
from traincast.measured.stated import check_stated
from traincast.measured.strategies import asked
from traincast.measured.tuning.graph import tuned_graph
from traincast.measured.tuning.words import trains_adapters, tuning_of
from traincast.strategy import Runtime, load_precision
from traincast.strategy.choose import usual_precision
from traincast.tables import Row, RowError, figure, text, whole

NEEDS: Final = ("model", "gpu_model", "n_gpus", "precision", "batch_per_gpu", "step_time_s")
_SHARDED: Final = 3
_ROUNDED: Final = 0.02
"""How far a batch computed from rounded figures may be from a whole number."""
_STATE_BYTES: Final = {0: (16.0, 0.0), 1: (4.0, 12.0), 2: (2.0, 14.0), 3: (0.0, 16.0)}
"""Bytes per parameter that each replica holds, and that all replicas share, by stage of ZeRO: 16 bits and Adam."""


def group_of(row: Row) -> str:
    """Return what errors are grouped by: the source, the repository of the published file, or the family of the model.

    ``where`` says ``owner/repository:path``.
    """
    return text(row, "source") or text(row, "where").partition(":")[0] or text(row, "family") or source_of(row)


def read_run(index: int, row: Row) -> Measured:
    """Read one row; a row without a time or a throughput is refused."""
    seconds = _seconds(row)
    reading = read_row(row)
    request = reading.request
    counted: list[str] = []
    seconds = as_samples(request, seconds, counted)
    loading = loading_s(
        row,
        family=request.graph.name.partition(":")[0].partition("-")[0],
        architecture=request.cluster.device.architecture,
        batch=request.global_batch // request.cluster.num_devices,
    )
    said = (unstated("loaders", "one process per device"),) if loading else ()
    return Measured(
        index=index,
        source=text(row, "source"),
        request=request,
        seconds=seconds,
        loading_s=loading,
        assumed=(*reading.assumed, *counted, *said),
    )


def _seconds(row: Row) -> float:
    """Return the seconds of one step; if accumulation is not stated, those of one microbatch.

    If only samples per second are stated, the seconds are computed from them.
    """
    one = figure(row, "grad_accum") is None and "microstep_time_s" in row
    seconds = figure(row, "microstep_time_s" if one else "step_time_s")
    rate = figure(row, "throughput_samples_per_s")
    if seconds is None and rate and rate > 0:
        seconds = whole(row, "n_gpus") // _sharers(row) * _batch(row, []) * _accumulation(row) / rate
    if not seconds or seconds <= 0:
        raise RowError("no step time is stated")
    return seconds


def _sharers(row: Row) -> int:
    """Return how many GPUs compute one sample together: 2 if a row states half a sample per GPU; usually 1."""
    stated, devices = figure(row, "batch_per_gpu"), whole(row, "n_gpus")
    sharers = round(1 / stated) if stated and 0 < stated < 1 else 1
    if sharers > 1 and (abs(sharers * (stated or 0) - 1) > _ROUNDED or devices % sharers):
        raise RowError(f"batch_per_gpu is {stated:g}: {devices} GPUs do not divide into groups for one sample each")
    return sharers


def _batch(row: Row, assumed: list[str]) -> int:
    """Return the samples of a GPU in one microbatch: as stated, or those that rate and time of a step make.

    If several GPUs share a sample, it is one.
    """
    if _sharers(row) > 1:
        return 1
    rate, seconds = figure(row, "throughput_samples_per_s"), figure(row, "step_time_s")
    if figure(row, "batch_per_gpu") is not None or not rate or not seconds:
        return whole(row, "batch_per_gpu")
    exact = rate * seconds / whole(row, "n_gpus")
    if abs(exact - round(exact)) > _ROUNDED * exact or round(exact) < 1:
        raise RowError(f"batch_per_gpu is not stated, and rate and time of a step make {exact:.2f} samples")
    assumed.append(unstated("batch_per_gpu", round(exact)))
    return round(exact)


def _accumulation(row: Row) -> int:
    """Return the microbatches of a step: as stated, or global batch over the batch of all GPUs, or 1."""
    total, share = figure(row, "global_batch"), whole(row, "n_gpus") // _sharers(row) * _batch(row, [])
    if figure(row, "grad_accum") is None and "microstep_time_s" not in row and total and total % share == 0:
        return int(total) // share
    return whole(row, "grad_accum", 1)


def read_row(row: Row) -> Reading:
    """Return the request that repeats a row's run, and what was assumed in it.

    The notes of a row may say that adapters are trained, that optimizer states are sharded or that layers are split.
    If a row does not state its sequence length or its recomputation, both are inferred from its memory
    (:mod:`traincast.measured.room`).
    """
    words = vocabulary(Strategies)
    assumed: list[str] = []
    if not text(row, "gpu_model"):
        raise RowError("gpu_model is not stated")
    devices, batch, sharers = whole(row, "n_gpus"), _batch(row, assumed), _sharers(row)
    place = cluster_of({**row, "gpu": row.get("gpu_model"), "hardware": row.get("system")}, assumed)
    graph = network_of(row, assumed)
    precision = precision_name(text(row, "precision"), usual=usual_precision(graph, place), assumed=assumed)
    precision = _as_computed(row, precision, place.device, assumed)
    runtime = contained_runtime(row, graph, place, assumed, precision=precision)
    zero = _stage(row, graph, place, assumed)
    graph = _tuned(row, graph, place, runtime, assumed, zero=zero)
    accumulate = _accumulation(row)
    tensor = words.tensor_groups.find(row)
    tp = int(tensor[1]) if tensor else 1
    cp = sharers // tp if sharers % tp == 0 else 1
    if devices % (tp * cp):
        raise RowError(f"{devices} GPUs do not divide into groups of {tp * cp}")
    if cp > 1 and not any(op.kind is OpKind.ATTENTION for op, _ in graph):
        raise RowError(f"{sharers} GPUs share a sample, and {graph.name} has no sequence to divide between them")
    mesh = words.mesh.find(row)
    samples = batch * (devices // sharers) * accumulate
    usual = runtime.defaults.recompute if cp > 1 else "none"
    in_columns = {
        **row,
        **dict.fromkeys(("strategy", "micro_batch")),
        **{"dp": devices // tp // cp, "tp": tp, "pp": 1, "cp": cp, "ep": 1, "sp": 0},
        "zero": _SHARDED if mesh else zero,
        "shard": _shard(devices, int(mesh[1]), int(mesh[2])) if mesh else devices,
        "recompute": "full" if words.recomputes(row) else usual,
        "grad_accum": accumulate,
        "global_batch": samples,
    }
    request = asked(in_columns, graph=graph, place=place, runtime=runtime, precision=precision, assumed=assumed)
    _say_batch(row, samples, assumed)
    if cp > 1:
        assumed.append(f"{sharers} GPUs share a sample: its sequence is divided between {cp}")
        assumed.append(unstated("recompute", usual))
    reading = Reading(request=request, assumed=tuple(assumed))
    return check_stated(row, in_room(row, reading, read_row))


def _say_batch(row: Row, samples: int, assumed: list[str]) -> None:
    """Add a sentence to ``assumed`` if a row does not state its global batch, or another one than ``samples``."""
    total = figure(row, "global_batch")
    if figure(row, "grad_accum") is None and not total:
        assumed.append(unstated("accumulation", "one microbatch compared"))
    elif total and total != samples:
        assumed.append(contradiction("global_batch", "batch_per_gpu", f"{samples} instead of {total:g}"))
    if text(row, "flag"):
        assumed.append(f"the table flags this row: {text(row, 'flag')}")


def _shard(devices: int, data: int, fsdp: int) -> int:
    """Return how many of ``devices`` hold the parts of one state; a mesh may count each of them as several cores."""
    if data * fsdp % devices or fsdp * devices % (data * fsdp) or fsdp * devices < 2 * data * fsdp:
        raise RowError(f"a mesh of {data} x {fsdp} is not one of {devices} GPUs with sharded states")
    return fsdp * devices // (data * fsdp)


def _as_computed(row: Row, precision: str, device: Device, assumed: list[str]) -> str:
    """Return ``tf32`` for fp32 on a device that has TF32: frameworks and NVIDIA's containers use it by default.

    fp32 says how numbers are stored. A row may say that TF32 is off.
    """
    denied = vocabulary(Spellings).no_tf32(row)
    if precision != "fp32" or denied or not device.supports(load_precision("tf32").linear.value):
        return precision
    assumed.append(unstated("TF32 for products of fp32", "on, as by default"))
    return "tf32"


def _stage(row: Row, graph: OperatorGraph, place: Cluster, assumed: list[str]) -> int:
    """Return the stage of ZeRO: as stated, or with DeepSpeed the least whose states fit on a device."""
    words = vocabulary(Strategies)
    stated = words.zero.find(row)
    if stated is not None:
        return int(stated[1])
    if not words.shards_states(row):
        return 0
    room = place.device.memory_bytes / graph.num_parameters
    found = next((stage for stage, (own, shared) in _STATE_BYTES.items() if own + shared / place.num_devices < room), 3)
    assumed.append(unstated("zero", found))
    return found


def _tuned(
    row: Row, graph: OperatorGraph, place: Cluster, runtime: Runtime, assumed: list[str], *, zero: int
) -> OperatorGraph:
    """Return ``graph`` as the run trains it: in full, only its head, or adapters.

    A run that fine-tunes a model whose weights and states no device could hold trains adapters.
    """
    recipe = recipe_of(row)
    if recipe is not None and recipe.frozen:
        assumed.append("the script of this dataset trains the head only")
        body = tuple(dict.fromkeys(op.scope.partition(".")[0] for op, _ in graph if op.scope))
        body = tuple(name for name in body if name != "head")
        return fine_tuned(graph, FineTuning(freeze=body))
    adapted = trains_adapters(row)
    own, shared = _STATE_BYTES[zero]
    needs = (own + shared / place.num_devices) * graph.num_parameters
    if not adapted and vocabulary(Strategies).fine_tunes(row) and needs > place.device.memory_bytes:
        assumed.append(f"full training needs {needs / 1e9:.0f} GB per device, more than it has: adapters")
        adapted = True
    return tuned_graph(row, graph, runtime, tuning_of(row, method="lora"), assumed) if adapted else graph
