"""Measured steps of language models: tables that ``validate steps`` and ``calibrate`` read."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from traincast.cluster import Cluster
from traincast.forecast import usual_precision, usual_runtime
from traincast.graph import OpKind
from traincast.measured.machines import check_device, cluster_of, part_of
from traincast.measured.memory import plausible_bytes, stated_bytes
from traincast.measured.models import graph_of, optimizer_name
from traincast.measured.run import Measured, Reading, unstated
from traincast.measured.spellings import (
    optimizer_of,
    precision_name,
    recompute_of,
    runtime_of,
    schedule_of,
    supported,
)
from traincast.strategy import (
    Request,
    Runtime,
    Strategy,
    choose_micro_batch,
    choose_strategy,
    load_precision,
    parse_strategy,
    with_micro_batch,
)
from traincast.strategy.schedules import SCHEDULES, check_schedule_of_data
from traincast.strategy.strategy import says_micro_batch
from traincast.tables import Row, RowError, figure, flag, text, whole

NEEDS: Final = ("source", "gpu", "n_gpus", "seq", "step_time_s")
"""Columns that a table must have if each row names its own machine."""
NEEDS_ON_A_CLUSTER: Final = ("model", "n_gpus", "step_time_s")
"""Columns that a table must have if all rows ran on one given cluster."""
_FAILED: Final = ("fail", "oom", "error")
_ADAPTERS: Final = re.compile(r"\b(?:q?lora|dora|adapters?)\b")
_LONGEST_S: Final = 1e13
"""Larger figures are not times in any unit."""
_WHOLE: Final = 0.01
"""How far a batch computed from tokens per second may be from a whole number, relative to it."""


def group_of(row: Row) -> str:
    """Return what errors are grouped by: the source of the row."""
    return text(row, "source") or "unknown"


def has_run(row: Row) -> bool:
    """Return whether the run succeeded, by the column ``status``."""
    return not any(word in text(row, "status").lower() for word in _FAILED)


def read_run(index: int, row: Row, *, cluster: Cluster | None = None, allow_code: bool = False) -> Measured:
    """Read one row, of a run that succeeded or failed.

    The run took place on ``cluster`` if it is given, otherwise on the machine that the row describes. A row of a run
    that succeeded must state its time, its throughput or its memory. ``allow_code`` lets the row name a model or a
    schedule that is Python code.
    """
    ran = has_run(row)
    stated = stated_bytes(row) if ran else None
    if ran and stated is None and figure(row, "step_time_s") is None and figure(row, "tokens_per_s_per_gpu") is None:
        raise RowError("neither step_time_s, tokens_per_s_per_gpu nor mem_gb is stated")
    reading = read_row(row, cluster=cluster, allow_code=allow_code)
    assumed = list(reading.assumed)
    return Measured(
        index=index,
        source=text(row, "source"),
        request=reading.request,
        memory_bytes=plausible_bytes(row, stated, reading.request.cluster.device, assumed),
        seconds=_seconds(row, reading.request) if ran else None,
        ran=ran,
        assumed=tuple(assumed),
    )


def read_timed_run(index: int, row: Row, *, cluster: Cluster | None = None, allow_code: bool = False) -> Measured:
    """Read one row as :func:`read_run` does, and refuse it if the run failed or ``step_time_s`` is not stated.

    A row that names another GPU architecture than that of ``cluster`` is refused as well.
    """
    if not has_run(row):
        raise RowError("the run failed: it has no step time")
    seconds = figure(row, "step_time_s")
    if seconds is None or not 0.0 < seconds < _LONGEST_S:
        raise RowError(f"step_time_s is {row.get('step_time_s')}: expected seconds above 0")
    if cluster is not None and text(row, "gpu"):
        check_device(text(row, "gpu"), cluster)
    return read_run(index, row, cluster=cluster, allow_code=allow_code)


def _seconds(row: Row, request: Request) -> float | None:
    """Return the seconds of one step, as stated or computed from tokens per second."""
    seconds = figure(row, "step_time_s")
    if seconds is None:
        rate = figure(row, "tokens_per_s_per_gpu")
        tokens = request.global_batch * request.graph.tokens_per_sample
        return tokens / (rate * request.cluster.num_devices) if rate and rate > 0 and tokens else None
    if not 0.0 < seconds < _LONGEST_S:
        raise RowError(f"step_time_s is {seconds:g}: expected seconds above 0")
    return seconds


def request_of(row: Row, *, cluster: Cluster | None = None) -> Request:
    """Return the request that repeats a row's run; see :func:`read_row`."""
    return read_row(row, cluster=cluster).request


