"""The strategy and the batch of a row, from its columns: what every reader of rows fills an ask with.

A row is in the columns of training steps here. Readers of other tables state in these columns what theirs mean.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from traincast.ask import Ask
from traincast.cluster import Cluster
from traincast.errors import TraincastError
from traincast.graph import OperatorGraph, OpKind
from traincast.measured.dialect import vocabulary
from traincast.measured.models.language import optimizer_name
from traincast.measured.programs import Frameworks, Strategies
from traincast.measured.room import needed_bytes
from traincast.measured.run import contradiction, unstated
from traincast.measured.spellings import Spellings, optimizer_of, recompute_of, schedule_of, supported, updates_weights
from traincast.resolve import resolve
from traincast.strategy import Request, Runtime, Strategy, choose_micro_batch, choose_strategy
from traincast.strategy.releases import assumed_release, has_experts
from traincast.strategy.schedules import SCHEDULES, check_schedule_of_data
from traincast.strategy.strategy import says_micro_batch, settings_in
from traincast.tables import Row, RowError, figure, flag, text, whole

_LEAST_BYTES: Final = 4.0
"""Bytes per parameter that a device with a whole model holds at least: weights and gradients of 16 bits."""
_SETTINGS: Final = {
    **{axis: axis for axis in ("dp", "tp", "pp", "cp", "ep", "zero")},
    "vp": "virtual_stages",
}
"""Columns of a strategy, and the settings of a strategy's text that say the same."""
_LONG_BUBBLE: Final = 0.25
"""Share of a step in the bubble of 1F1B from which recipes interleave stages."""
_WHOLE: Final = 0.01
"""How far a batch computed from tokens per second may be from a whole number, relative to it."""


def asked(
    row: Row,
    *,
    graph: OperatorGraph,
    place: Cluster,
    runtime: Runtime,
    precision: str,
    assumed: list[str],
    allow_code: bool = False,
) -> Request:
    """Return the request for a model, a place and a program, with the strategy and the batch that a row states.

    The strategy is read from the column ``strategy`` if it is stated, otherwise from one column for each axis.
    """
    optimizer = updates_weights(row)
    if optimizer:
        optimizer_of(row, optimizer_name(graph), assumed)
    released = _released(row, runtime)
    ask = Ask(
        model=graph,
        cluster=place,
        runtime=released,
        precision=supported(precision, place.device, assumed),
        global_batch=1,
        optimizer=optimizer,
    )
    request = resolve(ask, chooser=None).request
    if assumed_release(released, request.runtime):
        assumed.append(unstated(f"release of {runtime.name}", request.runtime.release))
    if text(row, "strategy"):
        return _with_text(row, ask, request.runtime, assumed, allow_code=allow_code)
    return _with_columns(row, request, assumed, allow_code=allow_code)


def _released(row: Row, runtime: Runtime) -> Runtime:
    """Return ``runtime`` with the release that the column ``date`` states, if it has habits that depend on it."""
    stated = vocabulary(Spellings).release.fullmatch(text(row, "date"))
    return replace(runtime, release=stated[0]) if stated and runtime.habits else runtime


def _with_text(row: Row, ask: Ask, runtime: Runtime, assumed: list[str], *, allow_code: bool) -> Request:
    """Return the request for ``ask`` with the strategy in the column ``strategy``, written as `predict` takes it.

    Settings that the text leaves out may be stated in columns of their own.
    """
    written = _with_settings(row, runtime, assumed)
    ask = replace(ask, strategy=written, global_batch=whole(row, "global_batch"))
    request = resolve(ask, allow_code=allow_code).request
    if not says_micro_batch(written):
        assumed.append(unstated("micro batch", request.strategy.micro_batch(request.global_batch)))
    return request