def read_row(row: Row, *, cluster: Cluster | None = None, allow_code: bool = False) -> Reading:
    """Return the request that repeats a row's run, and what was assumed in it.

    With ``cluster``, the run used as many of its nodes as ``n_gpus`` fills. The strategy is read from the column
    ``strategy`` if it is stated, otherwise from one column for each axis.
    """
    notes = text(row, "notes").lower()
    if _ADAPTERS.search(f"{text(row, 'model').lower()} {notes}"):
        raise RowError("the run trains adapters (LoRA) beside frozen weights: only full training is forecast")
    if re.search(r"cpu_offload\s*[=:]\s*true", notes):
        raise RowError("parameters are kept in host memory (cpu_offload): this is not modelled")
    assumed: list[str] = []
    place = cluster_of(row, assumed) if cluster is None else part_of(cluster, whole(row, "n_gpus"))
    graph = graph_of(row, assumed, allow_code=allow_code)
    runtime = runtime_of(row, usual=usual_runtime(graph), assumed=assumed)
    precision = precision_name(text(row, "precision"), usual=usual_precision(graph, place), assumed=assumed)
    optimizer = "no optimizer" not in notes
    if optimizer:
        optimizer_of(row, optimizer_name(graph), assumed)
    request = Request(
        graph=graph,
        cluster=place,
        strategy=Strategy(),
        runtime=runtime,
        precision=load_precision(supported(precision, place.device, assumed)),
        global_batch=1,
        optimizer=optimizer,
    )
    if text(row, "strategy"):
        request = _with_text(row, request, assumed, allow_code=allow_code)
    else:
        request = _with_columns(row, request, assumed, allow_code=allow_code)
    return Reading(request=request, assumed=tuple(assumed))


def _with_text(row: Row, request: Request, assumed: list[str], *, allow_code: bool) -> Request:
    """Return ``request`` with the strategy in the column ``strategy``, written as `predict` takes it."""
    written, global_batch = text(row, "strategy"), whole(row, "global_batch")
    strategy = parse_strategy(written, global_batch=global_batch)
    check_schedule_of_data(strategy.schedule, allow_code=allow_code)
    request = replace(request, strategy=strategy, global_batch=global_batch)
    if says_micro_batch(written):
        return request
    stated = whole(row, "micro_batch", 0)
    if stated:
        return replace(request, strategy=with_micro_batch(strategy, stated, global_batch))
    return _with_chosen_micro_batch(request, assumed)


def _with_columns(row: Row, request: Request, assumed: list[str], *, allow_code: bool) -> Request:
    """Return ``request`` with the strategy that a row states in one column for each axis.

    If no axis is stated, the strategy is the one that `predict` chooses.
    """
    devices, said = whole(row, "n_gpus"), ("dp", "tp", "pp", "cp", "zero", "micro_batch", "grad_accum")
    if devices > 1 and all(figure(row, key) is None for key in said):
        request = replace(request, global_batch=_global_batch(row, request, None, assumed))
        chosen = choose_strategy(request)
        assumed.append(unstated("strategy", chosen))
        return replace(request, strategy=chosen)
    tp, pp, cp = (whole(row, axis, 1) for axis in ("tp", "pp", "cp"))
    open_axes = [axis for axis in ("tp", "pp", "cp") if figure(row, axis) is None]
    if open_axes and figure(row, "dp") is None and devices > 1:
        assumed.append(unstated(", ".join(open_axes), 1))
    dp = whole(row, "dp", max(1, devices // (tp * pp * cp)))
    virtual, schedule = _pipeline(row, pp, assumed, allow_code=allow_code)
    zero, shard, reshard = _sharding(row, request.runtime, dp * cp, pp, assumed)
    strategy = Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=_experts(row, request, assumed),
        virtual_stages=virtual,
        schedule=schedule,
        zero=zero,  # type: ignore[arg-type]
        shard=shard if shard < dp * cp else 0,
        reshard=reshard,
        sequence_parallel=tp > 1 and _sequence_parallel(row, request.runtime, assumed),
        recompute=recompute_of(row, request.runtime, assumed),
    )
    request = replace(request, strategy=strategy)
    request = replace(request, global_batch=_global_batch(row, request, dp, assumed))
    return _with_micro_batch(row, request, assumed)


def _global_batch(row: Row, request: Request, dp: int | None, assumed: list[str]) -> int:
    """Return the samples of a step, as stated or computed from microbatches or from tokens per second.

    Without a pipeline, a micro batch whose accumulation is not stated is taken as the whole batch of a replica.
    """
    if figure(row, "global_batch") is not None:
        return whole(row, "global_batch")
    if dp is not None and figure(row, "micro_batch") and figure(row, "grad_accum"):
        return dp * whole(row, "micro_batch") * whole(row, "grad_accum")
    rate, seconds = figure(row, "tokens_per_s_per_gpu"), figure(row, "step_time_s")
    if rate and seconds and request.graph.tokens_per_sample:
        found = rate * seconds * request.cluster.num_devices / request.graph.tokens_per_sample
        if round(found) >= 1 and abs(found / round(found) - 1) <= _WHOLE:
            return round(found)
    if dp is not None and request.strategy.pp == 1 and figure(row, "micro_batch"):
        assumed.append("gradient accumulation not stated: none")
        return dp * whole(row, "micro_batch")
    raise RowError("global_batch is not stated and does not follow from other columns")


def _with_micro_batch(row: Row, request: Request, assumed: list[str]) -> Request:
    """Return ``request`` with the microbatches that a row states, or with those that `predict` chooses.

    In a pipeline, an accumulation of 1 means that nothing is accumulated beyond the pipeline's microbatches.
    """
    strategy, total = request.strategy, request.global_batch
    micro_batch, accumulate = figure(row, "micro_batch"), figure(row, "grad_accum")
    if strategy.pp > 1 and accumulate == 1 and (micro_batch is None or total > strategy.dp * micro_batch):
        accumulate = None
    if micro_batch is None and accumulate is None:
        return _with_chosen_micro_batch(request, assumed)
    if micro_batch is None:
        micro_batch = total / (strategy.dp * (accumulate or 1.0))
    count = total / (strategy.dp * micro_batch) if micro_batch else 0.0
    if not (_is_count(micro_batch) and _is_count(count) and (accumulate or count) == count):
        also = f", accumulation {accumulate:g}" if accumulate and figure(row, "micro_batch") else ""
        raise RowError(
            f"dp={strategy.dp}, micro batch {micro_batch:g}{also} and global batch {total} contradict each other"
        )
    if request.runtime.name == "torchtitan" and count < strategy.pp:
        assumed.append(
            f"micro batch {micro_batch:g} leaves stages idle, which torchtitan refuses: taken as a replica's batch"
        )
        return _with_chosen_micro_batch(request, assumed)
    return replace(request, strategy=replace(strategy, num_microbatches=int(count)))


def _is_count(value: float) -> bool:
    return value >= 1 and value == int(value)


def _with_chosen_micro_batch(request: Request, assumed: list[str]) -> Request:
    chosen = choose_micro_batch(request)
    assumed.append(unstated("micro batch", chosen.micro_batch(request.global_batch)))
    return replace(request, strategy=chosen)


def _pipeline(row: Row, pp: int, assumed: list[str], *, allow_code: bool) -> tuple[int, str]:
    """Return the chunks of layers on each rank, and the schedule."""
    if pp == 1:
        return 1, "1f1b"
    virtual, schedule = whole(row, "vp", 1), schedule_of(row)
    check_schedule_of_data(schedule, allow_code=allow_code)
    if not schedule:
        schedule = "1f1b" if virtual == 1 else "interleaved"
        if virtual == 1:
            assumed.append(unstated("pipeline schedule", schedule))
    elif figure(row, "vp") is None and (
        schedule == "interleaved" or (schedule in SCHEDULES and SCHEDULES[schedule].chunks == 2)
    ):
        virtual = 2
        assumed.append(unstated("virtual stages", virtual))
    return virtual, schedule


def _sharding(row: Row, runtime: Runtime, replicas: int, pp: int, assumed: list[str]) -> tuple[int, int, bool]:
    """Return the ZeRO stage, the replicas that share states (0: all), and whether gathered parameters are freed."""
    stated, shard = figure(row, "zero"), _sharded(row)
    if stated is not None and stated not in (0, 1, 2, 3):
        raise RowError(f"zero is {stated:g}: expected 0, 1, 2 or 3")
    zero = 3 if shard else runtime.zero if stated is None else int(stated)
    if stated is None and not shard:
        zero = min(zero, 1) if pp > 1 and runtime.name != "torchtitan" else zero
        if replicas > 1:
            assumed.append(unstated("zero", zero))
    keeps = zero == 3 and pp > 1 and runtime.name == "torchtitan"
    if keeps and replicas > 1:
        assumed.append("resharding in a pipeline not stated: parameters stay gathered, the default of torchtitan")
    return zero, shard, not keeps


def _sequence_parallel(row: Row, runtime: Runtime, assumed: list[str]) -> bool:
    stated = flag(row, "sp")
    if stated is None:
        assumed.append(unstated("sp", int(runtime.sequence_parallel)))
    return runtime.sequence_parallel if stated is None else stated


def _experts(row: Row, request: Request, assumed: list[str]) -> int:
    ep = whole(row, "ep", 1)
    if figure(row, "ep") is None and any(op.kind is OpKind.GROUPED_GEMM for op, _ in request.graph):
        assumed.append(unstated("ep", ep))
    return ep


def _sharded(row: Row) -> int:
    """Return the replicas that share parameters, if the notes state them (``fsdp=64``); otherwise 0."""
    found = re.search(r"\bfsdp\s*=\s*(\d+)", text(row, "notes").lower())
    return int(found[1]) if found else 0