def _with_settings(row: Row, runtime: Runtime, assumed: list[str]) -> str:
    """Return the text in the column ``strategy``, with the settings that a row states only in other columns."""
    written = text(row, "strategy")
    given = settings_in(written)
    more = {name: text(row, column) for column, name in _SETTINGS.items() if name not in given}
    more = {name: f"{float(value):g}" for name, value in more.items() if value}
    if not says_micro_batch(written) and (micro_batch := whole(row, "micro_batch", 0)):
        more["micro_batch"] = str(micro_batch)
    if "recompute" not in given and text(row, "recompute"):
        more["recompute"] = recompute_of(row, runtime, assumed)
    if "schedule" not in given and text(row, "schedule"):
        more["schedule"] = schedule_of(row)
    if "sequence_parallel" not in given and "tp" in given and flag(row, "sp"):
        more["sequence_parallel"] = "true"
    return ",".join([written, *(f"{name}={value}" for name, value in more.items())])


def _with_columns(row: Row, request: Request, assumed: list[str], *, allow_code: bool) -> Request:
    """Return ``request`` with the strategy that a row states in one column for each axis.

    If no axis is stated, the strategy is the one that `predict` chooses.
    """
    devices, said = whole(row, "n_gpus"), ("dp", "tp", "pp", "cp", "zero", "micro_batch", "grad_accum")
    if devices > 1 and all(figure(row, key) is None for key in said):
        return _with_usual_strategy(row, request, assumed)
    if devices > 1 and _must_be_split(row, request):
        return _with_tensor_groups(row, request, assumed, allow_code=allow_code)
    tp, pp, cp = (whole(row, axis, 1) for axis in ("tp", "pp", "cp"))
    if tp * pp * cp > devices and devices % (tp * cp) == 0 and figure(row, "dp") in (None, 1.0):
        written, pp = pp, devices // (tp * cp)
        assumed.append(contradiction("pp", "n_gpus", f"{pp}, since {tp}·{written}·{cp} ranks exceed {devices} GPUs"))
    dp = whole(row, "dp", max(1, devices // (tp * pp * cp)))
    if figure(row, "dp") is None and figure(row, "cp") is None:
        dp, cp = _split_by_context(row, dp, assumed)
    open_axes = [axis for axis, size in (("tp", tp), ("pp", pp), ("cp", cp)) if figure(row, axis) is None and size == 1]
    if open_axes and figure(row, "dp") is None and devices > 1:
        assumed.append(unstated(", ".join(open_axes), 1))
    virtual, schedule = _pipeline(row, pp, assumed, allow_code=allow_code)
    zero, shard, reshard = _sharding(row, request, dp * cp, pp, assumed)
    words = vocabulary(Strategies)
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
        capacity=1.0 if words.dropped_tokens(row) else 0.0,
        recompute=recompute_of(row, request.runtime, assumed),
        tables="sharded" if words.split_tables(row) else "replicated",
    )
    request = replace(request, strategy=strategy)
    request = replace(request, global_batch=_global_batch(row, request, dp, assumed))
    request = _with_micro_batch(row, request, assumed)
    if pp > 1 and schedule == "1f1b" and not text(row, "vp") and not schedule_of(row):
        return _with_likely_stages(request, assumed)
    return request


def _with_usual_strategy(row: Row, request: Request, assumed: list[str]) -> Request:
    """Return ``request`` with the usual strategy that fits, but with the recomputation that a row states."""
    request = replace(request, global_batch=_global_batch(row, request, None, assumed))
    chosen = _usual_strategy(request)
    if text(row, "recompute"):
        chosen = replace(chosen, recompute=recompute_of(row, request.runtime, assumed))
        chosen = choose_micro_batch(replace(request, strategy=chosen))
    assumed.append(unstated("strategy", chosen))
    return replace(request, strategy=chosen)


def _with_tensor_groups(row: Row, request: Request, assumed: list[str], *, allow_code: bool) -> Request:
    """Return ``request`` with what a row states, and the narrowest tensor groups in a node with which it fits.

    If none fits, the widest groups that can be run are taken.
    """
    found: tuple[Request, list[str]] | None = None
    inside = request.cluster.devices_per_node
    for tp in (d for d in range(1, inside + 1) if inside % d == 0):
        said: list[str] = []
        try:
            made = _with_columns({**row, "tp": tp}, request, said, allow_code=allow_code)
            fits = needed_bytes(made) <= request.cluster.device.memory_bytes
        except (RowError, TraincastError):
            continue
        found = made, said
        if fits:
            break
    if found is None:
        return _with_usual_strategy(row, request, assumed)
    assumed += [unstated("tp", f"{found[0].strategy.tp}, because a device cannot hold the whole model"), *found[1]]
    return found[0]


def _split_by_context(row: Row, replicas: int, assumed: list[str]) -> tuple[int, int]:
    """Return dp and cp of devices that split no layers: if a step has fewer sequences, several share each of them."""
    total = whole(row, "global_batch", 0)
    if not total or replicas <= total or replicas % total:
        return replicas, 1
    assumed.append(f"cp not stated: {replicas // total}, since {replicas} replicas share {total} sequences")
    return total, replicas // total


def _must_be_split(row: Row, request: Request) -> bool:
    """Return whether neither dp nor tp is stated, no other axis splits the model, and a device cannot hold it whole."""
    if any(figure(row, key) is not None for key in ("dp", "tp", "zero")):
        return False
    alone = all((figure(row, key) or 1) == 1 for key in ("pp", "cp"))
    least = _LEAST_BYTES * request.graph.num_parameters
    return alone and request.runtime.defaults.zero < 3 and least > request.cluster.device.memory_bytes


def _usual_strategy(request: Request) -> Strategy:
    """Return sharded data parallelism if that is the habit of the runtime, otherwise the first that fits."""
    runtime, devices = request.runtime, request.cluster.num_devices
    if runtime.defaults.zero < 3 or request.global_batch % devices:
        return choose_strategy(request)
    place = request.cluster
    slices = devices // place.domain_devices if place.intra_topology == "torus" else 1
    return Strategy(
        dp=devices, zero=3, shard=devices // slices if slices > 1 else 0, recompute=runtime.defaults.recompute
    )


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

    In a pipeline, an accumulation of 1 means that nothing is accumulated beyond the pipeline's microbatches. A stated
    micro batch is replaced only if the row's own batches contradict it.
    """
    strategy, total = request.strategy, request.global_batch
    micro_batch, accumulate = figure(row, "micro_batch"), figure(row, "grad_accum")
    if strategy.pp > 1 and accumulate == 1 and (micro_batch is None or total > strategy.dp * micro_batch):
        accumulate = None
    if micro_batch is None and accumulate is None:
        return _with_chosen_micro_batch(request, assumed)
    if micro_batch is None:
        micro_batch = total / (strategy.dp * (accumulate or 1.0))
    devices = request.cluster.num_devices
    each = micro_batch * devices / strategy.dp
    whole_device = accumulate is not None or micro_batch < 1
    if whole_device and devices > strategy.dp and micro_batch * devices * (accumulate or 1.0) == total:
        found = f"{each:g} of a replica, since {micro_batch:g} is that of one device"
        assumed.append(contradiction("micro_batch", "global_batch", found))
        micro_batch = each
    count = total / (strategy.dp * micro_batch) if micro_batch else 0.0
    if accumulate is None and not _is_count(count) and total % strategy.dp == 0:
        share = total // strategy.dp
        fitting = max(size for size in range(1, share + 1) if share % size == 0 and size <= max(1.0, micro_batch))
        found = f"{fitting}, since {micro_batch:g} does not divide the {share} samples of a replica"
        assumed.append(contradiction("micro_batch", "global_batch", found))
        micro_batch, count = float(fitting), share / fitting
    if not (_is_count(micro_batch) and _is_count(count) and (accumulate or count) == count):
        also = f", accumulation {accumulate:g}" if accumulate and figure(row, "micro_batch") else ""
        raise RowError(
            f"dp={strategy.dp}, micro batch {micro_batch:g}{also} and global batch {total} contradict each other"
        )
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
        if whole(row, "vp", 1) > 1:
            assumed.append(contradiction("vp", "pp", "1, since there is no pipeline"))
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


def _with_likely_stages(request: Request, assumed: list[str]) -> Request:
    """Return ``request`` with the virtual stages that recipes of its runtime take; the row does not state them."""
    other = interleaved(request)
    strategy = request.strategy
    waits = (strategy.pp - 1) / (strategy.num_microbatches + strategy.pp - 1)
    if other is None or waits < _LONG_BUBBLE or request.runtime.name not in vocabulary(Frameworks).interleaves:
        return request
    assumed.remove(unstated("pipeline schedule", "1f1b"))
    stages = other.strategy.virtual_stages
    assumed.append(unstated("virtual stages", f"{stages}, since without them {waits:.0%} of the step would be bubble"))
    return other


def interleaved(request: Request) -> Request | None:
    """Return ``request`` with each layer of a stage as a stage of its own; ``None`` if that cannot be run.

    Interleaving needs a multiple of the stages as microbatches, and layers that the stages divide evenly. Recipes of
    mixtures of experts seldom interleave.
    """
    strategy, layers = request.strategy, sum(b.count for b in request.graph.blocks if b.repeated)
    if strategy.pp < 2 or layers % strategy.pp or layers == strategy.pp or strategy.num_microbatches % strategy.pp:
        return None
    if has_experts(request.graph):
        return None
    return replace(request, strategy=replace(strategy, virtual_stages=layers // strategy.pp, schedule="interleaved"))


def other_readings(row: Row, request: Request) -> tuple[Request, ...]:
    """Return what a row may mean as well: with virtual stages that it does not state, or without them."""
    strategy = request.strategy
    if strategy.pp < 2 or text(row, "vp") or text(row, "strategy") or schedule_of(row):
        return ()
    if strategy.virtual_stages > 1:
        return (replace(request, strategy=replace(strategy, virtual_stages=1, schedule="1f1b")),)
    other = interleaved(request) if request.runtime.name in vocabulary(Frameworks).interleaves else None
    return () if other is None else (other,)


def _sharding(row: Row, request: Request, replicas: int, pp: int, assumed: list[str]) -> tuple[int, int, bool]:
    """Return the ZeRO stage, the replicas that share states (0: all), and whether gathered parameters are freed."""
    runtime = request.runtime
    gathers = runtime.name in vocabulary(Frameworks).keeps_gathered
    stated, shard = figure(row, "zero"), _sharded(row, request.cluster, replicas)
    if stated is not None and stated not in (0, 1, 2, 3):
        raise RowError(f"zero is {stated:g}: expected 0, 1, 2 or 3")
    zero = 3 if shard and stated is None else runtime.defaults.zero if stated is None else int(stated)
    if stated is None and not shard:
        zero = min(zero, 1) if pp > 1 and not gathers else zero
        if replicas > 1:
            assumed.append(unstated("zero", zero))
    keeps = zero == 3 and pp > 1 and gathers
    if keeps and replicas > 1:
        assumed.append(f"resharding in a pipeline not stated: parameters stay gathered, the default of {runtime.name}")
    return zero, shard, not keeps


def _sequence_parallel(row: Row, runtime: Runtime, assumed: list[str]) -> bool:
    stated = flag(row, "sp")
    if stated is None:
        assumed.append(unstated("sp", int(runtime.defaults.sequence_parallel)))
    return runtime.defaults.sequence_parallel if stated is None else stated


def _experts(row: Row, request: Request, assumed: list[str]) -> int:
    ep = whole(row, "ep", 1)
    if figure(row, "ep") is None and any(op.kind is OpKind.GROUPED_GEMM for op, _ in request.graph):
        assumed.append(unstated("ep", ep))
    return ep


def _sharded(row: Row, place: Cluster, replicas: int) -> int:
    """Return the replicas that share parameters, as the column ``shard`` states them; 0 if nothing says how many.

    Or the notes may state them (``fsdp=64``, ``FSDP8 in node``); as many as dp are all, with their context groups.
    Otherwise each of several slices of TPUs holds all parameters, unless the notes shard them across slices too
    (``dcn_fsdp_parallelism=2``).
    """
    if figure(row, "shard") is not None:
        return whole(row, "shard")
    words = vocabulary(Strategies)
    found = words.fsdp.find(row)
    if found:
        return replicas if int(found[1]) == figure(row, "dp") else int(found[1])
    slices = place.num_devices // place.domain_devices if place.intra_topology == "torus" else 1
    return replicas // slices if place.domain_nodes > 1 and slices > 1 and not words.across_slices(row) else 0
